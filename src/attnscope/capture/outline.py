"""The attention calls of a model on the meta device, found by its config before weights are loaded."""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, TypeAlias
from weakref import ref

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel, masking_utils

from attnscope.capture.borrow import LoadedModel, quiet
from attnscope.capture.families import unrelated
from attnscope.capture.verify import attention_modules
from attnscope.capture.watch import Site, current, passes_of
from attnscope.kernels.call import AttentionCall
from attnscope.support.errors import AttnscopeError
from attnscope.support.state import replaced

#: Layers and heads; None is any of them.
Heads: TypeAlias = Iterable[tuple[int | None, int | None]]

_NAME = "attnscope outline"
_TOKENS = 8  # of the text, whose tokens do not matter
_SECOND = 16_000  # samples


def _attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    """Attention of tensors without numbers, by the registry's protocol."""
    watch, empty = current.get(), query.new_empty(*query.shape[:3], value.shape[-1])
    repeated = watch is not None and watch.before is not None and watch.before[0]() is query
    if watch is not None and not repeated:  # as where numbers are captured: DiffLlama calls twice in a layer
        watch.before = ref(query), ref(key)
        kind = "cross" if id(module) in watch.cross else "causal" if getattr(module, "is_causal", False) else "self"
        site = Site(watch.calls, watch.names.get(id(module), type(module).__name__), kind)
        watch.observe(site, AttentionCall(query, key, value, 1.0, causal=False))
    return empty.transpose(1, 2), None


AttentionInterface.register(_NAME, _attend)
AttentionMaskInterface.register(_NAME, lambda *_, **__: None)


@contextmanager
def without_numbers(model: PreTrainedModel, observe: Callable[[Site, AttentionCall], object]) -> Generator[None]:
    """Pass the attention calls of a model on the meta device to ``observe(site, call)``."""

    def seen(site: Site, call: AttentionCall) -> Tensor:
        observe(site, call)
        return call.query

    with quiet():
        model.set_attn_implementation(_NAME)
    with _unpacked(), passes_of(model, seen, dict(model.named_modules())):
        yield


def _unpacked() -> AbstractContextManager[None]:
    """Let transformers look for no packed texts among positions, which have no numbers."""
    names: Any = vars(masking_utils)
    return replaced(names, find_packed_sequence_indices=lambda _: None)


@torch.no_grad()
def outlined(model: PreTrainedModel) -> list[Site]:
    """Attention calls of a model without weights, which is changed; empty if they are not known without numbers."""
    sites: list[Site] = []
    seen: set[str] = set()

    def observe(site: Site, call: AttentionCall) -> Tensor:
        seen.update(running[-1:])
        sites.append(replace(site, heads=call.query.shape[1], group=call.group))
        return call.query

    try:
        with quiet():
            model.set_attn_implementation(_NAME)
            model.eval().bfloat16()  # products of experts take no other dtype on this device
        modules = dict(model.named_modules())
        hooked = attention_modules(model, cross_only=False), passes_of(model, observe, modules)
        with _unpacked(), hooked[0] as (running, ran), hooked[1]:
            model(**_empty_inputs(model))
    except Exception:  # noqa: BLE001 on the way to its attention, a family may compute whatever it likes
        return []
    return [] if unrelated(sorted(ran - seen), seen) else sites


def _empty_inputs(model: PreTrainedModel) -> dict[str, Tensor]:
    """Arguments of a forward pass without numbers: tokens, an image, or a second of sound."""
    name, config = model.main_input_name, model.config
    if name == "pixel_values":
        size = config.image_size
        rows, columns = (size, size) if isinstance(size, int) else size
        return {name: torch.zeros(1, config.num_channels, rows, columns, dtype=torch.bfloat16, device="meta")}
    if name == "input_values":
        return {name: torch.zeros(1, _SECOND, dtype=torch.bfloat16, device="meta")}
    ids = torch.zeros(1, _TOKENS, dtype=torch.int64, device="meta")
    return {"input_ids": ids} | ({"decoder_input_ids": ids} if config.is_encoder_decoder else {})


def rejecting(
    heads: Heads,
    what: str,
    kind: str | None = None,
    part: Callable[[PreTrainedModel], PreTrainedModel] = lambda model: model,
) -> Callable[[LoadedModel], None] | None:
    """A check, before weights are loaded, that a model has these heads; None is any layer or head, or all kinds.

    `part` is the part of the model that is measured.
    """
    named = [pair for pair in heads if pair != (None, None)]
    return (lambda outline: reject_absent(named, outlined(part(outline.model)), what, kind)) if named else None


def reject_absent(heads: Heads, sites: Sequence[Site], what: str, kind: str | None = None) -> None:
    """Reject layers and heads that attention calls, of a kind, do not have; without calls, nothing is known."""
    # whether attention is causal may depend on numbers of its mask, whether it is cross-attention does not
    sites = [site for site in sites if kind is None or (site.kind == "cross") == (kind == "cross")]
    for layer, head in heads if sites else ():
        is_layer = layer is None or 0 <= layer < len(sites)
        counts = [site.heads for number, site in enumerate(sites) if layer in {None, number} or kind is not None]
        most = max(counts, default=0) or max(site.heads for site in sites)
        if is_layer and (head is None or 0 <= head < most):
            continue
        name = f"layer {layer}" if head is None else f"head {head}" if layer is None else f"head {layer}.{head}"
        raise AttnscopeError(
            f"there is no {name} ({what}): layers go from 0 to {len(sites) - 1}, heads from 0 to {most - 1}"
        )
