"""Groups of tokens: a name for every token of a window, from a rule."""

import hashlib
import json
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from attnscope.read.files import json_objects, shown
from attnscope.read.windows import Window, window_name
from attnscope.read.words import in_words
from attnscope.support.checks import check_kind
from attnscope.support.errors import AttnscopeError

SPECIAL, NUMBER, PUNCTUATION, SPACE = "special", "number", "punctuation", "space"
WORD_START, WORD_REST = "word start", "word rest"
KINDS = (SPECIAL, NUMBER, PUNCTUATION, SPACE, WORD_START, WORD_REST)
ROLES = ("system", "user", "assistant", "tool", "template")  # of the tokens of a chat
OTHER = "other"
MOST = 16  # groups: their pairs are stored for every head and window
LONGEST = 40  # characters of a name

#: Forms of groups: the name of a rule, a file of rules, or a function of the tokens of a window.
Groups = str | Path | Callable[[Sequence[str]], Sequence[str]]


@dataclass(frozen=True)
class Grouping:
    """A rule that puts every token of a window into a group."""

    signature: str  # identity of the rule
    names: tuple[str, ...]  # all groups, in order; empty until the windows are known (see `over`)
    rule: Callable[[Window], Sequence[str]]  # from a window to a name for each of its tokens

    def over(self, windows: Iterable[Window]) -> "Grouping":
        """The rule with the groups of a function, which runs once over all windows; its results identify it."""
        if self.names:
            return self
        names: dict[str, None] = {}
        digest = hashlib.sha256()
        for number, window in enumerate(windows):
            for side in (window, window.target):
                of_tokens = [] if side is None else self.given(side, number)
                names |= dict.fromkeys(of_tokens)
                digest.update(json.dumps(of_tokens).encode() + b"\n")
                check_names(list(names))
        return replace(self, names=tuple(names), signature=f"{self.signature}:{digest.hexdigest()[:16]}")

    def marked(self, window: Window, number: int = 0) -> Window:
        """The window with the number of the group of each token, also of its target."""
        of_tokens = self.given(window, number)
        unknown = set(of_tokens) - set(self.names)
        if unknown:
            raise AttnscopeError(
                f"the function of groups returned {min(unknown)!r} for {window_name(window, number)} only the second "
                "time; expected the same groups for the same tokens"
            )
        target = None if window.target is None else self.marked(window.target, number)
        return replace(window, groups=tuple(map(self.names.index, of_tokens)), target=target)

    def given(self, window: Window, number: int = 0) -> list[str]:
        """The name of the group of each token of a window."""
        unit = in_words(window)
        returned: Any = self.rule(unit)
        if isinstance(returned, str) or not isinstance(returned, Iterable):
            raise AttnscopeError(
                f"the function of groups returned {returned!r:.60}; expected a list with a name for each token"
            )
        names = [str(name) if isinstance(name, str) else name for name in cast("Iterable[Any]", returned)]
        wrong = [name for name in names if not isinstance(name, str)]
        if wrong or len(names) != len(unit):
            value = f"{wrong[0]!r:.60}" if wrong else f"{len(names)} names for {len(unit)} tokens"
            raise AttnscopeError(
                f"the function of groups returned {value} for {window_name(window, number)}; expected a string for "
                "each token"
            )
        return [names[word] for word in window.words] if window.words else names


@dataclass(frozen=True)
class GroupedWindows:
    """Windows whose tokens carry the numbers of their groups."""

    windows: Iterable[Window]
    grouping: Grouping

    def __iter__(self) -> Iterator[Window]:
        return (self.grouping.marked(window, number) for number, window in enumerate(self.windows))


def grouping_of(given: Groups) -> Grouping:
    r"""Groups from any form."""
    if isinstance(given, Path):
        return _of_file(given)
    if callable(given):
        name = getattr(given, "__name__", type(given).__name__)
        return Grouping(f"function {name}", (), lambda window: given(window.tokens))
    check_kind("types, roles, a pathlib.Path of rules, or a function", str, groups=given)
    if given == "types":
        return Grouping(given, KINDS, kinds_of)
    if given == "roles":
        return Grouping(given, ROLES, _roles_of)
    raise AttnscopeError(f"there is no rule of groups {given!r}: choose types or roles, or a file")


