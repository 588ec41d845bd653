"""Rows of attention that were measured inside an inference engine, and the statistics of a scan from them.

`packed` and `write_rows` need PyTorch and NumPy alone, for workers whose environment has little else.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from attnscope.kernels.bins import far_starts
from attnscope.kernels.call import FLAGS, AttentionCall, RowMeasures
from attnscope.kernels.masks import RowMask
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.measure.watched import MeasuredPass

__all__ = ["heads_of_rows", "packed", "read_rows", "write_rows"]

#: Measures of a row with one number, in the order in which they are stored.
FIELDS = ("log_sum_exp", "mass", "entropy", "mean_offset", "offset_variance", "largest", "largest_key", "collision")
#: Weights of a row on these keys, stored after the other numbers: those of ``attnscope.measure.rows.COLUMNS``, which a
#: worker cannot import.
COLUMNS = ("first_token", "special_tokens")


def packed(rows: RowMeasures) -> Float[Tensor, "batch head query number"]:
    """The rows of causal attention as numbers side by side, float32, from all of `Need` and two columns.

    They are `FIELDS`, the weights at offsets from the left end of the band to 0, the bins on the left, and `COLUMNS`.
    """
    single = torch.stack([getattr(rows, name) for name in FIELDS], -1)
    band, bins, columns = (cast("Tensor", part) for part in (rows.band, rows.bins, rows.columns))
    left = band[..., : band.shape[-1] // 2 + 1], bins[..., : bins.shape[-1] // 2]
    return torch.cat([single, *left, columns], -1).float()


def write_rows(folder: Path, rank: int, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write the file of one worker, whole or not at all.

    Parameters
    ----------
    folder
        Made if it is missing; the files of all workers go there.
    rank
        Number of the worker. Several have different heads of a layer, in their order, or different layers.
    about
        ``model`` (name); ``band`` (largest offset); ``bins`` (as in `Need`); ``special`` (ids of special tokens);
        ``windows`` (keys that a query sees in each layer, None for all); ``requests``, a list of ``name``, ``prompt``
        (number of tokens) and ``tokens`` (ids).
    arrays
        ``rows/REQUEST/LAYER``, of each request by its number and each layer by its name, ``(head, query, number)`` as
        from `packed`; ``received/REQUEST/LAYER``, ``(head, key)``, if it was measured.
    """
    folder.mkdir(parents=True, exist_ok=True)
    partial_file = folder / f".rows-{rank}.npz"
    with partial_file.open("wb") as file:
        np.savez(file, about=np.array(json.dumps(about)), **cast("Any", arrays))
    partial_file.replace(folder / f"rows-{rank}.npz")


def number_of(layer: str) -> int:
    """The number in the name of a layer; -1 without one."""
    found = re.search(r"(?:^|\.)(\d+)(?:\.|$)", layer)
    return -1 if found is None else int(found[1])


def read_rows(folder: str | Path) -> list[xr.Dataset]:
    """Read the rows of every request from a folder that the workers of an engine wrote.

    Returns
    -------
    list of xarray.Dataset
        One for each request, over ``layer, head, query`` and ``key``: the `RowMeasures` of each query by their names,
        such as ``entropy`` (nats), ``largest`` and ``largest_key`` (the largest weight, and the position of its key),
        ``first_token`` and ``special_tokens`` (weight on these keys), and ``received`` (the weight that each key
        receives), if it was measured. ``token`` has the ids. The attribute ``source`` is the engine's name of the
        request, ``prompt`` the number of its tokens that it began with. Rows are NaN that the engine had computed
        before the measurement; so is what a key receives, if some of its queries were not in this request.

    Raises
    ------
    AttnscopeError
        If the folder has no such files.
    """
    files = sorted(Path(folder).glob("rows-*.npz"), key=lambda path: int(path.stem.removeprefix("rows-")))
    if not files:
        raise AttnscopeError(f"found no rows in {folder}; expected the folder that write_heads wrote")
    requests: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    parts: defaultdict[tuple[str, str, str], list[np.ndarray]] = defaultdict(list)  # by kind, request and layer
    windows: dict[str, int | None] = {}
    for path in files:
        with np.load(path) as stored:
            about = json.loads(stored["about"].item())
            windows |= about["windows"]
            for name in stored.files:
                kind, _, rest = name.partition("/")
                number, _, layer = rest.partition("/")
                if layer:
                    parts[kind, about["requests"][int(number)]["name"], layer].append(stored[name])
            requests |= {request["name"]: (about, request) for request in about["requests"]}
    results: list[xr.Dataset] = []
    for name, (about, request) in requests.items():
        layers = sorted((layer for layer in windows if ("rows", name, layer) in parts), key=number_of)
        if layers:  # else it has ended before its first step
            rows, received = (
                [np.concatenate(parts[kind, name, layer]) for layer in layers if (kind, name, layer) in parts]
                for kind in ("rows", "received")
            )
            results.append(_named(about, request, {layer: windows[layer] for layer in layers}, rows, received))
    return results


