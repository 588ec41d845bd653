"""How attnscope finds what answers its views: the entry point `attnscope.live` names this module."""

from __future__ import annotations

from typing import Any

from attnscope.capture.borrow import LoadedModel
from attnscope.measure.images import ImageReader
from attnscope.measure.pictured_generation import PromptsWithImages
from attnscope_live.conversation import Conversation
from attnscope_live.pictures import TextAndPictureConversation, VisionConversation
from attnscope_live.server import check_port, serve

__all__ = ["check_port", "conversation_of", "serve"]


def conversation_of(read: LoadedModel | Any, source: str) -> Conversation | None:
    """A conversation with a model or with a reader of one input; None for inputs that are not shown live."""
    if isinstance(read, LoadedModel):
        return Conversation(read, source)
    if isinstance(read, ImageReader):
        return VisionConversation(read, source, {"first": read.images}, "first")
    if isinstance(read, PromptsWithImages):
        (item,) = read.texts
        pictures = {"first": item.images} if len(item.images) else {}
        return TextAndPictureConversation(read, source, pictures, "first" if pictures else None)
    return None
