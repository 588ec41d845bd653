"""What a walk through one head gives: every number of it, by name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr


@dataclass(frozen=True, eq=False)
class Walk:
    """One head's attention over one sentence, step by step; float64, checked against the model's own numbers.

    Attributes
    ----------
    model, module
        Names of the model and of the attention module.
    layer, head, heads
        Which one, of how many; counted from 0.
    kinds
        ``"self"``, ``"causal"`` or ``"cross"``, of every layer.
    kv_heads
        Heads that have keys and values of their own.
    form, reason
        Form of the scores, and why it is so: see `attnscope.mechanism.evidence.Projections`. Where the form is
        ``"rope"``, Q and K are turned by their positions; where it is ``"normalised"`` or ``"unknown"``, they are the
        model's own.
    scale
        Factor of the scores.
    softcap
        Scores become ``softcap * tanh(scores / softcap)``, or None.
    tokens, keys
        What is shown for each query and each key.
    token
        Position of the query whose row is followed.
    arrays
        By symbol, with the dimensions ``query``, ``key`` and those of the matrices: ``X``, ``W_Q``, ``b_Q`` and so on
        (where they are known), ``Q``, ``K``, ``V``, ``products`` (Q Kᵀ), ``scaled``, ``scores`` (after soft cap and
        bias), ``allowed``, ``weights``, ``unscaled_weights`` (had nobody divided), ``head_output``, ``concatenated``,
        ``result``.
    errors
        Largest difference from the model's own numbers, as a share of the largest of these.
    texts
        How many texts were computed at once; the arrays are those of the first.
    target
        What the decoder of an encoder-decoder says, where that is known; it reads it one token late.
    translated
        Whether the model itself said so, as no target was given.
    drawn
        Whether X and the matrices were drawn at random.

    Examples
    --------
    >>> import attnscope
    >>> walked = attnscope.walk("bundled", "The tide is out.", layer=0, head=3)
    >>> row = walked.arrays["weights"][walked.token]
    >>> walked.tokens[walked.token], walked.keys[int(row.argmax("key"))], round(float(row.sum()), 6)
    ('.', 'ut', 1.0)
    """

    model: str
    module: str
    layer: int
    head: int
    heads: int
    kv_heads: int
    kinds: tuple[str, ...]
    form: str
    reason: str
    scale: float
    softcap: float | None
    tokens: tuple[str, ...]
    keys: tuple[str, ...]
    token: int
    arrays: xr.Dataset
    errors: dict[str, float]
    texts: int = 1
    target: str = ""
    translated: bool = False
    drawn: bool = False

    @property
    def layers(self) -> int:
        """How many there are."""
        return len(self.kinds)

    @property
    def kind(self) -> str:
        """That of the layer."""
        return self.kinds[self.layer]

    @property
    def of_decoder(self) -> bool:
        """Whether the layer is one of a decoder beside an encoder."""
        return "cross" in self.kinds and self.kind != "self"

    @property
    def starts_stack(self) -> bool:
        """Whether the layer reads words: the first of all, or of a decoder beside an encoder."""
        return self.layer == 0 or (self.of_decoder and self.kinds.index("causal") == self.layer)

    @property
    def is_toy(self) -> bool:
        """Whether it is one module without a model around it: the example, or yours."""
        return not self.module

    def __getitem__(self, symbol: str) -> np.ndarray:
        """Return one array."""
        return self.arrays[symbol].values

    def __contains__(self, symbol: str) -> bool:
        """Whether there is such an array."""
        return symbol in self.arrays


def entropy(weights: np.ndarray) -> np.ndarray:
    """Entropy of each row in nats.

    Examples
    --------
    >>> entropy(np.array([[0.5, 0.5], [1.0, 0.0]])).round(4).tolist()
    [0.6931, 0.0]
    """
    logs = np.log(weights, where=weights > 0, out=np.zeros_like(weights))
    return np.abs((weights * logs).sum(-1))
