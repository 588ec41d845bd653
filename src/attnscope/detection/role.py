"""Roles of attention heads: the probe that each shows on, its score from calls, its threshold, and who defined it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import getdoc
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from attnscope.kernels.call import Need, weights_at
from attnscope.kernels.engines import measure
from attnscope.kernels.full import attend_in_full
from attnscope.kernels.sums import column_sums
from attnscope.measure.labels import LOCAL, MORE
from attnscope.measure.rows import weights_in_blocks
from attnscope.options import Share
from attnscope.report import registry
from attnscope.support.checked import Bounds, checked
from attnscope.support.checks import chosen

if TYPE_CHECKING:
    from attnscope.kernels.call import AttentionCall, RowMeasures

FIRST, DELIMITERS = range(2)  # columns of keys, before those of the first tokens
_ROWS = 512  # queries whose mask is written out at once


@dataclass(frozen=True)
class Nearness:
    """Distances that count as near."""

    near: int = 8  # tokens on either side that a local head attends to
    kept: tuple[tuple[int, int], ...] = ((64, 4),)  # latest and first tokens of a cache; the first: a streaming head

    @property
    def starts(self) -> list[int]:
        """The distances from which weight is far."""
        return sorted({self.near + 1, *(recent for recent, _ in self.kept)})


@dataclass(frozen=True, eq=False)
class TextCalls:
    """A call over windows of a text, all of one length."""

    call: AttentionCall
    output: Tensor
    rows: RowMeasures
    reach: Nearness  # how far is near

    @classmethod
    def of(cls, call: AttentionCall, delimiters: Tensor, reach: Nearness) -> TextCalls:
        """Measure a call; `delimiters`, ``(batch, key)``, marks keys."""
        position = torch.arange(call.key.shape[2], device=call.key.device).expand(len(delimiters), -1)
        first = [position < sinks for _, sinks in reach.kept]
        columns = torch.stack([position == 0, delimiters.to(position.device), *first], -1).float()
        return cls(call, *measure(call, Need(band=1, columns=columns, bins=tuple(reach.starts))), reach)

    def mean(self, weights: Tensor) -> Tensor:
        """``(batch, head)``: mean over the rows with allowed keys."""
        counted = self.rows.mass > 0
        return weights.double().where(counted, 0.0).sum(-1) / counted.sum(-1)

    def at(self, offset: int) -> Tensor:
        """Share of the weight at an offset of -1, 0 or 1."""
        return self.mean(_known(self.rows.band)[..., offset + 1])

    def on(self, column: int) -> Tensor:
        """Share of the weight on the first token, or on delimiters."""
        return self.mean(_known(self.rows.columns)[..., column])

    def near(self) -> Tensor:
        """Share of the weight on tokens near the query."""
        return self.mean(self.rows.mass - self._beyond(self.reach.near + 1).sum(-1))

    def streamed(self) -> Tensor:
        """Share of the weight on the first and the latest tokens, over rows with other allowed keys."""
        recent, sinks = self.reach.kept[0]
        return self.rows.mass[..., sinks + recent :].mean(-1) - self._lost(recent, sinks).mean(-1)

    def cached(self, recent: int, sinks: int) -> Tensor:
        """Share of the weight on tokens that is on the latest and the first ones, over rows with other allowed keys."""
        mass = self.rows.mass[..., sinks + recent :]  # the weight of a learned sink is on no token
        return 1.0 - (self._lost(recent, sinks) / torch.where(mass > 0, mass, 1.0)).mean(-1)

    def _lost(self, recent: int, sinks: int) -> Tensor:
        """Weight beyond the latest and the first tokens, of the rows with other allowed keys."""
        first = _known(self.rows.columns)[..., 2 + self.reach.kept.index((recent, sinks))]
        return (self._beyond(recent)[..., 0] - first)[..., sinks + recent :]

    def most_received(self) -> Tensor:
        """Largest mean weight that a key receives from its queries, among keys open to at least half of the queries."""
        queries, keys = self.call.query.shape[2], self.call.key.shape[2]
        seeing = torch.zeros(keys, dtype=torch.float64, device=self.call.query.device)
        for rows in torch.arange(queries).split(_ROWS):
            seeing += self.call.allowed(0, 0, slice(int(rows[0]), int(rows[-1]) + 1)).sum(0)
        mean = column_sums(self.call, self.rows.log_sum_exp) / seeing.clamp_min(1)
        return mean.where(seeing >= queries / 2, 0.0).amax(-1)

    def _beyond(self, distance: int) -> Tensor:
        """Weight from that distance on, to the left and to the right: ``(..., 2)``."""
        bins = _known(self.rows.bins)
        starts = self.reach.starts
        wanted = len(starts) - starts.index(distance)  # bins of a side
        left, right = bins[..., :wanted].sum(-1), bins[..., -wanted:].sum(-1)
        return torch.stack([left, right], -1).double()


@dataclass(frozen=True, eq=False)
class RepeatedCalls:
    """A call over repeated tokens."""

    output: Tensor  # what it gives
    # ``(batch, head, query, 2)``: of the second occurrences, the weight on the first one, and on the token after it
    weights: Tensor

    @classmethod
    def of(cls, call: AttentionCall, begins: int, period: int) -> RepeatedCalls:
        """Measure a call over texts in which the tokens from `begins` on repeat after `period` positions."""
        output, rows = measure(call, Need())
        position = torch.arange(call.query.shape[2], device=call.query.device)
        again = (position >= begins + period) & (position < begins + 2 * period)
        earlier = torch.where(again, position - period, -1)
        after = torch.where(again, earlier + 1, -1)
        return cls(output, weights_at(call, rows.log_sum_exp, torch.stack([earlier, after], -1)[None])[:, :, again])

    def mean(self, after: int) -> Tensor:
        """``(batch, head)``: mean over second occurrences of the weight `after` tokens after the first one."""
        return self.weights[..., after].double().mean(-1)


@dataclass(frozen=True, eq=False)
class NeedleCalls:
    """A call over a prompt with its answer."""

    output: Tensor  # what it gives
    # ``(1, head, token)``: how many of the needle's tokens of one kind the answer has while the key of the largest
    # weight is one of them (of several such keys, their share), at most as many as the needle has
    copied: Tensor
    needle: int  # number of the needle's tokens

    @classmethod
    def of(cls, call: AttentionCall, steps: Tensor, matches: Tensor, needle: int) -> NeedleCalls:
        """Measure a call at the queries that predict tokens of the needle, which are at ``matches (step, key)``."""
        weights = attend_in_full(call.take(steps[None]))[1]
        largest = (weights == weights.amax(-1, keepdim=True)).double()
        shares = (largest * matches).sum(-1) / largest.sum(-1)
        tokens, token_of = matches.unique(dim=0, return_inverse=True)
        copied = shares.new_zeros(*shares.shape[:-1], len(tokens)).index_add_(-1, token_of, shares)
        return cls(measure(call, Need())[0], copied.minimum(tokens.sum(-1)), needle)

    def score(self) -> Tensor:
        """``(1, head)``: share of the needle's tokens that are copied."""
        return self.copied.sum(-1) / self.needle


