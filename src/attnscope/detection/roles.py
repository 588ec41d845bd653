"""`roles`: the published roles of a model's heads, and the number expected by chance."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Hashable, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import astuple, dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr

from attnscope.capture.borrow import LoadedModel, quiet
from attnscope.capture.forward import forward
from attnscope.capture.notes import layer_coordinates
from attnscope.capture.verify import verify
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.capture.weights import embedding_within, is_packed
from attnscope.detection.probes import (
    Needle,
    Probe,
    expected_probe,
    left_out_note,
    needle_probe,
    needles_of,
    ordinary_tokens,
    repeated_probe,
    text_probe,
)
from attnscope.detection.role import CONTROLS, OF_SOUNDS, ROLES, Nearness
from attnscope.detection.sounds import SoundProbe, not_of_sounds, sites_of_sounds, sound_probe
from attnscope.head_names import heads_setting
from attnscope.kernels.engines import output_of
from attnscope.measure.quantities import EQUAL
from attnscope.measure.rows import evenly
from attnscope.opened import Opened
from attnscope.options import Reading
from attnscope.read.encoded import windows_of
from attnscope.read.windows import Window
from attnscope.report import registry
from attnscope.report.signature import short_hash
from attnscope.statistics.intervals import interval
from attnscope.statistics.units import units_of
from attnscope.store.run import Job, Work
from attnscope.support.checks import chosen
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell, no_progress
from attnscope.support.state import own_random_numbers

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from torch import Tensor
    from transformers import PreTrainedModel

    from attnscope.kernels.call import AttentionCall
    from attnscope.measure.sounds import SoundReader

    Told = Callable[[int], None]

_LONGEST, _TEXTS = 512, 32
_OWN = "model"
SHARED = "query_heads"  # of each layer: query heads that share one key-value head


def wanted_controls(names: Sequence[str] | str | None) -> list[str]:
    """The names of the controls that are wanted."""
    none = names is not None and (names == "none" or tuple(names) in {(), ("none",)})
    return [] if none else chosen("control", names, CONTROLS)


@dataclass(eq=False)
class Scoring:
    """Scores of roles of one model, from windows of texts, needles and controls."""

    command: str
    loaded: LoadedModel
    windows: Sequence[Window]  # of the texts
    reach: Nearness  # distances that count as near
    needles: list[Needle]
    settings: dict[str, Any]  # as in the signature
    tell: Tell
    #: Completes the scores of heads from those of windows.
    more: Callable[[xr.Dataset, xr.Dataset, list[str], Sequence[Probe]], xr.Dataset] | None = None
    heads: Sequence[tuple[int, int]] | None = None  # that are scored; None: all
    sounds: SoundReader | None = None  # in place of texts
    skipped: dict[str, str] = field(default_factory=dict[str, str])  # roles and controls without scores: the reason
    notes: dict[str, Any] = field(default_factory=dict[str, Any])  # on the texts of each probe
    done: int = 0  # windows, for progress

    @classmethod
    def of(
        cls,
        command: str,
        session: Opened,
        reading: Reading,
        names: Sequence[str],
        needles: list[Needle] | None,
        controls: Sequence[str],
        batch_size: int | None,
        kept: Sequence[tuple[int, int]] = (),
        heads: Sequence[tuple[int, int]] | None = None,
    ) -> Scoring:
        """The windows of a session's texts, and everything that the scores depend on."""
        loaded, longest = session.model, session.length(reading["window"])
        length, limit = longest if reading["window"] else min(_LONGEST, longest), reading["limit"] or _TEXTS
        windows = list(islice(windows_of(session.corpus, loaded.tokenizer, length=length, limit=limit), limit))
        reach = Nearness(kept=tuple(dict.fromkeys((*Nearness().kept, *kept))))
        settings: dict[str, Any] = {"roles": [*names], "controls": [*controls], "window": length, "limit": limit}
        settings["needles"] = None if needles is None else [astuple(needle) for needle in needles]
        settings |= {"seed": reading["seed"], "batch_size": batch_size, **heads_setting(heads)}
        settings |= registry.signed("role", names)
        asked = needles_of(None) if needles is None else needles
        tell = reading["progress"] or no_progress
        return cls(command, loaded, windows, reach, asked, settings, tell, heads=heads)

    @classmethod
    def of_sounds(
        cls,
        command: str,
        session: Opened,
        sounds: SoundReader,
        reading: Reading,
        names: Sequence[str],
        controls: Sequence[str],
        heads: Sequence[tuple[int, int]] | None = None,
    ) -> Scoring:
        """The same of sounds: a window is what the model reads at once."""
        limit = reading["limit"] or _TEXTS
        windows = [sounds.read([piece], [number]).windows[0] for number, piece in enumerate(sounds.items())]
        settings: dict[str, Any] = {"roles": [*names], "controls": [*controls], "limit": limit, "seed": reading["seed"]}
        settings |= {
            "needles": None,
            "batch_size": None,
            "window": max(map(len, windows)),
            "processor": (sounds.reader or {}).get("features"),
        }
        settings |= {"transcripts": None if sounds.texts is None else short_hash(sounds.texts), **heads_setting(heads)}
        tell = reading["progress"] or no_progress
        return cls(command, session.model, windows, Nearness(), [], settings, tell, heads=heads, sounds=sounds)

    @property
    def length(self) -> int:
        """Tokens of a window."""
        return self.settings["window"]

    def work(self) -> Work:
        """Passes over texts and over probes of as many tokens, of the model and of each control."""
        text = text_probe(self.windows, self.length, self.reach, self.settings["batch_size"])
        shapes = [(len(numbers), len(text.windows[numbers[0]])) for numbers in text.batches()]
        probes = {ROLES[name].probe for name in self.settings["roles"]} - {"needle"}
        controls = len(self.settings["controls"])
        # fresh weights are in single precision, next to those that a model in half precision takes from them
        copies = 3 if self.loaded.model.dtype.itemsize < 4 and "initialised" in self.settings["controls"] else 1  # noqa: PLR2004
        uncounted = "prompts with needles" if self.command == "roles" else "prompts with needles, effects and limits"
        return Work(shapes, passes=len(probes) * (1 + controls), copies=copies * bool(controls), uncounted=uncounted)

    def scores(self, job: Job) -> xr.Dataset:
        """Scores of all roles that the model can have, next to the controls; see `roles`."""
        if self.sounds is None:
            text = text_probe(self.windows, self.length, self.reach, self.settings["batch_size"])
            sites = sites_of(self.loaded.model, text)
        else:
            text, sites = sound_probe(self.sounds, self.windows, self.reach), sites_of_sounds(self.sounds)
            self.skipped |= not_of_sounds(self.settings["roles"])
        scored = [site for site in sites if self.heads is None or any(layer == site.index for layer, _ in self.heads)]
        self.skipped |= _undefined(scored, self.settings["roles"], text)
        probes = self._probes(text, {site.kind for site in scored})
        roles = [name for name in self.settings["roles"] if name not in self.skipped]
        if not roles:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.skipped.items())
            raise AttnscopeError(f"none of these roles can be scored in {self.loaded.name}: {reasons}")
        of_windows = job.made(_OWN, partial(self._measured, _OWN, sites, probes, roles))
        of_controls: dict[str, xr.Dataset] = {}
        for name in self.settings["controls"]:
            try:
                of_controls[name] = job.made(name, partial(self._measured, name, sites, probes, roles))
            except AttnscopeError as error:  # random weights may overflow where the model's do not
                self.skipped[f"{name} weights"] = str(error)
        lengths = [window.special.count(False) if self.sounds else len(window) for window in text.windows]
        self.notes |= {probe.kind: len(probe.windows) for probe in probes} | {"tokens": [min(lengths), max(lengths)]}
        left_out: Mapping[str, str] = {}
        if self.sounds is not None:
            self.notes["sounds"] = len(text.windows)
        elif text in probes:
            left_out = left_out_note(self.windows, text.windows, self.length)
        documents = [window.source for window in text.windows]
        # prompts of one needle are alike
        units = {"text": units_of(documents)[0], "needle": [one.hidden for probe in probes for one in probe.answers]}
        of_own = [probe for probe in probes if probe.kind not in {*units, "repeated"}]
        units |= {probe.kind: units_of([window.source for window in probe.windows])[0] for probe in of_own}
        summary = summed_up(roles, of_windows, of_controls, units, self.settings["seed"])
        summary = summary if self.more is None else self.more(summary, of_windows, documents, probes)
        return summary.assign_attrs(skipped=json.dumps(self.skipped), notes=json.dumps(self.notes), **left_out)

    def _probes(self, text: Probe, kinds: set[str]) -> list[Probe]:
        """The probes of all roles that are not skipped; roles whose probe cannot be made are skipped from here on.

        `kinds` are those of the layers.
        """
        settings, size = self.settings, self.settings["batch_size"]
        wanted = [ROLES[name] for name in settings["roles"] if name not in self.skipped]
        kinds_of_probes = {role.probe for role in wanted}
        probes = [text] if "text" in kinds_of_probes else []
        if "repeated" in kinds_of_probes:
            table: Any = embedding_within(self.loaded.model.get_input_embeddings())
            words = ordinary_tokens(self.loaded.tokenizer, self.windows, table.num_embeddings)
            try:
                probes.append(repeated_probe(self.windows[0], words, self.length, settings["seed"], size))
            except AttnscopeError as error:
                on_it = (name for name in settings["roles"] if ROLES[name].probe == "repeated")
                self.skipped |= dict.fromkeys(on_it, str(error)) | self.skipped
        if "needle" in kinds_of_probes:
            try:
                probes.append(_needles(self.loaded, text.windows, self.needles, self.length, self.notes))
            except AttnscopeError as error:
                if settings["needles"] is not None and "prompts" not in self.notes and _continues(self.loaded):
                    raise
                self.skipped["retrieval"] = str(error)
        for role in (role for role in wanted if role.expecting):
            sees_ahead = bool(kinds & {*role.layers} - {"causal"})
            probe = expected_probe(self.loaded, role, text.windows, self.length, size, sees_ahead=sees_ahead)
            if probe is None:
                self.skipped[role.name] = ROLES["next_token"].otherwise
            else:
                probes.append(probe)
        return probes

    def _measured(self, name: str, sites: Sequence[Site], probes: Sequence[Probe], roles: Sequence[str]) -> xr.Dataset:
        """Scores of windows, of the model with its own weights or with those of a control."""
        work = sum(len(probe.windows) for probe in probes) * (1 + len(self.settings["controls"]))

        def tell(windows: int) -> None:
            self.done += windows
            self.tell(Progress(self.command, self.done / work, {"windows": self.done}))

        model = self.loaded.model
        with nullcontext() if name == _OWN else control(model, name, self.settings["seed"]):
            return measured(model, sites, probes, roles, tell, with_equal=name == _OWN, heads=self.heads)


