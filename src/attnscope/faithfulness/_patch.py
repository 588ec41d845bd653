"""`patch`: activations of a clean run put into the corrupted one, pair after pair, and what that brings back."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import xarray as xr

from attnscope._arguments import typed
from attnscope.bundled import MODEL, PAIRS
from attnscope.capture import LoadedModel, borrowing, load_model, signature_of
from attnscope.checks import STEPS, check_seed, check_whole, shortly
from attnscope.errors import AttnscopeError
from attnscope.faithfulness._patch_job import PatchJob
from attnscope.faithfulness._patched import estimators_agreement, patched_of
from attnscope.faithfulness._patching import WHATS, What
from attnscope.faithfulness._runs import DIRECTIONS, Direction, check_apart
from attnscope.faithfulness._stored import StoredParts, kept_tree, stored_tree
from attnscope.faithfulness.passes import EncodedPairs, Pair, Pairs, PairTexts, given_pairs
from attnscope.progress import Tell, tell_nobody
from attnscope.store import RunFolder, Signature, in_a_row, local_out
from attnscope.tasks import Part, Task, way_in

if TYPE_CHECKING:
    from attnscope.capture import Model, Tokenizer


Name = TypeVar("Name", bound=str)
_RECEIVER = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})")


@typed
@local_out
@borrowing
def patch(
    model: Model | None = None,
    pairs: Pairs | None = None,
    *,
    answer: str | None = None,
    wrong: str | None = None,
    tokenizer: Tokenizer = None,
    out: str | Path | Callable[[Signature], Path] | None = None,
    repair: bool = False,
    task: str | Task | None = None,
    ray: str | None = None,
    workers: int | None = None,
    ray_gpus: float | None = None,
    what: str = "heads",
    by_position: bool = False,
    direction: str | None = None,
    receiver: str | tuple[int, int] | None = None,
    steps: int = 5,
    batch_size: int | None = None,
    variants: int | None = None,
    seed: int = 0,
    device: str | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    progress: Tell | None = None,
) -> xr.DataTree:
    """Put activations of one run into another, one at a time, and measure how far the answer comes back.

    Each pair is a clean text and a corrupted one, as long in tokens, that ask for different answers. A masked language
    model is asked at the mask, a causal one after the last token.

    Parameters
    ----------
    model, tokenizer, device, dtype, revision, trust_remote_code
        See `attnscope.scan`.
    pairs
        A file of JSON Lines, two or four text files (see `attnscope.faithfulness.read_pairs`), or pairs themselves, as
        `attnscope.faithfulness.Pair` or mappings with ``clean``, ``corrupted``, ``answer`` and ``wrong``. The bundled
        model brings its own.
    answer, wrong
        Answers of all pairs that have none of their own; refused where each has one.
    out, repair
        See `attnscope.intervene`. Batches of pairs are written as they come; a run that was stopped goes on.
    task
        Which part of the pairs this process patches, as in `attnscope.scan`: every N-th batch.
    ray, workers, ray_gpus
        Have the same units measured by actors of Ray, as in `attnscope.scan`; `out` keeps them. See docs/clusters.md.
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
    seed
        Seed of the bootstrap and of the permutations.
    progress
        Called with a `Progress` after each batch.

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
    part = way_in(patch, locals())
    path = _receiver(receiver, what, by_position=by_position)
    towards = direction or ("denoising" if path is None else "noising")
    chosen: What = _among("what", what, WHATS)
    course: Direction = _among("direction", towards, DIRECTIONS)
    check_whole(1, batch_size=batch_size, variants=variants)
    check_whole(0, STEPS, steps=steps)
    check_seed(seed)
    given = _pairs(pairs, model, answer, wrong)
    loaded = load_model(
        model,
        tokenizer=tokenizer,
        revision=revision,
        device=device,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
    )
    if what == "residual" or path is not None:
        steps = 0
    apart, told = by_position or chosen == "residual", progress or tell_nobody
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

    measure = partial(_measure, job, batches, skips)

    def in_folder(run: RunFolder) -> xr.DataTree:
        if not run.complete:
            measure(run, run.holds)
            parts = _parts(_of_run(run), StoredParts(run), seed)
            run.finish(parts=list(parts), attributes=attributes)
        return load_patching(run)

    return kept_tree(out, signature, part, measure, in_folder, attributes, repair=repair)


def _measure(
    job: PatchJob,
    batches: Sequence[tuple[list[int], EncodedPairs]],
    skips: bool,
    run: Part,
    done: Callable[[range], bool],
) -> None:
    """Add the batches to a run that are not done."""
    first = 0
    for numbers, encoded in batches:
        place = range(first, first + len(numbers))
        if not done(place):
            run.append(job.measured(numbers, encoded, skips).rename(pair="text"), first)
        first = place.stop


@typed
def load_patching(run: RunFolder) -> xr.DataTree:
    """The tree that `patch` returned, from the folder of a finished run.

    Raises
    ------
    AttnscopeError
        If a part is gone.

    Examples
    --------
    >>> import json
    >>> import tempfile
    >>> from pathlib import Path
    >>> from attnscope import patch
    >>> from attnscope.store import RunFolder
    >>> with tempfile.TemporaryDirectory() as place:
    ...     made = patch(steps=0, out=f"{place}/run")
    ...     with RunFolder(Path(place) / "run", json.loads(made.attrs["signature"])) as run:
    ...         load_patching(run).equals(made)
    True
    """
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
    return given_pairs(given, answer=answer, wrong=wrong)


def _receiver(given: object, what: str, *, by_position: bool) -> tuple[int, int] | None:
    if by_position and what == "residual":
        raise AttnscopeError(
            "the residual stream is put in at one position at a time already: leave by position out"
        )
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
    check_apart(measured)
    stored.get("patched", lambda: patched_of(measured, seed=seed))
    if "estimate" in measured:
        stored.get("agreement", lambda: estimators_agreement(measured, seed=seed))
    return stored.parts


def _of_run(run: RunFolder) -> xr.Dataset:
    return run.results().rename(text="pair").sortby("pair")


def _in_order(parts: Sequence[xr.Dataset]) -> xr.Dataset:
    return in_a_row(parts, "pair").sortby("pair")
