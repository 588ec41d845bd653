"""Check before a run that the captured attention reproduces the model's own output."""

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, TypeVar

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

from attnscope.capture import families
from attnscope.capture.borrow import implementations, is_own_hook
from attnscope.capture.eager import UncapturedError, eager_way, future_of
from attnscope.capture.forward import check_finite, check_ids, forward, run_body
from attnscope.capture.functional import Softmaxes, softmaxes_of
from attnscope.capture.placement import device_of, in_memory, is_empty, parameters_of, plain
from attnscope.capture.watch import Site, way_of
from attnscope.capture.watching import capture_of, only_weights, watching
from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import measure
from attnscope.kernels.full import attend_in_full
from attnscope.kernels.positions import LearnedPositions
from attnscope.support.errors import AttnscopeError, explaining, reason_of
from attnscope.support.state import own_state, random_state, same_random_numbers

Inputs = dict[str, Any]

T = TypeVar("T")

# Largest difference of outputs, as a share of the largest output, that the order of sums can cause in each dtype.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
# Tokens that are checked of a longer text, of which the last few: a prime, which no other dimension has.
_CHECKED, _LAST = 31, 8
_NUMBERS = 1 << 20  # of outputs that are compared at once
_ROWS = 128  # rows of each head whose weights are checked
_WEIGHTS = 1 << 22  # of several heads, at once


class OtherOutputError(UncapturedError):
    """The captured attention does not reproduce the model's output."""


@own_state()
@torch.no_grad()
def verify(
    model: PreTrainedModel,
    inputs: dict[str, Any],
    valid: Tensor | None = None,
    *,
    text: str = "the first window",
    cross_only: bool = False,
    weights_suffice: bool = False,
    looks_back: bool = True,
) -> list[Site]:
    """Check on one batch, once for each state of a model, that the captured attention is its own; return its sites."""
    if is_empty(model):  # of a plan, where nothing can be computed
        from attnscope.capture.outline import outlined

        return outlined(deepcopy(model))
    way = way_of(model)
    if way.eager is not None and not weights_suffice:
        raise AttnscopeError(only_weights(model))

    def found(inputs: Inputs, valid: Tensor | None) -> list[Site]:
        check = partial(_verified, model, inputs, valid, text, looks_back=looks_back)
        find = partial(_find_way, model, inputs, check, cross_only=cross_only, weights_suffice=weights_suffice)
        return once_for_state(model, inputs, ("sites", cross_only, looks_back), find)

    sites: list[Site] = []
    if _is_long_text(model, inputs):
        check_ids(model, inputs, lambda _: text)
        with suppress(AttnscopeError):  # rejected only with the whole text
            sites = found(
                {name: _ends(value) for name, value in inputs.items()}, None if valid is None else _ends(valid)
            )
    sites = sites or found(inputs, valid)
    way.calls = len(sites)
    return sites


def _is_long_text(model: PreTrainedModel, inputs: Inputs) -> bool:
    """Whether inputs are token ids and masks of texts of which a part is verified."""
    tensors = [value for value in inputs.values() if isinstance(value, Tensor)]
    if not tensors or len(tensors) < len(inputs) or any(tensor.ndim != _MATRIX for tensor in tensors):
        return False
    longest = max(tensor.shape[1] for tensor in tensors)
    return tokens_verified(model, longest) < longest


def tokens_verified(model: PreTrainedModel, tokens: int) -> int:
    """How many tokens of a text are verified: all, if the model may have a distance beyond the first few.

    It may be a setting, or in the code of a model that is not in transformers.
    """
    whole = families.may_have_distances(model, _CHECKED, tokens) or families.has_other_code(model)
    return tokens if whole else min(tokens, _CHECKED)


def _ends(tokens: Tensor) -> Tensor:
    """The first and the last tokens: a head may look for the last (BART, Llama)."""
    return tokens if tokens.shape[1] <= _CHECKED else torch.cat([tokens[:, : _CHECKED - _LAST], tokens[:, -_LAST:]], 1)


