"""`explain`: why does a head look where it looks? Every analysis that a model admits, and a verdict for each head."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from jaxtyping import Float
from threadpoolctl import threadpool_limits

from attnscope.bundled import MODEL
from attnscope.capture import LoadedModel, borrowing, decoder_note, decoder_start, load_model
from attnscope.checks import check_seed, check_whole
from attnscope.corpus import (
    Corpus,
    Sources,
    TargetTokenizer,
    Texts,
    Window,
    shifted,
    texts_and_targets,
    windows_of,
)
from attnscope.errors import AttnscopeError
from attnscope.mechanism import _over_heads as heads
from attnscope.mechanism._ranking import best_heads
from attnscope.mechanism.arrays import in_band
from attnscope.mechanism.evidence import Evidence, gather, position_scheme, position_table
from attnscope.mechanism.passes import (
    bias_effect,
    interventions,
    position_content,
    rotation_effect,
    scheme_kernel,
)
from attnscope.reproduction.yamamoto2023 import (
    PAPER_LENGTH,
    Case,
    Relearning,
    check_published,
    published_name,
    table_of,
)
from attnscope.reproduction.yamamoto2023 import _single_heads as paper_figures
from attnscope.statistics import window_length
from attnscope.store import RunFolder, explained, package_versions, tokenizer_sha256

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONTENT_TEXTS = 8  # texts of the position-and-content account, which takes several passes
DEFAULT_TEXTS = 100
CONTROLLED = 4  # heads whose shift is held against controls: the first in the ranking
_CROSSED = (
    "its queries and keys have positions in different texts; see where its heads look with scan and align"
)
_FORMS = {
    "rope": "queries and keys turn with their positions, so that no one matrix gives the scores: see scheme_kernel"
}
_OF_ARRAYS = frozenset(
    [
        "position_spectrum",
        "position_pca",
        "position_cca",
        "waves",
        "spectra",
        "cross_spectrum",
        "phase_map",
        "cross_correlation",
        "verdict",
        "controls",
    ]
)


@dataclass(frozen=True)
class Step:
    """What `explain` tells while it works: which analysis, and the share of all work before it (0..1)."""

    name: str
    share: float


@borrowing
def explain(
    model: str | Path | PreTrainedModel | None = None,
    texts: Sources = None,
    *,
    targets: Sources = None,
    tokenizer: Any = None,
    out: str | Path | Callable[[dict[str, Any]], Path] | None = None,
    repair: bool = False,
    window: int | None = None,
    limit: int = DEFAULT_TEXTS,
    band: int = 10,
    frequencies: tuple[int, int] | None = None,
    completion: str = "minimal",
    also: Sequence[str | Path | PreTrainedModel] = (),
    layer: int | None = None,
    head: int | None = None,
    intervene: bool = False,
    intervention_texts: int = 8,
    paper: bool = False,
    published_as: str | None = None,
    relearn: int | None = None,
    seed: int = 0,
    field: str | None = None,
    by_line: bool = False,
    device: str | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    progress: Callable[[Step], None] | None = None,
) -> xr.DataTree:
    """Explain where the heads of a model look by what they are made of.

    Parameters
    ----------
    model, texts, tokenizer, field, by_line, device, dtype, revision, trust_remote_code
        See `attnscope.scan`.
    targets
        Text in the target language, for an encoder-decoder. It is cut into full windows like `texts`, and the decoder
        reads window i of it, after its start token, beside window i of the text; as many as both have are read. Without
        it the decoder reads what the encoder reads.
    out
        Run folder, or a function that names it from the signature. Each analysis is written when it is done; a
        run that was stopped does the rest.
    repair
        Whether to make again what was damaged in a finished run; else such a run is refused.
    window
        Tokens of a window; all are equally long, shorter ones are left out. By default what the model takes.
    limit
        Windows.
    band
        Largest offset of the profiles.
    frequencies
        First and last frequency, cycles per window, of the band in which a shift is read off.
    completion
        How the rotation R is completed for the phase maps: see `phase_map`.
    also
        Other models, whose position tables are analysed beside this one's. They read no text.
    layer, head
        Will be shown later. They change no number: what does not exist is refused before the texts are read.
    intervene
        Also change words and positions and see what becomes of each head, on `intervention_texts` windows.
    paper
        Also the papers' figures and their published numbers beside this model's; windows are of 512 tokens at most.
    published_as
        Name of the published model whose weights these are, ``roberta-base`` or ``gpt2``, where a folder cannot tell.
        By default what the hub says. Published numbers are held against that model alone.
    relearn
        Steps to learn the position table anew on texts with unknown tokens between (`relearn_positions`); with
        `out`, the model is saved in the folder ``relearned`` of the run.
    seed
        Of what is random.
    progress
        Called before each analysis.

    Returns
    -------
    xarray.DataTree
        A node for each analysis that the model admits: ``forms`` (of the scores, by layer), ``position_spectrum``,
        ``position_pca``, ``position_cca``, ``waves``, ``spectra``, ``cross_spectrum``, ``phase_map``,
        ``cross_correlation``, ``position_content``, ``scheme_kernel``, ``rotation_effect``, ``bias_effect``,
        ``interventions``, ``verdict``, ``controls`` (of the few clearest heads), ``also/0``, ``also/1``, ...
        (spectrum and components of other models' tables); ``relearned``; with `paper`, ``figure_1``, ``figure_2``,
        ``figure_4``, ``figure_6``, ``figure_7`` (`attnscope.reproduction.yamamoto2023`) and ``paper``, the table of
        published numbers.
        The attribute ``skipped`` says, as JSON, which are not defined here and why; ``decoder`` says what a decoder
        beside an encoder read.

    Raises
    ------
    AttnscopeError
        For anything that the caller can mend: see the message.

    Examples
    --------
    >>> found = explain(limit=4)
    >>> bool(found["verdict"].agree.sel(layer=0).any())
    True
    """
    corpus, target = texts_and_targets(texts, targets, field=field, by_line=by_line)
    check_whole(
        1, limit=limit, window=window, band=band, intervention_texts=intervention_texts, relearn=relearn
    )
    check_seed(seed)
    check_published(published_as)
    if paper and target is not None:
        raise AttnscopeError(
            "the papers' figures and numbers are of models that read one text: leave out either paper (--paper) or the "
            "target (--target)"
        )
    loaded = load_model(
        MODEL if model is None else model,
        tokenizer=tokenizer,
        revision=revision,
        device=device,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
    )
    length = window_length(loaded, window)
    if paper:
        position_table(loaded.model)  # or an error that says what the model has instead
        length = length if window else min(length, PAPER_LENGTH)
    _check_settings(length, band, frequencies)
    others = [OtherTable.of(one, trust_remote_code=trust_remote_code) for one in also]
    relearning = None if relearn is None else Relearning(loaded, corpus, steps=relearn, seed=seed)
    windows = equal_windows(corpus, loaded, length, limit)
    if target is not None:
        windows = with_targets(windows, target, loaded, length)
    signature = {
        "command": "explain",
        "model": {"name": loaded.name, "class": type(loaded.model).__name__, **loaded.identity},
        "tokenizer": {"sha256": tokenizer_sha256(loaded.tokenizer)},
        "corpus": {"sha256": corpus.sha256()},
        **({} if target is None else {"target": {"sha256": target.sha256()}}),
        "settings": {
            "window": length,
            "windows": len(windows),
            "band": band,
            "frequencies": None if frequencies is None else list(frequencies),
            "completion": completion,
            "intervene": intervention_texts if intervene else 0,
            "relearn": relearn or 0,
            **({} if published_as is None else {"published_as": published_as}),
            "seed": seed,
            "device": loaded.model.device.type,
            "dtype": str(loaded.model.dtype).removeprefix("torch."),
        },
        "versions": package_versions(),
    }
    job = Analyses(
        loaded,
        windows,
        band=band,
        frequencies=frequencies,
        completion=completion,
        layer=layer,
        head=head,
        intervention_texts=intervention_texts if intervene else 0,
        paper=paper,
        published_as=published_as or published_name(loaded.name, loaded.identity),
        relearning=relearning,
        seed=seed,
        progress=progress,
    )
    attributes = {"signature": json.dumps(signature, sort_keys=True), "model": loaded.name}
    attributes |= decoder_note(loaded.model, with_target=target is not None)
    if out is None:
        found, skipped = job.all(Kept(None))
        found |= beside(others, Kept(None))
    else:
        with RunFolder(Path(out(signature) if callable(out) else out), signature, repair=repair) as run:
            found, skipped = job.all(Kept(run))
            found |= beside(others, Kept(run))
    tree = xr.DataTree.from_dict(found)
    tree.attrs = attributes | {"skipped": json.dumps(skipped)}
    if out is not None:
        tree.attrs["run"] = str(run.path)  # pyright: ignore[reportPossiblyUnboundVariable]
    return tree


@dataclass(frozen=True)
class OtherTable:
    """The position table of a model that is only compared by it."""

    name: str
    identity: dict[str, str]
    rows: Float[np.ndarray, "position column"]

    @classmethod
    def of(cls, source: str | Path | PreTrainedModel, **load: Any) -> OtherTable:
        """Load the model and keep its table."""
        loaded = load_model(source, need_tokenizer=False, device="cpu", **load)
        return cls(loaded.name, loaded.identity, position_table(loaded.model).rows)


def beside(others: Sequence[OtherTable], kept: Kept) -> dict[str, xr.Dataset]:
    """Analyses of other models' tables by the name of their node.

    They are kept by what their weights are, not in the order of their nodes: a run may be asked again with others.
    """
    found: dict[str, xr.Dataset] = {}
    for number, other in enumerate(others):
        identity = json.dumps(other.identity, sort_keys=True)
        name = f"also-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
        dataset = kept.get(name, lambda other=other: heads.bare_table(other.rows))
        found[f"also/{number}"] = dataset.assign_attrs(model=other.name, identity=identity)
    return found


class Kept:
    """Analyses that a run folder already holds are read, others made and written."""

    def __init__(self, run: RunFolder | None) -> None:
        self.run = run

    def get(self, name: str, make: Callable[[], xr.Dataset]) -> xr.Dataset:
        """The analysis of that name, made if it is not kept yet."""
        if self.run is None:
            return make()
        kept = self.run.load(name)
        if kept is None:
            self.run.save(name, made := make())
            kept = self.run.load(name)
        return made if kept is None else kept  # pyright: ignore[reportPossiblyUnboundVariable]

    def all(self, *, paper: bool) -> tuple[dict[str, xr.Dataset], dict[str, str]] | None:
        """What `finish` was told, if the run went through with the same choice before: no text is read again."""
        told = None if self.run is None else self.run.state.get("analyses")
        if self.run is None or told is None or told["paper"] != paper:
            return None
        found = {name: self.run.load(name) for name in told["names"]}
        whole = {name: one for name, one in found.items() if one is not None}
        return (whole, dict(told["skipped"])) if len(whole) == len(found) else None

    def finish(self, names: list[str], skipped: dict[str, str], *, paper: bool) -> None:
        """Note which analyses there are, and why there are not more."""
        if self.run is not None:
            told = {
                "paper": paper,
                "names": names,
                "skipped": list(skipped.items()),
            }  # in the order of the page
            self.run.finish(analyses=told)


class Analyses:
    """The analyses in their order."""

    def __init__(
        self,
        loaded: LoadedModel,
        windows: list[Window],
        *,
        band: int = 10,
        frequencies: tuple[int, int] | None = None,
        completion: str = "minimal",
        layer: int | None = None,
        head: int | None = None,
        intervention_texts: int = 0,
        paper: bool = False,
        published_as: str | None = None,
        relearning: Relearning | None = None,
        seed: int = 0,
        progress: Callable[[Step], None] | None = None,
    ) -> None:
        self.model = loaded.model
        self.windows, self.band, self.frequencies = windows, band, frequencies
        self.completion, self.seed = completion, seed
        self.layer, self.head = layer, head
        self.intervention_texts = intervention_texts
        self.paper, self.published_as, self.relearning = paper, published_as, relearning
        self.progress = progress or (lambda _: None)
        self.share = 0.0

    def all(self, kept: Kept) -> tuple[dict[str, xr.Dataset], dict[str, str]]:
        """Every analysis that is defined, by name, and why the others are not."""
        finished = kept.all(paper=self.paper)
        if finished is not None:
            return finished
        evidence = gather(
            self.model,
            self.windows,
            band=self.band,
            layer=self.layer,
            head=self.head,
            progress=lambda done, total: self.progress(Step("reading the texts", 0.6 * done / total)),
        )
        found = {"forms": kept.get("forms", lambda: heads.form_table(evidence))}
        skipped = {"cross_attention": _CROSSED} if evidence.crosses else {}
        plan = self._plan(evidence, found)
        if self.relearning is not None:
            plan["relearned"] = self._relearn(self.relearning, kept)
        if self.paper:
            plan |= self._paper_plan(
                Case(self.model, self.windows, evidence, found, self.seed), skipped, self.published_as
            )
        for number, (name, make) in enumerate(plan.items()):
            self.share = 0.6 + 0.4 * number / len(plan)
            self.progress(Step(name.replace("_", " "), self.share))
            # NumPy's threads and PyTorch's wait for each other by spinning; what is small enough takes one
            threads = threadpool_limits(1, "blas") if name in _OF_ARRAYS else nullcontext()
            try:
                with threads:
                    found[name] = kept.get(name, make)
            except _NotDefined as reason:
                skipped[name] = str(reason)
        if "scheme_kernel" in found:
            skipped.pop("verdict", None)  # the scheme's verdict stands there
        kept.finish(list(found), skipped, paper=self.paper)
        self.progress(Step("done", 1.0))
        return found, skipped

    def _plan(self, evidence: Evidence, found: dict[str, xr.Dataset]) -> dict[str, Callable[[], xr.Dataset]]:
        with_table = _if(bool(evidence.tables), f"{type(self.model).__name__}: {position_scheme(self.model)}")
        first = evidence.layers[0].projections
        bilinear = _if(
            bool(evidence.bilinear),
            first.reason
            or _FORMS.get(first.form, f"scores of the form {first.form!r} are not bilinear in X"),
        )
        rotates = any(layer.projections.rotation is not None for layer in evidence.layers)
        biases = any(layer.has_bias for layer in evidence.layers)
        turned = _if(rotates, "queries and keys are not turned by positions")
        relative = _if(
            rotates or biases, "queries and keys are not turned by positions, and no bias is added"
        )
        biased = _if(biases, "no bias is added to the scores")
        texts = self.windows[:CONTENT_TEXTS]
        plan: dict[str, Callable[[], xr.Dataset]] = {
            "position_spectrum": with_table(lambda: heads.table_spectra(evidence)),
            "position_pca": with_table(lambda: heads.table_components(evidence)),
            "position_cca": with_table(lambda: heads.correlations_by_layer(evidence)),
            "waves": bilinear(lambda: heads.waves(evidence, seed=self.seed)),
            "spectra": bilinear(lambda: heads.spectra_by_layer(evidence)),
            "cross_spectrum": bilinear(lambda: heads.cross_spectra(evidence, band=self.frequencies)),
            "phase_map": bilinear(
                lambda: heads.phase_maps(
                    evidence, completion=self.completion, band=self.frequencies, seed=self.seed
                )
            ),
            "cross_correlation": bilinear(lambda: heads.cross_correlations(evidence)),
            "position_content": lambda: position_content(self.model, texts, band=self.band, seed=self.seed),
            "scheme_kernel": relative(
                lambda: scheme_kernel(self.model, texts, band=self.band, seed=self.seed)
            ),
            "rotation_effect": turned(
                lambda: rotation_effect(self.model, texts, band=self.band, seed=self.seed)
            ),
            "bias_effect": biased(lambda: bias_effect(self.model, texts, band=self.band, seed=self.seed)),
            "verdict": lambda: heads.verdict(
                evidence,
                found.get("cross_spectrum"),
                found.get("cross_correlation"),
                found.get("position_content"),
            ),
            "controls": bilinear(lambda: self._controls(evidence, found["verdict"])),
        }
        if self.intervention_texts:
            plan["interventions"] = with_table(
                lambda: interventions(
                    self.model, self.windows[: self.intervention_texts], band=self.band, seed=self.seed
                )
            )
        return plan

    def _controls(self, evidence: Evidence, verdict: xr.Dataset) -> xr.Dataset:
        tree = xr.DataTree.from_dict({"verdict": verdict})
        shifted = np.isfinite(verdict.offset_of_spectrum)
        places = [
            place for place in best_heads(tree, count=None) if shifted.sel(layer=place[0], head=place[1])
        ]
        if not places:
            raise _NotDefined("the scores of no head favour one offset beyond what random phases would")
        return heads.controls(evidence, places[:CONTROLLED], band=self.frequencies, seed=self.seed)

    def _relearn(self, relearning: Relearning, kept: Kept) -> Callable[[], xr.Dataset]:
        def tell(done: int, steps: int) -> None:
            self.progress(Step(f"positions learned anew, step {done} of {steps}", self.share))

        def make() -> xr.Dataset:
            model, found = relearning.run(band=self.band, progress=tell)
            if kept.run is not None:
                with (
                    explained("write the relearned model", "Free some room and give the same command again"),
                    kept.run.replacing("relearned/") as new,
                ):
                    relearning.save(model, new / "relearned")
            return found

        return make

    @staticmethod
    def _paper_plan(
        case: Case, skipped: dict[str, str], published_as: str | None
    ) -> dict[str, Callable[[], xr.Dataset]]:
        """The papers' figures of single heads, and the table of published numbers."""
        shown = paper_figures.shown_heads(case)
        note = paper_figures.stand_ins(case, shown)
        if note:
            skipped["heads_of_the_papers"] = note
        of_heads = _if(bool(shown), "no head leans to a side")
        bilinear = _if(
            any(one.layer.projections.form == "bilinear" for one in shown),
            "no head that leans to a side has scores that are bilinear in X",
        )
        causal = _if(
            any(one.layer.site.kind == "causal" for one in shown), "it is of causal heads; the model has none"
        )
        return {
            "figure_1": lambda: case.clusters,
            "figure_2": of_heads(lambda: paper_figures.maps(case, shown)),
            "figure_4": bilinear(lambda: paper_figures.series(case, shown)),
            "figure_6": bilinear(lambda: paper_figures.phases(case, shown)),
            "figure_7": bilinear(lambda: paper_figures.correlations(case, shown)),
            "figure_14": causal(lambda: paper_figures.scores(case, shown)),
            "figure_15": causal(lambda: case.score_clusters),
            "paper": lambda: table_of(case, published_as),
        }


class _NotDefined(Exception):  # noqa: N818 says what it is
    """An analysis that this model does not admit."""


def _if(condition: bool, reason: str) -> Callable[[Callable[[], xr.Dataset]], Callable[[], xr.Dataset]]:
    def guard(make: Callable[[], xr.Dataset]) -> Callable[[], xr.Dataset]:
        def guarded() -> xr.Dataset:
            if not condition:
                raise _NotDefined(reason)
            return make()

        return guarded

    return guard


def _check_settings(length: int, band: int, frequencies: tuple[int, int] | None) -> None:
    """What an analysis would refuse only after all texts were read."""
    if not 1 <= band < length:
        raise AttnscopeError(
            f"the band is {band}; in windows of {length} tokens the largest offset is 1 to {length - 1}"
        )
    if frequencies is not None and not 1 <= frequencies[0] <= frequencies[1] <= length // 2:
        raise AttnscopeError(
            f"frequencies (--frequencies) are {frequencies[0]} to {frequencies[1]}; windows of {length} tokens have 1 "
            f"to {length // 2} cycles"
        )
    in_band(length, frequencies)


def with_targets(windows: list[Window], target: Corpus, loaded: LoadedModel, length: int) -> list[Window]:
    """Full windows of the target beside those of the text, as the decoder reads them; as many as both have."""
    start = decoder_start(loaded.model)
    said = equal_windows(target, loaded, length, len(windows), target=True)
    return [
        replace(window, target=shifted(one, loaded.tokenizer, start))
        for window, one in zip(windows, said, strict=False)
    ]


def equal_windows(
    corpus: Texts, loaded: LoadedModel, length: int, limit: int, *, target: bool = False
) -> list[Window]:
    """The windows that are full; if fewer than two are, an error that says how long the longest is."""
    whole: list[Window] = []
    longest = 0
    tokenizer = TargetTokenizer(loaded.tokenizer) if target else loaded.tokenizer
    for window in windows_of(corpus, tokenizer, length=length):
        longest = max(longest, len(window))
        if len(window) == length:
            whole.append(window)
        if len(whole) == limit:
            break
    if len(whole) < 2:  # noqa: PLR2004
        raise AttnscopeError(
            f"found {len(whole)} full window{'s' * (len(whole) != 1)} of {length} tokens{' in the target' * target} "
            f"(the longest has {longest}); "
            "expected 2 or more, to tell position from text: give more text, or a smaller --window"
        )
    return whole
