"""Capture calls of PyTorch's attention functions as attention calls."""

from __future__ import annotations

import inspect
import math
import sys
import threading
import types
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, partial, wraps
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from attnscope.capture.eager import UncapturedError
from attnscope.capture.families import is_attention, is_called_attention, is_pooling_head, unrelated
from attnscope.capture.watch import Site, Watch, way_of
from attnscope.kernels.call import AttentionCall, largest_score, with_masked_keys
from attnscope.kernels.masks import forbids
from attnscope.kernels.reference import causal_mask
from attnscope.support.errors import AttnscopeError, explaining, reason_of
from attnscope.support.state import own_random_numbers, replaced

_FOUR = 4  # batch, head, position, width
_ROWS = 64  # rows of an additive mask that are checked for causality
_NAMED = inspect.signature(functional.multi_head_attention_forward)


@dataclass(frozen=True, eq=False)
class CapturedCall:
    """An attention call with its kind and padding."""

    call: AttentionCall  # its arguments
    kind: str  # ``self``, ``causal`` or ``cross``
    queries: Tensor  # ``(batch, query)``: False on padding
    keys: Tensor  # ``(batch, key)``: False on padding
    # output of PyTorch's function, ``(batch, head, query, width)``; None of ``nn.MultiheadAttention``, which mixes it
    output: Tensor | None

    def parts(self) -> Tensor:
        """``(batch, position)``: tokens that begin another part of their text: no query attends across."""
        after = self.queries[:, 1:] & self.queries[:, :-1]  # both are real tokens
        if self.call.mask is None and self.call.bias is None:
            return pad(torch.zeros_like(after), (1, 0))
        start, stop = (bound.expand(len(after), -1) for bound in self.call.visible[:2])
        # a part begins at t if no query before t sees a key from t on, and none from t on sees a key before
        empty = stop <= start
        # cummin from the right: the earliest key that this query or a later one sees
        earliest = start.masked_fill(empty, start.shape[1]).flip(1).cummin(1).values.flip(1)
        position = torch.arange(1, start.shape[1], device=start.device)
        return pad(after & (stop.cummax(1).values[:, :-1] <= position) & (earliest[:, 1:] >= position), (1, 0))


class PackedTexts:
    """Which texts of a pass consist of parts that attend to themselves alone in every layer, as packed documents do."""

    def __init__(self) -> None:
        self._parts: dict[torch.Size, Tensor] = {}  # of all layers, by shape: an encoder and a decoder may differ

    def add(self, captured: CapturedCall) -> None:
        """Add a layer."""
        if captured.kind != "cross":
            parts = captured.parts().cpu()
            self._parts[parts.shape] = parts & self._parts.get(parts.shape, parts)

    def count(self) -> int:
        """The number of such texts."""
        return max((int(parts.any(1).sum()) for parts in self._parts.values()), default=0)


def call_of_product(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: ARG001 the numbers of heads say so too
) -> AttentionCall:
    """Arguments of ``torch.nn.functional.scaled_dot_product_attention`` as an attention call."""
    _reject_dropout(dropout_p)
    if query.is_nested or key.is_nested or value.is_nested:
        raise AttnscopeError("scaled_dot_product_attention was called with nested tensors; expected padded texts")
    if query.ndim != _FOUR or key.ndim != _FOUR or value.ndim != _FOUR:
        raise AttnscopeError(
            f"scaled_dot_product_attention was called with a query of shape {tuple(query.shape)}; expected "
            "(batch, head, query, width)"
        )
    # PyTorch broadcasts texts and heads of any operand
    shared = max(key.shape[1], value.shape[1])
    batch = max(states.shape[0] for states in (query, key, value))
    query = query.expand(batch, max(query.shape[1], shared), -1, -1)
    key, value = (states.expand(batch, shared, -1, -1) for states in (key, value))
    mask = bias = None
    if attn_mask is not None:
        # masks align at their last dimensions, as PyTorch broadcasts them
        spread = attn_mask[(None,) * (_FOUR - attn_mask.ndim)]
        spread = spread.expand(*spread.shape[:2], query.shape[2], key.shape[2])
        mask, bias = (spread, None) if attn_mask.dtype == torch.bool else (None, spread)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    return with_masked_keys(AttentionCall(query, key, value, scale, is_causal, mask, bias))


