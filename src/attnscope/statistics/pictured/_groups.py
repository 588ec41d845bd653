"""Groups of the tokens of a text with images: the images are groups of their own, whatever the rule for the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from attnscope.corpus import ROLES, Grouping, check_names

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

    Examples
    --------
    >>> from attnscope.corpus import Window
    >>> window = Window((9, 3), (False, False), ((0, 1), (1, 2)), "text 1", 0, ("", "a"), roles=("image", "text"))
    >>> grouping = grouping_of_pictured(None, [window], ["image"])
    >>> grouping.names, grouping.rule(window)
    (('image', 'text', 'special'), ('image', 'text'))
    """
    if asked is None or asked.signature == "roles":
        used = {role for window in windows for role in window.roles}
        kinds = [kind for kind in (_OF_TEXTS, ROLES) if used & set(kind)]
        names = (*images, *(name for kind in kinds for name in kind))
        return Grouping("pictured", names, lambda window: window.roles)

    def rule(window: Window) -> list[str]:
        given = asked.rule(window)
        return [role if role in images else name for role, name in zip(window.roles, given, strict=True)]

    found = replace(asked, signature=f"pictured {asked.signature}", rule=rule)
    if asked.names:
        check_names([*images, *asked.names])
        return replace(found, names=(*images, *(name for name in asked.names if name not in images)))
    return found.over(windows)
