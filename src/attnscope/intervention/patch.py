"""`patch`: activations of a clean run put into the corrupted one, pair after pair, and what that brings back."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope.bundled import MODEL, PAIRS
from attnscope.capture.borrow import LoadedModel, borrowed, preserve_model_state
from attnscope.capture.load import load_model, signature_of
from attnscope.capture.notes import layer_coordinates
from attnscope.capture.parameters import PairReading, loading
from attnscope.capture.verify import TOLERANCE, verify
from attnscope.intervention.ablation import of_layers
from attnscope.intervention.gradients import HeadGradients, answers_difference
from attnscope.intervention.pairs import (
    PairTexts,
    encoded_pairs,
    is_masked,
    pairs_of_input,
    position_labels,
    token_count,
)
from attnscope.intervention.per_head import order_agreement
from attnscope.intervention.predictions import TOKENS, check_read
from attnscope.intervention.stack import replacing, same_without_what_is_skipped, stacked_passes, variants_at_once
from attnscope.intervention.stored import StoredParts, stored_tree, tree_in_folder
from attnscope.measure.documents import by_document
from attnscope.measure.texts import window_length
from attnscope.store.arrays import in_a_row, padded_heads
from attnscope.store.files import local_out
from attnscope.store.runs import RunFolder
from attnscope.store.units import Done, Share, completed, keep_each, task_for
from attnscope.support.arguments import Count, validated
from attnscope.support.checks import STEPS, check_whole, shortly
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell, no_progress

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.intervention.pairs import EncodedPairs, Pair, Pairs
    from attnscope.intervention.stack import StackedPasses
    from attnscope.kernels.call import AttentionCall

Name = TypeVar("Name", bound=str)
_RECEIVER = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})")


@validated
@local_out
@preserve_model_state
def patch(
    model: Model | None = None,
    pairs: Pairs | None = None,
    *,
    answer: str | None = None,
    wrong: str | None = None,
    what: str = "heads",
    by_position: bool = False,
    direction: str | None = None,
    receiver: str | tuple[int, int] | None = None,
    steps: int = 5,
    batch_size: Count | None = None,
    variants: Count | None = None,
    **reading: Unpack[PairReading],
) -> xr.DataTree:
    """Put activations of one run into another, one at a time, and measure how far the answer comes back.

    Each pair is a clean text and a corrupted one, as long in tokens, that ask for different answers. A masked language
    model is asked at the mask, a causal one after the last token.

    Parameters
    ----------
    model
        See `attnscope.scan`.
    pairs
        A file of JSON Lines, two or four text files (see `attnscope.intervention.pairs.read_pairs`), or pairs
        themselves, as
        `attnscope.intervention.pairs.Pair` or mappings with ``clean``, ``corrupted``, ``answer`` and
        ``wrong``. The bundled
        model brings its own.
    answer, wrong
        Answers of all pairs that have none of their own; refused where each has one.
    task
        Which part of the pairs this process patches, as in `attnscope.scan`: every N-th batch.
    what
        ``heads``: each head's output. ``residual``: the residual stream after each block, at each position.
    by_position
        Whether heads are patched at one position at a time; all pairs are then as long.
    direction
        ``denoising``: clean activations go into the corrupted run (does this bring the answer back?); ``noising``: the
        other way round (does this break it?). By default denoising; noising with a receiver.
    receiver
        ``(layer, head)`` or ``"layer.head"``: path patching, what of each head's effect reaches the answer through that
        later head alone (Wang et al. 2022).
    steps
        Gradients of the EAP-IG estimate; 0 for no estimates beside what is measured.
    batch_size
        Pairs at a time; by default about 1,024 tokens' worth.
    variants
        Most variants of a batch side by side; by default as many as the device is quickest with.

    Returns
    -------
    xarray.DataTree
        ``pairs``: ``difference`` (logit of the answer minus that of the wrong one in the patched run), of each pair
        ``(pair, layer, head[, position])`` or ``(pair, block, position)``, ``clean`` and ``corrupted`` ``(pair)`` of
        the two runs, and ``estimate`` ``(pair, estimator, layer, head[, position])``. ``patched``: means over pairs
        with intervals, see `patched_of`. ``agreement``: how well the estimates rank what is measured.

    Raises
    ------
    AttnscopeError
        If the texts of a pair differ in their number of tokens, an answer is not one token, the model says the same of
        clean and corrupted texts or is an encoder-decoder, or for anything else that the caller can mend.

    Examples
    --------
    >>> effects = patch(steps=0)
    >>> best = effects["patched"].recovered
    >>> {name: int(place) for name, place in best.argmax(...).items()}, bool(best.max() > 0.4)
    ({'layer': 0, 'head': 3}, True)
    """
    part = task_for(patch, locals())
    path = _receiver(receiver, what, by_position=by_position)
    towards = direction or ("denoising" if path is None else "noising")
    chosen: What = _among("what", what, WHATS)
    course: Direction = _among("direction", towards, DIRECTIONS)
    check_whole(0, STEPS, steps=steps)
    seed, out = reading["seed"], reading["out"]
    given = _pairs(pairs, model, answer, wrong)
    loaded = load_model(model, **loading(reading))
    if what == "residual" or path is not None:
        steps = 0
    apart, told = by_position or chosen == "residual", reading["progress"] or no_progress
    job = PatchJob(loaded, given, chosen, apart, course, path, steps, variants, told)
    batches = job.batches(batch_size)
    skips = job.check(batches)
    settings = {
        "what": what,
        "by_position": by_position,
        "direction": towards,
        "receiver": None if path is None else f"{path[0]}.{path[1]}",
        "steps": steps,
        "batch_size": batch_size,
        "seed": seed,
    }
    signature = signature_of("patch", loaded, PairTexts(tuple(given)), None, settings)
    attributes = {"signature": signature.to_json(), "model": loaded.name}
    if out is None:
        measured = _in_order([job.measured(numbers, encoded, skips) for numbers, encoded in batches])
        tree = xr.DataTree.from_dict({"pairs": measured, **_parts(measured, StoredParts(None), seed)})
        tree.attrs = attributes
        return tree

    by_batch = partial(_batches, job, batches, skips)

    def in_folder(run: RunFolder) -> xr.DataTree:
        if not run.complete:
            keep_each(run, by_batch, Share(lambda _: True, completed(run)))
            parts = _parts(_of_run(run), StoredParts(run), seed)
            run.finish(parts=list(parts), attributes=attributes)
        return load_patching(run)

    return tree_in_folder(out, signature, part, by_batch, in_folder, attributes, repair=reading["repair"])


def _batches(
    job: PatchJob, batches: Sequence[tuple[list[int], EncodedPairs]], skips: bool, done: Done
) -> Iterator[xr.Dataset | None]:
    """Differences of batch after batch; None for one that is done."""
    first = 0
    for numbers, encoded in batches:
        pairs = range(first, first + len(numbers))
        yield None if done(pairs) else job.measured(numbers, encoded, skips).rename(pair="window")
        first = pairs.stop


@validated
def load_patching(run: RunFolder) -> xr.DataTree:
    """The tree that `patch` returned, from the folder of a finished run."""
    return stored_tree(run, {"pairs": _of_run(run)})


def _among(name: str, value: str, known: tuple[Name, ...]) -> Name:
    for choice in known:
        if choice == value:
            return choice
    raise AttnscopeError(f"{name} (--{name}) is {shortly(value)}; expected {' or '.join(known)}")


def _pairs(given: Pairs | None, model: Model | None, answer: str | None, wrong: str | None) -> list[Pair]:
    if given is None:
        own = model is None or (isinstance(model, str | Path) and Path(model) in {Path("bundled"), MODEL})
        if not own and not (isinstance(model, LoadedModel) and model.name == MODEL.name):
            raise AttnscopeError(
                "found no pairs beside the model; expected a file of JSON Lines with clean, corrupted, answer and "
                "wrong in each line, after the model (only the bundled model brings its own)"
            )
        given = PAIRS
    return pairs_of_input(given, answer=answer, wrong=wrong)


def _receiver(given: object, what: str, *, by_position: bool) -> tuple[int, int] | None:
    if by_position and what == "residual":
        raise AttnscopeError("the residual stream is put in at one position at a time already: leave by position out")
    if given is None:
        return None
    if what != "heads" or by_position:
        raise AttnscopeError(
            "a receiver (--receiver) is for paths from head to head; leave out what residual and by position"
        )
    match = _RECEIVER.fullmatch(given) if isinstance(given, str) else None
    if match is not None:
        return int(match[1]), int(match[2])
    if isinstance(given, tuple | list) and [type(item) for item in given] == [int, int]:
        return given[0], given[1]
    raise AttnscopeError(f"the receiver (--receiver) is {shortly(given)}; expected layer.head, such as 3.6")


def _parts(measured: xr.Dataset, stored: StoredParts, seed: int) -> dict[str, xr.Dataset]:
    """What the pairs come to."""
    check_pairs_differ(measured)
    stored.get("patched", lambda: patched_of(measured, seed=seed))
    if "estimate" in measured:
        stored.get("agreement", lambda: estimators_agreement(measured, seed=seed))
    return stored.parts


def _of_run(run: RunFolder) -> xr.Dataset:
    return run.results().rename(window="pair").sortby("pair")


def _in_order(parts: Sequence[xr.Dataset]) -> xr.Dataset:
    return in_a_row(parts, "pair").sortby("pair")


@dataclass(eq=False)
class PatchJob:
    """What one call of `patch` measures: see there."""

    loaded: LoadedModel
    pairs: Sequence[Pair]
    what: What
    by_position: bool
    direction: Direction
    receiver: tuple[int, int] | None
    steps: int
    variants: int | None
    tell: Tell
    _done: int = 0

    def batches(self, size: int | None) -> list[tuple[list[int], EncodedPairs]]:
        """Numbers of the pairs of each batch, and the pairs; those of a batch are as long in tokens."""
        masked = is_masked(self.loaded)
        lengths = [
            token_count(pair, self.loaded.tokenizer, number, masked=masked) for number, pair in enumerate(self.pairs, 1)
        ]
        longest = window_length(self.loaded, None)
        if max(lengths) > longest:
            raise AttnscopeError(
                f"pair {int(np.argmax(lengths)) + 1} has {max(lengths)} tokens; {self.loaded.name} takes {longest} at "
                "most: shorten its texts"
            )
        if self.by_position and len(set(lengths)) > 1:
            raise AttnscopeError(
                f"pairs have {min(lengths)} to {max(lengths)} tokens; expected all as long, so that a position means "
                "the same in all: give those of one length at a time, or patch heads at all positions"
            )
        batches: list[tuple[list[int], EncodedPairs]] = []
        for length in sorted(set(lengths)):
            same = [number for number, size in enumerate(lengths, 1) if size == length]
            most = size or max(1, TOKENS // length)
            for first in range(0, len(same), most):
                numbers = same[first : first + most]
                some = [self.pairs[number - 1] for number in numbers]
                batches.append((numbers, encoded_pairs(self.loaded, some, numbers)))
        return batches

    def check(self, batches: Sequence[tuple[list[int], EncodedPairs]]) -> bool:
        """Refuse a model whose heads cannot be patched; whether passes may leave out what does not differ."""
        model, (numbers, encoded) = self.loaded.model, batches[0]
        inputs = {"input_ids": encoded.clean[:1]}
        sites, _ = verify(model, inputs, text=f"pair {numbers[0]}")
        check_read(self.loaded, inputs)
        if self.receiver is not None and not 0 < self.receiver[0] < len(sites):
            raise AttnscopeError(
                f"the receiver (--receiver) is {self.receiver[0]}.{self.receiver[1]}; expected layer.head with a layer "
                f"from 1 to {len(sites) - 1}, so that layers lie below it"
            )
        return same_without_what_is_skipped(model, inputs, encoded.places[:1], states=self.what == "residual")

    def measured(self, numbers: list[int], encoded: EncodedPairs, skips: bool) -> xr.Dataset:
        """Differences and estimates of one batch."""
        if self.receiver is not None:
            patched_pairs = patched_through(
                self.loaded, encoded, self.receiver, direction=self.direction, variants=self.variants, skips=skips
            )
        else:
            patched_pairs = patched(
                self.loaded,
                encoded,
                what=self.what,
                by_position=self.by_position,
                direction=self.direction,
                variants=self.variants,
                skips=skips,
            )
        if self.steps:
            by_name = {"attribution": 1, **({"eap_ig": self.steps} if self.steps > 1 else {})}
            estimates = [
                estimated(
                    self.loaded, encoded, by_position=self.by_position, direction=self.direction, steps=steps
                ).estimate
                for steps in by_name.values()
            ]
            patched_pairs["estimate"] = xr.concat(estimates, "estimator").transpose("pair", "estimator", ...)
            patched_pairs = patched_pairs.assign_coords(estimator=list(by_name))
        self._done += len(numbers)
        self.tell(Progress("patching", self._done / len(self.pairs), {"pairs": self._done}))
        return patched_pairs.assign_coords(self._labels(numbers, encoded)).assign_attrs(
            rounding=TOLERANCE[self.loaded.model.dtype], what=self.what
        )

    def _labels(self, numbers: list[int], encoded: EncodedPairs) -> dict[str, object]:
        """Number, texts and answers of each pair; its tokens, where there are positions."""
        some = [self.pairs[number - 1] for number in numbers]
        labels: dict[str, object] = {"pair": numbers}
        for name in ("clean", "corrupted", "answer", "wrong"):
            labels[f"{name}_text"] = ("pair", np.array([getattr(pair, name) for pair in some], dtype=object))
        if self.by_position:
            for name, tokens in (("clean", encoded.tokens), ("corrupted", encoded.corrupted_tokens)):
                labels[f"{name}_token"] = (("pair", "position"), np.array(tokens, dtype=object))
        return labels


@validated
def patched_of(pairs: xr.Dataset, *, seed: int = 0) -> xr.Dataset:
    """Mean effect of each patched place, with its interval over pairs."""
    source, base = ends_of(pairs)
    change = _changes(pairs)
    each, gaps = range(pairs.sizes["pair"]), (source - base).values
    plain = by_document(change.values, each, seed=seed)
    share = by_document(change.values, each, over=gaps, seed=seed)
    dims = change.dims[1:]
    variables: dict[str, xr.DataArray | tuple[tuple[object, ...], np.ndarray, dict[str, str]]] = {}
    for name, part, words, units in (
        ("effect", plain, "Change of answer minus wrong answer", "logits"),
        ("recovered", share, "Way from the patched run to the other", "share"),
    ):
        variables[name] = (dims, part.mean, {"long_name": words, "units": units})
        for end, said in (("low", "Lower"), ("high", "Upper")):
            value: np.ndarray = getattr(part, end)
            variables[f"{name}_{end}"] = (dims, value, {"long_name": f"{said} end of its 95% interval", "units": units})
    together = {"long_name": "Effect told from 0, all places together", "units": "1"}
    variables["shown"] = (dims, plain.shown, together)
    variables["tested"] = (dims, plain.tested, {"long_name": "Whether that was tested", "units": "1"})
    if "estimate" in pairs:
        variables["estimate"] = pairs.estimate.mean("pair", keep_attrs=True, skipna=False)
    kept = {name: values for name, values in pairs.coords.items() if "pair" not in values.dims}
    attrs = {"pairs": pairs.sizes["pair"], "direction": pairs.attrs["direction"]}
    whole = xr.Dataset(variables, coords=kept, attrs=attrs)
    if "clean_token" in pairs.coords:
        labels = position_labels(pairs.clean_token.values.tolist(), pairs.corrupted_token.values.tolist())
        whole = whole.assign_coords(token=("position", np.array(labels, dtype=object)))
    return whole


def estimators_agreement(pairs: xr.Dataset, *, seed: int = 0) -> xr.Dataset:
    """How well each estimate puts the places in the order of what was measured."""
    change = _changes(pairs).values
    names = pairs.estimator.values.tolist()
    rows = [order_agreement(pairs.estimate.sel(estimator=name).values, change, seed=seed) for name in names]
    columns = ("rank_correlation", "chance")
    return xr.Dataset(
        {name: ("estimator", np.array(values)) for name, values in zip(columns, zip(*rows, strict=True), strict=True)},
        coords={"estimator": names},
    )


def _changes(pairs: xr.Dataset) -> xr.DataArray:
    """Change from the run that was patched, ``(pair, ...)``; what is within rounding is 0."""
    source, base = ends_of(pairs)
    change = pairs.difference - base
    limit = float(pairs.attrs["rounding"]) * (abs(source) + abs(base))
    return xr.where(abs(change) <= limit, 0.0, change, keep_attrs=True).transpose(*pairs.difference.dims)


Direction = Literal["noising", "denoising"]
DIRECTIONS: tuple[Direction, ...] = ("noising", "denoising")


@dataclass(frozen=True, eq=False)
class Runs:
    """Both runs of some pairs; the plain pass of the one that is patched was the last."""

    passes: StackedPasses  # passes of the run that is patched
    encoded: EncodedPairs  # the pairs
    donors: Sequence[Tensor]  # what heads and blocks gave in the other run
    donor_states: Sequence[Tensor]
    logits: Tensor  # ``(pair, 1, token)``: of the run that is patched
    source: Tensor  # ``(pair,)``: answer minus wrong answer in the other run, and in the one that is patched
    base: Tensor

    def variants(self, most: int | None) -> int:
        """How many variants stand side by side: those asked for, or what the device is quickest with."""
        return most or variants_at_once(self.logits, self.encoded.clean.numel(), self.donors)


@contextmanager
def both_runs(
    loaded: LoadedModel, encoded: EncodedPairs, direction: Direction, *, skips: bool = True
) -> Generator[Runs]:
    """Run clean and corrupted texts as they are; the model is watched until the end of the context."""
    turned = encoded if direction == "denoising" else encoded.turned()
    with borrowed(loaded.model), stacked_passes(loaded.model, skips=skips) as passes, torch.no_grad():
        source = encoded.difference(passes.plain({"input_ids": turned.clean}, encoded.places))
        donors, states = passes.outputs, passes.states
        logits = passes.plain({"input_ids": turned.corrupted}, encoded.places)
        yield Runs(passes, encoded, donors, states, logits, source, encoded.difference(logits))


def differences(
    runs: Runs, dims: Sequence[str], values: np.ndarray, direction: Direction, coords: Mapping[str, Any]
) -> xr.Dataset:
    """What was measured of each pair, ``(pair, *dims)``, beside the two runs as they are."""
    ends = (runs.source, runs.base) if direction == "denoising" else (runs.base, runs.source)
    clean, corrupted = (end.double().cpu().numpy() for end in ends)
    logits = {"units": "logits"}
    return xr.Dataset(
        {
            "difference": (("pair", *dims), values, {"long_name": "Answer minus wrong answer", **logits}),
            "clean": ("pair", clean, {"long_name": "The same of the clean run", **logits}),
            "corrupted": ("pair", corrupted, {"long_name": "The same of the corrupted run", **logits}),
        },
        coords=dict(coords),
        attrs={"direction": direction},
    )


def head_coordinates(runs: Runs) -> dict[str, Any]:
    """Labels of layers and heads."""
    widest = max(output.shape[1] for output in runs.donors)
    return {**layer_coordinates(runs.passes.sites), "head": np.arange(widest)}


def ends_of(pairs: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray]:
    """Of each pair, the difference of answers in the run that activations come from, and in the one they go into."""
    ends = pairs.clean, pairs.corrupted
    return ends if pairs.attrs["direction"] == "denoising" else (ends[1], ends[0])


def check_pairs_differ(pairs: xr.Dataset) -> None:
    """Refuse pairs of which the model says the same, clean or corrupted."""
    source, base = ends_of(pairs)
    if not abs(float((source - base).mean())) > 1e-6 * float((abs(source) + abs(base)).mean()):
        raise AttnscopeError(
            "clean and corrupted texts give the same difference of answers, so nothing can be brought back: give pairs "
            "on which the model answers differently"
        )


What = Literal["heads", "residual"]
WHATS: tuple[What, ...] = ("heads", "residual")


def patched(
    loaded: LoadedModel,
    encoded: EncodedPairs,
    *,
    what: What,
    by_position: bool,
    direction: Direction,
    variants: int | None = None,
    skips: bool = True,
) -> xr.Dataset:
    """The differences of each pair."""
    with both_runs(loaded, encoded, direction, skips=skips) as runs:
        most = runs.variants(variants)
        if what == "residual":
            values = _states(runs, most)
            coords = {"block": np.arange(values.shape[1])}
            return differences(runs, ("block", "position"), values, direction, coords)
        values = _heads(runs, most, by_position=by_position)
        dims = ("layer", "head", *(["position"] if by_position else []))
        return differences(runs, dims, values, direction, head_coordinates(runs))


def _heads(runs: Runs, most: int, *, by_position: bool) -> np.ndarray:
    """``(pair, layer, head[, position])``."""
    count, length = runs.encoded.clean.shape
    layers: list[np.ndarray] = []
    for call, donor in enumerate(runs.donors):
        heads = donor.shape[1]
        cells = [(head, place) for head in range(heads) for place in (range(length) if by_position else [None])]
        parts: list[Tensor] = []
        for first in range(0, len(cells), most):
            some = cells[first : first + most]

            def edit(_: AttentionCall, output: Tensor, some: object = some, donor: Tensor = donor) -> Tensor:
                output = output.clone()
                for variant, (head, place) in enumerate(some):  # pyright: ignore[reportArgumentType]
                    at = slice(None) if place is None else slice(place, place + 1)
                    output[variant, :, head, at] = donor[:, head, at]
                return output

            parts.append(runs.encoded.difference(runs.passes.run({call: edit}, len(some))))
        shape = (count, heads, *([length] if by_position else []))
        layers.append(torch.cat(parts).T.reshape(shape).double().cpu().numpy())
    return np.moveaxis(padded_heads(layers, axis=1), 0, 1)


def _states(runs: Runs, most: int) -> np.ndarray:
    """``(pair, block, position)``."""
    if not runs.donor_states:
        raise AttnscopeError(
            f"{type(runs.passes.model).__name__} has no list of blocks, so its residual stream is not found: patch its "
            "heads"
        )
    length = runs.encoded.clean.shape[1]
    blocks: list[np.ndarray] = []
    for block, donor in enumerate(runs.donor_states):
        parts: list[Tensor] = []
        for first in range(0, length, most):
            places = range(first, min(first + most, length))

            def edit(states: Tensor, places: range = places, donor: Tensor = donor) -> Tensor:
                states = states.clone()
                for variant, place in enumerate(places):
                    states[variant, :, place] = donor[:, place]
                return states

            parts.append(runs.encoded.difference(runs.passes.run({}, len(places), {block: edit})))
        blocks.append(torch.cat(parts).T.double().cpu().numpy())
    return np.stack(blocks, 1)


def patched_through(
    loaded: LoadedModel,
    encoded: EncodedPairs,
    receiver: tuple[int, int],
    *,
    direction: Direction,
    variants: int | None = None,
    skips: bool = True,
) -> xr.Dataset:
    """The differences of each pair."""
    layer, head = receiver
    with both_runs(loaded, encoded, direction, skips=skips) as runs:
        own = runs.passes.outputs
        if not (0 < layer < len(own) and 0 <= head < own[layer].shape[1]):
            raise AttnscopeError(
                f"the receiver (--receiver) is {layer}.{head}; expected layer.head, a head of layers 1 to "
                f"{len(own) - 1}, which have layers below them"
            )
        heads = [output.shape[1] for output in own]
        flat = np.full((len(encoded), sum(heads)), np.nan)
        most = runs.variants(variants)
        place = 0
        for sender in range(layer):
            for first in range(0, heads[sender], most):
                senders = range(first, min(first + most, heads[sender]))
                received = _received(runs, sender, senders, layer)

                def put_in(_: AttentionCall, output: Tensor, received: Tensor = received) -> Tensor:
                    output = output.clone()
                    output[:, :, head] = received[:, :, head]
                    return output

                logits = runs.passes.run({layer: put_in}, len(senders))
                flat[:, place : place + len(senders)] = encoded.difference(logits).T.double().cpu().numpy()
                place += len(senders)
        values = np.stack([of_layers(row, heads) for row in flat])
        whole = differences(runs, ("layer", "head"), values, direction, head_coordinates(runs))
    return whole.assign_attrs(receiver=f"{layer}.{head}")


def _received(runs: Runs, sender: int, senders: range, receiver: int) -> Tensor:
    """What the receiver's layer gives when one head of the sender's layer is another run's, all others held."""
    kept: list[Tensor] = []
    donor, own = runs.donors[sender], runs.passes.outputs

    def hold(call: int) -> Callable[[AttentionCall, Tensor], Tensor]:
        return lambda _, output: own[call].expand_as(output)

    def receive(_: AttentionCall, output: Tensor) -> Tensor:
        kept.append(output.clone())
        return output

    between = {call: hold(call) for call in range(sender + 1, receiver)}
    runs.passes.run({sender: replacing(senders, [donor] * len(senders)), **between, receiver: receive}, len(senders))
    return kept[0]


