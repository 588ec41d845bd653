"""Take WikiText's tokenisation marks off, so that a model reads text as people write it.

    python scripts/plain_wikitext.py ../shared/data/wikitext-2 runs/plain

The first folder holds train.txt and valid.txt (one paragraph or heading a line), the second gets plain ones.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path


def plain(text: str) -> str:
    """WikiText as it was before it was cut into words."""
    text = re.sub(r" @(.)@ ", r"\1", text)
    text = re.sub(r" ([,.;:!?%)\]]|'s\b|n't\b)", r"\1", text)
    text = re.sub(r"([(\[$]) ", r"\1", text)
    text = re.sub(r'" ([^"\n]*) "', r'"\1"', text)
    text = text.replace(" <unk>", "").replace("<unk> ", "")
    return "\n".join(line.strip() for line in text.splitlines() if line.strip()) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in ("train.txt", "valid.txt"):
        text = plain((options.corpus / name).read_text(encoding="utf-8"))
        (options.out / name).write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