def _find_way(
    model: PreTrainedModel, inputs: Inputs, check: Callable[..., list[Site]], *, cross_only: bool, weights_suffice: bool
) -> list[Site]:
    """Try the methods of capture, the cheapest first, until one reproduces the model's output."""
    way = way_of(model)
    before = way.products, way.masks_written_out
    failed: list[AttnscopeError] = []
    # a layer may need its mask, or may call PyTorch's functions itself
    ways = product(*(sorted({setting, True}) for setting in before)) if way.eager is None else [before]
    for products, written_out in ways:
        if written_out != before[1] and not isinstance(failed[-1], OtherOutputError):
            continue
        way.products, way.masks_written_out = products, written_out
        try:
            sites = check(cross_only=cross_only and way.eager is None)
            break
        except AttnscopeError as error:
            if way.eager is not None or (not failed and not isinstance(error, UncapturedError)):
                raise
            failed.append(error)
    else:
        way.products, way.masks_written_out = before
        if not weights_suffice:
            raise failed[0]
        try:
            way.eager = eager_way(model, inputs)
            sites = check(cross_only=False)
        except AttnscopeError as second:
            way.eager = None
            raise AttnscopeError(
                f"{reason_of(failed[0])}.\nIts eager weights fail too: {reason_of(second)}"
            ) from second
    return sites


def once_for_state(model: PreTrainedModel, inputs: Mapping[str, Any], name: Hashable, find: Callable[[], T]) -> T:
    """The result of `find`, which depends on the model and its inputs: found once, until the model changes."""
    if any(parameter.is_meta for parameter in model.parameters()):  # to read them takes as long as a pass
        return find()
    way, state = way_of(model), _state_of(model)
    if way.state != state:
        way.state, way.results = state, {}
    key = name, _forms_of(inputs)
    if key not in way.results:
        way.results[key] = find()
    return way.results[key]


def _state_of(model: PreTrainedModel) -> tuple[Any, ...]:
    """All of a model that a check depends on: modules with code and settings, weights by their sums, hooks."""
    modules = list(model.modules())
    settings = [(name, value) for one in modules for name, value in vars(one).items() if isinstance(value, _PLAIN)]
    # the function below a bound method, which is a new object at each access
    code = [id(getattr(module.forward, "__func__", module.forward)) for module in modules]
    weights = [
        (tensor.dtype, float(plain(tensor).detach().sum(dtype=torch.float32))) for _, tensor in parameters_of(model)
    ]
    every = [vars(module)[kind] for module in modules for kind in ("_forward_hooks", "_forward_pre_hooks")]
    hooks = [number for of_one in every for number, hook in of_one.items() if not is_own_hook(hook)]
    attention = [implementation for _, implementation in implementations(modules)]
    return str(model.config), settings, attention, device_of(model), list(map(id, modules)), code, weights, hooks


_PLAIN = (bool, int, float, str)  # settings that a caller may change


