"""The pairs of one call of `patch`: cut into batches, checked, and measured batch after batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from attnscope.capture import TOLERANCE, LoadedModel, verify
from attnscope.errors import AttnscopeError
from attnscope.faithfulness._attribution_patching import estimated
from attnscope.faithfulness._inquiry import TOKENS, check_read
from attnscope.faithfulness._patching import patched
from attnscope.faithfulness._path_patching import patched_through
from attnscope.faithfulness._runs import Direction, encoded_pairs, is_masked
from attnscope.faithfulness.passes import EncodedPairs, Pair, same_without_what_is_skipped, token_count
from attnscope.progress import Progress, Tell
from attnscope.statistics import window_length

if TYPE_CHECKING:
    from attnscope.faithfulness._patching import What


@dataclass(eq=False)
class PatchJob:
    """What one call of `patch` measures: see there."""

    loaded: LoadedModel
    pairs: Sequence[Pair]
    what: What
    by_position: bool
    direction: Direction
    receiver: tuple[int, int] | None
    steps: int
    variants: int | None
    tell: Tell
    _done: int = 0

    def batches(self, size: int | None) -> list[tuple[list[int], EncodedPairs]]:
        """Numbers of the pairs of each batch, and the pairs; those of a batch are as long in tokens."""
        masked = is_masked(self.loaded)
        lengths = [
            token_count(pair, self.loaded.tokenizer, number, masked=masked)
            for number, pair in enumerate(self.pairs, 1)
        ]
        longest = window_length(self.loaded, None)
        if max(lengths) > longest:
            raise AttnscopeError(
                f"pair {int(np.argmax(lengths)) + 1} has {max(lengths)} tokens; {self.loaded.name} takes {longest} at "
                "most: shorten its texts"
            )
        if self.by_position and len(set(lengths)) > 1:
            raise AttnscopeError(
                f"pairs have {min(lengths)} to {max(lengths)} tokens; expected all as long, so that a position means "
                "the same in all: give those of one length at a time, or patch heads at all positions"
            )
        batches: list[tuple[list[int], EncodedPairs]] = []
        for length in sorted(set(lengths)):
            same = [number for number, size in enumerate(lengths, 1) if size == length]
            most = size or max(1, TOKENS // length)
            for first in range(0, len(same), most):
                numbers = same[first : first + most]
                some = [self.pairs[number - 1] for number in numbers]
                batches.append((numbers, encoded_pairs(self.loaded, some, numbers)))
        return batches

    def check(self, batches: Sequence[tuple[list[int], EncodedPairs]]) -> bool:
        """Refuse a model whose heads cannot be patched; whether passes may leave out what does not differ."""
        model, (numbers, encoded) = self.loaded.model, batches[0]
        inputs = {"input_ids": encoded.clean[:1]}
        sites, _ = verify(model, inputs, text=f"pair {numbers[0]}")
        check_read(self.loaded, inputs)
        if self.receiver is not None and not 0 < self.receiver[0] < len(sites):
            raise AttnscopeError(
                f"the receiver (--receiver) is {self.receiver[0]}.{self.receiver[1]}; expected layer.head with a layer "
                f"from 1 to {len(sites) - 1}, so that layers lie below it"
            )
        return same_without_what_is_skipped(model, inputs, encoded.places[:1], states=self.what == "residual")

    def measured(self, numbers: list[int], encoded: EncodedPairs, skips: bool) -> xr.Dataset:
        """Differences and estimates of one batch."""
        if self.receiver is not None:
            patched_pairs = patched_through(
                self.loaded,
                encoded,
                self.receiver,
                direction=self.direction,
                variants=self.variants,
                skips=skips,
            )
        else:
            patched_pairs = patched(
                self.loaded,
                encoded,
                what=self.what,
                by_position=self.by_position,
                direction=self.direction,
                variants=self.variants,
                skips=skips,
            )
        if self.steps:
            by_name = {"attribution": 1, **({"eap_ig": self.steps} if self.steps > 1 else {})}
            estimates = [
                estimated(
                    self.loaded, encoded, by_position=self.by_position, direction=self.direction, steps=steps
                ).estimate
                for steps in by_name.values()
            ]
            patched_pairs["estimate"] = xr.concat(estimates, "estimator").transpose("pair", "estimator", ...)
            patched_pairs = patched_pairs.assign_coords(estimator=list(by_name))
        self._done += len(numbers)
        self.tell(Progress("patching", self._done / len(self.pairs), {"pairs": self._done}))
        return patched_pairs.assign_coords(self._labels(numbers, encoded)).assign_attrs(
            rounding=TOLERANCE[self.loaded.model.dtype], what=self.what
        )

    def _labels(self, numbers: list[int], encoded: EncodedPairs) -> dict[str, object]:
        """Number, texts and answers of each pair; its tokens, where there are positions."""
        some = [self.pairs[number - 1] for number in numbers]
        labels: dict[str, object] = {"pair": numbers}
        for name in ("clean", "corrupted", "answer", "wrong"):
            labels[f"{name}_text"] = ("pair", np.array([getattr(pair, name) for pair in some], dtype=object))
        if self.by_position:
            for name, tokens in (("clean", encoded.tokens), ("corrupted", encoded.corrupted_tokens)):
                labels[f"{name}_token"] = (("pair", "position"), np.array(tokens, dtype=object))
        return labels
