"""Weights that are forbidden or shuffled, and heads left out of a translation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool
from torch import Tensor

from attnscope.capture.borrow import borrowed
from attnscope.capture.notes import layer_coordinates
from attnscope.capture.watching import watching
from attnscope.intervention.ablation import of_layers
from attnscope.intervention.arrays import permuted_weights
from attnscope.intervention.calls import values_of, weights_of
from attnscope.intervention.pairs import one_token
from attnscope.intervention.predictions import most_variants
from attnscope.intervention.stack import stacked_passes
from attnscope.intervention.weight_tests import same_size
from attnscope.kernels.engines import attend_in_full, output_of
from attnscope.lineage.score import score
from attnscope.lineage.translate import translate_lines
from attnscope.measure.documents import by_document, units_of
from attnscope.support.arguments import validated
from attnscope.support.checks import check_whole, shortly
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell, no_progress

if TYPE_CHECKING:
    from attnscope.capture.watch import Site
    from attnscope.intervention.predictions import PredictionSession, Questions
    from attnscope.intervention.stack import StackedPasses
    from attnscope.kernels.call import AttentionCall
    from attnscope.read.windows import Window

HARDLY = 0.01  # share of a head's weight below which a rule can hardly change what it gives


def rule_of(offsets: Sequence[int], tokens: Sequence[str], tokenizer: Any, *, first: bool) -> Forbidden | None:
    """The rule that a caller's words stand for; None where nothing is forbidden."""
    for offset in offsets:
        check_whole(-(10**6), 10**6, forbid_offset=offset)
    if isinstance(tokens, str):
        raise AttnscopeError(f"forbid_tokens is {shortly(tokens)}; expected a list of strings")
    ids = tuple(dict.fromkeys(one_token(tokenizer, text, "the forbidden token (--forbid-token)") for text in tokens))
    rule = Forbidden(tuple(dict.fromkeys(offsets)), first, ids)
    return rule if rule.offsets or rule.first or rule.tokens else None


def describe_rule(offsets: Sequence[int], tokens: Sequence[str], *, first: bool) -> list[str]:
    """What is forbidden, in words."""
    return [
        *(f"offset {offset:+d}" if offset else "offset 0" for offset in offsets),
        *(["the first token"] if first else []),
        *(f"token {text!r}" for text in tokens),
    ]


def check_rule(rule: Forbidden, windows: Sequence[Window]) -> None:
    """Refuse a rule that forbids nothing in these windows."""
    longest = max(max(len(window), len(window.target or ())) for window in windows)
    ids = {token for window in windows for side in (window, window.target) if side is not None for token in side.ids}
    if rule.first or any(abs(offset) < longest for offset in rule.offsets) or ids & {*rule.tokens}:
        return
    raise AttnscopeError(
        f"nothing is forbidden by --forbid-offset and --forbid-token in these windows of up to {longest} tokens: no "
        "such offset or token is in them"
    )


@validated
def without_forbidden(
    session: PredictionSession,
    rule: Forbidden,
    said: Sequence[str],
    *,
    renormalise: bool,
    seed: int,
    progress: Tell | None = None,
) -> xr.Dataset:
    """What the predictions lose when each head alone may not look where a rule says; see `knock_out`."""
    knocked = knock_out(session, rule, renormalise=renormalise, progress=progress)
    documents = knocked.source.values.tolist()
    units, called = units_of(documents)
    mean, low, high, shown, tested = by_document(knocked.loss_change.values, units, seed=seed)
    dims, nats = ("layer", "head"), {"units": "nats"}
    words = "Change of the loss where the head may not look there"
    weight = knocked.weight.mean("window", skipna=False).assign_attrs(
        long_name="Share of all weight that is forbidden", units="share"
    )
    return knocked.assign(
        effect=(dims, mean, {"long_name": words, **nats}),
        effect_low=(dims, low, {"long_name": "Lower end of its 95% interval", **nats}),
        effect_high=(dims, high, {"long_name": "Upper end of its 95% interval", **nats}),
        shown=(dims, shown, {"long_name": "Effect told from 0, all heads together", "units": "1"}),
        tested=(dims, tested, {"long_name": "Whether that was tested", "units": "1"}),
        forbidden_weight=weight,
    ).assign_attrs(intervals_over=called, forbid=list(said))


