"""What a scan read and which heads lead its rankings, in the words of tables and of notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope._documents import called_in
from attnscope._numbers import count
from attnscope.statistics._kinds import LEAST_SHARE, LOCAL, SHARED_ODDS
from attnscope.statistics._means import text_mean
from attnscope.statistics._places import NEEDED
from attnscope.statistics._stored import unit_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import xarray as xr

    from attnscope.statistics._questions import RankedHead

WEIGHTS_NOTE = "A weight is a mixing coefficient, not an explanation."
_RANKED_BY = {
    "positional": ("share of all weight at one offset", "at one offset other than 0"),
    "local": ("weight inside the band of offsets", "inside the band"),
    "sink-like": ("weight on the first, special or no token", "on the first, special or no token"),
}
_SINKS = "sink-like"
_NO_TEST = " (a ranking, no test: heads of random weights may do so too)"
_RANKED_BY_OF_IMAGES = {
    "positional": ("share of a patch's weight on one neighbour", "on one other patch at an offset"),
    "local": ("weight of a patch within 1 patch of it", "within 1 patch"),
    "sink-like": ("weight of patches on the class token or registers", "on the class token or registers"),
}


def ranking_said(results: xr.Dataset, kind: str, rows: Sequence[RankedHead]) -> str:
    """By what heads are ranked; where none is, what none has.

    Parameters
    ----------
    results
        What `attnscope.scan` returns.
    kind
        Name of the ranking, such as ``"local"``.
    rows
        Heads that it has.

    Examples
    --------
    >>> import xarray as xr
    >>> ranking_said(xr.Dataset(), "local", [])
    'no local head: none has 0.5 of its weight inside the band and twice what uniform attention gives, beyond chance'
    >>> ranking_said(xr.Dataset(), "sink-like", [])[-33:]
    '6 times the odds of equal weights'
    """
    what, where = (_RANKED_BY_OF_IMAGES if results.attrs.get("reads") == "images" else _RANKED_BY)[kind]
    if rows:
        return f"most {kind} heads: {what}{_NO_TEST if kind == _SINKS else ''}"
    least = LOCAL if kind == "local" else LEAST_SHARE
    beyond = (
        f"and {SHARED_ODDS:g} times the odds of equal weights"
        if kind == _SINKS
        else f"and twice what uniform attention gives{_uniform(results, kind)}, beyond chance"
    )
    return f"no {kind} head: none has {least} of its weight {where} {beyond}"


def _uniform(results: xr.Dataset, kind: str) -> str:
    """What uniform attention has inside the band, where that is known: in short texts more than half."""
    if kind != "local" or "equal_outside" not in results:
        return ""
    return f" ({float((1 - text_mean(results.equal_outside)).max()):.2f} at most)"


def kinds_said(results: xr.Dataset) -> str:
    """How many heads there are of each kind; where that is not known, what is missing.

    Examples
    --------
    >>> import xarray as xr
    >>> kinds_said(xr.Dataset(attrs={"kinds": "Kinds of heads: previous: 2."}))
    'Kinds of heads: previous: 2.'
    >>> kinds_said(xr.Dataset(attrs={"reads": "images"}))
    'No kinds of heads: no rows and columns of patches are known.'
    """
    if "kinds" in results.attrs:
        return str(results.attrs["kinds"])
    needed = NEEDED
    if results.attrs.get("reads") == "images":
        if "rows" not in results:
            return "No kinds of heads: no rows and columns of patches are known."
        from attnscope.statistics.images import NEEDED as needed  # noqa: N811
    absent = ", ".join(name for name in needed if name not in results)
    return f"No kinds of heads: for them the statistics lack {absent}." if absent else ""


def means_note(results: xr.Dataset, ranked: Iterable[Sequence[RankedHead]]) -> str:
    """Of what the numbers and kinds of ranked heads are, where several windows were read; else empty.

    Parameters
    ----------
    results
        What `attnscope.scan` returns.
    ranked
        The heads of each ranking.

    Examples
    --------
    >>> import attnscope
    >>> from attnscope.statistics import rank_heads
    >>> results = attnscope.scan(limit=2, window=32)
    >>> means_note(results, rank_heads(results).values())[:55]
    'Weights and offsets are of the mean over all windows; a'
    >>> means_note(results, [])
    ''
    """
    if results.sizes["text"] < 2 or not any(row["label"] for rows in ranked for row in rows):  # noqa: PLR2004
        return ""
    return (
        f"Weights and offsets are of the mean over all {entries_said(results)}; a head's kind is the one that it has "
        "in most of them."
    )


def entries_said(results: xr.Dataset) -> str:
    """What each entry of ``text`` is, in the plural.

    Examples
    --------
    >>> import xarray as xr
    >>> entries_said(xr.Dataset()), entries_said(xr.Dataset({"window_count": ("text", [4])}))
    ('windows', 'pools')
    """
    return "pools" if "window_count" in results else called_in(results.attrs)["windows"]


def layers_said(results: xr.Dataset) -> str:
    """How many layers attend, each kind by itself where there are several.

    Examples
    --------
    >>> import xarray as xr
    >>> pair = xr.Dataset(coords={"layer_kind": ("layer", ["self", "self", "causal", "cross"])})
    >>> layers_said(pair), layers_said(pair.isel(layer=[0, 1]))
    ('2 encoder, 1 decoder and 1 cross-attention layers', '2 layers')
    """
    kinds = results["layer_kind"].values.tolist() if "layer_kind" in results.coords else []
    if "cross" not in kinds or len(set(kinds)) == 1:
        return count(results.sizes["layer"], "layer")
    names = {"self": "encoder", "causal": "decoder", "cross": "cross-attention"}
    if set(kinds) != set(names):
        names = {"self": "self-attention", "causal": "causal", "cross": "cross-attention"}
    *others, last = [f"{kinds.count(kind)} {name}" for kind, name in names.items() if kind in kinds]
    return f"{', '.join(others)} and {last} layers"


def corpus_said(results: xr.Dataset) -> str:
    """How much was read.

    Examples
    --------
    >>> import xarray as xr
    >>> corpus_said(xr.Dataset({"length": ("text", [40, 40])}))
    '2 windows (80 tokens)'
    """
    texts = results.sizes["text"]
    if results.attrs.get("reads") != "images":
        if "length" not in results:
            return count(texts, "window")
        tokens = f"{int(results.length.sum())} {unit_of(results)}"
        if "target_length" in results:
            tokens += f", {int(results.target_length.sum())} of the target"
        if "image_tokens" in results:
            images = results.image_tokens.values[results.image_tokens.values > 0]
            tokens += f", {images.sum()} of {count(len(images), 'image')}"
        if results.attrs.get("reads") == "videos":
            return f"{count(texts, 'video')} ({tokens})"
        if "window_count" in results:
            return f"{count(int(results.window_count.sum()), 'window')} ({tokens}) in {count(texts, 'pool')}"
        return f"{count(texts, 'window')} ({tokens})"
    if "rows" not in results:
        return count(texts, "image")
    grids = sorted(set(zip(results.rows.values.tolist(), results.columns.values.tolist(), strict=True)))
    beside = int((results.length - results.rows * results.columns).max())
    said = ", ".join(f"{rows} x {columns}" for rows, columns in grids[:3]) + ", ..." * (len(grids) > 3)  # noqa: PLR2004
    return f"{count(texts, 'image')} of {said} patches and {count(beside, 'token')} beside them"
