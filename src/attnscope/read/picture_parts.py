"""The messages of a chat with images or videos: each content as a list of parts."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from attnscope.read.messages import CHAT_FIELDS, is_chat, messages_of
from attnscope.support.errors import AttnscopeError

IMAGE, VIDEO = KINDS = ("image", "video")
#: Marks for images and videos in a text, for any model.
PLACES = {kind: f"<{kind}>" for kind in KINDS}
_SPLIT = re.compile("(" + "|".join(PLACES.values()) + ")")
_KIND_OF = {place: kind for kind, place in PLACES.items()}


def has_pictures(value: object) -> bool:
    """Whether this is a text or a chat with a field of images or videos, or a chat with such parts."""
    if not isinstance(value, Mapping):
        return False
    if not any(is_chat(value.get(name)) for name in CHAT_FIELDS) and not isinstance(value.get("text"), str):
        return False
    named = (value.get(name) for kind in KINDS for name in _fields(kind))
    return any(
        len(value) > 0 if isinstance(value, str | list | tuple) else value is not None for value in named
    ) or any(
        _kind(part) in KINDS
        for message in _messages(cast("Mapping[str, Any]", value))
        if isinstance(message, Mapping) and isinstance(content := _content(message), list)
        for part in content
    )


def sources_of(value: Mapping[str, Any], where: str, kind: str = IMAGE) -> list[Any]:
    """The images or videos of an object with a text: one, or a list."""
    single, several = _fields(kind)
    fields = [name for name in (single, several) if value.get(name) is not None]
    if len(fields) > 1:
        raise AttnscopeError(f"{where}: has both {single} and {several}: give one of them")
    if not fields:
        return []
    sources = value[fields[0]]
    is_many = isinstance(sources, list | tuple) and (kind == IMAGE or fields[0] == several)
    return list(cast("Sequence[Any]", sources)) if is_many else [sources]


def chat_of(value: Mapping[str, Any], where: str) -> tuple[list[dict[str, Any]], dict[str, list[Any]]]:
    """The messages, with contents in parts for chat templates, and images and videos in order."""
    chat = _messages(value)
    split = [
        _parts(message, f"{where}, message {number}") if isinstance(message, Mapping) else []
        for number, message in enumerate(chat, start=1)
    ]
    plain = [
        {**message, "content" if "role" in message else "value": "".join(_texts(parts))}
        if isinstance(message, Mapping)
        else message
        for message, parts in zip(chat, split, strict=True)
    ]
    messages: list[dict[str, Any]] = []
    for message, parts in zip(messages_of(plain, where), split, strict=True):  # rejects other objects
        bare = [{"type": part["type"]} if part["type"] in KINDS else part for part in parts]
        messages.append({**message, "content": bare})
    return messages, {kind: _in_places(value, split, kind, where) for kind in KINDS}


def _in_places(
    value: Mapping[str, Any], split: Sequence[Sequence[Mapping[str, Any]]], kind: str, where: str
) -> list[Any]:
    """The source of each part of a kind: its own, or the next one of the object."""
    left, sources = sources_of(value, where, kind), list[Any]()
    parts = [part for message in split for part in message if part["type"] == kind]
    for part in parts:
        names = (kind, "path", "url", f"{kind}_url")
        source: Any = next((part[name] for name in names if part.get(name) is not None), None)
        source = cast("Mapping[str, Any]", source).get("url") if isinstance(source, Mapping) else source
        sources += [source] if source is not None else left[:1]
        left = left if source is not None else left[1:]
    if left or len(parts) != len(sources):
        given, places = len(sources) + len(left), len(parts)
        raise AttnscopeError(
            f"{where}: has {given} {kind}{'s' * (given != 1)}, but {places} position{'s' * (places != 1)} for {kind}s "
            f"in its messages: put {PLACES[kind]} (or a part of type {kind}) at each position"
        )
    return sources


def _fields(kind: str) -> tuple[str, str]:
    return kind, f"{kind}s"


def _texts(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    return [part["text"] for part in parts if part["type"] == "text"]


def _messages(value: Mapping[str, Any]) -> list[Any]:
    chat: Any = next((value[name] for name in CHAT_FIELDS if value.get(name) is not None), [])
    return cast("list[Any]", chat) if isinstance(chat, list) else []


def _content(message: Mapping[str, Any]) -> Any:
    return message.get("content", message.get("value"))


def _parts(message: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """The parts of a content: text, images, videos; a string is text with marks for the others."""
    content = _content(message)
    if content is None:
        return []
    if isinstance(content, list):
        return [_part(given, where) for given in cast("list[Any]", content)]
    if not isinstance(content, str):
        raise AttnscopeError(f"{where}: its content is {str(content)!r:.40}; expected a string, or a list of parts")
    parts = filter(None, _SPLIT.split(content))
    return [{"type": _KIND_OF[text]} if text in _KIND_OF else {"type": "text", "text": text} for text in parts]


def _part(given: Any, where: str) -> dict[str, Any]:
    if isinstance(given, str):
        return {"type": "text", "text": given}
    kind, part = _kind(given), cast("Mapping[str, Any]", given)
    if kind in KINDS:
        return {**part, "type": kind}
    if kind != "text":
        raise AttnscopeError(f"{where}: has a part of type {kind!r:.40}; expected text, image or video")
    if not isinstance(part.get("text"), str):
        raise AttnscopeError(f"{where}: has a part of type text without a text; expected a string in its field text")
    return {"type": kind, "text": part["text"]}


def _kind(part: Any) -> str:
    named = str(cast("Mapping[str, Any]", part).get("type")) if isinstance(part, Mapping) else type(part).__name__
    return {f"{kind}_url": kind for kind in KINDS}.get(named, named)
