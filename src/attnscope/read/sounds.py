"""Sounds as a corpus: files and folders, or arrays with their sampling rate; and transcripts next to them."""

import io
import struct
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from attnscope.read.files import Unchanged, decode_utf8, shown
from attnscope.read.images import Media, files_at, has_files, items_of
from attnscope.support.checks import check_installed
from attnscope.support.errors import AttnscopeError, explaining

_WAV = ".wav"
SUFFIXES = (_WAV, ".flac", ".ogg", ".mp3")  # the last ones through soundfile
_OTHERS = (".aac", ".aif", ".aiff", ".m4a", ".opus", ".wma")  # sounds that are not read
_BESIDE = (".txt", ".TextGrid", ".ctm", ".json")  # transcripts, and times of words
_FASTEST = 1_000_000  # samples a second: more means a damaged header
_UNKNOWN = 0x7FFF0000  # bytes: the size in the header of a stream of unknown length
_LOUDEST = 32.0  # of floats, also standardised ones: more means whole numbers written as floats
_CANCELLED = 0.01  # share of the channels' energy that their mean keeps at least
_HALF = {"u": 0.5, "i": 0.0}  # unsigned samples are around the middle of their range


@dataclass(frozen=True, eq=False)
class Sound:
    """One sound and its name in results."""

    # file name, path inside the given folder (with a number if another has the same), or ``sound 1`` for an array
    name: str
    samples: np.ndarray  # one channel, float, -1 to 1
    rate: int  # samples a second

    def at_rate(self, rate: int) -> np.ndarray:
        """The samples at another rate, by a polyphase filter."""
        from scipy.signal import resample_poly

        common = gcd(rate, self.rate)
        if rate == self.rate:
            return self.samples
        return np.asarray(resample_poly(self.samples, rate // common, self.rate // common))


class Sounds(Media[Sound]):
    """Named sounds; built by `sounds_of`."""

    called = "sounds"

    def __iter__(self) -> Iterator[Sound]:
        for name, item in self._named():
            yield _sound(name, item)

    def __getitem__(self, number: int) -> Sound:
        return _sound(*self._items[number])

    def beside(self, ending: str) -> list[Path | None]:
        """The path next to each sound with this ending, whether it exists or not; None next to an array."""
        files = [item.path if isinstance(item, Unchanged) else None for _, item in self._items]
        return [file.with_suffix(ending) if isinstance(file, Path) else None for file in files]

    @property
    def files(self) -> list[Path]:
        beside = [path for ending in _BESIDE for path in self.beside(ending)]
        return super().files + [path for path in beside if path is not None and path.is_file()]

    def transcripts(self) -> list[str] | None:
        """The transcripts, from ``name.txt`` next to each sound; None if there are none."""
        places = self.beside(".txt")
        exists = [path is not None and path.is_file() for path in places]
        if not any(exists):
            return None
        if not all(exists):
            raise AttnscopeError(
                f"{self._items[exists.index(False)][0]} has no transcript (.txt) next to it, but others do: add it, or "
                "remove the others"
            )
        return [decode_utf8(path.read_bytes(), shown(path)).strip() for path in places if path is not None]

    def _hashed(self, item: Any) -> list[bytes]:
        if isinstance(item, Unchanged):
            return [item.read()]
        sound = _of_array("", item)
        return [f"{sound.rate} {sound.samples.dtype}".encode() + sound.samples.tobytes()]


def sounds_of(given: Any) -> Sounds | None:
    """Sounds from any form; None for inputs without sounds."""
    items = items_of(given, _items_in, "a sound", f"files of sounds alone ({', '.join(SUFFIXES)})")
    if items is None:
        return None
    sounds = Sounds(items)
    for name, item in items:
        if not isinstance(item, Path):
            _of_array(name, item)  # rejects other objects
    sounds.beside_text = has_files(given, (".txt",))
    sounds.note_skipped(given)
    return sounds


def _items_in(given: Any) -> list[tuple[str, Any]]:
    """The sounds in one input, with the names of files."""
    if isinstance(given, Mapping) and {"array", "sampling_rate"} <= given.keys():
        return [("", given)]
    if isinstance(given, Path) and given.suffix.lower() in _OTHERS and given.is_file():
        raise AttnscopeError(f"{shown(given)} is of a kind that is not read; convert it (ffmpeg -i OLD NEW.wav)")
    return files_at(given, SUFFIXES) if isinstance(given, Path) else []


def _sound(name: str, item: Any) -> Sound:
    return _read(name, item) if isinstance(item, Unchanged) else _of_array(name, item)


def _of_array(name: str, given: Mapping[str, Any]) -> Sound:
    samples = np.asarray(given["array"])
    if samples.ndim != 1 or samples.dtype.kind != "f" or not samples.size:
        raise AttnscopeError(
            f"{name} has samples of shape {samples.shape} and type {samples.dtype}; expected floats (time,)"
        )
    return _checked(name, samples, given["sampling_rate"])


def _read(name: str, file: Unchanged) -> Sound:
    """Samples of a file: channels are averaged, whole numbers scaled to -1 to 1."""
    kind = file.path.suffix.lower()
    read, called = (_wave, "WAV") if kind == _WAV else (_packed, kind.removeprefix(".").upper())
    if kind != _WAV:
        check_installed(f"{shown(file.path)}", "soundfile", "sounds")
    data = file.read()
    if not data:
        raise AttnscopeError(f"{shown(file.path)} is empty; expected a sound: remove it, or write it again")
    problem = f"{shown(file.path)} is not a readable {called} file"
    with explaining(problem, "Convert it to PCM (ffmpeg -i OLD NEW.wav)"):
        rate, samples = read(data)
    values = samples.astype(np.float64)
    if samples.dtype.kind in _HALF:
        bits = 8 * samples.dtype.itemsize
        values = (values - _HALF[samples.dtype.kind] * 2.0**bits) / 2.0 ** (bits - 1)
    if values.ndim > 1:
        each, values = (values**2).mean(), values.mean(1)
        if (values**2).mean() < _CANCELLED * each:
            raise AttnscopeError(
                f"{shown(file.path)} has channels of opposite phase, whose mean is near silence: write one of them "
                "to a file (ffmpeg -i OLD -af pan=mono|c0=c0 NEW.wav)"
            )
    if not values.size:
        raise AttnscopeError(f"{shown(file.path)} has no samples: remove it")
    return _checked(name, values, rate)


def _wave(data: bytes) -> tuple[int, np.ndarray]:
    """Rate and samples of a WAV file."""
    from scipy.io import wavfile

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wavfile.WavFileWarning)  # chunks without samples
        try:
            rate, samples = wavfile.read(io.BytesIO(data))
        except (UnboundLocalError, TypeError, KeyError, struct.error) as error:  # SciPy's, of a part that is missing
            raise ValueError("its header is damaged, or lacks the format or the samples") from error
    _reject_cut(data)
    return rate, samples


def _packed(data: bytes) -> tuple[int, np.ndarray]:
    """Rate and samples of a compressed file."""
    import soundfile

    samples, rate = soundfile.read(io.BytesIO(data))
    return rate, samples


def _checked(name: str, samples: np.ndarray, rate: Any) -> Sound:
    """A sound, if it has a rate and each sample is a number."""
    if not isinstance(rate, Real) or not float(rate).is_integer() or not 1 <= float(rate) <= _FASTEST:
        raise AttnscopeError(
            f"{name} has {rate!r:.40} samples a second; expected a whole number from 1 to {_FASTEST:,}"
        )
    if not np.isfinite(samples).all():
        raise AttnscopeError(f"{name} has samples that are NaN or infinite; expected numbers from -1 to 1")
    loudest = np.abs(samples).max()
    if loudest > _LOUDEST:
        raise AttnscopeError(
            f"{name} has samples up to {loudest:,.0f}; expected floats from -1 to 1: divide 16-bit samples by 32768"
        )
    return Sound(name, samples, int(float(rate)))


def _reject_cut(data: bytes) -> None:
    """Reject a file with fewer samples than in its header, except streams, which have no size there."""
    order = "big" if data.startswith(b"RIFX") else "little"
    position = 12
    while position + 8 <= len(data):
        size = int.from_bytes(data[position + 4 : position + 8], order)
        missing = position + 8 + size - len(data)
        if data[position : position + 4] == b"data":
            if missing > 0 and size < _UNKNOWN:
                raise ValueError(f"its last {missing:,} bytes of {size:,} are missing")
            return
        position += 8 + size + size % 2
