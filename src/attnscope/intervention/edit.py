"""`edit` and `head_outputs`: change or record tensors of heads, and other activations, in a forward pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from numbers import Integral
from typing import Any, Literal, NamedTuple, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn
from transformers import PreTrainedModel

from attnscope.capture.borrow import LoadedModel, borrowed
from attnscope.capture.forward import forward
from attnscope.capture.notes import layer_coordinates
from attnscope.capture.placement import device_of
from attnscope.capture.verify import verify
from attnscope.capture.watch import Site
from attnscope.capture.watching import attached, watching
from attnscope.capture.weights import affine_of, embedding_within
from attnscope.explanation.projections import projections
from attnscope.intervention.activations import (
    Activation,
    Activations,
    Change,
    activations_of,
    changed_activations,
    checked,
)
from attnscope.intervention.calls import output_with_gradient
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.full import scores_of, softmax_of, values_of
from attnscope.measure.passes import WindowBatch
from attnscope.measure.raw import LIMIT
from attnscope.read.windows import Window, window_name
from attnscope.support.errors import AttnscopeError

On = Literal["output", "z", "weights", "scores", "query", "key", "value"]

_SIDES: tuple[On, ...] = ("query", "key", "value")
_HOOKS: dict[str, On] = {
    "result": "output",
    "z": "z",
    "pattern": "weights",
    "attn_scores": "scores",
    "v": "value",
    **{f"{turned}{side[0]}": side for side in _SIDES[:2] for turned in ("", "rot_")},
}
_STACKS = {"self": "encoder", "causal": "decoder", "cross": "decoder"}
_BY_POSITION = {"output", "z", *_SIDES}  # that TransformerLens has with positions before heads
_HOOK = re.compile(r"(?:blocks|encoder|decoder)\.[0-9]{1,6}\.(attn|cross_attn)\.hook_(.+)")


class Changes(NamedTuple):
    """Changes of tensors in every forward pass."""

    heads: Mapping[int, Mapping[On, Change]]  # by layer
    activations: Mapping[Activation, Change]


class AttentionLayers(NamedTuple):
    """The attention calls of a model."""

    sites: Sequence[Site]
    outputs: Mapping[int, str]  # linear layer that reads the heads of a call, if one does
    turned: Collection[int]  # calls whose queries and keys may depend on positions


@dataclass(frozen=True)
class Anatomy:
    """Where a model computes what can be changed: found once, when it is needed, and again if the model changes."""

    model: PreTrainedModel
    inputs: Mapping[str, Any] | None = None

    @property
    def layers(self) -> AttentionLayers:
        return self._found(_attention_layers)

    @property
    def activations(self) -> Activations:
        return self._found(activations_of)

    @cached_property
    def modules(self) -> dict[str, nn.Module]:
        return dict(self.model.named_modules())

    @cached_property
    def _state(self) -> tuple[Any, ...]:
        """All that it depends on; weights are not part of it."""
        shapes = [(name, getattr(value, "shape", None)) for name, value in (self.inputs or {}).items()]
        return self.model.dtype, device_of(self.model), shapes, [*map(id, self.modules.values())]

    def _found(self, find: Callable[[PreTrainedModel, dict[str, Any]], Any]) -> Any:
        of_model = _anatomies.setdefault(self.model, {})
        if find not in of_model or of_model[find][0] != self._state:
            with borrowed(self.model):
                of_model[find] = self._state, find(self.model, dict(self.inputs or some_tokens(self.model)))
        return of_model[find][1]


_anatomies: WeakKeyDictionary[nn.Module, dict[Any, tuple[Any, Any]]] = WeakKeyDictionary()


def some_tokens(model: PreTrainedModel) -> dict[str, Tensor]:
    """Arguments of a pass over a text whose tokens do not matter."""
    if model.main_input_name != "input_ids":
        raise AttnscopeError(f"{type(model).__name__} reads {model.main_input_name}, not tokens: give it as inputs")
    table: Any = embedding_within(model.get_input_embeddings())
    ids = np.random.default_rng(0).integers(table.num_embeddings, size=(1, 8))
    inputs = {"input_ids": torch.from_numpy(ids).to(device_of(model))}
    return inputs | ({"decoder_input_ids": inputs["input_ids"]} if model.config.is_encoder_decoder else {})


@torch.no_grad()
def _attention_layers(model: PreTrainedModel, inputs: dict[str, Any]) -> AttentionLayers:
    sites = verify(model, inputs, text="these inputs")
    layers = projections(model, inputs)
    outputs = {site.index: layer.names["output"] for site, layer in layers.items() if "output" in layer.names}
    turned = {site.index for site, layer in layers.items() if layer.form != "bilinear"}
    return AttentionLayers(sites, outputs, turned)


def changes_of(
    functions: Mapping[Any, Any], on: On, kind: str | None, anatomy: Anatomy, positions: Any = None
) -> Changes:
    """Changes from functions of the tensors of heads, and of activations by their names, at some positions."""
    heads: dict[int, dict[On, Change]] = {}
    activations: dict[Activation, Change] = {}
    by_head: dict[int, dict[int, Any]] = {}
    for key, function in functions.items():
        if not callable(function):
            raise AttnscopeError(f"found {type(function).__name__} for {key}; expected a function of a tensor")
        if isinstance(key, str) and is_hook_of_heads(key):
            site, what = hook_point(key, anatomy)
            heads.setdefault(site.index, {})[what] = _as_of_transformer_lens(cast("Change", function), what, key)
            continue
        if isinstance(key, str):
            activation = anatomy.activations.find(key)
            if activation in activations:
                raise AttnscopeError(f"found two functions for {activation.name}; expected one")
            activations[activation] = cast("Change", function)
            continue
        if not (isinstance(key, tuple) and len(key) == 2 and all(isinstance(number, Integral) for number in key)):  # noqa: PLR2004
            raise AttnscopeError(
                f"found the head {key!r}; expected (layer, head), such as (4, 2), or the name of an activation, such "
                "as '4.resid_post'"
            )
        site = chosen_site(anatomy.layers.sites, key[0], kind)
        if not 0 <= key[1] < site.heads:
            raise AttnscopeError(f"there is no head {key[1]} in layer {key[0]}: choose from 0 to {site.heads - 1}")
        by_head.setdefault(site.index, {})[key[1]] = function
    for number, some in by_head.items():
        heads.setdefault(number, {})[on] = _by_head(some, on, number)
    if not (heads or activations):
        raise AttnscopeError("found no heads; expected at least one, such as {(4, 2): torch.zeros_like}")
    if positions is not None:
        within = torch.as_tensor(positions).bool()
        heads = {layer: {what: _within(within, f, 2) for what, f in of.items()} for layer, of in heads.items()}
        activations = {activation: _within(within, f, 1) for activation, f in activations.items()}
    return Changes(heads, activations)


def _within(positions: Tensor, function: Change, dim: int) -> Change:
    """A change of some positions ``(batch, position)`` alone, which are a dimension of the tensor."""

    def change(tensor: Tensor) -> Tensor:
        shape = (tensor.shape[0], tensor.shape[dim])
        if positions.shape != shape:
            raise AttnscopeError(
                f"found positions of shape {tuple(positions.shape)} in a pass of {shape}; expected (text, position)"
            )
        at = positions.to(tensor.device).reshape(shape[0], *[1] * (dim - 1), shape[1], *[1] * (tensor.ndim - dim - 1))
        return torch.where(at, function(tensor), tensor)

    return change


def activations_by(anatomy: Anatomy, name: str, layer: int | None, kind: str | None) -> tuple[list[Activation], bool]:
    """Activations of this name in all blocks, or of one block, and whether it is only one."""
    stack = "" if kind is None or not anatomy.model.config.is_encoder_decoder else _STACKS[kind]
    return anatomy.activations.chosen(name, layer, stack)


def chosen_site(sites: Sequence[Site], layer: int, kind: str | None) -> Site:
    """The layer of this number, among those of a kind."""
    of_kind = [site for site in sites if kind is None or site.kind == kind]
    if not 0 <= layer < len(of_kind):
        what = "attention layers" if kind is None else f"layers of {kind} attention"
        raise AttnscopeError(f"there is no layer {layer} among the {len(of_kind)} {what}: count from 0")
    return of_kind[layer]


def is_hook_of_heads(name: str) -> bool:
    """Whether a name is that of a hook of TransformerLens on the attention of a block."""
    return _HOOK.fullmatch(name) is not None


def hook_point(name: str, anatomy: Anatomy) -> tuple[Site, On]:
    """Layer and tensor of a hook of TransformerLens on the attention of a block."""
    part, hook = cast("re.Match[str]", _HOOK.fullmatch(name)).groups()
    if hook not in _HOOKS:
        raise AttnscopeError(f"found the name {name!r}; expected hook_{', hook_'.join(_HOOKS)} of attn")
    layers, blocks = anatomy.layers, anatomy.activations.blocks
    cross = part == "cross_attn"
    attending = {
        one: [site for site in layers.sites if site.name.startswith(f"{module}.") and (site.kind == "cross") == cross]
        for one, module in blocks.items()
    }
    if len({*blocks.values()}) < len(blocks):  # blocks that share their modules
        attending = {str(site.index): [site] for site in layers.sites}
    block = name.partition(f".{part}.")[0].removeprefix("blocks.")
    sites = attending.get(block)
    if not sites:
        there = ", ".join(one for one, some in attending.items() if some)
        raise AttnscopeError(f"found the name {name!r}; expected {part} of a block that has it: {there or 'none has'}")
    if hook in {"q", "k"} and sites[0].index in layers.turned:
        raise AttnscopeError(f"found {name!r} of a model that rotates queries and keys; expected hook_rot_{hook}")
    return sites[0], _HOOKS[hook]


def _as_of_transformer_lens(function: Change, what: On, where: str) -> Change:
    """All heads at once; positions before heads where TransformerLens has it so."""

    def change(tensor: Tensor) -> Tensor:
        turned = tensor.transpose(1, 2) if what in _BY_POSITION else tensor
        changed = checked(function(turned), turned, where)
        return changed.transpose(1, 2) if what in _BY_POSITION else changed

    return change


def _by_head(functions: Mapping[int, Change], what: On, layer: int) -> Change:
    def change(tensor: Tensor) -> Tensor:
        parts = list(tensor.unbind(1))
        for head, function in functions.items():
            parts[head] = checked(function(parts[head]), parts[head], f"{what} of head {layer}.{head}")
        return torch.stack(parts, 1)

    return change


@contextmanager
def changed(anatomy: Anatomy, changes: Changes) -> Generator[None]:
    """Apply changes in every forward pass."""
    with changed_activations(anatomy.model, changes.activations):
        if not changes.heads:
            yield
            return
        with _changed_heads(anatomy, changes.heads):
            yield


@contextmanager
def _changed_heads(anatomy: Anatomy, changes: Mapping[int, Mapping[On, Change]]) -> Generator[None]:
    model, layers = anatomy.model, anatomy.layers
    numbers = {site.name: site.index for site in layers.sites}
    by_name = len(numbers) == len(layers.sites)  # a decoder may run without its encoder, in generate()
    last: tuple[int, Tensor] | None = None  # the latest call

    def observe(site: Site, call: AttentionCall) -> Tensor | None:
        nonlocal last
        number = numbers[site.name] if by_name else site.index
        wanted = changes.get(number)
        output = None if wanted is None else attend_changed(call, wanted)
        last = None if output is None else (number, output)
        return output

    def add(_: nn.Module, arguments: tuple[Any, ...], returned: Tensor) -> Tensor | None:
        if last is None or "output" not in changes[last[0]]:
            return None
        number, output = last
        batch, heads, queries, width = output.shape
        matrix = output_affine(reader[number], arguments[0], heads)[0]
        # the linear layer reads heads side by side: its input splits into them, its matrix into blocks of rows
        parts = arguments[0].reshape(batch, queries, heads, width).transpose(1, 2) @ matrix
        # only the difference is added: a bias, which belongs to no head, stays as it is
        return returned + (changes[number]["output"](parts) - parts).sum(1).reshape(returned.shape)

    reader: dict[int, nn.Module] = {}
    for number in (number for number, wanted in changes.items() if "output" in wanted):
        if number not in layers.outputs:
            raise AttnscopeError(
                f"no linear layer reads the heads of layer {number} of {type(model).__name__}: use on='z' instead"
            )
        reader[number] = model.get_submodule(layers.outputs[number])
    modules = {id(one): one for one in reader.values()}.values()
    hooks = attached(module.register_forward_hook(add) for module in modules)
    with hooks, watching(model, observe, modules=anatomy.modules):
        yield


def output_affine(module: nn.Module, received: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """W_O of each head, ``(head, value_width, model_width)``, and b_O, part of the graph."""
    affine = affine_of(module, received)
    if affine is None:
        raise AttnscopeError(f"found {type(module).__name__} behind the heads; expected a linear layer. Use on='z'")
    return affine.matrix.unflatten(0, (heads, -1)), affine.bias


def attend_changed(call: AttentionCall, changes: Mapping[On, Change]) -> Tensor:
    """The output of the heads of a call, ``(batch, head, query, value_width)``, with changes on the way there."""
    if call.group > 1 and not changes.keys().isdisjoint({"key", "value"}):
        key, value = (side.repeat_interleave(call.group, 1) for side in (call.key, call.value))
        call = replace(call, key=key, value=value)
    call = replace(call, **{side: changes[side](getattr(call, side)) for side in _SIDES if side in changes})
    if changes.keys().isdisjoint({"scores", "weights"}):
        output = output_with_gradient(call)
    else:
        scores = scores_of(call)
        weights = softmax_of(call, changes["scores"](scores) if "scores" in changes else scores)
        weights = changes["weights"](weights) if "weights" in changes else weights
        output = (weights @ values_of(call)).to(call.query.dtype)
    return changes["z"](output) if "z" in changes else output


def recorded(
    loaded: LoadedModel,
    windows: Sequence[Window],
    anatomy: Anatomy,
    points: Sequence[Activation | tuple[Site, On]],
    head: int | None = None,
) -> list[list[np.ndarray]]:
    """Tensors of each window at some points, ``(head, query, ...)``, of one head too, or ``(position, width)``."""
    taken: list[list[np.ndarray]] = [[] for _ in points]

    def take(number: int, tensor: Tensor) -> Tensor:
        of_one = tensor if tensor.ndim == 2 else tensor[0]  # noqa: PLR2004 some modules read rows of no text
        of_one = of_one if head is None else of_one[[head]]
        taken[number].append(of_one.float().cpu().numpy())
        return tensor

    heads: dict[int, dict[On, Change]] = {}
    activations: dict[Activation, Change] = {}
    for number, point in enumerate(points):
        if isinstance(point, Activation):
            activations[point] = partial(take, number)
        else:
            heads.setdefault(point[0].index, {})[point[1]] = partial(take, number)
    with_head = any(point.name == "logits" for point in activations)
    with torch.no_grad(), changed(anatomy, Changes(heads, activations)):
        for number, window in enumerate(windows):
            inputs = WindowBatch.of([window], 0, device_of(loaded.model)).inputs(loaded.model)
            forward(loaded.model, inputs, lambda _, at=number: window_name(windows[at], at), with_head=with_head)
            if sum(each.nbytes for tensors in taken for each in tensors) > LIMIT:
                raise AttnscopeError(
                    f"the arrays need more than {LIMIT >> 30} GiB: choose a layer or a head, or fewer texts (limit)"
                )
    return taken


def padded(taken: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """The same in one array, ``(window, point, ...)``, NaN beyond a window's tokens."""
    sizes = np.max([each.shape for tensors in taken for each in tensors], axis=0)
    values = np.full((len(taken[0]), len(taken), *sizes), np.nan, dtype=np.float32)
    for row, tensors in enumerate(taken):
        for number, each in enumerate(tensors):
            values[(number, row, *map(slice, each.shape))] = each
    return values


