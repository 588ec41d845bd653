"""Where each head looks by offset, as ``--json`` of `attnscope scan` has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope._nulls import with_nulls

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.statistics import OffsetShares

ROOM = 1_000_000  # numbers of one profile over all heads: of more, the run folder alone has them


def offsets_dict(results: xr.Dataset) -> dict[str, Any] | None:
    """Shares of the weight by offset: in ``bins`` that double, in the ``band``, at ``every`` offset.

    Each is None where it was not measured. It holds the ``first`` and ``last`` offset of each bin or the ``offset``, in
    tokens, or in words where these are measured; ``share`` by layer, head and bin; and ``equal``, by layer and bin, of
    equal weights over all that a token may see.
    """
    from attnscope.statistics import shares_by_offset

    profiles = {of: shares_by_offset(results, of) for of in ("bins", "band", "every")}
    if not any(shares is not None for shares in profiles.values()):
        return None
    return {
        of: None if shares is None else _dict_of(shares.seen(), single=of != "bins")
        for of, shares in profiles.items()
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