@dataclass(frozen=True)
class Forbidden:
    """Where a head may not look."""

    offsets: tuple[int, ...] = ()  # offsets, key position minus query position: -1 is the token before
    first: bool = False  # whether the first token is forbidden
    tokens: tuple[int, ...] = ()  # token ids of keys that are forbidden

    def where(self, queries: int, keys: Tensor) -> Bool[Tensor, "text query key"]:
        """Which entries of the weights the rule forbids; `keys` are token ids ``(text, key)``."""
        index = torch.arange(keys.shape[1], device=keys.device)
        shift = index - torch.arange(queries, device=keys.device)[:, None]
        forbidden = torch.zeros(len(keys), queries, keys.shape[1], dtype=torch.bool, device=keys.device)
        for offset in self.offsets:
            forbidden |= shift == offset
        if self.first:
            forbidden[:, :, 0] = True
        if self.tokens:
            forbidden |= torch.isin(keys, torch.tensor(self.tokens, device=keys.device))[:, None]
        return forbidden


@validated
def knock_out(
    session: PredictionSession, rule: Forbidden, *, renormalise: bool = True, progress: Tell | None = None
) -> xr.Dataset:
    """Forbid each head alone to look where a rule says, and measure what the predictions lose."""
    if not (rule.offsets or rule.first or rule.tokens):
        raise AttnscopeError("the rule forbids nothing; expected offsets, first or tokens: give one")
    changes: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    sites: list[Site] = []
    tell = progress or no_progress
    for place in session.slices():
        asked = session.batch(place)
        with stacked_passes(session.model, skips=session.skips) as passes, torch.no_grad():
            before = passes.plain(asked.reading.inputs(session.model), asked.places, session.name(place.start))
            loss = asked.scores(before[None])["loss"]
            most = most_variants(asked, before, passes.outputs)
            heads = [output.shape[1] for output in passes.outputs]
            of_texts: list[list[Tensor]] = []
            shares: list[list[Tensor]] = []
            for call, site in enumerate(passes.sites):
                if rule.offsets and site.kind == "cross":
                    unknown = torch.full((len(asked), heads[call]), torch.nan, dtype=torch.float32)
                    of_texts.append([unknown])
                    shares.append([unknown])
                    continue
                queries, keys = asked.reading.sides(site.kind)
                knocked = _Knocked(rule, queries.valid, keys.input_ids, renormalise=renormalise)
                parts: list[Tensor] = []
                for first in range(0, heads[call], most):
                    some = range(first, min(first + most, heads[call]))
                    logits = passes.run({call: knocked.edit(some)}, len(some))
                    parts.append((asked.scores(logits)["loss"] - loss).T)
                of_texts.append(parts)
                shares.append([knocked.share])
        sites = passes.sites
        changes.append(_joined(of_texts, heads))
        weights.append(_joined(shares, heads))
        tell(Progress("heads that may not look there", place.stop / len(session.windows), {"windows": place.stop}))
    dims = ("window", "layer", "head")
    return xr.Dataset(
        {
            "loss_change": (dims, np.concatenate(changes), {"units": "nats"}),
            "weight": (dims, np.concatenate(weights), {"units": "share"}),
        },
        coords={
            "source": ("window", np.array(session.documents, dtype=object)),
            **layer_coordinates(sites),
            "head": np.arange(changes[0].shape[-1]),
        },
        attrs={"offsets": list(rule.offsets), "first": int(rule.first), "renormalise": int(renormalise)},
    )


