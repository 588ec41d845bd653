"""Windows whose special tokens are not where a single text has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnscope.read.windows import Window

_TWICE = 3  # tokens of the shortest text that has one twice, and text


def has_twice(window: Window) -> bool:
    """Whether a window begins or ends with one special token twice, as where it is in the text and is added."""
    ids, special = window.ids, window.special
    return len(ids) >= _TWICE and any(
        ids[end] == ids[inner] and special[end] and special[inner] for end, inner in ((0, 1), (-1, -2))
    )


def is_packed(window: Window, tokenizer: Any, *, looks_back: bool) -> bool:
    """Whether a token that begins a text, or (in causal models) ends one, stands between other tokens of a window."""
    begin, end = (getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos"))
    borders = {begin, end} if looks_back else {begin} - {end}
    real = [place for place, special in enumerate(window.special) if not special]
    return bool(real) and any(token in borders for token in window.ids[real[0] : real[-1]])