def _undefined(sites: Sequence[Site], names: Sequence[str], text: Probe) -> dict[str, str]:
    """Roles that these layers or windows cannot have, each with the reason."""
    kinds, longest = {site.kind for site in sites}, max(map(len, text.windows))
    short = f"windows of {longest} tokens hold no more than the first and latest ones"
    skipped = {name: short for name in names if longest <= ROLES[name].exceeds}
    lacking = [name for name in names if not kinds & {*ROLES[name].layers}]
    if not isinstance(text, SoundProbe):
        lacking += [name for name in names if name in OF_SOUNDS]
    return skipped | {name: ROLES[name].otherwise for name in lacking}


def _continues(loaded: LoadedModel) -> bool:
    model = loaded.model
    return not model.config.is_encoder_decoder and model.can_generate() and loaded.tokenizer is not None


def _needles(
    loaded: LoadedModel, windows: Sequence[Window], needles: list[Needle], length: int, notes: dict[str, Any]
) -> Probe:
    """Prompts with needles that the model answers."""
    if not _continues(loaded):
        raise AttnscopeError("the model does not continue texts, so no head can copy tokens")
    probe, notes["prompts"] = needle_probe(loaded, windows, needles, length)
    if probe is None:
        raise AttnscopeError(f"the model repeats the needle in 0 of {notes['prompts']} prompts")
    return probe


