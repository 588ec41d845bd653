"""The parts of pages: tables, pictures, packed arrays, and the writer."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from attnscope.measure.ranking import context, key_side, recent_queries, top_positions
from attnscope.read.shown import split_character
from attnscope.report.language import language, messages_of_script, translate, translate_data, translate_html
from attnscope.report.render import Cell, Column
from attnscope.report.schema import Report
from attnscope.report.signature import Signature
from attnscope.results.figures.scan import Map, maps
from attnscope.results.figures.selection import axis_values, require, side_tokens, sides
from attnscope.results.figures.style import svg_of, with_minus
from attnscope.results.page.heads import Tab, tabs_of_others
from attnscope.store.files import explained, write_output
from attnscope.support.errors import AttnscopeError

_ESCAPES = {ord(mark): f"\\u{ord(mark):04x}" for mark in "<>&\u2028\u2029"}
_DIGITS = 5
_SHARE_DIGITS = 3  # of a share beside its key
_PIXELS = 96  # for an inch
_ORDER = ("links", "card", "text", "profile", "why", "effect", "change", "roles", "examples", "groups")
#: Names of the words in a page's data that are no names, tokens or numbers.
_WORDS = frozenset({"name", "units", "help", "noun", "unit", "title", "reading", "names", "group"})
_CELLS = 400  # heads that are drawn as cells; more are one canvas


def together(*names: str) -> str:
    """The text of some files of pages; those of other packages are named by their paths."""
    return "\n".join((Path(__file__).parent / name).read_text(encoding="utf-8") for name in names)


_PAGES = Environment(
    loader=FunctionLoader(together), autoescape=True, undefined=StrictUndefined, extensions=["jinja2.ext.do"]
)
_PAGES.filters["minus"] = with_minus


@dataclass(frozen=True)
class Picture:
    """A figure of a page: `source` is the data: address of its SVG, `width` its own width in pixels."""

    source: str
    width: int
    name: str = ""
    title: str = ""
    reading: str = ""


def script_json(value: Any) -> str:
    r"""JSON that is safe inside `<script type="application/json">`, in ASCII."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)


def numbers(values: np.ndarray) -> Any:
    """Nested lists of the values, to five significant digits; None for what is not finite."""
    if values.ndim > 1:
        return [numbers(row) for row in values]
    return [_short(float(value)) for value in values]


