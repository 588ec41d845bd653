"""A model under study: its texts and what is read from it, each thing once, for all analyses."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from jaxtyping import Float
from threadpoolctl import threadpool_limits
from transformers import PreTrainedModel

from attnscope._arguments import typed
from attnscope.capture import LoadedModel, Tokenizer, borrowed, decoder_start, load_model
from attnscope.checks import check_whole
from attnscope.corpus import EncodedTexts, TargetTokenizer, shifted, texts_and_targets, windows_of
from attnscope.errors import AttnscopeError
from attnscope.mechanism._not_defined import NotDefinedError
from attnscope.mechanism._stored import StoredAnalyses
from attnscope.mechanism.arrays import Completion
from attnscope.mechanism.evidence import (
    Evidence,
    Gathering,
    LayerSums,
    PositionTable,
    Windows,
    gather,
    labelled_sums,
    position_table,
    position_tables,
)
from attnscope.progress import Progress, tell_nobody
from attnscope.statistics import window_length

if TYPE_CHECKING:
    from attnscope.capture import Model
    from attnscope.corpus import Corpus, Sources, Texts, Window
    from attnscope.mechanism._analysis import Analysis
    from attnscope.progress import Tell

READING = 0.6  # share of the work that reading the texts is
DEFAULT_TEXTS = 100
FEW_TEXTS = 8  # of analyses that take several passes


class Study:
    """One model, its texts and the settings of the analyses; what they share is made once, when first asked for.

    Parameters
    ----------
    model
        In eval mode, or put there by whoever asks.
    windows
        Two or more, all equally long; or a function that cuts them, called when they are first needed.
    name, identity
        As `LoadedModel` has them.
    band
        Largest offset of the profiles.
    frequencies
        First and last frequency, cycles per window, of the band in which a shift is read off.
    completion
        How the rotation R is completed for the phase maps.
    intervention_texts
        Windows on which words and positions are changed; 0 for none.
    layer, head
        Will be shown later: refused after the first texts if they do not exist.
    seed
        Seed of the random number generators.
    loaded, corpus
        The model with its tokenizer and the texts, for analyses that train.
    with_targets
        Whether a decoder reads texts of its own.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=8)
    >>> study = Study(BertModel(config).eval(), [[5, 6, 7, 8], [7, 8, 9, 5]], band=2)
    >>> study.evidence.texts, study.evidence is study.evidence
    (2, True)
    """

    def __init__(
        self,
        model: PreTrainedModel,
        windows: Windows | Callable[[], list[Window]],
        *,
        name: str | None = None,
        identity: dict[str, str] | None = None,
        band: int = 10,
        frequencies: tuple[int, int] | None = None,
        completion: Completion = "minimal",
        intervention_texts: int = 0,
        layer: int | None = None,
        head: int | None = None,
        seed: int = 0,
        loaded: LoadedModel | None = None,
        corpus: Texts | None = None,
        with_targets: bool = False,
    ) -> None:
        check_whole(1, band=band)
        self.model, self.name, self.identity = model, name or type(model).__name__, identity or {}
        self._windows = windows
        self.band, self.frequencies = band, frequencies
        self.completion: Completion = completion
        self.intervention_texts, self.layer, self.head, self.seed = intervention_texts, layer, head, seed
        self.loaded, self.corpus, self.with_targets = loaded, corpus, with_targets
        self.stored = StoredAnalyses(None)
        self.kept_sums: Callable[[range], dict[int, LayerSums] | None] = lambda _: (
            None
        )  # that others have read
        self.results: dict[str, xr.Dataset] = {}
        self.reasons: dict[str, str] = {}
        self.tell: Tell = tell_nobody
        self.share = 0.0  # of all work, done
        self.shared: dict[str, object] = {}  # what analyses of one kind make once for all of them
        self._known: dict[str, Analysis] = {}

    @cached_property
    def windows(self) -> list[Window | Sequence[int]]:
        """The windows, cut when they are first needed."""
        return list(self._windows() if callable(self._windows) else self._windows)

    @cached_property
    def tables(self) -> list[PositionTable]:
        """Tables of absolute positions; empty for RoPE and the like."""
        with borrowed(self.model):
            return position_tables(self.model)

    @cached_property
    def evidence(self) -> Evidence:
        """What all analyses of single heads need: one pass over the texts."""
        with borrowed(self.model):
            evidence = gather(
                self.model,
                self.windows,
                band=self.band,
                layer=self.layer,
                head=self.head,
                progress=self._tell_reading,
                kept=self.kept_sums,
            )
        self.share = READING
        return evidence

    def gather_units(self, done: Callable[[range], bool]) -> Iterator[xr.Dataset]:
        """Sums of unit after unit of the texts, but those that are done, for `evidence` in another process."""
        with borrowed(self.model):
            for texts in self._gathering.units():
                if not done(texts):
                    yield labelled_sums(self._gathering.read(texts, self._tell_reading), texts)

    @cached_property
    def _gathering(self) -> Gathering:
        return Gathering(self.model, self.windows, band=self.band, layer=self.layer, head=self.head)

    def _tell_reading(self, at: Progress) -> None:
        self.tell(replace(at, share=READING * at.share))

    def first(self, count: int | None = None) -> list[Window | Sequence[int]]:
        """Some windows, by default 8, for analyses that take several passes."""
        return self.windows[: FEW_TEXTS if count is None else count]

    def lacks(self, analysis: Analysis) -> str:
        """Why the model does not admit an analysis; empty where it does."""
        return next((reason for need in analysis.needs if (reason := need.lacks(self))), "")

    def run(self, analyses: Sequence[Analysis]) -> None:
        """Make all these analyses, into `results`; those that are not defined, into `reasons`."""
        self._known = {analysis.name: analysis for analysis in analyses}
        asked = [analysis for analysis in analyses if analysis.asked(self)]
        for number, analysis in enumerate(asked):
            self.share = READING + (1 - READING) * number / len(asked)
            self.tell(Progress(analysis.name.replace("_", " "), self.share))
            self._make(analysis)

    def result(self, name: str) -> xr.Dataset | None:
        """What another analysis of this study gives, made now if it is not there; None where it is not defined."""
        if name not in self.results and name not in self.reasons and name in self._known:
            analysis = self._known[name]
            if analysis.asked(self):
                self._make(analysis)
        return self.results.get(name)

    def _make(self, analysis: Analysis) -> None:
        if analysis.name in self.results or analysis.name in self.reasons:
            return
        try:
            self.results[analysis.name] = self.stored.get(analysis.name, lambda: self.computed(analysis))
        except NotDefinedError as reason:
            self.reasons[analysis.name] = str(reason)

    def computed(self, analysis: Analysis) -> xr.Dataset:
        """An analysis, or `NotDefinedError` with the reason."""
        if reason := self.lacks(analysis):
            raise NotDefinedError(reason)
        threads = threadpool_limits(1, "blas") if analysis.of_arrays else nullcontext()
        with borrowed(self.model), threads:
            return analysis.compute(self)


@typed
def study(
    model: Model | Study | None = None,
    texts: Sources = None,
    *,
    targets: Sources = None,
    tokenizer: Tokenizer = None,
    window: int | None = None,
    limit: int | None = None,
    band: int = 10,
    device: str | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Study:
    """Put a model under study: what every analysis takes in place of model and texts, so that they are read once.

    Parameters
    ----------
    model
        See `attnscope.scan`; a model object needs no tokenizer where `texts` are token ids. A study is given back as it
        is.
    texts
        As in `attnscope.scan`; by default the bundled sample.
    targets
        Text in the target language, for an encoder-decoder: see `attnscope.explain`.
    tokenizer, device, dtype, revision, trust_remote_code
        See `attnscope.scan`.
    window, limit
        Tokens of a window, and how many windows (by default 100).
    band
        Largest offset of the profiles.

    Raises
    ------
    AttnscopeError
        If a study is given, and beside it what it has already; if `window`, `limit` or `band` is below 1; for anything
        else that the caller can mend.

    Examples
    --------
    >>> from attnscope import mechanism
    >>> study = mechanism.study(limit=3)
    >>> study.evidence.texts
    3
    >>> mechanism.cross_spectrum(study).band_offset.dims, mechanism.query_key_waves(study).periodic_columns.dims
    (('layer', 'head'), ('layer', 'head'))
    """
    check_whole(1, limit=limit, window=window, band=band)
    if isinstance(model, Study):
        given = {"texts": texts, "targets": targets, "tokenizer": tokenizer, "window": window, "limit": limit}
        if beside := [name for name, value in given.items() if value is not None]:
            raise AttnscopeError(
                f"found a study and {beside[0]} beside it: a study has read its texts; leave {beside[0]} out, or make "
                "another study"
            )
        return model
    limit = DEFAULT_TEXTS if limit is None else limit
    corpus, target = texts_and_targets(texts, targets)
    if isinstance(model, PreTrainedModel) and tokenizer is None and isinstance(corpus, EncodedTexts):
        return Study(model, corpus.rows[:limit], band=band)  # token ids and a model object need no tokenizer
    loaded = load_model(
        model,
        tokenizer=tokenizer,
        revision=revision,
        device=device,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
    )
    length = window_length(loaded, window)
    return Study(
        loaded.model,
        partial(pairs_of_windows, corpus, target, loaded, length, limit),
        name=loaded.name,
        identity=loaded.identity,
        band=band,
        loaded=loaded,
        corpus=corpus,
        with_targets=target is not None,
    )


def few_texts(
    model: Model | Study | None,
    texts: Sources,
    *,
    targets: Sources,
    tokenizer: Tokenizer,
    window: int | None,
    limit: int | None,
) -> Study:
    """`study` for analyses that take several passes: 8 windows by default, and the first so many of a study."""
    check_whole(1, limit=limit)  # beside a study too, which `study` does not see
    if isinstance(model, Study):
        limit = None
    elif limit is None:
        limit = FEW_TEXTS
    return study(model, texts, targets=targets, tokenizer=tokenizer, window=window, limit=limit)


def table_of_model(
    model: Model | Study | None, part: str | None = None
) -> Float[np.ndarray, "position column"]:
    """Rows of a model's position table; no text is read, and no tokenizer needed."""
    if isinstance(model, (Study, LoadedModel)):
        model = model.model
    if not isinstance(model, PreTrainedModel):
        model = load_model("bundled" if model is None else model, need_tokenizer=False).model
    return position_table(model, part).rows


