"""The second method of capture: weights returned by a model's own eager attention, read by forward hooks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

import torch
from torch import Tensor, nn

from attnscope.capture import families
from attnscope.capture.borrow import implementations, restore
from attnscope.capture.watch import Observer, Site, Watch, passes_of
from attnscope.kernels.call import AttentionCall, call_of_weights
from attnscope.support.errors import AttnscopeError, explaining
from attnscope.support.state import replaced

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    Path = tuple[int, ...]  # where in what a module returns, tuples within tuples

_SUM = {torch.float16: 1e-2, torch.bfloat16: 5e-2}  # what rounding may take from a row's 1, or add to it
_USUAL_SUM = 1e-3
_FOUR = 4  # batch, head, query, key
_EAGER, _ASKED = "eager", "output_attentions"


class UncapturedError(AttnscopeError):
    """One of the two methods does not capture a model; the other may."""


@dataclass(frozen=True)
class EagerWay:
    """Modules of a model that return weights, and the names and kinds of their calls."""

    places: Mapping[str, Path]  # maps names of modules to the path of the weights within their output
    # the attention module of each call of a forward pass, and ``self``, ``causal`` or ``cross``
    names: tuple[str, ...]
    kinds: tuple[str, ...]


@contextmanager
def with_weights(model: PreTrainedModel, way: EagerWay, observer: Observer) -> Generator[None]:
    """Pass every attention call of `model` to ``observer(site, call)``, as weights without queries."""
    with eager(model), passes_of(model, observer, dict(model.named_modules())) as watch:
        # weights given on to outer modules are replaced there, or all layers' matrices would stay in memory
        taken: list[ref[Tensor]] = []

        def take(name: str) -> Any:
            def hook(module: nn.Module, _: Any, output: Any) -> Any:
                tensor = _at(output, way.places[name], name)
                weights = as_weights(module, tensor, watch.tokens)
                if not families.is_attention(module) and not is_like_weights(weights):
                    return None  # a dropout may also be applied to other tensors
                _observe(watch, way, weights)
                taken.append(ref(tensor))
                return (
                    _without(output, taken) if families.is_attention(module) else None
                )  # a softmax gives it to the layer

            return hook

        def let_go(_: nn.Module, __: Any, output: Any) -> Any:
            return _without(output, taken)

        def count(*_: Any) -> None:
            taken.clear()
            if watch.calls != len(way.names):
                raise AttnscopeError(
                    f"{type(model).__name__} has {watch.calls} attention calls on this text and {len(way.names)} on "
                    "the first one. The calls of a model must not depend on the text"
                )

        with ExitStack() as hooks:
            for name, module in model.named_modules():
                if name in way.places:
                    hooks.enter_context(module.register_forward_hook(take(name), prepend=True))
                elif any(source.startswith(f"{name}.") for source in way.places) and name:
                    hooks.enter_context(module.register_forward_hook(let_go, prepend=True))
            hooks.enter_context(model.base_model.register_forward_hook(count))
            yield


@contextmanager
def eager(model: PreTrainedModel) -> Generator[None]:
    """Let a model attend eagerly and return its weights, and restore it afterwards."""
    before = implementations(model.modules())

    def ask(start: nn.Module) -> Any:
        signature = inspect.signature(start.forward)
        takes = any(one.name == _ASKED or one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
        requested = ({_ASKED: True} if takes else {}) | families.without_cache(start)

        def hook(_: nn.Module, arguments: Any, options: dict[str, Any]) -> Any:
            passed = signature.bind(*arguments, **options).arguments
            return arguments, {name: value for name, value in requested.items() if name not in passed} | options

        return start.register_forward_pre_hook(hook, with_kwargs=True)

    with ExitStack() as undo:
        undo.callback(restore, before)
        for config, _ in before:  # each layer looks there; set_attn_implementation leaves out models off the registry
            config._attn_implementation = _EAGER  # noqa: SLF001
        for start in {model, model.base_model}:
            undo.enter_context(ask(start))
        yield


def _observe(watch: Watch, way: EagerWay, weights: Tensor) -> None:
    if watch.calls >= len(way.names):
        raise AttnscopeError(
            f"a pass has more attention calls than the first one ({len(way.names)}). The calls of a model must not "
            "depend on the text"
        )
    site = Site(watch.calls, way.names[watch.calls], way.kinds[watch.calls])
    total = weights.sum(-1, keepdim=True)
    if not sums_to_one(weights, total):
        wrong = total[((total - 1).abs() > _USUAL_SUM) & (total != 0)]
        raise UncapturedError(
            f"layer {site.index} ({site.name}): the weights of a row sum to {float(wrong.flatten()[0]):.4f}, not to 1"
        )
    watch.observe(site, call_of_weights(weights), reported=total, compute=lambda: total)


def is_like_weights(tensor: Tensor) -> bool:
    """Whether a tensor has the shape of weights, no negative values, and rows that sum to 1 or 0."""
    if tensor.ndim != _FOUR or not tensor.is_floating_point() or tensor.numel() == 0:
        return False
    return bool((tensor >= 0).all()) and bool(tensor.any()) and sums_to_one(tensor)


def sums_to_one(weights: Tensor, total: Tensor | None = None) -> bool:
    """Whether each row of weights sums to 1 or 0; NaN is checked elsewhere."""
    total = weights.sum(-1, keepdim=True) if total is None else total
    return not bool((((total.float() - 1).abs() > _SUM.get(weights.dtype, _USUAL_SUM)) & (total != 0)).any())


def _at(output: Any, path: Path, name: str) -> Tensor:
    """The weights at a path within the output of a module."""
    for index in path:
        if not isinstance(output, tuple) or index >= len(cast("tuple[Any, ...]", output)):
            raise UncapturedError(f"{name} returns weights in only some of its calls")
        output = output[index]
    return output


def _without(output: Any, taken: list[ref[Tensor]]) -> Any:
    """An output whose weights are replaced by an expanded zero, which takes no memory."""
    if isinstance(output, Tensor):
        # by identity: an equal tensor may be another layer's
        gone = any(output_of() is output for output_of in taken)
        return output.new_zeros(()).expand(output.shape) if gone else output
    if type(output) is tuple:
        return tuple(_without(part, taken) for part in cast("tuple[Any, ...]", output))
    return output


def future_of(call: AttentionCall) -> float:
    """The largest weight of a row on later tokens."""
    return float(cast("Tensor", call.bias).exp().triu(1).sum(-1).max())


_TOKENS = 64  # tokens of a short text
_STEPS = 16  # operations between a softmax and the output of a module


@dataclass(eq=False)
class _ReturnedWeights:
    """Weights that a module returned, in the order in which modules returned them."""

    source: str
    place: Path
    returned: Tensor
    weights: Tensor
    attention: str  # the attention module
    is_cross: bool
    is_of_attention: bool = False


def eager_way(model: PreTrainedModel, inputs: dict[str, Any]) -> EagerWay:
    """Find the modules that return a model's weights, on the first tokens of the first text."""
    name = type(model).__name__
    for path, module in model.named_modules():
        reason = families.why_no_weights(module)
        if reason is not None:
            raise UncapturedError(f"{name} has no weights from token to token ({path}): {reason}")
    short = _short(inputs)
    tokens = short["input_ids"].shape[1] if "input_ids" in short else None
    seen, silent = _shown(model, short, tokens, frozenset())
    if silent:  # LXMERT requests a module's weights in only some calls: the dropout within always has them
        seen, _ = _shown(model, short, tokens, silent)
    return EagerWay(
        {matrix.source: matrix.place for matrix in seen},
        tuple(matrix.attention for matrix in seen),
        tuple(_kind(matrix, is_cross=matrix.is_cross) for matrix in seen),
    )


