"""Weights, values and outputs of attention calls, with gradients, and the predictions that follow."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import PreTrainedModel

from attnscope.capture.forward import forward
from attnscope.capture.placement import device_of
from attnscope.capture.watch import Site
from attnscope.capture.watching import attached, watching
from attnscope.capture.weights import linear_layers
from attnscope.explanation.inputs import ids_of
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of
from attnscope.kernels.full import attended, values_of, weights_of
from attnscope.kernels.reference import causal_mask
from attnscope.read.windows import Window
from attnscope.support.errors import AttnscopeError


def output_with_gradient(call: AttentionCall) -> Tensor:
    """The differentiable output of a call, ``(batch, head, query, value_width)``."""
    if call.softcap is not None or call.sinks is not None:
        return attended(call)[0]
    mask, causal = call.mask, call.causal
    square = call.query.shape[2] == call.key.shape[2]
    if causal and (mask is not None or call.bias is not None or not square):
        past = causal_mask(call.query.shape[2], call.key.shape[2], call.query.device)
        mask, causal = past if mask is None else mask & past, False
    if call.bias is not None:
        added = call.bias.to(call.query.dtype)
        mask = added if mask is None else added.masked_fill(~mask, torch.finfo(added.dtype).min)
    return F.scaled_dot_product_attention(
        call.query, call.key, call.value, attn_mask=mask, is_causal=causal, scale=call.scale, enable_gqa=call.group > 1
    )


@torch.no_grad()
def unread_sites(model: PreTrainedModel, inputs: dict[str, Tensor]) -> list[Site]:
    """Attention calls whose heads no linear layer reads: whole, as some of its columns, or each times a gate."""
    waiting: list[tuple[Site, Tensor]] = []

    def observe(site: Site, call: AttentionCall) -> Tensor:
        output = output_of(call)
        waiting.append((site, output.transpose(1, 2).flatten(2)))
        return output

    def look(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        if arguments and isinstance(arguments[0], Tensor):
            waiting[:] = [(site, output) for site, output in waiting if not _holds(arguments[0], output)]

    linears = linear_layers(model)
    with attached(module.register_forward_pre_hook(look) for _, module in linears), watching(model, observe):
        model(**inputs)
    return [site for site, _ in waiting if not _reads_apart(model, inputs, site)]


def _reads_apart(model: PreTrainedModel, inputs: dict[str, Tensor], site: Site) -> bool:
    """Whether a layer reads each head in columns of its own, all else equal, as behind a gate (Qwen3-Next)."""
    runs, apart = list[tuple[Tensor, Tensor]](), False
    heads, moved, at = 0, False, iter(())

    def observe(current: Site, call: AttentionCall) -> Tensor:
        nonlocal heads
        output = output_of(call)
        if current.index != site.index:
            return output
        heads = output.shape[1]
        if moved:
            output = output.clone()
            output[:, ::2] += 1 + output.abs().max()
        return output

    def compare(_: nn.Module, arguments: tuple[Any, ...], returned: Tensor) -> Tensor | None:
        nonlocal apart
        if not moved:
            runs.append((arguments[0].clone(), returned.clone()))
            return None
        before, after = next(at)
        changed = (arguments[0] != before).flatten(0, -2).any(0)
        if heads and len(changed) % heads == 0:
            by_head = changed.unflatten(0, (heads, -1)).any(1)
            apart = apart or (bool(by_head[::2].all()) and not bool(by_head[1::2].any()))
        return after  # all that follows is equal

    linears = [module for _, module in linear_layers(model)]
    with attached(module.register_forward_hook(compare) for module in linears), watching(model, observe):
        model(**inputs)
        moved, at, heads = True, iter(runs), 0
        model(**inputs)
    return apart


def _holds(received: Tensor, output: Tensor) -> bool:
    """Whether some columns of a layer's input are the output of the heads, ``(text, query, width)``."""
    width = output.shape[2]
    columns = received.shape[-1]
    if columns < width or received.numel() // columns != output.shape[0] * output.shape[1]:
        return False
    rows = received.reshape(*output.shape[:2], columns)
    limit = 1e-4 * float(output.abs().max())
    return any(
        float((rows[..., start : start + width] - output).abs().max()) <= limit
        for start in range(columns - width + 1)
        if abs(float(rows[0, 0, start] - output[0, 0, 0])) <= limit
    )


