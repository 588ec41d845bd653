"""Sounds as a corpus: what is taken, what is refused, and what their samples are."""

import struct

import numpy as np
import pytest
import torch
from scipy.io import wavfile

from attnscope.read.sounds import sounds_of
from attnscope.support.errors import AttnscopeError
from tests.speech_models import SAID, write_sounds

WAVE = {"array": np.linspace(-1, 1, 800), "sampling_rate": 8_000}


def test_text_is_no_sound(tmp_path):
    (tmp_path / "a.txt").write_text("The tide is out.")
    for given in (None, "a", ["a", "b"], tmp_path, tmp_path / "a.txt", [[1, 2]], torch.ones(2, 3), {"input_ids": [1]}):
        assert sounds_of(given) is None


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int32, np.float32])
def test_samples_are_between_minus_one_and_one_whatever_the_file_has(tmp_path, kind):
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


def test_the_hash_depends_on_names_and_samples(tmp_path):
    folder = write_sounds(tmp_path / "sounds")
    assert sounds_of(folder).sha256() == sounds_of(sorted(folder.glob("*.wav"))).sha256()
    assert sounds_of(folder).sha256() != sounds_of(folder / "0.wav").sha256()
    assert sounds_of(WAVE).sha256() != sounds_of(WAVE | {"sampling_rate": 16_000}).sha256()


def test_transcripts_are_next_to_their_sounds(tmp_path):
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
        ([WAVE, "a text"], "item 2 is 'a text', which is not a sound"),
        (WAVE | {"array": np.zeros((2, 5))}, "shape (2, 5) and type float64; expected floats (time,)"),
        (WAVE | {"array": np.arange(5)}, "type int64; expected floats"),
        (WAVE | {"sampling_rate": 4_294_967_291}, "sound 1 has 4294967291 samples a second"),
        (WAVE | {"sampling_rate": "8k"}, "sound 1 has '8k' samples a second"),
        (WAVE | {"array": np.array([0.0, np.nan])}, "sound 1 has samples that are NaN or infinite"),
    ],
)
def test_what_is_no_sound_is_rejected(given, said):
    with pytest.raises(AttnscopeError) as caught:
        sounds_of(given)
    assert said in str(caught.value)


