"""Forbid or shuffle the weights of one head at a time, and measure the change of the predictions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.capture.notes import layer_coordinates
from attnscope.explanation.study import FEW_TEXTS
from attnscope.intervention.arrays import permuted_weights
from attnscope.intervention.pairs import one_token
from attnscope.intervention.predictions import PredictionBatch, PredictionSession
from attnscope.intervention.stack import Edit, replacing
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.full import attend_in_full, values_of, weights_of
from attnscope.read.windows import Window
from attnscope.statistics.effects import effect_variables
from attnscope.statistics.units import units_of
from attnscope.store.arrays import by_layer
from attnscope.support.checks import check_whole
from attnscope.support.errors import AttnscopeError

HARDLY = 0.01  # share of a head's weight below which a rule can hardly change its output


@dataclass(frozen=True)
class Forbidden:
    """Offsets and tokens to which a head may not attend."""

    offsets: tuple[int, ...] = ()  # key position minus query position: -1 is the previous token
    first: bool = False  # whether the first token is forbidden
    tokens: tuple[int, ...] = ()  # token ids of forbidden keys
    texts: tuple[str, ...] = ()  # the same tokens as text

    @classmethod
    def of(cls, offsets: Sequence[int], tokens: Sequence[str], tokenizer: Any, *, first: bool) -> Forbidden:
        """The rule for these arguments of `intervene`."""
        for offset in offsets:
            check_whole(-(10**6), 10**6, forbid_offset=offset)
        ids = (one_token(tokenizer, text, "the forbidden token (--forbid-token)") for text in tokens)
        return cls(tuple(dict.fromkeys(offsets)), first, tuple(dict.fromkeys(ids)), tuple(tokens))

    def __bool__(self) -> bool:
        return bool(self.offsets or self.first or self.tokens)

    @property
    def words(self) -> list[str]:
        """Names of the forbidden offsets and tokens."""
        return [
            *(f"offset {offset:+d}" if offset else "offset 0" for offset in self.offsets),
            *(["the first token"] if self.first else []),
            *(f"token {text!r}" for text in self.texts),
        ]

    def check(self, windows: Sequence[Window]) -> None:
        """Raise an error if the rule forbids nothing in these windows."""
        sides = [side for window in windows for side in (window, window.target) if side is not None]
        longest, ids = max(map(len, sides)), {token for side in sides for token in side.ids}
        if not (self.first or any(abs(offset) < longest for offset in self.offsets) or ids & {*self.tokens}):
            raise AttnscopeError(
                f"--forbid-offset and --forbid-token forbid nothing: these windows of up to {longest} tokens contain "
                "no such offset or token"
            )

    def where(self, queries: int, keys: Tensor) -> Bool[Tensor, "text query key"]:
        """Which entries of the weights the rule forbids; `keys` are token ids ``(text, key)``."""
        shift = torch.arange(keys.shape[1], device=keys.device) - torch.arange(queries, device=keys.device)[:, None]
        forbidden = torch.zeros(len(keys), queries, keys.shape[1], dtype=torch.bool, device=keys.device)
        for offset in self.offsets:
            forbidden |= shift == offset
        if self.first:
            forbidden[:, :, 0] = True
        if self.tokens:
            forbidden |= torch.isin(keys, torch.tensor(self.tokens, device=keys.device))[:, None]
        return forbidden


def knock_out(session: PredictionSession, rule: Forbidden, *, renormalise: bool = True, seed: int = 0) -> xr.Dataset:
    """Apply a rule to each head alone, and measure the change of the loss."""
    changes: list[np.ndarray] = []
    shares: list[np.ndarray] = []
    for part in session.slices():
        with session.passes(part) as batch:
            passes, questions = batch.passes, batch.questions
            parts: list[tuple[Tensor, Tensor]] = []  # by layer, the change of the loss and the share of weight
            for call, site in enumerate(passes.sites):
                heads = range(passes.outputs[call].shape[1])
                # queries and keys are in different texts: they have no offset
                if rule.offsets and site.kind == "cross":
                    unknown = torch.full((len(questions), len(heads)), torch.nan, dtype=torch.float32)
                    parts.append((unknown, unknown))
                    continue
                queries, keys = questions.batch.sides(site.kind, passes.outputs[call].device)
                knocked = _Knocked(rule, queries.valid, keys.input_ids, renormalise)

                def edits(some: range, call: int = call, knocked: _Knocked = knocked) -> dict[int, Edit]:
                    return {call: knocked.edit(some)}

                changed = passes.sweep(heads, batch.most, edits, batch.loss_change)
                parts.append((changed.T, knocked.share[:: questions.rows]))
        for values, layers in zip((changes, shares), zip(*parts, strict=True), strict=True):
            values.append(by_layer([layer.double().cpu().numpy() for layer in layers]))
    change, weight = np.concatenate(changes), np.concatenate(shares)
    units, called = units_of(session.documents)
    dims = ("layer", "head")
    words = "Change of the loss when the head may not attend there"
    share = {"long_name": "Share of all weight that is forbidden", "units": "share"}
    return xr.Dataset(
        {
            "loss_change": (("window", *dims), change, {"units": session.unit}),
            "weight": (("window", *dims), weight, {"units": "share"}),
            **effect_variables(change, units, dims, words, unit=session.unit, seed=seed),
            "forbidden_weight": (dims, weight.mean(0), share),
        },
        coords={
            "source": ("window", np.array(session.documents, dtype=object)),
            **layer_coordinates(session.sites),
            "head": np.arange(change.shape[-1]),
        },
        attrs={
            "offsets": list(rule.offsets),
            "first": int(rule.first),
            "renormalise": int(renormalise),
            "intervals_over": called,
            "forbid": rule.words,
        },
    )


@dataclass(eq=False)
class _Knocked:
    """Outputs of one call without the forbidden weights."""

    rule: Forbidden
    valid: Tensor  # queries that are not padding, ``(text, query)``
    keys: Tensor  # token ids, ``(text, key)``
    renormalise: bool
    share: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float32))  # of weight that is forbidden

    def edit(self, heads: Sequence[int]) -> Edit:
        """An edit that changes the i-th of these heads in variant i."""

        def change(call: AttentionCall, output: Tensor) -> Tensor:
            _, weights = attend_in_full(call)
            left = weights.masked_fill(self.rule.where(weights.shape[2], self.keys)[:, None], 0)
            rows = weights.sum(-1)
            lost = torch.where(self.valid[:, None], rows - left.sum(-1), 0).sum(-1)
            self.share = lost / self.valid.sum(-1, keepdim=True)
            if self.renormalise:
                # to the sum of the row as it was, which is below 1 with a learned sink
                left = left * (rows / left.sum(-1).clamp(min=1e-30))[..., None]
            value = call.value.repeat_interleave(call.group, 1)
            return replacing(heads, [(left.to(value.dtype) @ value).to(output.dtype)] * len(heads))(call, output)

        return change


def shuffled_weights(
    session: PredictionSession, *, seed: int = 0, cells: Collection[tuple[int, int]] | None = None
) -> xr.Dataset:
    """Shuffle each row of a head's weights among the keys that it may attend to, one head (of `cells`) at a time."""
    slices = [part for part in session.slices() if part.start < FEW_TEXTS]
    documents = session.documents[: slices[-1].stop]
    parts: list[np.ndarray] = []  # (text, score, layer, head)
    for part in slices:
        with session.passes(part) as batch:
            layers = [
                _shuffled(batch, call, wanted, (seed, part.start, call))
                for call, wanted in enumerate(batch.heads_of(cells))
            ]
        parts.append(by_layer(layers))
    loss, kl, random = np.moveaxis(np.concatenate(parts), 1, 0)
    dims = ("layer", "head")
    words = "KL divergence of the predictions with the head's weights shuffled"
    of_random = "KL divergence after a random change of the head's output of the same size"
    return xr.Dataset(
        {
            **effect_variables(
                loss,
                units_of(documents)[0],
                dims,
                "Change of the loss with the head's weights shuffled",
                name="shuffled_loss",
                prefix="shuffled_",
                unit=session.unit,
                seed=seed,
            ),
            "shuffled_kl": (dims, kl.mean(0), {"long_name": words, "units": "nats"}),
            "random_kl": (dims, random.mean(0), {"long_name": of_random, "units": "nats"}),
        },
        coords={**layer_coordinates(session.sites), "head": np.arange(max(session.heads))},
        attrs={"texts": len(documents)},
    )


