"""The passes of `align` over a parallel text: the links of every pair, unit after unit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr
from transformers import PreTrainedModel

from attnscope.progress import Progress, Tell, tell_nobody
from attnscope.store import Signature, package_versions, tokenizer_sha256
from attnscope.translation.alignment._forcing import ForcedPair, Forcing
from attnscope.translation.alignment._links import Gold, links, pharaoh

UNIT = 16  # batches that one process aligns before the next has its turn


@dataclass
class Work:
    """What every pass over the text needs.

    Attributes
    ----------
    layer, head
        As asked for.
    every_head
        Whether the links of every head are read too; the links of one of them, or of none, where neither layer nor head
        was asked for.
    read, run
        How links are read off the weights, and how weights are got.
    """

    model: PreTrainedModel
    tokenizer: Any
    identity: dict[str, str]
    sources: list[str]
    targets: list[str]
    layer: int | None
    head: int | None
    every_head: bool
    read: dict[str, Any]
    run: dict[str, Any]
    gold: Gold | None = None
    tell: Tell = tell_nobody

    @property
    def chooses(self) -> bool:
        """Whether layer and head are those that agree best with people."""
        return self.every_head and self.layer is None and self.head is None

    def units(self, done: Callable[[range], bool] = lambda _: False) -> Iterator[xr.Dataset]:
        """Links of unit after unit, but those that are done, by lines of Pharaoh's format.

        Yields
        ------
        xarray.Dataset
            ``source_words`` and ``target_words (text)``, how many there are; ``links (text)`` of the layer and head
            asked for, ``links_of_heads (text, layer, head)`` where every head's are read.
        """
        count, step = len(self.sources), UNIT * self.run["batch_size"]
        for start in range(0, count, step):
            lines = range(start, min(start + step, count))
            if not done(lines):
                pairs = [self._linked(pair) for pair in self._forcing.pairs(lines, self.tell)]
                yield _labelled(pairs, lines)
        self.tell(Progress("align", 1.0, {"pairs": count}))

    @cached_property
    def _forcing(self) -> Forcing:
        options = {name: self.run[name] for name in ("words", "batch_size")}
        return Forcing(self.model, self.tokenizer, self.sources, self.targets, **options)

    def signature(self, layer: int | None, head: int | None, **settings: Any) -> Signature:
        """What links of that layer and head depend on."""
        text = {
            "pairs": len(self.sources),
            "source_sha256": _digest(self.sources),
            "target_sha256": _digest(self.targets),
        }
        if self.gold is not None:  # numbered as it was read
            text["gold_sha256"] = _digest(
                [*map(pharaoh, self.gold.sure), "", *map(pharaoh, self.gold.possible)]
            )
        return Signature(
            "align",
            model=self.identity,
            tokenizer={"sha256": tokenizer_sha256(self.tokenizer)},
            text=text,
            settings={"layer": layer, "head": head, **self.run, **self.read, **settings},
            versions=package_versions(),
        )

    def signature_of_all(self, shown: int) -> Signature:
        """What all results depend on, known before anything is measured."""
        return self.signature(self.layer, self.head, every_head=self.every_head, shown=shown)

    def _linked(self, pair: ForcedPair) -> dict[str, Any]:
        """Of one pair, by the name of the variable."""
        read = {name: self.run[name] for name in ("end", "step")}
        columns = len(pair.source.words)
        linked: dict[str, Any] = {"source_words": columns, "target_words": len(pair.target.words)}
        if not self.chooses:
            weights = pair.words(self.layer, self.head, **read).weights
            linked["links"] = pharaoh(links(weights[:, :columns], **self.read))
        if self.every_head:
            of_heads = pair.words_of_heads(**read).weights
            made = np.empty(of_heads.shape[:2], dtype=object)
            for at in np.ndindex(*made.shape):
                made[at] = pharaoh(links(of_heads[at][:, :columns], **self.read))
            linked["links_of_heads"] = made
        return linked


def _labelled(pairs: Sequence[dict[str, Any]], lines: range) -> xr.Dataset:
    dims = {"links_of_heads": ("text", "layer", "head")}
    kinds = {"source_words": np.int64, "target_words": np.int64}
    return xr.Dataset(
        {
            name: (
                dims.get(name, ("text",)),
                np.array([pair[name] for pair in pairs], kinds.get(name, object)),
            )
            for name in pairs[0]
        },
        coords={"text": np.arange(lines.start, lines.stop)},
    )


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()