def estimated(
    loaded: LoadedModel, encoded: EncodedPairs, *, by_position: bool, direction: Direction, steps: int
) -> xr.Dataset:
    """The estimates of each pair."""
    model = loaded.model
    encoded = encoded if direction == "noising" else encoded.turned()  # from here on, clean is what is patched
    with borrowed(model):
        with stacked_passes(model, skips=False) as passes:
            passes.plain({"input_ids": encoded.corrupted}, encoded.places)
            others = passes.outputs
            passes.plain({"input_ids": encoded.clean}, encoded.places)
            own, sites = passes.outputs, passes.sites
        shares = [None] if steps == 1 else [(step + 0.5) / steps for step in range(steps)]
        slopes = [answers_difference(HeadGradients(model), encoded, share) for share in shares]
    summed = (3,) if by_position else (2, 3)
    layers: list[np.ndarray] = []
    for call, (patched, donor) in enumerate(zip(own, others, strict=True)):
        gradient = torch.stack([step[call] for step in slopes]).mean(0)
        layers.append(((donor - patched) * gradient).sum(summed).double().cpu().numpy())
    estimates = np.moveaxis(padded_heads(layers, axis=1), 0, 1)
    dims = ("pair", "layer", "head", *(["position"] if by_position else []))
    attrs = {"long_name": "Change of the answer minus the wrong answer, estimated", "units": "logits"}
    return xr.Dataset(
        {"estimate": (dims, estimates, attrs)},
        coords={**layer_coordinates(sites), "head": np.arange(estimates.shape[2])},
        attrs={"steps": steps, "direction": direction},
    )
