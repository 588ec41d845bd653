"""A scan in its run folder, and its notes as sentences."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from attnscope.capture.notes import numbering_note
from attnscope.measure.labels import LEAST_SHARE, LOCAL, NEEDED, SHARED_ODDS
from attnscope.measure.means import text_mean
from attnscope.measure.offset_shares import with_profile
from attnscope.measure.passes import WEIGHT_AT
from attnscope.measure.quantities import BY_GROUP, EQUAL, KNOWN
from attnscope.measure.ranking import RankedHead
from attnscope.measure.sampling_error import intervals_note
from attnscope.report.reads import signed
from attnscope.report.signature import Signature
from attnscope.statistics.units import called_in
from attnscope.store.files import local_folder, read_as
from attnscope.store.folder import manifest_of
from attnscope.store.runs import RunFolder
from attnscope.support.checks import check_kind
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count


def notes_of_masked_offsets(results: xr.Dataset, unit: str) -> dict[str, str]:
    """Why the weight at chosen offsets is missing in some or all windows or layers; empty if it is not."""
    if WEIGHT_AT not in results or "window" not in results[WEIGHT_AT].dims:
        return {}
    sizes = results.window_length if "window_length" in results else results.length
    present = results[WEIGHT_AT].notnull().any("head").transpose("chosen_offset", "window", "layer").values
    parts = [
        (int(offset), _why(present[row], abs(int(offset)), sizes.values, results, unit))
        for row, offset in enumerate(results.chosen_offset.values)
    ]
    longer = " ".join(f"{WEIGHT_AT}_{offset}: {why}." for offset, why in parts if why)
    return {"offsets": longer} if longer else {}


def _why(known: np.ndarray, distance: int, sizes: np.ndarray, results: xr.Dataset, unit: str) -> str:
    """The reason for one offset, known ``(window, layer)``."""
    each = "pools" if "window_count" in results else called_in(results.attrs)["windows"]
    if not known.any():
        if sizes.max() <= distance:
            return f"missing (the longest window has {int(sizes.max())} {unit})"
        return "missing (the mask hides this offset)"
    reasons: list[str] = []
    layers = results["layer"].values[~known.any(0)].tolist()
    if layers:
        reasons.append(f"missing in layers {', '.join(map(str, layers))} (the mask hides this offset)")
    missing = int((~known.any(1)).sum())
    if missing:
        reasons.append(f"mean over {len(known) - missing} of {len(known)} {each} (the others are too short)")
    return "; ".join(reasons)


def observation_note(names: Sequence[str], observation: int, length: int) -> dict[str, str]:
    """A note if no window can have more queries than the observation window."""
    if length > observation or not (recent := _of_recent(names)):
        return {}
    return {
        "observation": f"Windows have at most {length} tokens and --observation is {observation}, so "
        f"{', '.join(recent)} cover all queries."
    }


def _of_recent(names: Sequence[str]) -> list[str]:
    return [name for name in names if "recent" in KNOWN[name].needs]


def _as_short_as(results: xr.Dataset, queries: int) -> tuple[int, int]:
    """The number of windows with at most that many queries, and of all windows; unknown for pools."""
    if "window_count" in results or "window" not in results.dims or "length" not in results:
        return 0, 0
    lengths = results["length"].values
    if "target_length" in results:  # no layer has more
        lengths = np.maximum(lengths, results["target_length"].values)
    return int((lengths <= queries).sum()), lengths.size


def _windows_have(short: int, windows: int, results: xr.Dataset) -> str:
    called = called_in(results.attrs)["windows"]
    return f"{short:,} of {windows:,} {called if windows > 1 else called[:-1]} {'have' if short > 1 else 'has'}"


#: Attributes with notes for the reader.
NOTES = (
    *("eager", "uncaptured", "positions", "cut", "beyond", "unknown", "doubled", "packed", "mixed", "ends", "decoder"),
    *("causality", "bias", "padding", "tower", "pooling", "points", "random", "patches", "sounds", "pictures"),
    *("videos", "words", "pool", "until", "cached", "observation", "rows", "left_out"),
    *("skipped_files", "gaps", "weights"),
)
SUMMARY, SAMPLE, EXAMPLES, WINDOWS, HEADS = "summary", "sample", "examples", "windows", "heads"
_LOCAL = re.compile(r"\b(local|within [0-9]+)\b[^:,]*: [1-9]")


def unit_of(results: xr.Dataset) -> str:
    """The unit of lengths and offsets: words if tokens are merged into them, frames for sounds, else tokens."""
    if "words" in results.attrs:
        return "words"
    return "frames" if results.attrs.get("reads") == "sounds" else "tokens"


def notes_of(results: xr.Dataset) -> dict[str, str]:
    """Notes for the reader, by name."""
    notes = {name: str(results.attrs[name]) for name in NOTES if name in results.attrs}
    if not _LOCAL.search(str(results.attrs.get("labels", ""))):
        notes.pop("bias", None)
    settings = signed(results).get("settings") or {}
    if "observation" in settings and "observation" not in notes:
        last = settings["observation"]
        short, windows = _as_short_as(results, last)
        if short:
            notes["observation"] = (
                f"{_windows_have(short, windows, results)} at most {last} queries (--observation): there "
                f"{', '.join(_of_recent(settings['statistics']))} cover all queries."
            )
    if "rows" in notes:
        short, windows = _as_short_as(results, settings.get("rows", 0))
        if short and short == windows:
            notes["rows"] = (
                f"{_windows_have(short, windows, results)} at most {settings['rows']} queries (--rows): all were "
                "measured, so nothing is estimated."
            )
        else:
            whole = f" {_windows_have(short, windows, results)} fewer, all measured."
            notes["rows"] += (whole if short else "") + intervals_note(results)
    notes |= notes_of_masked_offsets(results, unit_of(results))
    names = results["layer_name"].values.tolist() if "layer_name" in results.coords else []
    numbering = numbering_note([str(name) for name in names])
    return notes | ({"layers": numbering} if numbering else {})


def load_scan(run: RunFolder) -> xr.Dataset:
    """The result of `scan`, from the folder of a finished run."""
    with read_as(run.path):
        return _returned(run, run.results(), run.load(SUMMARY))


def opened_scan(given: str | Path | xr.Dataset) -> xr.Dataset:
    """A scan, given as its result or as the folder of its finished run."""
    check_kind("a scan", str, Path, xr.Dataset, scan=given)
    if isinstance(given, xr.Dataset):
        if "signature" not in given.attrs or not {"window", "layer", "head"} <= set(given.dims):
            raise AttnscopeError(
                f"found a Dataset over {', '.join(map(str, given.dims)) or 'nothing'} that is not a scan; expected a "
                "result of attnscope.scan"
            )
        return given
    folder = local_folder(given)
    manifest = manifest_of(folder)
    if manifest is None or manifest.command != "scan" or not manifest.state.get("complete"):
        what = "no run of attnscope"
        if manifest is not None:
            state = "a finished" if manifest.state.get("complete") else "an unfinished"
            what = f"{state} run of attnscope {manifest.command}"
        if not folder.exists():
            raise AttnscopeError(f"{folder} does not exist; expected a finished run of attnscope scan")
        raise AttnscopeError(f"{folder} contains {what}; expected a finished run of attnscope scan")
    with RunFolder(folder, manifest.state.get("signature", {})) as run:
        return load_scan(run)


def load_heads(run: RunFolder) -> xr.Dataset | None:
    """The means of a finished scan with pools, head by head, with labels; no pool is read."""
    heads, summary = run.load(HEADS), run.load(SUMMARY)
    if heads is None:
        return None
    if summary is not None:
        labels = summary.drop_dims("window", errors="ignore")
        heads = heads.merge(labels, compat="override", combine_attrs="no_conflicts")
    return heads.assign_attrs(
        {"signature": run.signature.to_json(), "model": run.signature.name} | run.state.get("attributes", {})
    )


def scan_pieces(run: RunFolder) -> Iterator[xr.Dataset]:
    """The result of `scan`, one piece along ``window`` at a time, with the labels over all texts."""
    summary = run.load(SUMMARY)
    for texts in run.pieces:
        part = summary
        if summary is not None and "window" in summary.dims:
            part = summary.isel(window=slice(texts.start, texts.stop))
        yield _returned(run, run.piece(texts), part)


def _returned(run: RunFolder, results: xr.Dataset, summary: xr.Dataset | None) -> xr.Dataset:
    names = (run.signature.settings or {}).get("statistics", [])
    names = [*names, *(f"{name}{BY_GROUP}" for name in names)]
    if "profile" in names and "band_sum" in results:
        results = with_profile(results)
    ordered = [
        *names,
        *(f"{EQUAL}{name}" for name in names),
        *("length", "target_length", "sampled_rows", "rows", "columns", "frames"),
        *(f"image_{name}" for name in ("first", "tokens", "tiles", "rows", "columns")),
        *(f"video_{name}" for name in ("first", "tokens", "frames", "rows", "columns")),
    ]
    others = [name for name in results.data_vars if name not in ordered]
    results = results[[*(name for name in ordered if name in results), *others]]
    if summary is not None:
        results = results.merge(summary, combine_attrs="no_conflicts")
    results = results.assign_attrs(
        {"signature": run.signature.to_json(), "model": run.signature.name} | run.state.get("attributes", {})
    )
    results.encoding["source"] = str(run.path)
    return results


def keeps_maps_of(run: RunFolder, heads: Sequence[tuple[int, int]]) -> bool:
    """Whether the folder has the attention maps of these heads."""
    sample = run.load(SAMPLE)
    return sample is not None and json.loads(sample.attrs["requested"]) == [list(head) for head in heads]


def default_out(signature: Signature | Mapping[str, object]) -> Path:
    """The default folder for results: one for each signature."""
    signature = Signature.of(signature)
    return Path("attnscope-runs") / f"{Path(signature.name).name}-{signature.short}"


WEIGHTS_NOTE = "A weight is a mixing coefficient, not an explanation."
_RANKED_BY = {
    "positional": ("share of all weight at one offset", "at one offset other than 0"),
    "local": ("weight inside the band of offsets", "inside the band"),
    "sink-like": (
        "weight on the first token, special tokens or a sink",
        "on the first token, special tokens or a sink",
    ),
}
_SINKS = "sink-like"
_NO_TEST = " (not a test: heads of untrained models may do this too)"
_RANKED_BY_OF_IMAGES = {
    "positional": ("share of a patch's weight on one neighbour", "on one other patch at an offset"),
    "local": ("weight of a patch within 1 patch of it", "within 1 patch"),
    "sink-like": ("weight of patches on the class token or registers", "on the class token or registers"),
}


def describe_score(results: xr.Dataset, kind: str) -> str:
    """The number by which a ranking orders heads."""
    return _ranked_by(results, kind)[0] + (_NO_TEST if kind == _SINKS else "")


def describe_empty(results: xr.Dataset, kind: str) -> str:
    """The criterion of a ranking in which no head is."""
    _, where = _ranked_by(results, kind)
    least, most = LOCAL if kind == "local" else LEAST_SHARE, ""
    if kind == "local" and "equal_outside" in results:  # in short texts more than half
        most = f" (at most {float((1 - text_mean(results.equal_outside)).max()):.0%})"
    beyond = (
        f"{SHARED_ODDS:g} times the odds under uniform attention"
        if kind == _SINKS
        else f"twice the share under uniform attention{most}, beyond chance"
    )
    return f"No {kind} head: none has {least:.0%} of its weight {where} and {beyond}."


def _ranked_by(results: xr.Dataset, kind: str) -> tuple[str, str]:
    return (_RANKED_BY_OF_IMAGES if results.attrs.get("reads") == "images" else _RANKED_BY)[kind]


def describe_labels(results: xr.Dataset) -> str:
    """The number of heads with each label; without labels, the reason."""
    if "labels" in results.attrs:
        return str(results.attrs["labels"])
    needed = NEEDED
    if results.attrs.get("reads") == "images":
        if "rows" not in results:
            return "No head labels: the rows and columns of patches are unknown."
        from attnscope.measure.images import NEEDED as needed  # noqa: N811
    absent = ", ".join(name for name in needed if name not in results)
    return f"No head labels: they need the statistics {absent}." if absent else ""


def means_note(results: xr.Dataset, ranked: Iterable[Sequence[RankedHead]]) -> str:
    """How numbers and labels of ranked heads combine several windows; empty for one window."""
    if results.sizes["window"] < 2 or not any(row["label"] for rows in ranked for row in rows):  # noqa: PLR2004
        return ""
    return f"Weights and offsets are means over all {describe_windows(results)}; labels are the most frequent ones."


def describe_windows(results: xr.Dataset) -> str:
    """The plural noun for the entries of ``window``."""
    return "pools" if "window_count" in results else called_in(results.attrs)["windows"]


def describe_layers(results: xr.Dataset) -> str:
    """The number of layers with attention, by type if there are several."""
    kinds = results["layer_kind"].values.tolist() if "layer_kind" in results.coords else []
    if "cross" not in kinds or len(set(kinds)) == 1:
        return count(results.sizes["layer"], "layer")
    names = {"self": "encoder", "causal": "decoder", "cross": "cross-attention"}
    if set(kinds) != set(names):
        names = {"self": "self-attention", "causal": "causal", "cross": "cross-attention"}
    *others, last = [f"{kinds.count(kind)} {name}" for kind, name in names.items() if kind in kinds]
    return f"{', '.join(others)} and {last} layers"


def describe_corpus(results: xr.Dataset) -> str:
    """The size of the corpus."""
    texts = results.sizes["window"]
    if results.attrs.get("reads") != "images":
        if "length" not in results:
            return count(texts, "window")
        tokens = f"{int(results.length.sum()):,} {unit_of(results)}"
        if texts > 1:
            tokens = f"{tokens} in all"  # not in each
        if "target_length" in results:
            tokens += f", {int(results.target_length.sum()):,} in the target"
        if "image_tokens" in results:
            images = results.image_tokens.values[results.image_tokens.values > 0]
            tokens += f", {images.sum()} from {count(len(images), 'image')}"
        if results.attrs.get("reads") == "videos":
            return f"{count(texts, 'video')} ({tokens})"
        if "window_count" in results:
            return f"{count(int(results.window_count.sum()), 'window')} ({tokens}) in {count(texts, 'pool')}"
        return f"{count(texts, 'window')} ({tokens})"
    if "rows" not in results:
        return count(texts, "image")
    grids = sorted(set(zip(results.rows.values.tolist(), results.columns.values.tolist(), strict=True)))
    others = int((results.length - results.rows * results.columns).max())
    parts = ", ".join(f"{rows} x {columns}" for rows, columns in grids[:3]) + ", ..." * (len(grids) > 3)  # noqa: PLR2004
    return f"{count(texts, 'image')} of {parts} patches and {count(others, 'other token')}"
