"""A model that is larger than one device: its layers on several, in the machine's memory, or on its disk."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from attnscope.support.errors import AttnscopeError, reason_of

if TYPE_CHECKING:
    from collections.abc import Generator

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
            # as with tied weights on several devices
            if isinstance(error, (KeyError, IndexError, ValueError, RuntimeError)):
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
    return next((parameter.device for parameter in model.parameters() if not parameter.is_meta), torch.device("cpu"))


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


def reject_distributed(model: PreTrainedModel) -> None:
    """Reject a model of whose weights this process has a part."""
    if any(hasattr(parameter, "full_tensor") for parameter in model.parameters()):
        raise AttnscopeError("the weights of this model are distributed among processes (DTensor): load it whole")


INTEGERS = ("int8", "int4")
_GROUP = 32  # weights of a row that share a scale in int4, where rows fall into such groups


def quantised(model: nn.Module, kind: str) -> str:
    """Round the weights of all linear layers of a model, in place."""
    try:
        import torchao  # pyright: ignore[reportMissingImports]
        from torchao.quantization import IntxWeightOnlyConfig, PerGroup, quantize_  # pyright: ignore[reportMissingImports]
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
        quantize_(model, rows, filter_fn=lambda module, _: isinstance(module, nn.Linear) and not _splits(module))
    return f"{kind}, torchao {torchao.__version__}"


def _splits(module: nn.Module) -> bool:
    """Whether the rows of a linear layer's weights fall into whole groups."""
    return isinstance(module, nn.Linear) and module.in_features % _GROUP == 0


def plain(tensor: Tensor) -> Tensor:
    """The numbers that a tensor stands for: of rounded weights what they are multiplied with."""
    stands_for: Any = getattr(tensor, "dequantize", None)
    return stands_for() if type(tensor).__module__.startswith("torchao.") else tensor
