"""Texts with links: what belongs together in each, by the name of its relation."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from attnscope.read.files import files_below, inner_suffix, json_objects, shown
from attnscope.read.spans import Span
from attnscope.read.words import word_rule_of
from attnscope.statistics.units import Repeats
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count

#: What is added to the name of a relation that is read from its other end.
REVERSED = " (reversed)"
#: The same from the word before: a causal model predicts a word from there.
BEFORE = " (word before)"
AGREEMENT = "agreement"
LONGEST = 80  # characters of the name of a relation
_FORM = '{"text": "Ann met Bo. He waved.", "pairs": [{"name": "coreference", "from": [12, 14], "to": [8, 10]}]}'

PAIR = '{"good": "The cats ahead run.", "bad": "The cats ahead runs.", "verb": [15, 18], "subject": [4, 8]}'


@dataclass(frozen=True)
class Link:
    """A query, and the words that it belongs to."""

    relation: str
    query: Span  # its first character and one past its last, in the text that queries are of
    keys: tuple[Span, ...]  # each of them is right


@dataclass(frozen=True)
class LinkedText:
    """A text with its links; or a translation, whose words are linked to those of the text."""

    text: str
    links: tuple[Link, ...]
    document: str  # texts of one document are not independent
    words: tuple[Span, ...] = ()  # of the text; without any a rule of words finds them
    target: str | None = None  # the translation, which queries are of
    target_words: tuple[Span, ...] = ()
    # of a sentence with a tree: of each word the number of its head, -1 for the root; None for words outside of it
    heads: tuple[int | None, ...] = ()
    answers: tuple[str, str] | None = None  # the text as it is right, and as it is wrong
    # of a prompt with a translation: the words of the source, which alone count as keys of the words of the target
    sources: tuple[Span, ...] = ()
    sure: int | None = None  # of a translation: the number of sure links, those beyond its words too


#: What files of some endings have, for a message.
_CONTENT = {".conllu": "sentences in CoNLL-U, a word a line", ".jsonl": f"a line such as {_FORM}"}

Reader = Callable[[Path], Iterable[LinkedText]]


def linked_texts(data: Any) -> list[LinkedText]:
    """Texts with links from any form: files by their endings, folders of them, or objects of their form."""
    from attnscope_relations.readers import READERS

    items: list[Any] = [*data] if isinstance(data, list | tuple) else [data]
    texts: list[LinkedText] = []
    for number, item in enumerate(items, start=1):
        if isinstance(item, LinkedText):
            texts.append(item)
        elif isinstance(item, Mapping):
            texts.append(_of_any(cast("Mapping[str, Any]", item), f"text {number}"))
        elif isinstance(item, Path):
            files = [file for file in files_below(item) if inner_suffix(file) in READERS] if item.is_dir() else [item]
            folder = item if item.is_dir() else item.parent
            texts += [text for file in files for text in _read(file, READERS, str(file.relative_to(folder)))]
        else:
            raise AttnscopeError(
                f"data {number} is {item!r:.60}; expected a pathlib.Path of a file with relations, or {_FORM}"
            )
    if not any(text.links for text in texts):
        where = f" of {shown(items[0])}" if len(items) == 1 and isinstance(items[0], Path) else ""
        raise AttnscopeError(
            f"found no link in {count(len(texts), 'text')}{where}; expected at least one: a dependency in CoNLL-U, or "
            f"{_FORM}"
        )
    _check_names({link.relation for text in texts for link in text.links})
    repeats = Repeats()
    documents: dict[str, list[LinkedText]] = {}
    for text in texts:
        documents.setdefault(text.document, []).append(text)
    contents = {name: tuple((text.text, text.target) for text in document) for name, document in documents.items()}
    names = {name: repeats.named(shown(name), content) for name, content in contents.items()}
    return [replace(text, document=names[text.document]) for text in texts]


def _check_names(relations: Iterable[str]) -> None:
    """Reject names of relations that a table cannot show."""
    for name in relations:
        if not name.strip() or not name.isprintable() or len(name) > LONGEST:
            raise AttnscopeError(
                f"found the relation {name!r:.60}; expected a name of at most {LONGEST} characters on one line"
            )


def _read(file: Path, readers: Mapping[str, Reader], name: str) -> Iterator[LinkedText]:
    ending = inner_suffix(file)
    if ending not in readers:
        raise AttnscopeError(
            f"{shown(file)} has no ending of a file with relations; expected {', '.join(sorted(readers))}. To find "
            "heads from word to word in a plain text, add --from WORD --to WORD"
        )
    if ending != ".py" and file.is_file() and not file.stat().st_size:  # an empty module is a module
        raise AttnscopeError(f"{shown(file)} is empty; expected {_CONTENT.get(ending, 'texts with relations')}")
    for text in readers[ending](file):
        yield replace(text, document=f"{shown(name)}: {text.document}" if text.document else shown(name))


def json_lines(file: Path) -> Iterator[LinkedText]:
    """Texts with pairs of spans, or proteins with contacts, an object a line."""
    for number, value in json_objects(file, "text"):
        try:
            yield _of_any(value, f"line {number}")
        except AttnscopeError as error:
            raise AttnscopeError(f"{shown(file)}, {error}") from error


def _of_any(value: Mapping[str, Any], where: str) -> LinkedText:
    """A text with links from an object of any form, by its fields."""
    from attnscope_relations.readers import OBJECTS

    return next((reader for name, reader in OBJECTS.items() if name in value), of_object)(value, where)


def of_object(value: Mapping[str, Any], where: str) -> LinkedText:
    """A text with pairs of spans as they are written in JSON Lines."""
    answers = _answers(value, where)
    text, pairs = value.get("text", value.get("good")), value.get("pairs", [] if "verb" in value else None)
    if not isinstance(text, str) or not isinstance(pairs, list):
        raise AttnscopeError(f"{where}: found no text with pairs; expected {_FORM}")
    target = value.get("target")
    if target is not None and not isinstance(target, str):
        raise AttnscopeError(f"{where}: found the target {target!r:.60}; expected the translation of the text")
    queries = text if target is None else target
    links: list[Link] = []
    for pair in cast("list[Any]", pairs):
        if not isinstance(pair, Mapping) or not {"name", "from", "to"} <= {*cast("Mapping[str, Any]", pair)}:
            raise AttnscopeError(f"{where}: the pair {pair!r:.60} lacks name, from or to; expected {_FORM}")
        to: Any = pair["to"]
        several = to if isinstance(to, list | tuple) and to and isinstance(to[0], list | tuple) else [to]
        keys = tuple(checked(span, len(text), where) for span in several)
        links.append(Link(str(pair["name"]), checked(pair["from"], len(queries), where), keys))
    if "verb" in value:
        verb, subject = (checked(value.get(name), len(text), where) for name in ("verb", "subject"))
        links += _of_pair(str(value.get("name", AGREEMENT)), text, verb, subject)
    words = _spans(value.get("words"), len(text), where)
    target_words = () if target is None else _spans(value.get("target_words"), len(target), where)
    document = str(value.get("document", value.get("id", where)))
    return LinkedText(text, tuple(links), document, words, target, target_words, answers=answers)


def _answers(value: Mapping[str, Any], where: str) -> tuple[str, str] | None:
    """The right and the wrong text of a minimal pair."""
    if "good" not in value and "bad" not in value:
        return None
    good, bad = value.get("good"), value.get("bad")
    if not isinstance(good, str) or not isinstance(bad, str) or good == bad:
        raise AttnscopeError(
            f"{where}: found good {good!r:.40} and bad {bad!r:.40}; expected two texts that differ, such as {PAIR}"
        )
    return good, bad


def _of_pair(name: str, text: str, verb: Span, subject: Span) -> list[Link]:
    """From a verb to its subject, and from the word before the verb, unless that is the subject."""
    words = word_rule_of("unicode").spans(text)
    return [Link(name, verb, (subject,)), *from_word_before(name, verb, subject, words)]


def from_word_before(relation: str, query: Span, key: Span, words: Sequence[Span]) -> list[Link]:
    """The link of a query from the word before it; none at the start of a text, or from the key itself."""
    at = bisect_right(words, query[0], key=lambda word: word[1]) - 1
    if at < 0 or (words[at][0] < key[1] and key[0] < words[at][1]):
        return []
    return [Link(relation + BEFORE, words[at], (key,))]


def _spans(value: Any, length: int, where: str) -> tuple[Span, ...]:
    if value is not None and not isinstance(value, list | tuple):
        raise AttnscopeError(f"{where}: found the words {value!r:.60}; expected their spans, such as [[0, 3], [4, 7]]")
    return tuple(checked(span, length, where) for span in cast("Sequence[Any]", value or ()))


def checked(span: Any, length: int, where: str) -> Span:
    """A span of data: two characters of a text of some length."""
    is_pair = isinstance(span, Sequence) and len(span) == 2 and all(isinstance(end, int) for end in span)  # noqa: PLR2004
    if not is_pair or not 0 <= span[0] < span[1] <= length:
        raise AttnscopeError(
            f"{where}: found the span {span!r:.60} in a text of {length} characters; expected the first character and "
            "one past the last, such as [4, 7]"
        )
    return span[0], span[1]


def both_directions(links: Iterable[tuple[str, Span, Span]]) -> tuple[Link, ...]:
    """Links from each word to another and back; a word with several others of a relation has one link to all."""
    keys: dict[tuple[str, Span], list[Span]] = {}
    for relation, first, second in links:
        keys.setdefault((relation, first), []).append(second)
        keys.setdefault((relation + REVERSED, second), []).append(first)
    return tuple(Link(relation, query, tuple(others)) for (relation, query), others in keys.items())


def needed(package: str, what: str, extra: str) -> Any:
    """A package that only some readers need."""
    try:
        return import_module(package)
    except ImportError:
        raise AttnscopeError(
            f"{what} needs {package}, which is not installed: pip install 'attnscope-relations[{extra}]'"
        ) from None


def digest(texts: Sequence[LinkedText]) -> str:
    """The identity of texts and links."""
    sha256 = hashlib.sha256()
    for text in texts:
        links = [[link.relation, link.query, link.keys] for link in text.links]
        parts = [text.text, text.target, text.document, text.words, text.target_words, links, text.heads, text.answers]
        parts += [] if text.sure is None else [text.sources, text.sure]
        sha256.update(json.dumps(parts).encode() + b"\n")
    return sha256.hexdigest()[:16]


def only_of(texts: list[LinkedText], names: Sequence[str] | None) -> list[LinkedText]:
    """Texts with links of these relations only, in either direction."""
    if names is None:
        return texts
    present = {_stem(link.relation) for text in texts for link in text.links}
    absent = [name for name in names if _stem(name) not in present]
    if absent:
        names_absent = f"only (--only) names {absent[0]!r:.40}, which no text has"
        close = get_close_matches(absent[0], sorted(present), 1)
        if close:
            raise AttnscopeError(
                f"{names_absent}: did you mean {close[0]}? All relations are {', '.join(sorted(present))}"
            )
        raise AttnscopeError(f"{names_absent}; the relations are {', '.join(sorted(present))}")
    wanted = {*names}

    def kept(link: Link) -> bool:
        return link.relation in wanted or _stem(link.relation) in wanted

    return [replace(text, links=tuple(filter(kept, text.links))) for text in texts]


def _stem(relation: str) -> str:
    """The name of a relation, from whichever end it is read."""
    return relation.removesuffix(REVERSED).removesuffix(BEFORE)
