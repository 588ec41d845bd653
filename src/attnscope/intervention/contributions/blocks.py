"""What stands around each attention call: output projection, residual connection and normalisation, found by numbers.

Nothing is guessed from names: a sum is found where a module later reads what the projection gave plus a state that was
there before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from attnscope.capture.families import OWN_STATES, is_attention, is_norm
from attnscope.capture.forward import forward
from attnscope.capture.watch import Site
from attnscope.explanation.inputs import watching_inputs
from attnscope.explanation.projections import projections
from attnscope.intervention.session import Sides
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from transformers import PreTrainedModel

    from attnscope.intervention.contributions.record import Record

Form = Literal["sum", "normalised sum", "normalised attention"]


@dataclass(frozen=True, eq=False)
class Block:
    """How the output of a block is made of what its attention gives."""

    site: Site  # the attention call
    # w_O of each head, ``(head, value_width, width)``; None where it was not found
    output: Float[Tensor, "head value_width width"] | None = None
    bias: Float[Tensor, " width"] | None = None  # b_O, ``(width,)``
    # ``"sum"``: o + x (GPT-2, Llama, T5); ``"normalised sum"``: LN(o + x) (BERT); ``"normalised attention"``: LN(o) +
    # x (Gemma 2); None where it was not found
    form: Form | None = None
    norm: LinearNorm | None = None  # the normalisation; None in a plain sum
    reason: str = ""  # why `output` or `form` is None
    projection: str = ""  # names of the modules that give o, that read the sum, and that normalise
    reader: str = ""
    normaliser: str = ""  # names of the modules that give o, that read the sum, and that normalise


@dataclass(eq=False)
class ModuleRun:
    """A module that ran: what it read, and what it gave."""

    name: str
    module: nn.Module
    given: Tensor
    returned: Tensor | None = None


@torch.no_grad()
def find_blocks(model: PreTrainedModel, inputs: dict[str, Any]) -> list[Block]:
    """Find and check what stands around every attention call of a model."""
    matrices = projections(model, inputs)
    history = _History()
    chosen: dict[str, nn.Module] = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (nn.Linear, Conv1D)) or is_norm(module) or is_attention(module)
    }

    def observe(site: Site, call: AttentionCall, states: Tensor, _: Tensor) -> Tensor:
        history.mark(site, states)
        return output_of(call)

    with record_modules(chosen, history.events), watching_inputs(model, observe):
        forward(model, inputs, lambda _: "the text", with_head=False)
    wide = torch.promote_types(model.dtype, torch.float32)
    blocks: list[Block] = []
    for number, (site, known) in enumerate(matrices.items()):
        if known.output is None or known.output_bias is None:
            reason = "no linear layer reads what the heads give side by side, so that W_O is not known"
            blocks.append(Block(site, reason=reason))
            continue
        output, bias = (
            torch.from_numpy(matrix).to(device=model.device, dtype=wide) for matrix in (known.output, known.output_bias)
        )
        around = history.around(number, known.names["output"])
        blocks.append(Block(site, output, bias, **around))
    return blocks


@contextmanager
def record_modules(modules: dict[str, nn.Module], events: list[ModuleRun]) -> Generator[None]:
    """Note what these modules read and give, in the order in which they begin."""
    running: dict[int, list[ModuleRun]] = {}

    def enter(name: str) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
            given = next(
                (argument for argument in arguments[:1] if isinstance(argument, Tensor)), options.get(OWN_STATES)
            )
            if isinstance(given, Tensor):
                events.append(ModuleRun(name, module, given))
                running.setdefault(id(module), []).append(events[-1])

        return hook

    def leave(module: nn.Module, _: Any, returned: Any) -> None:
        if running.get(id(module)):
            event = running[id(module)].pop()
            event.returned = returned if isinstance(returned, Tensor) else None

    hooks = [module.register_forward_pre_hook(enter(name), with_kwargs=True) for name, module in modules.items()]
    hooks += [module.register_forward_hook(leave) for module in modules.values()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(eq=False)
class _History:
    """What ran in one forward pass, and when attention was called."""

    events: list[ModuleRun] = field(default_factory=list[ModuleRun])
    marks: list[tuple[int, Tensor]] = field(default_factory=list[tuple[int, Tensor]])

    def mark(self, _: Site, states: Tensor) -> None:
        self.marks.append((len(self.events), states))

    def around(self, number: int, projection: str) -> dict[str, Any]:
        """The block of a call: its form, and the modules by which it is heard."""
        start, states = self.marks[number]
        stop = self.marks[number + 1][0] if number + 1 < len(self.marks) else len(self.events)
        after = iter(range(start, stop))
        made = next((self.events[at].returned for at in after if self.events[at].name == projection), None)
        if made is None or made.shape != states.shape:
            return {"reason": "what its heads add up to has not the shape of the states that it reads"}
        normaliser: ModuleRun | None = None
        for at in after:
            event = self.events[at]
            given = shaped(event.given, made)
            if given is None:
                continue
            addend = made if normaliser is None or normaliser.returned is None else normaliser.returned
            for kept in self._kept(start, states):
                if _same(given, addend + kept):
                    return self._named(at, projection, normaliser, is_own=kept is states)
            if normaliser is None and is_norm(event.module) and _same(given, made):
                normaliser = event
        return {
            "reason": "no module reads the sum of what its heads add and of a state before it, so that what the block "
            "gives is not known (layers side by side, as in GPT-NeoX, or a scaled residual)"
        }

    def _kept(self, start: int, states: Tensor) -> Iterator[Tensor]:
        """States that a residual connection may keep: what attention reads, or what was normalised to be read."""
        yield states
        for event in reversed(self.events[:start]):
            if is_norm(event.module) and event.returned is not None and _same(event.returned, states):
                yield event.given
                return

    def _named(self, at: int, projection: str, inner: ModuleRun | None, *, is_own: bool) -> dict[str, Any]:
        event = self.events[at]
        names = {"projection": projection, "reader": event.name}
        if inner is not None:
            return self._normalised(inner, "normalised attention") | names
        if is_own and is_norm(event.module) and event.returned is not None and self._goes_on_normalised(at):
            return self._normalised(event, "normalised sum") | names
        return {"form": "sum"} | names

    def _normalised(self, event: ModuleRun, form: Form) -> dict[str, Any]:
        assert event.returned is not None  # noqa: S101 looked at before
        norm = fitted(event.module, event.given, event.returned)
        if norm is None:
            kind = type(event.module).__name__
            return {"reason": f"{event.name} ({kind}) is no LayerNorm or RMSNorm by what it gives"}
        return {"form": form, "norm": norm, "normaliser": event.name}

    def _goes_on_normalised(self, at: int) -> bool:
        """Whether the next residual connection keeps what was normalised (BERT), not the sum itself (ModernBERT)."""
        norm = self.events[at]
        assert norm.returned is not None  # noqa: S101 looked at before
        made: list[Tensor] = []
        for event in self.events[at + 1 :]:
            if event.given.shape == norm.given.shape:
                for kept, answer in ((norm.returned, True), (norm.given, False)):
                    if any(_same(event.given, part + kept) for part in made):
                        return answer
            if event.returned is not None and event.returned.shape == norm.given.shape:
                made.append(event.returned)
        return True


def shaped(tensor: Tensor, like: Tensor) -> Tensor | None:
    """The tensor in another's shape, where one only lists positions of all texts in a row (OPT); else None."""
    if tensor.numel() != like.numel() or tensor.shape[-1] != like.shape[-1]:
        return None
    return tensor.reshape(like.shape)


