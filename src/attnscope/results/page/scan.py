"""Writing the page."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from attnscope.comparison.groups import GROUP_PAIRS_CAUTION, MeanGroupWeights
from attnscope.measure.labels import UNNAMED
from attnscope.measure.offset_shares import OffsetShares, shares_by_offset
from attnscope.measure.quantities import SUMMARIES
from attnscope.measure.ranking import heads_far_from_uniform, of_several, rank_heads, with_each
from attnscope.measure.row_samples import ESTIMATED
from attnscope.measure.sampling_error import intervals
from attnscope.measure.stored import notes_of, unit_of
from attnscope.report.render import page_table
from attnscope.report.schema import Report, shown_label
from attnscope.results.figures import selection
from attnscope.results.figures.style import cluster_colours, with_minus
from attnscope.results.page import parts
from attnscope.results.page.heads import Tab
from attnscope.results.scan_report import contrasts_table, examples_of, sample_of, summary_table
from attnscope.support.errors import AttnscopeError

_SCRIPTS = ("patches.js", "window.js", "profile.js")
_SHOWN = {"images": "Image", "videos": "Video", "sounds": "Sound"}  # by what was read
_OF_TEXT = ("text.js", "received.js", "long.js")


def write(report: Report, path: Path | str, run: Path | None = None) -> Path:
    """Write a scan and the attention over its first windows as one HTML page."""
    return write_with(report, sample_of(report.result), path, run)


def write_with(report: Report, sample: xr.Dataset | None, path: Path | str, run: Path | None = None) -> Path:
    """The same with a sample at hand."""
    result = report.result
    heads = page_data(result)
    heads |= {"there": _measured(heads), "timed": unit_of(result) == "frames"}
    heads["examples"] = parts.deflated_json(examples_of(result))
    packed: dict[str, Any] | None = None
    received, pieces = None, ""
    if sample is not None:
        window = parts.pack_windows(sample)
        texts = window.shared["windows"]
        received = parts.pack_received(sample, [[len(text["tokens"]) for text in several] for several in texts])
        heads["window"] = window.shared | {"pictures": picture_data(sample), "views": view_data(sample)}
        packed = {"maps": window.maps, "tiles": window.tiles, "long": parts.pack_long(sample)}
        packed["received"] = parts.deflated_json(received)
        pieces = parts.pieces_note(token for text in chain.from_iterable(texts) for token in text["tokens"])
    heads["opens"] |= _first(heads, report.finding.leading, packed)
    tables = {table.name: table for table in report.tables}
    summary, profiles = summary_table(result), heads["profile"]
    has_profile = any(heads[name] for name in ("profile", "patches", "offsets", "blocks", "labels", "quantities"))
    tabs = [
        *([Tab("text", _SHOWN.get(result.attrs.get("reads"), "Text"), "text_panel")] if packed else []),
        *([Tab("profile", "Profile", "profile_panel")] if has_profile else []),
        *([Tab("examples", "Examples", "examples_panel")] if heads["examples"] else []),
        *([Tab("groups", "Groups", "groups_panel")] if heads["groups"] else []),
        *([Tab("numbers", "Numbers", is_numbers=True)] if heads["quantities"] else []),
    ]
    several = "by" in result.coords and len(set(result.by.values)) > 1
    contrasts, differences = contrasts_table(result) if several else (None, [])
    notes = notes_of(result)
    at_top, estimated, why = notes.get("rows", "").partition(ESTIMATED)
    notes |= {"rows": at_top.strip()}
    return parts.write_page(
        path,
        "scan",
        report,
        heads=heads,
        tabs=tabs,
        scripts=[*_SCRIPTS, *(_OF_TEXT if packed else [])],
        packed=packed,
        run=run,
        estimated=with_minus(estimated + why),
        **{name: heads[name] for name in ("unit", "noun", "quantities", "offsets", "blocks", "labels", "profile")},
        patches=heads["patches"],
        has_band=profiles is not None and any_number(profiles["high"]),
        opens=heads["opens"]["says"],
        groups=page_table(tables["groups"]) if "groups" in tables else None,
        contrasts=None if contrasts is None else page_table(contrasts),
        differences=differences,
        caution=GROUP_PAIRS_CAUTION,
        images=result.attrs.get("reads") == "images",
        reads_text="reads" not in result.attrs,  # as intervene does
        window=heads.get("window"),
        count=heads["texts"],
        has_received=bool(received and received["heads"]),
        has_recent=bool(received and received["recent"]),
        has_long=bool(packed and packed["long"]),
        pieces=pieces,
        quantiles=heads["spread"],
        summary=page_table(summary),
        clustered=any(row["quantity"] == "clusters.k" for row in summary.rows),
        notes=[*filter(None, (*notes.values(), str(result.attrs.get("labels", ""))))],
    )


_BINS = 24
_PROFILES = 64  # heads that the map draws with a profile each
_CURVES = (("profile", "mean"), ("patches", "mean"), ("offsets", "share"), ("labels", "shares"))


def page_data(result: xr.Dataset) -> dict[str, Any]:
    """Everything the page draws, except the sample window."""
    if not selection.can_be_drawn(result):
        raise AttnscopeError("the result has no statistics, profiles or labels to report")
    result = with_each(result)
    result = result if selection.statistics(result) or "label" in result else with_peak(result)
    names, ends = selection.statistics(result), intervals(result)
    layers, heads = selection.axis_values(result, "layer"), selection.axis_values(result, "head")
    kinds = result["layer_kind"].values if "layer_kind" in result.variables else ["self"] * len(layers)
    layer_names = result["layer_name"].values if "layer_name" in result.variables else layers
    return {
        "layers": layers,
        "layerLabels": selection.layer_labels(result),
        "layerNames": [str(name) for name in layer_names],
        "layerKinds": [str(kind) for kind in kinds],
        "heads": heads,
        "texts": result.sizes.get("window", 0),
        "noun": selection.noun_of(result),
        "quantities": [_statistic(result, name, ends) for name in names],
        "opens": _opens(result, names),
        "blocks": [_blocks(result, name) for name in of_several(result, "kept")],
        "profile": _profile(result),
        "offsets": offset_data(result),
        "labels": _labels(result),
        "patches": patch_data(result),
        "groups": group_data(result),
        "unit": unit_of(result),
        "spread": f"{selection.LOW * 100:.0f}–{selection.HIGH * 100:.0f}%",
    }


def _statistic(result: xr.Dataset, name: str, ends: xr.Dataset) -> dict[str, Any]:
    words = selection.wording(result, name)
    if name in SUMMARIES:
        noun = selection.noun_of(result)
        words = replace(
            words,
            long_name=selection.of_entries(words.long_name, noun),
            reading=selection.of_entries(words.reading, noun),
        )
    variable = result[name]
    entry: dict[str, Any] = {
        "key": name,
        "name": words.long_name,
        "units": "" if words.units == "share" and "share" in words.long_name.lower().split() else words.units,
        "help": words.reading,
        "signed": words.signed,
        "largest": words.largest,
        "values": parts.numbers(selection.mean_over_texts(variable).ravel()),
    }
    uniform = result.get(f"equal_{name}")
    if uniform is not None:
        uniform = uniform.mean("window") if "window" in uniform.dims else uniform
        entry["equal"] = parts.numbers(uniform.values.astype(float))  # one a layer
    if name in ends and "window" in variable.dims:
        within = ends[name].transpose("bound", "layer", "head")
        entry["within"] = [parts.numbers(bound.ravel()) for bound in within.values]
    if "window" in variable.dims:
        low, high = selection.quantiles_over_texts(variable)
        entry["low"], entry["high"] = parts.numbers(low.ravel()), parts.numbers(high.ravel())
        values = variable.transpose("layer", "head", "window").values.astype(float)
        entry["counts"] = parts.deflated_json([_histogram(row) for row in values.reshape(-1, values.shape[-1])])
    return entry


def any_number(values: Any) -> bool:
    """Whether there is a number among values of the page, however deep."""
    return any(map(any_number, values)) if isinstance(values, list) else values is not None


def _histogram(values: np.ndarray) -> dict[str, Any] | None:
    """Counts of one head over texts between its own least and greatest value."""
    values = values[np.isfinite(values)]
    if values.size == 0:
        return None
    low, high = float(values.min()), float(values.max())
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-12):
        reach = 0.05 * abs(low) or 0.5
        low, high = low - reach, high + reach
    counts, _ = np.histogram(values, bins=_BINS, range=(low, high))
    return {"range": parts.numbers(np.array([low, high])), "n": counts.tolist()}


def _measured(heads: Mapping[str, Any]) -> list[bool]:
    """Whether there is any number of each head."""
    values = [one["values"] for one in heads["quantities"]]
    values += [heads[name][key] for name, key in _CURVES if heads[name]]
    cells = range(len(heads["layers"]) * len(heads["heads"]))
    return [any(any_number(one[index]) for one in values) for index in cells]


def _first(
    heads: Mapping[str, Any], ranked: Sequence[tuple[int, int]], packed: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What opens: the first ranked head whose map is stored; labels, unless all of many heads have the same."""
    cells = {pair: index for index, pair in enumerate(product(heads["layers"], heads["heads"]))}
    order = [*map(cells.__getitem__, ranked), heads["opens"]["head"], *cells.values()]
    measured = [index for index in order if index is not None and heads["there"][index]]
    drawn = [index for index in measured if packed and f"0.{index}" in packed["maps"]]
    opens: dict[str, Any] = {"head": (drawn or measured or [None])[0]}
    if heads["labels"] is None:
        return opens
    shares = np.array([share for share in heads["labels"]["shares"] if share[0] is not None], float)
    spread = {one["key"]: _spread(one) for one in heads["quantities"] if any_number(one["values"])}
    opens["labels"] = not spread or len(shares) <= _PROFILES or len({*shares.argmax(1).tolist()}) > 1
    return opens if opens["labels"] else opens | {"quantity": max(spread, key=spread.__getitem__)}