def of_scaled_dot_product(output: Tensor, *arguments: Any, **options: Any) -> CapturedCall:
    """A call of ``torch.nn.functional.scaled_dot_product_attention`` with its output."""
    call = call_of_product(*arguments, **options)
    query, key, value = (side.detach() for side in (call.query, call.key, call.value))
    call = replace(call, query=query, key=key, value=value, bias=None if call.bias is None else call.bias.detach())
    return _seen(call, output)


def of_eager(output: Tensor, arguments: dict[str, Any]) -> CapturedCall:
    """A call of a model's own ``eager_attention_forward``, from its named arguments, with its output."""
    named = arguments | arguments.get("kwargs", {})
    query, key, value = (named[name].detach() for name in ("query", "key", "value"))
    mask, bias = named.get("attention_mask"), named.get("position_bias")
    if mask is not None:
        # a static cache has a mask for all its places, with keys in the first ones only
        mask = mask[..., : key.shape[2]].detach()
        if bias is not None and mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -math.inf)
    if bias is not None:
        mask = bias.detach() if mask is None else bias.detach() + mask
    call = call_of_product(query, key, value, mask, named.get("dropout") or 0.0, scale=named.get("scaling"))
    call = replace(call, softcap=named.get("softcap"), sinks=named.get("s_aux"))
    return _seen(call, output.transpose(1, 2))


def of_multi_head(*arguments: Any, **named: Any) -> CapturedCall:
    """A call of ``torch.nn.functional.multi_head_attention_forward``, the function behind ``nn.MultiheadAttention``."""
    options = arguments_of_multi_head(*arguments, **named)
    with torch.no_grad():
        call, is_cross = call_of_multi_head(options)
    query, key = options["query"], options["key"]
    tokens, more = len(query), len(key) - len(query)  # (position, batch, width), whatever `batch_first`
    if more > 0 and tokens > 1 and torch.equal(key[more:], query):
        raise AttnscopeError(
            f"nn.MultiheadAttention has {more} keys before its own tokens, so the positions of its queries are "
            "unknown. Leave these keys out, or pass the weights to attnscope.measure_weights"
        )
    return _seen(call, None, is_cross=is_cross)


def arguments_of_multi_head(*arguments: Any, **named: Any) -> dict[str, Any]:
    """Named arguments of ``torch.nn.functional.multi_head_attention_forward``, checked that all keys are tokens."""
    options = _NAMED.bind(*arguments, **named).arguments
    if options.get("training", True):
        _reject_dropout(options["dropout_p"])
    if options["bias_k"] is not None or options["add_zero_attn"]:
        raise AttnscopeError(
            "nn.MultiheadAttention has add_bias_kv or add_zero_attn, so its last keys are not tokens. Use "
            "attnscope.measure_weights for its weights without these keys"
        )
    return options


def call_of_multi_head(options: dict[str, Any]) -> tuple[AttentionCall, bool]:
    """The attention call of ``multi_head_attention_forward``, and whether it is cross-attention."""
    if options.get("static_k") is not None or options.get("static_v") is not None:
        raise AttnscopeError("nn.MultiheadAttention has static keys or values, which are not supported")
    states: list[Tensor] = [options[name] for name in ("query", "key", "value")]
    one, other = states[:2]
    # encoders pass one tensor twice, some a copy of it
    is_cross = one is not other and not (one.shape == other.shape and torch.equal(one, other))
    states = [side if side.ndim == 3 else side[:, None] for side in states]  # noqa: PLR2004
    if options.get("use_separate_proj_weight", False):
        matrices = [options[f"{name}_proj_weight"] for name in "qkv"]
    else:
        # W_Q, W_K and W_V below each other in one matrix
        matrices = options["in_proj_weight"].chunk(3)
    biases = (None,) * 3 if options["in_proj_bias"] is None else options["in_proj_bias"].chunk(3)
    query, key, value = (
        functional.linear(side, matrix, bias).unflatten(-1, (options["num_heads"], -1)).permute(1, 2, 0, 3)
        for side, matrix, bias in zip(states, matrices, biases, strict=True)
    )
    bias = None
    for name in ("attn_mask", "key_padding_mask"):
        mask: Tensor | None = options.get(name)
        if mask is None:
            continue
        if mask.dtype == torch.bool:  # True is hidden
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask, -math.inf)
        if name == "key_padding_mask":
            mask = mask.reshape(query.shape[0], 1, 1, -1)
        else:
            # a mask of PyTorch's module has texts and heads in one dimension, heads running faster
            mask = mask.unflatten(0, query.shape[:2]) if mask.ndim == 3 and len(mask) > 1 else mask  # noqa: PLR2004
            mask = mask[(None,) * (_FOUR - mask.ndim)]
        bias = mask if bias is None else bias + mask
    return call_of_product(query, key, value, bias), is_cross


