"""A model under study: its texts and the shared inputs of all analyses, each computed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal

import xarray as xr
from threadpoolctl import threadpool_limits
from transformers import PreTrainedModel

from attnscope.capture.borrow import LoadedModel, borrowed
from attnscope.capture.forward import decoder_start
from attnscope.capture.load import Model
from attnscope.capture.processors import Tokenizer
from attnscope.explanation.arrays.checks import NotDefinedError
from attnscope.explanation.evidence import Evidence, Gathering, LayerSums
from attnscope.explanation.inputs import Windows
from attnscope.explanation.tables import PositionTable, position_scheme, position_tables
from attnscope.opened import Opened
from attnscope.options import Count
from attnscope.read.encoded import EncodedTexts, Sources, Texts, windows_of
from attnscope.read.texts import Corpus
from attnscope.read.windows import TargetTokenizer, Window, shifted, window_name
from attnscope.report.schema import Quantity, Row, Table
from attnscope.store.runs import RunFolder
from attnscope.support.checked import checked
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell, no_progress
from attnscope.support.state import replaced

READING = 0.6  # share of the work for reading the texts
DEFAULT_TEXTS = 100
FEW_TEXTS = 8  # for analyses with several passes
_SHORTEST = 16  # tokens of a window that nobody asked for


@dataclass(eq=False)
class Study:
    """One model, its texts and the settings of the analyses; shared inputs are computed once, on first use."""

    model: PreTrainedModel
    source: Windows | Callable[[], list[Window]]  # the windows, or a function that cuts them on first use
    _: KW_ONLY
    name: str = ""
    band: int = 10
    frequencies: tuple[int, int] | None = None
    intervention_texts: int = 0
    layer: int | None = None
    head: int | None = None
    seed: int = 0
    loaded: LoadedModel | None = None
    corpus: Texts | None = None
    with_targets: bool = False

    def __post_init__(self) -> None:
        self.identity: dict[str, str] = {} if self.loaded is None else self.loaded.identity
        self.name = self.name or (type(self.model).__name__ if self.loaded is None else self.loaded.name)
        # an analysis by name, from the function that computes it: a run folder reads it if it has it
        self.made: Callable[[str, Callable[[], xr.Dataset]], xr.Dataset] = lambda _, make: make()
        self.folder: RunFolder | None = None  # of a call that stores its results
        # sums of a unit of texts from another process
        self.stored_sums: Callable[[range], dict[int, LayerSums] | None] = lambda _: None
        self.results: dict[str, xr.Dataset] = {}
        self.reasons: dict[str, str] = {}
        self.tell: Tell = no_progress
        self.share = 0.0  # of all work, done
        self.few_texts = FEW_TEXTS
        self.shared: dict[str, object] = {}  # results that related analyses share
        self._known: dict[str, Analysis] = {}

    @cached_property
    def windows(self) -> list[Window | Sequence[int]]:
        """The windows, cut on first use."""
        return list(self.source() if callable(self.source) else self.source)

    @property
    def documents(self) -> list[str]:
        """The document of each window: intervals resample documents."""
        return [getattr(window, "source", window_name(window, number)) for number, window in enumerate(self.windows)]

    @property
    def mask_id(self) -> int | None:
        """The mask token of a masked language model; None without one, or without a tokenizer."""
        return None if self.loaded is None else getattr(self.loaded.tokenizer, "mask_token_id", None)

    @property
    def key(self) -> tuple[object, ...]:
        """All that the verdict depends on, besides the model."""
        settings = self.band, self.frequencies, self.intervention_texts, self.seed
        return "verdict", tuple(self.windows), *settings

    @cached_property
    def tables(self) -> list[PositionTable]:
        """Tables of absolute positions; empty for RoPE and the like."""
        with borrowed(self.model):
            return position_tables(self.model)

    @cached_property
    def evidence(self) -> Evidence:
        """The input of all analyses of single heads, from one pass over the texts."""
        with borrowed(self.model):
            evidence = self._gathering.evidence(self.stored_sums(texts) or self.sums(texts) for texts in self.units())
        self.share = READING
        return evidence

    def units(self) -> list[range]:
        """Texts that are read together, for `evidence` in this or another process."""
        with borrowed(self.model):
            return self._gathering.units()

    def sums(self, texts: range) -> dict[int, LayerSums]:
        """Sums of each layer over a unit of the texts."""
        with borrowed(self.model):
            return self._gathering.read(texts, lambda at: self.tell(replace(at, share=READING * at.share)))

    @cached_property
    def _gathering(self) -> Gathering:
        return Gathering(self.model, self.windows, band=self.band, layer=self.layer, head=self.head)

    def first(self, count: int = 0) -> list[Window | Sequence[int]]:
        """Some windows, by default 8, for analyses with several passes."""
        return self.windows[: count or self.few_texts]

    def defaults(self, **settings: Any) -> dict[str, Any]:
        """Settings of one analysis; None means the study's value."""
        return {name: getattr(self, name) if value is None else value for name, value in settings.items()}

    def lacks(self, analysis: Analysis) -> str:
        """Why the model does not admit an analysis; empty where it does."""
        return next(filter(None, (lacks(self) for lacks in analysis.needs)), "")

    def run(self, analyses: Sequence[Analysis], among: Sequence[Analysis] = ()) -> None:
        """Compute these analyses, and those `among` others that they read, into `results`.

        The reasons for undefined ones go to `reasons`.
        """
        self._known = {analysis.name: analysis for analysis in among or analyses}
        requested = [analysis for analysis in analyses if analysis.requested(self)]
        for number, analysis in enumerate(requested):
            self.share = READING + (1 - READING) * number / len(requested)
            self.tell(Progress(analysis.name.replace("_", " "), self.share))
            self._make(analysis)

    def result(self, name: str) -> xr.Dataset | None:
        """The result of another analysis of this study, computed now if missing; None if it is not defined."""
        if name not in self.results and name not in self.reasons and name in self._known:
            analysis = self._known[name]
            if analysis.requested(self):
                self._make(analysis)
        return self.results.get(name)

    def _make(self, analysis: Analysis) -> None:
        if analysis.name in self.results or analysis.name in self.reasons:
            return
        try:
            self.results[analysis.name] = self.made(analysis.name, lambda: self.computed(analysis))
        except NotDefinedError as reason:
            self.reasons[analysis.name] = str(reason)

    def computed(self, analysis: Analysis) -> xr.Dataset:
        """An analysis, or `NotDefinedError` with the reason."""
        reason = self.lacks(analysis)
        if reason:
            raise NotDefinedError(reason)
        threads = threadpool_limits(1, "blas") if analysis.of_arrays else nullcontext()
        with borrowed(self.model), threads:
            return analysis.compute(self)