def _spread(one: Mapping[str, Any]) -> float:
    """The range of a statistic over heads, as a share of its largest value."""
    values = np.array([value for value in one["values"] if value is not None], float)
    return float(np.ptp(values) / (one["largest"] or max(float(np.abs(values).max()), 1e-30)))


def _opens(result: xr.Dataset, names: list[str]) -> dict[str, Any]:
    """The first statistic to show and, if no ranking determines a head, which and why."""
    apart = heads_far_from_uniform(result)
    opens: dict[str, Any] = {"labels": False, "quantity": next(iter(names), None), "head": None, "says": ""}
    name = ""
    if apart is not None:
        name = next((each for each in names if each == apart[0] or each.startswith(f"{apart[0]}_")), "")
        opens["quantity"] = name or opens["quantity"]
    if {"profile", "patch_profile"} & set(result.variables) or not names or any(rank_heads(result).values()):
        return opens
    if apart is None:
        opens["says"] = "These statistics are equal for all heads; the page opens at the first."
        return opens
    row, column = apart[1][0]
    layer, head = selection.axis_values(result, "layer")[row], selection.axis_values(result, "head")[column]
    middle = "uniform attention" if f"equal_{name}" in result else "the median of all heads"
    opens["says"] = (
        f"No ranking applies to these statistics. The page opens at head {layer}.{head}, "
        f"the furthest from {middle} in "
        f"“{selection.wording(result, name).long_name}”."
    )
    opens["head"] = row * result.sizes["head"] + column
    return opens


