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

from attnscope.attention import AttentionCall, output_of
from attnscope.capture import OWN_STATES, Site, forward, is_attention, is_norm
from attnscope.faithfulness.contributions._normalisation import ROUNDING, LinearNorm, fitted
from attnscope.mechanism.evidence import projections, watching_inputs

if TYPE_CHECKING:
    from collections.abc import Generator

    from transformers import PreTrainedModel

Form = Literal["sum", "normalised sum", "normalised attention"]


@dataclass(frozen=True, eq=False)
class Block:
    """How the output of a block is made of what its attention gives.

    Attributes
    ----------
    site
        The attention call.
    output
        W_O of each head, ``(head, value_width, width)``; None where it was not found.
    bias
        b_O, ``(width,)``.
    form
        ``"sum"``: o + x (GPT-2, Llama, T5); ``"normalised sum"``: LN(o + x) (BERT); ``"normalised attention"``: LN(o) +
        x (Gemma 2); None where it was not found.
    norm
        The normalisation; None in a plain sum.
    reason
        Why `output` or `form` is None.
    projection, reader, normaliser
        Names of the modules that give o, that read the sum, and that normalise.
    """

    site: Site
    output: Float[Tensor, "head value_width width"] | None = None
    bias: Float[Tensor, " width"] | None = None
    form: Form | None = None
    norm: LinearNorm | None = None
    reason: str = ""
    projection: str = ""
    reader: str = ""
    normaliser: str = ""


@dataclass(eq=False)
class ModuleRun:
    """A module that ran: what it read, and what it gave."""

    name: str
    module: nn.Module
    given: Tensor
    returned: Tensor | None = None


@torch.no_grad()
def find_blocks(model: PreTrainedModel, inputs: dict[str, Any]) -> list[Block]:
    """Find and check what stands around every attention call of a model.

    Parameters
    ----------
    model
        In eval mode.
    inputs
        Arguments of a forward pass over two tokens or more; a dozen is enough.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel, GPT2Config, GPT2Model
    >>> bert = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    >>> gpt2 = GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=9)
    >>> for model in (BertModel(bert).eval(), GPT2Model(gpt2).eval()):
    ...     (block,) = find_blocks(model, {"input_ids": torch.tensor([[5, 6, 7]])})
    ...     print(block.form, tuple(block.output.shape))
    normalised sum (2, 4, 8)
    sum (2, 4, 8)
    """
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

    with hearing(chosen, history.events), watching_inputs(model, observe):
        forward(model, inputs, lambda _: "the text", with_head=False)
    wide = torch.promote_types(model.dtype, torch.float32)
    blocks: list[Block] = []
    for number, (site, known) in enumerate(matrices.items()):
        if known.output is None or known.output_bias is None:
            reason = "no linear layer reads what the heads give side by side, so that W_O is not known"
            blocks.append(Block(site, reason=reason))
            continue
        output, bias = (
            torch.from_numpy(matrix).to(device=model.device, dtype=wide)
            for matrix in (known.output, known.output_bias)
        )
        around = history.around(number, known.names["output"])
        blocks.append(Block(site, output, bias, **around))
    return blocks


@contextmanager
def hearing(modules: dict[str, nn.Module], events: list[ModuleRun]) -> Generator[None]:
    """Note what these modules read and give, in the order in which they begin."""
    running: dict[int, list[ModuleRun]] = {}

    def enter(name: str) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
            given = next(
                (argument for argument in arguments[:1] if isinstance(argument, Tensor)),
                options.get(OWN_STATES),
            )
            if isinstance(given, Tensor):
                events.append(ModuleRun(name, module, given))
                running.setdefault(id(module), []).append(events[-1])

        return hook

    def leave(module: nn.Module, _: Any, returned: Any) -> None:
        if running.get(id(module)):
            event = running[id(module)].pop()
            event.returned = returned if isinstance(returned, Tensor) else None

    hooks = [
        module.register_forward_pre_hook(enter(name), with_kwargs=True) for name, module in modules.items()
    ]
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
    """The tensor in another's shape, where one only lists positions of all texts in a row (OPT); else None.

    Examples
    --------
    >>> shaped(torch.zeros(6, 4), torch.zeros(2, 3, 4)).shape
    torch.Size([2, 3, 4])
    """
    if tensor.numel() != like.numel() or tensor.shape[-1] != like.shape[-1]:
        return None
    return tensor.reshape(like.shape)


def _same(tensor: Tensor, other: Tensor) -> bool:
    if tensor.shape != other.shape:
        return False
    limit = ROUNDING.get(tensor.dtype, 2e-5)
    return float((tensor - other).abs().max()) <= limit * float(other.abs().max())
