"""Texts and chats with images or videos, for vision-language models."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from attnscope.read.chats import Region, group_of_role, roles_of, written_out
from attnscope.read.files import (
    check_characters,
    file_mode,
    files_below,
    inner_suffix,
    is_standard_input,
    json_objects,
    read_blocks,
    shown,
    unpacked,
)
from attnscope.read.images import Images, images_of
from attnscope.read.messages import CHAT_FIELDS
from attnscope.read.picture_parts import IMAGE, PLACES, VIDEO, chat_of, has_pictures, sources_of
from attnscope.read.shown import added_spaces, shown_tokens, special_ids
from attnscope.read.sources import Names, holds_text, names_a_dataset
from attnscope.read.videos import Video, is_film, reject_film, video_of
from attnscope.read.windows import Window
from attnscope.statistics.units import Repeats
from attnscope.support.checks import is_path
from attnscope.support.errors import AttnscopeError

_NAMES = (b'"image', b'"video')  # prefixes of the names of fields and parts with an image or a video


@dataclass(frozen=True, eq=False)
class PicturedText:
    """A text or a chat, and its images and videos."""

    name: str  # in results
    # with ``<image>`` and ``<video>`` at their positions, or a model's own marks; None for a chat
    text: str | None
    # messages of a chat: ``role`` and ``content`` each, the content a list of parts as chat templates read them
    messages: tuple[dict[str, Any], ...]
    images: Images  # in order of position
    videos: tuple[Video, ...] = ()

    def pixels(self) -> list[np.ndarray]:
        """RGB of each image, ``(row, column, 3)`` of 8 bits."""
        return [cast("np.ndarray", image.pixels) for image in self.images]


class PicturedTexts:
    """Texts with images; built by `pictured_of`."""

    called = "texts with images"

    def __init__(self, items: Sequence[PicturedText], *, beside_images: bool = False) -> None:
        self._items, self.beside_images = items, beside_images

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[PicturedText]:
        repeats = Repeats()
        for item in self._items:
            videos = [(*video.frames.contents(), video.rate) for video in item.videos]
            content = (item.text, repr(item.messages), *item.images.contents(), *videos)
            yield replace(item, name=repeats.named(item.name, content))

    @property
    def has_videos(self) -> bool:
        """Whether any of them has a video."""
        return any(item.videos for item in self._items)

    @property
    def files(self) -> list[Path]:
        """The files of all images."""
        each = ((item.images, *(video.frames for video in item.videos)) for item in self._items)
        return [file for several in each for images in several for file in images.files]

    def sha256(self) -> str:
        """Hash names, texts and images in order."""
        digest = hashlib.sha256(b"pictured")
        for item in self._items:
            parts = [item.name, item.text, item.messages, item.images.sha256()]
            parts += [(video.frames.sha256(), video.rate) for video in item.videos]
            digest.update(json.dumps(parts, default=str).encode() + b"\n")
        return digest.hexdigest()


def pictured_of(given: object, field: str | None = None) -> PicturedTexts | None:
    """Texts with images or videos from any form; None for inputs without both."""
    if field is not None:
        return None
    many = cast("list[Any]", given if isinstance(given, list | tuple) else [given])
    film = next((item for item in many if isinstance(item, Path) and is_film(item) and item.is_file()), None)
    if film is not None:
        raise reject_film(film, "")
    files = [_files_at(item) if isinstance(item, Path) else [] for item in many]
    if not any(map(has_pictures, many)) and not any(_has_pictured_lines(file) for each in files for file, _ in each):
        return None
    names = Names()
    read: list[PicturedText] = []
    for number, (item, each) in enumerate(zip(many, files, strict=True), start=1):
        if isinstance(item, Path) and not each:
            file_mode(item)
            raise _beside(item)
        for file, name in each:
            file_mode(file)
            if inner_suffix(file) != ".jsonl":
                raise _beside(file)
            shown_name = names.new(name)
            read += [_of(value, f"{shown_name}:{number}", file.parent) for number, value in json_objects(file, "text")]
        if not isinstance(item, Path):
            read.append(_of(item, f"text {number}", None))
    folders = [item for item in many if isinstance(item, Path) and item.is_dir()]
    return PicturedTexts(read, beside_images=bool(folders) and images_of(folders) is not None)


def _files_at(path: Path) -> list[tuple[Path, str]]:
    """The JSON Lines at a path, and their names; if any line has an image, a folder must have no other texts."""
    if is_standard_input(path) or names_a_dataset(path):
        return []
    if path.is_dir():
        return [(file, file.relative_to(path).as_posix()) for file in files_below(path) if holds_text(file)]
    return [(path, path.name)] if path.is_file() else []


def _has_pictured_lines(path: Path) -> bool:
    """Whether any line names an image: lines are parsed only if the name of such a field is in the file."""
    if inner_suffix(path) != ".jsonl":
        return False
    before = b""
    for block in unpacked(path, read_blocks(path)):
        if any(name in before + block for name in _NAMES):
            return any(has_pictures(value) for _, value in json_objects(path, "text"))
        before = block[-len(_NAMES[0]) :]
    return False


def _beside(path: Path) -> AttnscopeError:
    return AttnscopeError(f"{shown(path)} is next to JSON Lines with images: give it separately")


def _of(value: object, name: str, folder: Path | None) -> PicturedText:
    if not isinstance(value, Mapping):
        raise AttnscopeError(f"{name}: expected an object with text or messages, like the others with images")
    named = cast("Mapping[str, Any]", value)
    text: Any = named.get("text")
    if isinstance(text, str):
        check_characters(text, name)
        messages, sources = [], {kind: sources_of(named, name, kind) for kind in (IMAGE, VIDEO)}
    elif any(named.get(field) for field in CHAT_FIELDS):
        text = None
        messages, sources = chat_of(named, name)
    else:
        raise AttnscopeError(f"{name}: expected a text (with {' or '.join(PLACES.values())} for each) or messages")
    videos = tuple(video_of(source, named.get("fps"), name, folder) for source in sources[VIDEO])
    images = [_image(source, name, folder) for source in sources[IMAGE]]
    return PicturedText(name, text, tuple(messages), (images_of(images) if images else None) or Images([]), videos)


def _image(source: Any, name: str, folder: Path | None) -> Any:
    """An image that a text names; a path in a file is relative to its folder."""
    path = source
    if isinstance(source, str | Path):
        if "://" in str(source) or str(source).startswith("data:"):
            raise AttnscopeError(f"{name}: the image {str(source)!r:.80} is a URL: download it, and name the file")
        path = Path(source) if folder is None else folder / source
        if not is_path(path, "is_file"):
            raise AttnscopeError(f"{name}: there is no image {shown(path)[:200]}: check the path")
    try:
        images = images_of([path])
    except AttnscopeError as error:
        raise AttnscopeError(f"{name}: {error}") from error
    if images is None or len(images) != 1 or images.is_processed:
        raise AttnscopeError(
            f"{name}: found an object that is not an image; expected paths (.png, .jpg, .webp), Pillow images or "
            "arrays of pixels (row, column, 3) of uint8"
        )
    return path


def written_in_parts(
    item: PicturedText, processor: Any, template: str | None = None, *, to_answer: bool = False
) -> tuple[str, list[Region]]:
    """A chat as a template writes it, and the positions of the texts of its messages; if asked, up to the answer."""
    template = template or getattr(processor, "chat_template", None) or processor.tokenizer.chat_template
    if not template:
        raise AttnscopeError(
            f"{item.name} is a chat, but the processor has no chat template: give a Jinja file (--chat-template FILE)"
        )
    messages = list(item.messages)
    while to_answer and messages and group_of_role(messages[-1]["role"]) == "assistant":
        messages.pop()
    if not messages:
        raise AttnscopeError(f"{item.name}: only the assistant speaks, so there is nothing to answer")
    return written_out(
        messages, item.name, processor, template, **({"add_generation_prompt": True} if to_answer else {})
    )


TEXT, SPECIAL, FRAME = "text", "special", "frame"
_MOST_APART = 8  # images and videos, or frames, of one text with their own groups
_ROLE = re.compile(f"({IMAGE}|{VIDEO}) ([0-9]+)(?: {FRAME} ([0-9]+))?")


@dataclass(frozen=True)
class Expanded:
    """A processor's output for a text with images or videos."""

    name: str  # name of the text
    text: str  # the tokenizer's input, with each image or video as the processor expands it
    ids: tuple[int, ...]  # token ids, and the first character of each and one past its last
    spans: tuple[tuple[int, int], ...]
    # the characters that the processor wrote for each image and each video: first, and one past the last
    images: tuple[tuple[int, int], ...]
    pieces: frozenset[int]  # the tokens of pieces of images or frames
    contents: tuple[Region, ...] | None = None  # contents of the messages of a chat; None for a text
    videos: tuple[tuple[int, int], ...] = ()

    def image_tokens(self) -> list[list[int]]:
        """The tokens that are pieces of each image, in order."""
        return self._tokens_in(self.images)

    def video_tokens(self) -> list[list[int]]:
        """The tokens that are pieces of each video, in order."""
        return self._tokens_in(self.videos)

    def _tokens_in(self, written: Sequence[tuple[int, int]]) -> list[list[int]]:
        pieces = [(at, *span) for at, span in enumerate(self.spans) if self.ids[at] in self.pieces]
        return [[at for at, start, end in pieces if first <= start < end <= last] for first, last in written]


