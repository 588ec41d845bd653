"""Components that `patch` replaces or sends effects to: heads, their queries, keys and values, and MLPs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope.head_names import heads_of
from attnscope.intervention.edit import On, attend_changed
from attnscope.intervention.stack import StackedPasses
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.full import weights_of
from attnscope.support.checks import shortly
from attnscope.support.errors import AttnscopeError

_NAME = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})(?:\.([qkv]))?|(?:m|mlp ?|MLP ?)([0-9]{1,6})")
SIDES: Mapping[str, On] = {"q": "query", "k": "key", "v": "value"}


class Component(NamedTuple):
    """A tensor of one head, or the output of an MLP."""

    layer: int  # of the head, or the block of the MLP
    head: int | None = None
    on: On = "z"

    @property
    def name(self) -> str:
        side = f".{self.on[0]}" if self.on in SIDES.values() else ""
        return f"m{self.layer}" if self.head is None else f"{self.layer}.{self.head}{side}"

    def donor(self, passes: StackedPasses) -> Tensor | list[Tensor]:
        """Its tensor in the last plain pass; of an MLP, that of each module."""
        at = self.layer
        return passes.mlps[at] if self.head is None else self.of(passes.calls[at], passes.outputs[at])

    def senders(self, passes: StackedPasses) -> int:
        """The number of attention calls before it."""
        return passes.calls_before(self.layer) if self.head is None else self.layer

    def of(self, call: AttentionCall, output: Tensor) -> Tensor:
        """The tensor of this head in a call with this output, ``(..., head, query, width)``."""
        assert self.head is not None  # noqa: S101
        if self.on == "z":
            return output[..., self.head, :, :]
        tensor = weights_of(call) if self.on == "weights" else getattr(call, self.on)
        return tensor[:, self.head * tensor.shape[1] // output.shape[-3]].unflatten(0, output.shape[:-3])


def sets_of_components(requested: Any, option: str, on: On) -> tuple[tuple[Component, ...], ...]:
    """Sets of components: one by its names, a role of a run, a table or a file; or several in a list."""
    one = _is_whole(requested) or not isinstance(requested, Iterable)
    return tuple(components_of(names, option, on) for names in ([requested] if one else requested))


def _is_whole(requested: Any) -> bool:
    """Whether a value has all heads of a set: a text, a path or a table, not a list of them."""
    return isinstance(requested, str | Path) or hasattr(requested, "dtype") or hasattr(requested, "columns")


def components_of(requested: Any, option: str, on: On = "z") -> tuple[Component, ...]:
    """Components by their names, with commas between, as (layer, head), or in a form of heads; `on` is of a head."""
    names = isinstance(requested, str) and ":" not in requested and not Path(requested).exists()
    if _is_whole(requested) and not names:
        requested = heads_of(option.partition(" ")[0], requested)
    single = not isinstance(requested, Iterable) or (isinstance(requested, tuple) and {*map(type, requested)} == {int})
    items: Any = requested.split(",") if isinstance(requested, str) else [requested] if single else requested
    components: list[Component] = []
    for item in items:
        match = _NAME.fullmatch((".".join(map(str, item)) if isinstance(item, tuple | list) else str(item)).strip())
        if match is None:
            raise AttnscopeError(
                f"found {option} {shortly(requested)}; expected layer.head, such as 3.6, its queries, keys or values "
                "(3.6.q, 3.6.k, 3.6.v) or an MLP (m3), with commas between; or a role of a run, as in RUN:induction"
            )
        layer, head, side, block = match.groups()
        components.append(Component(int(block)) if block else Component(int(layer), int(head), SIDES.get(side, on)))
    return tuple(dict.fromkeys(components))


def put_in(parts: Sequence[Component], donors: Sequence[Any], chosen: Tensor) -> tuple[Any, Any, Any]:
    """Edits of calls, states and MLPs: each variant has the chosen components, ``(variant, part)``, of the donors."""

    def put(at: int, tensor: Tensor, donor: Tensor) -> Tensor:
        return torch.where(chosen[:, at].to(tensor.device).reshape(-1, *[1] * (tensor.ndim - 1)), donor, tensor)

    def put_module(at: int, module: int, tensor: Tensor) -> Tensor:
        return put(at, tensor, donors[at][module])

    def change(layer: int, on: On, shape: torch.Size, tensor: Tensor) -> Tensor:
        several = tensor.reshape(*shape[:2], *tensor.shape[-3:]).clone()
        for at, (number, head, name) in enumerate(parts):
            if head is not None and (number, name) == (layer, on):
                several[:, :, head] = put(at, several[:, :, head], donors[at])
        return several.reshape(tensor.shape)

    def edit(layer: int, call: AttentionCall, output: Tensor) -> Tensor:
        changes: dict[On, Any] = {
            part.on: partial(change, layer, part.on, output.shape) for part in parts if part.layer == layer
        }
        if changes.keys() == {"z"}:  # also where the call has each text once
            return changes["z"](output)
        return attend_changed(call, changes).unflatten(0, output.shape[:2])

    mlps = {part.layer: partial(put_module, at) for at, part in enumerate(parts) if part.head is None}
    return {part.layer: partial(edit, part.layer) for part in parts if part.head is not None}, {}, mlps