def have_same_weights(one: AttentionCall, other: AttentionCall) -> bool:
    """Whether two calls share the memory of their queries, and have equal keys and masks."""
    first, second = one.query, other.query
    if not first.numel() or first.data_ptr() != second.data_ptr() or first.shape != second.shape:
        return False
    pairs = ((one.key, other.key), (one.mask, other.mask), (one.bias, other.bias))
    return (one.scale, one.causal) == (other.scale, other.causal) and all(
        a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs
    )


def sees_ahead(call: AttentionCall) -> bool:
    """Whether any query may attend to a later key; True for a single token."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    if queries == 1:
        return True
    if call.mask is None and call.positions is None:  # known without a transfer from the device
        ahead = keys > 1 and not call.causal
    else:
        ahead = bool((call.extent[1] > torch.arange(1, queries + 1, device=call.query.device)).any())
    if not ahead:
        return False
    if call.bias is None:
        return True
    rows = call.bias[..., :_ROWS, :]
    later = torch.ones(rows.shape[-2], keys, dtype=torch.bool, device=rows.device).triu(1)
    return bool((later & ~forbids(rows)).any())


def _seen(call: AttentionCall, output: Tensor | None, *, is_cross: bool = False) -> CapturedCall:
    """The call with its kind and padding: tokens that no query may attend to."""
    batch, _, queries, length = (*call.query.shape[:3], call.key.shape[2])
    allowed = torch.ones(1, 1, queries, length, dtype=torch.bool, device=call.query.device)
    if call.causal:
        allowed = causal_mask(queries, length, call.query.device)[None, None]
    if call.mask is not None:
        allowed = allowed & call.mask
    if call.bias is not None:
        allowed = allowed & ~forbids(call.bias)
    output = None if output is None else output.detach()
    keys = allowed.any(1).any(1).expand(batch, length)
    if is_cross or queries != length:
        return CapturedCall(call, "cross", keys.new_ones(batch, queries), keys, output)
    is_causal = queries > 1 and not bool(allowed.triu(1).any())
    return CapturedCall(call, "causal" if is_causal else "self", keys, keys, output)


#: Whether weights count before dropout, as they do for a monitor of training, and dropout is not rejected
before_dropout: ContextVar[bool] = ContextVar("attnscope_before_dropout", default=False)


def _reject_dropout(share: float) -> None:
    if share > 0 and not before_dropout.get():
        raise AttnscopeError(f"attention drops weights at random (dropout_p = {share:g}). Call module.eval() first")


@cache
def _original() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention as given

    # a copy of the code: `intercept_flex_attention` exchanges that of the function itself, which others have imported
    copy = types.FunctionType(given.__code__, given.__globals__, given.__name__, given.__defaults__)
    copy.__kwdefaults__ = given.__kwdefaults__
    return copy


answers: list[Callable[..., Any]] = []


@contextmanager
def intercept_flex_attention(called: Callable[[Callable[..., Any], Any, dict[str, Any]], Any]) -> Generator[None]:
    """Redirect every call of ``flex_attention`` to `called`, with the original function and the arguments."""
    from torch._dynamo.eval_frame import skip_code
    from torch.nn.attention.flex_attention import flex_attention

    function = _original()

    @torch.compiler.disable
    def answer(*args: Any, **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
            return called(function, args, options)

    before = flex_attention.__code__, flex_attention.__defaults__, flex_attention.__kwdefaults__
    answers.append(answer)
    code = inspect.unwrap(_trampoline).__code__
    skip_code(code)  # compiled code cannot be intercepted
    try:
        flex_attention.__defaults__, flex_attention.__kwdefaults__ = None, None
        flex_attention.__code__ = code
        yield
    finally:
        answers.pop()
        flex_attention.__code__, flex_attention.__defaults__, flex_attention.__kwdefaults__ = before


def _trampoline(*args: Any, **options: Any) -> Any:
    from attnscope.capture.functional import answers  # it runs with the globals of flex_attention's file

    return answers[-1](*args, **options)


def call_of_flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor] | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    **_: Any,
) -> AttentionCall:
    """Arguments of ``flex_attention`` as an attention call with its scores as bias."""
    batch, heads, queries, width = query.shape
    keys = key.shape[2]
    key, value = (states.expand(batch, -1, -1, -1).detach() for states in (key, value))
    wide = torch.promote_types(query.dtype, torch.float32)
    shared = key.repeat_interleave(heads // key.shape[1], 1).to(wide)
    scores = (width**-0.5 if scale is None else scale) * query.detach().to(wide) @ shared.mT
    if score_mod is not None:
        scores = _changed(score_mod, scores)
    mask = None
    if block_mask is not None:
        from torch.nn.attention.flex_attention import create_mask

        texts, each = (size if shape > 1 else 1 for size, shape in zip((batch, heads), block_mask.shape, strict=False))
        mask = create_mask(block_mask.mask_mod, texts, each, queries, keys, device=str(query.device))
    # width 0: the product of queries and keys adds nothing to the bias, which has the scores
    nothing = scores.new_empty(batch, heads, queries, 0), scores.new_empty(batch, heads, keys, 0)
    values = value.repeat_interleave(heads // value.shape[1], 1).to(wide)
    call = AttentionCall(*nothing, values, scale=1.0, mask=mask, bias=scores)
    return with_masked_keys(call, largest_score(query, key, width**-0.5 if scale is None else scale))


def _changed(score_mod: Callable[..., Tensor], scores: Tensor) -> Tensor:
    """Apply the module's own function, which is written for one score and its four indices, to all scores."""
    indices = [
        torch.arange(size, device=scores.device).reshape([-1 if axis == i else 1 for i in range(4)])
        for axis, size in enumerate(scores.shape)
    ]
    advice = "Pass the weights to attnscope.measure_weights"
    with torch.no_grad(), explaining("the score_mod of flex_attention does not take all scores at once", advice):
        changed = score_mod(scores, *indices)
    if changed.shape != scores.shape:
        raise AttnscopeError(
            f"the score_mod of flex_attention returns the shape {tuple(changed.shape)} for scores of shape "
            f"{tuple(scores.shape)}. {advice}"
        )
    return changed.to(scores.dtype)


