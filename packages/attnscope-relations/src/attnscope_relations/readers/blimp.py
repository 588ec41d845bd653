"""Minimal pairs as BLiMP writes them (Warstadt et al. 2020)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count
from attnscope_relations.data import AGREEMENT, LinkedText, of_object

_WORD = re.compile(r"\S+")
_LETTERS = re.compile(r"\w(?:\S*\w)?")  # of a word, without the punctuation around it
_FORM = '{"verb": [20, 25], "subject": [4, 8]}'


def of_blimp(value: Mapping[str, Any], where: str) -> LinkedText:
    """A line of BLiMP as a minimal pair, with a link that is named after its paradigm (``UID``).

    In a pair of two prefixes the link is from the word after them (``two_prefix_word``) to the one in which they
    differ. Of other pairs BLiMP marks one end alone, the word in which they differ: lines need a ``subject``, its
    characters in the good sentence. ``verb`` and ``pairs`` may be added likewise.
    """
    good, bad = value.get("sentence_good"), value.get("sentence_bad")
    paradigm = str(value.get("UID", AGREEMENT))
    pair = {"good": good, "bad": bad, "name": paradigm, "document": f"{paradigm} {value.get('pairID', where)}"}
    pair |= {name: value[name] for name in ("verb", "subject", "pairs") if name in value}
    is_marked = "pairs" in pair or {"verb", "subject"} <= pair.keys()
    if not is_marked and isinstance(good, str) and isinstance(bad, str) and good != bad:
        pair |= _ends(value, good, bad, where)
    return of_object(pair, where)


def _ends(value: Mapping[str, Any], good: str, bad: str, where: str) -> dict[str, Any]:
    """The verb and the subject of a pair, from the word in which its sentences differ."""
    pairs = zip_longest(_WORD.finditer(good), _WORD.finditer(bad))
    differ = [word for word, other in pairs if word is None or other is None or word[0] != other[0]]
    if len(differ) != 1 or differ[0] is None:
        raise AttnscopeError(
            f"{where}: sentence_good and sentence_bad differ in {count(len(differ), 'word')}; expected one, or the "
            f"characters of two words of sentence_good that belong together, such as {_FORM}"
        )
    letters = _LETTERS.search(good, *differ[0].span())
    word = (letters or differ[0]).span()
    if "verb" in value:
        raise AttnscopeError(f"{where}: found a verb without a subject; expected both, such as {_FORM}")
    if "subject" in value:
        return {"verb": word}
    prefix, following = value.get("two_prefix_prefix_good"), value.get("two_prefix_word")
    if isinstance(prefix, str) and isinstance(following, str) and good.startswith(prefix):
        start = good.find(following, len(prefix))
        if start >= 0:
            return {"verb": (start, start + len(following)), "subject": word}
    raise AttnscopeError(
        f"{where}: BLiMP does not mark the word that {good[slice(*word)]!r:.40} depends on. Add its characters in "
        'sentence_good to the line, such as {"subject": [4, 8]}'
    )