def test_files_without_samples_or_rate_are_rejected(tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(b"RIFF....WAVE")
    with pytest.raises(AttnscopeError, match="is not a readable WAV file"):
        list(sounds_of(path))
    for rate, count, message in ((8_000, 0, "has no sample"), (0, 9, r"a\.wav has 0 samples a second")):
        wavfile.write(path, rate, np.zeros(count, np.int16))
        with pytest.raises(AttnscopeError, match=message):
            list(sounds_of(path))


def test_bytes_of_24_bits_are_read_whole(tmp_path):
    wave = np.array([-0.5, 0.25, 2.0**-23])
    data = b"".join(int(value * 2**23).to_bytes(3, "little", signed=True) for value in wave)
    extensible = b"\x16\0\x18\0\x04\0\0\0\x01\0\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71"
    for tag, more in ((1, b""), (0xFFFE, extensible)):
        form = struct.pack("<HHIIHH", tag, 1, 8_000, 24_000, 3, 24) + more
        chunks = b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", 9) + data + b"\0"
        (tmp_path / "a.wav").write_bytes(b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks)
        (sound,) = sounds_of(tmp_path / "a.wav")
        np.testing.assert_array_equal(sound.samples, wave)


def test_a_file_that_was_cut_is_rejected_and_one_written_as_a_stream_is_not(tmp_path):
    path = tmp_path / "a.wav"
    wavfile.write(path, 8_000, np.arange(100, dtype=np.int16))
    whole = path.read_bytes()
    path.write_bytes(whole[:-80])
    with pytest.raises(AttnscopeError, match="its last 80 bytes of 200 are missing") as caught:
        list(sounds_of(path))
    assert len(str(caught.value).splitlines()) == 1
    at = whole.index(b"data") + 4
    path.write_bytes(whole[:4] + b"\xff" * 4 + whole[8:at] + b"\xff" * 4 + whole[at + 4 :])
    (sound,) = sounds_of(path)
    assert len(sound.samples) == 100


def test_two_files_of_one_name_are_two_sounds(tmp_path):
    for folder in ("a", "b"):
        write_sounds(tmp_path / folder)
    found = [sound.name for sound in sounds_of([tmp_path / "a", tmp_path / "b" / "0.wav"])]
    assert found == ["0.wav", "1.wav", "2.wav", "0.wav (2) (repeats 0.wav)"]


def test_files_of_other_types_are_counted(tmp_path):
    folder = write_sounds(tmp_path / "sounds")
    assert sounds_of(folder).notes == {}
    for name in ("a.m4a", "b.M4A", "deep/c.opus", "README"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"")
    told = sounds_of(folder).notes["skipped_files"]
    assert told == "Files of other types in the folder were skipped: .m4a 2, no ending 1, .opus 1."


def test_samples_that_are_no_sound_are_rejected(tmp_path):
    wave = np.sin(np.arange(800) / 20)
    with pytest.raises(AttnscopeError, match=r"samples up to 32,76[0-9]; expected floats from -1 to 1: divide"):
        sounds_of({"array": 32767.0 * wave, "sampling_rate": 16_000})
    wavfile.write(tmp_path / "a.wav", 8_000, np.stack([wave, -wave], 1))
    with pytest.raises(AttnscopeError, match=r"a\.wav has channels of opposite phase"):
        list(sounds_of(tmp_path))


def test_a_header_without_its_parts_is_explained_in_words(tmp_path):
    wavfile.write(tmp_path / "a.wav", 8_000, np.zeros(80, np.int16))
    data = (tmp_path / "a.wav").read_bytes()
    for broken in (data[:12], data[:12] + data[36:], data[:36], data[:20]):
        (tmp_path / "a.wav").write_bytes(broken)
        with pytest.raises(AttnscopeError, match="not a readable WAV file") as error:
            list(sounds_of(tmp_path))
        assert "variable" not in str(error.value)
        assert "unpack" not in str(error.value)


@pytest.mark.parametrize("kind", ["flac", "ogg", "mp3"])
def test_compressed_sounds_are_read(tmp_path, kind):
    soundfile = pytest.importorskip("soundfile")
    wave = 0.5 * np.sin(2 * np.pi * 200 * np.arange(16_000) / 16_000)
    soundfile.write(tmp_path / f"a.{kind}", np.stack([wave, wave], 1), 16_000)
    (sound,) = sounds_of(tmp_path / f"a.{kind}")
    assert (sound.name, sound.rate) == (f"a.{kind}", 16_000)
    shift = max(range(2_000), key=lambda lag: sound.samples[lag : lag + 8_000] @ wave[:8_000])  # of the codec
    limit = 1e-4 if kind == "flac" else 0.02
    np.testing.assert_allclose(sound.samples[shift + 400 : shift + 8_000], wave[400:8_000], atol=limit)


def test_a_sound_that_is_not_read_is_explained(tmp_path, monkeypatch):
    pytest.importorskip("soundfile")
    (tmp_path / "a.flac").write_bytes(b"fLaC and no more")
    with pytest.raises(AttnscopeError, match="not a readable FLAC file"):
        [*sounds_of(tmp_path / "a.flac")]
    (tmp_path / "b.m4a").write_bytes(b"")
    with pytest.raises(AttnscopeError, match="convert it"):
        sounds_of(tmp_path / "b.m4a")
    monkeypatch.setattr("attnscope.support.checks.find_spec", lambda _: None)
    with pytest.raises(AttnscopeError, match=r"pip install 'attnscope\[sounds\]'"):
        [*sounds_of(tmp_path / "a.flac")]
