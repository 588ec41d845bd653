"""One text that was read whole: every layer's weights, what is predicted, and the way of gradients between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnscope.corpus import window_name
from attnscope.errors import AttnscopeError
from attnscope.faithfulness._calls import weights_of
from attnscope.faithfulness._embeddings import embedding_leaves
from attnscope.faithfulness._given import inputs_of
from attnscope.faithfulness._limits import check_matrices
from attnscope.faithfulness._predictions import lacks_predictions, log_probabilities
from attnscope.faithfulness._sides import sides_of
from attnscope.faithfulness.contributions._blocks import find_blocks
from attnscope.faithfulness.contributions._record import record
from attnscope.faithfulness.contributions._through import cannot_follow
from attnscope.mechanism.evidence import FOR_MATCHING

if TYPE_CHECKING:
    from attnscope.faithfulness._given import Given


class OneText:
    """The first window of what is given, and the places of it whose predictions are asked about.

    Attributes
    ----------
    model, inputs, name, sides
        What was read.
    records, weights
        Records and weights of every attention call; the weights are ``(head, query, key)``.
    leaves
        Vectors of the tokens, source before target.
    places, rows
        The places, among the tokens that predict and among all.
    headless, unfollowed
        Why there are no predictions, and why layers cannot be multiplied; empty where they can.
    positions, predicted, outcomes
        Where logits are read, log probabilities ``(place, outcome)``, and the ids asked about; nothing where there are
        no predictions.

    Examples
    --------
    >>> from attnscope.faithfulness._given import given_texts
    >>> one = OneText(given_texts(texts="The tide is out.", limit=1), [2], None, differentiable=False)
    >>> len(one.records), tuple(one.weights[0].shape), tuple(one.predicted.shape)
    (3, (4, 9, 9), (1, 640))
    """

    def __init__(
        self,
        given: Given,
        places: Sequence[int] | None,
        outcomes: Sequence[int] | None,
        *,
        differentiable: bool,
    ) -> None:
        self.model, self.inputs = given.model, inputs_of(given.model, given.windows[0])
        self.name, self.sides = window_name(given.windows[0], 0), sides_of(self.inputs)
        self.places = self._numbered(places)
        self.rows = [self.sides.predicting.start + query for query in self.places]
        self.headless = lacks_predictions(self.model, self.inputs)
        blocks = find_blocks(self.model, {name: ids[:, :FOR_MATCHING] for name, ids in self.inputs.items()})
        with embedding_leaves(self.model, self.inputs) as self.leaves:
            self.records, output = record(
                self.model,
                self.inputs,
                blocks,
                self.name,
                differentiable=differentiable and not self.headless,
                with_head=not self.headless,
            )
        self.unfollowed = cannot_follow(self.sides, self.records)
        check_matrices((record.call for record in self.records), self.name, in_a_graph=False)
        with torch.no_grad():
            self.weights = [weights_of(record.call)[0] for record in self.records]
        self.positions = torch.zeros(0, dtype=torch.int64)
        self.predicted, self.outcomes = torch.zeros(0, 0, dtype=torch.float32), list[int]()
        if not self.headless:
            self._predict(output, outcomes)

    @property
    def kinds(self) -> list[str]:
        """Of each attention call."""
        return [record.site.kind for record in self.records]

    def _predict(self, output: Tensor, outcomes: Sequence[int] | None) -> None:
        of_text = output.ndim == 2  # noqa: PLR2004 one prediction of the whole text
        if of_text and len(self.places) != 1:
            raise AttnscopeError(
                f"{type(self.model).__name__} gives one prediction a text, and {len(self.places)} places were asked "
                "for: give the one place that its head reads, such as places=[0]"
            )
        self.positions = torch.tensor([0] if of_text else self.places)
        self.predicted = log_probabilities(output, self.positions)[0]
        best = self.predicted.argmax(-1).tolist()
        self.outcomes = best if outcomes is None else list(outcomes)
        known = self.predicted.shape[-1]
        if len(self.outcomes) != len(best) or not all(0 <= outcome < known for outcome in self.outcomes):
            raise AttnscopeError(
                f"found outcomes {self.outcomes[:5]} for {len(best)} places; expected one for each, from 0 to "
                f"{known - 1}"
            )

    def _numbered(self, places: Sequence[int] | None) -> list[int]:
        known = self.sides.predicting.stop - self.sides.predicting.start
        chosen = list(range(known)) if places is None else list(places)
        for place in chosen:
            if not 0 <= place < known:
                raise AttnscopeError(f"there is no place {place}: places are counted from 0 to {known - 1}")
        if not chosen:
            raise AttnscopeError("no place was named: give at least one in places, or leave it out for all")
        return chosen
