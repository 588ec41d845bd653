"""How attnscope finds what answers its views: the entry point `attnscope.live` names this module."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from attnscope.capture.borrow import LoadedModel
from attnscope.measure.images import ImageReader
from attnscope.measure.pictured_generation import PromptsWithImages
from attnscope.measure.sounds import SoundReader
from attnscope.support.errors import AttnscopeError
from attnscope_live.conversation import Conversation
from attnscope_live.copied import LOADED, Source
from attnscope_live.pictures import TextAndPictureConversation, VisionConversation
from attnscope_live.server import HOST, check_port, serve
from attnscope_live.sounds import SoundConversation

__all__ = ["check_port", "conversation_of", "serve", "state_of"]


def state_of(text: Any) -> dict[str, Any]:
    """The state in the address of a live view, which is given as its text; empty for any other text.

    The page checks each field again.
    """
    address = urlsplit(text) if isinstance(text, str) and text.startswith(f"http://{HOST}:") else None
    if address is None or not address.query.startswith("token="):
        return {}
    try:
        state = json.loads(unquote(address.fragment))
        texts = [state["text"], state.get("target") or ""]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise AttnscopeError("the address of a live view holds no state: copy the whole address") from error
    if not all(isinstance(one, str) for one in texts):
        raise AttnscopeError("the address of a live view holds no text: copy the whole address")
    return state


def conversation_of(read: LoadedModel | Any, name: str, reading: Mapping[str, Any]) -> Conversation | None:
    """A conversation with a model or with a reader of one input; None for inputs that are not shown live."""
    options = {
        option: reading[option]
        for option in LOADED
        if isinstance(reading.get(option), str | Mapping) or reading.get(option) is True
    }
    source = Source(name, options)
    if isinstance(read, LoadedModel):
        return Conversation(read, source)
    if isinstance(read, ImageReader):
        return VisionConversation(read, source, {"first": read.images}, "first")
    if isinstance(read, PromptsWithImages):
        (item,) = read.texts
        pictures = {"first": item.images} if len(item.images) else {}
        return TextAndPictureConversation(read, source, pictures, "first" if pictures else None)
    if isinstance(read, SoundReader) and read.has_decoder:
        return SoundConversation(read, source)
    return None
