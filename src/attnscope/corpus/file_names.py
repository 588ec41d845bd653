"""What the name of a file says: whether it holds text, and whether a string was meant as one."""

from pathlib import Path

from attnscope.corpus._columns import TABLES
from attnscope.corpus._compressed import COMPRESSED, inner_suffix
from attnscope.errors import AttnscopeError
from attnscope.remote import Url

_PLAIN = (".txt", ".md", ".jsonl")
SUFFIXES = (*_PLAIN, *TABLES)  # ... or compressed
NAMES_A_FILE = (
    *SUFFIXES,
    *COMPRESSED,
    ".json",
    ".csv",
    ".tsv",
    ".text",
    ".html",
)  # a single word that ends so
LONGEST_NAME = 255  # characters; what is longer is no file's name


def holds_text(file: Path | Url) -> bool:
    """Whether a file of a folder is taken as text, by its name."""
    return file.suffix.lower() in SUFFIXES or inner_suffix(file) in _PLAIN


def refuse_file_name(content: str, name: str) -> None:
    """A single word that is a file's name was meant as the file: taken as a text, it would give numbers of nothing."""
    if len(content) > LONGEST_NAME or not content or any(character.isspace() for character in content):
        return
    instead = f"strings are texts themselves. For what a file holds, give pathlib.Path({content!r})"
    try:
        exists = Path(content).exists()
    except (OSError, ValueError):
        exists = False
    if exists:
        raise AttnscopeError(f"{name} is {content!r}, the name of a file or folder here, and {instead}")
    if content.lower().endswith(NAMES_A_FILE) or content.startswith(("./", "../", "~/")):
        raise AttnscopeError(
            f"{name} is {content!r}, which looks like a file and does not exist; and {instead}, if it is there"
        )
