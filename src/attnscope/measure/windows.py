"""A scan of texts: windows of a corpus through a model, statistics per window, kinds, signature."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

import xarray as xr

from attnscope.capture.families import configured_length
from attnscope.capture.forward import decoder_note, decoder_start
from attnscope.capture.load import load_model
from attnscope.capture.loaded import LoadedModel
from attnscope.capture.signature import signature_of
from attnscope.capture.verify import position_table_length
from attnscope.measure.measurement import Measurement
from attnscope.measure.observer import settings_of
from attnscope.measure.quantities import (
    OF_GROUPS,
    OF_OFFSETS,
    OF_POOLED_GROUPS,
    SECOND_PASS,
    STATISTICS,
    Statistic,
    choose,
)
from attnscope.measure.questions import BAND, ScanSettings
from attnscope.measure.sample import reject_absent
from attnscope.measure.sides import grouping_for, observation_note, read_sides
from attnscope.measure.summary import kinds_of
from attnscope.measure.writing import measured
from attnscope.read.chats import Chats, ChatTexts
from attnscope.read.encoded import Sources, Texts, windows_of
from attnscope.read.groups import GroupedWindows, Groups
from attnscope.read.pairs import LinePairs
from attnscope.read.texts import Corpus
from attnscope.read.windows import Window
from attnscope.read.words import WordedWindows, Words, word_rule_of
from attnscope.store.signature import Signature
from attnscope.support.checks import check_whole, shortly
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.capture.processors import Tokenizer
    from attnscope.read.groups import Grouping
    from attnscope.read.words import WordRule

LONGEST_DEFAULT = 2048  # tokens: a longer window must be asked for


class OfTexts(TypedDict):
    """What is asked of texts alone: see `attnscope.scan`."""

    targets: Sources
    window: int | None
    stride: int | None
    field: str | None
    by_line: bool
    clusters: int | None
    groups: Groups | None
    chat: bool
    chat_template: str | Path | None
    words: Words | None
    by: str | None
    offsets: Sequence[int] | None


@dataclass(frozen=True, eq=False)
class Prepared:
    """A scan of which nothing is measured yet."""

    job: Measurement  # its forward passes
    signature: Signature  # signature and attributes of its results
    attributes: dict[str, str]  # signature and attributes of its results
    # what finds the kinds of heads in them; None where something is not measured that they need
    kinds: Callable[[xr.Dataset], xr.Dataset] | None


def scan_texts(
    model: Model,
    texts: Sources,
    asked: ScanSettings,
    of_texts: OfTexts,
) -> xr.Dataset:
    """Measure where every attention head of a model of texts looks: see `attnscope.scan`, which calls this for
    texts.
    """
    ready = prepared(model, texts, asked, of_texts, show=asked.show is not None)
    return measured(ready.job, asked, ready.signature, ready.kinds, ready.attributes)


def prepared(
    model: Model,
    texts: Sources,
    asked: ScanSettings,
    given: OfTexts,
    *,
    show: bool,
) -> Prepared:
    """Load the model and open the texts of a scan; `show` asks for the attention over the first windows."""
    band, stride = asked.band or BAND, given["stride"]
    check_whole(1, window=given["window"], stride=stride)
    check_whole(2, clusters=given["clusters"])
    corpus, target = read_sides(
        texts,
        given["targets"],
        field=given["field"],
        by_line=given["by_line"],
        stride=stride,
        chat=given["chat"],
        chat_template=given["chat_template"],
        by=given["by"],
    )
    grouping = grouping_for(given["groups"], corpus)
    names = choose(asked.statistics, brought=_brought(asked, given, grouped=grouping is not None))
    words = given["words"]
    _reject_together(asked, given, names, grouped=grouping is not None)
    rule = None if words is None else word_rule_of(words)
    tokenizer = cast("Tokenizer", asked.processor)  # what reads no text is refused
    loaded = load_model(model, tokenizer=tokenizer, **vars(asked.loading))
    length = window_length(loaded, given["window"])
    if isinstance(corpus, Chats):
        corpus = corpus.read_with(loaded.tokenizer)
    windows, longest = _windows(corpus, target, loaded, length=length, stride=stride, limit=asked.limit)
    _reject_beyond(band, asked.rows, length)
    chosen = _chosen(given["offsets"], length)
    names = (*names, *(OF_OFFSETS if chosen else ()))
    worded = None
    if rule is not None:
        rule = rule.over(windows)
        windows = worded = WordedWindows(windows, rule)
    if grouping is not None:
        grouping = grouping.over(windows)
        windows, names = GroupedWindows(windows, grouping), (*names, *OF_GROUPS)
    job = Measurement(
        loaded,
        windows,
        names if grouping is None or asked.pool is None else (*names, *OF_POOLED_GROUPS),
        band,
        longest - 1,
        asked.batch_size or max(1, 2048 // longest),
        asked.limit,
        corpus,
        asked.progress,
        show=show,
        groups=() if grouping is None else grouping.names,
        words=worded,
        pool=asked.pool,
        seed=asked.seed,
        rows=asked.rows,
        observation=asked.observation,
        chosen=chosen,
    )
    job.check()
    reject_absent(asked.show, len(job.sites), job.heads)  # before all texts are read
    plain = {
        "window": length,
        "stride": stride,
        "band": band,
        "clusters": given["clusters"],
        "by": given["by"],
        "offsets": list(chosen) or None,
    }
    settings = _settings(job, asked, grouping, rule, names=names, **plain)
    signature = signature_of("scan", loaded, corpus, target, settings)
    attributes = {"model": loaded.name, **decoder_note(loaded.model, with_target=target is not None)}
    attributes |= beyond_note(loaded, length) | observation_note(names, asked.observation, length)
    return Prepared(job, signature, attributes, kinds_of(settings))


def _brought(asked: ScanSettings, given: OfTexts, *, grouped: bool) -> dict[str, Statistic]:
    """Statistics that other options bring."""
    of_groups = OF_GROUPS if asked.pool is None else OF_GROUPS | OF_POOLED_GROUPS
    return ({} if given["offsets"] is None else OF_OFFSETS) | (of_groups if grouped else {})


def _reject_beyond(band: int, rows: int | None, length: int) -> None:
    if band >= length:
        raise AttnscopeError(
            f"band (--band) is {band}; in windows of {length} tokens the largest offset is {length - 1}: give a "
            "smaller band, or a longer window (--window)"
        )
    if rows is not None and rows >= length:
        raise AttnscopeError(
            f"rows (--rows) is {rows}; windows of {length} tokens have no more queries, so that nothing is estimated: "
            "give fewer, or leave rows out"
        )


def _settings(
    job: Measurement,
    asked: ScanSettings,
    grouping: Grouping | None,
    rule: WordRule | None,
    *,
    names: Sequence[str],
    **plain: object,
) -> dict[str, Any]:
    """What the numbers depend on beside the model and the texts."""
    of_all = {
        "limit": asked.limit,
        "batch_size": job.batch_size,
        "statistics": list(names),
        "seed": asked.seed,
        **{name: plain.pop(name) for name in ("window", "stride", "band", "clusters")},
    }
    seldom = plain | {
        "pool": asked.pool,
        "rows": asked.rows,
        "until": asked.until,
        "groups": None if grouping is None else grouping.signature,
        "words": None if rule is None else rule.signature,
        "merging": None if rule is None else "queries averaged, keys summed",
    }
    given = {name: value for name, value in seldom.items() if value is not None}
    return of_all | settings_of(names, asked.observation) | given


def _chosen(offsets: Sequence[int] | None, length: int) -> tuple[int, ...]:
    """The offsets that were chosen, from left to right, in windows of so many tokens."""
    if offsets is None:
        return ()
    if not len(offsets):
        raise AttnscopeError("offsets (--offsets) names none: give some, such as -1,-64, or leave it out")
    beyond = [offset for offset in offsets if abs(offset) >= length]
    if beyond:
        raise AttnscopeError(
            f"offsets (--offsets) has {shortly(beyond[0])}; in windows of {length} tokens they are {1 - length} to "
            f"{length - 1}: choose among these, or give a longer window (--window)"
        )
    return tuple(sorted(set(offsets)))


def _reject_together(asked: ScanSettings, given: OfTexts, names: Sequence[str], *, grouped: bool) -> None:
    """Refuse what cannot be measured in one scan."""
    if given["clusters"] is not None and "band_sum" not in names:
        raise AttnscopeError(
            "clusters (--clusters) are of offset profiles: measure band_sum too (--statistics band_sum), or leave "
            "clusters out"
        )
    if asked.rows is None:
        return
    if grouped or given["words"] is not None:
        raise AttnscopeError(
            "groups of tokens and words are measured of all rows: leave out rows (--rows), or groups and words"
        )
    if whole := [name for name in names if {*SECOND_PASS, "blocks"} & {*STATISTICS[name].needs}]:
        raise AttnscopeError(f"{whole[0]} is measured of all rows: leave out rows (--rows), or {whole[0]}")


def _windows(
    corpus: Texts | ChatTexts,
    target: Corpus | None,
    loaded: LoadedModel,
    *,
    length: int,
    stride: int | None,
    limit: int | None,
) -> tuple[Iterable[Window], int]:
    """The windows, or the lines beside their translations; and the most tokens that one of them has."""
    if target is None or not isinstance(corpus, Corpus):
        windows = windows_of(corpus, loaded.tokenizer, length=length, stride=stride, limit=limit)
        return windows, length
    start = decoder_start(loaded.model)
    pairs = LinePairs(corpus, target, loaded.tokenizer, start, length=length, limit=limit)
    return pairs, pairs.check()


def beyond_note(loaded: LoadedModel, length: int, what: str = "Windows") -> dict[str, str]:
    """What a reader has to know of windows that are longer than the config says; rotary angles take any length."""
    known = configured_length(loaded.model.config.get_text_config())
    if not known or known < 1 or length <= known:
        return {}
    return {
        "beyond": f"{what} may have {length} tokens; the model's config names {known} (max_position_embeddings). "
        "Beyond them its heads need not do what they do within."
    }


def window_length(loaded: LoadedModel, window: int | None) -> int:
    """The window asked for, if the model can take it; else what the model takes."""
    table = position_table_length(loaded.model)
    if window is not None:
        if table is not None and window > table:
            raise AttnscopeError(
                f"a window of {window} tokens does not fit {loaded.name}: its position table has {table} rows. "
                f"Give --window {table} or less"
            )
        return window
    config = loaded.model.config.get_text_config()
    known = [
        table,
        getattr(loaded.tokenizer, "model_max_length", None),
        configured_length(config),
    ]
    return min([*(int(limit) for limit in known if limit and limit > 0), LONGEST_DEFAULT])  # XLNet says -1
