"""The block around each attention call: output projection, residual connection and normalisation.

They are found by their numbers, not by names: a later module reads the output of the projection plus an earlier state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from attnscope.capture.forward import forward
from attnscope.capture.watch import Site
from attnscope.capture.watching import attached, watching
from attnscope.explanation.inputs import FOR_MATCHING
from attnscope.explanation.projections import LayerRun
from attnscope.explanation.stream import SMALL, Fold, Layer, residual_stream
from attnscope.intervention import contributions
from attnscope.intervention.gradients import check_gradients
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.full import attended
from attnscope.support.errors import AttnscopeError
from attnscope_lineage.weights.calls import check_matrices, output_by_rows

Form = Literal["sum", "normalised sum", "normalised attention"]


@dataclass(frozen=True, eq=False)
class Block:
    """How a block computes its output from the output of its attention."""

    site: Site  # the attention call
    # W_O of each head, ``(head, value_width, width)``; None if it was not found
    output: Float[Tensor, "head value_width width"] | None = None
    bias: Float[Tensor, " width"] | None = None  # b_O, ``(width,)``
    # ``"sum"``: o + x (GPT-2, Llama, T5); ``"normalised sum"``: LN(o + x) (BERT); ``"normalised attention"``: LN(o) +
    # x (Gemma 2); None if it was not found
    form: Form | None = None
    norm: Fold | None = None  # the normalisation; None in a plain sum
    reason: str = ""  # why `output` or `form` is None
    projection: str = ""  # name of the module whose output is o
    reader: str = ""  # name of the module that reads the sum
    normaliser: str = ""  # name of the normalisation


@torch.no_grad()
def find_blocks(model: PreTrainedModel, inputs: dict[str, Any]) -> list[Block]:
    """Find and check the block around every attention call of a model, on the first tokens of a text."""
    length = min(FOR_MATCHING, *(ids.shape[1] for ids in inputs.values()))
    stream = residual_stream(model, {name: ids[:, :length] for name, ids in inputs.items()})
    return [_block(model, layer) for layer in stream.layers]


def _block(model: PreTrainedModel, layer: Layer) -> Block:
    matrices = layer.matrices
    reason = contributions.without_output(matrices)
    if reason:
        return Block(matrices.site, reason=reason)
    assert matrices.output_bias is not None  # noqa: S101 there is a reason without it
    output = contributions.output_matrix(model, matrices)
    bias = torch.from_numpy(matrices.output_bias).to(output)
    block, normaliser = Block(matrices.site, output, bias), layer.branch or layer.after
    if layer.reader is None or abs(layer.factor - 1) > SMALL:
        return replace(
            block,
            reason="no module reads the sum of its heads and an earlier state, so the output of the block is unknown "
            "(parallel layers, as in GPT-NeoX, or a scaled residual)",
        )
    names = {"projection": matrices.names["output"], "reader": layer.reader.name}
    if normaliser is None:
        return replace(block, form="sum", **names)
    norm = layer.written if layer.branch else layer.after_fold
    if norm is None:
        kind = type(normaliser.module).__name__
        return replace(block, reason=f"{normaliser.name} ({kind}) does not compute LayerNorm or RMSNorm")
    form: Form = "normalised attention" if layer.branch else "normalised sum"
    return replace(block, form=form, norm=norm, normaliser=normaliser.name, **names)


def shaped(tensor: Tensor, like: Tensor) -> Tensor | None:
    """The tensor in another's shape if one of them only flattens texts and positions (OPT); else None."""
    if tensor.numel() != like.numel() or tensor.shape[-1] != like.shape[-1]:
        return None
    return tensor.reshape(like.shape)


