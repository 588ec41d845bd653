"""A scan of sounds: a folder of WAV files through a model, statistics per window, kinds, signature."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.capture import SpeechModel, decoder_start, load_speech_model
from attnscope.checks import check_seed, check_whole
from attnscope.corpus import Corpus, TargetTokenizer, Window, cut_windows, shifted
from attnscope.errors import AttnscopeError
from attnscope.statistics._catalogue import choose
from attnscope.statistics._keep import in_folder, joined
from attnscope.statistics._places import NEEDED
from attnscope.statistics._summary import summarize
from attnscope.statistics.sounds._measurement import SoundMeasurement
from attnscope.store import RunFolder, Signature, package_versions, short_hash, tokenizer_sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import xarray as xr
    from transformers import PreTrainedModel

    from attnscope.capture import Bridge, Envoy
    from attnscope.corpus import Sounds, Sources
    from attnscope.progress import Tell


def scan_sounds(
    model: str | Path | PreTrainedModel | Bridge | Envoy,
    sounds: Sounds,
    *,
    targets: Sources = None,
    processor: Any = None,
    out: str | Path | Callable[[Signature], Path] | None = None,
    repair: bool = False,
    limit: int | None = None,
    statistics: Sequence[str] | str | None = None,
    band: int | None = None,
    seed: int = 0,
    device: str | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    show: Sequence[tuple[int, int]] | None = None,
    progress: Tell | None = None,
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
    targets
        Transcripts for Whisper's decoder, one a line in the order of the sounds; by default ``name.txt`` beside each
        ``name.wav``. Without any, the encoder alone is measured.
    processor
        Its processor (feature extractor and tokenizer) or their folder; by default those beside the model.
    out, repair, limit, statistics, band, seed, device, dtype, revision, trust_remote_code, show, progress
        See `attnscope.scan`.

    Returns
    -------
    xarray.Dataset
        As of text; ``start`` counts seconds, ``length`` the frames that are sound. In cross-attention, offsets count
        frames from the number of the target token. The attribute ``sounds`` says how long a frame is and what counts.

    Raises
    ------
    AttnscopeError
        For anything that the caller can mend: see the message.
    """
    names = choose(statistics)
    band = 10 if band is None else band
    check_whole(1, limit=limit, band=band)
    check_seed(seed)
    texts = _transcripts(sounds, targets)
    speech = load_speech_model(
        model,
        processor=processor,
        with_decoder=texts is not None,
        revision=revision,
        device=device,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
    )
    said = None if texts is None else _said(texts, speech)
    if said is not None:
        _refuse_long(sounds, speech.longest)
    job = SoundMeasurement(speech, sounds, said, names, band, limit, progress)
    if band > job.reach:
        raise AttnscopeError(
            f"band (--band) is {band}; in windows of {job.reach + 1} frames the largest is {job.reach}"
        )
    settings = {"limit": limit, "statistics": list(names), "band": band, "seed": seed}
    signature = _signature(speech, sounds, texts, settings)
    attributes = {"signature": signature.to_json(), "model": speech.loaded.name, "reads": "sounds"}
    if speech.loaded.model.config.is_encoder_decoder:
        read = (
            "The decoder read the transcripts."
            if texts
            else "No transcripts: the encoder alone was measured."
        )
        attributes["decoder"] = read
    kinds = summarize if set(NEEDED) <= set(names) else None
    if out is None:
        results = joined(list(job.batches()))
        if kinds is not None:
            results = results.merge(kinds(results), combine_attrs="no_conflicts")
        return results.assign_attrs(attributes | job.notes)
    with RunFolder(Path(out(signature) if callable(out) else out), signature, repair=repair) as run:
        return in_folder(run, job, kinds, attributes, show)


def _transcripts(sounds: Sounds, targets: Sources) -> list[str] | None:
    """What is said in each sound."""
    if targets is None:
        return sounds.transcripts()
    texts = [text.content for text in Corpus.from_sources(targets, by_line=True, blank_lines=True)]
    if len(texts) != len(sounds):
        raise AttnscopeError(
            f"there are {len(sounds)} sounds and {len(texts)} transcripts (--target): line i must be what sound i says"
        )
    return texts


def _said(texts: list[str], speech: SpeechModel) -> list[Window]:
    """What the decoder reads of each transcript, as in training."""
    tokenizer = TargetTokenizer(speech.tokenizer)
    start = decoder_start(speech.loaded.model)
    length = int(getattr(speech.loaded.model.config, "max_target_positions", 1 << 30))
    windows: list[Window] = []
    for number, text in enumerate(texts, start=1):
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


def _signature(
    speech: SpeechModel, sounds: Sounds, texts: list[str] | None, settings: dict[str, Any]
) -> Signature:
    loaded = speech.loaded
    where = {"device": loaded.model.device.type, "dtype": str(loaded.model.dtype).removeprefix("torch.")}
    reader = {"features": speech.processing()}
    if speech.tokenizer is not None and texts is not None:
        reader["sha256"] = tokenizer_sha256(speech.tokenizer)
    return Signature(
        "scan",
        model={"name": loaded.name, "class": type(loaded.model).__name__, **loaded.identity},
        tokenizer=reader,
        corpus={"sha256": sounds.sha256()},
        target=None if texts is None else {"sha256": short_hash(texts)},
        settings={**settings, **where},
        versions=package_versions(),
    )
