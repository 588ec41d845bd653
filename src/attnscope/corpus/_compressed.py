"""Files that are compressed: what they hold, a block at a time."""

import bz2
import lzma
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from attnscope.corpus._opening import shown
from attnscope.errors import AttnscopeError
from attnscope.remote import Url

_BLOCK = 1 << 20  # bytes that are unpacked at once, however well they were packed
_OPENERS: dict[str, Any] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),  # 31: with gzip's header
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lzma.LZMADecompressor,
}
COMPRESSED = tuple(_OPENERS)


def inner_suffix(path: Path | Url) -> str:
    """The suffix of what a file holds: that before ``.gz``, ``.bz2`` or ``.xz``, in lower case.

    Examples
    --------
    >>> inner_suffix(Path("pile.JSONL.gz")), inner_suffix(Path("notes.txt"))
    ('.jsonl', '.txt')
    """
    last = path.suffix.lower()
    return Path(path.stem).suffix.lower() if last in COMPRESSED else last


def unpacked(path: Path | Url, blocks: Iterable[bytes]) -> Iterator[bytes]:
    r"""What a file holds: its bytes as they are, or unpacked by its suffix.

    Parameters
    ----------
    path
        Its name says how it is packed.
    blocks
        Its bytes.

    Raises
    ------
    AttnscopeError
        If they are not packed as the name says, or end too early.

    Examples
    --------
    >>> import gzip
    >>> packed = gzip.compress(b"The tide ") + gzip.compress(b"is out.")
    >>> b"".join(unpacked(Path("a.txt.gz"), [packed[:20], packed[20:]]))
    b'The tide is out.'
    """
    opener = _OPENERS.get(path.suffix.lower())
    if opener is None:
        yield from blocks
        return
    machine, begun = opener(), False
    try:
        for block in blocks:
            rest = block
            while rest:
                if machine.eof:  # files may be several packed parts, one after the other
                    machine, begun = opener(), False
                begun = True
                yield from _pieces(machine, rest)
                rest = machine.unused_data
    except (zlib.error, OSError, EOFError, lzma.LZMAError) as error:
        raise AttnscopeError(
            f"{shown(path)}: not what {path.suffix} stands for, or damaged ({error}); expected a file packed so: give "
            "the file unpacked, or mend it"
        ) from error
    if begun and not machine.eof:
        raise AttnscopeError(
            f"{shown(path)}: ends in the middle of what is packed; expected a whole file: copy it again"
        )


def _pieces(machine: Any, packed: bytes) -> Iterator[bytes]:
    """What some packed bytes hold, at most a megabyte at a time."""
    if hasattr(machine, "needs_input"):
        piece = machine.decompress(packed, _BLOCK)
        while piece or not (machine.eof or machine.needs_input):
            yield piece
            piece = b"" if machine.eof or machine.needs_input else machine.decompress(b"", _BLOCK)
        return
    piece = machine.decompress(packed, _BLOCK)
    while piece:
        yield piece
        piece = machine.decompress(machine.unconsumed_tail, _BLOCK) if machine.unconsumed_tail else b""
