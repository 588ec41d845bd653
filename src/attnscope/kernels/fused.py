"""Passes through PyTorch's fused kernels: a quantity that is linear in the weights is a pass with other values."""

from dataclasses import replace

import torch
from torch import Tensor

from attnscope.kernels.bins import weights_at_offsets
from attnscope.kernels.call import AttentionCall, Need, RowMeasures, without_flat_curves
from attnscope.kernels.plain import batched_tiles
from attnscope.support.errors import AttnscopeError


def can_fuse(call: AttentionCall, need: Need) -> str | None:
    """Say why the fused kernels cannot give what is needed; None if they can."""
    if need.bins:
        return "bins of offsets move with the row, and value columns do not"
    if call.positions is not None:
        return "queries have positions of their own"
    if call.softcap is not None or call.bias is not None or call.sinks is not None:
        return "soft caps, biases and learned sinks change the scores inside the kernel"
    if need.largest or need.largest_key:
        return "the kernel returns no row maximum"
    if need.variance:
        return "value columns cannot be centred on the query: a variance would lose its digits"
    if call.query.shape[-1] != call.key.shape[-1]:
        return "queries and keys differ in width"
    if call.query.device.type not in {"cpu", "cuda"}:
        return f"no fused kernel is known for {call.query.device.type}"
    if call.query.is_cuda and call.query.dtype == torch.float64:
        return "the fused kernel of CUDA has no float64"
    return None


def fused_attention(
    call: AttentionCall, value: Tensor | None = None, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """One pass of PyTorch's fused kernel: the output and the log-sum-exp of each row."""
    value = call.value if value is None else value
    scale = call.scale if scale is None else scale
    width, wanted = call.key.shape[-1], value.shape[-1]
    if wanted > width:
        raise AttnscopeError(f"{wanted} value columns do not fit one fused pass of width {width}: cut them")
    # the kernels want values as wide as keys
    value = torch.nn.functional.pad(value, (0, width - wanted))
    key, value = (tensor.repeat_interleave(call.group, dim=1) for tensor in (call.key, value))
    bias, causal = None, call.causal
    empty = torch.zeros(1, 1, 1, dtype=torch.bool, device=call.query.device)
    if call.mask is not None:
        mask = call.mask
        if causal:
            # the kernels take a mask or `causal`, not both
            mask = mask & torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).tril()
            causal = False
        empty = ~mask.any(-1)
        keys = mask.shape[-1]  # the kernel of CUDA wants rows of 16 bytes, or a multiple
        bias = torch.zeros(*mask.shape[:-1], keys + -keys % 8, dtype=call.query.dtype, device=mask.device)[..., :keys]
        # the lowest number, not -inf: a row without keys would be NaN, and is emptied below
        bias.masked_fill_(~mask, torch.finfo(bias.dtype).min)
        bias = bias.expand(call.query.shape[0], call.query.shape[1], *mask.shape[-2:])
    queries = call.query.shape[2]
    if call.query.is_cuda:
        # the public function returns no log-sum-exp; without `True`, nor does this one
        output, log_sum_exp, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(  # noqa: SLF001
            call.query, key, value, bias, True, 0.0, causal, scale=scale
        )
        log_sum_exp = log_sum_exp[..., :queries]  # the kernel pads its rows
    else:
        output, log_sum_exp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001
            call.query.contiguous(), key, value, 0.0, causal, attn_mask=bias, scale=scale
        )
    log_sum_exp = log_sum_exp.double().masked_fill(empty, -torch.inf)
    return output[..., :wanted].masked_fill(empty[..., None], 0.0), log_sum_exp


def plan_passes(columns: int, width: int) -> list[slice]:
    """Cut value columns into as few passes as the kernel's width allows."""
    return [slice(start, min(start + width, columns)) for start in range(0, columns, width)]


def fused_passes(call: AttentionCall, need: Need) -> tuple[Tensor, RowMeasures]:
    """The measures that `can_fuse` allows, with all value columns packed side by side."""
    # a mask is added to the kernel's scores, which does not take back one that overflowed
    return without_flat_curves(_packed_passes, call, need, wide=batched_tiles)


def _packed_passes(call: AttentionCall, need: Need) -> tuple[Tensor, RowMeasures]:
    if call.query.dtype in {torch.float16, torch.bfloat16}:  # the kernel would round the sums
        wide = replace(call, query=call.query.float(), key=call.key.float(), value=call.value.float())
        output, rows = _packed_passes(wide, need)
        return output.to(call.query.dtype), rows
    batch, kv_heads, keys, width = call.key.shape
    wanted: dict[str, Tensor] = {"value": call.value}
    centred = call.key - call.key.mean(2, keepdim=True)  # moves all scores of a row alike: fewer digits lost
    if need.entropy:
        wanted["key"] = centred
    if need.offsets:  # two digits to the base 256, so that each is exact in any float type
        index = torch.arange(keys, device=call.key.device)
        digits = torch.stack([index // 256, index % 256], -1).to(call.key.dtype)
        wanted["index"] = digits.expand(batch, kv_heads, keys, 2)
    if need.columns is not None:
        columns = need.columns.to(call.key.dtype)[:, None]
        wanted["columns"] = columns.expand(batch, kv_heads, keys, columns.shape[-1])
    packed = torch.cat(list(wanted.values()), dim=-1)
    # a weighted sum of keys, indices or marks is an output whose values they are
    passes = [fused_attention(call, packed[..., cut]) for cut in plan_passes(packed.shape[-1], width)]
    log_sum_exp = passes[0][1]
    sums = torch.cat([output for output, _ in passes], dim=-1)
    parts = dict(zip(wanted, sums.split([part.shape[-1] for part in wanted.values()], dim=-1), strict=True))
    visible = log_sum_exp > -torch.inf
    measures: dict[str, Tensor] = {"log_sum_exp": log_sum_exp, "mass": visible.double()}
    query = call.query.double()
    if need.entropy:
        # H = lse - sum_j A_ij s_ij, with scores from centred keys and the lse moved alike (mechanism of J3)
        mean_key = call.key.double().mean(2).repeat_interleave(call.group, dim=1)
        level = log_sum_exp - call.scale * (query @ mean_key[..., None]).squeeze(-1)
        entropy = level - call.scale * (query * parts["key"].double()).sum(-1)
        seen = (call.extent[1] - call.extent[0]).clamp_min(1).double().log()[:, None]
        measures["entropy"] = torch.where(visible, torch.minimum(entropy.clamp_min(0), seen), 0.0)
    if need.offsets:
        # E[j] - i: weights sum to 1
        high, low = parts["index"].double().unbind(-1)
        index = torch.arange(query.shape[2], device=query.device)
        measures["mean_offset"] = torch.where(visible, 256 * high + low - index, 0.0)
    if need.collision:
        # sum_j A_ij^2 = sum_j exp(2 s_ij) / exp(2 lse_i): the log-sum-exp of doubled scores
        squares = fused_attention(call, scale=2 * call.scale)[1]
        measures["collision"] = torch.where(visible, torch.exp(squares - 2 * log_sum_exp), 0.0)
    if need.columns is not None:
        measures["columns"] = parts["columns"].double()
    if need.band is not None:
        measures["band"] = weights_at_offsets(call, log_sum_exp, range(-need.band, need.band + 1)).float()
    return parts["value"], RowMeasures(**measures)