def sites_of(model: PreTrainedModel, probe: Probe) -> list[Site]:
    """Check the capture against the model's output, and list its attention calls."""
    return verify(model, probe.inputs(model, [0]), text=probe.windows[0].source, weights_suffice=True)


@torch.no_grad()
def measured(
    model: PreTrainedModel,
    sites: Sequence[Site],
    probes: Sequence[Probe],
    names: Sequence[str],
    tell: Told,
    *,
    with_equal: bool,
    heads: Sequence[tuple[int, int]] | None = None,
) -> xr.Dataset:
    """Score each window: ``(text | repeated | needle, layer, head)`` for each role, NaN where it is not defined."""
    variables: dict[str, Any] = {}
    for probe in probes:
        on_probe = [name for name in names if ROLES[name].probe == probe.kind]
        variables |= _on_probe(model, sites, probe, on_probe, tell, heads, with_equal=with_equal)
    scores = xr.Dataset(variables, layer_coordinates(sites))
    return scores.assign_coords(head=np.arange(scores.sizes["head"]))


def _on_probe(
    model: PreTrainedModel,
    sites: Sequence[Site],
    probe: Probe,
    names: Sequence[str],
    tell: Told,
    heads: Sequence[tuple[int, int]] | None,
    *,
    with_equal: bool,
) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """Scores ``(window, layer, head)``, and of uniform attention ``(window, layer)``."""
    shape = len(probe.windows), len(sites), max(site.heads for site in sites)
    scores = {name: np.full(shape, np.nan) for name in names}
    equal = {EQUAL + name: np.full(shape[1::-1], np.nan).T for name in names if with_equal}
    groups: dict[int, int] = {}
    rows = {site.index: row for row, site in enumerate(sites)}  # of sounds, not all layers
    numbers: list[int] = []

    def observe(site: Site, call: AttentionCall) -> Tensor:
        groups[site.index] = call.group
        wanted = [head for head in range(call.query.shape[1]) if heads is None or (site.index, head) in heads]
        here = [name for name in names if wanted and site.index in rows and site.kind in ROLES[name].layers]
        measurements = probe.measured(site, numbers, call) if here else None
        if measurements is None:
            return output_of(call)
        evens = probe.measured(site, numbers, evenly(call)) if with_equal else None
        for name in here:
            values = ROLES[name].score(measurements).cpu().numpy()
            scores[name][:, rows[site.index]][np.ix_(numbers, wanted)] = values[:, wanted]
            if evens is not None:
                equal[EQUAL + name][numbers, rows[site.index]] = ROLES[name].score(evens)[:, 0].cpu().numpy()
        return measurements.output

    for numbers in probe.batches():
        with watching(model, observe, weights_suffice=True):
            inputs = probe.inputs(model, numbers)
            forward(model, inputs, lambda row: probe.windows[numbers[row]].source, with_head=False)  # noqa: B023
        tell(len(numbers))
    dims, shared = (probe.kind, "layer", "head"), np.array([groups[site.index] for site in sites])
    by_role = {name: (dims[: values.ndim], values) for name, values in (scores | equal).items()}
    return {SHARED: (("layer",), shared), **by_role}