@checked
def study(
    model: Model | Study | None = None,
    texts: Sources = None,
    *,
    targets: Sources = None,
    tokenizer: Tokenizer = None,
    window: Count | None = None,
    limit: Count | None = None,
    band: Count = 10,
    device: str | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Study:
    """Prepare a study: every analysis accepts it instead of model and texts, so the texts are read once.

    Parameters
    ----------
    model
        See `attnscope.scan`; a model object needs no tokenizer if `texts` are token ids. A study is returned unchanged.
    texts
        As in `attnscope.scan`; by default the bundled sample.
    targets
        Text in the target language, for an encoder-decoder: see `attnscope.explain`.
    tokenizer, device, dtype, revision, trust_remote_code
        See `attnscope.scan`.
    window, limit
        Tokens of a window, and the number of windows: by default 100, or 8 for analyses with several passes.
    band
        Largest offset of the profiles.

    Raises
    ------
    AttnscopeError
        If a study is combined with texts or other settings; for other invalid input.
    """
    if isinstance(model, Study):
        settings = {"texts": texts, "targets": targets, "tokenizer": tokenizer, "window": window, "limit": limit}
        extra = [name for name, value in settings.items() if value is not None]
        if extra:
            raise AttnscopeError(f"a study already has its texts: leave {extra[0]} out, or prepare another study")
        return model
    limit = DEFAULT_TEXTS if limit is None else limit
    session = Opened.of(model, texts)
    corpus, target = session.read(targets)
    if isinstance(model, PreTrainedModel) and tokenizer is None and isinstance(corpus, EncodedTexts):
        return Study(model, corpus.rows[:limit], band=band)  # token ids and a model object need no tokenizer
    options = {"revision": revision, "device": device, "dtype": dtype, "trust_remote_code": trust_remote_code}
    loaded = session.load({"tokenizer": tokenizer, **options})
    return Study(
        loaded.model,
        partial(pairs_of_windows, corpus, target, loaded, session.length(window), limit),
        band=band,
        loaded=loaded,
        corpus=corpus,
        with_targets=target is not None,
    )


def equal_windows(corpus: Texts, loaded: LoadedModel, length: int, limit: int, *, target: bool = False) -> list[Window]:
    """The full windows; an error if there are fewer than two."""
    if limit < 2:  # noqa: PLR2004
        raise AttnscopeError(f"limit (--limit) is {limit}; expected 2 windows or more, to separate position from text")
    whole: list[Window] = []
    longest = 0
    tokenizer = loaded.tokenizer
    if target and not isinstance(corpus, EncodedTexts):
        tokenizer = TargetTokenizer(tokenizer, corpus.language)
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
            "expected 2 or more, to separate position from text: use more text, or a smaller --window"
        )
    return whole