def _known(measured: Tensor | None) -> Tensor:
    assert measured is not None  # noqa: S101 `TextCalls.of` asks for it
    return measured


@dataclass(frozen=True, eq=False)
class ExpectedCalls:
    """A call over texts in which some keys are expected of some queries."""

    output: Tensor  # what it gives
    expected: Tensor  # ``(batch, head)``: mean over these queries of the weight on the keys expected of each

    @classmethod
    def of(cls, call: AttentionCall, counts: Tensor) -> ExpectedCalls:
        """Measure a call; ``counts (batch, query, key)`` is how much the weight on a key counts, from 0 to 1."""
        output, rows = measure(call, Need())
        counts = counts.to(call.query.device)
        sums = [(weights * counts[:, None, own]).sum(-1) for own, weights in weights_in_blocks(call, rows.log_sum_exp)]
        asked = (counts > 0).any(-1)[:, None]
        return cls(output, torch.cat(sums, -1).where(asked, 0.0).sum(-1) / asked.sum(-1))


Kind = Literal["text", "repeated", "needle"]
#: From the tokens of a window to ``(query, key)``: see `ExpectedCalls`.
Expecting = Callable[[Sequence[Any]], Any]
LOOKS_BACK, LOOKS_AROUND, ANY = ("causal",), ("self", "causal"), ("self", "causal", "cross")


