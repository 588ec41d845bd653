"""What is planted in a model, before it is written into the weights of an architecture."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from attnscope.zoo._heads import Head
from attnscope.zoo._positions import Positions
from attnscope.zoo._space import Space

ARCHITECTURES = {
    "decoder": ("gpt2", "llama"),
    "encoder": ("pre-norm", "bert"),
    "encoder-decoder": ("pre-norm", "post-norm"),
}


@dataclass(frozen=True)
class Setting:
    """Which animal is asked for.

    Attributes
    ----------
    form
        ``decoder``, ``encoder`` or ``encoder-decoder``.
    architecture
        One of `ARCHITECTURES` of that form.
    noise
        Standard deviation of what is added to every weight, as a share of the root mean square of its matrix.
    seed
        Seed of everything that is drawn.
    """

    form: str
    architecture: str
    noise: float
    seed: int


@dataclass(eq=False)
class Plan:
    """A model in the directions of its `Space`: tokens in, heads of every attention call, answers out.

    Attributes
    ----------
    setting, space, positions
        Form and architecture, the parts of the residual stream, how offsets are known.
    tokens, unembed
        ``(vocabulary, width)``: what each token is, and what its logit reads.
    calls
        Heads of each attention call, in the order of the forward pass.
    encoder_calls
        How many of them are the encoder's, where a decoder stands beside it; the decoder's are then self and cross in
        turn.
    head_width
        Columns of a head's queries, keys and values.
    """

    setting: Setting
    space: Space
    positions: Positions
    tokens: Float[np.ndarray, "vocabulary width"]
    unembed: Float[np.ndarray, "vocabulary width"]
    head_width: int
    encoder_calls: int = 0
    calls: list[list[Head]] = field(default_factory=list[list[Head]])

    @property
    def layers(self) -> int:
        """Feed-forward parts: one an attention call, or one a self and cross pair."""
        return self.encoder_calls + (len(self.calls) - self.encoder_calls) // self.calls_a_layer

    @property
    def calls_a_layer(self) -> int:
        """Attention calls of a layer of the decoder."""
        return 2 if self.setting.form == "encoder-decoder" else 1