def _same(tensor: Tensor, other: Tensor) -> bool:
    if tensor.shape != other.shape:
        return False
    limit = ROUNDING.get(tensor.dtype, 2e-5)
    return float((tensor - other).abs().max()) <= limit * float(other.abs().max())


#: Largest difference of two computations of one number, as a share of the largest. Many models normalise in single
#: precision whatever their own is.
ROUNDING = {torch.float64: 1e-6, torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


@dataclass(frozen=True, eq=False)
class LinearNorm:
    r"""What a normalisation does once the size of what it reads is known."""

    is_centred: bool  # whether the mean is taken away
    gain: Float[Tensor, " width"]  # :math:`\gamma` and :math:`\beta`, ``(width,)``
    shift: Float[Tensor, " width"]

    def of(self, part: Float[Tensor, "*any width"]) -> Float[Tensor, "*any width"]:
        """A summand of what is normalised, before the division."""
        wide = part.to(self.gain.dtype)
        return (wide - wide.mean(-1, keepdim=True) if self.is_centred else wide) * self.gain

    def scale(
        self, given: Float[Tensor, "*any width"], returned: Float[Tensor, "*any width"]
    ) -> Float[Tensor, "*any 1"]:
        """1/s of each row: what makes of the one the other, by least squares."""
        made, wanted = self.of(given), returned.to(self.gain.dtype) - self.shift
        power = (made * made).sum(-1, keepdim=True)
        return (made * wanted).sum(-1, keepdim=True) / torch.where(power > 0, power, 1.0)


def fitted(
    module: nn.Module, given: Float[Tensor, "*any width"], returned: Float[Tensor, "*any width"]
) -> LinearNorm | None:
    """The linear map behind a normalisation, of its parameters, if one gives what it gave; None if none does."""
    limit = ROUNDING.get(returned.dtype, 2e-5)
    for norm in _candidates(module, given):
        made = norm.of(given) * norm.scale(given, returned) + norm.shift
        if float((made - returned).abs().max()) <= limit * float(returned.abs().max()):
            return norm
    return None


def _candidates(module: nn.Module, given: Tensor) -> Iterator[LinearNorm]:
    wide = torch.promote_types(given.dtype, torch.float32)
    width = given.shape[-1]
    own = [parameter.detach().to(wide) for parameter in module.parameters() if parameter.shape == (width,)]
    ones, zero = (torch.full((width,), float(value), dtype=wide, device=given.device) for value in (1, 0))
    for is_centred in (True, False):
        for gain in (*own, *(ones + each for each in own), ones):  # Gemma's weight is what is added to 1
            for shift in (zero, *own):
                yield LinearNorm(is_centred, gain, shift)


def cannot_follow(sides: Sides, records: Sequence[Record]) -> str:
    """Why layers of a text cannot be followed through one another; empty where they can."""
    for each in records:
        sizes = tuple(side.stop - side.start for side in sides.of(each.site.kind))
        shape = each.call.query.shape[2], each.call.key.shape[2]
        if shape != sizes:
            return (
                f"layer {each.site.index} ({each.site.name}) has {shape[0]} queries and {shape[1]} keys, not one for "
                "each token of its text, so that layers cannot be multiplied"
            )
    return ""


class Rollout:
    r"""The product of :math:`\tfrac12 I + \tfrac12 A_l` over layers; two matrices over all tokens are held."""

    def __init__(self, sides: Sides, residual: float = 0.5) -> None:
        self.sides, self.residual = sides, residual
        self.matrix = torch.eye(sides.tokens, dtype=torch.float32)

    def step(self, kind: str, mean: Float[Tensor, "query key"]) -> Float[Tensor, "query key"]:
        """A layer further; what of it lies between queries and keys of that layer."""
        queries, keys = self.sides.of(kind)
        matrix = self.matrix.to(mean)
        new = matrix.clone()
        new[queries] = self.residual * matrix[queries] + (1 - self.residual) * mean @ matrix[keys]
        self.matrix = new
        return new[queries, keys]


class Relevance(Rollout):
    r""":math:`R \leftarrow R + \bar A_l R`."""

    def step(self, kind: str, mean: Float[Tensor, "query key"]) -> Float[Tensor, "query key"]:
        """A layer further; of it without the identity, what lies between queries and keys of that layer."""
        queries, keys = self.sides.of(kind)
        matrix = self.matrix.to(mean)
        new = matrix.clone()
        new[queries] += mean @ matrix[keys]
        self.matrix = new
        grown = new[queries, keys]
        return grown - torch.eye(len(grown), dtype=grown.dtype, device=grown.device) if queries == keys else grown