@dataclass(frozen=True)
class Role:
    """A role that heads may have, by a score between 0 and 1."""

    name: str  # in results
    title: str  # for people
    definition: str  # definition of the score in a sentence or two
    source: str  # who defined it
    score: Callable[[Any], Tensor]  # from the measurements of a call to ``(batch, head)``
    # windows of the corpus, random tokens repeated once, or a sentence hidden in a text and a question about it
    probe: Kind | str = "text"
    threshold: float | None = None  # score from which a head has the role, where its source has one
    layers: tuple[str, ...] = LOOKS_AROUND  # kinds of attention calls that may have it
    otherwise: str = "no layer attends within one text"  # why it is left out where there are no such layers
    more: float = 0.0  # how many times uniform attention's score it must also be
    exceeds: int = 0  # tokens that a window must exceed
    # for a probe of its own: what is expected in a window, and its texts, by default the windows of the corpus
    expecting: Expecting | None = None
    texts: Sequence[Any] | None = None

    def reached(self, scores: np.ndarray, equal: np.ndarray) -> np.ndarray:
        """Which scores ``(..., layer, head)`` have the role, given those of uniform attention ``(..., layer)``."""
        least = np.inf if self.threshold is None else self.threshold
        return (scores >= least) & (scores >= self.more * equal[..., None])


_CLARK = "Clark et al. 2019, What Does BERT Look At?"
_SINK = "Gu et al. 2024, When Attention Sink Emerges in Language Models (sail-sg/Attention-Sink)"
_LENS = "TransformerLens, head_detector"
_ONE_SIDED = "no layer is causal"


class _Roles(dict[str, Role]):
    def __missing__(self, name: str) -> Role:
        """The kept share of a name such as ``kept_64_4``."""
        sizes = re.fullmatch(r"kept_(\d+)_(\d+)", name)
        if sizes is None:
            raise KeyError(name)
        recent, sinks = map(int, sizes.groups())
        return Role(
            name,
            f"kept {recent}+{sinks}",
            f"Share of the weight on tokens that a cache of the latest {recent} and the first {sinks} tokens keeps, "
            "for queries that see more tokens.",
            "Xiao et al. 2024, StreamingLLM (the cache)",
            lambda measured: measured.cached(recent, sinks),
            layers=LOOKS_BACK,
            otherwise=_ONE_SIDED,
            exceeds=recent + sinks,
        )


ROLES: dict[str, Role] = _Roles(
    (role.name, role)
    for role in (
        Role(
            "previous_token",
            "previous token",
            "Share of the weight at offset -1; more than half makes a previous-token head.",
            f"{_CLARK}; the score is that of {_LENS}",
            lambda measured: measured.at(-1),
            threshold=0.5,
        ),
        Role(
            "next_token",
            "next token",
            "Share of the weight at offset 1; more than half makes a next-token head.",
            _CLARK,
            lambda measured: measured.at(1),
            threshold=0.5,
            layers=("self",),
            otherwise="no layer sees later tokens",
        ),
        Role(
            "current_token",
            "current token",
            "Share of the weight on the token itself.",
            _CLARK,
            lambda measured: measured.at(0),
        ),
        Role(
            "first_token",
            "first-token sink",
            "Mean weight on the first token, over all queries that see it; 0.3 or more, and twice uniform "
            "attention's, is a sink.",
            f"{_SINK}; the comparison with uniform attention is ours",
            lambda measured: measured.on(FIRST),
            threshold=0.3,
            more=MORE,  # in a short text, uniform attention reaches the threshold
            layers=ANY,
        ),
        Role(
            "sink",
            "any-token sink",
            "Largest mean weight that a key gets from the queries that see it, over the keys that at least half of the "
            "queries see; 0.3 or more, and twice uniform attention's, is a sink.",
            f"{_SINK}, for every key; the bound on late keys, which few queries see, and the comparison with uniform "
            "attention are ours",
            lambda measured: measured.most_received(),
            threshold=0.3,
            more=MORE,  # in a short text, uniform attention reaches the threshold
            layers=ANY,
        ),
        Role(
            "local",
            "local",
            "Share of the weight within 8 tokens on either side; half or more, and twice uniform attention's share, is "
            "local.",
            "attnscope scan, labels",
            lambda measured: measured.near(),
            threshold=LOCAL,
            more=MORE,
        ),
        Role(
            "delimiter",
            "delimiter",
            "Share of the weight on punctuation, line breaks and special tokens after the first position.",
            f"{_CLARK} (heads that attend to periods, commas and [SEP])",
            lambda measured: measured.on(DELIMITERS),
            layers=ANY,
        ),
        Role(
            "streaming",
            "streaming",
            "Share of the weight on the first 4 and the latest 64 tokens, for queries that see more tokens. The weight "
            "of a learned sink counts as elsewhere, unlike in a kept share. This is the attention pattern of the "
            "definition; the effect on the output is not measured here.",
            "Xiao et al. 2024, DuoAttention",
            lambda measured: measured.streamed(),
            layers=LOOKS_BACK,
            otherwise=_ONE_SIDED,
            exceeds=sum(Nearness().kept[0]),
        ),
        Role(
            "duplicate_token",
            "duplicate token",
            "On repeated random tokens: mean weight from a token's second occurrence to its first.",
            f"{_LENS}; Wang et al. 2022, Interpretability in the Wild",
            lambda measured: measured.mean(0),
            "repeated",
        ),
        Role(
            "induction",
            "induction",
            "On repeated random tokens: mean weight from a token's second occurrence to the token after its first.",
            f"{_LENS}; Olsson et al. 2022, In-context Learning and Induction Heads",
            lambda measured: measured.mean(1),
            "repeated",
            layers=LOOKS_BACK,
            otherwise=f"{_ONE_SIDED}: the next token need not be predicted there",
        ),
        Role(
            "retrieval",
            "retrieval",
            "Share of the tokens of a hidden needle that the model generates while the head's largest weight is on the "
            "same token; mean over prompts that the model answers; 0.1 or more makes a retrieval head.",
            "Wu et al. 2024, Retrieval Head Mechanistically Explains Long-Context Factuality "
            "(nightdessert/Retrieval_Head)",
            lambda measured: measured.score(),
            "needle",
            threshold=0.1,
            layers=LOOKS_BACK,
            otherwise=f"{_ONE_SIDED}: the model does not continue texts",
        ),
    )
)

