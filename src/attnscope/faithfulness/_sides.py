"""Where the tokens of a text and of its target stand."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Sides:
    """Where the tokens of either text stand, in matrices over both: first the source, then the target.

    Attributes
    ----------
    source, target
        Tokens of each. A model of one text has no target.

    Examples
    --------
    >>> sides = Sides(3, 2)
    >>> sides.tokens, sides.of("cross"), sides.of("causal")
    (5, (slice(3, 5, None), slice(0, 3, None)), (slice(3, 5, None), slice(3, 5, None)))
    >>> Sides(3, 0).of("causal")
    (slice(0, 3, None), slice(0, 3, None))
    """

    source: int
    target: int

    @property
    def tokens(self) -> int:
        """How many tokens both sides have together."""
        return self.source + self.target

    @property
    def predicting(self) -> slice:
        """The tokens at which the model predicts: a decoder's, where there is one."""
        return slice(self.source, self.tokens) if self.target else slice(0, self.source)

    def of(self, kind: str) -> tuple[slice, slice]:
        """Queries and keys of an attention call: beside an encoder, only a decoder looks back or across."""
        source, target = slice(0, self.source), slice(self.source, self.tokens)
        if not self.target:
            return source, source
        return source if kind == "self" else target, target if kind == "causal" else source


def sides_of(inputs: dict[str, Tensor]) -> Sides:
    """How many tokens there are of either text.

    Examples
    --------
    >>> import torch
    >>> sides_of({"input_ids": torch.zeros(1, 3), "decoder_input_ids": torch.zeros(1, 2)})
    Sides(source=3, target=2)
    """
    target = inputs.get("decoder_input_ids")
    return Sides(inputs["input_ids"].shape[1], 0 if target is None else target.shape[1])