def _shown(
    model: PreTrainedModel, short: dict[str, Tensor], tokens: int | None, silent: frozenset[str]
) -> tuple[list[_ReturnedWeights], frozenset[str]]:
    """The checked weights of one pass, and the modules that return weights in only some calls."""
    name = type(model).__name__
    with (
        explaining(f"{name} fails when it attends eagerly", "Its weights cannot be captured"),
        eager(model),
        _gathering(model, tokens, silent) as (seen, answers),
        torch.enable_grad(),
        _with_graph(model),
    ):
        output = model(**short)
        if not seen:
            raise UncapturedError(f"{name} returns no attention weights: no rows sum to 1")
        # weights that do not determine the output (Falcon without eager attention)
        reached = _nodes([tensor for field, tensor in _fields(output) if "attentions" not in field])
        for matrix in seen:
            node: Any = matrix.returned.grad_fn
            for _ in range(_STEPS):
                if node is None or "Softmax" in node.name() or node in reached:
                    break
                # dropout, a product or a change of type after the softmax: back towards it
                node = next((before for before, _ in node.next_functions if before is not None), None)
            if node not in reached:
                raise UncapturedError(f"{name} returns weights that it does not use ({matrix.attention})")
    for field, tensor in _fields(output):  # the model's own ``output_attentions=True``
        if "attentions" not in field or not is_like_weights(tensor.detach()):
            continue  # SqueezeBERT returns scores
        fitting = [matrix for matrix in seen if _is_reported(tensor, matrix)]
        if not fitting:
            raise UncapturedError(f"{name} reports attention ({field.strip()}) that none of its modules returns")
        for matrix in fitting if "cross" in field else ():
            matrix.is_cross = True
    return seen, frozenset(name_of_module for name_of_module, returned in answers.items() if len(returned) > 1)


