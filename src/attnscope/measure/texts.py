"""Texts: windows of a corpus, chats, pairs of texts, in words, groups or pools; statistics of each window."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import xarray as xr
from torch import Tensor

from attnscope.capture.borrow import LoadedModel
from attnscope.capture.families import configured_length
from attnscope.capture.forward import decoder_note, decoder_start
from attnscope.capture.load import load_model, signature_of
from attnscope.capture.placement import device_of
from attnscope.capture.verify import is_causal_model, padding_difference, position_table_length
from attnscope.capture.watch import Site
from attnscope.kernels.call import AttentionCall
from attnscope.measure.labels import summarize
from attnscope.measure.offset_shares import bias_note
from attnscope.measure.passes import WindowBatch
from attnscope.measure.pools import in_pools, joined
from attnscope.measure.quantities import OF_GROUPS, OF_OFFSETS, OF_POOLED_GROUPS, SECOND_PASS, STATISTICS, choose
from attnscope.measure.reader import BAND, UNIT, Read, Reader, ScanSettings, chunked
from attnscope.measure.row_samples import rows_note
from attnscope.measure.sample import SAMPLE_WINDOWS, WordBatch
from attnscope.measure.stored import observation_note
from attnscope.read.chats import Chats, ChatTexts, are_chats
from attnscope.read.encoded import EncodedTexts, Sources, Texts, texts_and_targets, windows_of
from attnscope.read.groups import GroupedWindows, Grouping, Groups, grouping_of
from attnscope.read.pairs import LinePairs
from attnscope.read.sources import as_list
from attnscope.read.texts import Corpus
from attnscope.read.windows import Window, window_name
from attnscope.read.words import WordedWindows, word_rule_of
from attnscope.store.signature import Signature
from attnscope.support.checks import check_whole, shortly
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count
from attnscope.support.progress import Progress

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.capture.processors import Tokenizer


LONGEST_DEFAULT = 2048  # tokens: a longer window must be asked for


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
    known = [table, getattr(loaded.tokenizer, "model_max_length", None), configured_length(config)]
    return min([*(int(limit) for limit in known if limit and limit > 0), LONGEST_DEFAULT])  # XLNet says -1


_TWICE = 3  # tokens of the shortest text that has one twice, and text


def has_twice(window: Window) -> bool:
    """Whether a window begins or ends with one special token twice, as where it is in the text and is added."""
    ids, special = window.ids, window.special
    return len(ids) >= _TWICE and any(
        ids[end] == ids[inner] and special[end] and special[inner] for end, inner in ((0, 1), (-1, -2))
    )


def is_packed(window: Window, tokenizer: Any, *, looks_back: bool) -> bool:
    """Whether a token that begins a text, or (in causal models) ends one, stands between other tokens of a window."""
    begin, end = (getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos"))
    borders = {begin, end} if looks_back else {begin} - {end}
    real = [place for place, special in enumerate(window.special) if not special]
    return bool(real) and any(token in borders for token in window.ids[real[0] : real[-1]])


def read_sides(
    texts: Sources,
    targets: Sources,
    *,
    field: str | None,
    by_line: bool,
    stride: int | None,
    chat: bool,
    chat_template: str | Path | None,
    by: str | None = None,
    with_inputs: bool = False,
) -> tuple[Texts | Chats, Corpus | None]:
    """What is read; with targets line by line, empty lines too, so that line i stays beside line i."""
    paired = targets is not None
    given = as_list(texts)
    if chat or (not by_line and are_chats(given, field)):
        if paired or by_line:
            other = "target (--target)" if paired else "by_line (--by-line)"
            raise AttnscopeError(f"the texts are chats, one a line, which take no {other}: leave it out")
        if by is not None:
            raise AttnscopeError("chats are not held apart by a field: leave out by (--by)")
        if given is None:
            raise AttnscopeError("no chat is given: name a file of JSON Lines with messages")
        return Chats(given, field=field, template=chat_template), None
    if chat_template is not None:
        raise AttnscopeError(
            "a chat template is given, and the texts are not chats: leave it out, or say so with chat (--chat)"
        )
    if by is not None and paired:
        raise AttnscopeError("texts with targets are not held apart by a field: leave out by (--by)")
    if by is not None and given is None:
        raise AttnscopeError("the bundled sample has no fields: name .jsonl files, or leave out by (--by)")
    corpus, target = texts_and_targets(
        given, targets, field=field, by_line=by_line or paired, blank_lines=paired, by=by, with_inputs=with_inputs
    )
    if target is not None and stride is not None:
        raise AttnscopeError("stride is of windows in running text; with targets every line is a window: leave it out")
    return corpus, target


def grouping_for(groups: Groups | None, corpus: Texts | Chats) -> Grouping | None:
    """The groups asked for; those of a chat are its roles where nothing else is."""
    is_chat = isinstance(corpus, Chats)
    if isinstance(groups, str) and groups == "roles" and not is_chat:
        raise AttnscopeError(
            "roles are those of a chat, and the texts are not chats: give chats (JSON Lines with messages), or other "
            "groups"
        )
    if groups is None:
        return grouping_of("roles") if is_chat else None
    return grouping_of(groups)


_PADDED = 64  # tokens that show whether padding matters
_MANY_UNKNOWN = 0.05  # share of tokens from which a note says so
OPERATIONS = 2e12  # of the forward passes of a unit: some 10 s on one core, less on anything larger
TURNS = 32  # units at least, so that no process waits long for another


class TextReader(Reader):
    """Windows of texts, side by side."""

    shows_received = True

    def __init__(
        self,
        loaded: LoadedModel,
        windows: Iterable[Window],
        corpus: Texts | ChatTexts,
        asked: ScanSettings,
        names: Sequence[str],
        longest: int,
        *,
        show: bool,
        target: Corpus | None = None,
        grouping: Grouping | None = None,
        words: WordedWindows | None = None,
        chosen: Sequence[int] = (),
    ) -> None:
        of_groups = () if grouping is None else (*OF_GROUPS, *(() if asked.pool is None else OF_POOLED_GROUPS))
        super().__init__(loaded, loaded.model, corpus, asked, (*names, *of_groups))
        self.windows, self.target, self.grouping, self.words, self.chosen = (windows, target, grouping, words, chosen)
        self.groups = () if grouping is None else grouping.names
        self.reach, self.band = longest - 1, asked.band or BAND
        self.batch_size = asked.batch_size or max(1, 2048 // longest)
        self.has_decoder = loaded.model.config.is_encoder_decoder
        self.shown = list(islice(windows, SAMPLE_WINDOWS)) if show else []
        self.first = self.shown[0] if show else next(iter(windows))
        self.again = sum(map(_characters, self.shown))  # what is read once more, for the page
        self.characters = corpus.characters()
        self.is_chat = isinstance(corpus, ChatTexts)
        self.notes |= corpus.notes if isinstance(corpus, EncodedTexts) else {}
        self._check()

    @property
    def unit(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Batches, or pools, that one process measures before the next has its turn, as many in every process."""
        limit, pool = self.asked.limit, self.asked.pool
        windows = self.characters / max(1, _characters(self.first))
        windows = windows if limit is None else min(windows, float(limit))
        operations = 2.0 * len(self.first) * sum(parameter.numel() for parameter in self.model.parameters())
        wanted = min(OPERATIONS / operations, windows / TURNS)
        return max(UNIT if pool is None else 1, int(wanted // (pool or self.batch_size)))

    def items(self) -> Iterable[Window]:
        """The windows."""
        return self.windows

    def first_items(self) -> list[Window]:
        """The windows that a page shows."""
        return self.shown

    def name_of(self, window: Window, number: int) -> str:
        """What to call a window in an error."""
        return window_name(window, number)

    def read(self, items: Sequence[Window], numbers: Sequence[int]) -> Read:  # noqa: ARG002
        """Put windows side by side."""
        tokenizer, device = self.loaded.tokenizer, device_of(self.model)
        pad = tokenizer.pad_token_id
        batch = WindowBatch.of(items, pad if pad is not None else tokenizer.eos_token_id or 0, device)
        return Read(batch, items, WordBatch.of(items, device) if items[0].words else None)

    def parts(self) -> Iterator[dict[int, Window]]:
        """Windows side by side, or in pools."""
        numbered, pool = enumerate(self.windows), self.asked.pool
        return chunked(numbered, self.batch_size) if pool is None else in_pools(numbered, pool)

    def begin(self) -> None:
        """Count from the first window on."""
        self.share, self.tokens, self.unknown, self.doubled, self.packed = 0.0, 0, 0, 0, 0
        self.notes.pop("unknown", None)

    def note_read(self, *, whole: bool) -> None:
        """Note unknown and special tokens, words and pools."""
        notes, of = self.notes, f"of {self.furthest + 1}"
        if self.unknown > _MANY_UNKNOWN * self.tokens:
            notes["unknown"] = (
                f"{self.unknown / self.tokens:.0%} of the tokens are {self.loaded.tokenizer.unk_token}, unknown to the "
                "tokenizer: is the model made for such text?"
            )
        if self.doubled:
            notes["doubled"] = (
                f"{count(self.doubled, 'window')} {of} begin or end with the same special token twice, as where a "
                "tokenizer adds it to texts that have it already: remove it from the texts."
            )
        if self.packed:
            notes["packed"] = (
                f"{count(self.packed, 'window')} {of} seem to hold several documents, with a special token between "
                "them, which are read as one text: later documents attend to earlier ones. Give each document as its "
                "own text."
            )
        if self.words is not None:
            across, tokens = self.words.across, self.words.tokens
            over = f" {across} of {tokens} tokens reach over the end of a word: they count to their first."
            notes["words"] = (
                f"Tokens are merged to words ({self.words.rule.signature}): their queries averaged, their keys summed. "
                f"Wherever it says tokens, words are meant: lengths, offsets, rows.{over if across else ''}"
            )
        if self.asked.pool is not None:
            apart = ", each of texts of one value" if self.first.by else ""
            notes["pool"] = (
                f"Windows are in pools of {self.asked.pool} or more, cut at documents{apart}: wherever it says texts, "
                "pools are meant."
            )
        if whole:
            self._tell(self._of_all())

    def pass_over(self, items: Sequence[Window]) -> None:
        """Count the windows of a batch, and tell how far the scan is."""
        unknown = getattr(self.loaded.tokenizer, "unk_token_id", None)
        for window in (side for pair in items for side in (pair, pair.target) if side is not None):
            self.tokens += len(window)
            self.unknown += 0 if unknown is None else window.ids.count(unknown)
        self.doubled += sum(map(has_twice, items))
        if not self.is_chat:
            looks_back = any(site.kind == "causal" for site in self.sites)
            self.packed += sum(is_packed(window, self.loaded.tokenizer, looks_back=looks_back) for window in items)
        self.seen += len(items)
        self.share += sum(map(_characters, items)) / self.characters
        share = max(self.share, self.seen / self.asked.limit if self.asked.limit else 0.0)
        self._tell(self._of_all() * min(1.0, share))

    def _of_all(self) -> float:
        """Share of the work that the batches are."""
        return self.characters / (self.characters + self.again)

    def _tell(self, share: float) -> None:
        self.progress(Progress("scan", share, {"windows": self.seen}))

    def lengths(self, read: Read) -> dict[str, np.ndarray]:
        """How many tokens, or words, each window has, its target and the rows that were measured."""
        lengths = super().lengths(read)
        if self.first.target is not None:
            target = (read.batch if read.words is None else read.words.words).target
            lengths["target_length"] = target.valid.sum(1).cpu().numpy()
        if self.asked.rows is not None:
            lengths["sampled_rows"] = np.minimum(lengths["length"], self.asked.rows)
        return lengths

    def layer_done(self, passes: int) -> Callable[[], None]:
        """Report how far the windows of the page are."""
        begun, layers = self._of_all(), 0

        def done() -> None:
            nonlocal layers
            layers += 1
            self._tell(begun + (1 - begun) * layers / passes)

        return done

    def _check(self) -> None:
        """Reject a model that cannot be measured, on the first window, before anything is written."""
        first = self.read([self.first], [0])
        inputs = first.batch.inputs(self.model)
        self.verify(first)
        if self.asked.rows is not None:
            self.notes["rows"] = rows_note(self.asked.rows, self.names)
        if "way" in self.notes:
            self._note_capture(first)
        if is_causal_model(self.model) and any(site.kind == "self" for site in self.sites):
            self.notes["causality"] = (
                f"{type(self.model).__name__} is a causal language model by its kind, but its attention sees "
                "later tokens: it is measured as bidirectional."
            )
        if {"band_sum", "bin_sum"} <= set(self.names):
            self.notes |= bias_note(self.model, inputs)
        if self.batch_size > 1 and self._padding_matters():
            self.batch_size = 1
            self.notes["padding"] = (
                f"{type(self.model).__name__} gives a text other numbers in a padded batch: windows are "
                "measured one at a time."
            )

    def _note_capture(self, first: Read) -> None:
        """What a model off the registry shows: its weights, of layers that may have other positions than tokens."""
        name = type(self.model).__name__
        pooled: list[Site] = []

        def look(site: Site, call: AttentionCall) -> Tensor:
            tokens = [side.input_ids.shape[1] for side in first.batch.sides(site.kind)]
            if [call.query.shape[2], call.key.shape[2]] != tokens:
                pooled.append(site)
            return call.query

        self.run(first, look)
        if pooled:
            self.batch_size = 1  # which of these places is padding is not known
            layers = ", ".join(str(site.index) for site in pooled)
            self.notes["places"] = (
                f"In layers {layers} of {name} queries or keys are not one for each token (pooled tokens, a prompt): "
                "offsets and lengths are counted in their own places there, and no place is a special token."
            )

    def _padding_matters(self) -> bool:
        """Whether a text beside a longer one differs from itself alone: the first window and a part of it show."""
        long = _cut(self.first, _PADDED)
        texts = [long, _cut(long, max(1, len(long) // 2))]
        alone, beside = (
            [self.read(batch, [0, 1]).batch.inputs(self.model) for batch in batches]
            for batches in ([[text] for text in texts], [texts])
        )
        return len(long) > 1 and padding_difference(self.model, beside[0], alone) > 1

    def settings(self) -> dict[str, Any]:
        """What the numbers depend on beside the model and the texts."""
        asked, rule = self.asked, None if self.words is None else self.words.rule
        seldom = {
            "by": asked.by,
            "offsets": list(self.chosen) or None,
            "pool": asked.pool,
            "rows": asked.rows,
            "until": asked.until,
            "groups": None if self.grouping is None else self.grouping.signature,
            "words": None if rule is None else rule.signature,
            "merging": None if rule is None else "queries averaged, keys summed",
        }
        return (
            super().settings()
            | {"statistics": [name for name in self.names if name not in OF_POOLED_GROUPS]}
            | {"batch_size": self.batch_size, "window": asked.window, "stride": asked.stride}
            | {"clusters": asked.clusters}
            | {name: value for name, value in seldom.items() if value is not None}
        )

    def signature(self) -> Signature:
        """All that the numbers depend on."""
        return signature_of("scan", self.loaded, self.source, self.target, self.settings())


def statistics_of(loaded: LoadedModel, windows: Sequence[Window], *, band: int = 10) -> xr.Dataset:
    """What `scan` finds on these windows, kinds of heads included."""
    longest = max(max(len(window), len(window.target or window)) for window in windows)
    corpus = EncodedTexts([list(window.ids) for window in windows])
    asked = ScanSettings(band=max(1, min(band, longest - 1)))
    reader = TextReader(loaded, windows, corpus, asked, choose(None), longest, show=False)
    results = joined([batch for batch in reader.batches() if batch is not None])
    kinds = summarize(results, clusters=None, seed=0)
    return results.merge(kinds, combine_attrs="no_conflicts").assign_attrs(reader.notes)


def text_reader(model: Model, texts: Sources, asked: ScanSettings, *, show: bool) -> TextReader:
    """Load the model and open the texts; `show` asks for the attention over the first windows."""
    stride = asked.stride
    check_whole(2, clusters=asked.clusters)
    corpus, target = read_sides(
        texts,
        asked.targets,
        field=asked.field,
        by_line=asked.by_line,
        stride=stride,
        chat=asked.chat,
        chat_template=asked.chat_template,
        by=asked.by,
        with_inputs=True,
    )
    grouping = grouping_for(asked.groups, corpus)
    brought = {} if asked.offsets is None else OF_OFFSETS
    if grouping is not None:
        brought = brought | OF_GROUPS | ({} if asked.pool is None else OF_POOLED_GROUPS)
    names = choose(asked.statistics, brought=brought)
    _reject_together(asked, names, grouped=grouping is not None)
    rule = None if asked.words is None else word_rule_of(asked.words)
    tokenizer = cast("Tokenizer", asked.processor)  # what reads no text is rejected
    loaded = load_model(model, tokenizer=tokenizer, **vars(asked.loading))
    length = window_length(loaded, asked.window)
    if isinstance(corpus, Chats):
        corpus = corpus.read_with(loaded.tokenizer)
    windows, longest = _windows(corpus, target, loaded, length=length, stride=stride, limit=asked.limit)
    _reject_beyond(asked.band or BAND, asked.rows, length)
    chosen = _chosen(asked.offsets, length)
    worded = None
    if rule is not None:
        windows = worded = WordedWindows(windows, rule.over(windows))
    if grouping is not None:
        grouping = grouping.over(windows)
        windows = GroupedWindows(windows, grouping)
    reader = TextReader(
        loaded,
        windows,
        corpus,
        replace(asked, window=length),
        (*names, *(OF_OFFSETS if chosen else ())),
        longest,
        show=show,
        target=target,
        grouping=grouping,
        words=worded,
        chosen=chosen,
    )
    reader.attributes |= decoder_note(loaded.model, with_target=target is not None)
    reader.attributes |= beyond_note(loaded, length) | observation_note(names, asked.observation, length)
    return reader


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


def _reject_together(asked: ScanSettings, names: Sequence[str], *, grouped: bool) -> None:
    """Refuse what cannot be measured in one scan."""
    if asked.clusters is not None and "band_sum" not in names:
        raise AttnscopeError(
            "clusters (--clusters) are of offset profiles: measure band_sum too (--statistics band_sum), or leave "
            "clusters out"
        )
    if asked.rows is None:
        return
    if grouped or asked.words is not None:
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


def _cut(window: Window, length: int) -> Window:
    """The first tokens of a window, and of its target."""
    names = ("ids", "special", "spans", "tokens", "roles", "groups", "words")
    parts = {name: getattr(window, name)[:length] for name in names}
    inputs = {name: values[(slice(length),) * values.ndim] for name, values in window.inputs.items()}
    target = None if window.target is None else _cut(window.target, length)
    return replace(window, **parts, inputs=inputs, target=target)


def _characters(window: Window) -> int:
    """Characters of the text that a window covers."""
    return max(end for _, end in window.spans) - window.start
