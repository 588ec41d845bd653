"""How a model is loaded: spread over devices, memory and disk if it is larger than one device, or quantised."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from transformers.pytorch_utils import Conv1D

from attnscope.support.checks import check_installed
from attnscope.support.errors import AttnscopeError, reason_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")

_TIMES = 4  # allowance for tensors that are tied, shared or missing in the files
_TENSORS, _NUMBERS = 2_000, 1 << 26  # allowance for heads, masks and position tables


@contextmanager
def no_larger_than(sizes: list[int], file: str, times: int = 1) -> Generator[None]:
    """Stop building a model, on the meta device, as soon as it is far larger than its weights, `times` packed."""
    stored = sum(sizes)
    most = _TENSORS + _TIMES * len(sizes), _NUMBERS + _TIMES * times * stored
    built = [0, 0]
    here = threading.get_ident()

    def count(_: nn.Module, name: str, tensor: Tensor | None) -> None:
        if tensor is None or not tensor.is_meta or threading.get_ident() != here:
            return
        built[0] += 1
        built[1] += tensor.numel()
        if built[0] > most[0] or built[1] > most[1]:
            raise AttnscopeError(
                f"{file} describes a model of more than {built[0]:,} tensors and {built[1]:,} numbers (at "
                f"{name}); the weights have {len(sizes):,} and {stored:,}. Is it the right {file}?"
            )

    with register_module_parameter_registration_hook(count), register_module_buffer_registration_hook(count):
        yield


@dataclass(frozen=True)
class Placement:
    """Devices of the layers of a model, assigned by accelerate."""

    # ``auto``, ``balanced``, ``balanced_low_0``, ``sequential``, or a mapping from modules to devices, ``cpu`` and
    # ``disk``
    device_map: str | Mapping[str, int | str | torch.device]
    # memory limits of GPUs, by number, and of ``cpu``: ``{0: "10GiB", "cpu": "30GiB"}``
    max_memory: Mapping[int | str, int | str] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.device_map, str) and self.device_map not in DEVICE_MAPS:
            raise AttnscopeError(
                f"found device_map (--device-map) {self.device_map[:40]!r}; expected one of {', '.join(DEVICE_MAPS)}, "
                "or in Python a mapping from names of modules to devices"
            )
        check_installed("device_map (--device-map)", "accelerate", "devices")

    def devices(self, model: PreTrainedModel) -> dict[str, int | str]:
        """The devices of the modules of a model on the meta device, by name, as `from_pretrained` assigns them."""
        from transformers.integrations.accelerate import _get_device_map  # pyright: ignore[reportPrivateUsage]

        most: Any = None if self.max_memory is None else dict(self.max_memory)
        device_map: Any = self.device_map if isinstance(self.device_map, str) else dict(self.device_map)
        if most is None and not torch.cuda.is_available():
            return {"": "cpu"}
        log = logging.getLogger("accelerate.utils.modeling")
        level = log.level
        log.setLevel(logging.ERROR)  # it warns of devices that are not here, and a plan may be of those
        try:
            return _get_device_map(model, device_map, most, None)
        except (KeyError, IndexError, ValueError, RuntimeError) as error:
            raise _not_placed(error) from error
        finally:
            log.setLevel(level)

    def load(self, make: Callable[..., tuple[PreTrainedModel, Any]]) -> tuple[PreTrainedModel, Any]:
        """Call `make` with the arguments of ``from_pretrained`` that place a model."""
        folder = tempfile.mkdtemp(prefix="attnscope-")
        device_map = self.device_map if isinstance(self.device_map, str) else dict(self.device_map)
        if isinstance(device_map, str) and self.max_memory is None and not torch.cuda.is_available():
            device_map = {"": "cpu"}  # the only device, without a limit
        try:
            most = None if self.max_memory is None else dict(self.max_memory)
            model, report = make(device_map=device_map, max_memory=most, offload_folder=folder, offload_buffers=True)
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            # such as tied weights on several devices
            if isinstance(error, (KeyError, IndexError, ValueError, RuntimeError)):
                raise _not_placed(error) from error
            raise
        # offloaded weights are read from there as long as the model lives
        weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)
        return model, report


@dataclass(frozen=True)
class Loading:
    """Options of `attnscope.capture.load.load_model`."""

    revision: str | None = None
    device: str | None = None
    dtype: str | None = None
    trust_remote_code: bool = False
    placement: Placement | None = None
    dry_run: bool = False  # whether shapes suffice: no weights are read

    @classmethod
    def of(cls, reading: Mapping[str, Any]) -> Loading:
        """By the options of a verb."""
        placement, device_map, most = None, reading.get("device_map"), reading.get("max_memory")
        if most is not None and device_map is None:
            raise AttnscopeError("max_memory (--max-memory) needs device_map (--device-map): give both")
        if device_map is not None:
            placement = Placement(device_map, most)
        options = {name: reading[name] for name in ("revision", "device", "dtype", "trust_remote_code")}
        return cls(**options, placement=placement, dry_run=reading.get("dry_run", False))


AS_SAVED = Loading()


def device_of(model: nn.Module) -> torch.device:
    """The device of the input of a model or of one of its layers: its own, or the one on which it runs if offloaded."""
    hook: Any = getattr(model, "_hf_hook", None)
    # accelerate: an offloaded layer has its parameters on the meta device and runs elsewhere
    device: Any = getattr(hook, "execution_device", None)
    if device is not None:
        return torch.device(device)
    return next((parameter.device for parameter in model.parameters() if not parameter.is_meta), torch.device("cpu"))


def is_empty(model: nn.Module) -> bool:
    """Whether a model has shapes and no numbers, which a plan needs; offloaded numbers are somewhere."""
    return not hasattr(model, "_hf_hook") and all(parameter.is_meta for parameter in model.parameters())


@contextmanager
def in_memory(module: nn.Module) -> Generator[None]:
    """Load the tensors of a module that accelerate has offloaded, within."""
    if not hasattr(module, "_hf_hook"):
        yield
        return
    from accelerate.utils import align_module_device

    try:
        with align_module_device(module):
            yield
    except KeyError as error:  # accelerate does not find weights that are tied to another layer
        raise _not_placed(error) from error


def parameters_of(model: nn.Module) -> Generator[tuple[str, Tensor]]:
    """Names and values of all parameters; offloaded ones are loaded temporarily."""
    if not any(hasattr(module, "_hf_hook") for module in model.modules()):
        yield from model.named_parameters()
        return
    for name, module in model.named_modules():
        names = [key for key, _ in module.named_parameters(recurse=False)]
        if names:
            with in_memory(module):
                yield from [(f"{name}.{key}", getattr(module, key)) for key in names]


def _not_placed(error: Exception) -> AttnscopeError:
    return AttnscopeError(
        f"the layers cannot be placed by device_map and max_memory ({reason_of(error)}). Layers with tied weights "
        "(embedding and output) must be on one device. Use other limits (--max-memory), or in Python a map that keeps "
        "them together"
    )


def reject_distributed(model: PreTrainedModel) -> None:
    """Raise an error for a model whose weights are distributed over processes."""
    if any(hasattr(parameter, "full_tensor") for parameter in model.parameters()):
        raise AttnscopeError("the weights of this model are distributed over processes (DTensor). Load it in one")


def reject_tensor_parallel(model: nn.Module) -> None:
    """Raise an error for a model of whose heads each process has a part; with FSDP alone, a pass has all of them."""
    parts = [*model.modules()]
    is_split = any((getattr(part, "_tp_size", None) or 1) > 1 for part in parts)
    if not is_split and not any(type(part).__name__.startswith("FSDP") for part in parts):
        is_split = any(hasattr(parameter, "full_tensor") for parameter in model.parameters())
    if is_split:
        raise AttnscopeError(
            "each process has a part of the heads of this model (tensor-parallel), and they are not gathered. Load it "
            "in one process, there on several devices (--device-map auto)"
        )


INTEGERS = ("int8", "int4")
NF4 = "nf4"  # four bits at quantiles of a normal distribution (QLoRA, Dettmers et al. 2023)
_GROUP = 32  # weights of a row that share a scale in int4, where rows fall into such groups


def packing_of(kind: str | None) -> dict[str, Any]:
    """Arguments of ``from_pretrained`` that quantise weights while they are read."""
    if kind != NF4:
        return {}
    check_installed("dtype (--dtype) nf4", "bitsandbytes", "nf4")
    from transformers import BitsAndBytesConfig

    return {"quantization_config": BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=NF4)}


def compute_as_loaded(model: nn.Module) -> None:
    """Let layers of bitsandbytes multiply in the type of the model; some processors have bfloat16, for some widths."""
    switch = "support_avx512bf16_for_cpu"
    for module in model.modules():
        if hasattr(module, switch):
            setattr(module, switch, False)


def quantised(model: nn.Module, kind: str) -> str:
    """Quantise the weights of all linear layers of a model in place."""
    offloaded = next((name for name, parameter in model.named_parameters() if parameter.is_meta), None)
    if offloaded is not None:
        raise AttnscopeError(
            f"dtype (--dtype) {kind} needs all layers on devices; {offloaded} is offloaded. Give more memory "
            "(--max-memory), or leave out dtype"
        )
    check_installed(f"dtype (--dtype) {kind}", "torchao", "int")
    import torchao  # pyright: ignore[reportMissingImports]
    from torchao.quantization import IntxWeightOnlyConfig, PerGroup, quantize_  # pyright: ignore[reportMissingImports]

    if any(isinstance(module, Conv1D) for module in model.modules()):
        raise AttnscopeError(
            f"{type(model).__name__} uses transformers' Conv1D, which torchao does not quantise. Use --dtype float16 "
            f"instead of {kind}"
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
    """Whether the rows of a linear layer's weights divide into whole groups."""
    return isinstance(module, nn.Linear) and module.in_features % _GROUP == 0


def plain(tensor: Tensor) -> Tensor:
    """The numbers of a tensor, dequantised if necessary."""
    stands_for: Any = getattr(tensor, "dequantize", None)
    return stands_for() if type(tensor).__module__.startswith("torchao.") else tensor
