"""Texts: windows of a corpus, chats, pairs of texts, in words, groups or pools; statistics of each window."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor

from attnscope.capture.borrow import LoadedModel
from attnscope.capture.families import configured_length, image_token_of
from attnscope.capture.forward import decoder_note, decoder_start
from attnscope.capture.load import Model
from attnscope.capture.placement import device_of, is_empty
from attnscope.capture.verify import is_causal_model, once_for_state, padding_difference
from attnscope.capture.watch import Site
from attnscope.kernels.call import AttentionCall
from attnscope.measure.contexts import strongest_examples
from attnscope.measure.labels import summarize
from attnscope.measure.offset_shares import bias_note
from attnscope.measure.passes import WindowBatch
from attnscope.measure.pools import in_pools, joined
from attnscope.measure.quantities import (
    DEFAULT,
    OF_GROUPS,
    OF_OFFSETS,
    OF_POOLED_GROUPS,
    STRONGEST,
    choose,
    needing_all,
)
from attnscope.measure.reader import BAND, UNIT, Read, Reader, chunked, heads_to_show, scan_settings
from attnscope.measure.row_samples import RowSample, rows_note
from attnscope.measure.sample import SAMPLE_WINDOWS, WordBatch
from attnscope.measure.stored import observation_note
from attnscope.opened import Opened
from attnscope.options import ScanReading
from attnscope.read.chats import Chats, ChatTexts, are_chats
from attnscope.read.encoded import EncodedTexts, Sources, Texts, windows_of
from attnscope.read.groups import GroupedWindows, Grouping, Groups, grouping_of, grouping_of_rows
from attnscope.read.picture_parts import PLACES
from attnscope.read.shown import Spans
from attnscope.read.sources import as_list
from attnscope.read.texts import Corpus
from attnscope.read.windows import LinePairs, Window, window_name
from attnscope.read.words import WordedWindows, WordRule, word_rule_of
from attnscope.support.ahead import ahead
from attnscope.support.checks import check_installed, shortly
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count
from attnscope.support.progress import Progress


def beyond_note(loaded: LoadedModel, length: int, subject: str = "Windows") -> dict[str, str]:
    """A note on windows beyond the length in the config, which rotary angles allow."""
    longest = configured_length(loaded.model.config.get_text_config())
    if not longest or longest < 1 or length <= longest:
        return {}
    return {
        "beyond": f"{subject} may have {length} tokens, more than the {longest} in the model's config "
        "(max_position_embeddings): heads may behave differently there."
    }


def first_windows(
    loaded: LoadedModel, corpus: Texts, target: Corpus | None, *, length: int, limit: int | None, restores: bool = False
) -> list[Window]:
    """The first windows of texts, with targets that a decoder reads, or that a masked language model restores."""
    if target is None or isinstance(corpus, EncodedTexts):
        return list(islice(windows_of(corpus, loaded.tokenizer, length=length, limit=limit), limit))
    start = None if restores else decoder_start(loaded.model)
    pairs = LinePairs(corpus, target, loaded.tokenizer, start, length=length, limit=limit)
    pairs.check()
    return list(islice(pairs, limit))


def read_sides(
    session: Opened,
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
    """Texts and targets; with targets all lines, also empty ones, so that line i matches line i."""
    paired = targets is not None
    session.texts = sources = as_list(session.texts)
    if chat or (not by_line and are_chats(sources, field)):
        if paired or by_line:
            other = "target (--target)" if paired else "by_line (--by-line)"
            raise AttnscopeError(f"the texts are chats and cannot be used with {other}: leave it out")
        if by is not None:
            raise AttnscopeError("by (--by) does not work with chats: leave it out")
        if sources is None:
            raise AttnscopeError("found no chat: name a file of JSON Lines with messages")
        return Chats(sources, field=field, template=chat_template), None
    if chat_template is not None:
        raise AttnscopeError("found a chat template, but the texts are not chats: leave it out, or add chat (--chat)")
    if by is not None and paired:
        raise AttnscopeError("by (--by) does not work with targets: leave it out")
    if by is not None and sources is None:
        raise AttnscopeError("the bundled sample has no fields: pass .jsonl files, or leave out by (--by)")
    corpus, target = session.read(
        targets, field=field, by_line=by_line or paired, blank_lines=paired, by=by, with_inputs=with_inputs
    )
    if target is not None and stride is not None:
        raise AttnscopeError("stride needs running text, but with targets every line is a window: leave it out")
    return corpus, target


def grouping_for(groups: Groups | None, corpus: Texts | Chats) -> Grouping | None:
    """The chosen groups; for chats, by default their roles."""
    is_chat = isinstance(corpus, Chats)
    if groups is None and isinstance(corpus, EncodedTexts) and "groups" in corpus.inputs:
        return grouping_of_rows()
    if isinstance(groups, str) and groups == "roles" and not is_chat:
        raise AttnscopeError(
            "roles need chats, but the texts are not chats: give JSON Lines with messages, or choose other groups"
        )
    if groups is None:
        return grouping_of("roles") if is_chat else None
    return grouping_of(groups)


BATCH_TOKENS = 2048  # of a batch, about
_PADDED = 32  # tokens of the test whether padding matters
_SHARED = 1000  # windows, at most, whose statistics later verbs of a session use
_MANY_UNKNOWN = 0.05  # share of unknown tokens that gets a note
OPERATIONS = 2e12  # of the forward passes of a unit: about 10 s on one core, less on anything larger
TURNS = 32  # units at least, so that no process waits long for another


class TextReader(Reader):
    """Windows of texts; `windows` are existing ones."""

    shows_received = True
    heads: Sequence[tuple[int, int]] = ()  # named by arguments

    def __init__(
        self, model: Model | None, texts: Sources, settings: ScanReading, windows: Sequence[Window] | None = None
    ) -> None:
        named = ("field", "by_line", "stride", "chat", "chat_template", "by")
        options: dict[str, Any] = {name: settings[name] for name in named}
        session = Opened.of(model, texts)
        corpus, target = read_sides(session, settings["targets"], with_inputs=True, **options)
        grouping = grouping_for(settings["groups"], corpus)
        of_offsets = () if settings["offsets"] is None else tuple(OF_OFFSETS)
        of_groups = () if grouping is None else (*OF_GROUPS, *(() if settings["pool"] is None else OF_POOLED_GROUPS))
        default = DEFAULT if settings["pool"] or settings["rows"] else (*DEFAULT, STRONGEST)
        names = choose(settings["statistics"], default=default, brought=(*of_offsets, *of_groups))
        word_rule = None if settings["words"] is None else word_rule_of(settings["words"])
        if isinstance(corpus, EncodedTexts) and "words" in corpus.inputs:
            if word_rule is not None:
                raise AttnscopeError("the token ids have words of their own: leave out words (--words)")
            word_rule = WordRule("given with the token ids", lambda _: [])
        _reject_together(settings, names, merges=grouping is not None or word_rule is not None)
        requested = heads_to_show(settings["show"])
        option = "show, --show" if requested else "heads, --heads"
        loaded = session.load(settings, heads=requested or self.heads, option=option)
        longest = length = session.length(settings["window"])
        if isinstance(corpus, Chats):
            corpus = corpus.read_with(loaded.tokenizer)
        limit, self.characters = settings["limit"], corpus.characters()
        if windows is not None:
            self.windows = windows
        elif target is not None and isinstance(corpus, Corpus):
            start = decoder_start(loaded.model)
            self.windows = LinePairs(corpus, target, loaded.tokenizer, start, length=length, limit=limit)
            longest = self.windows.check()
        else:
            self.windows = windows_of(corpus, loaded.tokenizer, length=length, stride=settings["stride"], limit=limit)
        _reject_beyond(settings, length)
        self.chosen = tuple(sorted(set(settings["offsets"] or ())))
        self.words = self.grouping = None
        if word_rule is not None:
            self.windows = self.words = WordedWindows(self.windows, word_rule.over(self.windows))
        if grouping is not None:
            self.grouping = grouping.over(self.windows)
            self.groups = self.grouping.names
            self.windows = GroupedWindows(self.windows, self.grouping)
        settings = scan_settings(settings, window=length)
        super().__init__(loaded, loaded.model, corpus, settings, (*names, *of_offsets, *of_groups))
        self.origin = model
        self.target, self.reach, self.band = target, longest - 1, settings["band"] or BAND
        self.session = session
        self.reader = session.reader if windows is None else None  # cut windows are signed by nobody
        self.batch_size = settings["batch_size"] or max(1, BATCH_TOKENS // longest)
        self.has_decoder = loaded.model.config.is_encoder_decoder
        several = list(islice(self.windows, SAMPLE_WINDOWS))
        self.shown = [] if requested is None else several
        # one token would show nothing of how a model attends
        self.first = max(several, key=lambda window: min(len(window), len(window.target or window)))
        again = sum(map(_characters, self.shown))  # read again for the page
        self.share_of_batches = self.characters / (self.characters + again)
        self.is_chat = isinstance(corpus, ChatTexts)
        self.notes |= corpus.notes if isinstance(corpus, EncodedTexts) else {}
        self.attributes |= decoder_note(loaded.model, with_target=target is not None)
        self.attributes |= beyond_note(loaded, length) | observation_note(names, settings["observation"], length)
        first = self.read([self.first], [0])
        self.verify(first)
        self._note_capture(first)

    @property
    def unit(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Batches or pools of a work unit, the same in every process."""
        limit, pool = self.settings["limit"], self.settings["pool"]
        windows = self.characters / max(1, _characters(self.first))
        windows = windows if limit is None else min(windows, float(limit))
        operations = 2.0 * len(self.first) * sum(parameter.numel() for parameter in self.model.parameters())
        wanted = min(OPERATIONS / operations, windows / TURNS)
        return max(UNIT if pool is None else 1, int(wanted // (pool or self.batch_size)))

    def result(self, nodes: dict[str, xr.Dataset], attributes: dict[str, str]) -> xr.Dataset:
        settings = self.settings
        if self.session.is_shared and self.folder is None and set(DEFAULT) <= set(self.names):
            more = (*map(settings.get, ("clusters", "pool", "rows", "until")), self.words, self.grouping)
            whole = nodes[self.command]
            if not any(more) and not self.chosen and whole.sizes["window"] <= _SHARED:
                self.session.keep(_key_of([*self.windows], self.band, self.batch_size, self.reach), whole)
        return super().result(nodes, attributes)

    def items(self) -> Iterable[Window]:
        return self.windows

    def first_items(self) -> list[Window]:
        return self.shown

    def name_of(self, window: Window, number: int) -> str:
        return window_name(window, number)

    def read(self, items: Sequence[Window], numbers: Sequence[int]) -> Read:  # noqa: ARG002
        tokenizer, device = self.loaded.tokenizer, device_of(self.model)
        piece = image_token_of(self.model.config) if self.settings["field"] is None else None
        if piece is not None:
            _reject_marks(items, [*PLACES.values(), str(tokenizer.convert_ids_to_tokens(piece))])
        pad = tokenizer.pad_token_id
        batch = WindowBatch.of(items, pad if pad is not None else tokenizer.eos_token_id or 0, device)
        return Read(batch, items, WordBatch.of(items, device) if items[0].words else None)

    def parts(self) -> Iterator[dict[int, Window]]:
        """Windows in batches or pools, numbered from 0."""
        self.share, self.tokens, self.unknown, self.doubled, self.packed = 0.0, 0, 0, 0, 0
        numbered, pool = enumerate(self.windows), self.settings["pool"]
        parts = chunked(numbered, self.batch_size) if pool is None else in_pools(numbered, pool)
        # words and groups are of functions of the caller, and counted as they are read
        is_counted = self.words is not None or self.grouping is not None or self.settings["until"] is not None
        return parts if is_counted or device_of(self.model).type == "cpu" else ahead(parts)

    def shapes(self) -> list[tuple[int, int]]:
        parts = chunked(enumerate(self.windows), self.batch_size)
        both = ((len(part), (side for one in part.values() for side in (one, one.target or one))) for part in parts)
        return [(number, max(map(len, sides))) for number, sides in both]

    def note_read(self, *, whole: bool) -> None:
        notes, of = self.notes, f"of {self.furthest + 1}"
        notes.pop("unknown", None)
        if self.unknown > _MANY_UNKNOWN * self.tokens:
            notes["unknown"] = (
                f"{self.unknown / self.tokens:.0%} of the tokens are {self.loaded.tokenizer.unk_token}, unknown to the "
                "tokenizer: check that the model is made for such text."
            )
        if self.doubled:
            notes["doubled"] = (
                f"{count(self.doubled, 'window')} {of} begin or end with the same special token twice. If the texts "
                "contain special tokens that the tokenizer adds too, remove them."
            )
        if self.packed:
            notes["packed"] = (
                f"{count(self.packed, 'window')} {of} seem to contain several documents with a special token between "
                "them, so later documents attend to earlier ones. Give each document as its own text."
            )
        if self.words is not None:
            across, tokens = self.words.across, self.words.tokens
            over = f" {across} of {tokens} tokens span several words and count as part of the first."
            notes["words"] = (
                f"Tokens are merged to words ({self.words.rule.signature}): queries are averaged, keys are summed. "
                f"Lengths, offsets and rows count words.{over if across else ''}"
            )
        if self.settings["pool"] is not None:
            pool, field = self.settings["pool"], self.settings["by"]
            by = f", each of one value of {field}" if self.first.by else ""
            notes["pool"] = f"Windows are in pools of {pool} or more, cut at documents{by}: each text here is a pool."
        if whole:
            self.progress(Progress("scan", self.share_of_batches, {"windows": self.seen}))

    def pass_over(self, items: Sequence[Window]) -> None:
        """Count the windows of a batch and their odd tokens, and report progress."""
        tokenizer = self.loaded.tokenizer
        unknown, begin, end = (getattr(tokenizer, f"{name}_token_id", None) for name in ("unk", "bos", "eos"))
        # in packed texts, a token that begins a text, or (in causal models) ends one, is between other tokens
        borders = {begin, end} if any(site.kind == "causal" for site in self.sites) else {begin} - {end}
        for window in items:
            for side in (window, window.target):
                if side is not None:
                    self.tokens += len(side)
                    self.unknown += 0 if unknown is None else side.ids.count(unknown)
            ids, special = window.ids, window.special
            if len(ids) > 2:  # noqa: PLR2004 both ends and some text
                begins_twice = ids[0] == ids[1] and special[0] and special[1]
                ends_twice = ids[-1] == ids[-2] and special[-1] and special[-2]
                self.doubled += begins_twice or ends_twice
            if not self.is_chat and False in special:
                first, last = special.index(False), len(special) - 1 - special[::-1].index(False)
                self.packed += not borders.isdisjoint(ids[first:last])
            self.share += _characters(window) / self.characters
        self.seen += len(items)
        share = max(self.share, self.seen / self.settings["limit"] if self.settings["limit"] else 0.0)
        self.progress(Progress("scan", self.share_of_batches * min(1.0, share), {"windows": self.seen}))

    def lengths(self, read: Read) -> dict[str, np.ndarray]:
        lengths = super().lengths(read)
        if self.first.target is not None:
            target = (read.batch if read.words is None else read.words.words).target
            lengths["target_length"] = target.valid.sum(1).cpu().numpy()
        if self.settings["rows"] is not None:
            lengths["sampled_rows"] = np.minimum(lengths["length"], self.settings["rows"])
        return lengths

    def windows_at(self, numbers: set[int]) -> dict[int, Window]:
        """Windows by their numbers, read again."""
        windows: dict[int, Window] = {}
        for number, window in enumerate(self.items()):
            if number in numbers:
                windows[number] = window
            if len(windows) == len(numbers):
                break
        return windows

    def examples(self, results: xr.Dataset) -> xr.Dataset | None:
        """The examples on the page; None if the strongest rows were not measured."""
        return strongest_examples(results, self.windows_at) if STRONGEST in results else None

    def layer_done(self, passes: int) -> Callable[[], None]:
        layers, done_before = 0, self.share_of_batches

        def done() -> None:
            nonlocal layers
            layers += 1
            self.progress(Progress("scan", done_before + (1 - done_before) * layers / passes, {"windows": self.seen}))

        return done

    def _note_capture(self, first: Read) -> None:
        """Notes on the model's attention from the first window, before anything is written."""
        if is_empty(self.model):
            return
        name, inputs = type(self.model).__name__, first.batch.inputs(self.model)
        if self.settings["rows"] is not None:
            self.notes["rows"] = rows_note(self.settings["rows"], self.names)
        if "eager" in self.notes:
            self._note_pooled(first)
        if is_causal_model(self.model) and any(site.kind == "self" for site in self.sites):
            self.notes["causality"] = (
                f"{name} is a causal language model, but its attention sees later tokens: it is measured as "
                "bidirectional."
            )
        has_offsets, in_batches = {"band_sum", "bin_sum"} <= set(self.names), self.batch_size > 1
        passes = partial(self._of_first, inputs, has_offsets=has_offsets, in_batches=in_batches)
        notes, padding_matters = once_for_state(self.model, inputs, (has_offsets, in_batches), passes)
        self.notes |= notes
        if padding_matters:
            self.batch_size = 1
            self.notes["padding"] = f"Padding changes the numbers of {name}, so windows are measured one at a time."

    def _of_first(self, inputs: dict[str, Any], *, has_offsets: bool, in_batches: bool) -> tuple[dict[str, str], bool]:
        """The notes that take passes of the first window, and whether padding matters."""
        notes = bias_note(self.model, inputs) if has_offsets else {}
        return notes, in_batches and self._padding_matters()

    def _note_pooled(self, first: Read) -> None:
        """Note layers over other positions than tokens, in a model outside the registry."""
        pooled: list[Site] = []

        def look(site: Site, call: AttentionCall) -> Tensor:
            tokens = [side.input_ids.shape[1] for side in first.batch.sides(site.kind)]
            if [call.query.shape[2], call.key.shape[2]] != tokens:
                pooled.append(site)
            return call.query

        self.run(first, look)
        if pooled:
            self.batch_size = 1  # the padding of these positions is unknown
            layers = ", ".join(str(site.index) for site in pooled)
            self.notes["positions"] = (
                f"Layers {layers} of {type(self.model).__name__} attend over other positions than tokens (pooled "
                "tokens, a prompt): offsets and lengths count these positions, and none is a special token."
            )

    def _padding_matters(self) -> bool:
        """Whether a text has other numbers in a batch with a longer one: tested on a part of the first window."""
        long = _cut(self.first, _PADDED)
        if len(long) < 2:  # noqa: PLR2004 no part of it is shorter
            return False
        texts = [long, _cut(long, len(long) // 2)]
        beside, *alone = (self.read(batch, [0, 1]).batch.inputs(self.model) for batch in (texts, texts[:1], texts[1:]))
        return padding_difference(self.model, beside, alone, with_head=False) > 1

    def signature_settings(self) -> dict[str, Any]:
        settings, rule = self.settings, None if self.words is None else self.words.rule
        seldom = {
            "by": settings["by"],
            "offsets": list(self.chosen) or None,
            "pool": settings["pool"],
            "rows": settings["rows"],
            "until": settings["until"],
            "groups": None if self.grouping is None else self.grouping.signature,
            "words": None if rule is None else rule.signature,
            "merging": None if rule is None else "queries averaged, keys summed",
        }
        return (
            super().signature_settings()
            | {"statistics": [name for name in self.names if name not in OF_POOLED_GROUPS]}
            | {"batch_size": self.batch_size, "window": settings["window"], "stride": settings["stride"]}
            | {"clusters": settings["clusters"]}
            | {name: value for name, value in seldom.items() if value is not None}
        )


def _key_of(windows: Sequence[Window], band: int, batch_size: int, reach: int) -> tuple[object, ...]:
    """All that the default statistics of windows depend on, besides the model."""
    return "statistics", tuple(windows), band, batch_size, reach


def statistics_of(
    loaded: LoadedModel, windows: Sequence[Window], *, band: int = 10, session: Opened | None = None
) -> xr.Dataset:
    """The result of `scan` on these windows, with labels; that of a session's scan, if it measured the same."""
    longest = max(max(len(window), len(window.target or window)) for window in windows)
    band = max(1, min(band, longest - 1))
    if session is not None and session.is_shared:
        scanned = session.kept(_key_of(windows, band, max(1, BATCH_TOKENS // longest), longest - 1))
        if scanned is not None:
            return scanned
    settings = scan_settings({}, band=band, window=longest, statistics=DEFAULT)
    reader = TextReader(loaded, [list(window.ids) for window in windows], settings, windows)
    results = joined([reader.measure(batch) for batch in reader.batches()])
    kinds = summarize(results, clusters=None, seed=0)
    return results.merge(kinds, combine_attrs="no_conflicts").assign_attrs(reader.notes)


def _reject_beyond(settings: ScanReading, length: int) -> None:
    """Reject offsets and rows beyond windows of this length."""
    band, rows, offsets = settings["band"] or BAND, settings["rows"], settings["offsets"]
    if band >= length:
        raise AttnscopeError(
            f"band (--band) is {band}; in windows of {length} tokens the largest offset is {length - 1}: give a "
            "smaller band, or a longer window (--window)"
        )
    if rows is not None and rows >= length:
        raise AttnscopeError(
            f"rows (--rows) is {rows}, but windows have only {length} tokens, so nothing would be sampled: choose "
            "fewer, or leave rows out"
        )
    if offsets is None:
        return
    if not len(offsets):
        raise AttnscopeError("offsets (--offsets) is empty: give some, such as -1,-64, or leave it out")
    beyond = [offset for offset in offsets if abs(offset) >= length]
    if beyond:
        raise AttnscopeError(
            f"offsets (--offsets) has {shortly(beyond[0])}; in windows of {length} tokens they are {1 - length} to "
            f"{length - 1}: choose among these, or use a longer window (--window)"
        )


def _reject_together(settings: ScanReading, names: Sequence[str], *, merges: bool) -> None:
    """Reject settings that cannot be combined in one scan."""
    if settings["until"] is not None and settings["task"] is not None:
        raise AttnscopeError(
            "until (--until) needs the whole run, and a task (--task) has a part of it: leave out one of them"
        )
    if settings["clusters"] is not None:
        check_installed("clusters (--clusters)", "sklearn", "sklearn")
    if settings["clusters"] is not None and "band_sum" not in names:
        raise AttnscopeError(
            "clusters (--clusters) need offset profiles: add band_sum (--statistics band_sum), or leave clusters out"
        )
    if STRONGEST in names and (settings["pool"] or settings["rows"]):
        raise AttnscopeError(f"{STRONGEST} needs all rows of single windows: leave out rows (--rows) or pool (--pool)")
    if settings["rows"] is None:
        return
    RowSample(settings["rows"])
    if settings["pool"] is not None:
        raise AttnscopeError("rows (--rows) are drawn from single windows: leave out rows or pool (--pool)")
    if merges:
        raise AttnscopeError("groups and words need all rows: leave out rows (--rows), or groups and words")
    whole = needing_all(names)
    if whole:
        raise AttnscopeError(f"{whole[0]} needs all rows: leave out rows (--rows), or {whole[0]}")


def _cut(window: Window, length: int) -> Window:
    """The first tokens of a window, and of its target."""
    names = ("ids", "special", "spans", "shown", "roles", "groups", "words")
    parts = {name: getattr(window, name)[:length] for name in names}
    inputs = {name: values[(slice(length),) * values.ndim] for name, values in window.inputs.items()}
    target = None if window.target is None else _cut(window.target, length)
    return replace(window, **parts, inputs=inputs, target=target)


def _reject_marks(windows: Sequence[Window], marks: Sequence[str]) -> None:
    """Reject texts with the mark of an image or a video that was not found with them."""
    for window in windows:
        mark = next((mark for mark in marks if mark in window.text), None)
        if mark:
            raise AttnscopeError(
                f"{window.source} has the mark {mark}, but names none in its field image, images, video or videos; "
                "expected JSON Lines (.jsonl) with the path of each. To read the text alone, name its field (--field "
                "text)"
            )


def _characters(window: Window) -> int:
    """The number of characters of a window."""
    spans = window.spans
    end = int(spans.ends[:, 1].max()) if isinstance(spans, Spans) else max(spans, key=itemgetter(1))[1]
    return end - window.start
