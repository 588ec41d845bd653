"""Groups of the tokens of a text with images: the images are groups of their own, whatever the rule for the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from attnscope.corpus import ROLES, Grouping, check_names
from attnscope.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnscope.corpus import Window

_OF_TEXTS = ("text", "special")


def grouping_of_pictured(
    asked: Grouping | None, windows: Sequence[Window], images: Sequence[str]
) -> Grouping:
    """Images, and beside them what was asked for; by default text and special tokens, of chats the roles.

    Parameters
    ----------
    asked
        A rule for what is no image; None for the usual one.
    windows
        Whose `roles` say which image a token is of, if any.
    images
        Names of the images' groups.

    Raises
    ------
    AttnscopeError
        If the rule has a group of such a name, or there are more groups than can be kept.

    Examples
    --------
    >>> from attnscope.corpus import Window
    >>> window = Window((9, 3), (False, False), ((0, 1), (1, 2)), "text 1", 0, ("", "a"), roles=("image", "text"))
    >>> grouping = grouping_of_pictured(None, [window], ["image"])
    >>> grouping.names, grouping.rule(window)
    (('image', 'text', 'special'), ('image', 'text'))
    """
    used = {role for window in windows for role in window.roles}
    if asked is not None and asked.signature == "roles" and not used & set(ROLES):
        raise AttnscopeError(
            "roles are those of a chat, and none of the texts is one: give chats (messages), or other groups"
        )
    if asked is None or asked.signature == "roles":
        kinds = [kind for kind in (_OF_TEXTS, ROLES) if used & set(kind)]
        names = (*images, *(name for kind in kinds for name in kind))
        return Grouping("pictured", names, lambda window: window.roles)

    numbers = {window.source: number for number, window in enumerate(windows)}

    def rule(window: Window) -> list[str]:
        given = asked.given(window, numbers.get(window.source, 0))
        return [
            role if role in images else name if name not in images else _taken(name)
            for role, name in zip(window.roles, given, strict=True)
        ]

    grouping = replace(asked, signature=f"pictured {asked.signature}", rule=rule)
    if asked.names:
        names = (*images, *(name if name not in images else _taken(name) for name in asked.names))
        check_names(names)
        return replace(grouping, names=names)
    return grouping.over(windows)


def _taken(name: str) -> NoReturn:
    raise AttnscopeError(f"a group of tokens has the name {name!r}, as the images have: give it another")
