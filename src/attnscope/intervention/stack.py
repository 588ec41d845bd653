"""Variants of a forward pass along the batch axis, without repeating the computations that they share.

All variants are equal up to the first edited attention call: layers below it return their stored output of the plain
pass, and linear layers of its block compute one copy.
"""

import math
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from attnscope.capture.families import result_of, without_cache
from attnscope.capture.forward import forward
from attnscope.capture.placement import device_of
from attnscope.capture.verify import TOLERANCE
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.capture.weights import blocks_of, logits_at
from attnscope.intervention.activations import Activation, changed_activations
from attnscope.intervention.calls import output_with_gradient
from attnscope.kernels.call import AttentionCall
from attnscope.support.state import replaced

#: Maps a call and its output ``(variant, text, head, query, value_width)`` to the output that replaces it. At the
#: first edited call of a pass, the call has each text once; later, each variant of it.
Edit = Callable[[AttentionCall, Tensor], Tensor]

#: Maps the output of a block, ``(variant, text, position, width)``, to the output that replaces it.
StateEdit = Callable[[Tensor], Tensor]

#: The same for the number of a module among those of a block's MLP, and its output.
MLPEdit = Callable[[int, Tensor], Tensor]


@dataclass(eq=False)
class StackedPasses:
    """The forward passes of one model: a plain pass for each batch, then any number of variants of it."""

    model: PreTrainedModel  # in eval mode, hooked
    skips: bool = True  # whether to skip shared computations; otherwise each variant is computed from the start
    sites: list[Site] = field(default_factory=list)  # the attention calls of the last plain pass
    outputs: list[Tensor] = field(default_factory=list)  # their outputs, ``(text, head, query, value_width)``
    calls: list[AttentionCall] = field(default_factory=list)  # the calls themselves
    mlps: dict[int, list[Tensor]] = field(default_factory=dict)  # outputs of the modules of MLPs, by block
    activations: dict[int, Tensor] = field(default_factory=dict)  # ``(text, position, width)``, by block
    # for each block of the plain pass: number of attention calls before its end, and its output
    _plain: list[tuple[int, Any]] = field(default_factory=list)
    _inputs: dict[str, Any] = field(default_factory=dict)
    _positions: Tensor | None = None
    _texts: int = 1
    # state of the current pass
    _variants: int = 0  # 0 in a plain pass
    _first: int = 0  # the first edited call
    _edits: Mapping[int, Edit] = field(default_factory=dict)
    _state_edits: Mapping[int, StateEdit] = field(default_factory=dict)
    _mlp_edits: Mapping[int, MLPEdit] = field(default_factory=dict)
    _activation_edits: Mapping[int, StateEdit] = field(default_factory=dict)
    _calls: int = 0
    _blocks: int = 0
    _modules: int = 0  # of the MLP of the current block
    _differ: bool = False

    @property
    def states(self) -> list[Tensor]:
        """Output of each block in the plain pass, ``(text, position, width)``."""
        return [
            next(leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)) for _, output in self._plain
        ]

    @torch.no_grad()
    def plain(
        self,
        inputs: dict[str, Tensor],
        positions: Int[Tensor, "text prediction"] | None = None,
        name: Callable[[int], str] = lambda number: f"text {number + 1}",
    ) -> Float[Tensor, "text *prediction vocabulary"]:
        """Run the unchanged model, and store what variants need."""
        self.sites, self.outputs, self.calls, self.mlps, self._plain = [], [], [], {}, []
        self.activations = {}
        self._inputs = {**without_cache(self.model), **inputs}
        self._texts = len(next(iter(inputs.values())))
        self._positions = positions
        self._begin(0, {}, {})
        with logits_at(self.model, positions) as chosen:
            return chosen(forward(self.model, self._inputs, name, result=partial(result_of, self.model)))

    def run(
        self,
        edits: Mapping[int, Edit],
        variants: int,
        state_edits: Mapping[int, StateEdit] | None = None,
        mlp_edits: Mapping[int, MLPEdit] | None = None,
        activation_edits: Mapping[int, StateEdit] | None = None,
    ) -> Float[Tensor, "variant text *prediction vocabulary"]:
        """Run variants of the last plain pass. MLPs and activations are edited without skipping anything."""
        self._begin(variants, edits, state_edits or {})
        self._mlp_edits, self._activation_edits = mlp_edits or {}, activation_edits or {}
        repeated = pytree.tree_map_only(Tensor, self._repeated, self._inputs)
        with logits_at(self.model, self._positions) as chosen:
            logits = chosen(result_of(self.model, self.model(**repeated)))
        return logits.unflatten(0, (variants, self._texts))

    def sweep(
        self,
        cells: Sequence[Any],
        most: int,
        edits: Callable[[Any], Any],
        metric: Callable[[Tensor], Tensor],
        *,
        copies: int = 1,
        of: Literal["calls", "states", "mlps", "activations", "all"] = "calls",
    ) -> Float[Tensor, "cell ..."]:
        """Apply a metric to the logits of one variant for each cell, at most `most` cells in a pass.

        `edits` returns the edits of some cells, for `copies` variants of each cell: of all kinds, or of one.
        """
        values: list[Tensor] = []
        for some in (cells[first : first + most] for first in range(0, len(cells), most)):
            edited = edits(some)
            kinds = ("calls", "states", "mlps", "activations")
            chosen = edited if of == "all" else [edited if name == of else {} for name in kinds]
            values.append(metric(self.run(chosen[0], copies * len(some), *chosen[1:])))
        return torch.cat(values)

    def calls_before(self, block: int) -> int:
        """The number of attention calls before the end of a block."""
        return self._plain[block][0]

    def _begin(self, variants: int, edits: Mapping[int, Edit], state_edits: Mapping[int, StateEdit]) -> None:
        self._variants, self._edits, self._state_edits = variants, edits, state_edits
        after = [self._plain[block][0] for block in state_edits]  # an edited state reaches the next call
        # before the first edited call all variants are equal: blocks return what the plain pass stored
        self._first = min([*edits, *after], default=0) if self.skips else 0
        self._calls = self._blocks = 0
        self._differ = not self.skips

    def _repeated(self, tensor: Tensor) -> Tensor:
        """Repeat a tensor for each variant: all texts of the first variant, then all of the second."""
        repeats = tensor.ndim > 0 and len(tensor) == self._texts
        # variants first: row v * texts + t, so that unflatten splits them
        return tensor.repeat(self._variants, *[1] * (tensor.ndim - 1)) if repeats else tensor

    # replacements of the model's own functions

    def observe(self, site: Site, call: AttentionCall) -> Tensor:
        """Attend, and apply the edit of this call, if any."""
        number, self._calls = self._calls, self._calls + 1
        if self._variants and not self._differ:  # the call of the first variant
            # as long as variants are equal, the first stands for all: attention is computed once
            parts = {name: getattr(call, name) for name in ("query", "key", "value", "mask", "bias")}
            call = replace(call, **{name: part[: self._texts] for name, part in parts.items() if part is not None})
        output = output_with_gradient(call)
        if not self._variants:
            self.sites.append(replace(site, index=number))
            self.outputs.append(output)
            self.calls.append(call)
            return output
        edit, differ = self._edits.get(number), self._differ
        if edit is None:
            return output if differ else self._repeated(output)
        self._differ = True
        several = output.unflatten(0, (-1, self._texts)) if differ else output.expand(self._variants, *output.shape)
        return edit(call, several).flatten(0, 1)

    def linear(self, forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """A linear layer that computes one copy as long as all variants are equal."""

        def read(received: Tensor) -> Tensor:
            same = not self._differ and self._variants > 1 and received.ndim > 2  # noqa: PLR2004
            same = same and len(received) == self._variants * self._texts
            return self._repeated(forward(received[: self._texts])) if same else forward(received)

        return read

    def block(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """A block that returns its stored output as long as all variants are equal."""

        def run(*arguments: Any, **options: Any) -> Any:
            number, self._blocks, self._modules = self._blocks, self._blocks + 1, 0
            if not self._variants:
                output = forward(*arguments, **options)
                # a copy: later blocks may add to it in place
                self._plain.append((self._calls, pytree.tree_map_only(Tensor, torch.clone, output)))
                return output
            edit = self._state_edits.get(number)
            calls, plain = self._plain[number]
            if self._differ or calls > self._first:
                output = forward(*arguments, **options)
            else:
                self._calls = calls
                output = pytree.tree_map_only(Tensor, self._repeated, plain)
            return output if edit is None else self._edited(output, edit)

        return run

    def mlp(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """A module of an MLP whose output is kept or edited."""

        def run(*arguments: Any, **options: Any) -> Any:
            output, number = forward(*arguments, **options), self._blocks - 1
            module, self._modules = self._modules, self._modules + 1
            if not self._variants:
                first = next(leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor))
                self.mlps.setdefault(number, []).append(first.reshape(self._texts, -1, first.shape[-1]).clone())
            edit = self._mlp_edits.get(number) if self._variants else None
            return output if edit is None else self._edited(output, partial(edit, module))

        return run

    def activation(self, block: int, tensor: Tensor) -> Tensor:
        """An activation of a block, which is kept or edited."""
        if not self._variants:
            self.activations[block] = tensor.clone()
            return tensor
        edit = self._activation_edits.get(block)
        return tensor if edit is None else edit(tensor.unflatten(0, (self._variants, self._texts))).flatten(0, 1)

    def _edited(self, output: Any, edit: StateEdit) -> Any:
        """The output of a module, with its first tensor edited."""
        self._differ = True
        # blocks return a tensor, a tuple or a class of outputs: the states come first in each
        leaves, form = pytree.tree_flatten(output)
        first = next(number for number, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
        states = leaves[first].reshape(self._variants, self._texts, -1, leaves[first].shape[-1])
        leaves[first] = edit(states).reshape(leaves[first].shape)
        return pytree.tree_unflatten(leaves, form)


@contextmanager
def stacked_passes(
    model: PreTrainedModel,
    *,
    skips: bool = True,
    mlps: Collection[nn.Module] = (),
    activations: Mapping[int, Activation] | None = None,
) -> Generator[StackedPasses]:
    """Hook a model for `StackedPasses`, with MLPs and activations of blocks that are edited; restore it afterwards.

    Blocks are numbered as they run, those of an encoder first.
    """
    passes = StackedPasses(model, skips=skips)
    blocks = {id(block) for block in blocks_of(model).values()}
    with ExitStack() as hooks:
        for module in model.modules():
            if id(module) in blocks:
                wrapped = passes.block(module.forward)
            elif module in mlps:
                wrapped = passes.mlp(module.forward)
            elif skips and isinstance(module, (nn.Linear, Conv1D)):
                wrapped = passes.linear(module.forward)
            else:
                continue
            hooks.enter_context(replaced(vars(module), forward=wrapped))
        hooks.enter_context(watching(model, passes.observe))
        changes = {one: partial(passes.activation, block) for block, one in (activations or {}).items()}
        hooks.enter_context(changed_activations(model, changes))
        yield passes


#: ``(text, head, query, value_width)`` of each attention call
Outputs = Sequence[Tensor]


def replacing(heads: Sequence[int], replacements: Sequence[Tensor]) -> Callable[[AttentionCall, Tensor], Tensor]:
    """An edit: variant i has head i of `heads` replaced by that head of ``replacements[i]``."""

    def edit(_: AttentionCall, output: Tensor) -> Tensor:
        output = output.clone()
        for variant, (head, other) in enumerate(zip(heads, replacements, strict=True)):
            output[variant, :, head] = other[:, head]
        return output

    return edit


def replacing_sets(chosen: Tensor, replacements: Tensor) -> Callable[[AttentionCall, Tensor], Tensor]:
    """An edit: in each variant, all heads of a set are replaced at once."""
    chosen = chosen[:, None] if chosen.ndim == 2 else chosen  # noqa: PLR2004

    def edit(_: AttentionCall, output: Tensor) -> Tensor:
        return torch.where(chosen[..., None, None].to(output.device), replacements, output)

    return edit


_FEW_TOKENS, _FEW_CALLS = 12, 4  # with longer texts and more calls, three calls are checked


@torch.no_grad()
def same_without_what_is_skipped(
    model: PreTrainedModel,
    inputs: dict[str, Tensor],
    positions: Int[Tensor, "text prediction"],
    *,
    states: bool = False,
) -> bool:
    """Whether edited heads give the same logits with and without skipping shared computations."""
    limit = TOLERANCE[model.dtype]
    with stacked_passes(model) as passes:
        passes.plain(inputs, positions)
        edits = [
            {call: replacing([0, 1 % output.shape[1]], [torch.zeros_like(output)] * 2)}
            for call, output in enumerate(passes.outputs)
        ]
        if passes.outputs[0].shape[2] > _FEW_TOKENS and len(edits) > _FEW_CALLS:
            edits = [edits[0], edits[len(edits) // 2], edits[-1]]
        runs = [partial(passes.run, edit, 2) for edit in edits]
        if states:
            runs += [partial(passes.run, {}, 1, {block: torch.zeros_like}) for block in range(len(passes.states))]
        for run in runs:  # two at a time: the logits of all would fill the memory
            passes.skips = True
            skipped = run()
            passes.skips = False
            whole = run()
            largest = float(torch.linalg.vector_norm(whole, torch.inf))
            if not float(torch.linalg.vector_norm(skipped.sub_(whole), torch.inf)) <= limit * largest:  # NaN too
                return False
    return True


_LOGITS = 1 << 28  # bytes of the logits of variants at once
_TOKENS = 1 << 15  # tokens of variants at once on a GPU
_STATES = 1 << 19  # numbers of their states at once on a CPU, so that a layer fits the cache


def planned_variants(model: PreTrainedModel, shape: tuple[int, int], predictions: int | None = None) -> int:
    """Number of variants for a pass over a batch of this shape, with logits of all tokens or of some predictions."""
    config, tokens = model.config.get_text_config(), math.prod(shape)
    rows = tokens if predictions is None else predictions
    logits = torch.empty(1, device=device_of(model), dtype=model.dtype).expand(rows, config.vocab_size)
    return variants_at_once(logits, tokens, [torch.empty(1).expand(1, 1, 1, config.hidden_size)])


def variants_at_once(logits: Tensor, tokens: int, outputs: Outputs) -> int:
    """Number of variants for a pass: at most 256 MiB of logits, and the number that is fastest on the device."""
    by_logits = _LOGITS // (logits.numel() * logits.element_size())
    width = max(output.shape[1] * output.shape[3] for output in outputs)  # of a token, over all heads
    return max(1, min(by_logits, (_TOKENS if logits.device.type != "cpu" else _STATES // width) // tokens))