def grouping_of_rows() -> Grouping:
    """The groups that are given with token ids, as `EncodedTexts` reads them."""
    return Grouping("rows", (), lambda window: window.roles or (OTHER,) * len(window))


def kinds_of(window: Window) -> list[str]:
    """The kind of each token, by its characters: one of `KINDS`."""
    kinds: list[str] = []
    for token, special in zip(window.tokens, window.special, strict=True):
        in_word = bool(kinds) and kinds[-1] in {WORD_START, WORD_REST}
        kinds.append(SPECIAL if special else _kind_of(token, in_word=in_word))
    return kinds


def check_names(names: Sequence[str]) -> None:
    """Reject names that no table can show, and too many groups."""
    for name in names:
        if not name.strip() or len(name) > LONGEST:
            raise AttnscopeError(
                f"a group has the name {name!r:.60}; expected 1 to {LONGEST} characters, not all of them spaces"
            )
    if len(names) > MOST:
        raise AttnscopeError(
            f"found {len(names)} groups; expected at most {MOST}, as their pairs are stored for every head: merge some"
        )


def _kind_of(token: str, *, in_word: bool) -> str:
    categories = {unicodedata.category(character) for character in token.strip()}
    if not categories:
        return SPACE
    if any(category[0] in "LM" for category in categories):
        return WORD_REST if in_word and not token[0].isspace() else WORD_START
    return NUMBER if "Nd" in categories else PUNCTUATION


def _roles_of(window: Window) -> Sequence[str]:
    if not window.roles:
        raise AttnscopeError(
            "the texts are not chats, so their tokens have no roles: give chats, or choose another rule of groups"
        )
    return window.roles


def _of_file(path: Path) -> Grouping:
    of_token: dict[str, tuple[int, str]] = {}  # line and group
    of_kind: dict[str, tuple[int, str]] = {}
    names: dict[str, None] = {}
    for number, value in json_objects(path, "group"):
        name, tokens, kinds = _rule(value, f"{shown(path)}, line {number}")
        names[name] = None
        of_token = dict.fromkeys(tokens, (number, name)) | of_token
        of_kind = dict.fromkeys(kinds, (number, name)) | of_kind
    if not names:
        raise AttnscopeError(
            f'{shown(path)}: found no rule; expected lines such as {{"group": "he", "tokens": ["he", "him"]}}'
        )
    names[OTHER] = None
    check_names(list(names))
    last = (sys.maxsize, OTHER)

    def rule(window: Window) -> list[str]:
        pairs = zip(window.tokens, kinds_of(window), strict=True)
        return [min(of_token.get(token.strip(), last), of_kind.get(kind, last))[1] for token, kind in pairs]

    rules = json.dumps([list(names), of_token, of_kind], sort_keys=True)
    return Grouping(f"rules:{hashlib.sha256(rules.encode()).hexdigest()[:16]}", tuple(names), rule)


def _rule(value: Mapping[str, Any], where: str) -> tuple[str, list[str], list[str]]:
    """Name, tokens and kinds of one line."""
    name, tokens, kinds = value.get("group"), value.get("tokens", []), value.get("types", [])
    unknown = value.keys() - {"group", "tokens", "types"}
    lists = all(isinstance(part, list) for part in (tokens, kinds))
    strings = lists and all(isinstance(name, str) for name in (*tokens, *kinds))
    if unknown or not isinstance(name, str) or not strings or not (tokens or kinds):
        raise AttnscopeError(
            f"{where}: expected a group, and a list of its tokens or types, such as "
            '{"group": "he", "tokens": ["he", "him"]}' + (f"; found {min(unknown)!r} too" if unknown else "")
        )
    wrong = [kind for kind in kinds if kind not in KINDS]
    if wrong:
        raise AttnscopeError(f"{where}: there is no token type {wrong[0]!r}; choose from {', '.join(KINDS)}")
    return name, [token.strip() for token in tokens], kinds
