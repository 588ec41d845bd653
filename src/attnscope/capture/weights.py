"""The numbers of a model's weights, whatever stores or adapts them, and passes that compute with them in float32."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import chain, filterfalse
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from attnscope.capture.placement import device_of, plain
from attnscope.capture.verify import TOLERANCE
from attnscope.support.errors import AttnscopeError

_ALMOST_LINEAR = 0.1  # largest difference, as a share, of layers that round their input to few digits (int8, fp8)
_HALF = (torch.float16, torch.bfloat16)


def blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    """The outermost modules in module lists, by name: blocks of encoder and decoder, in the order of the model."""
    blocks: dict[str, nn.Module] = {}
    for name, module in model.named_children():
        if is_linear(module):  # its parametrisations are such a list too
            continue
        inner = dict(module.named_children()) if isinstance(module, nn.ModuleList) else blocks_of(module)
        blocks |= {
            f"{name}.{inner_name}": block
            for inner_name, block in inner.items()
            if next(block.parameters(), None) is not None
        }
    return blocks


def embedding_within(module: object) -> nn.Embedding | None:
    """The table of an embedding module, which an adapter may wrap."""
    parts = module.modules() if isinstance(module, nn.Module) else ()
    return next((part for part in parts if isinstance(part, nn.Embedding)), None)


def embeddings_of(model: PreTrainedModel) -> list[Any]:
    """The embeddings that the model's first stack reads, and its last one; None of sounds."""
    stacks: list[Any] = [model.get_encoder(), model.get_decoder()] if model.config.is_encoder_decoder else [model]
    # stacks of attnscope's translators share a table, which the model has
    owners = [stack if hasattr(stack, "get_input_embeddings") else model for stack in stacks]
    return [_input_layer(owner) for owner in owners]


def _input_layer(model: PreTrainedModel) -> nn.Module | None:
    try:
        return model.get_input_embeddings()
    except NotImplementedError:
        return None


def output_layer(model: PreTrainedModel) -> nn.Module | None:
    """The layer that computes the logits, if there is one."""
    try:
        return model.get_output_embeddings()
    except NotImplementedError:
        return None


