"""The messages of a chat with images: each content in parts, of text and of images."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from attnscope.corpus._messages import CHAT_FIELDS, is_chat, messages_of
from attnscope.errors import AttnscopeError

PLACE = "<image>"  # what stands for an image in a text, whatever a model calls it
_FIELDS = ("image", "images")
_SOURCES = ("image", "path", "url")  # of a part of a content


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
        len(one) > 0 if isinstance(one, str | list | tuple) else one is not None for one in named
    ) or any(_kind(part) == "image" for message in _messages(value) for part in _parts(message))


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
        There are fewer places for images than images, or more; a part is neither text nor image.

    Examples
    --------
    >>> chat = {"image": "a.png", "messages": [{"role": "user", "content": "<image>Is the tide out?"}]}
    >>> messages, images = chat_of(chat, "line 1")
    >>> messages[0]["content"], images
    ([{'type': 'image'}, {'type': 'text', 'text': 'Is the tide out?'}], ['a.png'])
    """
    beside = sources_of(value, where)
    left, images = list(beside), list[Any]()
    places = 0
    found: list[dict[str, Any]] = []
    for number, message in enumerate(_messages(value), start=1):
        at = f"{where}, message {number}"
        parts: list[dict[str, str]] = []
        for part in _parts(message):
            kind = _kind(part)
            if kind == "text":
                parts.append({"type": "text", "text": str(part.get("text", ""))})
            elif kind == "image":
                places += 1
                own = next((part[name] for name in _SOURCES if part.get(name) is not None), None)
                images += [own] if own is not None else left[:1]
                left = left if own is not None else left[1:]
                parts.append({"type": "image"})
            else:
                raise AttnscopeError(f"{at}: has a part of type {kind!r:.40}; expected text or image")
        # which refuses what is no message
        plain = {**message, "content" if "role" in message else "value": "".join(_texts(parts))}
        found.append({"role": messages_of([plain], at)[0]["role"], "content": parts})
    if left or places != len(images):
        given = f"{len(images) + len(left)} image{'s' * (len(images) + len(left) != 1)}"
        raise AttnscopeError(
            f"{where}: has {given}, and {places} place{'s' * (places != 1)} for images in its messages: put "
            f"{PLACE} (or a part of type image) where each belongs"
        )
    return found, images


def _texts(parts: Sequence[Mapping[str, str]]) -> list[str]:
    return [part["text"] for part in parts if part["type"] == "text"]


def _messages(value: Mapping[str, Any]) -> list[dict[str, Any]]:
    chat: Any = next((value[name] for name in CHAT_FIELDS if value.get(name) is not None), [])
    return [one for one in chat if isinstance(one, dict)] if isinstance(chat, list) else []


def _parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The parts of a content; a string is text, with images where it says so."""
    content: Any = message.get("content", message.get("value"))
    if isinstance(content, list):
        return [one if isinstance(one, dict) else {"type": "text", "text": str(one)} for one in content]
    parts: list[dict[str, Any]] = []
    for number, text in enumerate(str(content or "").split(PLACE)):
        parts += [{"type": "image"}] if number else []
        parts += [{"type": "text", "text": text}] if text else []
    return parts


def _kind(part: Mapping[str, Any]) -> str:
    return {"image_url": "image"}.get(str(part.get("type")), str(part.get("type")))