def usual_length(corpus: Texts, loaded: LoadedModel, longest: int) -> int:
    """The longest window, or its half, quarter, ... so that texts without two full windows of it have some."""
    lengths: list[int] = []
    for window in windows_of(corpus, loaded.tokenizer, length=longest):
        lengths.append(len(window))
        if lengths.count(longest) > 1:
            return longest
    shorter = [longest >> halvings for halvings in range(1, 12) if longest >> halvings >= _SHORTEST]
    for least in (FEW_TEXTS, 2):
        for length in shorter:
            if sum(tokens // length for tokens in lengths) >= least:
                return length
    return longest


def pairs_of_windows(
    corpus: Texts, target: Corpus | None, loaded: LoadedModel, length: int, limit: int
) -> list[Window]:
    """Full windows of the text, with those of the target if there is one, as the decoder reads them."""
    windows = equal_windows(corpus, loaded, length, limit)
    return windows if target is None else with_targets(windows, target, loaded, length)


def with_targets(windows: list[Window], target: Corpus, loaded: LoadedModel, length: int) -> list[Window]:
    """Pair full windows of the target, as the decoder reads them, with those of the text."""
    start = decoder_start(loaded.model)
    cut = equal_windows(target, loaded, length, len(windows), target=True)
    return [
        replace(window, target=shifted(words, loaded.tokenizer, start))
        for window, words in zip(windows, cut, strict=False)
    ]


#: Groups of columns of the table of heads, in their order.
WHERE, ESTIMATES, SCHEME, SHARES = GROUPS = (
    "Where it attends",
    "Estimates from its scores",
    "Position scheme",
    "Shares",
)
#: Text, or a function from an explanation and the rows of its heads to text.
Words = str | Callable[[xr.DataTree, Sequence[Row]], str]


@dataclass(frozen=True)
class Section:
    """A section of the page: some analyses that belong together."""

    name: str  # its address on the page
    title: str  # its heading
    says: Words  # its question and method


@dataclass(frozen=True)
class Picture:
    """A figure of an analysis."""

    name: str  # its file, without suffix
    title: str = ""
    reading: Words = ""  # how to read it
    draw: str = ""  # address of the function that draws it, ``package:function``: nothing here imports matplotlib
    of: Literal["node", "heads"] = "node"  # its data: the whole node, or some heads of it
    # the node's variable for a general figure, such as ``attnscope.results.figures.scan:overview``, the grid of heads
    variable: str = ""
    # name of another figure, of which this one is a copy: the page links to it by `title`
    same_as: str = ""
    on_page: bool = True  # whether the page shows it; else it is a file only
    with_tokens: bool = False  # whether its axes show tokens


@dataclass(frozen=True)
class TextTable:
    """A table of text instead of a figure."""

    title: str
    key: str  # the meaning of its words
    columns: tuple[str, ...]  # headings
    lines: Callable[[xr.Dataset], list[tuple[str, ...]]]  # cells of each row, from the node
    remark: Callable[[xr.DataTree], str] = field(default=lambda _: "")  # a sentence about the whole tree


#: A property that an analysis needs of a model: the reason why a model lacks it; empty if it has it.
Requirement = Callable[[Study], str]


@dataclass(frozen=True)
class Analysis:
    """One way to explain why a head attends where it does."""

    name: str  # of its node in the tree, its file in the run folder, and in the list of skipped analyses
    title: str
    definition: str  # the heading of mathematics.md that defines it
    compute: Callable[[Study], xr.Dataset]
    needs: tuple[Requirement, ...] = ()  # if one is missing, the analysis is skipped and the reason reported
    section: Section | None = None  # of the page; None if it has no figure
    pictures: tuple[Picture, ...] = ()
    table: TextTable | None = None
    units: str = "1"  # of its main quantity
    requested: Callable[[Study], bool] = field(default=lambda _: True)  # whether it is part of this study
    # called before any text is read: raises if the analysis, requested by name, is impossible
    check: Callable[[Study], None] = field(default=lambda _: None)
    # its own settings, part of the signature
    settings: Mapping[str, str | int | float] = field(default_factory=dict[str, "str | int | float"])
    # whether NumPy does all the work, in one thread: NumPy's threads and PyTorch's wait for each other by spinning
    of_arrays: bool = False
    few_texts: bool = False  # whether it takes several passes, and so reads 8 windows by default if called alone
    # makes the analysis with a setting, the text in ``--analyses name=setting``
    configured: Callable[[str], Analysis] | None = None
    longest: int | None = None  # longest default window, tokens
    # computes a call of the record, from a study and the analysis's own settings; by default `compute`
    function: Callable[..., xr.Dataset] | None = None
    # from its Dataset to columns of the table of heads, each by its variable ``(layer, head)`` or ``(layer,)``
    columns: Callable[[xr.Dataset], Mapping[str, Quantity]] = field(default=lambda _: {})
    # from the tree and the rows of its heads: findings, notes, and a table of the report
    findings: Callable[[xr.DataTree, Sequence[Row]], Sequence[str]] = field(default=lambda *_: ())
    notes: Callable[[xr.DataTree, Sequence[Row]], Sequence[str]] = field(default=lambda *_: ())
    tables: Callable[[xr.DataTree, Sequence[Row]], Table] | None = None

    @property
    def alone(self) -> Callable[..., xr.Dataset]:
        """The function behind a call of the record."""
        return self.function or self.compute

    @checked
    def __call__(
        self,
        model: Model | Study | None = None,
        texts: Sources = None,
        *,
        targets: Sources = None,
        tokenizer: Tokenizer = None,
        window: Count | None = None,
        limit: Count | None = None,
        **settings: Any,
    ) -> xr.Dataset:
        """Compute this analysis alone, with the settings of its function, from a study or from the inputs of `study`.

        Analyses with several passes read 8 windows by default; from a study, the first `limit` of its windows.
        """
        of_few = self.few_texts and isinstance(model, Study)
        at_most = None if of_few else limit or (FEW_TEXTS if self.few_texts else None)
        prepared = study(model, texts, targets=targets, tokenizer=tokenizer, window=window, limit=at_most)
        with replaced(vars(prepared), few_texts=limit or FEW_TEXTS), borrowed(prepared.model):
            reason = prepared.lacks(self)
            if reason:
                raise AttnscopeError(
                    f"{self.name} is not defined for {prepared.name}: {reason}. Choose another analysis"
                )
            return self.alone(prepared, **settings)


def analysis(
    name: str, title: str, definition: str, *, explained: Callable[[Study], xr.Dataset] | None = None, **shown: Any
) -> Callable[[Callable[..., xr.Dataset]], Analysis]:
    """Make the record of an analysis from its function; `attnscope.explain` computes `explained` instead if given."""

    def record(function: Callable[..., xr.Dataset]) -> Analysis:
        alone = checked(function)
        one = Analysis(name, title, definition, explained or alone, function=alone, **shown)
        object.__setattr__(one, "__doc__", function.__doc__)
        return one

    return record


_FORMS = {"rope": "RoPE rotates queries and keys, so no single matrix gives the scores: see scheme_kernel"}


def lacks_table(study: Study) -> str:
    return "" if study.tables else f"{type(study.model).__name__}: {position_scheme(study.model)}"


def lacks_bilinear_scores(study: Study) -> str:
    if study.evidence.bilinear:
        return ""
    first = study.evidence.layers[0].projections
    return first.reason or _FORMS.get(first.form, f"its scores ({first.form}) are not bilinear in the layer's input")


def lacks_rotation(study: Study) -> str:
    rotates = any(layer.projections.rotation is not None for layer in study.evidence.layers)
    return "" if rotates else "the model has no RoPE"


def lacks_bias(study: Study) -> str:
    return "" if any(layer.has_bias for layer in study.evidence.layers) else "the model has no position bias"


def lacks_rotation_and_bias(study: Study) -> str:
    return "the model has no RoPE or position bias" if lacks_rotation(study) and lacks_bias(study) else ""
