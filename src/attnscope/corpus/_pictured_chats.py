"""Chats with images as a processor's template writes them."""

from typing import Any

from attnscope.corpus._chats import Region, applied, mark, regions_between
from attnscope.corpus._messages import group_of_role
from attnscope.corpus.pictured import PicturedText
from attnscope.errors import AttnscopeError


def written_in_parts(
    item: PicturedText, processor: Any, template: str | None = None
) -> tuple[str, list[Region]]:
    """A chat as a template writes it, and where the texts of its messages lie.

    Parameters
    ----------
    item
        A chat with images.
    processor
        With ``apply_chat_template``.
    template
        Another template than that of the processor or of its tokenizer.

    Raises
    ------
    AttnscopeError
        There is no template, it refuses the chat, or does not write each text as it stands.

    Examples
    --------
    >>> import numpy as np
    >>> from attnscope.bundled import MODEL
    >>> from attnscope.corpus import Images
    >>> from transformers import AutoTokenizer
    >>> parts = [{"type": "image"}, {"type": "text", "text": "What?"}]
    >>> images = Images([np.zeros((8, 8, 3), np.uint8)])
    >>> chat = PicturedText("text 1", None, ({"role": "user", "content": parts},), images)
    >>> template = (
    ...     "{% for m in messages %}[{{ m.role }}]{% for part in m.content %}"
    ...     "{{ '<image>' if part.type == 'image' else part.text }}{% endfor %}{% endfor %}"
    ... )
    >>> written_in_parts(chat, AutoTokenizer.from_pretrained(MODEL), template)
    ('[user]<image>What?', [Region(start=13, end=18, role='user')])
    """
    template = template or getattr(processor, "chat_template", None) or processor.tokenizer.chat_template
    if not template:
        raise AttnscopeError(
            f"{item.name} is a chat, and the processor has no chat template: give one, a Jinja file "
            "(--chat-template FILE)"
        )
    said: list[tuple[str, str]] = []
    marked: list[dict[str, Any]] = []
    for message in item.messages:
        parts: list[dict[str, Any]] = []
        for part in message["content"]:
            if part["type"] == "text" and part["text"]:
                parts.append({**part, "text": mark(len(said))})
                said.append((part["text"], group_of_role(message["role"])))
            else:
                parts.append(part)
        marked.append({**message, "content": parts})
    text, skeleton = (applied(chat, item.name, processor, template) for chat in (list(item.messages), marked))
    return text, regions_between(text, skeleton, said, item.name)
