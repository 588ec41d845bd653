"""Sounds as a corpus: WAV files and folders of them, or arrays with their sampling rate; transcripts beside them."""

import hashlib
import io
import stat
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from numbers import Real
from pathlib import Path
from typing import Any, cast

import numpy as np

from attnscope.read.columns import Names
from attnscope.read.files import Unchanged, decode_utf8, file_mode, files_below, is_standard_input, shown
from attnscope.read.sources import names_a_dataset
from attnscope.support.errors import AttnscopeError, explaining

SUFFIX = ".wav"
_FASTEST = 1_000_000  # samples a second: more is a header that is damaged
_UNKNOWN = 0x7FFF0000  # bytes: such sizes are written where nobody knows how long a sound will be
_HALF = {"u": 0.5, "i": 0.0}  # unsigned samples lie about the middle of their range


@dataclass(frozen=True, eq=False)
class Sound:
    """One sound and the name by which results refer to it."""

    # file name, path inside the given folder (with a number where another has the same), or ``sound 1`` for one that
    # was given as an array
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


class Sounds:
    """Named sounds, read one at a time as they are reached; built by `sounds_of`."""

    def __init__(self, items: "Sequence[Sound | tuple[str, Path]]", *, beside_text: bool = False) -> None:
        self._items = [item if isinstance(item, Sound) else (item[0], Unchanged(item[1])) for item in items]
        self.beside_text = beside_text

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Sound]:
        for item in self._items:
            yield item if isinstance(item, Sound) else _read(*item)

    def _beside(self) -> list[Path | None]:
        """Where the transcript of each would lie."""
        files = [None if isinstance(item, Sound) else item[1].path for item in self._items]
        return [file.with_suffix(".txt") if isinstance(file, Path) else None for file in files]

    @property
    def files(self) -> list[Path]:
        """Those of them that are files, and the transcripts beside them."""
        sounds = [Path(str(item[1].path)) for item in self._items if not isinstance(item, Sound)]
        return sounds + [place for place in self._beside() if place is not None and place.is_file()]

    def transcripts(self) -> list[str] | None:
        """What is said, from ``name.txt`` beside each ``name.wav``; None where none has one."""
        places = self._beside()
        there = [place is not None and place.is_file() for place in places]
        if not any(there):
            return None
        if not all(there):
            name = next(self._name(item) for item, is_there in zip(self._items, there, strict=True) if not is_there)
            raise AttnscopeError(
                f"{name} has no transcript (.txt) beside it, and others have: add it, or take the others away"
            )
        return [decode_utf8(place.read_bytes(), shown(place)).strip() for place in places if place is not None]

    def sha256(self) -> str:
        """Hash names and contents in order: of files their bytes, of arrays rate and numbers."""
        digest = hashlib.sha256(b"sounds")
        for item in self._items:
            if isinstance(item, Sound):
                data = f"{item.rate} {item.samples.dtype}".encode() + item.samples.tobytes()
            else:
                data = item[1].read()
            for part in (self._name(item).encode(), data):
                digest.update(len(part).to_bytes(8, "big") + part)
        return digest.hexdigest()

    @staticmethod
    def _name(item: "Sound | tuple[str, Unchanged]") -> str:
        return item.name if isinstance(item, Sound) else item[0]


def sounds_of(given: Any) -> Sounds | None:
    """Take sounds in whatever form they are given; None where what is given holds no sound."""
    many = cast("list[Any]", given if isinstance(given, list | tuple) else [given])
    items: list[Sound | tuple[str, Path]] = []
    there: list[bool] = []
    beside_text = False
    distinct = Names()
    for item in many:
        before = len(items)
        if isinstance(item, Mapping) and {"array", "sampling_rate"} <= item.keys():
            items.append(_of_array(cast("Mapping[str, Any]", item), len(items) + 1))
        elif isinstance(item, Path) and not is_standard_input(item) and not names_a_dataset(item):
            folder = stat.S_ISDIR(file_mode(item))
            files = files_below(item) if folder else [item]
            names = [file.relative_to(item).as_posix() if folder else file.name for file in files]
            items += [
                (distinct.new(name), file)
                for name, file in zip(names, files, strict=True)
                if file.suffix.lower() == SUFFIX
            ]
            beside_text |= any(file.suffix.lower() == ".txt" for file in files)
        there.append(len(items) > before)
    if not items:
        return None
    if not all(there):
        raise AttnscopeError(
            f"item {1 + there.index(False)} is not a sound, beside others that are: expected {SUFFIX} files alone"
        )
    return Sounds(items, beside_text=beside_text)


def _of_array(given: Mapping[str, Any], number: int) -> Sound:
    samples = np.asarray(given["array"])
    if samples.ndim != 1 or samples.dtype.kind != "f" or not samples.size:
        raise AttnscopeError(
            f"sound {number} has samples of shape {samples.shape} and type {samples.dtype}: expected floats (time,)"
        )
    return _checked(f"sound {number}", samples, given["sampling_rate"])


def _read(name: str, file: Unchanged) -> Sound:
    """Samples of a file: channels are averaged, whole numbers scaled to -1 to 1."""
    from scipy.io import wavfile

    what, advice = (
        f"{shown(file.path)} is not a WAV file that can be read",
        "Convert it to PCM (ffmpeg -i OLD NEW.wav)",
    )
    with explaining(what, advice), warnings.catch_warnings():
        warnings.simplefilter("ignore", wavfile.WavFileWarning)  # chunks that hold no samples
        data = file.read()
        rate, samples = wavfile.read(io.BytesIO(data))
        _reject_cut(data)
    values = samples.astype(np.float64)
    if samples.dtype.kind in _HALF:
        bits = 8 * samples.dtype.itemsize
        values = (values - _HALF[samples.dtype.kind] * 2.0**bits) / 2.0 ** (bits - 1)
    if values.ndim > 1:
        values = values.mean(1)
    if not values.size:
        raise AttnscopeError(f"{shown(file.path)} holds no samples: take it away")
    return _checked(name, values, rate)


def _checked(name: str, samples: np.ndarray, rate: Any) -> Sound:
    """A sound, if it has a rate and each sample is a number."""
    if not isinstance(rate, Real) or not float(rate).is_integer() or not 1 <= float(rate) <= _FASTEST:
        raise AttnscopeError(
            f"{name} has {rate!r:.40} samples a second: expected a whole number from 1 to {_FASTEST:,}"
        )
    if not np.isfinite(samples).all():
        raise AttnscopeError(f"{name} holds samples that are NaN or infinite: expected numbers, -1 to 1")
    return Sound(name, samples, int(float(rate)))


def _reject_cut(data: bytes) -> None:
    """Refuse a file whose samples end before its header says; one that was written as a stream does not say."""
    order = "big" if data.startswith(b"RIFX") else "little"
    place = 12
    while place + 8 <= len(data):
        size = int.from_bytes(data[place + 4 : place + 8], order)
        missing = place + 8 + size - len(data)
        if data[place : place + 4] == b"data":
            if missing > 0 and size < _UNKNOWN:
                raise ValueError(f"its last {missing:,} bytes of {size:,} are missing")
            return
        place += 8 + size + size % 2
