"""Video encoders: models that read whole videos and no text, and what prepares their frames."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import AutoConfig, AutoVideoProcessor, PreTrainedModel
from transformers.utils.import_utils import is_torchvision_available

from attnscope._caller import own_state
from attnscope.capture._beside import hash_of_settings, repository_beside
from attnscope.capture._heuristics import frames_of, is_video_processor, without_predictor
from attnscope.capture._hub import out_of_reach
from attnscope.capture._inner import inner_model
from attnscope.capture._load import LoadedModel, load_model
from attnscope.capture._loading import AS_SAVED, Loading
from attnscope.capture._placement import device_of
from attnscope.capture._quiet import quiet
from attnscope.capture._repository import Repository, asking_trust
from attnscope.capture._saved_config import saved_config
from attnscope.capture._vision import load_image_processor
from attnscope.corpus import Video
from attnscope.errors import AttnscopeError, explaining

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.capture._model import Model
    from attnscope.capture._tokenizer import Processor
    from attnscope.corpus import Clip

_KEYS = ("pixel_values_videos", "pixel_values")  # under which models are given a video
_OF_VIDEOS = "video_preprocessor_config.json"
_WHAT = "image or video processor"


@dataclass(frozen=True, eq=False)
class VideoModel:
    """A video encoder ready to be watched.

    Attributes
    ----------
    loaded
        The whole model, as it was loaded.
    model
        What of it reads videos, without a head.
    frames
        How many frames it reads at a time, as its config says.
    processor
        What prepares them; None where videos are prepared already.

    Examples
    --------
    >>> from transformers import VideoMAEConfig, VideoMAEModel
    >>> from attnscope.capture import load_video_model
    >>> sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    >>> encoder = VideoMAEModel(VideoMAEConfig(image_size=8, patch_size=4, num_frames=4, **sizes))
    >>> model = load_video_model(encoder, need_processor=False)
    >>> model.frames, model.chosen(10), model.key
    (4, [0, 3, 6, 9], 'pixel_values')
    """

    loaded: LoadedModel
    model: PreTrainedModel
    frames: int
    processor: Any

    @property
    def key(self) -> str:
        """The argument of the model that is the video."""
        return self.model.main_input_name

    @property
    def leaves_out(self) -> bool:
        """Whether it has a predictor beside its encoder, which does not run."""
        return bool(without_predictor(self.model))

    def chosen(self, count: int) -> list[int]:
        """Which of so many frames are read: as many as the model takes, at even steps; all where there are fewer."""
        if count <= self.frames:
            return list(range(count))
        return np.linspace(0, count - 1, self.frames).round().astype(int).tolist()

    def given(self, clip: Clip) -> dict[str, Any]:
        """Arguments of the forward pass: the frames ``(1, frame, channel, row, column)``, and no predictor.

        Raises
        ------
        AttnscopeError
            If the frames are of several sizes, or the processor cannot take them.
        """
        if isinstance(clip.video, Video):
            pixels = clip.video.pixels()
            frames = list(pixels[self.chosen(len(pixels))])
            values = self._prepared(frames, clip.name)
        else:
            values = clip.video[None]
        return {self.key: values.to(device_of(self.model), self.model.dtype), **without_predictor(self.model)}

    def _prepared(self, frames: list[np.ndarray], name: str) -> Tensor:
        more = {"do_sample_frames": False} if is_video_processor(self.processor) else {}
        with quiet(), explaining(f"the processor cannot take {name}", "Give frames of another size"):
            prepared = self.processor(frames, input_data_format="channels_last", return_tensors="pt", **more)
            return next(prepared[key] for key in _KEYS if key in prepared)

    def processing(self) -> str | None:
        """Hash of all that the processor does; None without one."""
        return None if self.processor is None else hash_of_settings(self.processor.to_dict())


@own_state()
def load_video_model(
    source: Model,
    *,
    processor: Processor = None,
    need_processor: bool = True,
    loading: Loading = AS_SAVED,
) -> VideoModel:
    """Load a video encoder with the processor beside it; a classifier's head is left aside.

    Parameters
    ----------
    source, loading
        See `load_model`.
    processor
        Its processor or the processor's folder; by default the one beside the model.
    need_processor
        Whether to look for one.

    Raises
    ------
    AttnscopeError
        As `load_model`; if it reads no videos, or has no processor that can be loaded.

    Examples
    --------
    >>> from transformers import VideoMAEConfig, VideoMAEModel
    >>> config = VideoMAEConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    >>> load_video_model(VideoMAEModel(config), need_processor=False).frames
    16
    """
    loaded = load_model(source, need_tokenizer=False, **vars(loading))
    model: Any = loaded.model.base_model
    frames = frames_of(model.config)
    if frames is None or model.main_input_name not in _KEYS:
        raise AttnscopeError(
            f"{type(loaded.model).__name__} reads {loaded.model.main_input_name}, not videos: take a video encoder "
            "(VideoMAE, ViViT, V-JEPA 2, ...)"
        )
    if need_processor and (processor is None or isinstance(processor, str | Path)):
        place = repository_beside(
            source,
            processor,
            _WHAT,
            revision=loading.revision,
            more=f", or frames as {model.main_input_name}",
        )
        processor = _load_processor(place, trust_remote_code=loading.trust_remote_code)
    return VideoModel(loaded, model, frames, processor if need_processor else None)


def reads_videos(source: Model, revision: str | None = None) -> bool:
    """Whether a model reads whole videos and no text, as its config says.

    Parameters
    ----------
    source
        A folder, a hub id, or a loaded model.
    revision
        Revision of the model on the hub.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> reads_videos(MODEL)
    False
    """
    inner: Any = inner_model(source)
    if isinstance(inner, PreTrainedModel):
        return inner.base_model.main_input_name in _KEYS and frames_of(inner.config) is not None
    saved = saved_config(inner, revision)
    with suppress(Exception):  # a config that is broken is refused where the model is loaded
        config: Any = AutoConfig.for_model(**saved)  # of which a file has only what is not as usual
        return frames_of(config) is not None and not hasattr(config, "text_config")
    return False


def _load_processor(repository: Repository, *, trust_remote_code: bool) -> Any:
    """Frames are prepared by the model's image processor, with Pillow alone; else by its video processor."""
    saved = repository.read("preprocessor_config.json") or {}
    named = str(saved.get("video_processor_type") or "")
    if not repository.find(_OF_VIDEOS) and not named:
        return load_image_processor(repository, trust_remote_code=trust_remote_code)
    source = repository.source
    if not is_torchvision_available():
        raise AttnscopeError(
            f"{source} has a video processor alone, which needs torchvision: pip install 'attnscope[video]', or give "
            "frames as a processor gives them"
        )
    advice = "Are its files whole, and is torchvision the one for this PyTorch?"
    with (
        quiet(),
        explaining(f"the video processor of {source} cannot be loaded", advice),
        asking_trust(source),
    ):
        return AutoVideoProcessor.from_pretrained(
            source,
            revision=repository.commit,
            local_files_only=out_of_reach(),
            trust_remote_code=trust_remote_code,
        )
