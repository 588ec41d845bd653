"""Which heads a reader asks for first, and where each looks, from the statistics of a scan."""

from __future__ import annotations

import numpy as np
import xarray as xr

from attnscope.measure.forms import text_mean
from attnscope.measure.grid import rank_patch_heads
from attnscope.measure.observer import LEAST_SHARE, LOCAL
from attnscope.measure.quantities import EQUAL, SEVERAL, without_end
from attnscope.measure.questions import Question, RankedHead, answered, beyond, sink_like
from attnscope.support.arguments import reads

_SAME = 1e-6  # relative: what differs less between heads does not tell them apart


def queries(results: xr.Dataset) -> xr.DataArray:
    """Rows of each map, ``(text)`` or ``(window, layer)``: in a decoder that reads a target, as many as that has
    tokens.
    """
    if "queries" in results:
        return results.queries.transpose("window", "layer")
    if "target_length" not in results:
        return results.length
    return xr.where(results.layer_kind == "self", results.length, results.target_length).transpose("window", "layer")


@reads("scan")
def peaks(results: xr.Dataset) -> xr.Dataset | None:
    """Where the profile of each head has its peak, by means over texts."""
    shares = _shares(results)
    if shares is None:
        return None
    largest = shares.max("offset")
    place = results.offset[shares.fillna(-1).argmax("offset")].drop_vars("offset").astype(float)
    return xr.Dataset(
        {
            "peak_offset": place.where(largest.notnull()).assign_attrs(units="tokens"),
            "peak_weight": largest.assign_attrs(units="share"),
        }
    )


def _shares(results: xr.Dataset, name: str = "band_sum") -> xr.DataArray | None:
    """Share of all weight at each offset: at a large one the mean over the few rows that have it would say little."""
    if name not in results or "length" not in results:
        return None
    shares = results[name] / queries(results)
    return text_mean(shares)


def _describe_rows(results: xr.Dataset) -> xr.DataArray | None:
    """How many rows means are over, of all texts, by layer where layers differ; None where it is not known."""
    if "length" not in results:
        return None
    rows = queries(results)
    if "sampled_rows" in results:
        rows = xr.where(rows < results.sampled_rows, rows, results.sampled_rows)
    return rows.sum("window") if "window" in rows.dims else rows


@reads("scan")
def rank_heads(results: xr.Dataset, top: int = 5) -> dict[str, list[RankedHead]]:
    """The most positional, most local and most sink-like heads, by means over texts; none where there is none."""
    if "row_offset" in results.dims:
        return rank_patch_heads(results, top)
    questions: list[Question] = []
    shares, told = _shares(results), _describe_rows(results)
    if shares is not None:
        away = beyond(shares.where(results.offset != 0), _shares(results, "equal_band_sum"), LEAST_SHARE, told)

        def offset(layer: int, head: int) -> int:
            at = away.transpose("layer", "head", "offset").values[layer, head]
            return int(results.offset[int(np.nanargmax(at))])

        questions.append(Question("positional", away.max("offset"), offset))
    if "outside" in results:
        equal = 1 - text_mean(results.equal_outside) if "equal_outside" in results else None
        questions.append(Question("local", beyond(1 - text_mean(results.outside), equal, LOCAL, told)))
    questions += sink_like(results, ("first_token", "special_tokens", "learned_sink"))
    return answered(questions, results, top)


@reads("scan")
def heads_far_from_uniform(results: xr.Dataset, top: int = 5) -> tuple[str, list[tuple[int, int]]] | None:
    """Heads to look at first where nothing ranks them: those furthest from equal weights in one statistic."""
    for key, variable in results.data_vars.items():
        name = str(key)
        if not {"layer", "head"} <= set(variable.dims) <= {"window", "layer", "head", *SEVERAL}:
            continue
        if variable.dtype.kind != "f" or without_end(name) != name or name.endswith("_variance"):
            continue
        values = _one_each(variable, ("layer", "head"))
        known = np.isfinite(values)
        if not known.any() or np.ptp(values[known]) <= _SAME * np.abs(values[known]).max():
            continue
        equal = results.get(f"{EQUAL}{name}")
        middle = np.median(values[known]) if equal is None else _one_each(equal, ("layer",))[:, None]
        away = np.nan_to_num(np.abs(values - middle), nan=-1.0)
        order = [divmod(int(place), away.shape[1]) for place in np.argsort(-away, axis=None, kind="stable")]
        return name, [place for place in order if known[place]][:top]
    return None


def _one_each(variable: xr.DataArray, dims: tuple[str, ...]) -> np.ndarray:
    """Means over texts; of several numbers of a head (shares of blocks, chosen offsets), of the first."""
    first = variable.isel({dim: 0 for dim in variable.dims if dim in SEVERAL})
    return text_mean(first).transpose(*dims).values.astype(float)
