"""A scan of sounds: a folder of WAV files through a model, statistics per window, kinds, signature."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from attnscope.capture import SpeechModel, decoder_start, load_speech_model, signature_of, transcript_length
from attnscope.corpus import Corpus, TargetTokenizer, Window, cut_windows, shifted
from attnscope.errors import AttnscopeError
from attnscope.statistics._asked import BY_DEFAULT, Asked
from attnscope.statistics._catalogue import choose
from attnscope.statistics._keep import measured
from attnscope.statistics._sample import refuse_absent
from attnscope.statistics._second_pass import settings_of
from attnscope.statistics._summary import kinds_of
from attnscope.statistics.sounds._measurement import SoundMeasurement
from attnscope.store import short_hash, tokenizer_sha256

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.capture import Model
    from attnscope.corpus import Sounds, Sources


def scan_sounds(
    model: Model,
    sounds: Sounds,
    asked: Asked = BY_DEFAULT,
    *,
    targets: Sources = None,
) -> xr.Dataset:
    """Measure where every attention head of a model of sounds looks; `attnscope.scan` calls this for sounds.

    Frames of the encoder are the tokens. Whisper's encoder always reads 30 seconds: only frames that are sound count as
    queries; as keys the others count as special tokens, so that ``special_tokens`` is the weight on what is no sound.

    Parameters
    ----------
    model
        Whisper, or an encoder that reads the wave (Wav2Vec2, HuBERT, WavLM, ...).
    sounds
        From `attnscope.corpus.sounds_of`. Longer ones are cut into windows of 30 seconds; a rest below a second is left
        out.
    asked
        What any scan is asked for: see `attnscope.scan`. Its ``processor`` is a feature extractor, one with a
        tokenizer, or their folder; by default those beside the model.
    targets
        Transcripts for Whisper's decoder, one a line in the order of the sounds; by default ``name.txt`` beside each
        ``name.wav``, where the model has a decoder. Without any, the encoder alone is measured.

    Returns
    -------
    xarray.Dataset
        As of text; ``start`` counts seconds, ``length`` the frames that are sound. In cross-attention, offsets count
        frames from the number of the target token. The attribute ``sounds`` says how long a frame is and what counts.

    Raises
    ------
    AttnscopeError
        For anything that the caller can mend: see the message.

    Examples
    --------
    >>> import numpy as np
    >>> from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2Model
    >>> from attnscope.corpus import sounds_of
    >>> sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    >>> convolutions = {"conv_dim": [8] * 7, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    >>> model = Wav2Vec2Model(Wav2Vec2Config(**sizes, **convolutions)).eval()
    >>> sounds = sounds_of({"array": np.random.default_rng(0).normal(size=16_000), "sampling_rate": 16_000})
    >>> results = scan_sounds(model, sounds, Asked(processor=Wav2Vec2FeatureExtractor(), statistics="entropy"))
    >>> results.length.values.tolist(), results.attrs["sounds"]
    ([49], 'Tokens are frames of 20 ms, named by the second at which they begin.')
    """
    names = choose(asked.statistics)
    speech, texts, said, unread = loaded_for(model, sounds, asked, targets)
    name, has_decoder = type(speech.loaded.model).__name__, speech.loaded.model.config.is_encoder_decoder
    job = SoundMeasurement(speech, sounds, said, names, asked)
    refuse_absent(asked.show, len(job.sites), max(site.heads for site in job.sites))
    settings = {"limit": asked.limit, "statistics": list(names), "band": job.band, "seed": asked.seed}
    settings |= settings_of(names, asked.observation)
    reader = {"features": speech.processing()}
    if speech.tokenizer is not None and texts is not None:
        reader["sha256"] = tokenizer_sha256(speech.tokenizer)
    signature = signature_of(
        "scan", speech.loaded, sounds, None, settings, reader=reader, packages=("scipy",)
    )
    if texts is not None:
        signature = replace(signature, target={"sha256": short_hash(texts)})
    attributes = {"model": speech.loaded.name, "reads": "sounds"}
    if unread:
        attributes["decoder"] = f"The transcripts beside the sounds were not read: {name} has no decoder."
    if has_decoder:
        read = (
            "The decoder read the transcripts."
            if texts
            else "No transcripts: the encoder alone was measured."
        )
        attributes["decoder"] = read
    return measured(job, asked, signature, kinds_of(settings), attributes)


def loaded_for(
    model: Model,
    sounds: Sounds,
    asked: Asked,
    targets: Sources,
) -> tuple[SpeechModel, list[str] | None, list[Window] | None, bool]:
    """The model, the transcripts that its decoder reads, as texts and as windows, and whether some are not read.

    Parameters
    ----------
    model
        A folder, a hub id, or a loaded model.
    sounds
        Sounds, with the transcripts that lie beside them.
    asked
        Settings of the scan.
    targets
        Transcripts; by default those that lie beside the sounds.

    Raises
    ------
    AttnscopeError
        For anything that the caller can mend: see the message.

    Examples
    --------
    >>> import numpy as np
    >>> from attnscope.corpus import sounds_of
    >>> sounds = sounds_of({"array": np.zeros(16_000), "sampling_rate": 16_000})
    >>> loaded_for("bundled", sounds, BY_DEFAULT, None)
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: EncoderForMaskedLM reads input_ids, not sounds: give it text, or take ...
    """
    texts = _transcripts(sounds, targets)
    speech = load_speech_model(
        model,
        processor=asked.processor,
        with_decoder=texts is not None,
        or_encoder=targets is None,
        loading=asked.loading,
    )
    if not speech.loaded.model.config.is_encoder_decoder:
        return speech, None, None, texts is not None
    said = None if texts is None else _said(texts, speech)
    if said is not None:
        _refuse_long(sounds, speech.longest)
    return speech, texts, said, False


def _transcripts(sounds: Sounds, targets: Sources) -> list[str] | None:
    """What is said in each sound."""
    if targets is None:
        return sounds.transcripts()
    texts = [text.content for text in Corpus.from_sources(targets, by_line=True, blank_lines=True)]
    if len(texts) != len(sounds):
        raise AttnscopeError(
            f"found {len(sounds)} sound{'s' * (len(sounds) != 1)} and {len(texts)} transcript{'s' * (len(texts) != 1)} "
            "(--target): line i must be what sound i says"
        )
    return texts


def _said(texts: list[str], speech: SpeechModel) -> list[Window]:
    """What the decoder reads of each transcript, as in training."""
    tokenizer = TargetTokenizer(speech.tokenizer)
    start = decoder_start(speech.loaded.model)
    length = transcript_length(speech.loaded.model.config) or 1 << 30
    windows: list[Window] = []
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            raise AttnscopeError(f"transcript {number} is empty: leave its sound out, or write what it says")
        (said, *more) = cut_windows(Corpus.from_sources([text]), tokenizer, length=length)
        if more:
            raise AttnscopeError(
                f"transcript {number} has more than {length} tokens: cut sound and transcript"
            )
        read = shifted(said, speech.tokenizer, start)
        if said.ids[0] == read.ids[0]:  # Whisper's tokenizer writes the start token itself
            kept = {name: getattr(said, name)[:-1] for name in ("ids", "special", "spans", "tokens")}
            read = replace(said, **kept)
        windows.append(read)
    return windows


def _refuse_long(sounds: Sounds, longest: int) -> None:
    for sound in sounds:
        seconds = len(sound.samples) / sound.rate
        if seconds > longest:
            raise AttnscopeError(
                f"{sound.name} lasts {seconds:.1f} s, and beside a transcript {longest} s are read: cut sound and "
                "transcript, or take the transcript away"
            )
