"""`roles`: which published roles the heads of a model have, and how many would have them by chance."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
import xarray as xr

from attnscope.bundled import MODEL
from attnscope.capture.borrow import preserve_model_state
from attnscope.capture.forward import forward
from attnscope.capture.load import load_model
from attnscope.capture.loaded import LoadedModel
from attnscope.capture.modalities import reject_modalities
from attnscope.capture.notes import layer_coordinates
from attnscope.capture.placement import device_of
from attnscope.capture.reading import Reading, loading
from attnscope.capture.signature import signature_of
from attnscope.capture.verify import verify
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.detection.needles import Needle, needle_probe, needles_of
from attnscope.detection.role import (
    ROLES,
    Probe,
    choose_roles,
    left_out_note,
    ordinary_tokens,
    repeated_probe,
    text_probe,
)
from attnscope.detection.role_controls import choose_controls, control, summed_up
from attnscope.detection.seen import Nearness, equal_call
from attnscope.kernels.engines import output_of
from attnscope.measure.observer import WindowBatch
from attnscope.measure.quantities import EQUAL
from attnscope.measure.windows import beyond_note, window_length
from attnscope.read.encoded import Sources, texts_of, windows_of
from attnscope.read.windows import Window
from attnscope.store.arrays import padded_heads
from attnscope.store.files import local_out
from attnscope.store.runs import RunFolder
from attnscope.support.arguments import Count, validated
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell, no_progress

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from attnscope.capture.load import Model
    from attnscope.detection.needles import Needles
    from attnscope.detection.role import Probe
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
        objects; see `attnscope.detection.needles.needles_of`. By default three sentences of ours, in English.
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
    job = _Job(
        loaded,
        windows,
        names,
        chosen,
        hidden,
        needles is not None,
        length,
        batch_size,
        seed,
        reading["progress"] or no_progress,
    )
    told = {"signature": signature.to_json(), "model": loaded.name, **beyond_note(loaded, length)}
    if out is None:
        return job.result(None).assign_attrs(told)
    with RunFolder(Path(out(signature) if callable(out) else out), signature, repair=reading["repair"]) as run:
        if not run.complete:
            run.save(_PART, job.result(run).assign_attrs(told))
            run.finish(parts=[_PART])
        return load_roles(run)


@validated
def load_roles(run: RunFolder) -> xr.Dataset:
    """What `roles` returned, from the folder of a finished run."""
    stored = run.load(_PART)
    if stored is None:
        raise AttnscopeError(f"{run.path} has no roles: give the same command again, which makes them anew")
    return stored.assign_attrs(run=str(run.path))


class _Job:
    """What one call of `roles` measures: see there."""

    def __init__(
        self,
        loaded: LoadedModel,
        windows: list[Window],
        names: tuple[str, ...],
        controls: tuple[str, ...],
        needles: list[Needle],
        asked_needles: bool,
        length: int,
        batch_size: int | None,
        seed: int,
        tell: Tell,
    ) -> None:
        self.loaded, self.windows, self.controls, self.needles = loaded, windows, controls, needles
        self.asked_needles = asked_needles
        self.length, self.batch_size, self.seed, self.tell = length, batch_size, seed, tell
        self.skipped: dict[str, str] = {}
        self.notes: dict[str, Any] = {}
        reach = Nearness()
        text = text_probe(windows, length, reach, batch_size)
        self.text = text
        self.sites = sites_of(loaded.model, text)
        kinds = {site.kind for site in self.sites}
        for name in names:
            if not kinds & set(ROLES[name].layers):
                self.skipped[name] = ROLES[name].otherwise
        longest = max(map(len, text.windows))
        if "streaming" in names and longest <= reach.sinks + reach.recent:
            self.skipped.setdefault(
                "streaming", f"windows of {longest} tokens hold no more than the first and latest ones"
            )
        self.names = [name for name in names if name not in self.skipped]

    def result(self, run: RunFolder | None) -> xr.Dataset:
        """Measure the model and its controls; those that the run folder holds are read."""
        probes = self._probes()
        names = [name for name in self.names if name not in self.skipped]
        if not names:
            raise AttnscopeError(
                f"none of these roles can be looked for in {self.loaded.name}: "
                + "; ".join(f"{name}: {reason}" for name, reason in self.skipped.items())
            )
        work = sum(len(probe.windows) for probe in probes) * (1 + len(self.controls))
        done = 0

        def tell(windows: int) -> None:
            nonlocal done
            done += windows
            self.tell(Progress("roles", done / work, {"windows": done}))

        def of_model(name: str) -> xr.Dataset:
            stored = None if run is None else run.load(name)
            if stored is not None:
                return stored
            with nullcontext() if name == _OWN else control(self.loaded.model, name, self.seed):
                made = measured(self.loaded.model, self.sites, probes, names, tell, with_equal=name == _OWN)
            if run is not None:
                run.save(name, made)
            return made

        own = of_model(_OWN)
        controls: dict[str, xr.Dataset] = {}
        for name in self.controls:
            try:
                controls[name] = of_model(name)
            except AttnscopeError as error:  # such weights may overflow where those of the model do not
                self.skipped[f"{name} weights"] = str(error)
        documents = [window.source for window in self.text.windows]
        made = summed_up(own, controls, documents, self.seed)
        lengths = [len(window) for window in self.text.windows]
        self.notes |= {probe.kind: len(probe.windows) for probe in probes} | {"tokens": [min(lengths), max(lengths)]}
        read = any(probe is self.text for probe in probes)
        left_out = left_out_note(self.windows, self.text.windows, self.length) if read else {}
        return made.assign_attrs(skipped=json.dumps(self.skipped), notes=json.dumps(self.notes), **left_out)

    def _probes(self) -> list[Probe]:
        """What is read for the roles that are asked for."""
        wanted = {ROLES[name].probe for name in self.names}
        probes = [self.text] if "text" in wanted else []
        if "repeated" in wanted:
            table: Any = self.loaded.model.get_input_embeddings()
            words = ordinary_tokens(self.loaded.tokenizer, self.windows, table.weight.shape[0])
            try:
                twice = repeated_probe(self.windows[0], words, self.length, self.seed, self.batch_size)
            except AttnscopeError as error:
                self.skipped |= {name: str(error) for name in self.names if ROLES[name].probe == "repeated"}
            else:
                probes.append(twice)
        if "needle" in wanted:
            hidden, reason = self._hidden()
            if hidden is None:
                self.skipped["retrieval"] = reason
            else:
                probes.append(hidden)
        return probes

    def _hidden(self) -> tuple[Probe | None, str]:
        """Prompts with needles that the model answers; or why there are none."""
        model = self.loaded.model
        if model.config.is_encoder_decoder or not model.can_generate() or self.loaded.tokenizer is None:
            return None, "the model does not go on with a text: no head that says tokens"
        try:
            hidden, prompts = needle_probe(self.loaded, self.text.windows, self.needles, self.length)
        except AttnscopeError as error:
            if self.asked_needles:
                raise
            return None, str(error)
        self.notes["prompts"] = prompts
        return hidden, f"the model gives the needle back in 0 of {prompts} prompts"


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
    kept: dict[str, dict[int, list[tuple[Sequence[int], np.ndarray]]]] = field(default_factory=dict)
    heads: dict[int, int] = field(default_factory=dict)

    def __call__(self, site: Site, call: AttentionCall) -> Tensor:
        self.heads[site.index] = call.query.shape[1]
        names = [name for name in self.names if site.kind in ROLES[name].layers]
        tokens = len(self.probe.windows[self.numbers[0]])
        if not names or call.query.shape[2] != tokens or call.key.shape[2] != tokens:
            return output_of(call)  # the layer has other places than tokens
        seen = self.probe.look(self.numbers, call)
        self._keep(site, names, seen, "")
        if self.with_equal:
            self._keep(site, names, self.probe.look(self.numbers, equal_call(call)), EQUAL)
        return seen.output

    def name_of(self, text: int) -> str:
        """What to call a text of the batch."""
        return self.probe.windows[self.numbers[text]].source

    def _keep(self, site: Site, names: Sequence[str], seen: Any, start: str) -> None:
        for name in names:
            score = ROLES[name].score(seen).cpu().numpy()
            layers = self.kept.setdefault(start + name, {})
            layers.setdefault(site.index, []).append((self.numbers, score[:, 0] if start else score))

    def scores(self, sites: Sequence[Site]) -> dict[str, np.ndarray]:
        """``(window, layer, head)``, and of equal weights ``(window, layer)``."""
        stacked: dict[str, np.ndarray] = {}
        starts = ("", EQUAL) if self.with_equal else ("",)
        for name in (start + role for role in self.names for start in starts):
            of_layers = [self._of_layer(name, site) for site in sites]
            together = np.stack(of_layers) if name.startswith(EQUAL) else padded_heads(of_layers, axis=1)
            stacked[name] = np.moveaxis(together, 0, 1)
        return stacked

    def _of_layer(self, name: str, site: Site) -> np.ndarray:
        windows = len(self.probe.windows)
        shape = (windows,) if name.startswith(EQUAL) else (windows, self.heads[site.index])
        whole = np.full(shape, np.nan)
        for numbers, score in self.kept.get(name, {}).get(site.index, []):
            whole[list(numbers)] = score
        return whole


def _inputs(model: PreTrainedModel, probe: Probe, numbers: Sequence[int]) -> dict[str, Tensor]:
    windows = [probe.windows[number] for number in numbers]
    return WindowBatch.of(windows, 0, device_of(model)).inputs(model)
