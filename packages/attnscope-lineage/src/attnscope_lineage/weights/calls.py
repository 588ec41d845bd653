"""The tokens of both texts in one matrix, the predictions of a pass, and its memory."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from attnscope.capture.forward import forward
from attnscope.capture.watch import Site
from attnscope.capture.watching import attached, watching
from attnscope.intervention.calls import weight_tiles
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.full import attended, values_of
from attnscope.support.errors import AttnscopeError


@torch.no_grad()
def output_by_rows(call: AttentionCall) -> Float[Tensor, "1 head query value_width"]:
    """The output of a call of one text, in the query's dtype, from the tiles of `weight_tiles`."""
    values = values_of(call)[0]
    return torch.cat([tile @ values for _, tile in weight_tiles(call)], 1)[None].to(call.query.dtype)


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