@contextmanager
def control(model: PreTrainedModel, name: str, seed: int) -> Generator[None]:
    """Give a model untrained or shuffled weights inside this context; its own are restored afterwards."""
    if any(map(is_packed, model.modules())):
        raise AttnscopeError("quantised weights cannot be initialised or shuffled")
    weights = {key: parameter.data for key, parameter in model.named_parameters()}
    if any(values.is_meta for values in weights.values()):
        raise AttnscopeError("offloaded weights cannot be initialised or shuffled")
    with own_random_numbers(), quiet():
        torch.manual_seed(seed)
        fresh = type(model)(copy.deepcopy(model.config)) if name == "initialised" else None
        other = {key: _in_disorder(values) for key, values in weights.items()} if fresh is None else fresh.state_dict()
    if not weights.keys() <= other.keys():
        raise AttnscopeError("adapted weights cannot be initialised: merge the adapter (merge_and_unload)")
    try:
        for key, parameter in model.named_parameters():
            parameter.data = other[key].to(weights[key])  # not in place: graphs that hold the old values stay valid
        yield
    finally:
        for key, parameter in model.named_parameters():
            parameter.data = weights[key]


def _in_disorder(values: torch.Tensor) -> torch.Tensor:
    if values.ndim < 2:  # noqa: PLR2004
        return values
    return values.flatten()[torch.randperm(values.numel()).to(values.device)].view_as(values)


