"""Commands of the lineage that do more than their verbs, and how they write text."""

from pathlib import Path

from attnscope.cli.output import emit, print_written


def emit_to(path: Path | None, text: str, flag: str) -> None:
    """Write text to the file that the user named by a flag, or to standard output."""
    from attnscope.store.files import explained, write_output

    if path is None:
        emit(text)
        return
    with explained(f"write {path}", f"Choose another file with {flag}"):
        write_output(path, text)
    if path.is_file():  # not a device, such as /dev/stdout
        print_written(path)
