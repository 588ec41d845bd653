"""`roles`: which published roles the heads of a model have, and how many would have them by chance."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
import xarray as xr

from attnscope.bundled import MODEL
from attnscope.capture.borrow import LoadedModel, preserve_model_state, quiet
from attnscope.capture.forward import forward
from attnscope.capture.load import load_model, signature_of
from attnscope.capture.modalities import reject_modalities
from attnscope.capture.notes import layer_coordinates
from attnscope.capture.parameters import Reading, loading
from attnscope.capture.placement import device_of
from attnscope.capture.verify import verify
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.detection.calls import Nearness, equal_call
from attnscope.detection.probes import (
    Needle,
    Probe,
    left_out_note,
    needle_probe,
    needles_of,
    ordinary_tokens,
    repeated_probe,
    text_probe,
)
from attnscope.detection.role import ROLES, choose_controls, choose_roles
from attnscope.kernels.engines import output_of
from attnscope.measure.documents import interval, units_of
from attnscope.measure.passes import WindowBatch
from attnscope.measure.quantities import EQUAL
from attnscope.measure.texts import beyond_note, window_length
from attnscope.read.encoded import Sources, texts_of, windows_of
from attnscope.read.windows import Window
from attnscope.store.arrays import padded_heads
from attnscope.store.files import local_out
from attnscope.store.runs import RunFolder
from attnscope.support.arguments import Count, validated
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell, no_progress
from attnscope.support.state import own_random_numbers

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from torch import Tensor
    from transformers import PreTrainedModel

    from attnscope.capture.load import Model
    from attnscope.detection.probes import Needles
    from attnscope.kernels.call import AttentionCall

_LONGEST, _TEXTS = 512, 32
_PART, _OWN = "roles", "model"


@validated(limit=_TEXTS)
@local_out
@preserve_model_state
def roles(
    model: Model | None = None,
    texts: Sources = None,
    *,
    only: Sequence[str] | str | None = None,
    needles: Needles | None = None,
    controls: Sequence[str] | str | None = None,
    batch_size: Count | None = None,
    **reading: Unpack[Reading],
) -> xr.Dataset:
    """Score every head of a model for each published role, beside equal weights and weights that know nothing.

    Roles of places are scored on windows of the texts; duplicate-token and induction heads on 16 texts of random tokens
    said twice; retrieval heads on prompts in which a sentence is hidden, of which those count that the model answers.
    No matrix of weights is held.

    Parameters
    ----------
    model, texts
        See `attnscope.scan`. The decoder of an encoder-decoder reads what the encoder reads.
    only
        Names of roles, as a list or as one string with commas between; by default all of
        ``attnscope.detection.role.ROLES``. What makes no sense for a model is left out, and ``skipped`` says why.
    needles
        What is hidden for retrieval heads: a file of JSON Lines with ``needle`` and ``question`` in each line, or such
        objects; see `attnscope.detection.probes.needles_of`. By default three sentences of ours, in English.
    controls
        Weights that know nothing, put into the same model: ``initialised`` (drawn anew), ``shuffled`` (each matrix in a
        random order); by default both, ``"none"`` for neither.
    window
        Tokens of a window, and of a prompt; by default what the model takes, at most 512.
    limit
        Windows of the texts. Where at least half of them are full only those are read, else all of 8 tokens or more.
    batch_size
        Windows at a time; by default about 2,048 tokens' worth.
    seed
        Seed of the random tokens, of the controls and of the bootstrap.

    Returns
    -------
    xarray.Dataset
        Over ``role, layer, head``: ``score`` (mean over windows; NaN where the role is not asked of a layer), ``low``
        and ``high`` (95% interval by the bootstrap over documents, or windows where there are fewer than 6; over texts
        of random tokens, over prompts; NaN of fewer than 6), ``windows_reached`` (share of the windows in which the
        threshold is reached; of ``first_token`` its mean over heads is the sink metric of Gu et al.). Over ``role,
        layer``: ``equal``, of equal weights. Over ``control, role, layer, head``: ``control_score``. Over ``role``:
        ``threshold`` (NaN where none is published), with the coordinates ``title``, ``definition``, ``source`` and
        ``probe``. The attributes
        ``skipped`` and ``notes`` say, as JSON, which roles are not there and why, and what was read; ``beyond``, that
        windows are longer than the model's config names; ``left_out``, how many windows were too short to be read.

    Raises
    ------
    AttnscopeError
        If a role or control is unknown, the texts have no window of 8 tokens, or for anything else that the caller can
        mend.

    Examples
    --------
    >>> result = roles(only="previous_token, next_token", limit=4, controls="none")
    >>> best = result["score"].sel(role="previous_token").argmax(...)
    >>> {name: int(place) for name, place in best.items()}, result["threshold"].values.tolist()
    ({'layer': 0, 'head': 3}, [0.5, 0.5])
    """
    names, chosen = choose_roles(only), choose_controls(controls)
    window, limit, seed, out = reading["window"], reading["limit"] or _TEXTS, reading["seed"], reading["out"]
    if needles is not None and all(ROLES[name].probe != "needle" for name in names):
        raise AttnscopeError("needles (--needles) are of retrieval heads: ask for retrieval (--only) too")
    hidden = needles_of(needles)
    field, inner = reading["field"], MODEL if model is None else model
    reject_modalities("roles", inner, texts, field=field, revision=reading["revision"])
    corpus = texts_of(texts, field=field, by_line=reading["by_line"])
    loaded = load_model(model, **loading(reading))
    length = window_length(loaded, window) if window else min(_LONGEST, window_length(loaded, None))
    settings = {
        "roles": list(names),
        "controls": list(chosen),
        "needles": None if needles is None else [needle.text for needle in hidden],
        "window": length,
        "limit": limit,
        "batch_size": batch_size,
        "seed": seed,
    }
    signature = signature_of("roles", loaded, corpus, None, settings)
    windows = list(islice(windows_of(corpus, loaded.tokenizer, length=length, limit=limit), limit))
    measure = partial(
        _scored,
        loaded,
        windows,
        names,
        chosen,
        hidden,
        own_needles=needles is not None,
        length=length,
        batch_size=batch_size,
        seed=seed,
        tell=reading["progress"] or no_progress,
    )
    attributes = {"signature": signature.to_json(), "model": loaded.name, **beyond_note(loaded, length)}
    if out is None:
        return measure(run=None).assign_attrs(attributes)
    with RunFolder(Path(out(signature) if callable(out) else out), signature, repair=reading["repair"]) as run:
        if not run.complete:
            run.save(_PART, measure(run=run).assign_attrs(attributes))
            run.finish(parts=[_PART])
        return load_roles(run)


@validated
def load_roles(run: RunFolder) -> xr.Dataset:
    """What `roles` returned, from the folder of a finished run."""
    stored = run.load(_PART)
    if stored is None:
        raise AttnscopeError(f"{run.path} has no roles: give the same command again, which makes them anew")
    return stored.assign_attrs(run=str(run.path))


def _scored(
    loaded: LoadedModel,
    windows: list[Window],
    names: Sequence[str],
    controls: Sequence[str],
    needles: list[Needle],
    *,
    own_needles: bool,
    length: int,
    batch_size: int | None,
    seed: int,
    tell: Tell,
    run: RunFolder | None,
) -> xr.Dataset:
    """Score the model and its controls; those that the run folder has are read."""
    reach = Nearness()
    text = text_probe(windows, length, reach, batch_size)
    sites = sites_of(loaded.model, text)
    kinds = {site.kind for site in sites}
    skipped = {name: ROLES[name].otherwise for name in names if not kinds & set(ROLES[name].layers)}
    longest = max(map(len, text.windows))
    if "streaming" in names and longest <= reach.sinks + reach.recent:
        skipped.setdefault("streaming", f"windows of {longest} tokens hold no more than the first and latest ones")
    notes: dict[str, Any] = {}
    wanted = {ROLES[name].probe for name in names if name not in skipped}
    probes = [text] if "text" in wanted else []
    if "repeated" in wanted:
        table: Any = loaded.model.get_input_embeddings()
        words = ordinary_tokens(loaded.tokenizer, windows, table.weight.shape[0])
        try:
            probes.append(repeated_probe(windows[0], words, length, seed, batch_size))
        except AttnscopeError as error:
            skipped |= {name: str(error) for name in names if ROLES[name].probe == "repeated"} | skipped
    if "needle" in wanted:
        try:
            probes.append(_needles(loaded, text.windows, needles, length, notes))
        except AttnscopeError as error:
            if own_needles and "prompts" not in notes and _continues(loaded):
                raise
            skipped["retrieval"] = str(error)
    names = [name for name in names if name not in skipped]
    if not names:
        raise AttnscopeError(
            f"none of these roles can be looked for in {loaded.name}: "
            + "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        )
    work, done = sum(len(probe.windows) for probe in probes) * (1 + len(controls)), 0

    def count(windows: int) -> None:
        nonlocal done
        done += windows
        tell(Progress("roles", done / work, {"windows": done}))

    def of_model(name: str) -> xr.Dataset:
        stored = None if run is None else run.load(name)
        if stored is not None:
            return stored
        with nullcontext() if name == _OWN else control(loaded.model, name, seed):
            made = measured(loaded.model, sites, probes, names, count, with_equal=name == _OWN)
        if run is not None:
            run.save(name, made)
        return made

    own, others = of_model(_OWN), dict[str, xr.Dataset]()
    for name in controls:
        try:
            others[name] = of_model(name)
        except AttnscopeError as error:  # such weights may overflow where those of the model do not
            skipped[f"{name} weights"] = str(error)
    lengths = [len(window) for window in text.windows]
    notes |= {probe.kind: len(probe.windows) for probe in probes} | {"tokens": [min(lengths), max(lengths)]}
    left_out = left_out_note(windows, text.windows, length) if text in probes else {}
    summary = summed_up(own, others, [window.source for window in text.windows], seed)
    return summary.assign_attrs(skipped=json.dumps(skipped), notes=json.dumps(notes), **left_out)


def _continues(loaded: LoadedModel) -> bool:
    """Whether the model goes on with a text."""
    model = loaded.model
    return not model.config.is_encoder_decoder and model.can_generate() and loaded.tokenizer is not None


def _needles(
    loaded: LoadedModel, windows: Sequence[Window], needles: list[Needle], length: int, notes: dict[str, Any]
) -> Probe:
    """Prompts with needles that the model answers."""
    if not _continues(loaded):
        raise AttnscopeError("the model does not go on with a text: no head that says tokens")
    probe, notes["prompts"] = needle_probe(loaded, windows, needles, length)
    if probe is None:
        raise AttnscopeError(f"the model gives the needle back in 0 of {notes['prompts']} prompts")
    return probe


def sites_of(model: PreTrainedModel, probe: Probe) -> list[Site]:
    """Check that what is captured is what the model does, and list its attention calls."""
    sites, _ = verify(model, _inputs(model, probe, [0]), text=probe.windows[0].source, weights_suffice=True)
    return sites


@torch.no_grad()
def measured(
    model: PreTrainedModel,
    sites: Sequence[Site],
    probes: Sequence[Probe],
    names: Sequence[str],
    tell: Callable[[int], None],
    *,
    with_equal: bool,
) -> xr.Dataset:
    """Score each window: ``(text | repeated | needle, layer, head)`` for each role, NaN where it is not asked."""
    variables: dict[str, Any] = {}
    for probe in probes:
        observer = _Observer(probe, [name for name in names if ROLES[name].probe == probe.kind], with_equal=with_equal)
        for numbers in probe.batches():
            observer.numbers = numbers
            with watching(model, observer, weights_suffice=True):
                forward(model, _inputs(model, probe, numbers), observer.name_of, with_head=False)
            tell(len(numbers))
        for name, layers in observer.scores(sites).items():
            dims = (probe.kind, "layer", *(() if name.startswith(EQUAL) else ("head",)))
            variables[name] = (dims, layers)
    made = xr.Dataset(variables, layer_coordinates(sites))
    return made.assign_coords(head=np.arange(made.sizes["head"]))


@dataclass(eq=False)
class _Observer:
    """Scores each attention call as it happens."""

    probe: Probe
    names: Sequence[str]
    with_equal: bool
    numbers: Sequence[int] = ()
    heads: dict[int, int] = field(default_factory=dict[int, int])
    # by role and layer: ``(window, head)``, and of equal weights ``(window,)``
    layers: dict[tuple[str, int], np.ndarray] = field(default_factory=dict[tuple[str, int], np.ndarray])

    def __call__(self, site: Site, call: AttentionCall) -> Tensor:
        self.heads[site.index] = call.query.shape[1]
        names = [name for name in self.names if site.kind in ROLES[name].layers]
        tokens = len(self.probe.windows[self.numbers[0]])
        if not names or call.query.shape[2] != tokens or call.key.shape[2] != tokens:
            return output_of(call)  # the layer has other positions than tokens
        shown = self.probe.look(self.numbers, call)
        equal = self.probe.look(self.numbers, equal_call(call)) if self.with_equal else None
        for name in names:
            self._add(name, site, ROLES[name].score(shown))
            if equal is not None:
                self._add(EQUAL + name, site, ROLES[name].score(equal)[:, 0])
        return shown.output

    def name_of(self, text: int) -> str:
        """What to call a text of the batch."""
        return self.probe.windows[self.numbers[text]].source

    def _add(self, name: str, site: Site, score: Tensor) -> None:
        unknown = np.full((len(self.probe.windows), *score.shape[1:]), np.nan)
        self.layers.setdefault((name, site.index), unknown)[list(self.numbers)] = score.cpu().numpy()

    def scores(self, sites: Sequence[Site]) -> dict[str, np.ndarray]:
        """``(window, layer, head)``, and of equal weights ``(window, layer)``."""
        windows, stacked = len(self.probe.windows), dict[str, np.ndarray]()
        for name in self.names:
            heads = [np.full((windows, self.heads[site.index]), np.nan) for site in sites]
            rows = [self.layers.get((name, site.index), unknown) for site, unknown in zip(sites, heads, strict=True)]
            stacked[name] = np.moveaxis(padded_heads(rows, axis=1), 0, 1)
            if self.with_equal:
                unknown = np.full(windows, np.nan)
                rows = [self.layers.get((EQUAL + name, site.index), unknown) for site in sites]
                stacked[EQUAL + name] = np.moveaxis(np.stack(rows), 0, 1)
        return stacked


def _inputs(model: PreTrainedModel, probe: Probe, numbers: Sequence[int]) -> dict[str, Tensor]:
    windows = [probe.windows[number] for number in numbers]
    return WindowBatch.of(windows, 0, device_of(model)).inputs(model)


@validated
@contextmanager
def control(model: PreTrainedModel, name: str, seed: int) -> Generator[None]:
    """Within, a model has weights that know nothing; afterwards it has its own again, untouched."""
    own = {key: parameter.data for key, parameter in model.named_parameters()}
    if any(type(values) is not torch.Tensor for values in own.values()):
        raise AttnscopeError("weights rounded to whole numbers cannot be drawn anew")
    with own_random_numbers(), quiet():
        torch.manual_seed(seed)
        other = _redrawn(model) if name == "initialised" else {key: _in_disorder(own[key]) for key in own}
    try:
        for key, parameter in model.named_parameters():
            parameter.data = other[key].to(own[key])  # not in place: graphs that hold the old values stay valid
        yield
    finally:
        for key, parameter in model.named_parameters():
            parameter.data = own[key]


def _redrawn(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    fresh = type(model)(copy.deepcopy(model.config))
    return {key: parameter.data for key, parameter in fresh.named_parameters()}


def _in_disorder(values: torch.Tensor) -> torch.Tensor:
    if values.ndim < 2:  # noqa: PLR2004
        return values
    order = torch.randperm(values.numel()).to(values.device)
    return values.flatten()[order].view_as(values)


def summed_up(own: xr.Dataset, controls: Mapping[str, xr.Dataset], documents: Sequence[str], seed: int) -> xr.Dataset:
    """Scores of all heads from those of windows; see `roles`."""
    names = [name for name in ROLES if name in own]
    cells = ("role", "layer", "head")
    columns: dict[str, list[np.ndarray]] = {}
    words = {
        "score": "Score, mean over windows",
        "low": "Lower end of its 95% interval",
        "high": "Upper end of its 95% interval",
        "windows_reached": "Share of the windows in which the score reaches the threshold",
        "equal": "Score of equal weights over what each query may see",
    }
    for name in names:
        scores = own[name].values
        kind = ROLES[name].probe
        units = list(units_of(documents)[0]) if kind == "text" else list(range(len(scores)))
        mean, (low, high) = scores.mean(0), interval(scores, units, seed=seed)
        share = np.full_like(mean, np.nan)
        if ROLES[name].threshold is not None:
            share = ROLES[name].reached(scores, own[EQUAL + name].values).mean(0)
        reached, equal = np.where(np.isnan(mean), np.nan, share), own[EQUAL + name].values.mean(0)
        for column, values in zip(words, (mean, low, high, reached, equal), strict=True):
            columns.setdefault(column, []).append(values)
    variables: dict[str, Any] = {
        name: (cells[:2] if name == "equal" else cells, np.stack(values), {"long_name": words[name], "units": "share"})
        for name, values in columns.items()
    }
    if controls:
        of_controls = [np.stack([control[name].values.mean(0) for name in names]) for control in controls.values()]
        words_of_controls = {"long_name": "Score with weights that know nothing", "units": "share"}
        variables["control_score"] = (("control", *cells), np.stack(of_controls), words_of_controls)
    thresholds = [np.nan if ROLES[name].threshold is None else ROLES[name].threshold for name in names]
    variables["threshold"] = ("role", np.array(thresholds, float), {"long_name": "Published threshold"})
    texts = {
        part: ("role", np.array([getattr(ROLES[name], part) for name in names], dtype=object))
        for part in ("title", "definition", "source", "probe")
    }
    made = xr.Dataset(variables, {"role": names, **{name: own[name] for name in own.coords}, **texts})
    return made.assign_coords(control=list(controls)) if controls else made