def _blocks(result: xr.Dataset, name: str) -> dict[str, Any]:
    """A curve over the shares of blocks kept: the keys of the statistics at its points."""
    shares = result["kept"].values.tolist()
    keys = [f"{name}_{percent}" for percent in shares]
    words = selection.wording(result, name)
    return {"kept": shares, "keys": keys, "title": words.long_name, "reading": words.reading}


def _profile(result: xr.Dataset) -> dict[str, Any] | None:
    if "profile" not in result.variables:
        return None
    offsets = [int(offset) for offset in result["offset"].values]
    low, high = selection.quantiles_over_texts(result["profile"])
    curves = {"mean": selection.mean_over_texts(result["profile"]), "low": low, "high": high}
    flat = {name: parts.numbers(values.reshape(-1, len(offsets))) for name, values in curves.items()}
    return {"offsets": offsets, **flat}


def _labels(result: xr.Dataset) -> dict[str, Any] | None:
    if not {"label", "cluster"} <= set(result.variables):
        return None
    names = [str(name) for name in result["cluster"].values]
    shares = selection.label_shares(result).reshape(-1, len(names))
    patternless = [name in UNNAMED for name in names]
    entry: dict[str, Any] = {
        "names": [with_minus(shown_label(name)) for name in names],
        "colours": cluster_colours(names),
        "shares": parts.numbers(shares),
        "patternless": [at for at, of_head in enumerate(shares) if of_head.max() > 0 and patternless[of_head.argmax()]],
    }
    if "centroid" in result.variables:
        entry["offsets"] = [int(offset) for offset in result["offset"].values]
        entry["centroids"] = parts.numbers(result["centroid"].transpose("cluster", "offset").values.astype(float))
    return entry


