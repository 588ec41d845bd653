"""A text with images or videos as a window: which tokens are theirs, of which frame, and what each is called."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnscope.corpus._chats import Region, roles_of
from attnscope.corpus._picture_parts import IMAGE, VIDEO
from attnscope.corpus._shown import shown_tokens
from attnscope.corpus._tokens import special_ids, without_added_spaces
from attnscope.corpus.windows import Window

TEXT, SPECIAL, FRAME = "text", "special", "frame"
_MOST_APART = 8  # images and videos, or frames, of one text that are groups of their own
_ROLE = re.compile(f"({IMAGE}|{VIDEO}) ([0-9]+)(?: {FRAME} ([0-9]+))?")


@dataclass(frozen=True)
class Expanded:
    """What a processor made of a text with images or videos.

    Attributes
    ----------
    name
        Name of the text.
    text
        What the tokenizer read: each place of an image or a video as the processor writes it out.
    ids, spans
        Numbers of the tokens, and for each its first character and one past its last.
    images, videos
        The characters that the processor wrote for each image and each video: first, and one past the last.
    pieces
        The tokens that stand for a piece of an image or of a frame.
    contents
        Contents of the messages of a chat; None for a text.

    Examples
    --------
    >>> spans = ((0, 1), (1, 2), (2, 3), (3, 4))
    >>> expanded = Expanded("text 1", "#a##", (9, 3, 9, 9), spans, ((0, 1), (2, 4)), frozenset({9}))
    >>> expanded.image_tokens()  # two images, of one piece and of two
    [[0], [2, 3]]
    """

    name: str
    text: str
    ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    images: tuple[tuple[int, int], ...]
    pieces: frozenset[int]
    contents: tuple[Region, ...] | None = None
    videos: tuple[tuple[int, int], ...] = ()

    def image_tokens(self) -> list[list[int]]:
        """The tokens that are pieces of each image, in order.

        Examples
        --------
        >>> Expanded("text 1", "##a", (9, 9, 3), ((0, 1), (1, 2), (2, 3)), ((0, 2),), frozenset({9})).image_tokens()
        [[0, 1]]
        """
        return self._tokens_in(self.images)

    def video_tokens(self) -> list[list[int]]:
        """The tokens that are pieces of each video, in order."""
        return self._tokens_in(self.videos)

    def _tokens_in(self, written: Sequence[tuple[int, int]]) -> list[list[int]]:
        return [
            [
                token
                for token, (start, end) in enumerate(self.spans)
                if self.ids[token] in self.pieces and first <= start < end <= last
            ]
            for first, last in written
        ]


def pictured_window(
    expanded: Expanded,
    tokenizer: Any,
    places: Mapping[int, str],
    frames: Sequence[Sequence[Sequence[int]]] = (),
) -> Window:
    """The window of a text with images; `roles` says what each token is.

    That is ``image 1``, ``image 2``, ... for the pieces of images, ``video 1 frame 1``, ... for those of videos, or
    ``video 1`` where frames are not known; of a chat the role of who says the token, or ``template``; else ``special``
    (marks that the processor writes about an image are special too) or ``text``.

    Parameters
    ----------
    expanded
        What the processor made of the text.
    tokenizer
        Its tokenizer.
    places
        What to show for tokens that are pieces of images; others are numbered.
    frames
        Tokens of each frame of each video; none where they are not known.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> from transformers import AutoTokenizer
    >>> tokenizer = AutoTokenizer.from_pretrained(MODEL)
    >>> text = "<mask><mask> tide"  # a processor has written two pieces of an image, here as masks
    >>> ids, mask = tokenizer(text, add_special_tokens=False).input_ids, tokenizer.mask_token_id
    >>> spans = ((0, 6), (6, 12), (12, 14), (14, 17))
    >>> expanded = Expanded("text 1", text, tuple(ids), spans, ((0, 12),), frozenset({mask}))
    >>> window = pictured_window(expanded, tokenizer, {0: "image 1 r0c0"})
    >>> list(zip(window.tokens, window.roles))
    [('image 1 r0c0', 'image 1'), ('image 1 piece 2', 'image 1'), (' t', 'text'), ('ide', 'text')]
    """
    names = [str(name) for name in tokenizer.convert_ids_to_tokens(list(expanded.ids))]
    spans = without_added_spaces(expanded.text, names, expanded.spans)
    written = frozenset(tokenizer.all_special_tokens)
    tokens = list(shown_tokens(expanded.text, names, spans, written))
    known = special_ids(tokenizer) | set(tokenizer.all_special_ids) - {
        tokenizer.unk_token_id,
        tokenizer.mask_token_id,
    }
    special = [token in known for token in expanded.ids]
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
            f"{VIDEO} {video} {FRAME} {number}": list(own) for number, own in enumerate(apart, start=1)
        }
        pieces |= {} if apart else {f"{VIDEO} {video}": whole}
    for name, own in pieces.items():
        for number, token in enumerate(own, start=1):
            special[token], roles[token] = False, name
            tokens[token] = places.get(token, f"{name} piece {number}")
    return Window(
        ids=expanded.ids,
        special=tuple(special),
        spans=tuple(spans),
        source=expanded.name,
        start=0,
        tokens=tuple(tokens),
        roles=tuple(roles),
    )


def picture_groups(windows: Sequence[Window]) -> tuple[list[Window], list[str]]:
    """Windows whose images and frames have the names of groups, and these names.

    Images are groups of their own where a text has several, at most 8; else they are ``image``. So are videos. Where no
    text has more than one video, and it has at most 8 frames, the frames are groups: ``frame 1``, ``frame 2``, ...

    Examples
    --------
    >>> def window(*roles):
    ...     count = len(roles)
    ...     return Window((9,) * count, (False,) * count, ((0, 1),) * count, "text 1", 0, ("",) * count, roles=roles)
    >>> picture_groups([window("image 1", "text")])[1]
    ['image']
    >>> picture_groups([window("video 1 frame 1", "video 1 frame 2", "text")])[1]
    ['frame 1', 'frame 2']
    """
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

    renamed = [replace(window, roles=tuple(map(named, window.roles))) for window in windows]
    return renamed, [*kept_images, *kept_videos]


def _parsed(role: str) -> tuple[str, int, int]:
    """Kind, number and frame, each from 1, 0 for none; the role itself for what is neither image nor video."""
    told = _ROLE.fullmatch(role)
    return (told[1], int(told[2]), int(told[3] or 0)) if told else (role, 0, 0)
