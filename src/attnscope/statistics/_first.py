"""The first image, sound, video or text with images, ready for one watched pass: what raw weights are taken of."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from attnscope.capture import load_pictured_model, load_video_model, load_vision_model
from attnscope.corpus import Images, PicturedTexts, Videos
from attnscope.errors import AttnscopeError
from attnscope.statistics.images import ImageMeasurement
from attnscope.statistics.pictured import PicturedMeasurement
from attnscope.statistics.sounds import SoundMeasurement, loaded_for
from attnscope.statistics.videos import VideoMeasurement

if TYPE_CHECKING:
    from attnscope.capture import Model, Sense
    from attnscope.corpus import Sources
    from attnscope.statistics._asked import Asked

_NAMES = ("entropy",)  # nothing is measured, and something must be asked for


def first_of(
    model: Model, sense: Sense, asked: Asked, targets: Sources = None
) -> ImageMeasurement | PicturedMeasurement | SoundMeasurement | VideoMeasurement:
    """Load the model and check it on the first image, sound, video or text with images.

    Raises
    ------
    AttnscopeError
        What `attnscope.scan` raises of them.
    """
    asked = replace(asked, limit=1)
    if isinstance(sense, PicturedTexts | Images | Videos) and targets is not None:
        raise AttnscopeError("targets are of texts and sounds, and these are neither: leave them out")
    if isinstance(sense, PicturedTexts):
        pictured = load_pictured_model(
            model, processor=asked.processor, loading=asked.loading, videos=sense.has_videos
        )
        return PicturedMeasurement(pictured, sense, _NAMES, asked, None, None)
    if isinstance(sense, Images):
        vision = load_vision_model(
            model, processor=asked.processor, need_processor=not sense.is_processed, loading=asked.loading
        )
        return ImageMeasurement(vision, sense, _NAMES, asked)
    if isinstance(sense, Videos):
        filmed = load_video_model(
            model, processor=asked.processor, need_processor=not sense.is_processed, loading=asked.loading
        )
        return VideoMeasurement(filmed, sense, _NAMES, asked)
    speech, _, said, _ = loaded_for(model, sense, asked, targets)
    return SoundMeasurement(speech, sense, said, _NAMES, asked)
