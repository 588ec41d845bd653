"""`view`: the attention of one text at once, in a notebook or on a page."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope.capture.borrow import LoadedModel
from attnscope.capture.watch import Site
from attnscope.kernels.call import AttentionCall, call_of_weights
from attnscope.kernels.engines import output_of
from attnscope.kernels.full import row_weights
from attnscope.measure.images import ImageReader
from attnscope.measure.maps import weight_rows
from attnscope.measure.pictured_generation import PromptsWithImages
from attnscope.measure.raw import first_window, observe_window
from attnscope.measure.reader import Reader, scan_settings
from attnscope.measure.scan import READERS
from attnscope.opened import Opened
from attnscope.read.image_text import PicturedTexts
from attnscope.read.picture_parts import IMAGE, PLACES
from attnscope.read.sounds import Sounds
from attnscope.read.windows import Window
from attnscope.report.language import language, translate
from attnscope.results.figures.attention import attention, named_sides
from attnscope.results.figures.style import PAGE
from attnscope.results.page import parts
from attnscope.store.files import explained, write_output
from attnscope.support.errors import AttnscopeError

CELLS = 1 << 20  # weights of a map that are sent at once; of a larger one tiles
HELD = 1_200_000  # bytes of maps in a page
_SIDE = {400: 24, 1 << 30: 12}  # pixels on a side of a small map, by the number of heads
_ROWS = 512  # of a map in memory at once
_NUMBERS = 1 << 24  # weights of a layer in memory at once
_EACH_TILE = 8  # queries of each tile of a small map, at least
SCRIPTS, STYLES = ("draw.js", "window.js", "patches.js", "picture.js", "view.js"), ("view.css",)
_COPY = "A page of one text, without its model. To change the text or to take heads out, open it live:"
ANSWERS = "attnscope.live"  # entry point of the package that answers views


@runtime_checkable
class Conversation(Protocol):
    """A model that answers the questions of a view, from the package attnscope-live."""

    scripts: Sequence[str]  # paths of its own scripts and styles
    styles: Sequence[str]

    @property
    def about(self) -> dict[str, Any]: ...

    @property
    def maps(self) -> Maps | None: ...

    def reply(self, name: str, question: Mapping[str, Any], stopped: Callable[[], bool]) -> Any: ...


@cache
def answers() -> Any:
    """The module of the package attnscope-live that opens conversations; None where it is not installed."""
    from importlib.metadata import entry_points

    return next((entry.load() for entry in entry_points(group=ANSWERS)), None)


def conversation_of(read: Any, source: str, reading: Mapping[str, Any]) -> Conversation | None:
    """A conversation with a model, or with a reader of one input, as it was loaded; None where nothing answers."""
    return None if answers() is None else answers().conversation_of(read, source, reading)


@dataclass(frozen=True, eq=False)
class Maps:
    """The attention calls of one text, whose weights are computed where they are looked at."""

    calls: Mapping[int, AttentionCall]  # by layer
    kinds: Mapping[int, str]
    texts: Mapping[str, Sequence[str]]  # tokens of the text, and of a target
    segments: Sequence[int] | None = None  # 0 and 1 in a pair of sentences
    views: Sequence[dict[str, Any]] = ()  # pictures among the tokens: name, rows, columns, source, tokens row by row

    def sides(self, layer: int) -> tuple[str, str]:
        """The texts of a layer's queries and keys."""
        both, kind = "target" in self.texts, self.kinds[layer]
        return ("target" if both and kind != "self" else "text"), ("target" if both and kind == "causal" else "text")

    def reject_other_positions(self, name: str) -> None:
        """Reject layers over other positions than the tokens."""
        for layer, call in self.calls.items():
            sizes = [len(self.texts[side]) for side in self.sides(layer)]
            if [call.query.shape[2], call.key.shape[2]] != sizes or call.query.shape[0] != 1:
                raise AttnscopeError(f"layer {layer} of {name} attends over other positions than the text's tokens")

    def weights(self, layer: int, head: int) -> np.ndarray:
        """All weights of a head, ``(query, key)``, float32."""
        call = self.calls[layer]
        return torch.cat([*weight_rows(call, head, call.query.shape[2])]).cpu().numpy()

    def tiles(self, layer: int, head: int, tile: int) -> np.ndarray:
        """The largest weight of each tile of a head's map, from some rows at a time."""
        call = self.calls[layer]
        rows = weight_rows(call, head, call.query.shape[2], tile * max(1, _ROWS // tile))
        return np.concatenate([largest_in_tiles(block.cpu().numpy(), tile) for block in rows])

    def codes(self, layer: int, head: int, cells: int = CELLS) -> dict[str, Any]:
        """A head's map as bytes: the exponent of each weight, or of the largest in each tile of at most `cells`."""
        call, tile = self.calls[layer], 1
        n, m = call.query.shape[2], call.key.shape[2]
        while -(-n // tile) * -(-m // tile) > cells:
            tile += 1
        return {"n": n, "m": m, "tile": tile, "codes": parts.encode(self.tiles(layer, head, tile))}

    @property
    def side(self) -> int:
        """Pixels on a side of a small map."""
        heads = [call.query.shape[1] for call in self.calls.values()]
        return next(size for count, size in _SIDE.items() if len(heads) * max(heads) <= count)

    def meta(self) -> dict[str, Any]:
        """Layers and tokens, before any head is opened."""
        heads = [call.query.shape[1] for call in self.calls.values()]
        return {
            "layers": [
                {"index": layer, "heads": heads[row], "kind": self.kinds[layer]}
                | dict(zip(("queries", "keys"), self.sides(layer), strict=True))
                for row, layer in enumerate(self.calls)
            ],
            "heads": max(heads),
            "texts": {
                name: {"tokens": [*tokens], "segments": None if self.segments is None else [*self.segments]}
                for name, tokens in self.texts.items()
            },
            "side": self.side,
            "views": [*self.views],
        }

    def small_maps(self) -> np.ndarray:
        """A small map of each head as bytes, ``(layer, head, side, side)``; 0 where a layer has fewer heads."""
        most = max(call.query.shape[1] for call in self.calls.values())
        small = np.zeros((len(self.calls), most, self.side, self.side), np.uint8)
        for row, call in enumerate(self.calls.values()):
            small[row, : call.query.shape[1]] = small_maps(call, self.side)
        return small


def small_maps(call: AttentionCall, side: int) -> np.ndarray:
    """Small maps of the heads of a call as bytes, from some queries of each tile, all of them in a short text."""
    longest = max(call.query.shape[2], call.key.shape[2])
    tile, step = -(-longest // side), max(1, longest // (side * _EACH_TILE))
    queries = torch.arange(0, call.query.shape[2], step, device=call.query.device)
    some = call if step == 1 else call.take(queries[None])
    first_rows = np.searchsorted(queries.cpu().numpy(), np.arange(0, call.query.shape[2], tile))
    at_once = max(1, _NUMBERS // (len(queries) * call.key.shape[2] * call.group)) * call.group
    small: list[np.ndarray] = []
    for first in range(0, call.query.shape[1], at_once):
        rows = row_weights(some.part(slice(first, first + at_once)), slice(None)).weights[0].cpu().numpy()
        by_row = np.maximum.reduceat(rows, first_rows, 1)
        small += [thumb(each, side) for each in np.maximum.reduceat(by_row, np.arange(0, rows.shape[2], tile), 2)]
    return parts.encode(np.stack(small))


def largest_in_tiles(weights: np.ndarray, tile: int) -> np.ndarray:
    """The largest weight of each tile, so that a thin diagonal does not vanish."""
    if tile == 1:
        return weights
    padded = np.pad(weights, [(0, -size % tile) for size in weights.shape])
    return padded.reshape(padded.shape[0] // tile, tile, -1, tile).max((1, 3))


def thumb(weights: np.ndarray, side: int) -> np.ndarray:
    tiled = largest_in_tiles(weights, max(1, -(-max(weights.shape) // side)))
    rows, columns = (np.arange(side) * size // side for size in tiled.shape)
    return tiled[rows][:, columns]


class View:
    """The attention of one text: all heads, one head over the text, its map.

    Attributes
    ----------
    layer, head
        The head that is open, counted from 0.
    token
        Position of the chosen token; None without any.
    conversation
        What answers while one types, if this is a model on a text; None for weights.
    """

    def __init__(
        self, maps: Maps, layer: int, head: int, name: str, conversation: Conversation | None = None, text: str = ""
    ) -> None:
        self.maps, self.layer, self.head, self.token, self.name = maps, layer, head, None, name
        self.conversation, self.text = conversation, text

    @property
    def weights(self) -> xr.DataArray:
        """All weights of the head that is open, ``(query, key)``, float32, with the names of the tokens."""
        queries, keys = (self.maps.texts[side] for side in self.maps.sides(self.layer))
        named = {"query_token": ("query", [*queries]), "key_token": ("key", [*keys])}
        return xr.DataArray(
            self.maps.weights(self.layer, self.head),
            dims=("query", "key"),
            coords={**named, "layer": self.layer, "head": self.head},
            name="weights",
        )

    def figure(self) -> Any:
        """The head that is open, as `attnscope.results.figures.attention.attention` draws it."""
        return attention(self.weights, width=PAGE)

    def save(self, path: str | Path) -> Path:
        """Write the view as one HTML page, which needs no network and no other file.

        The open head has all weights; others have as many as there is room for.
        """
        with explained(f"write {path}", "Choose another file"):
            write_output(Path(path), self._page())
        return Path(path)

    def _page(self) -> str:
        maps = dict[str, Any]()
        every = [(layer, head) for layer, call in self.maps.calls.items() for head in range(call.query.shape[1])]
        for layer, head in sorted(every, key=lambda pair: pair != (self.layer, self.head)):  # the open head first
            cells = min(CELLS, HELD) if (layer, head) == (self.layer, self.head) else HELD // len(every)
            codes = self.maps.codes(layer, head, max(cells, 1))
            maps[f"{layer}.{head}"] = codes | {"codes": parts.base64_of(codes["codes"])}
        start = {"layer": self.layer, "head": self.head, "token": self.token}
        script, style = parts.together(*SCRIPTS), parts.together(*STYLES)
        words = parts.translated_messages(script)
        note = "" if not self.text else f"<p>{html.escape(translate(_COPY))} <code>attnscope view MODEL TEXT</code></p>"
        data = {
            "meta": self.maps.meta() | {"thumbs": parts.base64_of(self.maps.small_maps())},
            "held": maps,
            "start": start,
        }
        return (
            f'<!doctype html><html lang="{language()}"><head><meta charset="utf-8">'
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
            "script-src 'unsafe-inline'; img-src data:\">"
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<meta name="color-scheme" content="light dark"><title>{html.escape(self.name)}</title><style>'
            f"body {{ margin: 1rem; font: 14px/1.5 system-ui, sans-serif }}\n{style}</style></head><body>"
            f'<header><h1 style="font-size:20px">{html.escape(self.name)}</h1>{note}</header>'
            '<main id="view"></main>'
            f'<script type="application/json" id="data">{parts.script_json(data)}</script>'
            f'<script type="application/json" id="words">{parts.script_json(words)}</script>'
            f'<script type="module">{script}\n'
            'mountPage(document.getElementById("view"), JSON.parse(document.getElementById("data").textContent));'
            "</script></body></html>"
        )

    def _repr_html_(self) -> str:
        from attnscope.results.notebook import Page

        return Page(self._page(), 640)._repr_html_()  # pyright: ignore[reportPrivateUsage]

    def __repr__(self) -> str:
        return f"<view of {self.name}: head {self.layer}.{self.head}>"


@cache
def _widget_class(scripts: Sequence[str], styles: Sequence[str]) -> Any:
    """The view as a widget, whose choices come back to Python as traits; `scripts` and `styles` of what answers it."""
    import anywidget
    import traitlets

    class AttentionView(View, anywidget.AnyWidget):
        _esm = f"{parts.together(*SCRIPTS, *scripts)}\nexport default {{ render }};"
        _css = parts.together(*STYLES, *styles)
        layer = traitlets.Int(0).tag(sync=True)
        head = traitlets.Int(0).tag(sync=True)
        token = traitlets.Int(None, allow_none=True).tag(sync=True)
        span = traitlets.List(traitlets.Int(), None, allow_none=True).tag(sync=True)
        _meta = traitlets.Dict().tag(sync=True)  # of weights
        _live = traitlets.Dict().tag(sync=True)  # of a model that answers
        _words = traitlets.Dict().tag(sync=True)

        def __init__(
            self, maps: Maps, layer: int, head: int, name: str, conversation: Conversation | None = None, text: str = ""
        ) -> None:
            View.__init__(self, maps, layer, head, name, conversation, text)
            if conversation is None:
                shown = {"_meta": maps.meta() | {"thumbs": parts.base64_of(maps.small_maps())}}
            else:
                start = {"text": text, "layer": layer, "head": head}
                shown = {"_live": conversation.about | {"start": start, "embedded": True}}
            anywidget.AnyWidget.__init__(
                self, **shown, _words=parts.translated_messages(parts.together(*SCRIPTS, *scripts))
            )
            self.on_msg(self._answer)

        def _answer(self, _: Any, question: Any, __: Any) -> None:
            try:
                content, arrays = self._answer_to(question["ask"], question["question"])
                self.send({"number": question["number"]} | content, [*arrays])
            except (KeyError, IndexError, TypeError, ValueError):
                return  # not a question of the view

        def _answer_to(self, name: str, question: Any) -> tuple[dict[str, Any], Sequence[bytes]]:
            if self.conversation is not None:
                answer = self.conversation.reply(name, question, lambda: False)
                self.maps = self.conversation.maps or self.maps
                return answer or ({}, [])
            layer, head = int(question["layer"]), int(question["head"])
            if name == "map":
                codes = self.maps.codes(layer, head)
                return {name: codes[name] for name in ("n", "m", "tile")}, [codes["codes"].tobytes()]
            weights = self.maps.weights(layer, head)
            row = (weights if question["direction"] == "from" else weights.T)[int(question["token"])]
            return {}, [np.ascontiguousarray(row).tobytes()]

        def _repr_mimebundle_(self, **options: Any) -> Any:
            bundle = anywidget.AnyWidget._repr_mimebundle_(self, **options)  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
            if bundle is None:
                return None
            data, metadata = bundle
            image = parts.picture(self.figure())
            return {**data, "text/html": f'<img src="{image.source}" alt="{html.escape(repr(self))}">'}, metadata

    return AttentionView


def view_at(
    maps: Maps,
    layer: int | None,
    head: int | None,
    query: str | None,
    name: str,
    conversation: Conversation | None = None,
    text: str = "",
) -> View:
    """A view, or a widget in a notebook that shows them, in which a head is open; with a model, on this text."""
    layer = next(iter(maps.calls)) if layer is None else layer
    if layer not in maps.calls:
        raise AttnscopeError(f"layer is {layer}; expected one of {min(maps.calls)} to {max(maps.calls)}")
    heads = maps.calls[layer].query.shape[1]
    if not 0 <= (head or 0) < heads:
        raise AttnscopeError(f"head is {head}; expected 0 to {heads - 1}")
    from attnscope.results.notebook import in_widgets

    own = ((), ()) if conversation is None else (conversation.scripts, conversation.styles)
    kind: Callable[..., View] = _widget_class(*own) if in_widgets() else View
    view = kind(maps, layer, head or 0, name, conversation, text)
    if query is not None:
        chosen: Any = view  # a trait of the widget
        chosen.token = token_of(query, maps.texts[maps.sides(layer)[0]])
    return view


def token_of(query: str, tokens: Sequence[str]) -> int:
    """The position of a token: of a number, or of the first token of a word."""
    if query.isdecimal() and int(query) < len(tokens):
        return int(query)
    ends = list(accumulate(map(len, tokens)))
    found = re.search(rf"(?<!\w){re.escape(query.strip())}(?!\w)", "".join(tokens)) if query.strip() else None
    if found is None:
        raise AttnscopeError(f"query is {query!r:.60}; expected a word of the text, or 0 to {len(tokens) - 1}")
    return next(i for i, end in enumerate(ends) if end > found.start())


def maps_of_window(loaded: LoadedModel, window: Window, segments: Sequence[int] | None = None) -> Maps:
    calls: dict[int, AttentionCall] = {}
    kinds: dict[int, str] = {}

    def observe(site: Site, call: AttentionCall) -> None:
        calls[site.index], kinds[site.index] = call, site.kind

    observe_window(loaded, window, observe)
    texts = {"text": window.tokens} | ({} if window.target is None else {"target": window.target.tokens})
    maps = Maps(dict(sorted(calls.items())), kinds, texts, segments)
    maps.reject_other_positions(loaded.name)
    return maps


def maps_of_pair(loaded: LoadedModel, pair: tuple[str, str]) -> Maps:
    """Two sentences, joined as the tokenizer does; special tokens belong to the sentence before them."""
    tokenizer: Any = loaded.tokenizer
    encoded = tokenizer(*pair, return_offsets_mapping=True, return_special_tokens_mask=True)
    ids = encoded["input_ids"]
    inputs = {name: [encoded[name]] for name in ("token_type_ids",) if name in encoded}
    session = Opened.of(loaded, {"input_ids": [ids], **inputs})
    session.model = loaded
    window = first_window(session, None, len(ids))
    last, segments = 0, list[int]()
    for number in encoded.sequence_ids():
        last = last if number is None else number
        segments.append(last)
    return maps_of_window(loaded, window, segments)


def maps_of_weights(source: Any, tokens: Sequence[str] | None, query_tokens: Sequence[str] | None) -> Maps:
    layers = [torch.as_tensor(each) for each in source]
    layers = [each[0] if each.ndim == 4 and each.shape[0] == 1 else each for each in layers]  # noqa: PLR2004
    for number, each in enumerate(layers):
        if each.ndim != 3:  # noqa: PLR2004
            raise AttnscopeError(
                f"weights of layer {number} have the shape {tuple(each.shape)}; expected (head, query, key), or "
                "(1, head, query, key): choose one text of a batch"
            )
    of_queries, names = named_sides([tuple(each.shape[1:]) for each in layers], tokens, query_tokens)
    crossed = query_tokens is not None
    texts = {"text": names} | ({"target": of_queries} if crossed else {})
    calls = {number: call_of_weights(each[None].float()) for number, each in enumerate(layers)}
    return Maps(calls, dict.fromkeys(calls, "cross" if crossed else "self"), texts)


_PROMPT = "What is in this picture?"


def maps_of_modality(
    model: Any, modality: Any, reading: Mapping[str, Any], targets: Any = None
) -> tuple[Reader, Maps, str]:
    """The reader and the maps of an image, a video, a sound, or a text with an image, and its text."""
    if targets is not None and not isinstance(modality, Sounds):
        raise AttnscopeError("targets need texts or sounds: leave them out")
    if len(modality) != 1:
        raise AttnscopeError(
            f"found {len(modality)} {modality.called}; expected one: choose one, or use attnscope.scan"
        )
    item: Any = next(iter(modality))
    is_text = isinstance(modality, PicturedTexts)
    if is_text and (item.videos or len(item.images) > 1 or item.text is None):
        raise AttnscopeError(f"{item.name} is a chat or has several images; a view shows a text with one image")
    settings = scan_settings(reading, limit=1, tokenizer=reading["tokenizer"], statistics=("entropy",), targets=targets)
    open_reader: Any = PromptsWithImages if is_text else READERS[type(modality)]
    reader: Reader = open_reader(model, modality, settings)
    if isinstance(reader, ImageReader) and not reader.has_maps:
        raise AttnscopeError(
            f"{type(reader.model).__name__} has no map over a picture: not all its layers attend over all patches. "
            "attnscope.scan measures it"
        )
    calls, kinds = dict[int, AttentionCall](), dict[int, str]()

    def observe(site: Site, call: AttentionCall) -> Tensor:
        calls[site.index], kinds[site.index] = call, site.kind
        return output_of(call) if call.key.shape[-1] else call.query

    window = reader.observe_first(observe)
    texts = {"text": window.tokens} | ({} if window.target is None else {"target": window.target.tokens})
    maps = Maps(dict(sorted(calls.items())), kinds, texts, views=reader.views_of_first())
    maps.reject_other_positions(reader.loaded.name)
    said = window.target
    return reader, maps, item.text if is_text else said.text if said is not None else ""


def marked(text: str) -> str:
    """A text with a mark for its picture: in front, unless it has one."""
    return text if PLACES[IMAGE] in text else f"{PLACES[IMAGE]} {text}"


def with_image(texts: Any, image: Path) -> dict[str, Any]:
    """A text with an image, as a vision-language model reads it."""
    if texts is None:
        texts = _PROMPT
    if not isinstance(texts, str):
        raise AttnscopeError("image (--image) needs one text in quotes: give the text that the model reads with it")
    return {"text": marked(texts), "images": [image]}