PUBLISHED = tuple(ROLES)
#: Roles that only heads have whose model reads sounds.
OF_SOUNDS = ("sound_order",)
ROLES["sound_order"] = Role(
    "sound_order",
    "order of the sound",
    "On sounds with transcripts: rank correlation of the mean time of the weight that predicts a token with the order "
    "of the tokens; 0 where it falls.",
    "Radford et al. 2022, Whisper (alignment heads); the score is ours",
    lambda measured: measured.order,
    layers=("cross",),
    otherwise="it needs sounds with transcripts, and a decoder that reads these",
)


def chosen_roles(only: Sequence[str] | str | None) -> list[str]:
    """The roles that are requested: by default the published ones; ``default`` among names stands for them."""
    if only is None:
        return [*PUBLISHED]
    registry.load_records()
    names = [name.strip() for name in only.split(",")] if isinstance(only, str) else [*only]
    names += PUBLISHED if "default" in names else ()
    return chosen(
        "role", [name for name in names if name != "default"], [*PUBLISHED, *OF_SOUNDS, *registry.registered("role")]
    )


def register_role(
    function: Expecting, name: str, texts: Sequence[Any] | None, threshold: float, layers: tuple[str, ...], more: float
) -> None:
    """Add a role of a caller's own to `ROLES`, from what is expected in a text."""
    source = f"a role of {getattr(function, 'func', function).__module__}"
    definition = " ".join((getdoc(function) or f"Weight that {name} expects.").split())
    record = _own_role(name, definition, source, threshold, layers, more, expecting=function, texts=texts)
    stored = {"definition": definition, "source": source, "threshold": threshold, "layers": [*layers]}
    stored |= {"more": more, "has_texts": texts is not None}
    registry.register("role", name, record, ROLES, function, texts, threshold, layers, more, words=stored)


def _own_role(
    name: str, definition: str, source: str, threshold: float, layers: Sequence[str], more: float, **expected: Any
) -> Role:
    about: Any = {"probe": f"{name}_texts", "threshold": threshold, "layers": tuple(layers), "more": more, **expected}
    return Role(name, name.replace("_", " "), definition, source, lambda measured: measured.expected, **about)


@checked
def stored_role(
    name: str,
    *,
    definition: str,
    source: str,
    threshold: Share,
    layers: Sequence[Literal["self", "causal", "cross"]],
    more: Annotated[float, Bounds(0.0)],
    has_texts: bool,
) -> tuple[dict[str, Role], Role]:
    """A role of a caller's own as a run stores it, without its function; and its table."""
    return ROLES, _own_role(name, definition, source, threshold, layers, more, texts=() if has_texts else None)


#: Descriptions of the controls' weights, by name.
CONTROLS = {
    "initialised": "new random weights, as before training",
    "shuffled": "the model's weights, each matrix in a random order",
}
