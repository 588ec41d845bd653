"""`patch`: activation patching between the clean and the corrupted run of each pair."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, compress, pairwise, starmap
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnscope.bundled import MODEL, PAIRS
from attnscope.capture.borrow import LoadedModel, borrowed
from attnscope.capture.load import Model
from attnscope.capture.notes import layer_coordinates
from attnscope.capture.outline import outlined, reject_absent
from attnscope.capture.placement import is_empty
from attnscope.capture.verify import TOLERANCE, verify
from attnscope.capture.watch import Site
from attnscope.capture.weights import blocks_of
from attnscope.explanation.sublayers import BlockRun, sublayers
from attnscope.intervention import stack
from attnscope.intervention.activations import Activation, Activations
from attnscope.intervention.arrays import in_layers, sets_like
from attnscope.intervention.components import Component, components_of, put_in
from attnscope.intervention.edit import Anatomy, On, attend_changed
from attnscope.intervention.effects import order_agreement
from attnscope.intervention.gradients import answers_difference
from attnscope.intervention.media import media_of_pairs
from attnscope.intervention.metrics import Metric, subject_of
from attnscope.intervention.pair_sources import Pairs, fitted, pairs_of_input, reject_two_texts
from attnscope.intervention.pairs import (
    ALONG_THE_CHANGE,
    EncodedPairs,
    Pair,
    PairTexts,
    position_labels,
    sides_of,
    texts_of,
)
from attnscope.intervention.predictions import TOKENS, check_read
from attnscope.intervention.questions import kind_of_question
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.full import weights_of
from attnscope.opened import Opened, window_length
from attnscope.statistics.effects import (
    by_document,
    effect_variables,
    interval_variables,
    joint_variables,
    random_variables,
)
from attnscope.store.arrays import by_layer, padded_heads
from attnscope.store.run import Batch, Job, Work
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell, share_of_layers

ACTIVATIONS = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "mixer_out", "neurons", "ln1", "ln2")
OF_BLOCKS = {"attention": "calls", "mlp": "mlps", "residual": "states", **dict.fromkeys(ACTIVATIONS, "activations")}
LOGITS = "logits"
_OF_SWEEP = 0.9  # of the work of a batch; the rest are both runs and gradients
_STEPS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float16, torch.bfloat16)}  # of logits, which are rounded
#: What patching does to the difference between both runs, by direction.
MOVED = {"denoising": "recovered", "noising": "removed"}


def reject_absent_parts(parts: Sequence[Component], outline: LoadedModel) -> None:
    """Reject components before weights are loaded, if the model lacks their heads or blocks."""
    sites, blocks = outlined(outline.model) if parts else [], blocks_of(outline.model)
    heads = [(part.layer, part.head) for part in parts if part.head is not None]
    reject_absent(heads, sites, "together or receiver, --together, --receiver")
    if len({site.name for site in sites}) < len(sites):  # blocks that are shared run several times
        return
    for part in parts if sites else ():
        if part.head is None and part.layer >= len(blocks):
            raise AttnscopeError(
                f"there is no MLP {part.name} (--together, --receiver): choose from m0 to m{len(blocks) - 1}"
            )


def pairs_for(
    given: Pairs | None, model: Model | None, answer: str | None, wrong: str | None, metric: object = None
) -> list[Pair]:
    if given is None:
        is_bundled = model is None or (isinstance(model, str | Path) and Path(model) in {Path("bundled"), MODEL})
        if not is_bundled and not (isinstance(model, LoadedModel) and model.name == MODEL.name):
            raise AttnscopeError(
                "found a model without pairs; expected a file of JSON Lines with clean, corrupted, answer and wrong "
                "on each line, or a task, such as agreement (only the bundled model has bundled pairs)"
            )
        given = PAIRS
    return pairs_of_input(given, answer=answer, wrong=wrong, answered=metric is None)


@dataclass(frozen=True, eq=False)
class OpenedPairs:
    """The model of a verb with its pairs."""

    loaded: LoadedModel
    pairs: list[Pair]
    of_task: dict[str, Any]  # what a signature says of the pairs of a task
    media: Mapping[str, Tensor] | None  # images or sounds, by the names that pairs have of them

    @classmethod
    def open(
        cls,
        session: Opened,
        given: Pairs | None,
        reading: Mapping[str, Any],
        answers: tuple[str | None, str | None],
        metric: object,
        check: Callable[[LoadedModel], object] | None = None,
    ) -> OpenedPairs:
        """Read pairs and load the model, with the images or sounds that pairs name."""
        lack: AttnscopeError | None = None
        given = cast("Pairs", [*given]) if isinstance(given, Iterator) else given
        try:
            chosen = pairs_for(given, session.source, *answers, metric)
        except AttnscopeError as error:  # an encoder without a head needs no answers
            lack, chosen = error, pairs_for(given, session.source, *answers, "none")
        read = media_of_pairs(session.source, [(pair.clean, pair.corrupted) for pair in chosen], given, reading)
        loaded = session.load(reading, check=check) if read is None else read.loaded
        session.model = loaded
        if lack is not None and kind_of_question(loaded.model) != "output":
            raise lack
        chosen, of_task = fitted(given, chosen, loaded) if read is None else (chosen, {})
        session.corpus = PairTexts(tuple(chosen), "" if read is None else read.sha256)
        return cls(loaded, chosen, of_task, None if read is None else read.inputs)


def check_spans(opened: OpenedPairs, positions: Sequence[str]) -> None:
    """Raise an error for pairs whose positions have no names: those of images, sounds and two stacks."""
    if not positions:
        raise AttnscopeError("positions (--positions) name spans: give one or more")
    if opened.media:
        raise AttnscopeError("positions (--positions) are spans of texts, not of images and sounds: leave them out")
    reject_two_texts(opened.loaded)


def receivers_of(given: object, what: str, *, alone: bool) -> tuple[Component, ...] | None:
    """Components that receive an effect; none for the logits."""
    if given is not None and not (what == "heads" and alone):
        raise AttnscopeError(
            "a receiver (--receiver) is for paths between heads: leave out what (--what), by_position and together"
        )
    if given is None or given in (LOGITS, [LOGITS]):
        return None if given is None else ()
    return components_of(given, "receiver (--receiver)")


def names_of(parts: Sequence[Component]) -> str:
    return ", ".join(one.name for one in parts) or LOGITS


@dataclass(eq=False)
class PatchJob(Job):
    """The measurements of one call of `patch`."""

    node, dimension = "pairs", "pair"
    loaded: LoadedModel
    pairs: Sequence[Pair]
    what: str
    by_position: bool
    direction: str
    receivers: tuple[Component, ...] | None  # none: the logits
    steps: int
    variants: int | None
    tell: Tell
    together: tuple[tuple[Component, ...], ...] = ()
    seed: int = 0
    heads: Sequence[tuple[int, int]] | None = None  # that are patched; None: all
    random: int = 0  # sets of heads beside each that is patched together
    matched: str = "layer"  # whether these have as many heads in each layer, or only as many
    drawn: list[list[tuple[Component, ...]]] = field(default_factory=list[Any])  # for each set
    metric: Metric | None = None  # in place of answer minus wrong answer
    media: Mapping[str, Tensor] | None = None  # images or sounds, by the names that pairs have of them
    positions: Sequence[str] = ()  # spans that are patched in place of single positions, by name
    encoded: list[tuple[list[int], EncodedPairs]] = field(default_factory=list[Any])  # with numbers of pairs, from 1
    sites: list[Site] = field(default_factory=list[Any])
    skips: bool = True  # whether passes skip the computations that all variants share
    scale: str = "logits"  # of differences; nats, if an answer has several tokens
    blocks: list[BlockRun] = field(default_factory=list[Any])  # if MLPs are replaced
    # of blocks, if these are patched, by their numbers in the order in which they run
    activations: Mapping[int, Activation] = field(default_factory=dict[int, Any])
    batch: range = range(0)  # the pairs that are measured now

    @property
    def attributes_of_answers(self) -> dict[str, str]:
        """The unit of differences, and whether answers are several of one token each; or the metric of one's own."""
        if self.metric is not None:
            return self.metric.attributes
        several = any(encoded.are_several for _, encoded in self.encoded)
        return {"unit": self.scale, **({"answers": "several"} if several else {})}

    @property
    def mlps(self) -> set[nn.Module]:
        """The modules of all MLPs, if they are replaced."""
        return {one.module for block in self.blocks for one in block.of("mlp")}

    def read(self, size: int | None, without_gradient: str = "") -> None:
        """Encode the pairs in batches of one length, and check that the model's heads can be patched.

        `without_gradient` says how to do without the gradient of a metric, where it is needed.
        """
        loaded = self.loaded
        if self.metric is None and kind_of_question(loaded.model) == "output":
            self.metric = ALONG_THE_CHANGE
        shapes = [self._shape(pair, number) for number, pair in enumerate(self.pairs, 1)]
        lengths = [max(shape) for shape in shapes]
        if self.by_position and not self.positions and len({*map(tuple, shapes)}) > 1:
            raise AttnscopeError(
                f"pairs have {min(lengths)} to {max(lengths)} tokens; patching by position needs equal lengths. Use "
                "pairs of one length, spans by name (--positions), or patch heads at all positions"
            )
        for shape in sorted(map(list, {*map(tuple, shapes)})):
            same = [number for number, own in enumerate(shapes, 1) if own == shape]
            most = size or max(1, TOKENS // max(shape))
            for first in range(0, len(same), most):
                numbers = same[first : first + most]
                some = [self.pairs[number - 1] for number in numbers]
                encoded = EncodedPairs.of(some, loaded, numbers, self.metric, self.media, self.positions)
                self.encoded.append((numbers, encoded))
        sizes = [
            (max(ids.shape[1] for ids in encoded.inputs[0].values()), numbers) for numbers, encoded in self.encoded
        ]
        longest = max(sizes)
        most = window_length(loaded, None)
        if longest[0] > most and not self.media:
            raise AttnscopeError(
                f"pair {longest[1][0]} has {longest[0]} tokens; {loaded.name} takes at most {most}. Shorten its texts"
            )
        numbers, encoded = self.encoded[0]
        inputs = {name: ids[:1] for name, ids in encoded.inputs[0].items()}
        self.sites = sites = verify(loaded.model, inputs, text=f"pair {numbers[0]}")
        if is_empty(loaded.model):
            return
        check_read(loaded, inputs)
        positions, states = encoded.positions[:1], self.what == "residual"
        self.scale = "nats" if any(encoded.answers.shape[1] > 1 for _, encoded in self.encoded) else "logits"
        self.scale = self.scale if self.metric is None else self.metric.unit
        parts = [*(self.receivers or ()), *chain(*self.together), *starmap(Component, self.heads or ())]
        if self.what == "mlp" or any(part.head is None for part in parts):
            self.blocks = sublayers(loaded.model, inputs, [site.name for site in sites])
        for number, block in enumerate(self.blocks):
            if block.unknown and (self.what == "mlp" or any(part == Component(number) for part in parts)):
                raise AttnscopeError(
                    f"the MLP of block {number} of {loaded.name} ({block.name}) is not known: {block.unknown}. Patch "
                    "heads or the residual stream instead"
                )
        if self.what in ACTIVATIONS:
            self.activations = self._activations_of_blocks(Anatomy(loaded.model, inputs).activations)
        with stack.stacked_passes(loaded.model, skips=False, mlps=self.mlps) as passes:
            is_label = kind_of_question(loaded.model) == "label"
            logits = passes.plain(inputs, None if is_label else positions)
            if self.metric is None and is_label and logits.ndim > 2:  # noqa: PLR2004
                raise AttnscopeError(
                    f"{type(loaded.model).__name__} labels each token, and answers are labels of a text: give a "
                    "function as metric, such as lambda logits, inputs: logits[:, 3, 1] - logits[:, 3, 0]"
                )
            if self.metric is not None:
                whole = encoded.inputs[0]
                logits = passes.plain(whole)
                if without_gradient:
                    self.metric.gradient(logits, encoded.with_answers(whole), len(encoded), without_gradient)
                else:
                    encoded.measure(logits, whole)
        heads = {site.index: site.heads for site in sites}
        for part in parts:
            exists = part.layer in passes.mlps if part.head is None else part.head < heads.get(part.layer, 0)
            if not exists or (part in (self.receivers or ()) and not part.senders(passes)):
                raise AttnscopeError(
                    f"found {part.name}; expected a head of layers 0 to {len(sites) - 1} that exists, or the MLP of a "
                    f"block (m0){'; a receiver (--receiver) is of layers 1 and up' * bool(self.receivers)}"
                )
        if self.random:
            self._draw([output.shape[1] for output in passes.outputs])
        if self.receivers and self.heads is not None:
            last = max(part.senders(passes) for part in self.receivers)
            if min(layer for layer, _ in self.heads) >= last:
                raise AttnscopeError(f"none of the heads (--heads) precedes {names_of(self.receivers)}: choose others")
        simple = not (self.mlps or self.activations) and all(part.on == "z" for part in parts)
        self.skips = simple and stack.same_without_what_is_skipped(loaded.model, inputs, positions, states=states)

    def _activations_of_blocks(self, activations: Activations) -> dict[int, Activation]:
        """The activation that is patched in each block that has it, of both stacks of an encoder-decoder."""
        chosen: list[Activation] = []
        for stack_name in ("encoder", "decoder") if self.loaded.model.config.is_encoder_decoder else ("",):
            chosen += activations.chosen(self.what, None, stack_name)[0]
        numbers = {name: number for number, name in enumerate(activations.blocks)}
        return {numbers[one.name.rpartition(".")[0]]: one for one in chosen}

    def _shape(self, pair: Pair, number: int) -> list[int]:
        """Number of tokens of both texts of a pair, or size of its images or sounds."""
        if not self.media:
            return [*map(len, sides_of(pair, self.loaded, number))]
        clean, corrupted = (self.media[side].shape for side in (pair.clean, pair.corrupted))
        if clean != corrupted:
            raise AttnscopeError(
                f"pair {number}: {pair.clean} has the shape {tuple(clean[1:])} and {pair.corrupted} "
                f"{tuple(corrupted[1:])}; expected the same, so that positions match"
            )
        return [*clean[1:]]

    def _draw(self, heads: Sequence[int]) -> None:
        """Random sets of heads like each that is patched together."""
        generator = np.random.default_rng(self.seed)
        cells = [(layer, head) for layer, count in enumerate(heads) for head in range(count)]
        groups = in_layers(cells) if self.matched == "layer" else [cells]
        for chosen in self.together:
            kinds: set[On] = {part.on for part in chosen}
            names = [(part.layer, part.head) for part in chosen if part.head is not None]
            if len(names) < len(chosen) or len(kinds) > 1:
                raise AttnscopeError(
                    f"{names_of(chosen)} (--together) are not heads alone, and random sets are: leave out random "
                    "(--random), or what is not a head"
                )
            like = sets_like(names, groups, self.random, generator)
            self.drawn.append([tuple(Component(*cell, *kinds) for cell in one) for one in like])

    def work(self) -> Work:
        """Both runs of each pair, and a pass for each patched activation, from its layer on."""
        layers = [
            len([head for head in range(site.heads) if self.heads is None or (site.index, head) in self.heads])
            for site in self.sites
        ]
        spots = len(self.positions) or self.shapes[0][1] if self.by_position else 1
        wanted = [1] * len(layers) if self.what in OF_BLOCKS else layers
        patched = sum(number * (1 - layer / len(layers)) for layer, number in enumerate(wanted)) * spots
        estimates = 3 * (1 + self.steps) if self.steps else 0
        most = self.variants or stack.planned_variants(self.loaded.model, self.shapes[0], self.shapes[0][0])
        return Work(
            self.shapes,
            2 + patched + estimates,
            min(most, max(wanted) * spots),  # those of a layer at once
            has_head=self.metric is not None,
            holds=True,
            states=7,  # of both runs: outputs of blocks and of heads, and the calls of the second
            gradients=bool(estimates),
            uncounted="sets of components" if self.together else "",
        )

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Pairs and tokens of each batch."""
        each = ((len(numbers), encoded.inputs[0]) for numbers, encoded in self.encoded)
        return [(number, max(ids.shape[1] for ids in inputs.values())) for number, inputs in each]

    def batches(self) -> Iterator[Batch]:
        first = 0
        for numbers, encoded in self.encoded:
            yield Batch(range(first, first + len(numbers)), (numbers, encoded))
            first += len(numbers)
            self.tell(Progress("patching", first / len(self.pairs), {"pairs": first}))

    def measure(self, batch: Batch) -> xr.Dataset:
        self.batch = batch.texts
        return self.of_batch(*batch.inputs).rename(pair="window")

    def summarise(self, measured: Iterable[xr.Dataset]) -> dict[str, xr.Dataset]:
        whole = self.joined(measured)
        check_pairs_differ(whole)
        parts = {"patched": partial(patched_of, whole, seed=self.seed)}
        for name, make in (("agreement", estimators_agreement), ("together", together_of)):
            needed = "estimate" if name == "agreement" else name
            if needed in whole:
                parts[name] = partial(make, whole, seed=self.seed)
        return {self.node: whole} | {name: self.made(name, make) for name, make in parts.items()}

    def tell_layer(self, layer: int, layers: int) -> None:
        """Report that a layer is done, of the pairs that are measured."""
        done = self.batch.start + _OF_SWEEP * share_of_layers(layer + 1, layers) * len(self.batch)
        self.tell(Progress("patching", done / len(self.pairs), {"pairs": self.batch.start}))

    def of_batch(self, numbers: list[int], encoded: EncodedPairs) -> xr.Dataset:
        """Differences and estimates of some pairs, ``(pair, ...)``."""
        attributes: dict[str, Any] = {"direction": self.direction, "what": self.what, **self.attributes_of_answers}
        if self.random:
            attributes |= {"random": self.random, "matched": self.matched}
        dims = ("pair", "layer", "head", *(["position"] if self.by_position else []))
        with self._runs(encoded) as runs:
            head = np.arange(max(output.shape[1] for output in runs.donor.outputs))
            coordinates: dict[str, Any] = {**layer_coordinates(runs.passes.sites), "head": head}
            if self.receivers is not None:
                values = self._through(runs, self.receivers)
                attributes["receiver"] = names_of(self.receivers)
            elif self.what in OF_BLOCKS:
                values = self._blocks(runs)
                dims, coordinates = ("pair", "block", "position"), {"block": [*self._donors(runs)]}
            else:
                values = self._heads(runs)
            sets = self._together(runs) if self.together else {}
        ends = (runs.source, runs.base) if self.direction == "denoising" else (runs.base, runs.source)
        clean, corrupted = (end.double().cpu().numpy() for end in ends)
        unit, dtype = {"units": self.scale}, self.loaded.model.dtype
        name = subject_of(attributes)
        effects = xr.Dataset(
            {
                "difference": (dims, values, {"long_name": name.capitalize() if self.metric is None else name, **unit}),
                "clean": ("pair", clean, {"long_name": "The same in the clean run", **unit}),
                "corrupted": ("pair", corrupted, {"long_name": "The same in the corrupted run", **unit}),
            },
            coordinates,
            {"rounding": _STEPS.get(dtype, TOLERANCE[dtype]), **attributes},
        )
        if self.steps:
            by_name = {"attribution": 1, **({"eap_ig": self.steps} if self.steps > 1 else {})}
            estimates = np.stack([self._estimates(encoded, steps) for steps in by_name.values()], 1)
            words = {"long_name": f"Change of {name}, estimated", **unit}
            effects["estimate"] = (("pair", "estimator", *dims[1:]), estimates, words)
            effects = effects.assign_coords(estimator=list(by_name))
        return effects.assign(sets).assign_coords(self._labels(numbers, encoded))

    def _labels(self, numbers: list[int], encoded: EncodedPairs) -> dict[str, object]:
        """Number, texts and answers of each pair, and its tokens when patching by position."""
        some = [self.pairs[number - 1] for number in numbers]
        labels: dict[str, object] = {"pair": numbers}
        for name in ("clean", "corrupted", "answer", "wrong"):
            labels[f"{name}_text"] = ("pair", np.array([pair.text(name) for pair in some], dtype=object))
        if self.by_position:
            for name, tokens in (("clean", encoded.tokens), ("corrupted", encoded.corrupted_tokens)):
                shown = tokens if not self.positions else _joined(tokens, encoded)
                labels[f"{name}_token"] = (("pair", "position"), np.array(shown, dtype=object))
            labels |= {"position": [*self.positions]} if self.positions else {}
        return labels

    @contextmanager
    def _runs(self, encoded: EncodedPairs) -> Generator[Runs]:
        """Run clean and corrupted texts unchanged; the model is hooked until the end of the context."""
        model = self.loaded.model
        turned = encoded if self.direction == "denoising" else encoded.turned()
        hooked = stack.stacked_passes(model, skips=self.skips, mlps=self.mlps, activations=self.activations)
        with borrowed(model), hooked as passes, torch.no_grad():
            source = encoded.measure(passes.plain(turned.inputs[0], encoded.predicting), turned.inputs[0])
            donor = copy(passes)
            logits = passes.plain(turned.inputs[1], encoded.predicting)
            tokens = donor.outputs[0][:, 0, :, 0] if self.media else None
            size = sum(map(torch.numel, turned.inputs[1].values() if tokens is None else [tokens]))
            most = self.variants or stack.variants_at_once(logits, size, donor.outputs)
            base = encoded.measure(logits, turned.inputs[1])
            yield Runs(passes, encoded, donor, most, source, base, turned.inputs[1])

    def _wanted(self, layer: int, output: Tensor) -> list[int]:
        """The heads of a layer that are patched."""
        return [head for head in range(output.shape[1]) if self.heads is None or (layer, head) in self.heads]

    def _heads(self, runs: Runs) -> np.ndarray:
        """``(pair, layer, head[, position])``."""
        count, positions = len(runs.encoded), runs.encoded.patched_positions if self.by_position else [None]
        layers: list[np.ndarray] = []
        for call, donor in enumerate(runs.donor.outputs):
            wanted = self._wanted(call, donor)
            effects = np.full((count, donor.shape[1], len(positions)), np.nan)
            layers.append(effects if self.by_position else effects[..., 0])
            if not wanted:
                continue

            def edits(some: Sequence[tuple[int, int]], call: int = call) -> dict[int, stack.Edit]:
                patched = {at: self._patched(runs, call, positions[at]) for at in {at for at, _ in some}}
                return {call: stack.replacing([head for _, head in some], [patched[at] for at, _ in some])}

            measured = runs.sweep([(at, head) for at in range(len(positions)) for head in wanted], edits)
            effects[:, wanted] = measured.reshape(count, len(positions), len(wanted)).swapaxes(1, 2)
            self.tell_layer(call, len(runs.donor.outputs))
        return np.moveaxis(padded_heads(layers, axis=1), 0, 1)

    def _patched(self, runs: Runs, call: int, at: Tensor | None) -> Float[Tensor, "pair head query width"]:
        """Output of all heads of a call if one tensor of each comes from the source run at some positions."""
        donor = runs.donor.calls[call]
        on = cast("On", "z" if self.what == "heads" else self.what)
        other = runs.donor.outputs[call] if on == "z" else weights_of(donor) if on == "weights" else getattr(donor, on)

        def put_in(tensor: Tensor) -> Tensor:
            whole = other.repeat_interleave(tensor.shape[1] // other.shape[1], 1)
            return whole if at is None else torch.where(_over(at, tensor), whole, tensor)

        return attend_changed(runs.passes.calls[call], {on: put_in})

    def _donors(self, runs: Runs) -> dict[int, Any]:
        """What is patched in each block, from the source run."""
        own = runs.donor
        every = {"attention": dict(enumerate(own.outputs)), "mlp": own.mlps, "residual": dict(enumerate(own.states))}
        return every.get(self.what, own.activations)

    def _blocks(self, runs: Runs) -> np.ndarray:
        """``(pair, block, position)``."""
        donors = self._donors(runs)
        if not donors:
            name = type(runs.passes.model).__name__
            lacks = f"no block of {name} adds the output of an MLP to the residual stream. Patch its heads instead"
            raise AttnscopeError(lacks if self.blocks else f"{name} has no list of blocks. Patch its heads instead")
        encoder = self._blocks_of_encoder(len(runs.donor.states))
        before, after = (len(runs.encoded.positions_in(decoder=decoder)) for decoder in (False, True))
        blocks: list[np.ndarray] = []
        for block, donor in donors.items():

            def edits(some: list[Tensor], block: int = block, donor: Any = donor) -> dict[int, Any]:
                def put_in(*given: Any) -> Tensor:
                    states, other = given[-1], donor[given[0]] if self.what == "mlp" else donor
                    return torch.stack(
                        [torch.where(_over(at, one), other, one) for at, one in zip(some, states, strict=True)]
                    )

                return {block: put_in}

            decodes = block >= encoder
            swept = runs.sweep(runs.encoded.positions_in(decoder=decodes), edits, of=OF_BLOCKS[self.what])
            if encoder:  # positions of the source, then those of the decoder
                swept = np.pad(swept, ((0, 0), (before, 0) if decodes else (0, after)), constant_values=np.nan)
            blocks.append(swept)
            self.tell_layer(len(blocks) - 1, len(donors))
        return np.stack(blocks, 1)

    def _blocks_of_encoder(self, count: int) -> int:
        """The number of blocks, of those that run, before those of a decoder with an encoder."""
        if not self.loaded.model.config.is_encoder_decoder:
            return 0
        own = {id(module) for module in blocks_of(self.loaded.model.get_encoder()).values()}
        return min(count, len(own))

    def _together(self, runs: Runs) -> dict[str, Any]:
        """Answer minus wrong answer with each set of components patched at once, and with each component alone."""
        alone = list(dict.fromkeys(chain(*self.together)))
        sets = [*self.together, *chain(*self.drawn), *((one,) for one in alone)]
        parts = list(dict.fromkeys(chain(*sets)))
        donors = [part.donor(runs.donor) for part in parts]
        rows = torch.tensor([[one in some for one in parts] for some in sets])
        cells = runs.sweep(range(len(rows)), lambda some: put_in(parts, donors, rows[some.start : some.stop]), of="all")
        ends = np.cumsum([0, len(self.together), *map(len, self.drawn), len(alone)])
        together, *drawn, single = (cells[:, start:end] for start, end in pairwise(ends))
        most = max((part.shape[1] for part in drawn), default=0)
        padded = [np.pad(part, ((0, 0), (0, most - part.shape[1])), constant_values=np.nan) for part in drawn]
        return {
            "together": (("pair", "set"), together),
            "single": (("pair", "component"), single),
            **({"random": (("pair", "set", "draw"), np.stack(padded, 1))} if drawn else {}),
            "set": [names_of(some) for some in self.together],
            "component": [one.name for one in alone],
        }

    def _through(self, runs: Runs, receivers: Sequence[Component]) -> np.ndarray:
        """``(pair, layer, head)``: the part of each head's effect through later components; NaN if none is later."""
        passes, outputs = runs.passes, runs.passes.outputs
        layers = [np.full((len(runs.encoded), output.shape[1]), np.nan) for output in outputs]
        for sender in range(max((part.senders(passes) for part in receivers), default=len(outputs))):

            def edits(senders: Sequence[int], sender: int = sender) -> Any:
                received: dict[Component, Any] = {}

                def freeze(layer: int, call: AttentionCall, output: Tensor) -> Tensor:
                    heads = [part for part in receivers if part.head is not None and part.layer == layer]
                    received.update({part: part.of(call, output) for part in heads})
                    return outputs[layer].expand_as(output)

                def keep(part: Component, _: int, states: Tensor) -> Tensor:
                    received.setdefault(part, []).append(states.clone())
                    return states

                calls: dict[int, Any] = {layer: partial(freeze, layer) for layer in range(sender + 1, len(outputs))}
                calls[sender] = stack.replacing(senders, [runs.donor.outputs[sender]] * len(senders))
                mlps = {part.layer: partial(keep, part) for part in receivers if part.head is None}
                if not receivers:  # the logits
                    return calls, {}, {}
                passes.run(calls, len(senders), {}, mlps)
                later = [part for part in received if part.senders(passes) > sender]
                return put_in(later, [received[part] for part in later], torch.ones(len(senders), len(later)) > 0)

            wanted = self._wanted(sender, outputs[sender])
            if wanted:
                layers[sender][:, wanted] = runs.sweep(wanted, edits, of="all")
                self.tell_layer(sender, len(layers))
        return by_layer(layers)

    def _estimates(self, encoded: EncodedPairs, steps: int) -> np.ndarray:
        """``(pair, layer, head[, position])``: first-order changes, from gradients between the two runs."""
        model = self.loaded.model
        encoded = encoded if self.direction == "noising" else encoded.turned()  # from here on, the clean run is patched
        with borrowed(model):
            with stack.stacked_passes(model, skips=False) as passes:
                passes.plain(encoded.inputs[1], encoded.positions)
                others = passes.outputs
                passes.plain(encoded.inputs[0], encoded.positions)
                outputs = passes.outputs
            shares = [None] if steps == 1 else [(step + 0.5) / steps for step in range(steps)]
            slopes = [answers_difference(model, encoded, share) for share in shares]
        layers: list[np.ndarray] = []
        for patched, donor, *gradients in zip(outputs, others, *slopes, strict=True):
            parts = ((donor - patched) * torch.stack(gradients).mean(0)).sum(3)
            if self.by_position:
                spans = [at.to(parts.device)[:, None] for at in encoded.patched_positions]
                parts = torch.stack([torch.where(at, parts, 0).sum(2) for at in spans], -1)
            else:
                parts = parts.sum(2)
            layers.append(encoded.by_pair(parts).double().cpu().numpy())
        return np.moveaxis(padded_heads(layers, axis=1), 0, 1)


def _over(at: Bool[Tensor, "row position"], tensor: Tensor) -> Tensor:
    """Positions of rows in the shape of a tensor ``(row, ..., position, width)``, on its device."""
    return at.to(tensor.device).reshape(at.shape[0], *[1] * (tensor.ndim - 3), at.shape[1], 1)


def _joined(tokens: Sequence[Sequence[str]], encoded: EncodedPairs) -> list[list[str]]:
    """The tokens of each span of each text, as one text."""
    rows = len(encoded.clean) // len(encoded)
    within = [at[::rows].tolist() for at in encoded.patched_positions]
    return [["".join(compress(row, at[number])) for at in within] for number, row in enumerate(tokens)]


@dataclass(frozen=True, eq=False)
class Runs:
    """Both runs of some pairs; the last plain pass was that of the patched run."""

    passes: stack.StackedPasses  # passes of the patched run
    encoded: EncodedPairs  # the pairs
    donor: stack.StackedPasses  # the plain pass of the source run
    most: int  # variants that run together
    source: Tensor  # ``(pair,)``: answer minus wrong answer in the source run
    base: Tensor  # the same in the patched run
    inputs: dict[str, Tensor]  # of the patched run

    def sweep(self, cells: Sequence[Any], edits: Callable[..., Any], *, of: Any = "calls") -> np.ndarray:
        """Answer minus wrong answer ``(pair, cell)`` with each cell patched."""
        measure = partial(self.encoded.measure_all, inputs=self.inputs)
        return self.passes.sweep(cells, self.most, edits, measure, of=of).T.double().cpu().numpy()


def patched_of(pairs: xr.Dataset, *, seed: int = 0) -> xr.Dataset:
    """Mean effect of each patched activation, with its interval over pairs."""
    change, each, effect = _changes(pairs), texts_of(pairs), f"Change of {subject_of(pairs.attrs)}"
    how: Any = {"unit": pairs.attrs.get("unit", "logits"), "corrected": "all patched activations", "seed": seed}
    how["rounded"] = pairs.attrs["rounding"] > TOLERANCE[torch.float32]
    variables = effect_variables(change.values, each, change.dims[1:], effect, **how)
    variables |= _shares(pairs, change, variables["shown"][1], seed)
    if "estimate" in pairs:
        variables["estimate"] = pairs.estimate.mean("pair", keep_attrs=True, skipna=False)
    kept = {name: values for name, values in pairs.coords.items() if "pair" not in values.dims}
    attrs = {"pairs": pairs.sizes["pair"], "direction": pairs.attrs["direction"]}
    whole = xr.Dataset(variables, coords=kept, attrs=attrs)
    if "clean_token" in pairs.coords:
        labels = position_labels(pairs.clean_token.values.tolist(), pairs.corrupted_token.values.tolist())
        whole = whole.assign_coords(token=("position", np.array(labels, dtype=object)))
    return whole


def together_of(pairs: xr.Dataset, *, seed: int = 0) -> xr.Dataset:
    """Mean effect of each set of components, next to the sum of the effects of each alone."""
    each, words = texts_of(pairs), f"Change of {subject_of(pairs.attrs)}"
    change, single = (_changes(pairs, name) for name in ("together", "single"))
    alone = np.stack([single.sel(component=name.split(", ")).sum("component") for name in pairs["set"].values], -1)
    how: Any = {"unit": pairs.attrs.get("unit", "logits"), "corrected": "all sets", "seed": seed}
    joint = joint_variables(change.values, alone, each, ("set",), words, **how)
    if "random" in pairs:
        others = _changes(pairs, "random")
        drawn = [others.isel(set=at).dropna("draw").values for at in range(others.sizes["set"])]
        source, base = ends_of(pairs)
        towards = float(np.sign((source - base).mean()))
        joint |= random_variables(change.values, drawn, each, ("set",), words, sign=towards, **how)
    variables = joint | _shares(pairs, change, joint["shown"][1], seed)
    drawing = {name: pairs.attrs[name] for name in ("random", "matched") if name in pairs.attrs}
    return xr.Dataset(variables, {"set": pairs["set"]}, drawing)


def has_one_sign(difference: np.ndarray) -> bool:
    """Whether the difference between both runs has the same sign in all pairs, so that few pairs too have shares."""
    return len(np.unique(np.sign(difference))) == 1


def _shares(pairs: xr.Dataset, change: xr.DataArray, shown: np.ndarray, seed: int) -> dict[str, Any]:
    """Shares of the difference with intervals; a change whose share may be 0 is not `shown`."""
    source, base = ends_of(pairs)
    difference = (source - base).values
    share = by_document(change.values, texts_of(pairs), over=difference, seed=seed)
    if not share.tested.any() and not has_one_sign(difference):  # its mean may be 0, and no interval tells
        share = share._replace(mean=np.full_like(share.mean, np.nan))
    shown &= share.shown
    words = f"Share of the difference between both runs that is {MOVED[pairs.attrs['direction']]}"
    return interval_variables(share, change.dims[1:], words, name="recovered", unit="share")


def estimators_agreement(pairs: xr.Dataset, *, seed: int = 0) -> xr.Dataset:
    """Rank correlation of each estimate with the measured changes."""
    change = _changes(pairs).values
    names = pairs.estimator.values.tolist()
    ranks = [order_agreement(pairs.estimate.sel(estimator=name).values, change, seed=seed) for name in names]
    columns = zip(("rank_correlation", "chance"), np.array(ranks).T, strict=True)
    return xr.Dataset({name: ("estimator", values) for name, values in columns}, {"estimator": names})


def _changes(pairs: xr.Dataset, name: str = "difference") -> xr.DataArray:
    """Change from the unpatched run, ``(pair, ...)``; 0 if within rounding."""
    source, base = ends_of(pairs)
    change = pairs[name] - base
    limit = float(pairs.attrs["rounding"]) * (abs(source) + abs(base))
    return xr.where(abs(change) <= limit, 0.0, change, keep_attrs=True).transpose(*pairs[name].dims)


def ends_of(pairs: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray]:
    """Difference of answers of each pair in the source run and in the patched run."""
    ends = pairs.clean, pairs.corrupted
    return ends if pairs.attrs["direction"] == "denoising" else (ends[1], ends[0])


def check_pairs_differ(pairs: xr.Dataset) -> None:
    """Raise an error if the model predicts the same for clean and corrupted texts."""
    source, base = ends_of(pairs)
    if not abs(float((source - base).mean())) > 1e-6 * float((abs(source) + abs(base)).mean()):
        raise AttnscopeError(
            "clean and corrupted texts give the same difference of answers, so there is nothing to recover. Use pairs "
            "on which the model answers differently"
        )