def _kind(matrix: _ReturnedWeights, *, is_cross: bool) -> str:
    """Kind of a layer; causal if it never attends to later tokens."""
    queries, keys = matrix.weights.shape[-2:]
    # triu(1) is what a causal mask hides: later tokens alone
    looks_back = queries == keys and queries > 1 and not bool(matrix.weights.triu(1).any())
    return "cross" if is_cross else "causal" if looks_back else "self"


def _short(inputs: dict[str, Any]) -> dict[str, Any]:
    """The first tokens of the first text; other inputs are unchanged."""
    if "input_ids" not in inputs:
        return inputs
    longest = inputs["input_ids"].shape[1]
    return {
        name: tensor[:1, :_TOKENS] if name.endswith(("input_ids", "attention_mask")) else tensor[:1]
        for name, tensor in inputs.items()
        if longest
    }


@contextmanager
def _gathering(
    model: PreTrainedModel, tokens: int | None, silent: frozenset[str]
) -> Generator[tuple[list[_ReturnedWeights], dict[str, set[bool]]]]:
    """Weights that attention modules return (except silent ones), or else modules within them (a softmax)."""
    seen: list[_ReturnedWeights] = []
    answers: dict[str, set[bool]] = {}
    running: list[tuple[str, bool, int]] = []  # attention modules, whether they look across, what was found before

    def enter(name: str) -> Any:
        def hook(_: nn.Module, __: Any, arguments: dict[str, Any]) -> None:
            running.append((name, families.other_states(arguments) is not None, len(seen)))

        return hook

    def look(name: str) -> Any:
        def hook(module: nn.Module, _: Any, output: Any) -> None:
            if not running:
                return
            attention = running[-1][0]
            cross = any(is_cross for _, is_cross, _ in running)
            returned: list[_ReturnedWeights] = []
            for place, tensor in () if name in silent else _tensors(output):
                weights = as_weights(module, tensor, tokens)
                if is_like_weights(weights.detach()):
                    returned.append(_ReturnedWeights(name, place, tensor, weights, attention, cross))
            if families.is_attention(module):
                before = running.pop()[2]
                answers.setdefault(name, set()).add(bool(returned))
                inner = [matrix for matrix in seen[before:] if matrix.is_of_attention]
                if returned or inner:  # inner modules count only if nothing else is found
                    seen[before:] = inner
                for matrix in returned:
                    matrix.is_of_attention = True
            seen.extend(matrix for matrix in returned if not any(_is_one(matrix, other) for other in seen))

        return hook

    within = tuple(f"{name}." for name, module in model.named_modules() if families.is_attention(module))
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if families.is_attention(module):
                hooks.enter_context(module.register_forward_pre_hook(enter(name), with_kwargs=True))
            if families.is_attention(module) or name.startswith(within):
                hooks.enter_context(module.register_forward_hook(look(name)))
        yield seen, answers


