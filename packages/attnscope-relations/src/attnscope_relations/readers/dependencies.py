"""Dependencies of treebanks: CoNLL-U, as Universal Dependencies writes it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnscope.read.files import decode_utf8, read_blocks, shown, unpacked
from attnscope.read.spans import Span
from attnscope.support.errors import AttnscopeError, explaining
from attnscope.support.numbers import count
from attnscope_relations.data import LinkedText, both_directions
from attnscope_relations.trees import is_tree

LEFT_OUT = ("punct", "root")  # a link to punctuation says nothing, and the root has no other end
_COLUMNS = 10
_BETWEEN = re.compile(r"\t|  +")  # columns, as the package conllu splits them


def dependencies(file: Path) -> Iterator[LinkedText]:
    """Sentences with their links from dependent to head, and back, by relation.

    Words of a multiword token share its characters. Where a sentence has enhanced dependencies (the column DEPS) that
    differ from the basic ones, those are links too, under their own names; links of empty nodes, which have no
    characters, are left out.
    """
    import conllu

    name = shown(file)
    content = decode_utf8(b"".join(unpacked(file, read_blocks(file))), name)
    for number, line in enumerate(content.splitlines(), start=1):
        columns = len(_BETWEEN.split(line))
        if columns < _COLUMNS and line.strip() and not line.startswith("#"):
            raise AttnscopeError(
                f"{name} is not CoNLL-U: line {number} has {count(columns, 'column')} ({line!r:.40}); expected "
                f"{_COLUMNS}, with tabs between"
            )
    with explaining(f"{name} is not CoNLL-U", "Correct it, or export it again"):
        sentences = conllu.parse(content)
    document = ""
    for number, sentence in enumerate(sentences, start=1):
        about: Any = sentence.metadata
        if {"newdoc", "newdoc id"} & about.keys():
            document = str(about.get("newdoc id") or f"document {number}")
        text, spans = _written(sentence, about.get("text"), f"{name}, sentence {number}")
        links: list[tuple[str, Span, Span]] = []
        for token in sentence:
            if not isinstance(token["id"], int):
                continue
            basic = (str(token["deprel"]), token["head"])
            enhanced = [(str(relation), head) for relation, head in token["deps"] or () if (relation, head) != basic]
            for relation, head in [basic, *enhanced]:
                if relation.partition(":")[0] not in LEFT_OUT and head in spans:
                    links.append((relation, spans[token["id"]], spans[head]))
        words = tuple(dict.fromkeys(spans.values()))
        heads = _tree(sentence, spans, words)
        named = document or f"sentence {number}"
        yield LinkedText(text, both_directions(dict.fromkeys(links)), named, words, heads=heads)


def _tree(sentence: Any, spans: Mapping[int, Span], words: Sequence[Span]) -> tuple[int | None, ...]:
    """The head of each written word by the basic relations, as in `LinkedText`; empty if they are no tree.

    A multiword token has the first head outside of it.
    """
    numbers = {span: number for number, span in enumerate(words)}
    heads: list[int | None] = [None] * len(words)
    for token in sentence:
        identity, head = token["id"], token["head"]
        if not isinstance(identity, int) or str(token["deprel"]).partition(":")[0] == "punct":
            continue
        word = numbers[spans[identity]]
        if head == 0:
            heads[word] = -1
        elif heads[word] is None and head in spans and spans[head] != spans[identity]:
            heads[word] = numbers[spans[head]]
    return tuple(heads) if is_tree(heads) else ()


def _written(sentence: Any, text: str | None, where: str) -> tuple[str, dict[int, Span]]:
    """The text of a sentence, and the characters of each word by its number."""
    surface: list[tuple[Any, range]] = []  # words and multiword tokens, as they are written, with their numbers
    last = 0
    for token in sentence:
        numbers = _numbers(token["id"])
        if numbers and numbers[-1] > last:  # else a word of a multiword token
            last = numbers[-1]
            surface.append((token, numbers))
    if text is None:
        spaces = ("" if (token["misc"] or {}).get("SpaceAfter") == "No" else " " for token, _ in surface)
        text = "".join(token["form"] + space for (token, _), space in zip(surface, spaces, strict=True)).rstrip()
    spans: dict[int, Span] = {}
    end = 0
    for token, numbers in surface:
        start = text.find(token["form"], end)
        if start < 0 or text[end:start].strip():
            raise AttnscopeError(
                f"{where}: its text {text!r:.60} does not go on with {token['form']!r}: correct one of them"
            )
        end = start + len(token["form"])
        spans |= dict.fromkeys(numbers, (start, end))
    return text, spans


def _numbers(identity: Any) -> range:
    """The numbers of the words of a token, from its first column; none of an empty node."""
    if isinstance(identity, int):
        return range(identity, identity + 1)
    first, sign, last = identity
    return range(first, last + 1) if sign == "-" else range(0)
