"""A model that is larger than one device: its layers on several, in the machine's memory, or on its disk."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers.pytorch_utils import Conv1D

from attnscope.support.errors import AttnscopeError, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from torch import Tensor
    from transformers import PreTrainedModel

DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")


@dataclass(frozen=True)
class Placement:
    """Where the layers of a model go as it is loaded, by accelerate."""

    # ``auto``, ``balanced``, ``balanced_low_0``, ``sequential``, or from names of modules to devices, ``cpu`` and
    # ``disk``
    device_map: str | Mapping[str, int | str | torch.device]
    # what each GPU, by its number, and ``cpu`` may take at most: ``{0: "10GiB", "cpu": "30GiB"}``
    max_memory: Mapping[int | str, int | str] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.device_map, str) and self.device_map not in DEVICE_MAPS:
            raise AttnscopeError(
                f"device_map (--device-map) is {self.device_map[:40]!r}; expected one of {', '.join(DEVICE_MAPS)}, or "
                "in Python a mapping from names of modules to devices"
            )
        if importlib.util.find_spec("accelerate") is None:
            raise AttnscopeError(
                "device_map (--device-map) needs the package accelerate: pip install 'attnscope[devices]'"
            )

    def load(self, make: Callable[..., tuple[PreTrainedModel, Any]]) -> tuple[PreTrainedModel, Any]:
        """What `make` gives for the arguments of ``from_pretrained`` that place a model."""
        folder = tempfile.mkdtemp(prefix="attnscope-")
        device_map = self.device_map if isinstance(self.device_map, str) else dict(self.device_map)
        if isinstance(device_map, str) and self.max_memory is None and not torch.cuda.is_available():
            device_map = {"": "cpu"}  # there is nothing else, and no bound
        try:
            model, report = make(
                device_map=device_map,
                max_memory=None if self.max_memory is None else dict(self.max_memory),
                offload_folder=folder,
                offload_buffers=True,
            )
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(
                error, (KeyError, IndexError, ValueError, RuntimeError)
            ):  # as with tied weights on several devices
                raise _not_placed(error) from error
            raise
        weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)
        return model, report


def device_of(model: nn.Module) -> torch.device:
    """Where a model takes its input: its own device, or the one that runs what lies elsewhere."""
    hook: Any = getattr(model, "_hf_hook", None)
    device: Any = getattr(hook, "execution_device", None)
    if device is not None:
        return torch.device(device)
    return next(
        (parameter.device for parameter in model.parameters() if not parameter.is_meta), torch.device("cpu")
    )


def parameters_of(model: nn.Module) -> Generator[tuple[str, Tensor]]:
    """Names and values of all parameters; those that wait in memory or on the disk come from there for that while."""
    if getattr(model, "hf_device_map", None) is None:
        yield from model.named_parameters()
        return
    from accelerate.utils import align_module_device

    for name, module in model.named_modules():
        own = [key for key, _ in module.named_parameters(recurse=False)]
        if not own:
            continue
        try:
            with align_module_device(module):
                yield from [(f"{name}.{key}", getattr(module, key)) for key in own]
        except KeyError as error:  # accelerate does not find what is tied to another layer
            raise _not_placed(error) from error


def _not_placed(error: Exception) -> AttnscopeError:
    return AttnscopeError(
        f"the layers cannot be placed as device_map and max_memory say ({reason_of(error)}). Layers that share a "
        "matrix (embedding and output, where weights are tied) are not parted by transformers: give other sizes "
        "(--max-memory), or in Python a map that keeps them together"
    )


T = TypeVar("T")
_AXIS = "tp"  # of a mesh of devices: others share out parameters that come together again (FSDP)


@dataclass(frozen=True, eq=False)
class ProcessGroup:
    """The processes that run one model together."""

    group: Any = None  # theirs; None where one process has the whole model
    rank: int = 0  # which of them this is, and how many there are
    size: int = 1  # which of them this is, and how many there are

    @classmethod
    def of(cls, model: nn.Module) -> ProcessGroup:
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


def reject_process_group(model: PreTrainedModel) -> None:
    """Refuse a model of which this process sees some heads only."""
    size = ProcessGroup.of(model).size
    if size > 1:
        raise AttnscopeError(
            f"the heads of this model are shared out among {size} processes (tp_plan), which attnscope.scan of texts "
            "alone puts together: load it whole"
        )


def check_launched() -> None:
    """Refuse a plan of tensor parallelism in a process that was started alone."""
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) < 2:  # noqa: PLR2004
        raise AttnscopeError(
            "tp_plan (--tp-plan) shares a model out among processes, and this one is alone: start them with "
            "torchrun --nproc-per-node 2 -m attnscope scan ..."
        )


def check_shares(model: PreTrainedModel) -> None:
    """Refuse as many processes as do not divide the heads."""
    config, size = model.config.get_text_config(), ProcessGroup.of(model).size
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


INTEGERS = ("int8", "int4")
_GROUP = 32  # weights of a row that share a scale in int4, where rows fall into such groups


def quantised(model: nn.Module, kind: str) -> str:
    """Round the weights of all linear layers of a model, in place."""
    try:
        import torchao  # pyright: ignore[reportMissingImports]
        from torchao.quantization import (  # pyright: ignore[reportMissingImports]
            IntxWeightOnlyConfig,
            PerGroup,
            quantize_,
        )
    except ImportError as error:
        raise AttnscopeError(
            f"--dtype {kind} needs torchao, which is not installed: pip install 'attnscope[int]'"
        ) from error
    if any(isinstance(module, Conv1D) for module in model.modules()):
        raise AttnscopeError(
            f"{type(model).__name__} multiplies by transformers' Conv1D, which torchao does not round: leave out "
            f"--dtype {kind}, or take float16"
        )
    rows = IntxWeightOnlyConfig(weight_dtype=getattr(torch, kind))
    if kind == "int8":
        quantize_(model, rows)
    else:
        groups = IntxWeightOnlyConfig(weight_dtype=rows.weight_dtype, granularity=PerGroup(_GROUP))
        quantize_(model, groups, filter_fn=lambda module, _: _splits(module))
        quantize_(
            model, rows, filter_fn=lambda module, _: isinstance(module, nn.Linear) and not _splits(module)
        )
    return f"{kind}, torchao {torchao.__version__}"


def _splits(module: nn.Module) -> bool:
    """Whether the rows of a linear layer's weights fall into whole groups."""
    return isinstance(module, nn.Linear) and module.in_features % _GROUP == 0


def plain(tensor: Tensor) -> Tensor:
    """The numbers that a tensor stands for: of rounded weights what they are multiplied with, of a part the whole."""
    stands_for: Any = getattr(tensor, "dequantize", None)
    return stands_for() if type(tensor).__module__.startswith("torchao.") else whole(tensor)