def _is_one(matrix: _ReturnedWeights, other: _ReturnedWeights) -> bool:
    """Whether two weights are the same tensor, or one is a copy by an enclosing module."""
    return matrix.returned.data_ptr() == other.returned.data_ptr() or (
        other.source.startswith(f"{matrix.source}.") and _same(matrix.weights, other.weights)
    )


def _tensors(output: Any, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    if isinstance(output, Tensor):
        yield path, output
    elif type(output) is tuple:
        for index, part in enumerate(cast("tuple[Any, ...]", output)):
            yield from _tensors(part, (*path, index))


def _same(tensor: Tensor, other: Tensor) -> bool:
    return tensor.shape == other.shape and torch.equal(tensor, other.to(tensor.device))  # layers may be on several


@contextmanager
def _with_graph(model: PreTrainedModel) -> Generator[None]:
    """Build the autograd graph, so that outputs can be traced to their sources."""
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters() if parameter.is_floating_point()]
    try:
        for parameter, _ in before:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter, wanted in before:
            parameter.requires_grad_(wanted)


def _nodes(outputs: list[Tensor]) -> set[Any]:
    """Everything in the graph of some outputs."""
    reached: set[Any] = set()
    left: list[Any] = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    while left:
        node = left.pop()
        if node not in reached:
            reached.add(node)
            left.extend(before for before, _ in node.next_functions if before is not None)
    return reached


