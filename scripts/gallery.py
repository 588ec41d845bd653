"""Draw the figures of the gallery again, by the code that docs/start/gallery.md shows above each.

python scripts/gallery.py
"""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "start" / "gallery.md"

#: A block of code, and the picture that follows it.
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n+!\[.*?\]\((.*?)\))?", re.MULTILINE | re.DOTALL)


def main() -> None:
    session: dict[str, Any] = {}
    blocks = re.finditer(
        r"^```python\n(.*?)^```$(?:\n+!\[.*?\]\((.*?)\))?", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    for block in blocks:
        for example in doctest.DocTestParser().get_examples(block[1]):
            exec(example.source, session)  # noqa: S102 lines of our own page
        if block[2]:
            path = PAGE.parent / block[2]
            path.parent.mkdir(exist_ok=True)
            session["figure"].savefig(path, dpi=110, bbox_inches="tight", facecolor="white")
            print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