class _Knocked:
    """Outputs of one call without what the rule forbids."""

    def __init__(self, rule: Forbidden, valid: Tensor, keys: Tensor, *, renormalise: bool) -> None:
        self.rule, self.valid, self.keys, self.renormalise = rule, valid, keys, renormalise
        self.share = torch.empty(0, dtype=torch.float32)

    def edit(self, heads: Iterable[int]) -> Callable[[AttentionCall, Tensor], Tensor]:
        """Variant i has the i-th of these heads changed."""
        chosen = list(heads)

        def change(call: AttentionCall, output: Tensor) -> Tensor:
            _, weights = attend_in_full(call)
            kept = weights.masked_fill(self.rule.where(weights.shape[2], self.keys)[:, None], 0)
            rows = weights.sum(-1)
            lost = torch.where(self.valid[:, None], rows - kept.sum(-1), 0).sum(-1)
            self.share = lost / self.valid.sum(-1, keepdim=True)
            if self.renormalise:
                kept = kept * (rows / kept.sum(-1).clamp(min=1e-30))[..., None]
            value = call.value.repeat_interleave(call.group, 1)
            other = (kept.to(value.dtype) @ value).to(output.dtype)
            output = output.clone()
            for variant, head in enumerate(chosen):
                output[variant, :, head] = other[:, head]
            return output

        return change


def _joined(parts: list[list[Tensor]], heads: list[int]) -> np.ndarray:
    """``(window, layer, head)``."""
    flat = torch.cat([torch.cat([tensor.cpu() for tensor in layer], 1) for layer in parts], 1).double().numpy()
    return np.stack([of_layers(row, heads) for row in flat])


_WORDS = {
    "shuffled_loss": ("Change of the loss with the head's weights shuffled", "nats"),
    "shuffled_kl": ("KL divergence of the predictions with the head's weights shuffled", "nats"),
    "random_kl": ("KL divergence by a random change of the head's output of the same size", "nats"),
    "shuffled_loss_low": ("Lower end of its 95% interval", "nats"),
    "shuffled_loss_high": ("Upper end of its 95% interval", "nats"),
    "shuffled_shown": ("Change of the loss told from 0, all heads together", "1"),
    "shuffled_tested": ("Whether that was tested", "1"),
}

_SCORES = ("shuffled_loss", "shuffled_kl", "random_kl")


@validated
def shuffled_weights(
    session: PredictionSession, *, texts: int = 8, seed: int = 0, progress: Tell | None = None
) -> xr.Dataset:
    """Shuffle each row of each head's weights among the keys that it may look at, one head at a time."""
    parts: dict[str, list[np.ndarray]] = {name: [] for name in _SCORES}
    documents: list[str] = []
    heads = session.heads
    places = [place for place in session.slices() if place.start < texts]
    tell = progress or no_progress
    for place in places:
        asked = session.batch(place)
        with stacked_passes(session.model, skips=session.skips) as passes, torch.no_grad():
            before = passes.plain(asked.reading.inputs(session.model), asked.places, session.name(place.start))
            calls = [_of_call(passes, asked, before, call, place.start, seed) for call in range(len(heads))]
        for name, values in parts.items():
            flat = np.concatenate([call[name] for call in calls], 1)
            values.append(np.stack([of_layers(row, heads) for row in flat]))
        documents += session.documents[place]
        tell(Progress("weights shuffled", place.stop / places[-1].stop, {"windows": place.stop}))
    every = {name: np.concatenate(values) for name, values in parts.items()}
    loss = by_document(every["shuffled_loss"], units_of(documents)[0], seed=seed)
    means = {name: values.mean(0) for name, values in every.items()}
    ends = {"shuffled_loss_low": loss.low, "shuffled_loss_high": loss.high}
    ends |= {"shuffled_shown": loss.shown, "shuffled_tested": loss.tested}
    return xr.Dataset(
        {
            name: (("layer", "head"), values, {"long_name": _WORDS[name][0], "units": _WORDS[name][1]})
            for name, values in (means | ends).items()
        },
        coords={**layer_coordinates(session.sites), "head": np.arange(max(heads))},
        attrs={"texts": len(documents)},
    )