def _fields(output: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a model's output, with the name of its field."""
    if isinstance(output, Tensor):
        yield name, output
    elif hasattr(output, "items"):
        for field, part in output.items():
            yield from _fields(part, f"{name} {field}")
    elif isinstance(output, (tuple, list)):
        for part in cast("tuple[Any, ...]", output):
            yield from _fields(part, name)


def _is_reported(tensor: Tensor, matrix: _ReturnedWeights) -> bool:
    """Whether a tensor equals captured weights: as returned, in the usual order, or without a prompt."""
    returned = matrix.returned
    if tensor.data_ptr() == returned.data_ptr() or _same(tensor, returned) or _same(tensor, matrix.weights):
        return True
    if tensor.numel() == returned.numel():
        return _same(tensor.flatten().sort().values, returned.flatten().sort().values)
    queries, keys = tensor.shape[-2:]
    return _same(tensor, matrix.weights[..., -queries:, -keys:])


_DIMENSIONS = {"heads last": 4, "heads in batch": 3, "band": 4, "blocks": 5}


def as_weights(module: nn.Module, tensor: Tensor, tokens: int | None) -> Tensor:
    """Weights as ``(batch, head, query, key)``, without the padding that a module adds."""
    layout = families.weights_layout(module)
    if layout is None or tensor.ndim != _DIMENSIONS[layout]:
        return tensor
    if layout == "heads last":  # (query, key, batch, head)
        return tensor.permute(2, 3, 0, 1)
    if layout == "heads in batch":  # (batch x head, query, key)
        return tensor.unflatten(0, (-1, families.reported_heads(module)[0]))
    if layout == "band":  # (batch, query, head, offset)
        return band_as_matrix(tensor.transpose(1, 2))[..., :tokens, :tokens]
    # (batch, block, head, query, key of three blocks)
    return blocks_as_matrix(tensor.transpose(1, 2))[..., :tokens, :tokens]


def band_as_matrix(band: Tensor) -> Tensor:
    """Spread ``(batch, head, query, offset)``, offsets from -w to w, over ``(batch, head, query, key)``."""
    *_, queries, width = band.shape
    reach = width // 2
    key = torch.arange(queries, device=band.device)[:, None] + torch.arange(width, device=band.device)
    wide = band.new_zeros(*band.shape[:-1], queries + 2 * reach)
    wide.scatter_(-1, key.expand(band.shape), band)
    return wide[..., reach : reach + queries]


def blocks_as_matrix(blocks: Tensor) -> Tensor:
    """Spread ``(batch, head, block, query, key)``, keys of the block before, its own and the next, over the text."""
    batch, heads, count, size, _ = blocks.shape
    wide = blocks.new_zeros(batch, heads, count, size, (count + 2) * size)
    for block in range(count):
        wide[:, :, block, :, block * size : (block + 3) * size] = blocks[:, :, block]
    return wide.flatten(2, 3)[..., size:-size]


Attend = Callable[..., tuple[Tensor, None]]


@contextmanager
def disentangled(modules: Iterable[nn.Module], attend: Attend) -> Generator[None]:
    """Let the layers of DeBERTa (v1, v2 and v3) call `attend`, as layers of models on the registry do."""
    with ExitStack() as hooks:
        for module, version in families.disentangled_modules(modules):
            layer = partial(_first if version == 1 else _second, module, attend)
            hooks.enter_context(replaced(vars(module), forward=layer))
        yield


def _first(
    module: Any, attend: Attend, hidden_states: Tensor, attention_mask: Tensor, _: bool = False, **named: Any
) -> tuple[Tensor, None]:
    """Attend as DeBERTa's first version: one matrix for queries, keys and values, whose queries are scaled first."""
    query, key, value = module.transpose_for_scores(module.in_proj(hidden_states)).chunk(3, -1)
    query = query + module.transpose_for_scores(module.q_bias[None, None])
    value = value + module.transpose_for_scores(module.v_bias[None, None])
    terms = 1 + len(module.pos_att_type)
    query = query * (query.shape[-1] * terms) ** -0.5
    bias = None
    if module.relative_attention and module.pos_att_type:
        distances = module.pos_dropout(named.get("rel_embeddings"))
        bias = module.disentangled_att_bias(query, key, named.get("relative_pos"), distances, terms)
    output, _weights = attend(
        module, query, key, value, attention_mask.bool(), scaling=1.0, is_causal=False, position_bias=bias
    )
    return output.flatten(2), None


def _second(
    module: Any, attend: Attend, hidden_states: Tensor, attention_mask: Tensor, _: bool = False, **named: Any
) -> tuple[Tensor, None]:
    """Attend as DeBERTa's second and third version: a matrix each."""
    heads = module.num_attention_heads
    asking = hidden_states if named.get("query_states") is None else named["query_states"]
    projected = (module.query_proj(asking), module.key_proj(hidden_states), module.value_proj(hidden_states))
    flat = [module.transpose_for_scores(states, heads) for states in projected]
    terms = 1 + ("c2p" in module.pos_att_type) + ("p2c" in module.pos_att_type)
    bias = None
    if module.relative_attention and terms > 1:
        distances = module.pos_dropout(named.get("rel_embeddings"))
        bias = module.disentangled_attention_bias(flat[0], flat[1], named.get("relative_pos"), distances, terms)
        bias = bias.view(-1, heads, *bias.shape[-2:])
    query, key, value = (table.view(-1, heads, *table.shape[-2:]) for table in flat)
    scaling = (query.shape[-1] * terms) ** -0.5
    output, _weights = attend(
        module, query, key, value, attention_mask.bool(), scaling=scaling, is_causal=False, position_bias=bias
    )
    return output.flatten(2), None