@contextmanager
def logits_at(
    model: PreTrainedModel, positions: Int[Tensor, "text prediction"] | None
) -> Generator[Callable[[Tensor], Tensor]]:
    """Let the output layer compute logits at some positions of each text, or of each variant of all texts.

    Yields a function that picks them from the result of a pass, if the model computes them in another way; those of a
    text are at position 0. All logits without positions.
    """
    if positions is None:
        yield lambda logits: logits
        return
    layer, is_cut = output_layer(model), False

    def cut(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        nonlocal is_cut
        states = arguments[0]
        is_cut = states.ndim == 3 and len(states) % len(positions) == 0  # noqa: PLR2004
        return (_at(states, positions), *arguments[1:]) if is_cut else None

    def chosen(logits: Tensor) -> Tensor:
        if is_cut:
            return logits
        return logits[:, None] if logits.ndim == 2 else _at(logits, positions)  # noqa: PLR2004

    with nullcontext() if layer is None else layer.register_forward_pre_hook(cut):
        yield chosen


def _at(rows: Tensor, positions: Tensor) -> Tensor:
    """Rows ``(variant and text, position, ...)`` at chosen positions ``(text, prediction)`` of each text."""
    # rows are variants times texts, the texts of a variant adjacent
    index = positions.to(rows.device).repeat(len(rows) // len(positions), 1)
    return rows.gather(1, index[..., None].expand(-1, -1, rows.shape[-1]))


def is_linear(module: nn.Module) -> bool:
    """Whether a module stands for a matrix: a linear layer, quantised, adapted or not."""
    return isinstance(module, Conv1D) or all(
        isinstance(getattr(module, f"{end}_features", 0.0), int) for end in ("in", "out")
    )


def linear_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Names and modules of the linear layers, without the linear layers that adapters have inside."""
    outer = ""
    for name, module in model.named_modules():
        if is_linear(module) and not (outer and name.startswith(outer)):
            outer = f"{name}."
            yield name, module


class Affine(NamedTuple):
    """The affine map of a linear layer: ``rows @ matrix + bias``."""

    matrix: Float[Tensor, "width out"]
    bias: Float[Tensor, " out"]
    error: float  # largest difference from an output of the layer, as a share of the largest output


def affine_of(module: nn.Module, received: Tensor, returned: Tensor | None = None) -> Affine | None:
    """The matrix and bias that a linear layer applies, whatever stores or adapts its weights; None if it has none.

    They are read where a plain layer stores them, else they follow from its outputs at the identity and at zero. Both
    must give what the layer returned for the rows `received`; without `returned`, for other rows.
    """
    rows, output = received, returned
    if output is None:
        # any rows show whether a layer is linear; a fixed seed gives the same answer each time
        draw = torch.randn(1, 4, received.shape[-1], generator=torch.Generator().manual_seed(0))
        rows = draw.to(received)
        output = module.forward(rows)
    dtype = output.dtype
    wide, expected = (side.detach().double().flatten(0, -2) for side in (rows, output))

    def checked(matrix: Tensor, bias: Tensor, limit: float) -> Affine | None:
        difference = wide @ matrix.detach().double() + bias.detach().double() - expected
        error = float(difference.abs().max()) / max(float(expected.abs().max()), 1e-30)
        return Affine(matrix, bias, error) if error <= limit else None

    stored = _stored(module)
    affine = None if stored is None else checked(*stored, TOLERANCE[dtype])
    return affine or checked(*_at_identity(module, received), _ALMOST_LINEAR)


@torch.no_grad()
def affine_alone(model: PreTrainedModel, module: nn.Module, width: int) -> Affine:
    """The same for a layer of a model that is not running, in float32 where weights are adapted."""
    like = torch.empty(0, width, dtype=model.dtype, device=device_of(module))
    stored = _stored(module)
    if stored is not None:
        affine = affine_of(module, like.to(stored[0].dtype))  # other parts of the model may be in another one
    elif is_packed(module):
        affine = affine_of(module, like)
    else:
        with in_single_precision(module):
            affine = affine_of(module, like.to(torch.promote_types(like.dtype, torch.float32)))
    if affine is None:
        raise AttnscopeError(
            f"{type(model).__name__} has a {type(module).__name__} that is not linear; expected a linear layer"
        )
    return affine


def _stored(module: nn.Module) -> tuple[Tensor, Tensor] | None:
    """The matrix and bias that a plain layer stores."""
    replaced = "forward" in vars(module) and not hasattr(module, "_hf_hook")  # accelerate's moves weights alone
    if replaced or type(module).forward not in {nn.Linear.forward, Conv1D.forward}:
        return None
    layer: Any = module
    weight = plain(layer.weight)
    if weight.is_meta or not is_plain(weight):
        return None
    # GPT-2's Conv1D stores (in, out), nn.Linear (out, in)
    matrix = weight if isinstance(module, Conv1D) else weight.T
    return matrix, matrix.new_zeros(matrix.shape[1]) if layer.bias is None else layer.bias


def _at_identity(module: nn.Module, like: Tensor) -> tuple[Tensor, Tensor]:
    # f(e_i) - f(0) is row i of the matrix, f(0) the bias
    rows = torch.cat([torch.eye(like.shape[-1]), torch.zeros(1, like.shape[-1])]).to(like)
    returned = module.forward(rows[None])[0]
    return returned[:-1] - returned[-1], returned[-1]


@contextmanager
def in_single_precision(model: nn.Module) -> Generator[None]:
    """Compute in float32 within, with the weights of a 16-bit model: what a pass shows then depends on the weights.

    Rounded activations hide how a model is built: which sums a norm reads, and which linear layer made a query. One
    block at a time has its weights in float32. Quantised layers compute in their own dtype.
    """
    tensors = chain(model.parameters(), model.buffers())
    dtype = next((tensor.dtype for tensor in tensors if is_plain(tensor) and tensor.dtype in _HALF), None)
    if dtype is None:
        yield
        return
    blocks_with = defaultdict[nn.Module, list[nn.Module]](list)
    for block in blocks_of(model).values():
        for module in block.modules():
            blocks_with[module].append(block)
    wide = ExitStack()  # of the block at hand
    latest: nn.Module | None = None

    def enter(module: nn.Module, _: Any) -> None:
        nonlocal latest
        if latest not in blocks_with[module]:
            wide.close()
            latest = blocks_with[module][0]
            wide.enter_context(_widened(latest.modules()))

    def narrow(_: nn.Module, arguments: Any, options: Any) -> Any:
        return _cast((arguments, options), torch.float32, dtype)

    def widen_inputs(_: nn.Module, arguments: Any, options: Any) -> Any:
        return _cast((arguments, options), dtype, torch.float32)

    def widen(_: nn.Module, __: Any, returned: Any) -> Any:
        return _cast(returned, dtype, torch.float32)

    with ExitStack() as stack:
        stack.enter_context(wide)
        stack.enter_context(_widened(module for module in model.modules() if module not in blocks_with))
        for module in [*blocks_with]:
            stack.callback(module.register_forward_pre_hook(enter).remove)
        stack.callback(model.register_forward_pre_hook(widen_inputs, with_kwargs=True).remove)
        for module in filter(is_packed, model.modules()):
            stack.callback(module.register_forward_pre_hook(narrow, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(widen).remove)
        yield


@contextmanager
def _widened(modules: Iterable[nn.Module]) -> Generator[None]:
    """Store the 16-bit tensors of modules as float32 within."""
    before: list[tuple[dict[str, Any], str, Tensor]] = []
    try:
        for module in filterfalse(is_packed, modules):
            for tensors in (vars(module)["_parameters"], vars(module)["_buffers"]):  # accelerate replaces entries
                for name, tensor in tensors.items():
                    if tensor is not None and is_plain(tensor) and tensor.dtype in _HALF:
                        before.append((tensors, name, tensor.data))
                        tensor.data = tensor.data.float()
        yield
    finally:
        for tensors, name, data in before:
            tensors[name].data = data


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor holds its numbers, not codes."""
    # subclasses (torchao, bitsandbytes) hold codes under the shape of the weights; fp8 has one byte
    return type(tensor) in {nn.Parameter, Tensor} and tensor.is_floating_point() and tensor.itemsize > 1


def is_packed(module: nn.Module) -> bool:
    """Whether a module computes with codes of weights."""
    stored = chain(module.parameters(recurse=False), module.buffers(recurse=False) if is_linear(module) else ())
    return not all(map(is_plain, stored))


def _cast(values: Any, dtype: torch.dtype, target: torch.dtype) -> Any:
    return pytree.tree_map_only(Tensor, lambda one: one.to(target) if one.dtype == dtype else one, values)
