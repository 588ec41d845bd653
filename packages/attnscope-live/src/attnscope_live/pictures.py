"""A live view of pictures: through a vision encoder, or with a text through a vision-language model."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from attnscope.capture.families import configured_length
from attnscope.measure.generation_pass import with_new_tokens
from attnscope.measure.images import ImageReader
from attnscope.measure.pictured_generation import PromptsWithImages
from attnscope.read.image_text import PicturedText
from attnscope.read.images import Images, images_of
from attnscope.read.picture_parts import IMAGE, PLACES
from attnscope.read.windows import Window
from attnscope.results.view import marked
from attnscope.support.errors import AttnscopeError
from attnscope_live.conversation import Answer, Conversation, Pass
from attnscope_live.copied import Inputs, Source, python_with_inputs, view_command
from attnscope_live.questions import Code, Look, Picture

LARGEST = 8 << 20  # bytes of a picture
_FORMATS = ("PNG", "JPEG", "WEBP")
_MOST_PIXELS = 50_000_000
_KEPT = 4  # pictures of a page
_PROMPT = "What is in this picture?"


def open_picture(data: bytes) -> Images:
    """A picture from its bytes, which came from a page."""
    from PIL import Image as pillow  # noqa: N813

    if len(data) > LARGEST:
        raise AttnscopeError(f"the picture has {len(data):,} bytes; expected at most {LARGEST:,}: make it smaller")
    try:
        picture = pillow.open(io.BytesIO(data), formats=_FORMATS)
        if picture.width * picture.height > _MOST_PIXELS:
            raise AttnscopeError(f"the picture has {picture.width:,} x {picture.height:,} pixels: make it smaller")
        picture = picture.convert("RGB")
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise AttnscopeError(f"found no picture that can be read; expected {', '.join(_FORMATS)}") from error
    return cast("Images", images_of([picture]))


@dataclass(frozen=True, eq=False)
class ReadyWindow(Window):
    """A window of an image or a sound with the arguments of its forward pass, and the pictures among its tokens."""

    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    views: tuple[dict[str, Any], ...] = ()


class PictureConversation(Conversation):
    """A model that answers questions about pictures; `pictures` has them by name, the first is shown first."""

    reads = ""  # what the page lets one change

    def __init__(self, loaded: Any, source: Source, pictures: Mapping[str, Images], first: str | None) -> None:
        super().__init__(loaded, source)
        self.pictures, self.first = dict(pictures), first

    @property
    def about(self) -> dict[str, Any]:
        return super().about | {"reads": self.reads, "picture": self.first}

    def _picture(self, asked: Picture) -> Answer:
        name = hashlib.sha256(asked.data).hexdigest()[:16]
        self.pictures[name] = open_picture(asked.data)
        for old in [each for each in self.pictures if each not in {name, self.first}][: -_KEPT + 2]:
            del self.pictures[old]
        return Answer({"picture": name})

    def _pass(self, asked: Look, text: str) -> Pass:
        key = text, asked.picture, asked.written, asked.chat
        if key not in self._passes:
            images = None if asked.picture is None else self.pictures.get(asked.picture)
            if asked.picture is not None and images is None:
                raise AttnscopeError("this picture is no longer here: drop it on the page again")
            self._keep(key, self._run(self._pictured(images, text, asked)))
        return self._passes[key]

    def _pictured(self, images: Images | None, text: str, asked: Look) -> ReadyWindow:
        raise NotImplementedError

    def _inputs(self, window: Window) -> dict[str, Any]:
        return cast("ReadyWindow", window).arguments

    def _views(self, window: Window) -> Sequence[dict[str, Any]]:
        return cast("ReadyWindow", window).views

    def _losses(self, looked: Any) -> None:  # noqa: ARG002
        """None: the tokens of a picture are not predicted."""
        return

    def _opening(self, path: str) -> tuple[list[str], Inputs]:
        """Imports, and lines that read a picture as the model does."""
        raise NotImplementedError

    def _code(self, asked: Code) -> Answer:
        question, path = self.looked.question, "picture.png"  # of one that was dropped on the page
        if question.picture == self.first and self.first is not None:
            path = next(map(str, self.pictures[self.first].files), path)
        imports, given = self._opening(path)
        python = python_with_inputs(question, self.kind, asked, given, imports)
        is_plain = not (question.removed or question.written or question.chat)
        named = [path] if self.reads == "images" else [question.text, *(["--image", path] if question.picture else [])]
        return Answer({"python": python, "command": view_command(self.source, *named, at=asked) if is_plain else ""})


class VisionConversation(PictureConversation):
    """A vision encoder that answers questions about pictures."""

    reads = "images"

    def __init__(self, reader: ImageReader, source: Source, pictures: Mapping[str, Images], first: str | None) -> None:
        super().__init__(replace(reader.loaded, model=reader.model), source, pictures, first)
        self.reader = reader

    def another(self) -> Conversation:
        return VisionConversation(self.reader, self.source, self.pictures, self.first)

    def _pictured(self, images: Images | None, text: str, asked: Look) -> ReadyWindow:  # noqa: ARG002
        if images is None:
            raise AttnscopeError("found no picture: drop one on the page")
        (image,) = images
        item = image.name, self.reader.vision.pixels(image)
        read = self.reader.read([item], [0])
        views = self.reader.views(item)
        return ready(read.windows[0], read.batch.inputs(self.reader.model), views)

    def _opening(self, path: str) -> tuple[list[str], Inputs]:
        imports = [
            "from attnscope.capture.encoders import load_vision_model",
            "from attnscope.capture.placement import Loading",
            "from attnscope.read.images import images_of",
            "from pathlib import Path",
        ]
        lines = [
            f"vision = load_vision_model({self.source.loading()})",
            "model, tokenizer = vision.model, None",
            f"(picture,) = images_of(Path({path!r}))",
            "inputs = {'pixel_values': vision.pixels(picture)}",
        ]
        return imports, Inputs(lines)


class TextAndPictureConversation(PictureConversation):
    """A vision-language model that answers questions about a text with a picture."""

    reads = "texts with images"

    def __init__(
        self, reader: PromptsWithImages, source: Source, pictures: Mapping[str, Images], first: str | None
    ) -> None:
        super().__init__(reader.loaded, source, pictures, first)
        self.reader, self.kind = reader, "next" if reader.loaded.model.can_generate() else "output"
        self._watched = reader.watched
        self.length = configured_length(reader.loaded.model.config.get_text_config()) or self.length

    @property
    def about(self) -> dict[str, Any]:
        processor: Any = self.reader.pictured.processor
        template = getattr(processor, "chat_template", None) or self.loaded.tokenizer.chat_template
        return super().about | {"chats": bool(template)}

    def another(self) -> Conversation:
        return TextAndPictureConversation(self.reader, self.source, self.pictures, self.first)

    def _pictured(self, images: Images | None, text: str, asked: Look) -> ReadyWindow:
        if not text.strip():
            raise AttnscopeError("found no text: type one")
        written = asked.written
        item = PicturedText("the text", *_read_text(text, asked), Images([]) if images is None else images)
        placed, inputs = self.reader.placed_of(item)
        window = placed.window
        if written:
            names, new = tuple(self._names.of([*written])), len(written)
            window = replace(
                window,
                ids=(*window.ids, *written),
                special=(*window.special, *[False] * new),
                spans=[*window.spans, *[(0, 0)] * new],
                shown=(*window.tokens, *names),
                roles=(),
            )
            inputs = with_new_tokens(inputs, torch.tensor([window.ids]))
        return ready(window, inputs, self.reader.views(item, placed, inputs))

    def _opening(self, path: str) -> tuple[list[str], Inputs]:
        imports = [
            "from attnscope.capture.modalities import load_pictured_model",
            "from attnscope.capture.placement import Loading",
            "from attnscope.measure.generation_pass import with_new_tokens",
            "from attnscope.read.image_text import PicturedText",
            "from attnscope.read.images import Images, images_of",
            "from pathlib import Path",
        ]
        asked = self.looked.question
        text, messages = _read_text(asked.text, asked)
        images = "Images([])" if asked.picture is None else f"images_of(Path({path!r}))"
        lines = [
            f"pictured = load_pictured_model({self.source.loading()})",
            "model, tokenizer = pictured.loaded.model, pictured.loaded.tokenizer",
            f"item = PicturedText('the text', {text!r}, {messages!r}, {images})",
            "_, inputs = pictured.read(item, to_continue=True)",
        ]
        if asked.written:
            ids = [*self.looked.plain.window.ids]
            lines += [
                "# with the tokens that the model wrote",
                f"inputs = with_new_tokens(inputs, torch.tensor([{ids}]))",
            ]
        return imports, Inputs(lines, "pictured.decoder", "pictured.decoder_inputs(inputs)")

    def _checked(self, inputs: dict[str, Any], *, weights_suffice: bool) -> None:
        """Its layers were checked on the first picture."""

    def _forward(self, inputs: dict[str, Any]) -> Tensor:
        return self.reader.pictured.run(inputs)


def _read_text(text: str, asked: Look) -> tuple[str | None, tuple[dict[str, Any], ...]]:
    """A text with the mark of its picture, or a chat of one message."""
    if not asked.chat:
        return marked(text) if asked.picture is not None else text, ()
    said = {"type": "text", "text": text.replace(PLACES[IMAGE], "").strip()}
    content = [*[{"type": "image"}] * (asked.picture is not None), said]
    return None, ({"role": "user", "content": content},)


def ready(window: Window, arguments: dict[str, Any], views: Sequence[dict[str, Any]] = ()) -> ReadyWindow:
    fields = {name: getattr(window, name) for name in Window.__dataclass_fields__}
    return ReadyWindow(**fields, arguments=arguments, views=tuple(views))
