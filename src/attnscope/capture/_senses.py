"""What a model is given to read: texts, or images, sounds, videos, texts with images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.capture._hearing import reads_sounds
from attnscope.capture._pictured import puts_images_into_texts
from attnscope.capture._video import reads_videos
from attnscope.capture._vision import reads_images
from attnscope.corpus import (
    Images,
    PicturedTexts,
    Sounds,
    Videos,
    images_of,
    pictured_of,
    sounds_of,
    videos_of,
)
from attnscope.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.capture._model import Model

Sense = Images | Sounds | PicturedTexts | Videos


def sense_of(
    model: Model, given: Any, *, field: str | None = None, revision: str | None = None
) -> Sense | None:
    """Images, sounds, videos or texts with images, where a model reads that of what is given; None for plain texts.

    A folder that holds texts beside images or sounds is what the model reads of it.

    Parameters
    ----------
    model
        A folder, a hub id, or a loaded model; by default the bundled one.
    given
        Texts, images, sounds or videos, as the caller was given them.
    field
        Field that holds the text.
    revision
        Revision of the model on the hub.

    Raises
    ------
    AttnscopeError
        If something of it cannot be read, or does not belong together.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> sense_of(MODEL, ["The tide is out."]) is None
    True
    """
    pictured = pictured_of(given, field)
    if pictured is not None and not (pictured.beside_images and reads_images(model, revision)):
        return pictured
    if pictured is not None and puts_images_into_texts(model, revision):
        return pictured
    images = images_of(given)
    videos = _videos(model, given, images, revision) if field is None else None
    if videos is not None:
        return videos
    if images is not None and (not images.beside_text or reads_images(model, revision)):
        return images
    sounds = sounds_of(given)
    if sounds is not None and (not sounds.beside_text or reads_sounds(model, revision)):
        return sounds
    return None


def _videos(model: Model, given: Any, images: Images | None, revision: str | None) -> Videos | None:
    """What is given as videos, where the model reads these; images are the frames of a video then."""
    if images is not None and not reads_videos(model, revision):
        return None
    videos = videos_of(given)
    if images is not None and videos is None:
        raise AttnscopeError(
            "found images, and the model reads videos: give a folder of frames, a folder of such folders, or JSON "
            "Lines with video"
        )
    if videos is not None and images is None and not reads_videos(model, revision):
        raise AttnscopeError(
            "found videos without a text, and the model reads none: take a video encoder (VideoMAE, ViViT, V-JEPA 2, "
            "...), or give a text beside each"
        )
    return videos


def refuse_senses(
    command: str,
    model: Model,
    given: Any,
    *,
    field: str | None = None,
    revision: str | None = None,
) -> None:
    """Refuse images, sounds and texts with images for what reads plain texts alone.

    Parameters
    ----------
    command
        Name of what reads plain texts alone, for the error.
    model
        A folder, a hub id, or a loaded model; by default the bundled one.
    given
        Texts, images, sounds or videos, as the caller was given them.
    field
        Field that holds the text.
    revision
        Revision of the model on the hub.

    Raises
    ------
    AttnscopeError
        Says what was found, and what reads it.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> refuse_senses("explain", MODEL, ["The tide is out."])
    """
    sense = None if given is None else sense_of(model, given, field=field, revision=revision)
    if sense is None:
        return
    what = _NAMES[type(sense)]
    plain = ", or name the field of the text (--field text) to read that alone" * isinstance(
        sense, PicturedTexts
    )
    raise AttnscopeError(
        f"found {what}, and {command} reads texts alone: scan, attnscope.weights and diff take {what}{plain}"
    )


_NAMES = {Images: "images", Sounds: "sounds", PicturedTexts: "texts with images", Videos: "videos"}