_WEIGHTS_AT_ONCE = 1 << 22  # 16 MiB in float32, all heads of some rows


def weight_tiles(call: AttentionCall) -> Iterator[tuple[slice, Float[Tensor, "head row key"]]]:
    """Weights of the first text, some rows of all heads at a time, so that no whole matrix is in memory."""
    _, heads, queries, _ = call.query.shape
    height = max(1, _WEIGHTS_AT_ONCE // (heads * call.key.shape[2]))
    for first in range(0, queries, height):
        rows = slice(first, min(queries, first + height))
        yield rows, weights_of(call, rows)[0]


@torch.no_grad()
def output_by_rows(call: AttentionCall) -> Float[Tensor, "1 head query value_width"]:
    """The output of a call of one text, in the query's dtype, from the tiles of `weight_tiles`."""
    values = values_of(call)[0]
    return torch.cat([tile @ values for _, tile in weight_tiles(call)], 1)[None].to(call.query.dtype)


def band_of(matrix: Float[Tensor, "*head row key"], first: int, band: int) -> Float[Tensor, "*head row offset"]:
    """The entries of rows at offsets ``-band..band``, 0 beyond the text; `first` is the number of the first row."""
    rows, keys = matrix.shape[-2:]
    offset = torch.arange(-band, band + 1, device=matrix.device)
    at = torch.arange(first, first + rows, device=matrix.device)[:, None] + offset
    return matrix.gather(-1, at.clamp(0, keys - 1).expand(*matrix.shape[:-2], -1, -1)) * ((at >= 0) & (at < keys))


def inputs_of(model: PreTrainedModel, window: Window | Sequence[int]) -> dict[str, Tensor]:
    """Arguments of a forward pass over one window; without a target, a decoder reads the source too."""
    texts = {"input_ids": window}
    if model.config.is_encoder_decoder:
        texts["decoder_input_ids"] = getattr(window, "target", None) or window
    return {name: torch.tensor([list(ids_of(text))], device=device_of(model)) for name, text in texts.items()}


def checked_heads(
    heads: Sequence[tuple[int, int]], existing: Sequence[tuple[int, int]], name: str
) -> list[tuple[int, int]]:
    """Heads that exist, each once."""
    chosen = list(dict.fromkeys((int(layer), int(head)) for layer, head in heads))
    for layer, head in chosen:
        if (layer, head) not in existing:
            raise AttnscopeError(
                f"there is no head {layer}.{head} ({name}): layers go from 0 to {max(existing)[0]}, heads from 0 to "
                f"{max(number for _, number in existing)}"
            )
    if not chosen:
        raise AttnscopeError(f"found no heads ({name}); expected at least one, such as [(0, 1), (0, 3)], or 0.1,0.3")
    return chosen


class Sides(NamedTuple):
    """Positions of both texts in matrices over all tokens: first the source, then the target."""

    source: int  # number of tokens of each text
    target: int

    @property
    def tokens(self) -> int:
        return self.source + self.target

    @property
    def predicting(self) -> slice:
        """The tokens at which the model predicts: those of the decoder, if there is one."""
        return slice(self.source, self.tokens) if self.target else slice(0, self.source)

    def of(self, kind: str) -> tuple[slice, slice]:
        """Queries and keys of an attention call, by its kind."""
        source, target = slice(0, self.source), slice(self.source, self.tokens)
        if not self.target:
            return source, source
        return source if kind == "self" else target, target if kind == "causal" else source


def sides_of(inputs: dict[str, Tensor]) -> Sides:
    """Number of tokens of both texts."""
    target = inputs.get("decoder_input_ids")
    return Sides(inputs["input_ids"].shape[1], 0 if target is None else target.shape[1])


@torch.no_grad()
def lacks_predictions(model: PreTrainedModel, inputs: dict[str, Any]) -> str:
    """Why a model makes no predictions; empty if it returns logits, for each token or for the text."""
    logits = getattr(model(**inputs), "logits", None)
    if isinstance(logits, Tensor) and logits.ndim in {2, 3}:
        return ""
    return f"{type(model).__name__} returns hidden states, not logits"


def log_probabilities(
    logits: Float[Tensor, "batch *position outcome"], positions: Int[Tensor, " prediction"] | None = None
) -> Float[Tensor, "batch prediction outcome"]:
    """Log probabilities in nats at some positions; a model with one prediction for each text has position 0."""
    by_position = logits[:, None] if logits.ndim == 2 else logits  # noqa: PLR2004
    chosen = by_position if positions is None else by_position[:, positions]
    return chosen.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


MATRIX_BYTES = 2 << 30
NUMBERS_AT_ONCE = 1 << 25  # 128 MiB of weights, or of probabilities
_IN_A_GRAPH = 4  # matrices of each head that a backward pass needs


def check_matrices(calls: Iterable[AttentionCall], name: str, *, in_a_graph: bool) -> None:
    """Raise an error if the weights of all heads of these calls take more than 2 GiB."""
    needed = longest = 0
    for call in calls:
        numbers = call.query.shape[1] * call.query.shape[2] * call.key.shape[2]
        wide = torch.promote_types(call.query.dtype, torch.float32).itemsize
        needed += numbers * wide * (_IN_A_GRAPH if in_a_graph else 1)
        longest = max(longest, call.query.shape[2], call.key.shape[2])
    if needed > MATRIX_BYTES:
        backward = " in a backward pass" if in_a_graph else ""
        raise AttnscopeError(
            f"{name} has {longest} tokens; their attention matrices take more than {MATRIX_BYTES >> 30} GiB"
            f"{backward}. Use a smaller window"
        )


@torch.no_grad()
def leave_one_out(
    model: PreTrainedModel, inputs: dict[str, Tensor], positions: Int[Tensor, " prediction"], name: str
) -> Float[Tensor, "token prediction"]:
    """Total variation distance by which each prediction moves when no query may attend to a token."""
    sides = sides_of(inputs)
    hidden = torch.tensor([], dtype=torch.int64)
    largest = 1

    def observe(site: Site, call: AttentionCall) -> Tensor:
        nonlocal largest
        largest = max(largest, call.query.shape[1] * call.query.shape[2] * call.key.shape[2])
        keys = sides.of(site.kind)[1]
        index = torch.arange(keys.start, keys.start + call.key.shape[2], device=call.key.device)
        keep = (index != hidden.to(index.device)[:, None])[:, None, None]
        mask = keep if call.mask is None else call.mask & keep
        return attended(replace(call, mask=mask.expand(-1, -1, call.query.shape[2], -1)))[0]

    def run(some: Sequence[int]) -> Tensor:
        nonlocal hidden
        hidden = torch.tensor(some)
        several = {key: tensor.expand(len(some), *tensor.shape[1:]) for key, tensor in inputs.items()}
        with watching(model, observe):
            return log_probabilities(forward(model, several, lambda _: name), positions).exp()

    whole = run([-1])
    largest = max(largest, whole.numel())
    parts = torch.arange(sides.tokens).split(max(1, NUMBERS_AT_ONCE // largest))
    return torch.cat([(run(part.tolist()) - whole).abs().sum(-1) / 2 for part in parts])


_SIDES = ("input_ids", "decoder_input_ids")


@contextmanager
def embedding_leaves(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Generator[list[Tensor]]:
    """Make the embeddings of the source and then of the target leaves of the graph: ``(1, token, width)`` each."""
    leaves: list[Tensor] = []
    waiting = [inputs[side] for side in _SIDES if side in inputs]

    def hook(_: nn.Module, arguments: tuple[Any, ...], returned: Any) -> Tensor | None:
        read = arguments[0] if arguments else None
        if waiting and isinstance(read, Tensor) and isinstance(returned, Tensor) and torch.equal(read, waiting[0]):
            waiting.pop(0)
            leaves.append(returned.detach().requires_grad_())
            return leaves[-1]
        return None

    tables = (module for module in model.modules() if isinstance(module, nn.Embedding))
    with attached(table.register_forward_hook(hook) for table in tables):
        yield leaves
