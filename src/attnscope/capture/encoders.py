"""Speech models (Whisper, Wav2Vec2, HuBERT, WavLM) and vision encoders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers

from attnscope.capture.borrow import LoadedModel, inner_model
from attnscope.capture.checkpoint import main_inputs, saved_config
from attnscope.capture.families import frames_of_wave, frames_of_window, image_token_of, seconds_at_once
from attnscope.capture.load import load_model, what_is_read
from attnscope.capture.outline import rejecting
from attnscope.capture.placement import AS_SAVED, Loading, device_of
from attnscope.capture.processors import load_image_processor, load_preprocessor, load_tokenizer, tokenizer_repository
from attnscope.support.errors import AttnscopeError, explaining
from attnscope.support.state import own_state

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from attnscope.capture.load import Model
    from attnscope.capture.outline import Heads
    from attnscope.capture.processors import Processor
    from attnscope.read.images import Image

_FEATURES, _WAVE = "input_features", "input_values"  # main input: frames of a fixed window, or the waveform
_WHAT = "feature extractor"
_HEADS = "heads, --heads"


@dataclass(frozen=True, eq=False)
class SoundInputs:
    """Inputs of a model for one sound."""

    given: dict[str, Tensor]  # arguments of the forward pass
    frames: int  # frames of its encoder
    sounding: int  # frames without the padding at the end
    seconds: float  # duration of a frame


@dataclass(frozen=True, eq=False)
class SpeechModel:
    """A speech model with its feature extractor."""

    loaded: LoadedModel  # the whole model
    model: PreTrainedModel  # the measured part: the model, or its encoder
    extractor: Any  # its feature extractor
    tokenizer: Any  # tokenizer of its decoder, if any

    @property
    def rate(self) -> int:
        """Samples per second."""
        return int(self.extractor.sampling_rate)

    @property
    def longest(self) -> int:
        """Longest input in seconds: Whisper's window, else 30."""
        return seconds_at_once(self.extractor)

    @property
    def reads_windows(self) -> bool:
        """Whether it always reads a window of fixed length (Whisper), whose end may have no sound."""
        return self.model.main_input_name == _FEATURES

    def values(self, samples: np.ndarray, name: str) -> Tensor:
        """Input for a sound of that name, in the model's dtype and on its device."""
        with explaining(f"the feature extractor cannot process {name}", "Use a longer sound"):
            read = self.extractor(samples.astype(np.float32), sampling_rate=self.rate, return_tensors="pt")
        return read[self.model.main_input_name].to(device_of(self.model), self.model.dtype)

    def hear(self, samples: np.ndarray, name: str) -> SoundInputs:
        """Inputs for a sound of that name, and the number of frames of its encoder."""
        reads, values = self.model.main_input_name, self.values(samples, name)
        frames_and_size = None
        if self.reads_windows:
            frames_and_size = frames_of_window(self.model, self.extractor)
        elif reads == _WAVE and values.ndim == 2:  # noqa: PLR2004
            frames_and_size = frames_of_wave(self.model, values.shape[1])
        if frames_and_size is None:
            raise AttnscopeError(
                f"{type(self.model).__name__} reads neither waveforms nor windows like Whisper, so its frames are "
                "unknown"
            )
        frames, each = frames_and_size
        sounding = min(frames, int(np.ceil(len(samples) / each))) if self.reads_windows else frames
        if sounding < 1:
            raise AttnscopeError(
                f"{name} has {len(samples)} samples at {self.rate:,} per second, too few for one frame. Leave it out"
            )
        return SoundInputs({reads: values}, frames, sounding, each / self.rate)


@own_state()
def load_speech_model(
    source: Model,
    *,
    processor: Processor = None,
    with_decoder: bool = False,
    or_encoder: bool = False,
    loading: Loading = AS_SAVED,
    heads: Heads = (),
) -> SpeechModel:
    """Load a speech model with its feature extractor, and with its tokenizer if its decoder reads a text."""
    first = rejecting(heads, _HEADS, part=_encoder_of)
    loaded = load_model(source, need_tokenizer=False, first=first, **vars(loading))
    model, name = loaded.model, type(loaded.model).__name__
    if not reads_sounds(model):
        other = what_is_read(model)
        raise AttnscopeError(
            f"{name} reads {other or model.main_input_name}, not sounds. "
            f"{f'Give it {other}, or use' if other else 'Use'} Whisper, Wav2Vec2, HuBERT or WavLM"
        )
    if with_decoder and not model.config.is_encoder_decoder and or_encoder:
        with_decoder = False
    if with_decoder and not model.config.is_encoder_decoder:
        raise AttnscopeError(f"{name} has no decoder to read transcripts. Leave out targets (--target)")
    tokenizer: Any = None
    if processor is None or isinstance(processor, str | Path):
        trust = loading.trust_remote_code
        repository = tokenizer_repository(source, processor, _WHAT, revision=loading.revision)
        extractor = load_preprocessor(repository, transformers.AutoFeatureExtractor, _WHAT, trust_remote_code=trust)
        tokenizer = load_tokenizer(repository, trust_remote_code=trust) if with_decoder else None
    else:
        extractor = getattr(processor, "feature_extractor", processor)
        tokenizer = getattr(processor, "tokenizer", None)
    if with_decoder and tokenizer is None:
        raise AttnscopeError(f"the transcripts need the tokenizer of {name}. Pass a processor with both as tokenizer")
    return SpeechModel(loaded, model if with_decoder else _encoder_of(model), extractor, tokenizer)