def _shuffled(batch: PredictionBatch, call: int, wanted: Sequence[int], seed: tuple[int, ...]) -> np.ndarray:
    """``(text, score, head)``: change of the loss, KL divergence, and KL after random changes of the same size."""
    scores = np.full((len(batch.questions), 3, batch.passes.outputs[call].shape[1]), np.nan)
    if not wanted:
        return scores

    def scored(logits: Tensor) -> Tensor:
        scores = batch.questions.scores(batch.asked(logits), batch.before)
        loss, kl = (scores[name].unflatten(0, (2, -1)) for name in ("loss", "kl"))
        return torch.stack([loss[0] - batch.loss, *kl], -1)

    most = max(1, batch.most // 2)
    changes = batch.passes.sweep(wanted, most, lambda some: {call: shuffling(some, seed)}, scored, copies=2)
    scores[..., wanted] = changes.permute(1, 2, 0).double().cpu().numpy()
    return scores


def shuffling(heads: Sequence[int], seed: tuple[int, ...]) -> Callable[[AttentionCall, Tensor], Tensor]:
    """Variants with the i-th head's weights shuffled, then variants with its output moved as far at random."""

    def edit(call: AttentionCall, output: Tensor) -> Tensor:
        weights, values = weights_of(call), values_of(call)
        output = output.clone()
        for text in range(output.shape[1]):
            for variant, head in enumerate(heads):
                # a stream for each text and head: the draw depends neither on batches nor on the heads that are tested
                generator = np.random.default_rng((*seed, text, head))
                row_weights = weights[text, head].double().cpu().numpy()
                shuffled = permuted_weights(row_weights, generator, call.allowed(text, head).cpu().numpy())
                other = torch.from_numpy(shuffled).to(values) @ values[text, head]
                random = same_size(other[None], output[variant, text, head], generator)[0]
                output[variant, text, head] = other.to(output)
                output[len(heads) + variant, text, head] = random.to(output)
        return output

    return edit


def same_size(
    outputs: Float[Tensor, "variant query value_width"],
    before: Float[Tensor, "query value_width"],
    generator: np.random.Generator,
    draws: int = 1,
) -> Float[Tensor, "changed query value_width"]:
    """Outputs at the same distances from a head's own, row by row, in random directions: `draws` for each variant."""
    before = before.to(outputs)
    size = (outputs - before).norm(dim=-1, keepdim=True).repeat_interleave(draws, 0)
    direction = torch.from_numpy(generator.normal(size=(len(size), *outputs.shape[1:]))).to(outputs)
    # normal numbers scaled to length 1 are uniform on the sphere
    return before + size * direction / direction.norm(dim=-1, keepdim=True)
