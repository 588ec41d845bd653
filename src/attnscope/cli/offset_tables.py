"""Where each head looks by offset, as ``--json`` of `attnscope scan` has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope._nulls import with_nulls

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.statistics import OffsetShares

ROOM = 1_000_000  # numbers of one profile over all heads: of more, the run folder alone has them


def offsets_dict(results: xr.Dataset) -> dict[str, Any] | None:
    """Shares of the weight by offset: ``bins`` that double, the ``band``, ``every`` offset, ``chosen`` ones.

    Each is None where it was not measured. It holds the ``first`` and ``last`` offset of each bin or the ``offset``, in
    tokens, or in words where these are measured; ``share`` by layer, head and bin; and ``equal``, by layer and bin, of
    equal weights over all that a token may see.
    """
    from attnscope.statistics import shares_by_offset

    profiles = {of: shares_by_offset(results, of) for of in ("bins", "band", "every")}
    told = {
        of: None if shares is None else _dict_of(shares.seen(), single=of != "bins")
        for of, shares in profiles.items()
    } | {"chosen": _chosen(results)}
    return told if any(part is not None for part in told.values()) else None


def _chosen(results: xr.Dataset) -> dict[str, Any] | None:
    if "weight_at" not in results:
        return None
    means = {"share": results.weight_at.mean("text"), "equal": results.equal_weight_at.mean("text")}
    return {"offset": results.chosen_offset.values.tolist()} | {
        name: with_nulls(values.transpose(..., "chosen_offset").values) for name, values in means.items()
    }


def _dict_of(shares: OffsetShares, *, single: bool) -> dict[str, Any]:
    if shares.share.size > ROOM:
        count = f"{shares.share.size:,} numbers are more than {ROOM:,}"
        return {"left_out": f"{count}: the sums are in the run folder, and attnscope.open_run reads them"}
    ends = {"offset": shares.first} if single else {"first": shares.first, "last": shares.last}
    return {name: offsets.tolist() for name, offsets in ends.items()} | {
        "share": with_nulls(shares.share),
        "equal": None if shares.equal is None else with_nulls(shares.equal),
    }
