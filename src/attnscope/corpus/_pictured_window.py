"""A text with images as a window: which tokens are images, whose, and what each is called."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnscope.corpus._chats import Region, roles_of
from attnscope.corpus._shown import shown_tokens
from attnscope.corpus._tokens import special_ids, without_added_spaces
from attnscope.corpus.windows import Window

TEXT, SPECIAL, IMAGE = "text", "special", "image"
_MOST_APART = 8  # images of one text that are groups of their own


@dataclass(frozen=True)
class Expanded:
    """What a processor made of a text with images.

    Attributes
    ----------
    name
        Of the text.
    text
        What the tokenizer read: each place of an image as the processor writes it out.
    ids, spans
        Of each token: its number, its first character and one past its last.
    images
        The characters that the processor wrote for each image: first, and one past the last.
    image_id
        The token that stands for a piece of an image.
    contents
        Of a chat, the contents of its messages; None for a text.
    """

    name: str
    text: str
    ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    images: tuple[tuple[int, int], ...]
    image_id: int
    contents: tuple[Region, ...] | None = None

    def image_tokens(self) -> list[list[int]]:
        """The tokens that are pieces of each image, in order.

        Examples
        --------
        >>> Expanded("text 1", "##a", (9, 9, 3), ((0, 1), (1, 2), (2, 3)), ((0, 2),), 9).image_tokens()
        [[0, 1]]
        """
        return [
            [
                token
                for token, (start, end) in enumerate(self.spans)
                if self.ids[token] == self.image_id and first <= start < end <= last
            ]
            for first, last in self.images
        ]


def pictured_window(expanded: Expanded, tokenizer: Any, places: Mapping[int, str]) -> Window:
    """The window of a text with images; `roles` says what each token is.

    That is ``image 1``, ``image 2``, ... for the pieces of images; of a chat the role of who says the token, or
    ``template``; else ``special`` (marks that the processor writes about an image are special too) or ``text``.

    Parameters
    ----------
    expanded
        What the processor made of the text.
    tokenizer
        Its tokenizer.
    places
        What to show for tokens that are pieces of images; others are numbered.
    """
    names = [str(name) for name in tokenizer.convert_ids_to_tokens(list(expanded.ids))]
    spans = without_added_spaces(expanded.text, names, expanded.spans)
    written = frozenset(tokenizer.all_special_tokens)
    tokens = list(shown_tokens(expanded.text, names, spans, written))
    known = special_ids(tokenizer) | set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    special = [token in known for token in expanded.ids]
    for first, last in expanded.images:
        for token, (start, end) in enumerate(spans):
            special[token] = special[token] or first <= start < end <= last
    for token, is_special in enumerate(special):
        tokens[token] = names[token] if is_special and spans[token][0] == spans[token][1] else tokens[token]
    if expanded.contents is None:
        roles = [SPECIAL if is_special else TEXT for is_special in special]
    else:
        roles = list(roles_of(tuple(spans), list(expanded.contents)))
    for image, pieces in enumerate(expanded.image_tokens(), start=1):
        for number, token in enumerate(pieces, start=1):
            special[token], roles[token] = False, f"{IMAGE} {image}"
            tokens[token] = places.get(token, f"{IMAGE} {image} piece {number}")
    return Window(
        ids=expanded.ids,
        special=tuple(special),
        spans=tuple(spans),
        source=expanded.name,
        start=0,
        tokens=tuple(tokens),
        roles=tuple(roles),
    )


def image_groups(windows: Sequence[Window]) -> tuple[list[Window], list[str]]:
    """Windows whose images have the names of groups, and these: ``image`` where no text has several, or many have.

    Examples
    --------
    >>> window = Window((9, 3), (False, False), ((0, 1), (1, 2)), "text 1", 0, ("", "a"), roles=("image 1", "text"))
    >>> image_groups([window])[1]
    ['image']
    """
    most = max((_number(role) for window in windows for role in set(window.roles)), default=0)
    if 1 < most <= _MOST_APART:
        return list(windows), [f"{IMAGE} {number}" for number in range(1, most + 1)]
    merged = [
        replace(window, roles=tuple(IMAGE if _number(role) else role for role in window.roles))
        for window in windows
    ]
    return merged, [IMAGE] if most else []


def _number(role: str) -> int:
    """Of an image, from 1; 0 for what is none."""
    kind, _, number = role.partition(" ")
    return int(number) if kind == IMAGE and number else 0
