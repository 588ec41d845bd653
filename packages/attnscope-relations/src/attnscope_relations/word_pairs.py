"""Links from one word to another, in plain texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnscope.bundled import MODEL
from attnscope.capture.modalities import reject_modalities
from attnscope.detection.examples import matcher
from attnscope.read.encoded import texts_of
from attnscope.read.texts import Corpus
from attnscope.read.words import Words, joined, word_rule_of
from attnscope.support.errors import AttnscopeError
from attnscope_relations.data import Link, LinkedText


def texts_with_words(
    texts: Any, query: str | None, key: str | None, rule: Words, reading: Mapping[str, Any]
) -> list[LinkedText]:
    """Texts in which the one word occurs with the other, with a link from each occurrence to all of the other."""
    if query is None or key is None:
        raise AttnscopeError("found only one of --from and --to (query, key): give both words")
    is_query, is_key = matcher(query, "query (--from)"), matcher(key, "key (--to)")
    reject_modalities("relations", MODEL, texts, field=reading["field"])
    corpus = texts_of(texts, field=reading["field"], by_line=reading["by_line"])
    if not isinstance(corpus, Corpus):
        raise AttnscopeError("found token ids; words need texts: give strings or files")
    spans_of = word_rule_of(rule).spans
    found: list[LinkedText] = []
    present: set[str] = set()
    for text in corpus:
        spans = [(start, end) for start, end in spans_of(text.content)]
        words = joined(spans, text.content, (query.strip(), key.strip()))
        written = [(span, text.content[slice(*span)]) for span in words]
        queries = [span for span, word in written if is_query(word)]
        keys = tuple(span for span, word in written if is_key(word))
        present.update([query] * bool(queries), [key] * bool(keys))
        links = tuple(Link(f"{query} → {key}", span, keys) for span in queries if keys)
        found.append(LinkedText(text.content, links, text.name, tuple(words)))
    if not any(text.links for text in found):
        absent = [word for word in (query, key) if word not in present]
        named = f"the word {absent[0]!r}" if len(absent) == 1 else f"the words {query!r} and {key!r}"
        raise AttnscopeError(
            f"found no text with {named} among {len(found)}. Give other words, or patterns between slashes (/[Ii]t/)"
        )
    return [text for text in found if text.links]
