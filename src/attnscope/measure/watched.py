"""`watch`: the attention calls of any PyTorch module, while its owner calls it."""

from __future__ import annotations

from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

import torch
import transformers
from torch import nn

from attnscope.capture.forward import check_finite
from attnscope.capture.functional import PassObserver, calls_inside
from attnscope.capture.verify import TOLERANCE
from attnscope.measure.collected import MeasuredPass, collected
from attnscope.measure.generation_pass import GenerationCall
from attnscope.measure.generation_texts import Written, generation_dataset
from attnscope.measure.passes import Marks, measure_call
from attnscope.measure.quantities import EQUAL, choose
from attnscope.support.arguments import validated
from attnscope.support.checks import check_kind, check_whole
from attnscope.support.errors import AttnscopeError
from attnscope.support.state import own_state

_WIDEST = 1_000_000  # tokens of a band: no text is longer

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    import xarray as xr
    from torch import Tensor
    from transformers import PreTrainedModel

    from attnscope.capture.functional import CapturedCall, ModuleCalls
    from attnscope.capture.watch import Site
    from attnscope.measure.generation_rows import GivenSpans


class WatchedCalls:
    """What `watch` has measured so far."""

    def __init__(self, module: nn.Module, names: Sequence[str], band: int) -> None:
        self._module, self._names, self._band = type(module).__name__, names, band
        self._passes: list[MeasuredPass] = []
        self._now = MeasuredPass()
        self._without = 0  # passes in which nothing was seen
        self._written: list[Written] = []
        self._calls: ModuleCalls | None = None

    def __len__(self) -> int:
        """How many texts were read, or written by ``generate()``."""
        return sum(seen.texts for seen in self._passes) + len(self._written)

    def result(self) -> xr.Dataset:
        """All passes so far, as `attnscope.scan` gives them, or all texts that ``generate()`` wrote; see `watch`."""
        if self._written:
            if self._passes:
                raise AttnscopeError(
                    f"both plain passes and generate() of {self._module} were seen, which give different results: "
                    "watch anew for each"
                )
            return generation_dataset(self._written).assign_attrs(model=self._module, capture="generate()")
        if not self._passes:
            said = f"{self._without} passes without one" if self._without else "no pass"
            raise AttnscopeError(
                f"no attention call of {self._module} was seen ({said}). Call the module within the context; "
                "attention that it writes out itself, by softmax and products, is not seen: give its weights to "
                "attnscope.measure_weights (attnscope.walk follows a module of one head)"
            )
        results = collected(self._passes, self._names, self._band)
        return results.assign_attrs(model=self._module, capture="function calls", **self._unseen())

    def _unseen(self) -> dict[str, str]:
        """The note that names what made no call."""
        calls, seen = self._calls, {site.name for site in self._passes[0].sites}
        unseen = {} if calls is None else calls.unseen(seen)
        if not unseen:
            return {}
        named = ", ".join(f"{name} ({kind})" for name, kind in list(unseen.items())[:3])
        more = f" and {len(unseen) - 3} more" if len(unseen) > 3 else ""  # noqa: PLR2004
        return {
            "unseen": f"No attention call was captured in {named}{more}: if these modules compute attention by hand, "
            "the result is incomplete."
        }

    def _see(self, site: Site, seen: CapturedCall) -> None:
        where = f"layer {site.index} ({site.name})"
        self._check_place(where, site, seen)
        call = seen.call
        reach = max(call.query.shape[2], call.key.shape[2]) - 1
        marks = Marks(seen.queries, seen.keys, torch.zeros_like(seen.keys))
        with own_state(gradients=False):
            output, of_call = measure_call(call, self._names, self._band, reach, marks)
        measured = {name: value.cpu() for name, value in of_call.items()}
        first = len(self)
        check_finite(where, _shown(seen).transpose(1, 2), lambda text: f"text {first + text + 1}", seen.queries)
        _reject_blind(where, measured, first)
        if seen.output is not None:
            _check_output(where, output, seen.output, seen.queries)
        self._now.add(site, measured, seen.queries, reach)

    def _check_place(self, where: str, site: Site, seen: CapturedCall) -> None:
        """Refuse a call that cannot stand beside those before it."""
        texts = seen.call.query.shape[0]
        if self._now.queries and texts != self._now.texts:
            raise AttnscopeError(
                f"{where} attends in {texts} texts, the layers before it in {self._now.texts}: it folds other "
                "dimensions into the texts (windows, axes). Watch the part of the module that does not"
            )
        if not self._passes:
            return
        known = self._passes[0]
        index = site.index
        heads = seen.call.query.shape[1]
        was = known.sites[index] if index < len(known.sites) else None
        now = (site.name, site.kind, heads)
        expected = None if was is None else (was.name, was.kind, _heads(known.measured[index]))
        if now != expected:
            before = "was not there" if expected is None else "was {}, {}, {} heads".format(*expected)
            raise AttnscopeError(
                f"{where}, {site.kind} attention of {heads} heads, {before} in the first pass: passes are read in "
                "different ways. Switch a cache of keys off (or let generate() keep it), and watch anew for each way"
            )

    def _done(self, calls: int) -> None:
        now, self._now = self._now, MeasuredPass()
        if not calls:
            self._without += 1
            return
        if self._passes and calls != len(self._passes[0].sites):
            raise AttnscopeError(
                f"a pass has {calls} attention calls, the first one had {len(self._passes[0].sites)}: passes are read "
                "in different ways. Watch anew for each way"
            )
        self._passes.append(now)

    def _lost(self) -> None:
        self._now = MeasuredPass()


