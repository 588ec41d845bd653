"""What users give as texts: strings and paths in any container, told apart from what is no text."""

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

from attnscope.errors import AttnscopeError
from attnscope.remote import Url

_EXPECTED = "expected a string, a pathlib.Path, or several of them in a list"
_MISSING = frozenset(["nan", "<NA>", "NaT"])  # how tables write that there is nothing


def each(given: Any) -> Iterator[str | Path | Url]:
    """Strings and paths in their order; one stands for a list of one.

    Parameters
    ----------
    given
        A string, a path, or any iterable of them.

    Raises
    ------
    AttnscopeError
        Something else; the message says what was found and what to give instead.

    Examples
    --------
    >>> list(each(text for text in ("The tide is out.", Path("a.txt"))))
    ['The tide is out.', PosixPath('a.txt')]
    >>> list(each(["The tide is out.", None]))
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: item 2 of the texts is None; expected a string or a pathlib.Path: leave it out
    """
    texts = kept(given)
    many = texts if isinstance(texts, list | Iterator) else [texts]
    for number, item in enumerate(cast("Iterable[Any]", many), start=1):
        yield _text(item, number)


def kept(given: Any) -> Any:
    """What is given, as a list where it has items.

    A string, a path and a mapping stay what they are. Of strings that come one by one nothing more is taken here than
    the first: they may be more than memory holds.

    Raises
    ------
    AttnscopeError
        It has no items, or none in an order.

    Examples
    --------
    >>> kept(("a", "b")), kept(iter([1, 9, 2])), kept("a b")
    (['a', 'b'], [1, 9, 2], 'a b')
    >>> list(kept(iter(["a", "b"])))
    ['a', 'b']
    """
    if given is None or isinstance(given, str | os.PathLike | Mapping | Url):
        return given
    columns = getattr(given, "column_names", None) or getattr(given, "columns", None)
    if columns is not None:  # a table, whose items are its rows or the names of its columns
        raise AttnscopeError(_no_column(given, columns))
    if isinstance(given, bytes | bytearray | memoryview):
        raise AttnscopeError(
            "the texts are bytes; expected strings: decode them first, with .decode('utf-8')"
        )
    if isinstance(given, set | frozenset):
        raise AttnscopeError("the texts are a set, which has no order; expected a list: give list(...)")
    if hasattr(given, "read"):
        raise AttnscopeError("the texts are an open file; expected its path: give pathlib.Path(...)")
    items = given.tolist() if hasattr(given, "tolist") else given  # arrays, tensors, columns of a table
    if isinstance(items, str):
        return items
    try:
        one_by_one: Iterator[Any] = iter(items)
    except TypeError as error:
        raise AttnscopeError(f"the texts are {kind(items)}; {_EXPECTED}") from error
    if hasattr(items, "__len__"):
        return list(one_by_one)
    first = list(islice(one_by_one, 1))
    whole = chain(first, one_by_one)
    return whole if first and isinstance(first[0], str) else list(whole)


def kind(value: object) -> str:
    """Name what a value is.

    Examples
    --------
    >>> kind(None), kind(0.5), kind([1])
    ('None', 'the number 0.5', 'of type list')
    """
    if isinstance(value, int | float):
        return f"the number {value}"
    return "None" if value is None else f"of type {type(value).__name__}"


def _text(item: Any, number: int) -> str | Path | Url:
    if isinstance(item, str):
        return str(item)  # NumPy's own kind of string too
    if isinstance(item, Url):
        return item
    if isinstance(item, os.PathLike):
        return Path(cast("os.PathLike[str]", item))
    if isinstance(item, Mapping):
        raise AttnscopeError(_no_column(item, cast("Mapping[Any, Any]", item)))
    if item is None or str(item) in _MISSING:
        advice = "leave it out"
    elif isinstance(item, bytes):
        advice = "decode it first, with .decode('utf-8')"
    elif isinstance(item, float):
        advice = "token ids are whole numbers"
    else:
        advice = "give the strings themselves, in one list"
    raise AttnscopeError(
        f"item {number} of the texts is {kind(item)}; expected a string or a pathlib.Path: {advice}"
    )


def _no_column(table: object, names: Iterable[Any]) -> str:
    listed = ", ".join(repr(name) for name in names) or "none"
    return (
        f"the texts are {kind(table)} with the keys or columns {listed}; {_EXPECTED}: give one of its columns, such as "
        "table['text']"
    )
