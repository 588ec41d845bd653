"""From a translation model's cross-attention to weights between words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from attnscope.errors import AttnscopeError
from attnscope.translation.alignment._pieces import NO_WORD


@dataclass(frozen=True, eq=False)
class WordAlignment:
    """The weights of one sentence pair between words.

    Attributes
    ----------
    source, target
        The words.
    weights
        ``(..., target, source)``; with ``end="keep"`` one more column, the marks.

    Examples
    --------
    >>> import numpy as np
    >>> from attnscope.translation.alignment import WordAlignment
    >>> pair = WordAlignment(["ein", "Hund"], ["a", "dog"], np.array([[0.8, 0.2], [0.1, 0.9]]))
    >>> [(word, pair.source[row.argmax()]) for word, row in zip(pair.target, pair.weights)]
    [('a', 'ein'), ('dog', 'Hund')]
    """

    source: list[str]
    target: list[str]
    weights: np.ndarray


def word_weights(
    weights: Float[np.ndarray, "*lead n m"],
    source_words: Int[np.ndarray, " m"],
    target_words: Int[np.ndarray, " n"],
    *,
    end: str = "drop",
    step: str = "predicts",
    sizes: tuple[int, int] | None = None,
) -> Float[np.ndarray, "*lead target source"]:
    """Merge weights between subwords into weights between words.

    A source word gets the sum over its pieces (its share of the row), a target word the mean over its pieces.

    Row t of a decoder's cross-attention is of the step that *predicts* target token t: its input is token t-1. Row
    t+1 *reads* token t. Both are used as "the row of a word": trained models often, but not always, look at the
    source of a word before they write it; where they look one step late, the rows of ``"reads"`` are the better ones.

    Parameters
    ----------
    weights
        One row for each target token (in the order of the labels), one column for each source token.
    source_words, target_words
        For each token the number of its word, from 0; -1 for ``</s>`` and other marks.
    end
        What becomes of the weight on marks: ``drop`` divides each row by what is left; ``keep`` adds a last column
        for it; ``null`` does as drop, but a target word of which more lies on marks than on any word is all zero,
        that is, not aligned.
    step
        ``predicts`` or ``reads``. The latter needs a token, such as ``</s>``, after the last piece of a word.
    sizes
        Numbers of source and target words, where some at the end have no token; by default the last word seen.

    Returns
    -------
    numpy.ndarray
        ``(..., target word, source word)``. Rows sum to 1 unless zero; the row of a word without token is zero.

    Raises
    ------
    AttnscopeError
        If a choice is not known, or no step reads the last token.

    References
    ----------
    Garg et al., "Jointly learning to align and translate with Transformer models" (EMNLP 2019), for merging; Chen et
    al., "Accurate word alignment induction from neural machine translation" (EMNLP 2020), for the shift.

    Examples
    --------
    >>> import numpy as np
    >>> from attnscope.translation.alignment import word_weights
    >>> weights = np.array([[0.5, 0.25, 0.0, 0.25], [0.0, 0.0, 0.5, 0.5], [0.0, 0.0, 0.0, 1.0]])
    >>> words = np.array([0, 0, 1, -1])  # two pieces, one piece, </s>
    >>> word_weights(weights, words, np.array([0, 1, -1])).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    >>> word_weights(weights, words, np.array([0, 1, -1]), end="keep").tolist()
    [[0.75, 0.0, 0.25], [0.0, 0.5, 0.5]]
    """
    if end not in {"drop", "keep", "null"}:
        raise AttnscopeError(f"end {end!r} is not known: choose drop, keep or null")
    if step not in {"predicts", "reads"}:
        raise AttnscopeError(f"step {step!r} is not known: choose predicts or reads")
    sources, targets = sizes or (int(source_words.max(initial=-1)) + 1, int(target_words.max(initial=-1)) + 1)
    by_source = _membership(source_words, sources)  # (m, source)
    by_target = _membership(target_words, targets).T  # (target, n)
    if step == "reads":
        if by_target[:, -1:].any():
            raise AttnscopeError("no step reads the last target token: it must end with a mark such as </s>")
        by_target = np.roll(by_target, 1, axis=1)  # row t + 1 reads token t
    by_target = by_target / np.maximum(by_target.sum(1, keepdims=True), 1)
    rows = by_target @ weights.astype(np.float64)
    on_words = rows @ by_source
    on_marks = rows[..., source_words == NO_WORD].sum(-1, keepdims=True)
    if end == "keep":
        return np.concatenate([on_words, on_marks], -1)
    left = on_words.sum(-1, keepdims=True)
    kept = np.divide(on_words, left, out=np.zeros_like(on_words), where=left > 0)
    if end == "null":
        kept[(on_marks > on_words.max(-1, keepdims=True, initial=0))[..., 0]] = 0
    return kept


def _membership(words: np.ndarray, count: int) -> np.ndarray:
    """(token, word): 1 where the token belongs to the word."""
    return (words[:, None] == np.arange(count)).astype(np.float64)