def _encoder_of(model: PreTrainedModel) -> PreTrainedModel:
    encoder: Any = model.get_encoder() if model.config.is_encoder_decoder else model
    return encoder


def reads_sounds(source: Model, revision: str | None = None) -> bool:
    """Whether a model reads sounds, according to its class or config."""
    inner: Any = inner_model(source)
    if isinstance(inner, transformers.PreTrainedModel):
        return inner.main_input_name in {_FEATURES, _WAVE}
    return bool({_FEATURES, _WAVE} & main_inputs(saved_config(inner, revision)))


_READS = "pixel_values"
_VISION_WHAT = "image processor"


@dataclass(frozen=True, eq=False)
class VisionModel:
    """A vision encoder with its image processor."""

    loaded: LoadedModel  # the whole model
    model: PreTrainedModel  # the part that reads images: the model, or its vision tower
    tower: str  # name of that tower; "" for the model itself
    processor: Any  # its image processor; None if images are ``pixel_values`` already

    def pixels(self, image: Image) -> Tensor:
        """Input for an image, ``(1, channel, row, column)``, in the model's dtype and on its device."""
        if isinstance(image.pixels, torch.Tensor):
            values = image.pixels[None]
        else:
            with explaining(f"the image processor cannot process {image.name}", "Use an image of another size"):
                values = self.processor(
                    images=image.pixels,
                    input_data_format="channels_last",  # the guess is wrong for images with 1 or 3 rows
                    return_tensors="pt",
                )[_READS]
        return values.to(device_of(self.model), self.model.dtype)


@own_state()
def load_vision_model(
    source: Model,
    *,
    processor: Processor = None,
    need_processor: bool = True,
    loading: Loading = AS_SAVED,
    heads: Heads = (),
) -> VisionModel:
    """Load a vision encoder with its image processor; for a model of images and text, its vision tower.

    Absent `heads` are rejected before weights are loaded.
    """
    first = rejecting(heads, _HEADS, part=lambda model: (_reader(model) or ("", model))[1])
    loaded = load_model(source, need_tokenizer=False, first=first, **vars(loading))
    reader = _reader(loaded.model)
    if reader is None:
        plain, pictured = what_is_read(loaded.model), image_token_of(loaded.model.config) is not None
        other = "texts with images (JSON Lines)" if pictured else plain
        raise AttnscopeError(
            f"{type(loaded.model).__name__} reads {other or loaded.model.main_input_name}, not images. "
            f"{f'Give it {other}, or use' if other else 'Use'} a vision encoder (ViT, DINOv2, CLIP, SigLIP, ...)"
        )
    if need_processor and (processor is None or isinstance(processor, str | Path)):
        repository = tokenizer_repository(
            source, processor, _VISION_WHAT, revision=loading.revision, more=", or images as pixel_values"
        )
        processor = load_image_processor(repository, trust_remote_code=loading.trust_remote_code)
    name, model = reader
    return VisionModel(loaded, model, name, processor if need_processor else None)


def reads_images(source: Model, revision: str | None = None) -> bool:
    """Whether a model, or a part of it, reads images, according to its class or config."""
    inner: Any = inner_model(source)
    if isinstance(inner, transformers.PreTrainedModel):
        return _reader(inner) is not None
    config = saved_config(inner, revision)
    return "vision_config" in config or _READS in main_inputs(config)


def _reader(model: PreTrainedModel) -> tuple[str, PreTrainedModel] | None:
    """Name and module of the outermost part of a model that reads only images."""
    for name, module in model.named_modules():
        if isinstance(module, transformers.PreTrainedModel) and module.main_input_name == _READS:
            return name, module
    return None