def _short(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded


def picture(figure: Figure, name: str = "", title: str = "", reading: str = "") -> Picture:
    source = f"data:image/svg+xml;base64,{base64_of(svg_of(figure))}"
    return Picture(source, round(float(figure.get_size_inches()[0]) * _PIXELS), name, title, reading)


@dataclass(frozen=True)
class Section:
    """Figures that belong together, and tables of text beneath them."""

    name: str
    title: str
    reading: str
    pictures: list[Picture]
    tables: list[TextRows] = field(default_factory=list["TextRows"])
    folded: bool = False  # whether one picture is open at a time


class TextRows(NamedTuple):
    """A table of text, and links to its figures in other sections: address on the page, name."""

    title: str
    key: str
    columns: list[Column]
    rows: list[list[Cell]]
    elsewhere: list[tuple[str, str]]


def sections(figures: Mapping[str, Figure], captions: Mapping[str, tuple[str, str]]) -> list[Section]:
    """A section for each figure, in the order of `captions`, which have the title of each and how to read it."""
    return [
        Section(name, title, "", [picture(figures[name], name, title, reading)])
        for name, (title, reading) in captions.items()
        if name in figures
    ]


def pieces_note(tokens: Iterable[str]) -> str:
    """Say what a number under a token means, where one is."""
    pieces = " ".join(split_character(list(tokens)))
    if not pieces:
        return ""
    return f"The tokenizer splits some characters: {pieces} are the pieces of one, each a token of its own."


def write_page(
    path: Path | str,
    template: str,
    report: Report,
    *,
    heads: Mapping[str, Any] | None = None,
    tabs: Sequence[Tab] = (),
    scripts: Sequence[str] = (),
    packed: Mapping[str, Any] | None = None,
    run: Path | None = None,
    **more: Any,
) -> Path:
    """Write the page of a report: its finding, the map of heads with a tab for each view of one head, then the cards.

    `template` and `scripts` are names of files here, a template's without its ending, or paths of a package's own.
    `heads` is what the map and the tabs draw, from `attnscope.results.page.heads`; a template has the parts of tabs
    and the cards, each of which has a link at their top. `packed` is read when a window is opened. `run` is the folder
    of the run, whose neighbours are linked. `more` has further variables of the template.
    """
    headline = report.finding.headline or next(iter(report.finding.sentences), "") or report.title
    links: list[tuple[str, str]] = []
    data: dict[str, Any] = {} if packed is None else {"packed": packed}
    if heads is not None:
        opens = next(iter(tabs)).name if tabs else ""
        others, numbers = tabs_of_others(report, heads, {tab.name for tab in tabs}, run)
        tabs = sorted([*tabs, *others], key=lambda tab: _ORDER.index(tab.name) if tab.name in _ORDER else len(_ORDER))
        heads = {"spread": "", **heads, "tabs": [tab.name for tab in tabs], "beside": numbers}
        heads["opens"] = {**heads["opens"], "tab": opens or tabs[0].name}
        finding = {"finding": headline, "certainty": report.finding.certainty}
        named = {
            "kind": report.command,
            "language": language(),
            **finding,
            "read": report.read,
            "signature": report.signature,
        }
        data["data"] = named | translate_data(heads, _WORDS)
        scripts = ["draw.js", "map.js", *scripts]
    scripts = [*(scripts or ["draw.js"]), "common.js", *(["start.js"] if heads is not None else [])]
    js = together(*scripts)
    more |= {"report": report, "heads": heads, "links": links}
    signature = None
    with suppress(AttnscopeError):  # of a run of another version
        signature = Signature.of(report.signature)
    page: Any = _PAGES.get_template(f"{template}.html.j2").make_module(more)
    text = _PAGES.get_template("base.html.j2").render(
        **{name: getattr(page, name, "") for name in ("notice", "footer", "map_controls")},
        opens=more.get("opens", ""),
        headline=translate(headline).rstrip(".。"),
        grid_role="grid" if heads is None or len(heads["there"]) <= _CELLS else "group",
        report=report,
        heads=heads,
        more=[one for one in report.finding.sentences if one and one.rstrip(".") != headline.rstrip(".")],
        tabs=[{**asdict(tab), "panel": getattr(page, tab.panel, "")} for tab in tabs],
        body=Markup(page),  # noqa: S704 a template of our own, rendered with escapes
        links=links,
        data={
            "words": script_json(translated_messages(js)),
            **{name: script_json(value) for name, value in data.items()},
        },
        signature=signature,
        signature_json=json.dumps(report.signature, indent=2, ensure_ascii=False),
        css=together("page.css"),
        js=js,
    )
    with explained(f"write the report to {path}", "Choose another folder, or free some disk space"):
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_output(path, translate_html(text))
    return path


def translated_messages(script: str) -> dict[str, str]:
    """The messages of a script in the language of pages, without those that are equal in both."""
    words = {message: translate(message) for message in messages_of_script(script)}
    return {message: other for message, other in words.items() if other != message}


OCTAVES, STEPS = 16, 254
_MOST_KEYS = 1 << 16  # so that a key has two bytes


@dataclass(frozen=True)
class PageWindows:
    """Some windows as the page holds them: what all heads share, and a packed string for each map."""

    # the texts of each window, for each layer which of them its queries and its keys are, and the constants of the
    # scale
    shared: dict[str, Any]
    # from ``"window.index"``, the index of a head counting layer by layer, to the packed map and the share of the
    # weight that it lists
    maps: dict[str, tuple[str, float]]
    tiles: dict[str, str]  # from ``"index"`` to the packed tiles of the first window


def pack_windows(sample: xr.Dataset) -> PageWindows:
    """Pack the attention that `attnscope.scan` stored."""
    require(sample, ("token", "key", "weight", "count"), purpose="The report's sample windows")
    layers, heads = axis_values(sample, "layer"), axis_values(sample, "head")
    names = [side for side in ("", "target_") if f"{side}token" in sample.variables]
    texts = [[_text(sample.isel(window=window), side) for side in names] for window in range(sample.sizes["window"])]
    packed: dict[str, tuple[str, float]] = {}
    for one in maps(sample):
        index = layers.index(one.layer) * len(heads) + heads.index(one.head)
        packed[f"{one.window}.{index}"] = _pack(one), round(one.share, 4)
    shared: dict[str, Any] = {
        "windows": texts,
        "sides": [[names.index(side) for side in sides(sample, layer)] for layer in layers],
        "octaves": OCTAVES,
        "steps": STEPS,
        "tile": int(sample.attrs.get("tile", 0)),
    }
    tokens = {side: len(text["tokens"]) for side, text in zip(names, texts[0], strict=True)}
    return PageWindows(shared, packed, _blocks(sample, "tile", shared["tile"], tokens) if "tile_sum" in sample else {})


def encode(weights: np.ndarray) -> np.ndarray:
    """One byte per weight on the logarithmic scale."""
    visible = weights >= 2.0**-OCTAVES
    level = STEPS + 1 + np.round(STEPS / OCTAVES * np.log2(np.where(visible, weights, 1.0)))
    return np.where(visible, np.clip(level, 1, STEPS + 1), 0).astype(np.uint8)


def _text(sample: xr.Dataset, side: str) -> dict[str, Any]:
    """Tokens of one text, as many as the page shows, and how many there are in all."""
    tokens = side_tokens(sample, side)
    roles = {"roles": sample[f"{side}role"].values[: len(tokens)].tolist()} if f"{side}role" in sample.coords else {}
    return roles | {
        "tokens": tokens,
        "special": [bool(mark) for mark in sample[f"{side}special"].values[: len(tokens)]],
        "total": int(sample[f"{side}tokens"]),
    }


def _pack(one: Map) -> str:
    """A map, compressed: for each row the number of its keys and the weight beyond them, then keys and weights."""
    query, codes = one.query, encode(one.weight.astype(np.float64))
    listed = (codes > 0) & (one.key < _MOST_KEYS)
    beyond = np.bincount(query[~listed], weights=one.weight[~listed], minlength=len(one.count))
    count = np.bincount(query[listed], minlength=len(one.count))
    key, first = one.key[listed], np.diff(query[listed], prepend=-1) > 0
    step = np.where(first, key, np.diff(key, prepend=0))  # steps between keys compress better than keys
    return deflated((*_bytes(count), encode(one.rest + beyond), *_bytes(step), codes[listed]))


def _blocks(sample: xr.Dataset, name: str, size: int, tokens: Mapping[str, int]) -> dict[str, str]:
    """Blocks of the maps of all heads, packed: the mean sum of a query's weights, and the largest weight."""
    packed: dict[str, str] = {}
    for index, (layer, head) in enumerate(np.ndindex(sample.sizes["layer"], sample.sizes["head"])):
        queries, keys = (tokens[side] for side in sides(sample, int(sample.layer[layer])))
        at = (layer, head, slice(-(-queries // size)), slice(-(-keys // size)))
        total, most = (sample[f"{name}_{part}"].values[at].astype(np.float64) for part in ("sum", "max"))
        if not np.isnan(total).any():
            each = np.minimum(size, queries - size * np.arange(len(total)))[:, None]
            packed[str(index)] = deflated([encode(total / each), encode(most)])
    return packed


def _bytes(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Low and high bytes of whole numbers below 65,536."""
    return (values & 0xFF).astype(np.uint8), (values >> 8).astype(np.uint8)


def base64_of(data: np.ndarray | bytes) -> str:
    """The bytes of an array as text."""
    return base64.b64encode(data if isinstance(data, bytes) else data.tobytes()).decode("ascii")


def deflated(planes: Any) -> str:
    """Bytes of arrays, compressed, as text."""
    return base64_of(zlib.compress(b"".join(plane.tobytes() for plane in planes), 9))


def deflated_json(value: Any) -> str:
    """A value as JSON, compressed; empty where there is none."""
    written = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return deflated([np.frombuffer(written.encode("utf-8", "surrogatepass"), np.uint8)]) if value else ""


def pack_long(sample: xr.Dataset) -> dict[str, Any] | None:
    """Data of a long window for the page; None if the sample has none."""
    if "block_sum" not in sample:
        return None
    size = int(sample.attrs["block"])
    names = [side for side in ("", "target_") if f"{side}block_text" in sample.variables]
    tokens = [int(sample[f"{side}tokens"].values[0]) for side in names]
    packed = _blocks(sample, "block", size, dict(zip(names, tokens, strict=True)))
    texts = [[str(text) for text in sample[f"{side}block_text"].values] for side in names]
    return {"block": size, "tokens": tokens, "texts": texts, "heads": packed}


POINTS = 1024
_STANDS_OUT = 2  # times the share under uniform attention: a head without such a key has no figure
_ROOM = 160_000  # points of all heads and windows
_FEWEST = 128


def pack_received(sample: xr.Dataset, tokens_shown: list[list[int]]) -> dict[str, Any] | None:
    """Data of attention received for the page; None if the sample has none.

    `tokens_shown` has the number of tokens that the page shows, by window and text: other keys get their context.
    """
    if "received" not in sample:
        return None
    sizes, names = sample.sizes, [name for name in ("received", "recent") if name in sample]
    points = min(POINTS, max(_FEWEST, _ROOM // max(1, sizes["window"] * sizes["layer"] * sizes["head"])))
    packed: dict[str, Any] = {"heads": {}, "equal": {}, "contexts": {}, "keys": {}, "recent": {}}
    for window, layer in np.ndindex(sizes["window"], sizes["layer"]):
        keys = int(np.isfinite(sample.equal_received.values[window, layer]).sum())
        if not keys:
            continue
        uniform = {name: _share(sample[f"equal_{name}"].values[window, layer, :keys]) for name in names}
        side = key_side(sample, layer)
        tokens = sample[f"{side}position_token"].values[window].tolist()
        number = int(side != "")
        packed["equal"][f"{window}.{layer}"] = _line(uniform["received"], points)
        packed["keys"][f"{window}.{layer}"] = keys
        if "recent" in sample:
            packed["recent"][f"{window}.{layer}"] = recent_queries(sample, window, layer)
        for head in range(sizes["head"]):
            shares = {name: _share(sample[name].values[window, layer, head, :keys]) for name in names}
            if not np.isfinite(shares["received"]).all():
                continue
            if not any((shares[name] > _STANDS_OUT * uniform[name]).any() for name in names):
                continue
            tops = {name: top_positions(share) for name, share in shares.items()}
            listed = [_listed(top, shares[name], uniform[name]) for name, top in tops.items()]
            packed["heads"][f"{window}.{layer * sizes['head'] + head}"] = [*_line(shares["received"], points), *listed]
            for key in reduce(np.union1d, tops.values()):
                if key >= tokens_shown[window][number]:
                    packed["contexts"][f"{window}.{number}.{key}"] = context(tokens, int(key))
    return packed


def _listed(top: np.ndarray, share: np.ndarray, uniform: np.ndarray) -> list[list[int | float]]:
    """Keys with their shares and those under uniform attention."""
    return [[int(key), *(float(f"{part[key]:.{_SHARE_DIGITS}g}") for part in (share, uniform))] for key in top]


def _share(received: np.ndarray) -> np.ndarray:
    exact = received.astype(np.float64)
    return exact / max(float(exact.sum()), 1e-30)


def _line(share: np.ndarray, points: int) -> tuple[str, float]:
    """The peaks, a character each, and the largest."""
    each = -(-len(share) // points)
    peaks = np.pad(share, (0, -len(share) % each)).reshape(-1, each).max(1)
    most = float(peaks.max())
    return encode(peaks / max(most, 1e-30)).tobytes().decode("latin-1"), float(f"{most:.4g}")