def _of_call(
    passes: StackedPasses, asked: Questions, before: Tensor, call: int, first_text: int, seed: int
) -> dict[str, np.ndarray]:
    """Scores ``(text, head)`` of one attention call."""
    heads = passes.outputs[call].shape[1]
    loss = asked.scores(before[None])["loss"]
    size = max(1, most_variants(asked, before, passes.outputs) // 2)
    parts: dict[str, list[Tensor]] = {name: [] for name in _SCORES}
    for first in range(0, heads, size):
        some = range(first, min(first + size, heads))
        edit = shuffling(some, (seed, first_text, call))
        scores = asked.scores(passes.run({call: edit}, 2 * len(some)), before)
        shuffled, random = (slice(0, len(some)), slice(len(some), None))
        parts["shuffled_loss"].append((scores["loss"][shuffled] - loss).T)
        parts["shuffled_kl"].append(scores["kl"][shuffled].T)
        parts["random_kl"].append(scores["kl"][random].T)
    return {name: torch.cat(values, 1).double().cpu().numpy() for name, values in parts.items()}


def shuffling(heads: Sequence[int], seed: tuple[int, ...]) -> Callable[[AttentionCall, Tensor], Tensor]:
    """Variants with the i-th head's weights shuffled, then as many with its output changed as far at random."""

    def edit(call: AttentionCall, output: Tensor) -> Tensor:
        weights, values = weights_of(call), values_of(call)
        output = output.clone()
        for text in range(output.shape[1]):
            for variant, head in enumerate(heads):
                generator = np.random.default_rng((*seed, text, head))
                own = weights[text, head].double().cpu().numpy()
                shuffled = permuted_weights(own, generator, call.allowed(text, head).cpu().numpy())
                other = torch.from_numpy(shuffled).to(values) @ values[text, head]
                random = same_size(other[None], output[variant, text, head], generator)[0]
                output[variant, text, head] = other.to(output)
                output[len(heads) + variant, text, head] = random.to(output)
        return output

    return edit


WHOLE = "all heads"


@validated
def bleu_without_heads(
    session: PredictionSession,
    texts: Sequence[str],
    targets: Sequence[str],
    *,
    heads: Sequence[tuple[int, int]] | None = None,
    ablation: str = "mean",
    beams: int = 1,
    progress: Tell | None = None,
) -> xr.Dataset:
    """Translate once with all heads and once without each of some, and score every translation."""
    if session.kind != "translation":
        raise AttnscopeError(f"{session.loaded.name} does not translate: BLEU is of encoder-decoders with targets")
    if ablation not in {"zero", "mean"}:
        raise AttnscopeError(f"the ablation is {ablation!r}; expected zero or mean while a translation is made")
    if not session.sites:
        session.check()  # a session that was not checked has no layers yet: no head would be tried
    sites, counts = session.sites, session.heads
    crossing = [place for place, site in enumerate(sites) if site.kind == "cross"]
    chosen = [(layer, head) for layer in crossing for head in range(counts[layer])] if heads is None else list(heads)
    for layer, head in chosen:
        if not (0 <= layer < len(counts) and 0 <= head < counts[layer]):
            raise AttnscopeError(
                f"there is no head {layer}.{head}: layers are 0 to {len(counts) - 1}, heads 0 to {max(counts) - 1}"
            )
    names = [site.name for site in sites]
    if len(set(names)) < len(names):
        raise AttnscopeError(
            f"{session.loaded.name} shares a layer's weights with others, so that while it translates its calls "
            "cannot be told apart: measure the loss instead (intervene)"
        )
    means = session.means if ablation == "mean" else None
    tell = progress or no_progress
    systems = {WHOLE: _translated(session, texts, beams, None, None)}
    for done, (layer, head) in enumerate(chosen, start=1):
        stands_in = torch.zeros(1, dtype=torch.float32) if means is None else means.of(layer)[head]
        systems[f"{layer}.{head}"] = _translated(session, texts, beams, (names[layer], head), stands_in)
        tell(Progress("translations without a head", done / len(chosen), {"heads": done}))
    scores = score(systems, list(targets))
    layers, columns = np.array([(-1, -1), *chosen]).T
    return scores.assign_coords(layer=("system", layers), head=("system", columns)).assign_attrs(ablation=ablation)


def _translated(
    session: PredictionSession, texts: Sequence[str], beams: int, out: tuple[str, int] | None, stands_in: Tensor | None
) -> list[str]:
    def observe(site: Site, call: AttentionCall) -> Tensor:
        output = output_of(call)
        if out is not None and stands_in is not None and site.name == out[0]:
            output = output.clone()
            output[:, out[1]] = stands_in.to(output)
        return output

    with borrowed(session.model), watching(session.model, observe), torch.no_grad():
        return translate_lines(session.model, session.loaded.tokenizer, texts, beams=beams).texts