def _named(
    about: dict[str, Any],
    request: dict[str, Any],
    windows: dict[str, int | None],
    rows: list[np.ndarray],
    received: list[np.ndarray],
) -> xr.Dataset:
    """The rows of one request with their names; `windows` has its layers."""
    import xarray as xr

    from attnscope.store.arrays import padded_heads

    band, dims = about["band"], ("layer", "head", "query")
    ends = np.cumsum([len(FIELDS), band + 1, len(about["bins"])])
    single, near, far, columns = np.split(padded_heads(rows), ends, axis=-1)
    numbers = np.moveaxis(np.concatenate([single, columns], -1), -1, 0)
    names = np.array([layer.removesuffix(".attn") for layer in windows], dtype=object)
    return xr.Dataset(
        {name: (dims, values) for name, values in zip((*FIELDS, *COLUMNS), numbers, strict=True)}
        | {"band": ((*dims, "offset"), near), "bins": ((*dims, "bin"), far)}
        | ({"received": (("layer", "head", "key"), padded_heads(received))} if received else {}),
        coords={
            "layer": [number_of(layer) for layer in windows],
            "layer_name": ("layer", names),
            "sliding_window": ("layer", [window or 0 for window in windows.values()]),
            "offset": np.arange(-band, 1),
            "token": ("query", request["tokens"][: near.shape[2]]),
        },
        attrs={
            "source": re.sub(r"-[0-9a-f]{8}$", "", request["name"]),  # vLLM makes names unique by 8 digits
            "prompt": request["prompt"],
            "model": about["model"],
            "special": about["special"],
        },
    )


def heads_of_rows(rows: Iterable[xr.Dataset], *, statistics: Sequence[str] | str | None = None) -> xr.Dataset:
    """The statistics of `attnscope.scan`, from rows that were measured inside an engine.

    Parameters
    ----------
    rows
        As `read_rows` returns them, one text each.
    statistics
        Names of statistics, as for `attnscope.scan`; by default the same.

    Returns
    -------
    xarray.Dataset
        In the form of `attnscope.scan`, with one ``window`` for each request: its prompt and what it wrote, without the
        last token, which the model has not read. ``prompt_length`` counts the tokens of the prompt. Requests without
        all their rows are left out, and counted in the attribute ``left_out``.

    Raises
    ------
    AttnscopeError
        If no request has all its rows, or a statistic needs what the engine did not measure.
    """
    from attnscope.measure.quantities import choose, needs_of
    from attnscope.measure.watched import collected

    names, every = choose(statistics), [*rows]
    whole = [text for text in every if bool(text.mass.notnull().any("head").all())]
    if not whole:
        raise AttnscopeError(
            f"none of {len(every)} requests has all its rows: their prefixes were cached before they were measured. "
            "Call llm.reset_prefix_cache() before watch_heads"
        )
    measured = {*FLAGS, "band", "bins", "columns", "distance"}
    measured |= {"received"} if all("received" in text for text in whole) else set()
    for name in names:
        absent = needs_of([name]) - measured
        if absent:
            raise AttnscopeError(
                f"{name} needs {', '.join(sorted(map(str, absent)))}, which the engine did not measure: leave it out "
                "(received: watch_heads with received=True)"
            )
    band = whole[0].sizes["offset"] - 1
    results = collected([_pass_of(text, names, band) for text in whole], names, band)
    results = results.assign_coords(source=("window", np.array([text.source for text in whole], dtype=object)))
    prompts = np.array([text.prompt for text in whole])
    results["prompt_length"] = "window", prompts, {"long_name": "Tokens of the prompt", "units": "tokens"}
    results = results.assign_attrs(model=whole[0].model, capture="engine")
    if len(whole) == len(every):
        return results
    return results.assign_attrs(
        left_out=f"{len(every) - len(whole)} of {len(every)} requests are left out: their prefixes were cached before "
        "they were measured."
    )