def patch_data(result: xr.Dataset) -> dict[str, Any] | None:
    """The patch profile of each head, layer by layer, and uniform attention; None if not measured."""
    if "patch_profile" not in result.variables:
        return None
    mean = selection.mean_over_texts(result["patch_profile"])
    heads = mean.shape[1]
    equal = result["equal_patch_profile"].mean("window", skipna=True).transpose("layer", ...).values
    return {
        "rows": result["row_offset"].values.tolist(),
        "columns": result["column_offset"].values.tolist(),
        "mean": parts.numbers(mean.reshape(mean.shape[0] * heads, -1)),
        "equal": parts.numbers(np.repeat(equal.reshape(len(equal), -1), heads, 0)),
    }


def picture_data(sample: xr.Dataset) -> list[dict[str, Any]] | None:
    """For each window the image, its name, and which tokens are its patches; None for text."""
    if "picture" not in sample.variables:
        return None
    pictures: list[dict[str, Any]] = []
    columns = (sample[name].values for name in ("source", "picture", "grid"))
    for name, picture, grid in zip(*columns, strict=True):
        start, rows, across = grid.tolist()
        pictures.append({"name": str(name), "source": _jpeg(picture), "start": start, "rows": rows, "columns": across})
    return pictures


def _jpeg(picture: str) -> str:
    """The address of a stored picture; empty without one."""
    return f"data:image/jpeg;base64,{picture}" if picture else ""


def view_data(sample: xr.Dataset) -> list[list[dict[str, Any]]] | None:
    """For each window the images in its text: rows, columns, and the tokens in them, row by row."""
    if "view_of" not in sample.variables:
        return None
    views: list[list[dict[str, Any]]] = [[] for _ in range(sample.sizes["window"])]
    for view, window in enumerate(sample["view_window"].values.tolist()):
        tokens = np.flatnonzero(sample["view_of"].values[window] == view)
        views[window].append(
            {
                "name": str(sample["view_name"].values[view]),
                "source": _jpeg(sample["view_picture"].values[view]),
                "rows": int(sample["view_rows"].values[view]),
                "columns": int(sample["view_columns"].values[view]),
                "tokens": tokens[np.argsort(sample["view_position"].values[window][tokens])].tolist(),
            }
        )
    return views


def group_data(result: xr.Dataset) -> dict[str, Any] | None:
    """Weights of groups on groups, head by head in the order layer by layer; None where there are no groups."""
    if not {"group_weight", "position_group_weight", "equal_group_weight"} <= set(result.variables):
        return None
    means = MeanGroupWeights.of(result)
    present = means.present

    def flat(values: np.ndarray) -> Any:
        return parts.numbers(values[:, :, present][..., present].reshape(-1, len(present), len(present)))

    return {
        "names": [str(name) for name in result.group_query.values[present]],
        "weight": flat(means.weight),
        "positions": flat(means.positions),
        "equal": flat(means.equal),
    }


PEAK = "peak_share"


def offset_data(result: xr.Dataset) -> dict[str, Any] | None:
    """Shares of the weight in each bin of offsets, head by head, and uniform attention, layer by layer."""
    shares = _shares(result)
    if shares is None:
        return None
    shares = shares.seen()
    return {
        "first": shares.first.tolist(),
        "last": shares.last.tolist(),
        "share": parts.numbers(shares.share.reshape(-1, len(shares.first))),
        "equal": None if shares.equal is None else parts.numbers(shares.equal),
        "whole": shares_by_offset(result, "bins") is not None,
    }


def _shares(result: xr.Dataset) -> OffsetShares | None:
    shares = shares_by_offset(result, "bins")
    return shares_by_offset(result, "band") if shares is None and "profile" not in result else shares


def with_peak(result: xr.Dataset) -> xr.Dataset:
    """Add a number for each head to colour the grid by, if the result has none."""
    shares = _shares(result)
    profile = next((name for name in ("profile", "patch_profile") if name in result), None)
    if shares is not None:
        away = shares.share[..., (shares.first != 0) | (shares.last != 0)]
        meaning = "Largest share of weight in one bin of offsets other than 0"
    elif profile is not None:
        offsets = [result[dim] for dim in result[profile].dims if str(dim).endswith("offset")]
        away = selection.mean_over_texts(result[profile].where(sum(abs(offset) for offset in offsets) > 0))
        away = away.reshape(*away.shape[:2], -1)
        meaning = "Largest mean weight at one offset other than 0"
    else:
        return result
    largest = np.nan_to_num(away, nan=-np.inf).max(-1, initial=-np.inf)
    values = np.where(np.isfinite(largest), largest, np.nan)
    return result.assign({PEAK: (("layer", "head"), values, {"long_name": meaning, "units": "share"})})
