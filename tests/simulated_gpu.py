"""Two GPUs that are not there: tensors that say ``cuda``, hold their numbers on the CPU, refuse what a GPU refuses.

Operands on two devices are refused, as CUDA refuses them, and so is NumPy. Each time that the host has to wait for the
device (`.item()`, `bool`, `.cpu()`, a shape that depends on values) is counted in `waits`, by the line that asked.
"""

import sys
import traceback
from collections import Counter
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.overrides import TorchFunctionMode, resolve_name

from attnscope.kernels.masks import OffsetBias, RowMask

THERE = torch.device("cuda", 0)
SOURCE = str(Path(__file__).parents[1] / "src" / "attnscope")
_WAIT = {
    *(Tensor.item, Tensor.tolist, Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__),
    *(Tensor.nonzero, torch.nonzero, Tensor.unique, torch.unique, Tensor.masked_select, torch.masked_select),
    *(Tensor.equal, torch.equal, Tensor.allclose, torch.allclose, Tensor.bincount, torch.bincount),
}
_MOVE = {Tensor.to, Tensor.cpu, Tensor.cuda, Tensor.type_as}
_INDEX = {Tensor.__getitem__, Tensor.__setitem__}
_NOT_YET = 77  # what a copy holds that is underway


class Away(Tensor):
    """A tensor on a GPU that is not there."""

    @staticmethod
    def __new__(cls, here, place=THERE):
        made = Tensor._make_wrapper_subclass(cls, here.shape, dtype=here.dtype, device=place)
        made.here, made.place = here, place
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # the mode does it

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError(f"{function} came to a tensor of a GPU that is not there, from outside of `gpu`")


class Event(torch.cuda.Event):
    """Of the GPU's stream: copies that were told before it was recorded are whole once it is waited for."""

    def __new__(cls, _):
        return object.__new__(cls)

    def __init__(self, mode):
        self.mode, self.before = mode, []

    def record(self):
        self.before = [*self.mode.underway]

    def synchronize(self):
        self.mode.note()
        for copy, numbers in self.before:
            copy.copy_(numbers)


class Gpu(TorchFunctionMode):
    """Does what is asked of tensors there with their numbers here, within `launching`."""

    launching = nullcontext()

    def __init__(self):
        super().__init__()
        self.waits = Counter()
        self.underway = []  # copies to the host that nobody waited for yet: (copy, numbers)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        leaves = [*_leaves((args, kwargs))]
        is_there = any(_is_there(leaf) for leaf in leaves)
        if is_there and function in _SAID:
            return _SAID[function](args[0])
        if function in _MOVE:
            return self._moved(function, *args, **kwargs)
        place = next((_place_of(leaf) for leaf in leaves if _is_there(leaf)), THERE)
        device = kwargs.get("device")
        if device is not None:
            place = _place(device)
            is_there = place.type == "cuda"
            kwargs["device"] = torch.device("cpu") if is_there else device
        if not is_there:
            return function(*args, **kwargs)
        if function is Tensor.numpy or function is Tensor.__array__:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        if function is torch._has_compatible_shallow_copy_type:
            return False
        self._look(function, args, leaves)
        if function is torch.ops.aten._scaled_dot_product_efficient_attention:
            function = _efficient
        own = {id(leaf.here): leaf for leaf in leaves if isinstance(leaf, Away)}
        args, kwargs = _each(_here, (args, kwargs))
        with self.launching:
            found = function(*args, **kwargs)
        if isinstance(found, torch.Size):
            return found
        return _each(lambda one: own.get(id(one), _away(one, place)), found)

    def _look(self, function, args, leaves):
        """Refuse what is on two devices; note where the host waits."""
        apart = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim and not _is_there(leaf)]
        if function is Tensor.copy_:
            return self.note() if apart else None
        places = {_place_of(leaf) for leaf in leaves if _is_there(leaf) and leaf.ndim}
        if len(places) > 1:
            raise RuntimeError(
                f"{resolve_name(function) or function}: expected all tensors to be on the same device, found cuda:0 "
                "and cuda:1"
            )
        if function in _INDEX and all(leaf.dtype in {torch.int64, torch.bool} for leaf in apart):
            picks = function is Tensor.__getitem__ and _has_mask(args[1])
            return self.note() if apart or picks else None
        if apart:
            raise RuntimeError(
                f"{resolve_name(function) or function}: expected all tensors to be on the same device, found cuda:0 "
                "and cpu"
            )
        return self.note() if function in _WAIT else None

    def _moved(self, function, tensor, *rest, **kwargs):
        if function in {Tensor.cpu, Tensor.cuda}:
            rest = [function.__name__]
        if rest and isinstance(rest[0], int):
            rest = [torch.device("cuda", rest[0]), *rest[1:]]
        if rest and isinstance(rest[0], Tensor):
            other = rest[0]
            rest, kwargs = [], {"device": other.device, "dtype": other.dtype}
        copy = kwargs.pop("copy", False)
        device, dtype, later, layout = torch._C._nn._parse_to(*rest, **kwargs)
        before = _place_of(tensor) if _is_there(tensor) else tensor.device
        place = before if device is None else _place(device)
        there, crosses = place.type == "cuda", place != before
        own = {} if layout is None else {"memory_format": layout}
        bare = _here(tensor)
        with self.launching if there or _is_there(tensor) else nullcontext():
            found = bare.to(dtype or bare.dtype, copy=copy or crosses, **own)
        if crosses and not there:
            if not later:
                self.note()
                return found
            self.underway.append((underway := torch.full_like(found, _NOT_YET), found))
            return underway
        return tensor if found is bare else _away(found, place) if there else found

    def note(self):
        """Keep the innermost line of the package that led here."""
        for frame, line in traceback.walk_stack(sys._getframe(1)):
            if frame.f_code.co_filename.startswith(SOURCE):
                name = frame.f_code.co_filename.removeprefix(SOURCE)[1:]
                self.waits[f"{name}:{frame.f_code.co_name}:{line}"] += 1
                return