@validated
@contextmanager
def watch(
    module: nn.Module, *, statistics: Sequence[str] | str | None = None, band: int = 10, spans: GivenSpans | None = None
) -> Generator[WatchedCalls]:
    """Measure the attention inside any PyTorch module, while you call it in your own way.

    Every call of ``torch.nn.functional.scaled_dot_product_attention``, of ``flex_attention`` and of
    ``torch.nn.MultiheadAttention`` (its fast path included) is measured as it happens; so are layers of transformers
    that are set to eager attention. What the module returns is what it returns without. Calls of one submodule, in
    their order, are the layers; two calls with the same queries, keys and mask are one.

    Parameters
    ----------
    module
        In eval mode: attention that drops weights is refused. It need not come from Hugging Face.
    statistics, band
        See `attnscope.scan`; not for ``generate()``. There is no ``offsets`` here: take a wider band, or
        ``offset_sum``.
    spans
        For ``generate()``: parts of the prompt by name, each as its first token and the one after the last
        (``{"question": (3, 12)}``), a slice, or a list of tokens; one such mapping for all prompts, a list with one
        for each, or a function that makes one of the token ids of a prompt. Padding is not counted.

    Yields
    ------
    Seen
        Its ``result()`` is what `attnscope.scan` gives, with one entry of ``window`` for each text of each pass, and
        ``layer_name`` the submodule that called. ``length`` counts the real tokens: a token at which nothing may look
        (or that ``key_padding_mask`` names) is padding. No token is known as special. Where queries and keys are
        not of the same number, or not the same states in ``nn.MultiheadAttention``, the layer is of the kind ``cross``.
        Of ``generate()`` it is another Dataset, over ``sequence, step, layer, head``: see Notes.

    Raises
    ------
    AttnscopeError
        If calls cannot be seen (scripted, compiled or data-parallel modules), if attention drops
        weights, keys are not tokens (a cache, a prefix), passes differ in their layers, or what was seen does not give
        the module's own numbers.

    Notes
    -----
    Attention that a module writes out itself, by products and a softmax, is not seen: take `measure_weights`. The
    attribute ``unseen`` of the result names submodules that are called attention and made no call. The
    weights of ``nn.MultiheadAttention`` and the scores of ``flex_attention`` are in memory, one layer at a time; and
    modules of PyTorch with a fast path (``nn.TransformerEncoder``, ...) are run twice. ``flex_attention`` runs as it
    does without ``torch.compile``, and its ``score_mod`` must take all scores of a call at once.

    ``generate()`` of a model of transformers, called within, is measured token by token: a step is a token that was
    written, and its numbers are those of the query from which it was chosen, the token before it. They are what one
    full pass over the final text gives, whatever cache keeps the keys; with beams each token is looked up in the beam
    that wrote it. ``span_weight`` is the weight on the prompt, on each named span of it, and on the model's own output;
    ``equal_span_weight`` what equal weights over the same keys give. See docs/generation.md.

    Examples
    --------
    >>> module = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3).eval()
    >>> with watch(module, band=2) as seen, torch.no_grad():
    ...     _ = module(torch.randn(4, 7, 8))
    >>> results = seen.result()
    >>> dict(results.profile.sizes), results.layer_name.values[0]
    ({'window': 4, 'layer': 3, 'head': 2, 'offset': 5}, 'layers.0.self_attn')
    """
    check_kind("a torch.nn.Module", nn.Module, module=module)
    check_whole(1, _WIDEST, band=band)
    seen = WatchedCalls(module, choose(statistics), band)
    observer = PassObserver(seen._see, seen._done, seen._lost)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    with calls_inside(module, observer) as calls, _generating(module, calls, spans, seen._written.extend):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        seen._calls = calls  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        yield seen