@contextmanager
def products(model: nn.Module, watch: Watch) -> Generator[None]:
    """Pass calls of ``scaled_dot_product_attention`` and ``nn.MultiheadAttention`` to a watch."""
    if not way_of(model).products:
        yield
        return
    running: list[nn.Module] = []

    def leave(*_: Any) -> None:
        running.pop()

    with ExitStack() as hooks:
        for module in model.modules():
            if is_attention(module) or is_pooling_head(module):
                hooks.enter_context(module.register_forward_pre_hook(lambda module, _: running.append(module)))
                hooks.enter_context(module.register_forward_hook(leave, always_call=True))
        hooks.enter_context(_Mode(watch, running))
        yield


class _Mode(TorchFunctionMode):
    """Intercept calls of PyTorch's functions, except those of the measurement itself."""

    def __init__(self, watch: Watch, running: list[nn.Module]) -> None:
        super().__init__()
        self.watch, self.running = watch, running

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if (not self.running or any(is_pooling_head(module) for module in self.running)) or self.watch.is_observing:
            return func(*args, **options)
        try:
            if func is functional.multi_head_attention_forward:
                return self.multi_head(*args, **options)
            if func is functional.scaled_dot_product_attention:
                return self.product(*args, **options)
        except UncapturedError:
            raise
        except AttnscopeError as error:
            raise UncapturedError(reason_of(error)) from error
        return func(*args, **options)

    def multi_head(self, *arguments: Any, **named: Any) -> tuple[Tensor, None]:
        """Attend as ``nn.MultiheadAttention`` does, without the averaged weights."""
        options = arguments_of_multi_head(*arguments, **named)
        call, is_cross = call_of_multi_head(options)
        output = self.observe(call, is_cross=is_cross).permute(2, 0, 1, 3).flatten(2)
        output = functional.linear(output, options["out_proj_weight"], options["out_proj_bias"])
        return output if options["query"].ndim == output.ndim else output[:, 0], None

    def product(self, *arguments: Any, **named: Any) -> Tensor:
        compute = partial(functional.scaled_dot_product_attention, *arguments, **named)
        return self.observe(call_of_product(*arguments, **named), is_cross=False, compute=compute)

    def observe(self, call: AttentionCall, *, is_cross: bool, compute: Callable[[], Tensor] | None = None) -> Tensor:
        module = self.running[-1]
        is_cross = is_cross or id(module) in self.watch.cross or call.query.shape[2] != call.key.shape[2]
        kind = "cross" if is_cross else "self" if sees_ahead(call) else "causal"
        return self.watch.observe(Site(self.watch.calls, self.watch.names[id(module)], kind), call, compute=compute)


