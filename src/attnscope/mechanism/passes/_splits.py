"""Queries and keys of one text as position plus content."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from attnscope.attention import AttentionCall
from attnscope.capture import Site
from attnscope.errors import AttnscopeError
from attnscope.mechanism.evidence import Projections, Tokens, centred_keys, model_inputs, projections
from attnscope.mechanism.passes._first_layer import FirstLayerSplit, first_layer_split

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@runtime_checkable
class Splitter(Protocol):
    """A way to tell position from content: it sees all texts once, and then splits one after the other."""

    def add(self, site: Site, call: AttentionCall) -> None:
        """Learn from a batch of texts."""
        ...

    def prepare(self, tokens: Tokens) -> None:
        """Make ready for one text."""
        ...

    def __call__(self, site: Site, call: AttentionCall) -> PositionAndContent:
        """Split that text's queries and keys."""
        ...


@dataclass(frozen=True, eq=False)
class PositionAndContent:
    """Position and content of the queries and keys of one layer and one text, ``(head or kv_head, position, r)``."""

    query_position: Tensor
    query_content: Tensor
    key_position: Tensor
    key_content: Tensor

    def terms(self, call: AttentionCall) -> list[AttentionCall]:
        """Calls whose scores are PP, PC, CP and CC."""
        return [
            _scoring(call, query, key)
            for query in (self.query_position, self.query_content)
            for key in (self.key_position, self.key_content)
        ]

    def coalitions(self, call: AttentionCall) -> Iterator[AttentionCall]:
        """Calls whose scores are every choice of PP, PC, CP and CC, by the bits of their number; keys about their mean.

        Position and content of a query stand side by side and each meets the keys of its own terms, where these
        differ; a side without a term is left out.
        """
        queries = _choices(call, self.query_position, self.query_content)
        keys = _choices(call, *centred_keys(call, [self.key_position, self.key_content]))
        for members in range(16):
            met = members & 3, members >> 2  # keys that the queries' position and their content meet
            if met[0] == met[1]:
                yield _scoring(call, queries[3], keys[met[0]])
            else:
                pairs = [(queries[side], keys[met[side - 1]]) for side in (1, 2) if met[side - 1]]
                query, key = (torch.cat(parts, -1) for parts in zip(*pairs, strict=True))
                yield _scoring(call, query, key)

    def mean_query(self, call: AttentionCall) -> AttentionCall:
        """A call in which every query is the mean query: a bias that depends on the key only."""
        query = self.query_position + self.query_content
        return _scoring(
            call, query.mean(1, keepdim=True).expand_as(query), self.key_position + self.key_content
        )


def _choices(call: AttentionCall, position: Tensor, content: Tensor) -> list[Tensor]:
    """Nothing, position, content and both, in the type that is attended in."""
    whole = [torch.zeros_like(position), position, content, position + content]
    return [part.to(_attended(call)).contiguous() for part in whole]


def _attended(call: AttentionCall) -> torch.dtype:
    return call.query.dtype if call.query.dtype == torch.float64 else torch.float32


def _scoring(call: AttentionCall, query: Tensor, key: Tensor) -> AttentionCall:
    """The call of one text with other queries and keys, and values of no width to speak of."""
    single = _attended(call)
    return replace(
        call,
        query=query[None].to(single),
        key=key[None].to(single).contiguous(),
        value=key.new_zeros(1, *key.shape[:-1], 1, dtype=single),
    )


@dataclass(eq=False)
class MeanSplit:
    """The position part is the mean over texts."""

    sums: dict[int, tuple[Tensor, Tensor]] = field(
        default_factory=dict
    )  # site: query and key, each (head, position, r)
    counts: dict[int, int] = field(default_factory=dict)

    def add(self, site: Site, call: AttentionCall) -> None:
        query, key = (side.double().sum(0) for side in (call.query, call.key))
        before = self.sums.get(site.index, (0, 0))
        self.sums[site.index] = before[0] + query, before[1] + key
        self.counts[site.index] = self.counts.get(site.index, 0) + len(call.query)

    def prepare(self, tokens: Tokens) -> None:
        """Nothing depends on the text."""

    def __call__(self, site: Site, call: AttentionCall) -> PositionAndContent:
        query, key = (side[0].double() for side in (call.query, call.key))
        query_mean, key_mean = (part / self.counts[site.index] for part in self.sums[site.index])
        return PositionAndContent(query_mean, query - query_mean, key_mean, key - key_mean)


@dataclass(eq=False)
class ExactSplit:
    """The position part is what the table adds."""

    model: PreTrainedModel
    splits: dict[int, FirstLayerSplit] = field(default_factory=dict)
    matrices: dict[int, Projections] = field(default_factory=dict)

    def add(self, site: Site, call: AttentionCall) -> None:
        """Nothing is learned from other texts."""

    def prepare(self, tokens: Tokens) -> None:
        given = model_inputs(self.model, tokens)
        self.splits = {site.index: split for site, split in first_layer_split(self.model, given).items()}
        if not self.matrices:
            self.matrices = {site.index: made for site, made in projections(self.model, given).items()}

    def __call__(self, site: Site, call: AttentionCall) -> PositionAndContent:
        if site.index not in self.splits:
            raise AttnscopeError(
                f"layer {site.index} does not read a position table (layers that do: {sorted(self.splits)}): "
                "choose one of these, or method='means'"
            )
        split, matrix = self.splits[site.index], self.matrices[site.index]
        if matrix.form != "bilinear":
            raise AttnscopeError(
                f"the scores of layer {site.index} are {matrix.form}, not bilinear in X: use method='means'"
            )
        heads, device = call.query.shape[1], call.query.device
        weights = [matrix.of_head(head) for head in range(heads)]
        query = np.stack([split.position @ W_Q for W_Q, _, _, _ in weights])
        key = np.stack([split.position @ weights[head][2] for head in range(0, heads, call.group)])
        # a model may scale its queries before the call: the matrices' scale holds all factors
        query_position = torch.from_numpy(query * matrix.scale / call.scale).to(device)
        key_position = torch.from_numpy(key).to(device)
        return PositionAndContent(
            query_position,
            call.query[0].double() - query_position,
            key_position,
            call.key[0].double() - key_position,
        )
