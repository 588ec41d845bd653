"""What a scan reads on either side of the model, and the groups that its tokens are in."""

from __future__ import annotations

from pathlib import Path

from attnscope.corpus import (
    Chats,
    Corpus,
    Grouping,
    Groups,
    Sources,
    Texts,
    are_chats,
    grouping_of,
    kept,
    texts_and_targets,
)
from attnscope.errors import AttnscopeError


def read_sides(
    texts: Sources,
    targets: Sources,
    *,
    field: str | None,
    by_line: bool,
    stride: int | None,
    chat: bool,
    chat_template: str | Path | None,
    by: str | None = None,
) -> tuple[Texts | Chats, Corpus | None]:
    """What is read; with targets line by line, empty lines too, so that line i stays beside line i.

    Raises
    ------
    AttnscopeError
        Settings that do not go together, and what `texts_and_targets` and `Chats` raise.

    Examples
    --------
    >>> settings = {"field": None, "by_line": False, "stride": None, "chat": False, "chat_template": None}
    >>> corpus, _ = read_sides([{"role": "user", "content": "Is the tide out?"}], None, **settings)
    >>> type(corpus).__name__
    'Chats'
    """
    paired = targets is not None
    given = kept(texts)
    if chat or (not by_line and are_chats(given, field)):
        if paired or by_line:
            other = "target (--target)" if paired else "by_line (--by-line)"
            raise AttnscopeError(f"the texts are chats, one a line, which take no {other}: leave it out")
        if by is not None:
            raise AttnscopeError("chats are not held apart by a field: leave out by (--by)")
        if given is None:
            raise AttnscopeError("no chat is given: name a file of JSON Lines with messages")
        return Chats(given, field=field, template=chat_template), None
    if chat_template is not None:
        raise AttnscopeError(
            "a chat template is given, and the texts are not chats: leave it out, or say so with chat (--chat)"
        )
    if by is not None and paired:
        raise AttnscopeError("texts with targets are not held apart by a field: leave out by (--by)")
    if by is not None and given is None:
        raise AttnscopeError("the bundled sample has no fields: name .jsonl files, or leave out by (--by)")
    corpus, target = texts_and_targets(
        given, targets, field=field, by_line=by_line or paired, blank_lines=paired, by=by
    )
    if target is not None and stride is not None:
        raise AttnscopeError(
            "stride is of windows in running text; with targets every line is a window: leave it out"
        )
    return corpus, target


def grouping_for(groups: Groups | None, corpus: Texts | Chats) -> Grouping | None:
    """The groups asked for; those of a chat are its roles where nothing else is.

    Raises
    ------
    AttnscopeError
        Roles of what is no chat, and what `grouping_of` raises.

    Examples
    --------
    >>> grouping_for(None, Chats([[{"role": "user", "content": "Is the tide out?"}]])).names
    ('system', 'user', 'assistant', 'tool', 'template')
    """
    is_chat = isinstance(corpus, Chats)
    if isinstance(groups, str) and groups == "roles" and not is_chat:
        raise AttnscopeError(
            "roles are those of a chat, and the texts are not chats: give chats (JSON Lines with messages), or other "
            "groups"
        )
    if groups is None:
        return grouping_of("roles") if is_chat else None
    return grouping_of(groups)
