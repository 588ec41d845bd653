"""What a command was given to read, as far as files here tell it, with their contents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.corpus import are_chats, images_of, pictured_of, sounds_of, videos_of
from attnscope.corpus.files import files_below
from attnscope.corpus.texts import Corpus
from attnscope.errors import AttnscopeError
from attnscope.store import file_state, short_hash

if TYPE_CHECKING:
    from attnscope.corpus import Images, PicturedTexts, Sounds, Videos


@dataclass(frozen=True, eq=False)
class GivenFiles:
    """All that a model may read of what was given, whichever it reads.

    Attributes
    ----------
    texts
        As texts, or as chats; None where there is no text.
    images, sounds, pictured, videos
        As images, as sounds with the transcripts beside them, as texts with images, as videos; None where there are
        none.
    is_chat
        Whether the texts are chats.
    paths
        Every file, but those of the bundled sample.
    states
        States of these at the first look.
    """

    texts: Corpus | None
    images: Images | None
    sounds: Sounds | None
    pictured: PicturedTexts | None
    is_chat: bool
    paths: tuple[Path, ...]
    videos: Videos | None = None
    states: dict[Path, tuple[int, ...]] = field(default_factory=dict[Path, tuple[int, ...]])

    @classmethod
    def of(cls, given: Sequence[Path] | None, *, named: str | None, by_line: bool) -> GivenFiles | None:
        """Look at what lies there; None where something can be read only once.

        Raises
        ------
        AttnscopeError, OSError
            If something is not there, or cannot be read.
        """
        places = list(given or ())
        pictured = pictured_of(places, named) if places else None
        images = images_of(places) if places else None
        sounds = sounds_of(places) if places else None
        videos = None
        with suppress(AttnscopeError):  # not videos alone
            videos = videos_of(places) if places and named is None else None
        is_chat = pictured is None and bool(places) and are_chats(places, named)
        texts = None
        if pictured is None and (videos is None or images is not None):
            with suppress(AttnscopeError):  # no texts there
                texts = Corpus.from_sources(
                    given, field=named, by_line=by_line and not is_chat, chats=is_chat
                )
        forms = (images, sounds, pictured, videos)
        if texts is None and all(form is None for form in forms):
            return None
        if texts is not None and texts.streams:
            return None
        beside = [file for form in forms if form is not None for file in form.files]
        paths = tuple(dict.fromkeys([*_below(places), *beside]))
        files = cls(texts, images, sounds, pictured, is_chat, paths, videos)
        files.states.update({path: file_state(path) for path in paths})
        return files

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages that read these, beside the usual ones."""
        seen = (self.images, self.pictured, self.videos)
        pillow = ("pillow",) if any(form is not None for form in seen) else ()
        return (*pillow, "scipy") if self.sounds is not None else pillow

    @property
    def has_template(self) -> bool:
        """Whether a chat template may write them out."""
        return self.is_chat or self.pictured is not None

    def digests(self) -> dict[str, str]:
        """Hash of the contents in each form in which they may be read."""
        forms = {
            "texts": self.texts,
            "images": self.images,
            "sounds": self.sounds,
            "pictured": self.pictured,
            "videos": self.videos,
        }
        digests = {name: form.sha256() for name, form in forms.items() if form is not None}
        said = None if self.sounds is None else self.sounds.transcripts()
        return digests if said is None else {**digests, "said": short_hash(said)}

    def were_read_by(self, signature: dict[str, Any]) -> bool:
        """Whether a run of that signature read these contents, and no file changed since the first look."""
        digests = self.digests()
        known = signature["corpus"]["sha256"] in digests.values()
        if self.images is None and self.sounds is None and self.has_template:
            known = True  # written out by a template: the files say whether they are the same
        if signature.get("target") is not None:
            known = known and signature["target"]["sha256"] == digests.get("said")
        return known and self.states == {path: file_state(path) for path in self.paths}


def _below(places: Sequence[Path]) -> Iterator[Path]:
    for place in places:
        yield from files_below(place) if place.is_dir() else [place]