def summed_up(
    names: Sequence[str],
    of_windows: xr.Dataset,
    controls: Mapping[str, xr.Dataset],
    units: Mapping[str, Sequence[Hashable]],
    seed: int,
) -> xr.Dataset:
    """Scores of all heads from the scores of windows, with the units of each probe; see `roles`."""
    cells = ("role", "layer", "head")
    columns: list[tuple[np.ndarray, ...]] = []  # of each role
    for role in map(ROLES.__getitem__, names):
        of_role, even = of_windows[role.name], of_windows[EQUAL + role.name]
        scores = of_role.values
        low, high = interval(scores, units.get(role.probe, range(len(scores))), seed=seed)
        hits = of_role.copy(data=role.reached(scores, even.values).astype(float)).where(of_role.notnull())
        mean, reached, equal = (one.mean(role.probe).values for one in (of_role, hits, even))  # of those that exist
        reached = np.full_like(mean, np.nan) if role.threshold is None else reached
        columns.append((mean, low, high, reached, equal))
    words = {
        "score": "Score, mean over windows",
        "low": "Lower end of its 95% interval",
        "high": "Upper end of its 95% interval",
        "windows_reached": "Share of the windows in which the score reaches the threshold",
        "equal": "Score of uniform attention over visible tokens",
    }
    variables: dict[str, Any] = {}
    for (name, long_name), values in zip(words.items(), map(np.stack, zip(*columns, strict=True)), strict=True):
        variables[name] = cells[: values.ndim], values, {"long_name": long_name, "units": "share"}
    if controls:
        each = [[scores[name].mean(ROLES[name].probe).values for name in names] for scores in controls.values()]
        about = {"long_name": "Score with untrained weights", "units": "share"}
        variables["control_score"] = ("control", *cells), np.array(each), about
    counts = [int(of_windows[name].notnull().any(("layer", "head")).sum()) for name in names]
    variables["windows"] = ("role", np.array(counts), {"long_name": "Windows with a score", "units": "1"})
    thresholds = np.array([ROLES[name].threshold for name in names], float)  # NaN where none is published
    variables["threshold"] = ("role", thresholds, {"long_name": "Published threshold"})
    texts = {
        part: ("role", np.array([getattr(ROLES[name], part) for name in names], dtype=object))
        for part in ("title", "definition", "source", "probe")
    }
    summary = xr.Dataset(variables, {"role": names, **{name: of_windows[name] for name in of_windows.coords}, **texts})
    return summary.assign_coords(control=list(controls)) if controls else summary
