"""A model whose heads are shared out among processes (tensor parallelism): each sees its own, all results are whole."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from attnscope.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn
    from transformers import PreTrainedModel

T = TypeVar("T")
_AXIS = "tp"  # of a mesh of devices: others share out parameters that come together again (FSDP)


@dataclass(frozen=True, eq=False)
class Team:
    """The processes that run one model together.

    Attributes
    ----------
    group
        Theirs; None where one process has the whole model.
    rank, size
        Which of them this is, and how many there are.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    >>> team = Team.of(BertModel(config))
    >>> team.size, team.leads, team.agreed(lambda: 3)
    (1, True, 3)
    """

    group: Any = None
    rank: int = 0
    size: int = 1

    @classmethod
    def of(cls, model: nn.Module) -> Team:
        """Found by a parameter that is shared out."""
        parts: Any = filter(_is_shared_out, model.parameters())
        for parameter in parts:
            group = parameter.device_mesh.get_group(_AXIS)
            return cls(group, dist.get_rank(group), dist.get_world_size(group))
        return cls()

    @property
    def leads(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def agreed(self, make: Callable[[], T]) -> T:
        """What the first process makes, in all of them; each must ask for it at the same place."""
        if self.size == 1:
            return make()
        box = [make() if self.leads else None]
        dist.broadcast_object_list(box, dist.get_global_rank(self.group, 0), self.group)
        told: Any = box[0]
        return told

    def has_part(self, module: nn.Module, heads: int, whole: int | None) -> bool:
        """Whether the `heads` that this process sees of a layer are a part, where the whole has so many."""
        return self.size > 1 and heads != whole and any(map(_is_shared_out, module.parameters()))

    def joined(self, value: Tensor) -> Tensor:
        """The heads of all processes, ``(batch, head, ...)``, from those of each, as many in each."""
        device = "cpu" if "gloo" in str(dist.get_backend(self.group)) else torch.cuda.current_device()
        own = value.to(device).contiguous()
        parts = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(parts, own, self.group)
        return torch.cat(parts, dim=1).to(value.device)

    def together(self, own: dict[Any, Any]) -> dict[Any, Any]:
        """What all processes have, by its keys."""
        if self.size == 1:
            return own
        boxes: list[Any] = [None] * self.size
        dist.all_gather_object(boxes, own, self.group)
        return {key: value for box in boxes for key, value in box.items()}


def refuse_team(model: PreTrainedModel) -> None:
    """Refuse a model of which this process sees some heads only.

    Raises
    ------
    AttnscopeError
        Says how many processes have it.
    """
    size = Team.of(model).size
    if size > 1:
        raise AttnscopeError(
            f"the heads of this model are shared out among {size} processes (tp_plan), which attnscope.scan of texts "
            "alone puts together: load it whole"
        )


def check_launched() -> None:
    """Refuse a plan of tensor parallelism in a process that was started alone.

    Examples
    --------
    >>> check_launched()
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: tp_plan (--tp-plan) shares a model out among processes, and this one is alone: ...
    """
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) < 2:  # noqa: PLR2004
        raise AttnscopeError(
            "tp_plan (--tp-plan) shares a model out among processes, and this one is alone: start them with "
            "torchrun --nproc-per-node 2 -m attnscope scan ..."
        )


def check_shares(model: PreTrainedModel) -> None:
    """Refuse as many processes as do not divide the heads.

    Raises
    ------
    AttnscopeError
        Names both numbers.
    """
    config, size = model.config.get_text_config(), Team.of(model).size
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, name, None)
        if isinstance(heads, int) and heads % size:
            raise AttnscopeError(
                f"{heads} heads ({name}) cannot be shared out among {size} processes: start as many as divide them"
            )


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor of which each process has a part."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _is_shared_out(parameter: Tensor) -> bool:
    if not isinstance(parameter, DTensor):
        return False
    names = parameter.device_mesh.mesh_dim_names or ()
    return _AXIS in names and parameter.placements[names.index(_AXIS)].is_shard()
