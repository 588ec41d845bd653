"""What a configuration may say."""

from __future__ import annotations

from collections.abc import Sequence

from attnscope.errors import AttnscopeError


def check_choice(name: str, value: str, known: Sequence[str]) -> None:
    """Refuse a word that means nothing here.

    Examples
    --------
    >>> check_choice("cell", "rnn", ["gru", "lstm"])
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: cell 'rnn' is not known: choose gru, lstm
    """
    if value not in known:
        raise AttnscopeError(f"{name} {value!r} is not known: choose {', '.join(known)}")
