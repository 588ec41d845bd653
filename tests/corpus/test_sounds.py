"""Sounds as a corpus: what is taken, what is refused, and what their samples are."""

import numpy as np
import pytest
import torch
from scipy.io import wavfile
from tests.sounds import SAID, write_sounds

from attnscope.corpus import sounds_of
from attnscope.errors import AttnscopeError

WAVE = {"array": np.linspace(-1, 1, 800), "sampling_rate": 8_000}


def test_text_is_no_sound(tmp_path):
    (tmp_path / "a.txt").write_text("The tide is out.")
    for given in (
        None,
        "a",
        ["a", "b"],
        tmp_path,
        tmp_path / "a.txt",
        [[1, 2]],
        torch.ones(2, 3),
        {"input_ids": [1]},
    ):
        assert sounds_of(given) is None


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int32, np.float32])
def test_samples_lie_between_minus_one_and_one_whatever_the_file_holds(tmp_path, kind):
    wave = np.array([-0.5, 0.0, 0.5])
    stored = wave
    if kind is np.uint8:
        stored = 128 + 128 * wave
    elif kind is not np.float32:
        stored = wave * 2.0 ** (8 * np.dtype(kind).itemsize - 1)
    wavfile.write(tmp_path / "a.wav", 8_000, stored.astype(kind))
    (sound,) = sounds_of(tmp_path)
    np.testing.assert_allclose(sound.samples, wave)
    assert (sound.name, sound.rate) == ("a.wav", 8_000)


def test_channels_are_averaged_and_rates_changed(tmp_path):
    time = np.arange(4_410) / 44_100
    wave = np.sin(2 * np.pi * 100 * time)
    wavfile.write(tmp_path / "a.wav", 44_100, np.stack([wave, 0 * wave], 1))
    (sound,) = sounds_of(tmp_path / "a.wav")
    samples = sound.at_rate(16_000)
    assert samples.shape == (1_600,)
    expected = 0.5 * np.sin(2 * np.pi * 100 * np.arange(1_600) / 16_000)
    np.testing.assert_allclose(samples[100:-100], expected[100:-100], atol=2e-3)


def test_the_hash_stands_for_names_and_samples(tmp_path):
    folder = write_sounds(tmp_path / "sounds")
    assert sounds_of(folder).sha256() == sounds_of(sorted(folder.glob("*.wav"))).sha256()
    assert sounds_of(folder).sha256() != sounds_of(folder / "0.wav").sha256()
    assert sounds_of(WAVE).sha256() != sounds_of(WAVE | {"sampling_rate": 16_000}).sha256()


def test_transcripts_lie_beside(tmp_path):
    folder = write_sounds(tmp_path / "sounds")
    assert sounds_of(folder).transcripts() is None
    for number, said in enumerate(SAID):
        (folder / f"{number}.txt").write_text(f"{said}\n")
    sounds = sounds_of(folder)
    assert sounds.transcripts() == list(SAID)
    assert sounds.beside_text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([WAVE, "a text"], "item 2 is no sound"),
        (WAVE | {"array": np.zeros((2, 5))}, "shape (2, 5) and type float64: expected floats (time,)"),
        (WAVE | {"array": np.arange(5)}, "type int64: expected floats"),
    ],
)
def test_what_is_no_sound_is_refused(given, said):
    with pytest.raises(AttnscopeError) as caught:
        sounds_of(given)
    assert said in str(caught.value)


def test_a_broken_file_and_an_empty_one_are_refused(tmp_path):
    (tmp_path / "broken.wav").write_bytes(b"RIFF....WAVE")
    with pytest.raises(AttnscopeError, match="is no WAV file that can be read"):
        next(iter(sounds_of(tmp_path / "broken.wav")))
    wavfile.write(tmp_path / "empty.wav", 8_000, np.zeros(0, np.int16))
    with pytest.raises(AttnscopeError, match="holds no sample"):
        next(iter(sounds_of(tmp_path / "empty.wav")))
