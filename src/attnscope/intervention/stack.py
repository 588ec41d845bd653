"""Variants of a forward pass side by side on the batch axis, of which only that is computed which differs.

Up to the first attention call that is changed, all variants are one: layers below it give back what they gave in the
plain pass, and linear layers of its own block read one copy.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from transformers.pytorch_utils import Conv1D

from attnscope.capture.eager import without_cache
from attnscope.capture.families import main_output
from attnscope.capture.forward import forward
from attnscope.capture.verify import TOLERANCE
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.intervention.calls import output_with_gradient

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnscope.kernels.call import AttentionCall

if TYPE_CHECKING:
    #: From a call and its output ``(variant, text, head, query, value_width)`` to the output that goes on instead. At
    #: the first changed call of a pass, the call holds each text once; later, each variant of it.
    Edit = Callable[[AttentionCall, Tensor], Tensor]

if TYPE_CHECKING:
    #: From what a block gives, ``(variant, text, position, width)``, to what goes on instead.
    StateEdit = Callable[[Tensor], Tensor]


@dataclass(eq=False)
class StackedPasses:
    """The forward passes of one model: a plain one for each batch, then as many variants of it as are asked for."""

    model: PreTrainedModel  # in eval mode, watched
    skips: bool = True  # whether what does not differ is left out; without it every variant is computed from the start
    sites: list[Site] = field(default_factory=list)  # the attention calls of the last plain pass
    outputs: list[Tensor] = field(default_factory=list)  # what each of them gave, ``(text, head, query, value_width)``
    # of each block in the plain pass: how many attention calls had been by then, and what it gave
    _plain: list[tuple[int, Any]] = field(default_factory=list)
    _inputs: dict[str, Any] = field(default_factory=dict)
    _places: Tensor | None = None
    _texts: int = 1
    # of the pass that runs now
    _variants: int = 0  # 0 in a plain pass
    _first: int = 0  # the first call that is changed
    _edits: Mapping[int, Edit] = field(default_factory=dict)
    _state_edits: Mapping[int, StateEdit] = field(default_factory=dict)
    _calls: int = 0
    _blocks: int = 0
    _differ: bool = False

    @property
    def states(self) -> list[Tensor]:
        """What each block gave in the plain pass, ``(text, position, width)``."""
        return [
            next(leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)) for _, output in self._plain
        ]

    @torch.no_grad()
    def plain(
        self,
        inputs: dict[str, Tensor],
        places: Int[Tensor, "text place"] | None = None,
        name: Callable[[int], str] = lambda number: f"text {number + 1}",
    ) -> Float[Tensor, "text place vocabulary"]:
        """Run the model as it is, and keep what variants need."""
        self.sites, self.outputs, self._plain = [], [], []
        self._inputs = {**without_cache(self.model), **inputs}
        self._texts = len(inputs["input_ids"])
        self._places = places
        self._begin(0, {}, {})
        return self._chosen(forward(self.model, self._inputs, name))

    def run(
        self, edits: Mapping[int, Edit], variants: int, state_edits: Mapping[int, StateEdit] | None = None
    ) -> Float[Tensor, "variant text place vocabulary"]:
        """Run variants of the last plain pass."""
        self._begin(variants, edits, state_edits or {})
        repeated = pytree.tree_map_only(Tensor, self._repeated, self._inputs)
        logits = self._chosen(main_output(self.model(**repeated)))
        return logits.unflatten(0, (variants, self._texts))

    def sweep(
        self,
        cells: Sequence[Any],
        most: int,
        edits: Callable[[Any], Mapping[int, Any]],
        metric: Callable[[Tensor], Tensor],
        *,
        copies: int = 1,
        states: bool = False,
    ) -> Float[Tensor, "cell ..."]:
        """What a metric reads off the logits of variants, as many of the cells at a time as stand side by side.

        `edits` are those of some cells, one variant (or several copies of all) each: of calls, or of blocks' states.
        """
        found: list[Tensor] = []
        for first in range(0, len(cells), most):
            some = cells[first : first + most]
            chosen, variants = edits(some), copies * len(some)
            found.append(metric(self.run({}, variants, chosen) if states else self.run(chosen, variants)))
        return torch.cat(found)

    def _begin(self, variants: int, edits: Mapping[int, Edit], state_edits: Mapping[int, StateEdit]) -> None:
        self._variants, self._edits, self._state_edits = variants, edits, state_edits
        after = [self._plain[block][0] for block in state_edits]  # a changed state reaches the call behind it
        self._first = min([*edits, *after], default=0) if self.skips else 0
        self._calls = self._blocks = 0
        self._differ = not self.skips

    def _repeated(self, tensor: Tensor) -> Tensor:
        """A copy for each variant, all texts of the first before those of the second."""
        if tensor.ndim == 0 or len(tensor) != self._texts:
            return tensor
        return tensor.repeat(self._variants, *[1] * (tensor.ndim - 1))

    def _chosen(self, logits: Tensor) -> Tensor:
        """The logits at the places asked for, where the model has made more."""
        if self._places is None or logits.shape[1] == self._places.shape[1]:
            return logits
        return _at(logits, self._places)

    # what takes the place of the model's own functions

    def observe(self, site: Site, call: AttentionCall) -> Tensor:
        """Attend; where a pass of variants changes this call, give what its edit gives."""
        number = self._calls
        self._calls += 1
        if not self._variants:
            output = output_with_gradient(call)
            self.sites.append(replace(site, index=number))
            self.outputs.append(output)
            return output
        edit = self._edits.get(number)
        if self._differ:
            output = output_with_gradient(call)
            if edit is None:
                return output
            return edit(call, output.unflatten(0, (self._variants, self._texts))).flatten(0, 1)
        call = _of_first(call, self._texts)
        output = output_with_gradient(call)
        if edit is None:
            return self._repeated(output)
        self._differ = True
        return edit(call, output.expand(self._variants, *output.shape)).flatten(0, 1)

    def linear(self, own: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """A linear layer that reads one copy as long as all variants are the same."""

        def read(given: Tensor) -> Tensor:
            rows = self._variants * self._texts
            if self._differ or self._variants <= 1 or given.ndim < 3 or len(given) != rows:  # noqa: PLR2004
                return own(given)
            return self._repeated(own(given[: self._texts]))

        return read

    def block(self, own: Callable[..., Any]) -> Callable[..., Any]:
        """A block that gives what it gave, as long as all variants are the same."""

        def run(*arguments: Any, **named: Any) -> Any:
            number = self._blocks
            self._blocks += 1
            if not self._variants:
                output = own(*arguments, **named)
                self._plain.append((self._calls, pytree.tree_map_only(Tensor, torch.clone, output)))
                return output
            edit = self._state_edits.get(number)
            calls, plain = self._plain[number]
            if self._differ or calls > self._first:
                output = own(*arguments, **named)
            else:
                self._calls = calls
                output = pytree.tree_map_only(Tensor, self._repeated, plain)
            if edit is None:
                return output
            self._differ = True
            leaves, form = pytree.tree_flatten(output)
            first = next(place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
            states = leaves[first].unflatten(0, (self._variants, self._texts))
            leaves[first] = edit(states).flatten(0, 1)
            return pytree.tree_unflatten(leaves, form)

        return run

    def head(self, own: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """An output layer that makes the logits at the places asked for and no others."""

        def make(states: Tensor) -> Tensor:
            places = self._places
            if places is None or states.ndim != 3 or len(states) % len(places):  # noqa: PLR2004
                return own(states)
            return own(_at(states, places))

        return make


@contextmanager
def stacked_passes(model: PreTrainedModel, *, skips: bool = True) -> Generator[StackedPasses]:
    """Watch a model for `StackedPasses`; afterwards it is as it was."""
    passes = StackedPasses(model, skips=skips)
    replaced: list[tuple[nn.Module, Any]] = []

    def give(module: nn.Module, forward: Callable[..., Any]) -> None:
        replaced.append((module, module.__dict__.get("forward")))
        module.forward = forward

    output_layer = _output_layer(model)
    blocks = {id(block) for block in blocks_of(model)}
    try:
        for module in model.modules():
            if id(module) in blocks:
                give(module, passes.block(module.forward))
            elif module is output_layer:
                give(module, passes.head(module.forward))
            elif skips and isinstance(module, (nn.Linear, Conv1D)):
                give(module, passes.linear(module.forward))
        with watching(model, passes.observe):
            yield passes
    finally:
        for module, own in replaced:
            if own is None:
                del module.forward  # the class has its own
            else:
                module.forward = own


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The outermost modules that stand in a list: the blocks of encoder and decoder, in the order of the model."""
    blocks: list[nn.Module] = []
    for module in model.children():
        blocks += list(module) if isinstance(module, nn.ModuleList) else blocks_of(module)
    return blocks