_FAST = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)  # modules with a fast path
_MARK = "_attnscope_watched"
_EAGER = "eager_attention_forward"


@contextmanager
def calls_inside(
    module: nn.Module, seen: Callable[[Site, CapturedCall], None], done: Callable[[int], None], lost: Callable[[], None]
) -> Generator[ModuleCalls]:
    """Pass every attention call inside `module` to `seen`, and then their number to `done`; after an error, `lost`."""
    for name, part in module.named_modules():
        where = f"{name} is" if name else "the module is"
        if isinstance(part, torch.jit.ScriptModule):
            raise AttnscopeError(f"{where} scripted, so its calls cannot be captured. Watch the original module")
        if isinstance(part, nn.DataParallel):
            raise AttnscopeError(f"{where} in DataParallel, which copies it. Watch its .module")
        if "_orig_mod" in dict(part.named_children()) or getattr(part, "_compiled_call_impl", None) is not None:
            raise AttnscopeError(
                f"{where} compiled, so its calls cannot be captured. Watch and call the module without torch.compile"
            )
        if hasattr(part.forward, _MARK):
            raise AttnscopeError(f"{where} watched already: use one attnscope.watch or HeadMonitor at a time")
    watched = ModuleCalls(seen, done, lost)
    with ExitStack() as hooks:
        for name, part in module.named_modules():
            hooks.enter_context(replaced(vars(part), forward=watched.wrap(name or type(module).__name__, part)))
        hooks.enter_context(intercept_flex_attention(watched.flex))
        hooks.enter_context(_intercept_eager(module, watched))
        yield watched


