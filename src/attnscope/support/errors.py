"""The one error that a user can cause, and how it is made of those that libraries raise."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

_LONGEST_REASON = 300
_OURS = __name__.partition(".")[0]
_NEEDED = ("torch", "transformers", "numpy", "xarray")  # without which nothing runs
_NO_MEMORY = re.compile(
    r"out of memory|can.?t allocate memory|cannot allocate memory|not enough memory|bad_alloc|ALLOC_FAILED"
    r"|can.?t start new thread|could not create a primitive|failed to map segment",  # oneDNN, and libraries
    re.IGNORECASE,
)


class AttnscopeError(Exception):
    """An error that a user can cause and fix.

    The message says what was found, what was expected and what to do, on one or two lines.
    """

    __module__ = "attnscope"  # where users find it


def nearest(name: str, names: Iterable[str]) -> str:
    """A question that ends a message, if a name is nearly one of those that exist."""
    close = get_close_matches(name.lower(), names, 1, cutoff=0.7)
    return f". Did you mean {close[0]!r}?" if close else ""


def reason_of(error: BaseException) -> str:
    r"""Why something failed, on one line that is fit to be shown."""
    # without control characters, by which a file could write to the terminal
    printable = ("".join(one if one.isprintable() else " " for one in line) for line in str(error).splitlines())
    lines = [" ".join(line.split()) for line in printable]
    lines = [line for line in lines if line] or [""]
    text = lines.pop(0)
    while text.endswith(":") and lines:
        text = f"{text} {lines.pop(0)}"
    if " " not in text:
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    short = text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 3] + "..."
    return short.rstrip(".") if short == text else short


def out_of_memory(error: BaseException) -> AttnscopeError | None:
    """The message for a user whose memory ran out, of the processor or of a GPU; None for any other error."""
    reported = next((cause for cause in _chain(error) if _tells_of_memory(cause)), None)
    if reported is None:
        return None
    reason = f" ({reason_of(reported)})" if str(reported) else ""
    return AttnscopeError(
        f"memory ran out{reason}: try a smaller --batch-size, --batch-tokens or --window, or --dtype bfloat16"
    )


def unimportable(error: BaseException) -> AttnscopeError | None:
    """The message for a package that fails while it is imported; None for any other error."""
    *_, first = _chain(error)
    frames = (frame for frame, _ in traceback.walk_tb(first.__traceback__))
    modules = [str(frame.f_globals.get("__name__")) for frame in frames if frame.f_code.co_name == "<module>"]
    package = modules[-1].partition(".")[0] if modules else _OURS
    if package in {_OURS, "__main__"}:
        return None
    advice = (
        "Reinstall it"
        if package in _NEEDED
        else f"Install the {package} that is made for the PyTorch here, or remove it: pip uninstall {package}"
    )
    if isinstance(first, ValueError):  # matplotlib on a MPLBACKEND that it does not have
        advice = f"Check the settings of {package}: its files and the variables of the environment"
    return AttnscopeError(f"{package} is installed and cannot be imported: {reason_of(first)}.\n{advice}")


def panicked(error: BaseException) -> bool:
    """Whether Rust code raised it, as tokenizers does: it is no Exception."""
    return type(error).__name__ == "PanicException"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those that it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__


def _tells_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, (RuntimeError, OSError)) and _NO_MEMORY.search(str(error)) is not None


@contextmanager
def explaining(what: str, advice: str, *, quoted: bool = False) -> Generator[None]:
    """Turn whatever a library raises within into one `AttnscopeError`: what failed, why, and what to do.

    A reason that is quoted stays as it is where the sentence around it is translated.
    """
    try:
        yield
    except AttnscopeError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not panicked(error):  # Ctrl-C and exit, which pass
            raise
        reason = reason_of(error)
        stop = "" if reason.endswith("...") else "."
        why = f"“{reason}”." if quoted else f"{reason}{stop}"
        raise out_of_memory(error) or AttnscopeError(f"{what}: {why} {advice}") from error


def leave(*_: object) -> None:
    """Stop at once: while modules are still imported there is nothing to put in order."""
    os.write(2, b"attnscope: stopped\n")
    os._exit(130)