def _output_layer(model: PreTrainedModel) -> nn.Module | None:
    """The layer that makes logits of states."""
    try:
        return model.get_output_embeddings()
    except NotImplementedError:
        return None


def _of_first(call: AttentionCall, texts: int) -> AttentionCall:
    """The call of the first variant."""
    parts = {name: getattr(call, name) for name in ("query", "key", "value", "mask", "bias")}
    return replace(call, **{name: part[:texts] for name, part in parts.items() if part is not None})


def _at(rows: Tensor, places: Tensor) -> Tensor:
    """Rows ``(variant and text, position, ...)`` at the places ``(text, place)`` of each text."""
    index = places.repeat(len(rows) // len(places), 1)[..., None].expand(-1, -1, rows.shape[-1])
    return rows.gather(1, index)


#: ``(text, head, query, value_width)`` of each attention call
Outputs = Sequence[Tensor]


def replacing(heads: Sequence[int], stands_in: Sequence[Tensor]) -> Callable[[AttentionCall, Tensor], Tensor]:
    """An edit: variant i has head i of `heads` replaced by that head of ``stands_in[i]``."""

    def edit(_: AttentionCall, output: Tensor) -> Tensor:
        output = output.clone()
        for variant, (head, other) in enumerate(zip(heads, stands_in, strict=True)):
            output[variant, :, head] = other[:, head]
        return output

    return edit


def replacing_sets(chosen: Tensor, stands_in: Tensor) -> Callable[[AttentionCall, Tensor], Tensor]:
    """An edit: in each variant, all heads of a set are replaced at once."""
    chosen = chosen[:, None] if chosen.ndim == 2 else chosen  # noqa: PLR2004

    def edit(_: AttentionCall, output: Tensor) -> Tensor:
        return torch.where(chosen[..., None, None].to(output.device), stands_in, output)

    return edit


_FEW_TOKENS, _FEW_CALLS = 12, 4  # a long text costs passes: three calls tell


@torch.no_grad()
def same_without_what_is_skipped(
    model: PreTrainedModel, inputs: dict[str, Tensor], places: Int[Tensor, "text place"], *, states: bool = False
) -> bool:
    """Whether changed heads give the same logits when what should not differ is not computed."""
    logits: list[list[Tensor]] = []
    for skips in (True, False):
        with stacked_passes(model, skips=skips) as passes:
            passes.plain(inputs, places)
            edits = [
                {call: replacing([0, 1 % output.shape[1]], [torch.zeros_like(output)] * 2)}
                for call, output in enumerate(passes.outputs)
            ]
            if inputs["input_ids"].shape[1] > _FEW_TOKENS and len(edits) > _FEW_CALLS:
                edits = [edits[0], edits[len(edits) // 2], edits[-1]]
            outputs = [passes.run(edit, 2) for edit in edits]
            blocks = range(len(passes.states)) if states else range(0)
            outputs += [passes.run({}, 1, {block: torch.zeros_like}) for block in blocks]
            logits.append(outputs)
    limit = TOLERANCE[model.dtype]
    return all(
        float((own - other).abs().max()) <= limit * float(other.abs().max()) for own, other in zip(*logits, strict=True)
    )


_LOGITS = 1 << 28  # bytes of the logits of variants at once
_TOKENS = 1 << 15  # tokens of variants at once on a GPU
_STATES = 1 << 19  # numbers of their states at once on a CPU, whose cache holds what a layer makes of them


def variants_at_once(logits: Tensor, tokens: int, outputs: Outputs) -> int:
    """How many variants of a pass with these logits: 256 MiB of them at most, and what the device is quickest with."""
    by_logits = _LOGITS // (logits.numel() * logits.element_size())
    width = max(output.shape[1] * output.shape[3] for output in outputs)  # of a token, all heads together
    most = _TOKENS if logits.device.type != "cpu" else _STATES // width
    return max(1, min(by_logits, most // tokens))