def _leaves(value):
    """What tuples, lists and dicts hold in the end: PyTorch's own `tree_iter` takes as long as a small product."""
    kind = type(value)
    if kind is tuple or kind is list or kind is dict:
        for one in value.values() if kind is dict else value:
            yield from _leaves(one)
    else:
        yield value


def _each(change, value):
    """The same with each of these changed; a named result, such as that of `torch.max`, is a tuple too."""
    kind = type(value)
    if kind is dict:
        return {name: _each(change, one) for name, one in value.items()}
    if kind is list or (isinstance(value, tuple) and kind not in {torch.Size, GradientEdge}):
        return kind([_each(change, one) for one in value])
    return change(value)


def _numbers(value):
    """What holds the numbers of a mask or a bias that is known by its rows, or of another tensor."""
    return value.start if isinstance(value, RowMask) else value.by_offset if isinstance(value, OffsetBias) else value


def _is_there(value):
    return isinstance(_numbers(value), Away)


def _place_of(value):
    return _numbers(value).place


def _here(value):
    if isinstance(value, RowMask) and isinstance(value.start, Away):
        return RowMask(value.start.here, value.stop.here, value.shape[-1])
    if isinstance(value, OffsetBias) and isinstance(value.by_offset, Away):
        return OffsetBias(value.by_offset.here, value.shape[-2])
    return value.here if isinstance(value, Away) else value


def _place(device):
    """A device by its number: ``cuda`` is the first."""
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return THERE if device.type == "cuda" and device.index is None else device


_SAID = {
    Tensor.device.__get__: _place_of,
    Tensor.get_device: lambda away: _place_of(away).index,
    Tensor.is_cuda.__get__: lambda _: True,
    Tensor.is_cpu.__get__: lambda _: False,
}


def _away(value, place=THERE):
    if isinstance(value, RowMask) and value.is_known:
        return RowMask(Away(value.start, place), Away(value.stop, place), value.shape[-1])
    if isinstance(value, OffsetBias):
        return OffsetBias(Away(value.by_offset, place), value.shape[-2])
    return Away(value, place) if isinstance(value, Tensor) and not isinstance(value, Away) else value


def _has_mask(index):
    return any(isinstance(one, Tensor) and one.dtype == torch.bool and one.ndim for one in _leaves(index))


@contextmanager
def gpu(monkeypatch):
    """Have ``device="cuda"`` work; Triton's kernel, which reads memory itself, is not there."""
    for module in ("engines", "sums"):
        monkeypatch.setattr(f"attnscope.kernels.{module}.can_triton", lambda *_: "no memory to read")
    # `Module.to` then keeps its parameters, and so what several modules share
    monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", True)
    mode = Gpu()
    monkeypatch.setattr(torch.cuda, "Event", lambda: Event(mode))
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.autograd, "grad", partial(_grad, torch.autograd.grad))
    with mode:
        yield mode.waits


def _grad(grad, outputs, inputs, *args, **kwargs):
    """Gradients at edges of the graph: without a tensor among its ends PyTorch does not ask the mode."""
    first = next((leaf for leaf in _leaves((outputs, inputs, args, kwargs)) if _is_there(leaf)), None)
    here = _each(_here, (outputs, inputs, *args)), _each(_here, kwargs)
    found = grad(*here[0], **here[1])
    if first is None:
        return found
    ends = [end if _is_there(end) else first for end in ([inputs] if isinstance(inputs, Tensor) else inputs)]
    return tuple(_away(slope, _place_of(end)) for slope, end in zip(found, ends, strict=True))


def _efficient(query, key, value, bias, _level, _dropout, causal, *, scale):
    """The kernel that CUDA has, from the one that the CPU has; it refuses what the kernel refused on a GPU."""
    if query.dtype == torch.float64:
        raise RuntimeError("Only fp32, half & bf16 supported at the moment")
    if bias is not None and bias.stride(-2) * bias.element_size() % 16:
        raise RuntimeError(f"attn_bias is not correctly aligned (strideM). attn_bias.stride(2) = {bias.stride(-2)}")
    output, level = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query.contiguous(), key, value, 0.0, causal, attn_mask=bias, scale=scale
    )
    return output, level, None, None