@contextmanager
def _intercept_eager(module: nn.Module, watched: ModuleCalls) -> Generator[None]:
    """Intercept the ``eager_attention_forward`` of the files of transformers' layers."""
    parts = set(module.modules())
    modules = (sys.modules.get(kind.__module__) for part in parts for kind in type(part).__mro__)
    every = (getattr(module_of_class, "__dict__", {}) for module_of_class in modules)
    files = {id(file): file for file in every if _EAGER in file}

    def seen(inner: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(inner)

        @wraps(inner)
        def eager_attention_forward(*args: Any, **options: Any) -> Any:
            returned = inner(*args, **options)
            arguments = signature.bind(*args, **options).arguments
            if watched.running and arguments.get("module") in parts:
                watched.see(of_eager(returned[0], arguments))
            return returned

        return eager_attention_forward

    with ExitStack() as hooks:
        for file in files.values():
            hooks.enter_context(replaced(file, **{_EAGER: seen(file[_EAGER])}))
        yield


class ModuleCalls:
    """The running modules, from the outermost to the innermost."""

    def __init__(
        self, seen: Callable[[Site, CapturedCall], None], done: Callable[[int], None], lost: Callable[[], None]
    ) -> None:
        self.seen, self.done, self.lost = seen, done, lost
        self.running: list[str] = []
        self.given: list[Sequence[Any]] = []  # arguments of each running module
        self.classes: dict[str, str] = {}  # class of each module
        self.attending: set[str] = set()  # modules that are called attention and ran
        self.softmaxes = Softmaxes()
        self.calls = self.thread = 0
        self.last: CapturedCall | None = None
        self.is_aside = False  # whether calls are captured elsewhere
        self.in_fast = self.in_flex = False
        self.mode = _ModuleCalls(self.see, self.note_softmax)

    def wrap(self, name: str, module: nn.Module) -> Callable[..., Any]:
        inner, self.classes[name] = module.forward, type(module).__name__
        may_be_fast = isinstance(module, _FAST)

        @wraps(inner)
        def forward(*args: Any, **options: Any) -> Any:
            if self.running and self.thread != threading.get_ident():
                raise AttnscopeError(
                    f"{name} runs in two threads at once while it is watched. Run one pass at a time, or watch a copy "
                    "for each thread"
                )
            evaluates = before_dropout.get() and not (self.running or torch.is_grad_enabled())  # or generate()
            if self.is_aside or evaluates:
                return inner(*args, **options)
            if not self.running or isinstance(module, transformers.PreTrainedModel):  # perhaps in another's prompt
                # reject a pass over cached keys: its queries would count as the first tokens of a text
                cache = cache_of(options)
                if hasattr(cache, "get_seq_length") and (
                    cached_tokens(cache) or getattr(cache, "is_compileable", False)
                ):
                    raise AttnscopeError(
                        f"{name} has a cache of keys (also the virtual tokens of prefix tuning), so "
                        "the positions of its queries are unknown. Leave it out, or call generate() within the context"
                    )
            if is_called_attention(module):
                self.attending.add(name)
            with self.within(name, [*args, *options.values()]):
                if may_be_fast and not self.in_fast and not module.training:
                    return self.twice(inner, args, options)
                return inner(*args, **options)

        setattr(forward, _MARK, True)
        return forward

    def uncaptured(self, seen: Iterable[str]) -> dict[str, str]:
        """Modules that seem to attend and ran without a captured call, with their classes.

        They are called attention, or call a softmax whose sizes are those of a captured call.
        """
        candidates = self.attending | self.softmaxes.by_hand()
        names = [name for name in self.classes if name in candidates]
        return {name: self.classes[name] for name in unrelated(names, seen)}

    def note_softmax(self, weights: Tensor, dim: int) -> None:
        self.softmaxes.note(weights, dim, [name for name in self.running if self.classes.get(name) != "Softmax"])

    @contextmanager
    def within(self, name: str, given: Sequence[Any] = ()) -> Generator[None]:
        if self.running:
            self.running.append(name)
            self.given.append(given)
            try:
                yield
            finally:
                self.running.pop()
                self.given.pop()
            return
        self.thread = threading.get_ident()
        self.running, self.given, self.calls = [name], [given], 0
        try:
            with self.mode:
                yield
        except BaseException as error:
            self.lost()
            if type(error).__module__ == "torch._dynamo.exc" and not self.in_flex:  # it cannot compile the hooks
                raise AttnscopeError(
                    f"{name} calls a compiled function, whose attention cannot be captured. Use the function without "
                    "torch.compile"
                ) from error
            raise
        else:
            self.done(self.calls)
        finally:
            self.running, self.given, self.last = [], [], None

    def twice(self, inner: Callable[..., Any], args: Any, options: dict[str, Any]) -> Any:
        """Run a module once for the observer, and once without the mode, as its owner would."""
        self.in_fast = True
        try:
            with own_random_numbers(), torch.no_grad():
                inner(*args, **options)
            self.mode.__exit__(None, None, None)
            try:
                return inner(*args, **options)
            finally:
                self.mode.__enter__()
        finally:
            self.in_fast = False

    def flex(self, function: Callable[..., Any], args: Any, options: dict[str, Any]) -> Any:
        """Run ``flex_attention`` without the mode, which it does not support, and capture its call."""
        if not self.running:
            return function(*args, **options)
        self.mode.__exit__(None, None, None)
        self.in_flex = True  # an error here also occurs without hooks
        try:
            output = function(*args, **options)
            self.in_flex = False
            self.see(_seen(call_of_flex(*args, **options), output[0] if isinstance(output, tuple) else output))
        finally:
            self.mode.__enter__()
        return output

    def see(self, call: CapturedCall) -> None:
        name = self.running[-1]
        last, self.last = self.last, replace(call, kind=name)
        if last is not None and last.kind == name and have_same_weights(last.call, call.call):
            return  # the second half of the values (DiffLlama) belongs to the same layer
        if call.kind == "cross":
            _reject_own_keys(name, call.call, self.given)
        self.softmaxes.add(call.call)
        site = Site(self.calls, name, call.kind)
        self.calls += 1
        self.seen(site, call)


class Softmaxes:
    """Softmaxes that modules compute themselves: those over as many keys as a captured call may be attention."""

    def __init__(self) -> None:
        self._captured: set[tuple[int, int]] = set()  # numbers of queries and keys of captured calls
        self._noted: set[tuple[str, int, int]] = set()  # modules, with the number of keys and any other size

    def add(self, call: AttentionCall) -> None:
        """Note a captured call."""
        self._captured.add((call.query.shape[2], call.key.shape[2]))

    def note(self, weights: Tensor, dim: int, running: Sequence[str]) -> None:
        """Note a softmax over dimension `dim` in the innermost of the running modules."""
        if running and weights.ndim > 2:  # noqa: PLR2004
            others = list(weights.shape)
            keys = others.pop(dim)
            self._noted |= {(running[-1], size, keys) for size in others[1:]}  # the first one is the batch

    def by_hand(self) -> set[str]:
        """Modules with a softmax whose sizes are those of a captured call."""
        return {name for name, queries, keys in self._noted if (queries, keys) in self._captured}


@contextmanager
def softmaxes_of(model: nn.Module) -> Generator[Softmaxes]:
    """Note the softmaxes of a model's modules; the caller adds captured calls."""
    softmaxes, running = Softmaxes(), list[str]()
    measuring = threading.get_ident()  # passes of other threads are rejected, and leave what they never entered

    def enter(name: str, *_: Any) -> None:
        if threading.get_ident() == measuring:
            running.append(name)

    def leave(*_: Any) -> None:
        if threading.get_ident() == measuring:
            running.pop()

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if not isinstance(module, nn.Softmax):  # its owner attends
                hooks.enter_context(module.register_forward_pre_hook(partial(enter, name)))
                hooks.enter_context(module.register_forward_hook(leave, always_call=True))
        hooks.enter_context(_SoftmaxCalls(lambda weights, dim: softmaxes.note(weights, dim, running)))
        yield softmaxes


_SOFTMAXES = {torch.softmax, torch.special.softmax, Tensor.softmax, functional.softmax}


class _SoftmaxCalls(TorchFunctionMode):
    """Intercept softmaxes."""

    def __init__(self, note: Callable[[Tensor, int], None]) -> None:
        super().__init__()
        self.note = note

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        output = func(*args, **options)
        if func in _SOFTMAXES:
            dim = options.get("dim", args[1] if len(args) > 1 else None)
            self.note(output, dim if isinstance(dim, int) else -1)
        return output


class _ModuleCalls(_SoftmaxCalls):
    """Intercept calls of PyTorch's functions."""

    def __init__(self, see: Callable[[CapturedCall], None], note: Callable[[Tensor, int], None]) -> None:
        super().__init__(note)
        self.see = see

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = super().__torch_function__(func, types, args, kwargs)
        options = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            self.see(of_scaled_dot_product(output, *args, **options))
        elif func is functional.multi_head_attention_forward:
            self.see(of_multi_head(*args, **options))
        return output


def cache_of(arguments: Mapping[str, Any]) -> Any:
    """The cache that a model is called with; transformers 5.24 renamed it."""
    return arguments.get("cache", arguments.get("past_key_values"))


def cached_tokens(cache: Any) -> int:
    """Number of tokens in a cache of transformers, also if its first layer stores no keys (hybrids)."""
    layers = (layer for layer in getattr(cache, "layers", []) if hasattr(layer, "get_seq_length"))
    return int(cache.get_seq_length()) or max((int(layer.get_seq_length()) for layer in layers), default=0)


def _reject_own_keys(name: str, call: AttentionCall, arguments_of: Sequence[Sequence[Any]]) -> None:
    """Raise an error for more keys than queries if no argument of the module has that many positions.

    `given` has the arguments of all running modules: one that takes the keys of the heads is part of another.
    """
    queries, keys = call.query.shape[2], call.key.shape[2]
    states: list[torch.Size] = []
    for passed in reversed(arguments_of):
        leaves = [leaf for leaf in tree_leaves(passed) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        if any(leaf.ndim == _FOUR and leaf.shape[-2:] == call.key.shape[-2:] for leaf in leaves):
            continue
        states = [leaf.shape[:-1] for leaf in leaves if leaf.ndim > 2]  # noqa: PLR2004
        break
    if keys > queries > 1 and states and all(queries in shape and keys not in shape for shape in states):
        raise AttnscopeError(
            f"{name} attends from {queries} tokens to {keys} keys, {keys - queries} of which are not its tokens (a "
            "prefix or a memory), so offsets are unknown. Leave them out, or pass the weights of the tokens to "
            "attnscope.measure_weights"
        )
