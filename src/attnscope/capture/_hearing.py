"""Models of sounds: Whisper, and encoders that read the wave itself (Wav2Vec2, HuBERT, WavLM)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import AutoFeatureExtractor, PreTrainedModel

from attnscope._caller import own_state
from attnscope.capture._beside import hash_of_settings, load_preprocessor, repository_beside
from attnscope.capture._heuristics import frames_of_wave, frames_of_window, seconds_at_once
from attnscope.capture._inner import inner_model
from attnscope.capture._load import LoadedModel, load_model, what_is_read
from attnscope.capture._loading import AS_SAVED, Loading
from attnscope.capture._placement import device_of
from attnscope.capture._saved_config import main_inputs, saved_config
from attnscope.capture._tokenizer import load_tokenizer
from attnscope.errors import AttnscopeError, explaining

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.capture._model import Model
    from attnscope.capture._tokenizer import Processor

_FEATURES, _WAVE = "input_features", "input_values"  # what is read: frames of a fixed window, or the wave
_WHAT = "feature extractor"


@dataclass(frozen=True, eq=False)
class Heard:
    """What a model reads of one sound.

    Attributes
    ----------
    given
        Arguments of the forward pass.
    frames, sounding
        Frames of its encoder, and how many of these are sound; those that are not come last.
    seconds
        From one frame to the next.
    """

    given: dict[str, Tensor]
    frames: int
    sounding: int
    seconds: float


@dataclass(frozen=True, eq=False)
class SpeechModel:
    """A model of sounds ready to be watched.

    Attributes
    ----------
    loaded
        The whole model, as it was loaded.
    model
        What is watched: itself, or its encoder alone.
    extractor
        Its feature extractor.
    tokenizer
        Tokenizer of what its decoder reads; None where that is nothing.

    Examples
    --------
    >>> from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2Model
    >>> sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    >>> convolutions = {"conv_dim": [8] * 7, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    >>> encoder = Wav2Vec2Model(Wav2Vec2Config(**sizes, **convolutions)).eval()
    >>> speech = load_speech_model(encoder, processor=Wav2Vec2FeatureExtractor())
    >>> speech.rate, speech.longest, speech.hear(np.zeros(16_000), "sound 1").frames  # of 20 ms
    (16000, 30, 49)
    """

    loaded: LoadedModel
    model: PreTrainedModel
    extractor: Any
    tokenizer: Any

    @property
    def rate(self) -> int:
        """Samples a second."""
        return int(self.extractor.sampling_rate)

    @property
    def longest(self) -> int:
        """Seconds that the model reads at once: Whisper's window, else 30."""
        return seconds_at_once(self.extractor)

    def hear(self, samples: np.ndarray, name: str) -> Heard:
        """What the model reads of a sound of that name, and the frames that its encoder makes of it.

        Raises
        ------
        AttnscopeError
            If the sound is too short for a frame, or what the extractor gives is not known.
        """
        reads = self.model.main_input_name
        with explaining(f"the feature extractor cannot take {name}", "Give a longer sound"):
            given = self.extractor(samples.astype(np.float32), sampling_rate=self.rate, return_tensors="pt")[
                reads
            ]
        made = None
        if reads == _FEATURES:
            made = frames_of_window(self.model, self.extractor)
        elif reads == _WAVE and given.ndim == 2:  # noqa: PLR2004
            made = frames_of_wave(self.model, given.shape[1])
        if made is None:
            raise AttnscopeError(
                f"{type(self.model).__name__} reads no wave, and no windows as Whisper does: its frames are not known"
            )
        frames, each = made
        sounding = min(frames, int(np.ceil(len(samples) / each))) if reads == _FEATURES else frames
        if sounding < 1:
            raise AttnscopeError(
                f"{name} has {len(samples)} samples at {self.rate:,} a second, too few for one frame: leave it out"
            )
        values = given.to(device_of(self.model), self.model.dtype)
        return Heard({reads: values}, frames, sounding, each / self.rate)

    def processing(self) -> str:
        """Hash of all that the feature extractor does."""
        return hash_of_settings(self.extractor.to_dict())


@own_state()
def load_speech_model(
    source: Model,
    *,
    processor: Processor = None,
    with_decoder: bool = False,
    or_encoder: bool = False,
    loading: Loading = AS_SAVED,
) -> SpeechModel:
    """Load a model of sounds with the feature extractor beside it, and its tokenizer where its decoder reads a text.

    Parameters
    ----------
    source, loading
        See `load_model`.
    processor
        Its processor (with ``feature_extractor`` and ``tokenizer``), feature extractor, or their folder; by default
        those beside the model.
    with_decoder
        Whether its decoder reads transcripts; else its encoder alone is watched.
    or_encoder
        Whether a model without a decoder will do all the same.

    Raises
    ------
    AttnscopeError
        As `load_model`; if the model reads no sounds, has no feature extractor, or has no decoder for transcripts.

    Examples
    --------
    A model of texts is refused:

    >>> from attnscope.bundled import MODEL
    >>> load_speech_model(MODEL)
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: EncoderForMaskedLM reads input_ids, not sounds: ...
    """
    loaded = load_model(source, need_tokenizer=False, **vars(loading))
    model, name = loaded.model, type(loaded.model).__name__
    if not reads_sounds(model):
        other = what_is_read(model)
        raise AttnscopeError(
            f"{name} reads {model.main_input_name}, not sounds: "
            f"{f'give it {other}, or ' if other else ''}take Whisper, Wav2Vec2, HuBERT or WavLM"
        )
    if with_decoder and not model.config.is_encoder_decoder and or_encoder:
        with_decoder = False
    if with_decoder and not model.config.is_encoder_decoder:
        raise AttnscopeError(
            f"{name} has no decoder, so nothing in it reads transcripts: leave out targets (--target)"
        )
    tokenizer: Any = None
    if processor is None or isinstance(processor, str | Path):
        trust = loading.trust_remote_code
        place = repository_beside(source, processor, _WHAT, revision=loading.revision)
        extractor = load_preprocessor(place, AutoFeatureExtractor, _WHAT, trust_remote_code=trust)
        tokenizer = load_tokenizer(place, trust_remote_code=trust) if with_decoder else None
    else:
        extractor = getattr(processor, "feature_extractor", processor)
        tokenizer = getattr(processor, "tokenizer", None)
    if with_decoder and tokenizer is None:
        raise AttnscopeError(
            f"the transcripts need the tokenizer of {name}: pass tokenizer=processor with both"
        )
    watched: Any = model.get_encoder() if model.config.is_encoder_decoder and not with_decoder else model
    return SpeechModel(loaded, watched, extractor, tokenizer)


def reads_sounds(source: Model, revision: str | None = None) -> bool:
    """Whether a model reads sounds, as its class or its config says.

    Parameters
    ----------
    source
        A folder, a hub id, or a loaded model.
    revision
        Revision of the model on the hub.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> reads_sounds(MODEL)
    False
    """
    inner: Any = inner_model(source)
    if isinstance(inner, PreTrainedModel):
        return inner.main_input_name in {_FEATURES, _WAVE}
    return bool({_FEATURES, _WAVE} & main_inputs(saved_config(inner, revision)))