def _pass_of(text: xr.Dataset, names: Sequence[str], band: int) -> MeasuredPass:
    """The statistics of one request; layers in which queries see the same keys are reduced together."""
    from attnscope.capture.watch import Site
    from attnscope.measure.passes import of_uniform
    from attnscope.measure.quantities import STRONGEST
    from attnscope.measure.rows import Marks, SecondPass, reduce_call, second_pass
    from attnscope.measure.watched import MeasuredPass

    length, heads = text.sizes["query"], text.sizes["head"]
    real = torch.ones(1, length, dtype=torch.bool)
    special = torch.from_numpy(np.isin(text.token.values, text.special))[None]
    ids = torch.from_numpy(text.token.values)[None]
    marks = Marks(real, real, special, special_queries=special, ids=(ids, ids))
    position, nothing = torch.arange(length)[None], torch.zeros(1, 1, length, 1)
    measured: dict[int, dict[str, Tensor]] = {}
    for window in np.unique(text.sliding_window.values):
        layers = np.flatnonzero(text.sliding_window.values == window)
        alike = text.isel(layer=layers)
        first = (position - int(window) + 1).clamp_min(0) if window else torch.zeros_like(position)
        seen = AttentionCall(nothing, nothing, nothing, scale=1.0, mask=RowMask(first, position + 1, length))
        second = SecondPass(received=_heads(alike.received) if "received" in text else None)
        eligible = marks.eligible(seen) if STRONGEST in names else None
        rows = _measures(alike, band, length - 1)
        reduced = reduce_call(rows, names, real, real, second=second, eligible=eligible, ids=marks.ids)
        sums = partial(second_pass, valid=real, observation=1, reach=length - 1)
        equal = of_uniform(seen, names, band, length - 1, marks, sums)
        for number, layer in enumerate(layers):
            of_layer = slice(number * heads, (number + 1) * heads)
            measured[int(layer)] = {name: value[:, of_layer] for name, value in reduced.items()} | equal
    whole = MeasuredPass()
    for layer, (number, name) in enumerate(zip(text.layer.values, text.layer_name.values, strict=True)):
        whole.add(Site(int(number), str(name), "causal", heads), measured[layer], real, length - 1)
    return whole


def _measures(text: xr.Dataset, band: int, reach: int) -> RowMeasures:
    """The rows as a pass over the whole text gives them: nothing is on the right of a query, nor beyond its text."""
    near, far = (_heads(text[name]) for name in ("band", "bins"))
    far = far[..., far.shape[-1] - len(far_starts(band, reach)) :]
    return RowMeasures(
        **{name: _heads(text[name]).double() for name in FIELDS},
        band=pad(near, (0, band)),
        bins=pad(far, (0, far.shape[-1])),
        columns=torch.stack([_heads(text[name]).double() for name in COLUMNS], -1),
    )


def _heads(values: xr.DataArray) -> Tensor:
    """The heads of all layers as those of one, ``(1, head, ...)``."""
    return torch.from_numpy(values.values).flatten(0, 1)[None]