def pictured_window(
    expanded: Expanded, tokenizer: Any, places: Mapping[int, str], frames: Sequence[Sequence[Sequence[int]]] = ()
) -> Window:
    """The window of a text with images; `roles` has the role of each token."""
    names = [str(name) for name in tokenizer.convert_ids_to_tokens(list(expanded.ids))]
    added = {*added_spaces(expanded.text, names.__getitem__, expanded.spans, range(len(names)))}
    spans = [(start, start if at in added else end) for at, (start, end) in enumerate(expanded.spans)]
    tokens = shown_tokens(expanded.text, names, spans, frozenset(tokenizer.all_special_tokens))
    specials = special_ids(tokenizer) | set(tokenizer.all_special_ids) - {
        tokenizer.unk_token_id,
        tokenizer.mask_token_id,
    }
    special = [token in specials for token in expanded.ids]
    for first, last in (*expanded.images, *expanded.videos):
        for token, (start, end) in enumerate(spans):
            special[token] = special[token] or first <= start < end <= last
    for token, is_special in enumerate(special):
        tokens[token] = names[token] if is_special and spans[token][0] == spans[token][1] else tokens[token]
    if expanded.contents is None:
        roles = [SPECIAL if is_special else TEXT for is_special in special]
    else:
        roles = list(roles_of(tuple(spans), list(expanded.contents)))
    pieces = {f"{IMAGE} {number}": tokens for number, tokens in enumerate(expanded.image_tokens(), start=1)}
    for video, whole in enumerate(expanded.video_tokens(), start=1):
        apart = frames[video - 1] if video <= len(frames) else ()
        pieces |= {
            f"{VIDEO} {video} {FRAME} {number}": list(of_piece) for number, of_piece in enumerate(apart, start=1)
        }
        pieces |= {} if apart else {f"{VIDEO} {video}": whole}
    for name, of_piece in pieces.items():
        for number, token in enumerate(of_piece, start=1):
            special[token], roles[token] = False, name
            tokens[token] = places.get(token, f"{name} piece {number}")
    named: dict[str, Any] = {"roles": tuple(roles), "text": expanded.text}
    return Window(expanded.ids, tuple(special), tuple(spans), expanded.name, 0, tuple(tokens), **named)