@typed
@contextmanager
def studied(study: Study, analysis: Analysis) -> Generator[Study]:
    """A study that admits an analysis, its model borrowed meanwhile.

    Parameters
    ----------
    study
        The model under study.
    analysis
        The analysis that is asked for.

    Raises
    ------
    AttnscopeError
        With the reason, if it does not admit it.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> from attnscope.mechanism import known_analyses
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    >>> study = Study(BertModel(config), [[5, 6, 7, 8], [7, 8, 9, 5]], band=2, name="small")
    >>> with studied(study, known_analyses()["forms"]):
    ...     study.model.training  # as the analysis needs it
    False
    >>> study.model.training  # as it was
    True
    """
    with borrowed(study.model):
        if reason := study.lacks(analysis):
            raise AttnscopeError(
                f"{analysis.name} is not defined for {study.name}: {reason}. Choose another analysis"
            )
        yield study


def equal_windows(
    corpus: Texts, loaded: LoadedModel, length: int, limit: int, *, target: bool = False
) -> list[Window]:
    """The windows that are full; if fewer than two are or may be, an error that says why."""
    if limit < 2:  # noqa: PLR2004
        raise AttnscopeError(
            f"limit (--limit) is {limit}; expected 2 windows or more, to tell position from text"
        )
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


def pairs_of_windows(
    corpus: Texts, target: Corpus | None, loaded: LoadedModel, length: int, limit: int
) -> list[Window]:
    """Full windows of the text and, where there is one, of the target, as the decoder reads them."""
    windows = equal_windows(corpus, loaded, length, limit)
    return windows if target is None else with_targets(windows, target, loaded, length)


def with_targets(windows: list[Window], target: Corpus, loaded: LoadedModel, length: int) -> list[Window]:
    """Full windows of the target beside those of the text, as the decoder reads them; as many as both have."""
    start = decoder_start(loaded.model)
    said = equal_windows(target, loaded, length, len(windows), target=True)
    return [
        replace(window, target=shifted(words, loaded.tokenizer, start))
        for window, words in zip(windows, said, strict=False)
    ]
