"""Links from one word to another, in plain texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import regex

from attnscope.detection.examples import matcher
from attnscope.read.encoded import texts_of
from attnscope.read.texts import Corpus
from attnscope.read.words import word_rule_of
from attnscope.support.errors import AttnscopeError
from attnscope_relations.data import Link, LinkedText


def texts_with_words(texts: Any, query: str | None, key: str | None, reading: Mapping[str, Any]) -> list[LinkedText]:
    """Texts in which the one word occurs with the other, with a link from each occurrence to all of the other."""
    if query is None or key is None:
        raise AttnscopeError("found only one of --from and --to (query, key): give both words")
    is_query, is_key = matcher(query, "query (--from)"), matcher(key, "key (--to)")
    corpus = texts_of(texts, field=reading["field"], by_line=reading["by_line"])
    if not isinstance(corpus, Corpus):
        raise AttnscopeError("found token ids; words need texts: give strings or files")
    spans_of = word_rule_of("unicode").spans
    found: list[LinkedText] = []
    for text in corpus:
        words = _joined(spans_of(text.content), text.content, (query, key))
        written = [(span, text.content[slice(*span)]) for span in words]
        queries = [span for span, word in written if is_query(word)]
        keys = tuple(span for span, word in written if is_key(word))
        links = tuple(Link(f"{query} → {key}", span, keys) for span in queries if keys)
        found.append(LinkedText(text.content, links, text.name, tuple(words)))
    if not any(text.links for text in found):
        raise AttnscopeError(
            f"found no text with the words {query!r} and {key!r} among {len(found)}. Give other words, or patterns "
            "between slashes (/[Ii]t/)"
        )
    return [text for text in found if text.links]


def _joined(words: list[tuple[int, int]], text: str, joins: tuple[str, str]) -> list[tuple[int, int]]:
    """Adjacent words that spell one of these as one word."""
    for wanted in (word.strip() for word in joins):
        starts, ends = ({span[side]: number for number, span in enumerate(words)} for side in (0, 1))
        for start, end in reversed([match.span() for match in regex.finditer(regex.escape(wanted), text)]):
            if start in starts and end in ends:
                words[starts[start] : ends[end] + 1] = [(start, end)]
    return words