def picture_groups(windows: Sequence[Window]) -> tuple[list[Window], list[str]]:
    """Windows with images and frames as groups, and the names of these groups."""
    parsed = [_parsed(role) for role in {role for window in windows for role in window.roles}]
    images, videos = (
        max((number for kind, number, _ in parsed if kind == wanted), default=0) for wanted in (IMAGE, VIDEO)
    )
    frames = max((frame for *_, frame in parsed), default=0)
    framed = videos == 1 and frames > 1 and all(frame for kind, _, frame in parsed if kind == VIDEO)
    of_image = [f"{IMAGE} {number}" for number in range(1, images + 1)]
    of_video = [f"{VIDEO} {number}" for number in range(1, videos + 1)]
    of_frame = [f"{FRAME} {number}" for number in range(1, frames + 1)]
    images_apart = 1 < images <= _MOST_APART
    kept_images = of_image if images_apart else [IMAGE] * (images > 0)
    left = _MOST_APART - len(kept_images) + (not images_apart and images > 0)
    frames_apart, videos_apart = framed and frames <= left, 1 < videos <= left
    kept_videos = of_frame if frames_apart else of_video if videos_apart else [VIDEO] * (videos > 0)

    def named(role: str) -> str:
        kind, number, frame = _parsed(role)
        if kind == IMAGE:
            return role if images_apart else IMAGE
        if kind == VIDEO:
            return f"{FRAME} {frame}" if frames_apart else f"{VIDEO} {number}" if videos_apart else VIDEO
        return role

    return [replace(window, roles=tuple(map(named, window.roles))) for window in windows], [*kept_images, *kept_videos]


def _parsed(role: str) -> tuple[str, int, int]:
    """Kind, number and frame, each from 1, 0 for none; the role itself for other tokens."""
    told = _ROLE.fullmatch(role)
    return (told[1], int(told[2]), int(told[3] or 0)) if told else (role, 0, 0)
