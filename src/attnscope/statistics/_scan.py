"""`scan`: where does every head look? A corpus through a model, statistics per text, labels, signature."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr

from attnscope.bundled import MODEL
from attnscope.capture import (
    LoadedModel,
    Site,
    borrowing,
    configured_length,
    decoder_note,
    decoder_start,
    forward,
    layer_coordinates,
    load_model,
    padding_difference,
    position_table_length,
    should_look_back,
    verify,
    watching,
)
from attnscope.checks import check_seed, check_whole
from attnscope.corpus import (
    EncodedTexts,
    LinePairs,
    Sources,
    Texts,
    Window,
    texts_and_targets,
    window_name,
    windows_of,
)
from attnscope.errors import AttnscopeError
from attnscope.progress import Progress, Tell, tell_nobody
from attnscope.statistics._catalogue import bin_coordinates, choose
from attnscope.statistics._pass import StatisticsObserver, dimensions, wording
from attnscope.statistics._places import NEEDED
from attnscope.statistics._reading import Reading
from attnscope.statistics._sample import (
    ROWS,
    WEIGHTS,
    WINDOWS,
    MapObserver,
    sample_dataset,
    shown_heads,
    tile_size,
)
from attnscope.statistics._stored import SAMPLE, SUMMARY, keeps_maps_of, load_scan
from attnscope.statistics._summary import summarize
from attnscope.store import RunFolder, Signature, package_versions, tokenizer_sha256

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LONGEST_DEFAULT = 2048  # tokens: a longer window must be asked for
FLUSH_BYTES = 1 << 26  # results wait in memory for at most so many bytes,
FLUSH_SECONDS = float(os.environ.get("ATTNSCOPE_FLUSH_SECONDS", "5"))  # so many seconds,
FLUSH_SHARE = 0.02  # or this share of the time that the run took so far: a long run has few pieces
_PADDED = 64  # tokens that tell whether padding matters


@borrowing
def scan(
    model: str | Path | PreTrainedModel | None = None,
    texts: Sources = None,
    *,
    targets: Sources = None,
    tokenizer: Any = None,
    out: str | Path | Callable[[Signature], Path] | None = None,
    repair: bool = False,
    window: int | None = None,
    stride: int | None = None,
    limit: int | None = None,
    batch_size: int | None = None,
    statistics: Sequence[str] | str | None = None,
    band: int = 10,
    clusters: int | None = None,
    seed: int = 0,
    field: str | None = None,
    by_line: bool = False,
    device: str | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    show: Sequence[tuple[int, int]] | None = None,
    progress: Tell | None = None,
) -> xr.Dataset:
    """Measure where every attention head of a model looks, over a corpus.

    Parameters
    ----------
    model
        A folder, a hub id, or a loaded model (then with its `tokenizer`). By default the bundled one.
    texts
        Strings are texts themselves; `Path` objects are files or folders (``Path("-")`` is standard input); one of
        them, or any iterable: a list, a generator, a column of a table. A string that is or looks like a file's name
        (``"essay.txt"``) is refused. Or token ids, each row a window as it stands: what a tokenizer returns, a tensor,
        lists of whole numbers. By default the bundled sample. A file must not change before the scan has ended.
    targets
        Translations of `texts`, for an encoder-decoder: one sentence a line on both sides (each string is one), line i
        beside line i. The decoder reads them as in training, after its start token. Without them it reads what the
        encoder reads.
    tokenizer
        A tokenizer or its folder; by default the one beside the model.
    out
        Run folder, or a function that names it from the signature. With it, results are written as they come,
        and a run that was stopped goes on. ``.encoding["source"]`` of the result holds the folder.
    repair
        Whether to measure again what was damaged in a finished run; else such a run is refused.
    window
        Tokens of a window, special tokens included; by default what the model takes, at most 2,048. With `targets`, the
        most that a line may have.
    stride
        Tokens between the starts of windows; by default windows do not overlap.
    limit
        Windows to measure; by default all.
    batch_size
        Windows at a time; by default about 2,048 tokens' worth (with `targets`, of the longest line).
    statistics
        Names from ``attnscope.statistics.STATISTICS``, as a list or as one string with commas between; by default
        all but ``learned_sink``, which few models have. The kinds of heads need ``band_sum``, ``bin_sum``, ``entropy``,
        ``first_token``, ``special_tokens`` and ``mean_offset``; with `clusters` the first is enough.
    band
        Largest offset of the band: offsets ``-band..band``.
    clusters, seed
        Number of kinds of heads, found by k-means over profiles, as the papers do; and the seed of that. By default
        kinds are named by what is measured of each head, and are as many as there are: see `summarize`.
    field
        Which field of JSON Lines holds the text.
    by_line
        Take every line of other files as a text of its own.
    device, dtype, revision, trust_remote_code
        See `attnscope.capture.load_model`.
    show
        Keep the attention over the first windows in the run folder, for its page: these heads (layer, head) and those
        that lead the rankings token by token, the others in tiles; where there is room, all heads token by token. None
        keeps none.
    progress
        Called with a `Progress` after each batch, and after each layer of the windows that are kept; it tells of
        ``windows`` done.

    Returns
    -------
    xarray.Dataset
        Dimensions ``text, layer, head, offset, offset_bin, cluster``. Each entry of ``text`` is one window. Variables,
        per text, layer and head: ``band_sum`` (tr_t), ``bin_sum`` (all offsets, in bins that double: ``bin_first`` to
        ``bin_last``), ``profile`` (mean weight at an offset), ``outside``, ``entropy``
        (nats, mean over rows), ``first_token``, ``special_tokens``, ``mean_offset``, ``offset_spread`` (tokens),
        ``max_weight``, ``gini_simpson`` (1 - sum of squared weights), ``label``; per text ``length``, and with
        `targets` ``target_length``, the number of queries of the decoder's layers; per head ``label_share``,
        ``majority_share``, ... and per text and layer ``equal_band_sum``, ``equal_entropy``, ...: what equal weights
        over the visible tokens give. In cross-attention, queries are target tokens and keys source tokens. The
        attribute ``signature`` holds, as JSON, all that the numbers depend on; ``decoder`` says what a decoder beside
        an encoder read, ``kinds`` how many heads are of which kind, ``causality`` and ``padding`` what is not as
        expected.

    Raises
    ------
    AttnscopeError
        For anything that the caller can mend: see the message.

    Examples
    --------
    >>> found = scan(texts=["The tide comes in twice a day, and twice a day it goes out again."])
    >>> dict(found.profile.sizes)
    {'text': 1, 'layer': 3, 'head': 4, 'offset': 21}
    >>> bool((found.band_sum.sum("offset") / found.length + found.outside - 1 < 1e-6).all())
    True
    """
    names = choose(statistics)
    has_kinds = set(NEEDED) <= set(names) or (clusters is not None and "band_sum" in names)
    check_whole(1, window=window, stride=stride, limit=limit, batch_size=batch_size, band=band)
    if clusters is not None:
        check_whole(2, clusters=clusters)
    check_seed(seed)
    lines: dict[str, Any] = {
        "field": field,
        "by_line": by_line or targets is not None,
        "blank_lines": targets is not None,
    }
    corpus, target = texts_and_targets(texts, targets, **lines)
    if target is not None and stride is not None:
        raise AttnscopeError(
            "stride is of windows in running text; with targets every line is a window: leave it out"
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
    if target is None or isinstance(corpus, EncodedTexts):
        windows = windows_of(corpus, loaded.tokenizer, length=length, stride=stride, limit=limit)
        longest = length
    else:
        start = decoder_start(loaded.model)
        windows = LinePairs(corpus, target, loaded.tokenizer, start, length=length, limit=limit)
        longest = windows.check()
    if band >= length:
        raise AttnscopeError(
            f"band (--band) is {band}; in windows of {length} tokens the largest offset is {length - 1}"
        )
    size = batch_size or max(1, 2048 // longest)
    show_maps = out is not None and show is not None
    job = _Job(loaded, windows, names, band, longest - 1, size, limit, corpus, progress, show=show_maps)
    job.check()
    settings = {
        "window": length,
        "stride": stride,
        "limit": limit,
        "batch_size": job.batch_size,
        "statistics": list(names),
        "band": band,
        "clusters": clusters,
        "seed": seed,
        "device": loaded.model.device.type,
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
    }
    signature = Signature(
        "scan",
        model={"name": loaded.name, "class": type(loaded.model).__name__, **loaded.identity},
        tokenizer={"sha256": tokenizer_sha256(loaded.tokenizer)},
        corpus={"sha256": corpus.sha256()},
        target=None if target is None else {"sha256": target.sha256()},
        settings=settings,
        versions=package_versions(),
    )
    attributes = {"signature": signature.to_json(), "model": loaded.name}
    attributes |= decoder_note(loaded.model, with_target=target is not None) | job.notes
    if out is None:
        results = _joined(list(job.batches()))
        if has_kinds:
            results = results.merge(
                summarize(results, clusters=clusters, seed=seed), combine_attrs="no_conflicts"
            )
        return results.assign_attrs(attributes)
    with RunFolder(Path(out(signature) if callable(out) else out), signature, repair=repair) as run:
        if not run.complete:
            job.into(run)
            if has_kinds:
                run.save(SUMMARY, summarize(run.results(), clusters=clusters, seed=seed))
            run.finish(attributes=attributes)
        results = load_scan(run)
        if show is not None and run.is_writable() and not keeps_maps_of(run, show):
            run.save(SAMPLE, job.sample(results, show))
        return results


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


class _Job:
    """The forward passes of one scan."""

    def __init__(
        self,
        loaded: LoadedModel,
        windows: Iterable[Window],
        names: Sequence[str],
        band: int,
        reach: int,
        batch_size: int,
        limit: int | None,
        corpus: Texts,
        progress: Tell | None,
        *,
        show: bool,
    ) -> None:
        self.loaded, self.windows, self.names, self.band = loaded, windows, names, band
        self.reach = reach
        self.batch_size, self.limit = batch_size, limit
        self.progress = progress or tell_nobody
        self.shown = list(islice(windows, WINDOWS)) if show else []
        self.first = self.shown[0] if show else next(iter(windows))
        self.again = sum(map(_characters, self.shown))  # what is read once more, for the page
        self.characters = corpus.characters()
        self.seen = 0
        self.sites: list[Site] = []
        self.notes: dict[str, str] = {}

    def into(self, run: RunFolder) -> None:
        """Measure what the run still lacks, and add it as it comes."""
        waiting: list[xr.Dataset] = []
        began = last = time.monotonic()
        try:
            for results in self.batches(run.holds):
                if waiting and results.text[0] != waiting[-1].text[-1] + 1:
                    waiting = _flushed(run, waiting)
                waiting.append(results)
                now = time.monotonic()
                full = sum(one.nbytes for one in waiting) >= FLUSH_BYTES
                if full or now - last > max(FLUSH_SECONDS, FLUSH_SHARE * (now - began)):
                    ready, waiting = waiting, []
                    _flushed(run, ready)
                    last = time.monotonic()
        except BaseException:
            _flushed(run, waiting)  # what was measured stays, whatever came between
            raise
        _flushed(run, waiting)

    def batches(self, done: Callable[[range], bool] = lambda _: False) -> Iterator[xr.Dataset]:
        """Measure batch after batch, but those that are done."""
        share = 0.0
        first = self.characters / (self.characters + self.again)
        for batch in _chunked(self.windows, self.batch_size):
            texts = range(self.seen, self.seen + len(batch))
            self.seen += len(batch)
            share += sum(_characters(window) for window in batch) / self.characters
            if not done(texts):
                yield self._measure(batch, texts.start)
            self._tell(first * min(1.0, max(share, self.seen / self.limit if self.limit else 0.0)))
        self._tell(first)

    def _tell(self, share: float) -> None:
        self.progress(Progress("scan", share, {"windows": self.seen}))

    def _reading(self, batch: Sequence[Window]) -> Reading:
        tokenizer = self.loaded.tokenizer
        pad = tokenizer.pad_token_id
        pad_id = pad if pad is not None else tokenizer.eos_token_id or 0
        return Reading.of(batch, pad_id, self.loaded.model.device)

    def check(self) -> None:
        """Refuse a model that cannot be measured, on the first window, before anything is written."""
        inputs = self._reading([self.first]).inputs(self.loaded.model)
        self.sites, _ = verify(self.loaded.model, inputs, text=window_name(self.first, 0))
        if should_look_back(self.loaded.model) and any(site.kind == "self" for site in self.sites):
            self.notes["causality"] = (
                f"{type(self.loaded.model).__name__} is a causal language model by its kind, but its attention sees "
                "later tokens: it is measured as bidirectional."
            )
        if self.batch_size > 1 and self._padding_matters():
            self.batch_size = 1
            self.notes["padding"] = (
                f"{type(self.loaded.model).__name__} gives a text other numbers in a padded batch: windows are "
                "measured one at a time."
            )

    def _padding_matters(self) -> bool:
        """Whether a text beside a longer one differs from itself alone: the first window and a part of it tell."""
        long = _cut(self.first, _PADDED)
        texts = [long, _cut(long, max(1, len(long) // 2))]
        model = self.loaded.model
        alone = [self._reading([text]).inputs(model) for text in texts]
        return len(long) > 1 and padding_difference(model, self._reading(texts).inputs(model), alone) > 1

    @torch.no_grad()
    def _measure(self, batch: Sequence[Window], first: int) -> xr.Dataset:
        reading = self._reading(batch)
        observer = StatisticsObserver(self.names, self.band, reading, self.reach)
        with watching(self.loaded.model, observer):
            forward(
                self.loaded.model,
                reading.inputs(self.loaded.model),
                lambda text: window_name(batch[text], first + text),
                lambda kind: reading.sides(kind)[0].valid,
            )
        arrays = observer.stacked()
        heads = next(iter(arrays.values())).shape[2]
        sizes = {"length": reading.text}
        if self.first.target is not None:
            sizes["target_length"] = reading.target
        return xr.Dataset(
            {name: (dimensions(name), array, wording(name)) for name, array in arrays.items()}
            | {
                name: ("text", text.valid.sum(1).cpu().numpy(), {"long_name": "tokens", "units": "tokens"})
                for name, text in sizes.items()
            }
            | {
                "source": ("text", np.array([window.source for window in batch], dtype=object)),
                "start": ("text", np.array([window.start for window in batch], dtype=np.int64)),
            },
            coords={
                "text": np.arange(first, first + len(batch)),
                **layer_coordinates(self.sites),
                "head": np.arange(heads),
                "offset": np.arange(-self.band, self.band + 1),
                **({} if "bin_sum" not in arrays else bin_coordinates(self.band, self.reach)),
            },
        ).set_coords(["source", "start"])

    @torch.no_grad()
    def sample(self, results: xr.Dataset, asked: Sequence[tuple[int, int]]) -> xr.Dataset:
        """The attention over the first windows."""
        model, heads = self.loaded.model, results.sizes["head"]
        longest = min(ROWS, max(max(len(one), len(one.target or one)) for one in self.shown))
        listed = [
            shown_heads(results, asked, longest, windows) for windows in (1, *[WINDOWS] * (WINDOWS - 1))
        ]
        others = len(self.sites) * heads - len(listed[0])
        passes = len(self.shown) * len(self.sites)
        begun = self.characters / (self.characters + self.again)
        layers_done = 0

        def layer_done() -> None:
            nonlocal layers_done
            layers_done += 1
            self._tell(begun + (1 - begun) * layers_done / passes)

        observed: list[MapObserver] = []
        left = WEIGHTS
        for window, of_window in zip(self.shown, listed, strict=False):
            tile = tile_size(others, longest) if others and not observed else 0
            room = 2 * left // (len(self.shown) - len(observed) + 1)
            observer = MapObserver(of_window, room, tile, layer_done)
            with watching(model, observer):
                model(**self._reading([window]).inputs(model))
            left -= sum(len(keys) for _, keys, _, _ in observer.maps.values())
            observed.append(observer)
        kinds = [site.kind for site in self.sites]
        decoder = model.config.is_encoder_decoder
        return sample_dataset(observed, self.shown, kinds, heads, asked, with_decoder=decoder)


def _flushed(run: RunFolder, waiting: Sequence[xr.Dataset]) -> list[xr.Dataset]:
    """Add what waits to the run; nothing waits then."""
    if waiting:
        run.append(_joined(waiting), int(waiting[0].text[0]))
    return []


def _joined(parts: Sequence[xr.Dataset]) -> xr.Dataset:
    return xr.concat(list(parts), "text", data_vars="minimal", coords="minimal", compat="override")


def _cut(window: Window, length: int) -> Window:
    """The first tokens of a window, and of its target."""
    parts = {name: getattr(window, name)[:length] for name in ("ids", "special", "spans", "tokens")}
    return replace(window, **parts, target=None if window.target is None else _cut(window.target, length))


def _characters(window: Window) -> int:
    """Characters of the text that a window covers."""
    return max(end for _, end in window.spans) - window.start


def _chunked(windows: Iterable[Window], size: int) -> Iterator[list[Window]]:
    batch: list[Window] = []
    for window in windows:
        batch.append(window)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