@contextmanager
def _generating(
    module: nn.Module, calls: ModuleCalls, spans: GivenSpans | None, keep: Callable[[Sequence[Written]], None]
) -> Generator[None]:
    """Watch ``generate()`` of each model of transformers within a module, where it is called from outside."""

    def wrapped(model: PreTrainedModel) -> Callable[..., Any]:
        inner: Any = model.generate

        @wraps(inner)
        def generate(*given: Any, **named: Any) -> Any:
            if calls.running:
                raise AttnscopeError(
                    f"{calls.running[-1]} calls generate() of {type(model).__name__} within its own pass: watch that "
                    "model, and call its generate() yourself"
                )
            with calls.aside():
                output, texts = GenerationCall(model, inner, given, named).run(spans)
            keep(texts)
            return output

        return generate

    models = [
        part
        for part in module.modules()
        if isinstance(part, transformers.PreTrainedModel) and isinstance(part, transformers.GenerationMixin)
    ]
    before = {model: model.__dict__.get("generate") for model in models}
    try:
        for model in models:
            model.__dict__["generate"] = wrapped(model)
        yield
    finally:
        for model, own in before.items():
            model.__dict__.pop("generate", None)
            if own is not None:
                model.__dict__["generate"] = own


def _reject_blind(where: str, measured: dict[str, Tensor], first: int) -> None:
    """Refuse a text of which no token may look anywhere: nothing can be said of it."""
    for name, value in measured.items():
        nothing = value.isnan().all(1) if value.ndim == 2 else None  # noqa: PLR2004 text, head
        if nothing is not None and not name.startswith(EQUAL) and bool(nothing.any()):
            text = first + int(nothing.nonzero()[0]) + 1
            raise AttnscopeError(f"text {text}: {where} lets no token look anywhere: leave that text out")


def _heads(measured: dict[str, Tensor]) -> int:
    return next(value.shape[1] for name, value in measured.items() if not name.startswith(EQUAL))


def _shown(seen: CapturedCall) -> Tensor:
    """What tells whether a call is finite, ``(batch, head, query, any)``: its output, or the sums of its weights."""
    if seen.output is not None:
        return seen.output
    return cast("Tensor", seen.call.bias).exp().sum(-1, keepdim=True)


def _check_output(where: str, ours: Tensor, theirs: Tensor, valid: Tensor) -> None:
    """Refuse a call whose arguments do not give the module's own output."""
    if ours.shape != theirs.shape:
        raise AttnscopeError(
            f"{where}: the module's attention gives the shape {tuple(theirs.shape)}, expected {tuple(ours.shape)}"
        )
    own, other = (output.transpose(1, 2)[valid].double() for output in (ours, theirs))
    if not len(own):
        return
    away, largest = float((own - other).abs().amax()), float(other.abs().amax())
    if away > TOLERANCE[theirs.dtype] * max(1.0, largest):
        raise AttnscopeError(
            f"{where}: what was seen gives other numbers than the module's attention (by {away:.2g}): it is not the "
            "softmax of scaled products that it seems to be"
        )
