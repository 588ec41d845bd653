"""One text through a model: every attention call, and what its block made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.capture.forward import forward
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.intervention.contributions.blocks import ROUNDING, Block, ModuleRun, record_modules, shaped
from attnscope.intervention.given import check_matrices
from attnscope.intervention.session import attended, output_by_rows, values_of
from attnscope.kernels.call import AttentionCall
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel


@dataclass(eq=False)
class Record:
    """An attention call of a text alone."""

    block: Block  # what stands around it
    call: AttentionCall  # batch of one; detached
    # what its heads gave, ``(1, head, query, value_width)``: within the graph, where gradients are wanted
    output: Tensor
    # what the residual connection added, ``(query, width)``; None where the block is not known
    residual: Float[Tensor, "query width"] | None = None
    given: Float[Tensor, "query width"] | None = None  # what the block gave, ``(query, width)``
    # 1/s of the block's normalisation, ``(query, 1)``; 1 where there is none
    scale: Float[Tensor, "query 1"] | None = None
    reason: str = ""  # why the block's parts are not known; empty where they are, and sum to what it gave

    @property
    def site(self) -> Site:
        """The attention call that the layer makes."""
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
    """Run one text, and keep its attention calls and what was made of them."""
    records: list[Record] = []
    events: list[ModuleRun] = []
    marks: list[int] = []

    def observe(_: Site, call: AttentionCall) -> Tensor:
        if len(records) >= len(blocks):
            raise AttnscopeError(
                f"{name} makes more attention calls than the first text did ({len(blocks)}): its layers cannot be told "
                "apart"
            )
        if differentiable:
            check_matrices([*(each.call for each in records), call], name, in_a_graph=True)
            output = attended(call)[0]
            if not output.requires_grad:
                output.requires_grad_()
        else:
            output = output_by_rows(call)
        marks.append(len(events))
        block = blocks[len(records)]
        records.append(Record(block, _detached(call), output, reason=block.reason))
        return output

    wanted = {module for block in blocks for module in (block.projection, block.reader, block.normaliser) if module}
    modules = {module: model.get_submodule(module) for module in wanted}
    with torch.set_grad_enabled(differentiable), record_modules(modules, events), watching(model, observe):
        output = forward(model, inputs, lambda _: name, with_head=with_head)
    for number, each in enumerate(records):
        if each.block.form is not None:
            stop = marks[number + 1] if number + 1 < len(marks) else len(events)
            _fill(each, events[marks[number] : stop], name)
    return records, output


def _fill(record: Record, events: list[ModuleRun], name: str) -> None:
    """Residual and output of a block, and the check that its parts sum to it."""
    block = record.block
    heard = {event.name: event for event in reversed(events)}
    made, read = heard[block.projection].returned, heard[block.reader].given
    wide = torch.promote_types(record.call.query.dtype, torch.float32)
    read = None if made is None else shaped(read, made)
    if made is None or read is None:
        record.reason = "what its heads add up to has another shape than in the first text"
        return
    made, read = made.detach()[0].to(wide), read.detach()[0].to(wide)
    record.scale = torch.ones_like(made[:, :1])
    record.given, record.residual = read, read - made
    if block.norm is not None:
        event = heard[block.normaliser]
        assert event.returned is not None  # noqa: S101 a norm
        through, normalised = (side.detach()[0].to(wide) for side in (event.given, event.returned))
        record.scale = block.norm.scale(through, normalised)
        if block.form == "normalised sum":
            record.given = normalised
        else:
            record.residual = read - normalised
    limit = ROUNDING.get(record.call.query.dtype, 2e-5)
    error = float((_sum(record) - record.given).abs().max()) / max(float(record.given.abs().max()), 1e-30)
    if not error <= limit:
        record.reason = (
            f"in {name}, heads, residual and normalisation do not sum to what the block gives (largest difference "
            f"{error:.1e} of the largest value, allowed {limit:.0e})"
        )


def _sum(record: Record) -> Tensor:
    """All parts of a block together."""
    block, norm = record.block, record.block.norm
    assert block.output is not None  # noqa: S101 known where the form is
    assert block.bias is not None  # noqa: S101
    assert record.residual is not None  # noqa: S101 filled before
    assert record.scale is not None  # noqa: S101
    weighed = record.output.detach()[0].to(block.output.dtype)
    made = torch.einsum("hqr,hrw->qw", weighed, block.output) + block.bias
    if norm is None:
        return made + record.residual
    if block.form == "normalised sum":
        return norm.of(made + record.residual) * record.scale + norm.shift
    return norm.of(made) * record.scale + norm.shift + record.residual


def _detached(call: AttentionCall) -> AttentionCall:
    if not torch.is_grad_enabled():
        return call
    return AttentionCall(
        *(side.detach() for side in (call.query, call.key, call.value)),
        scale=call.scale,
        causal=call.causal,
        mask=call.mask,
        bias=None if call.bias is None else call.bias.detach(),
        softcap=call.softcap,
        sinks=None if call.sinks is None else call.sinks.detach(),
    )


def value_outputs(record: Record) -> Float[Tensor, "head key width"]:
    r"""What each key would give through each head, were its weight 1: :math:`f_h(x_j) = (x_j W_V + b_V) W_O`."""
    assert record.block.output is not None  # noqa: S101 asked only where it is known
    return values_of(record.call)[0].to(record.block.output.dtype) @ record.block.output