def _forms_of(inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The forms of inputs: of tokens their number, of all else the numbers too."""
    return tuple(
        (name, value.shape, None if name.endswith("input_ids") else value.cpu().double().numpy().tobytes())
        if isinstance(value, Tensor)
        else (name, repr(value))
        for name, value in inputs.items()
    )


def _verified(
    model: PreTrainedModel, inputs: Inputs, valid: Tensor | None, text: str, *, cross_only: bool, looks_back: bool
) -> list[Site]:
    name = type(model).__name__
    sites: list[Site] = []
    by_weights = capture_of(model) != "registry"

    def observe(site: Site, call: AttentionCall) -> Tensor:
        seen.update(running[-1:])  # the innermost: a whole decoder may be called attention (Mask2Former)
        site = site if looks_back else replace(site, kind="self")
        sites.append(replace(site, heads=call.query.shape[1]))
        softmaxes.add(call)
        if call.bias is not None:
            way_of(model).has_bias = True
        where = f"{name}, layer {site.index} ({site.name})"
        output, _ = measure(call, Need())
        if by_weights or way_of(model).products:
            reported = families.reported_heads(model.get_submodule(site.name))
            if reported and call.query.shape[1] not in reported:
                raise UncapturedError(
                    f"{where} has weights of {call.query.shape[1]} heads, but {reported[0]} heads in its settings, so "
                    "they are not token-to-token weights of heads"
                )
        if by_weights:
            _check_future(where, site, future_of(call))
        else:
            _check_rows(where, site, call, output)
        return output

    def called(_: int) -> str:
        return text

    check_ids(model, inputs, called)
    way_of(model).has_bias = by_weights
    advice = "Do config.json and the tokenizer belong to these weights?"
    if getattr(model, "is_quantized", False):  # some layers do not have the sizes that a device's products need
        advice = "Its quantised layers may not suit this device: try another dtype (--dtype), or another device"
    with attention_modules(model, cross_only=cross_only) as (running, ran):
        seen: set[str] = set()
        with explaining(f"{name} fails on the first window", advice), same_random_numbers():
            before = random_state()
            eager = model(**families.without_cache(model) | inputs)
            way_of(model).draws = random_state() != before
        ran.clear()
        with (
            _captured(f"{name} fails on the first window", advice),
            watching(model, observe, weights_suffice=True),
            softmaxes_of(model) as softmaxes,
            same_random_numbers(),
        ):
            output_of_capture = forward(model, inputs, called, lambda _: valid)
    if not sites:
        raise _no_calls(model)
    unseen = families.unrelated(sorted(ran - seen), seen)
    if unseen:
        raise UncapturedError(
            f"{name} has an attention layer that was not captured ({unseen[0]}, of class "
            f"{type(model.get_submodule(unseen[0])).__name__}), so its statistics would be incomplete"
        )
    by_hand = [] if cross_only else _attention_by_hand(model, inputs, softmaxes, seen)
    if by_hand:
        raise AttnscopeError(
            f"{name} computes a softmax over all keys in {by_hand[0] or 'its own forward pass'} (of class "
            f"{type(model.get_submodule(by_hand[0])).__name__}), which is not captured, so the statistics of its "
            "attention would be incomplete. Let it call transformers' attention registry, or use attnscope.watch, "
            "which measures the other layers"
        )
    # the model's own attention is the independent witness: nothing is measured that does not reproduce it
    expected = families.main_output(eager)
    check_finite(f"{name} with its own attention", expected, called, valid)
    # transformers' eager attention takes its softmax in single precision
    # its rounding would else be taken for another output
    single = output_of_capture.dtype == torch.float64 and getattr(model.config, "_attn_implementation", None) == "eager"
    _check_output(name, expected, output_of_capture.float() if single else output_of_capture, valid)
    return sites


def _attention_by_hand(model: PreTrainedModel, inputs: Inputs, softmaxes: Softmaxes, seen: set[str]) -> list[str]:
    """Modules that seem to attend by hand: with a softmax over as many keys as captured calls, whatever the length."""
    points = [name for name, module in model.named_modules() if families.takes_points(module)]
    names = families.unrelated(softmaxes.by_hand(), [*seen, *points, *pooling_heads(model)])
    tensors = [value for value in inputs.values() if isinstance(value, Tensor)]
    if not names or any(tensor.is_floating_point() or tensor.ndim != _MATRIX for tensor in tensors):
        return sorted(names)
    # a router may have as many experts as the text has tokens: leave out the second token
    shorter = {
        name: torch.cat([value[:, :1], value[:, 2:]], 1) if isinstance(value, Tensor) else value
        for name, value in inputs.items()
    }

    def observe(_: Site, call: AttentionCall) -> None:
        others.add(call)

    with watching(model, observe, weights_suffice=True), softmaxes_of(model) as others, same_random_numbers():
        model(**shorter)
    return sorted({*names} & others.by_hand())


def _no_calls(model: PreTrainedModel) -> AttnscopeError:
    name = type(model).__name__
    if not any(families.is_attention(module) for module in model.modules()):
        return AttnscopeError(
            f"{name} has no attention (no module of that name), so there is nothing to measure. Choose another model"
        )
    return UncapturedError(
        f"{name} does not use transformers' attention registry, so its queries, keys and values cannot be captured. "
        "Choose a model on the registry (BERT, RoBERTa, GPT-2, Llama, T5, ...)"
    )


@contextmanager
def _captured(what: str, advice: str) -> Generator[None]:
    """Turn an error of a model that fails only while it is captured into an `UncapturedError`."""
    try:
        with explaining(what, advice):
            yield
    except UncapturedError:
        raise
    except AttnscopeError as error:
        if isinstance(error.__cause__, Exception):
            raise UncapturedError(str(error)) from error
        raise


def pooling_heads(model: PreTrainedModel) -> list[str]:
    """Names of the heads that pool the output of a vision encoder, which are not captured."""
    return [name for name, module in model.named_modules() if families.is_pooling_head(module)]


@contextmanager
def attention_modules(model: PreTrainedModel, *, cross_only: bool) -> Generator[tuple[list[str], set[str]]]:
    """Names of the running attention modules, and of those that ran (or ran cross-attention)."""
    running: list[str] = []
    ran: set[str] = set()

    def enter(name: str, _: nn.Module, __: Any, arguments: dict[str, Any]) -> None:
        running.append(name)
        if not cross_only or families.other_states(arguments) is not None:
            ran.add(name)

    def leave(*_: Any) -> None:
        running.pop()

    aside = pooling_heads(model)
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if any(f"{name}.".startswith(f"{head}.") for head in aside):
                continue
            if families.is_attention(module) and any(parameter.ndim >= _MATRIX for parameter in module.parameters()):
                hooks.enter_context(module.register_forward_pre_hook(partial(enter, name), with_kwargs=True))
                hooks.enter_context(module.register_forward_hook(leave))
        yield running, ran


def _check_output(name: str, expected: Tensor, output: Tensor, valid: Tensor | None) -> None:
    if valid is not None and expected.ndim == 3 and expected.shape[:2] == valid.shape:  # noqa: PLR2004
        expected, output = expected[valid], output[valid]
    limit = TOLERANCE.get(output.dtype, 1e-4)
    wide = torch.promote_types(torch.promote_types(expected.dtype, output.dtype), torch.float32)
    # some numbers at a time: copies of the logits of a window would take several times their memory
    parts = zip(expected.reshape(-1).split(_NUMBERS), output.reshape(-1).split(_NUMBERS), strict=True)
    pairs = ((one.to(wide), other.to(wide)) for one, other in parts)
    norm = partial(torch.linalg.vector_norm, ord=torch.inf)
    ends = [(float(norm(one)), float(norm(one - other))) for one, other in pairs]
    largest, difference = torch.tensor(ends, dtype=torch.float64).amax(0).tolist()
    difference /= max(1e-6, largest)
    if not difference <= limit:
        raise OtherOutputError(
            f"the captured attention does not reproduce the output of {name} (largest difference {difference:.1e} of "
            f"the largest output, allowed {limit:.0e}), so part of its attention or its masks is not captured"
        )


def _check_future(where: str, site: Site, ahead: float) -> None:
    if site.kind == "causal" and ahead > 0:
        raise UncapturedError(f"{where} should be causal, but puts {ahead:.1e} of a row's weight on the future")


def _check_rows(where: str, site: Site, call: AttentionCall, output: Tensor) -> None:
    queries, keys = call.query.shape[2], call.key.shape[2]
    rows = torch.linspace(0, queries - 1, min(_ROWS, queries), device=call.query.device).long().unique()
    future = torch.arange(keys, device=rows.device) > rows[:, None]
    some = call.take(rows[None])
    captured = output[:, :, rows]
    limit = TOLERANCE.get(output.dtype, 1e-4) * max(1e-6, float(call.value.abs().max()))
    groups = max(1, _WEIGHTS // (len(call.query) * call.group * len(rows) * keys))  # at once
    for first in range(0, call.query.shape[1], groups * call.group):
        heads = slice(first, first + groups * call.group)
        expected, weights = attend_in_full(some.part(heads))
        total = weights.sum(-1)
        wrong = (total - 1).abs() > 1e-3 if call.sinks is None else total > 1 + 1e-3  # noqa: PLR2004
        empty = total == 0
        if bool((wrong & ~empty).any()):
            raise UncapturedError(
                f"{where}: the weights of a row sum to {float(total[wrong & ~empty][0]):.4f}, not to 1"
            )
        _check_future(where, site, float((weights * future).sum(-1).max()))
        if float((expected - captured[:, heads]).float().abs().max()) > limit:
            raise UncapturedError(f"{where}: the captured output differs from its weights times the values")


@torch.no_grad()
def padding_difference(
    model: PreTrainedModel, together: dict[str, Tensor], alone: Sequence[dict[str, Tensor]], *, with_head: bool = True
) -> float:
    """Largest difference between texts in one padded batch and each alone, relative to the tolerance."""
    with watching(model, lambda _, call: measure(call, Need())[0], weights_suffice=True):
        passes = (model(**inputs) if with_head else run_body(model, inputs) for inputs in (together, *alone))
        batch, *single = map(families.main_output, passes)
    largest = 0.0
    for row, expected in enumerate(single):
        length = expected.shape[1] if expected.ndim > 2 else 1  # noqa: PLR2004 (batch, position, ...), or one for a text
        padded = batch[row, :length] if expected.ndim > 2 else batch[row : row + 1]  # noqa: PLR2004
        difference = (padded.double() - expected[0].double()).abs().max()
        scale = TOLERANCE.get(expected.dtype, 1e-4) * max(1e-6, float(expected.double().abs().max()))
        largest = max(largest, float(difference.nan_to_num(torch.inf)) / scale)
    return largest


def is_causal_model(model: PreTrainedModel) -> bool:
    """Whether a model is a causal language model, by its class or by its config."""
    if model.config.is_encoder_decoder:
        return False
    named = transformers.models.auto.modeling_auto
    kind = model.config.model_type
    only = kind in named.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in named.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return only or model.can_generate()


_MATRIX, _BATCH_OF_ONE = 2, 3  # dimensions


@dataclass(frozen=True, eq=False)
class StoredPositions:
    """A table of absolute positions in a model."""

    name: str  # name of the module or parameter
    tensor: Tensor  # ``(row, width)``: the model's own memory
    # number of rows at the start without a position: RoBERTa reserves those up to its padding index, BART and OPT two,
    # and the position ids of YOSO and Nystromformer begin at 2
    reserved: int
    of_words: bool  # whether the model looks rows up by id, so that the table limits its length


def stored_positions(model: PreTrainedModel) -> Iterator[StoredPositions]:
    """Find every table of absolute positions, in the order of the model's modules."""
    for name, module in model.named_modules():
        if not families.is_position_table(name) or families.rotates_queries(module):
            continue
        weight = families.stored_rows(module)
        if not isinstance(weight, Tensor) or weight.ndim != _MATRIX:
            continue
        reserved = families.reserved_rows(module, _parent(model, name), len(weight))
        if weight.is_meta:
            with in_memory(module):
                rows: Any = families.stored_rows(module)
                weight = rows.clone()
        yield StoredPositions(name, weight, reserved, isinstance(module, (nn.Embedding, LearnedPositions)))
    for name, tensor in model.named_buffers():
        if families.is_position_table(name, buffer=True) and tensor.ndim == _MATRIX:
            yield StoredPositions(name, tensor, 0, of_words=True)
    for name, tensor in model.named_parameters():
        if not families.is_position_table(name) or families.rotates_queries(_parent(model, name)):
            continue
        if tensor.ndim == _MATRIX or (tensor.ndim == _BATCH_OF_ONE and len(tensor) == 1):
            yield StoredPositions(name, tensor.detach().view(tensor.shape[-2:]), 0, of_words=False)


def position_table_length(model: PreTrainedModel) -> int | None:
    """Number of positions in the model's position table; None without a table."""
    return min(
        (len(table.tensor) - table.reserved for table in stored_positions(model) if table.of_words), default=None
    )


def _parent(model: PreTrainedModel, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])
