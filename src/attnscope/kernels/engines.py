"""Choose the engine that measures a call: by what each engine can do, never by trying."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from attnscope.kernels.by_head import tiles_by_head
from attnscope.kernels.call import AttentionCall, Need, RowMeasures, shows_scores, without_flat_curves
from attnscope.kernels.fused import can_fuse, fused_passes
from attnscope.kernels.plain import plain_tiles
from attnscope.kernels.triton import can_triton, triton_tiles
from attnscope.support.errors import AttnscopeError, reason_of
from attnscope.support.state import own_state

Engine = Literal["auto", "compiled", "fused", "triton", "plain"]
_ENGINES = {"fused": fused_passes, "triton": triton_tiles, "plain": plain_tiles}
_OF_NO_KEY = {"log_sum_exp": -torch.inf, "largest_key": -1}  # measures of a row without keys that are not 0
_REASONS = {"fused": can_fuse, "triton": can_triton}


def choose_engine(call: AttentionCall, need: Need) -> Literal["compiled", "fused", "triton", "plain"]:
    """Name the fastest engine that gives exactly what is needed; the call is inspected, never tried.

    ``compiled`` on the CPU up to float32; on CUDA ``triton`` where `can_triton`, else ``fused`` where `can_fuse`; else
    ``plain``.
    """
    if call.query.device.type == "cpu" and call.query.dtype != torch.float64:
        return "compiled"
    if call.query.device.type == "cuda":
        if can_triton(call, need) is None:
            return "triton"
        if can_fuse(call, need) is None:
            return "fused"
    return "plain"


_AGREES: dict[Any, bool] = {}  # by device, type and widths
_AGREEMENT = 0.02  # absolute or relative: bfloat16 rounds outputs to 0.4%


def _kernel_agrees(call: AttentionCall, need: Need) -> bool:
    """Whether the kernel gives for the first text of a first call what PyTorch gives; one line where it does not."""
    of = call.query.device, call.query.dtype, call.query.shape[-1], call.value.shape[-1], call.bias is None
    if of not in _AGREES:
        need = replace(need, columns=None if need.columns is None else need.columns[:1], largest_key=False)
        reason = "what it measures is not what PyTorch measures"
        try:
            # a wrong kernel gives no error: drivers and compilers differ, so its numbers are compared once
            both = [_ENGINES[engine](call.part(texts=slice(1)), need) for engine in ("triton", "plain")]
            pairs = zip(*((output, *vars(rows).values()) for output, rows in both), strict=True)
            same = [(a.double(), b.double()) for a, b in pairs if a is not None and b is not None]
            _AGREES[of] = all(torch.allclose(a, b, _AGREEMENT, _AGREEMENT, equal_nan=True) for a, b in same)
        except Exception as error:  # noqa: BLE001 a compiler or a driver fails as it likes
            _AGREES[of], reason = False, reason_of(error)
        if not _AGREES[of]:
            logging.getLogger("attnscope").warning("attention is measured without the CUDA kernel: %s", reason)
    return _AGREES[of]


@own_state()
@torch.no_grad()
def measure(call: AttentionCall, need: Need, *, engine: Engine = "auto") -> tuple[Tensor, RowMeasures]:
    """Attend, and measure every row of the weights without the full matrix.

    Parameters
    ----------
    call
        The attention call.
    need
        Measures to take. More may be returned where they cost nothing.
    engine
        ``auto`` lets `choose_engine` decide; the kernel on CUDA is first compared with PyTorch on a text.

    Returns
    -------
    output : Tensor
        ``(batch, head, query, value_width)``, in the query's type.
    rows : RowMeasures
        Float64 on the call's device, O(query) memory for each head. A row without allowed keys has no
        mass: its mask is False everywhere, or its bias is -inf or about the lowest number of its type.

    Raises
    ------
    AttnscopeError
        If the requested engine cannot do this exactly.

    Examples
    --------
    Uniform attention over 4 keys has the entropy ln 4:

    >>> import torch
    >>> x = torch.zeros(1, 1, 4, 8)
    >>> output, rows = measure(AttentionCall(x, x, x, scale=1.0), Need(entropy=True))
    >>> round(rows.entropy[0, 0, 0].exp().item(), 6)
    4.0
    """
    chosen = choose_engine(call, need) if engine == "auto" else engine
    if chosen == "triton" and engine == "auto" and not _kernel_agrees(call, need):
        chosen = "plain" if can_fuse(call, need) else "fused"
    if chosen in _REASONS and engine != "auto" and (reason := _REASONS[chosen](call, need)) is not None:
        raise AttnscopeError(f"engine '{chosen}' cannot measure this: {reason}. Use 'plain' or 'auto'")
    if chosen == "compiled" and (call.query.device.type != "cpu" or call.query.dtype == torch.float64):
        raise AttnscopeError(
            f"engine 'compiled' works in float32 on the CPU, not in {call.query.dtype} on "
            f"{call.query.device.type}. Use 'plain' or 'auto'"
        )
    if chosen == "compiled":
        output, rows = without_flat_curves(tiles_by_head, call, need, shows_scores=shows_scores(call))
    else:
        output, rows = _ENGINES[chosen](call, need)
    if call.bias is None:
        return output, rows
    # a bias that forbids all keys of a row acts as a mask: the row attends to nothing, whatever its output is
    nowhere = rows.log_sum_exp <= torch.finfo(call.bias.dtype).min / 2
    emptied = {
        name: value.masked_fill(nowhere[(...,) + (None,) * (value.ndim - nowhere.ndim)], _OF_NO_KEY.get(name, 0))
        for name, value in vars(rows).items()
        if value is not None
    }
    return output, replace(rows, **emptied)


def output_of(call: AttentionCall) -> Tensor:
    """The output of a call, ``(batch, head, query, value_width)``, without measuring."""
    return measure(call, Need())[0]