def labelled_heads(
    values: np.ndarray, windows: Sequence[Window], layers: Sequence[Site], what: On, head: int | None
) -> xr.DataArray:
    """Tensors of heads with the names of tokens, of the texts that these layers read."""
    targets = [window.target or window for window in windows]
    sides = windows if layers[0].kind == "self" else targets, targets if layers[0].kind == "causal" else windows
    sides = sides if what not in {"key", "value"} else sides[1:]
    dims = ("query", "key") if what in {"weights", "scores"} else ("position", "width")
    coords = layer_coordinates(layers) | _of_windows(windows, dict(zip(dims, sides, strict=False)), values.shape[3:])
    coords["head"] = np.arange(values.shape[2]) if head is None else [head]
    return xr.DataArray(values, coords, ("window", "layer", "head", *dims), what)


def labelled_activations(
    values: np.ndarray, windows: Sequence[Window], activations: Sequence[Activation], *, decodes: bool
) -> xr.DataArray:
    """Activations with the names of tokens, and numbers of blocks."""
    texts = [(window.target if decodes else None) or window for window in windows]
    coords = _of_windows(windows, {"position": texts}, values.shape[2:])
    coords["block"] = [activation.block for activation in activations]
    name = activations[0].name.rpartition(".")[2]
    return xr.DataArray(values, coords, ("window", "block", "position", "width"), name)


def _of_windows(
    windows: Sequence[Window], sides: Mapping[str, Sequence[Window]], sizes: Sequence[int]
) -> dict[str, Any]:
    """Sources and lengths of windows, and their tokens along the dimensions of tokens."""
    coords: dict[str, Any] = {"source": ("window", np.array([window.source for window in windows], dtype=object))}
    coords["length"] = "window", np.array(list(map(len, next(iter(sides.values())))))
    for (dim, named), size in zip(sides.items(), sizes, strict=False):
        if dim != "width" and all(len(side) <= size for side in named):
            rows = [[*side.tokens, *[""] * (size - len(side))] for side in named]
            coords[f"{dim}_token"] = ("window", dim), np.array(rows, dtype=object)
    return coords
