"""`edit` and `head_outputs`: change or keep any tensor of a head in a forward pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral
from typing import Any, Literal, cast

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
from attnscope.intervention.calls import output_with_gradient
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.full import scores_of, softmax_of, values_of
from attnscope.measure.passes import WindowBatch
from attnscope.measure.raw import LIMIT
from attnscope.read.windows import Window, window_name
from attnscope.support.errors import AttnscopeError

On = Literal["output", "z", "weights", "scores", "query", "key", "value"]

#: Maps a tensor of all heads of a call, ``(batch, head, ...)``, to the one that replaces it.
Change = Callable[[Tensor], Tensor]

_SIDES: tuple[On, ...] = ("query", "key", "value")
_HOOKS: dict[str, On] = {"result": "output", "z": "z", "pattern": "weights", "attn_scores": "scores"}
_HOOK = re.compile(rf"(blocks|encoder|decoder)\.([0-9]{{1,6}})\.(attn|cross_attn)\.hook_({'|'.join(_HOOKS)})")


def changes_of(
    heads: Mapping[Any, Any], on: On, kind: str | None, sites: Sequence[Site]
) -> dict[int, dict[On, Change]]:
    """The change of each tensor of each layer, from functions of the tensors of heads."""
    changes: dict[int, dict[On, Change]] = {}
    functions: dict[int, dict[int, Any]] = {}
    for key, function in heads.items():
        if not callable(function):
            raise AttnscopeError(f"found {type(function).__name__} for {key}; expected a function of a tensor")
        if isinstance(key, str):
            site, what = hook_point(key, sites)
            changes.setdefault(site.index, {})[what] = _as_of_transformer_lens(cast("Change", function), what, key)
            continue
        if not (isinstance(key, tuple) and len(key) == 2 and all(isinstance(number, Integral) for number in key)):  # noqa: PLR2004
            raise AttnscopeError(f"found the head {key!r}; expected (layer, head), such as (4, 2), or a name of a hook")
        site = chosen_site(sites, key[0], kind)
        if not 0 <= key[1] < site.heads:
            raise AttnscopeError(f"there is no head {key[1]} in layer {key[0]}: choose from 0 to {site.heads - 1}")
        functions.setdefault(site.index, {})[key[1]] = function
    for number, by_head in functions.items():
        changes.setdefault(number, {})[on] = _by_head(by_head, on, number)
    if not changes:
        raise AttnscopeError("found no heads; expected at least one, such as {(4, 2): torch.zeros_like}")
    return changes


def layers_and_outputs(model: PreTrainedModel, inputs: Mapping[str, Any] | None) -> tuple[list[Site], dict[int, str]]:
    """Attention calls of a model, and the linear layer that reads the heads of each, if one does."""
    if inputs is None:
        if model.main_input_name != "input_ids":
            raise AttnscopeError(f"{type(model).__name__} reads {model.main_input_name}, not tokens: give it as inputs")
        rng = np.random.default_rng(0)  # which tokens does not matter
        table: Any = embedding_within(model.get_input_embeddings())
        inputs = {"input_ids": torch.from_numpy(rng.integers(table.num_embeddings, size=(1, 8))).to(device_of(model))}
        if model.config.is_encoder_decoder:
            inputs["decoder_input_ids"] = inputs["input_ids"]
    with borrowed(model), torch.no_grad():
        sites = verify(model, dict(inputs), text="these inputs")
        layers = projections(model, dict(inputs))
    return sites, {site.index: layer.names["output"] for site, layer in layers.items() if "output" in layer.names}


def chosen_site(sites: Sequence[Site], layer: int, kind: str | None) -> Site:
    """The layer of this number, among those of a kind."""
    of_kind = [site for site in sites if kind is None or site.kind == kind]
    if not 0 <= layer < len(of_kind):
        what = "attention layers" if kind is None else f"layers of {kind} attention"
        raise AttnscopeError(f"there is no layer {layer} among the {len(of_kind)} {what}: count from 0")
    return of_kind[layer]


def hook_point(name: str, sites: Sequence[Site]) -> tuple[Site, On]:
    """Layer and tensor of a hook of TransformerLens."""
    match = _HOOK.fullmatch(name)
    if match is None:
        names = ", ".join(f"hook_{hook}" for hook in _HOOKS)
        raise AttnscopeError(f"found the name {name!r}; expected blocks.LAYER.attn.HOOK with one of {names}")
    stack, layer, part, hook = match.groups()
    kinds = {"blocks": None, "encoder": "self", "decoder": "cross" if part == "cross_attn" else "causal"}
    return chosen_site(sites, int(layer), kinds[stack]), _HOOKS[hook]


def _as_of_transformer_lens(function: Change, what: On, where: str) -> Change:
    """All heads at once; positions before heads where TransformerLens has it so."""

    def change(tensor: Tensor) -> Tensor:
        turned = tensor.transpose(1, 2) if what in {"output", "z"} else tensor
        changed = _checked(function(turned), turned, where)
        return changed.transpose(1, 2) if what in {"output", "z"} else changed

    return change


def _by_head(functions: Mapping[int, Change], what: On, layer: int) -> Change:
    def change(tensor: Tensor) -> Tensor:
        parts = list(tensor.unbind(1))
        for head, function in functions.items():
            parts[head] = _checked(function(parts[head]), parts[head], f"{what} of head {layer}.{head}")
        return torch.stack(parts, 1)

    return change


def _checked(returned: Any, tensor: Tensor, where: str) -> Tensor:
    if not isinstance(returned, Tensor) or returned.shape != tensor.shape:
        description = f"the shape {tuple(returned.shape)}" if isinstance(returned, Tensor) else type(returned).__name__
        raise AttnscopeError(
            f"the function for {where} returned {description}; expected a tensor {tuple(tensor.shape)}"
        )
    return returned


@contextmanager
def changed_heads(
    model: PreTrainedModel,
    changes: Mapping[int, Mapping[On, Change]],
    sites: Sequence[Site],
    outputs: Mapping[int, str],
) -> Generator[None]:
    """Apply changes in every forward pass; `outputs` names the linear layer that reads the heads of a call."""
    numbers = {site.name: site.index for site in sites}
    by_name = len(numbers) == len(sites)  # a decoder may run without its encoder, in generate()
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
        parts = arguments[0].reshape(batch, queries, heads, width).transpose(1, 2) @ matrix
        return returned + (changes[number]["output"](parts) - parts).sum(1).reshape(returned.shape)

    reader: dict[int, nn.Module] = {}
    for number in (number for number, wanted in changes.items() if "output" in wanted):
        if number not in outputs:
            raise AttnscopeError(
                f"no linear layer reads the heads of layer {number} of {type(model).__name__}: use on='z' instead"
            )
        reader[number] = model.get_submodule(outputs[number])
    modules = {id(one): one for one in reader.values()}.values()
    with attached(module.register_forward_hook(add) for module in modules), watching(model, observe):
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


def tensors_of_heads(
    loaded: LoadedModel,
    windows: Sequence[Window],
    layers: Sequence[Site],
    what: On,
    head: int | None,
    sites: Sequence[Site],
    outputs: Mapping[int, str],
) -> np.ndarray:
    """A tensor of the heads of some layers, ``(window, layer, head, ...)``, NaN beyond a window's tokens."""
    taken: dict[int, list[np.ndarray]] = {site.index: [] for site in layers}

    def take(number: int) -> Change:
        def change(tensor: Tensor) -> Tensor:
            taken[number].append((tensor if head is None else tensor[:, [head]])[0].float().cpu().numpy())
            return tensor

        return change

    changes: dict[int, Mapping[Any, Change]] = {site.index: {what: take(site.index)} for site in layers}
    with torch.no_grad(), changed_heads(loaded.model, changes, sites, outputs):
        for number, window in enumerate(windows):
            inputs = WindowBatch.of([window], 0, device_of(loaded.model)).inputs(loaded.model)
            forward(loaded.model, inputs, lambda _, at=number: window_name(windows[at], at), with_head=False)
            if sum(each.nbytes for tensors in taken.values() for each in tensors) > LIMIT:
                raise AttnscopeError(
                    f"the arrays need more than {LIMIT >> 30} GiB: choose a layer or a head, or fewer texts (limit)"
                )
    sizes = np.max([each.shape for tensors in taken.values() for each in tensors], axis=0)
    values = np.full((len(windows), len(layers), *sizes), np.nan, dtype=np.float32)
    for row, site in enumerate(layers):
        for number, each in enumerate(taken[site.index]):
            values[number, row, : each.shape[0], : each.shape[1], : each.shape[2]] = each
    return values


def labelled_tensors(
    values: np.ndarray, windows: Sequence[Window], layers: Sequence[Site], what: On, head: int | None
) -> xr.DataArray:
    """The same with the names of tokens, of the texts that these layers read."""
    targets = [window.target or window for window in windows]
    sides = windows if layers[0].kind == "self" else targets, targets if layers[0].kind == "causal" else windows
    sides = sides if what not in {"key", "value"} else sides[1:]
    dims = ("query", "key") if what in {"weights", "scores"} else ("position", "width")
    coords: dict[str, Any] = layer_coordinates(layers)
    coords["source"] = "window", np.array([window.source for window in windows], dtype=object)
    coords["length"] = "window", np.array(list(map(len, sides[0])))
    for dim, named, size in zip(dims, sides, values.shape[3:], strict=False):
        if dim != "width":
            rows = [[*side.tokens, *[""] * (size - len(side))] for side in named]
            coords[f"{dim}_token"] = ("window", dim), np.array(rows, dtype=object)
    coords["head"] = np.arange(values.shape[2]) if head is None else [head]
    return xr.DataArray(values, coords, ("window", "layer", "head", *dims), what)