#: Largest difference of two computations of one number, as a share of the largest value. Many models normalise in
#: single precision whatever their own dtype.
ROUNDING = {torch.float64: 1e-6, torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


@dataclass(eq=False)
class Record:
    """An attention call of one text."""

    block: Block  # the block around it
    call: AttentionCall  # batch of one; detached
    # output of its heads, ``(1, head, query, value_width)``: part of the graph if gradients are needed
    output: Tensor
    # what the residual connection added, ``(query, width)``; None if the block is unknown
    residual: Float[Tensor, "query width"] | None = None
    given: Float[Tensor, "query width"] | None = None  # output of the block, ``(query, width)``
    # 1/s of the block's normalisation, ``(query, 1)``; 1 without a normalisation
    scale: Float[Tensor, "query 1"] | None = None
    reason: str = ""  # why the block's parts are unknown; empty if they sum to its output

    @property
    def site(self) -> Site:
        return self.block.site


def record(
    model: PreTrainedModel,
    inputs: dict[str, Any],
    blocks: Sequence[Block],
    name: str,
    *,
    differentiable: bool = False,
    with_head: bool = False,
) -> tuple[list[Record], Tensor]:
    """Run one text and record its attention calls and the outputs of their blocks."""
    if differentiable:
        check_gradients(model, "measures without gradients")
    records: list[Record] = []
    ran: list[dict[str, LayerRun]] = []  # the first run of each module after a call

    def observe(_: Site, call: AttentionCall) -> Tensor:
        if len(records) >= len(blocks):
            raise AttnscopeError(
                f"{name} makes more attention calls than the first text ({len(blocks)}), so its layers cannot be "
                "identified"
            )
        if differentiable:
            check_matrices([*(each.call for each in records), call], name, in_a_graph=True)
            output = attended(call)[0]
            if not output.requires_grad:
                output.requires_grad_()
        else:
            output = output_by_rows(call)
        ran.append({})
        parts = {name: getattr(call, name) for name in ("query", "key", "value", "bias", "sinks")}
        detached = replace(call, **{name: part.detach() for name, part in parts.items() if part is not None})
        block = blocks[len(records)]
        records.append(Record(block, detached, output, reason=block.reason))
        return output

    def note(name: str, module: nn.Module, arguments: tuple[Any, ...], returned: Tensor) -> None:
        if ran:
            ran[-1].setdefault(name, LayerRun(name, module, arguments[0], returned))

    wanted = {module for block in blocks for module in (block.projection, block.reader, block.normaliser) if module}
    hooks = (model.get_submodule(module).register_forward_hook(partial(note, module)) for module in wanted)
    with torch.set_grad_enabled(differentiable), attached(hooks), watching(model, observe):
        output = forward(model, inputs, lambda _: name, with_head=with_head)
    for each, after in zip(records, ran, strict=True):
        if each.block.form is not None:
            _fill(each, after, name)
    return records, output


def _fill(record: Record, ran: dict[str, LayerRun], name: str) -> None:
    """Fill in residual and output of a block, and check that its parts sum to the output."""
    block = record.block
    projected = ran[block.projection].returned
    read = shaped(ran[block.reader].received, projected)
    wide: Any = {"device": projected.device, "dtype": torch.promote_types(record.call.query.dtype, torch.float32)}
    if read is None:
        record.reason = "the sum of its heads has another shape than in the first text"
        return
    projected, read = projected.detach()[0].to(**wide), read.detach()[0].to(**wide)
    record.scale = torch.ones_like(projected[:, :1])
    record.given, record.residual, shift = read, read - projected, torch.zeros(())
    if block.norm is not None:
        event = ran[block.normaliser]
        through, normalised = (side.detach()[0].double() for side in (event.received, event.returned))
        record.scale, shift = (one.to(**wide) for one in block.norm.frozen(event.module, through, normalised))
        normalised = normalised.to(**wide)
        if block.form == "normalised sum":
            record.given = normalised
        else:
            record.residual = read - normalised
    assert block.output is not None  # noqa: S101 known where the form is
    assert block.bias is not None  # noqa: S101
    parts = torch.einsum("hqr,hrw->qw", record.output.detach()[0].to(block.output.dtype), block.output) + block.bias
    if block.form != "normalised attention":
        parts = parts + record.residual
    if block.norm is not None:
        parts = block.norm.of(parts) * record.scale + shift
    if block.form == "normalised attention":
        parts = parts + record.residual
    limit = ROUNDING.get(record.call.query.dtype, 2e-5)
    error = float((parts - record.given).abs().max()) / max(float(record.given.abs().max()), 1e-30)
    if not error <= limit:
        record.reason = (
            f"in {name}, heads, residual and normalisation do not sum to the output of the block (largest difference "
            f"{error:.1e} of the largest value, allowed {limit:.0e})"
        )


def value_outputs(record: Record) -> Float[Tensor, "head key width"]:
    r"""Output of each head for each key at weight 1: :math:`f_h(x_j) = (x_j W_V + b_V) W_O`."""
    assert record.block.output is not None  # noqa: S101 callers check this
    return contributions.value_outputs(record.call, record.block.output)
