"""The messages of a chat with images: each content in parts, of text and of images."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from attnscope.corpus._messages import CHAT_FIELDS, is_chat, messages_of
from attnscope.errors import AttnscopeError

PLACE = "<image>"  # what stands for an image in a text, whatever a model calls it
_FIELDS = ("image", "images")
_SOURCES = ("image", "path", "url", "image_url")  # of a part of a content


def has_images(value: object) -> bool:
    """Whether this is a text or a chat with a field of images, or a chat that has images among its parts.

    Examples
    --------
    >>> has_images({"text": "<image> What?", "image": "a.png"}), has_images({"text": "What?"})
    (True, False)
    >>> has_images({"messages": [{"role": "user", "content": [{"type": "image", "path": "a.png"}]}]})
    True
    """
    if not isinstance(value, Mapping):
        return False
    if not any(is_chat(value.get(name)) for name in CHAT_FIELDS) and not isinstance(value.get("text"), str):
        return False
    named = (value.get(name) for name in _FIELDS)
    return any(
        len(value) > 0 if isinstance(value, str | list | tuple) else value is not None for value in named
    ) or any(
        _kind(part) == "image"
        for message in _messages(cast("Mapping[str, Any]", value))
        if isinstance(message, Mapping) and isinstance(content := _content(message), list)
        for part in content
    )


def sources_of(value: Mapping[str, Any], where: str) -> list[Any]:
    """The images that an object names beside its text: one, or a list.

    Examples
    --------
    >>> sources_of({"image": "a.png"}, "line 1"), sources_of({"images": ["a.png", "b.png"]}, "line 1")
    (['a.png'], ['a.png', 'b.png'])
    """
    given = [value[name] for name in _FIELDS if value.get(name) is not None]
    if len(given) > 1:
        raise AttnscopeError(f"{where}: has both image and images: give one of them")
    if not given:
        return []
    return list(cast("Sequence[Any]", given[0])) if isinstance(given[0], list | tuple) else given


def chat_of(value: Mapping[str, Any], where: str) -> tuple[list[dict[str, Any]], list[Any]]:
    """The messages, their contents in parts as chat templates read them, and the images in their order.

    ``<image>`` within a string is an image too. A part that names no image of its own takes the next one that the
    object names.

    Raises
    ------
    AttnscopeError
        There are fewer places for images than images, or more; a message is none, or a part neither text nor image.

    Examples
    --------
    >>> chat = {"image": "a.png", "messages": [{"role": "user", "content": "<image>Is the tide out?"}]}
    >>> messages, images = chat_of(chat, "line 1")
    >>> messages[0]["content"], images
    ([{'type': 'image'}, {'type': 'text', 'text': 'Is the tide out?'}], ['a.png'])
    """
    beside, chat = sources_of(value, where), _messages(value)
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
    left, images, places = list(beside), list[Any](), 0
    messages: list[dict[str, Any]] = []
    for message, parts in zip(
        messages_of(plain, where), split, strict=True
    ):  # which refuses what is no message
        for part in parts:
            if part["type"] == "image":
                places += 1
                own = _source_of(part)
                images += [own] if own is not None else left[:1]
                left = left if own is not None else left[1:]
        bare = [{"type": "image"} if part["type"] == "image" else part for part in parts]
        messages.append({**message, "content": bare})
    if left or places != len(images):
        given = f"{len(images) + len(left)} image{'s' * (len(images) + len(left) != 1)}"
        raise AttnscopeError(
            f"{where}: has {given}, and {places} place{'s' * (places != 1)} for images in its messages: put "
            f"{PLACE} (or a part of type image) where each belongs"
        )
    return messages, images


def _texts(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    return [part["text"] for part in parts if part["type"] == "text"]


def _messages(value: Mapping[str, Any]) -> list[Any]:
    chat: Any = next((value[name] for name in CHAT_FIELDS if value.get(name) is not None), [])
    return cast("list[Any]", chat) if isinstance(chat, list) else []


def _content(message: Mapping[str, Any]) -> Any:
    return message.get("content", message.get("value"))


def _parts(message: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """The parts of a content, of the types text and image; a string is text, with images where it says so."""
    content = _content(message)
    if content is None:
        return []
    if isinstance(content, list):
        return [_part(given, where) for given in cast("list[Any]", content)]
    if not isinstance(content, str):
        raise AttnscopeError(
            f"{where}: its content is {str(content)!r:.40}; expected a string, or a list of parts"
        )
    parts: list[dict[str, Any]] = []
    for number, text in enumerate(content.split(PLACE)):
        parts += [{"type": "image"}] if number else []
        parts += [{"type": "text", "text": text}] if text else []
    return parts


def _part(given: Any, where: str) -> dict[str, Any]:
    if isinstance(given, str):
        return {"type": "text", "text": given}
    kind, part = _kind(given), cast("Mapping[str, Any]", given)
    if kind == "image":
        return {**part, "type": kind}
    if kind != "text":
        raise AttnscopeError(f"{where}: has a part of type {kind!r:.40}; expected text or image")
    if not isinstance(part.get("text"), str):
        raise AttnscopeError(
            f"{where}: has a part of type text without a text; expected a string in its field text"
        )
    return {"type": kind, "text": part["text"]}


def _kind(part: Any) -> str:
    named = (
        str(cast("Mapping[str, Any]", part).get("type")) if isinstance(part, Mapping) else type(part).__name__
    )
    return {"image_url": "image"}.get(named, named)


def _source_of(part: Mapping[str, Any]) -> Any:
    """The image that a part names itself; None where it names none."""
    own: Any = next((part[name] for name in _SOURCES if part.get(name) is not None), None)
    return cast("Mapping[str, Any]", own).get("url") if isinstance(own, Mapping) else own
