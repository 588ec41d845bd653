"""Run the Python of a tutorial on another model, and print what each line returns.

    python scripts/tutorial.py HuggingFaceTB/SmolLM2-135M-Instruct
    python scripts/tutorial.py ./my-model --page docs/start/cache-heads.md
    python scripts/tutorial.py ./SmolLM2 --picture docs/images/induction.png

The page names a bundled model in its line `model = ...`; that model runs in the tests.
"""

from __future__ import annotations

import argparse
import doctest
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder or hub id")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "start" / "induction-heads.md")
    parser.add_argument("--head", default="18.6", help="head of the figure, as layer.head")
    parser.add_argument("--picture", type=Path, help="file for the figure, after which the tutorial ends")
    arguments = parser.parse_args()
    layer, _, head = arguments.head.partition(".")
    page = arguments.page.read_text(encoding="utf-8")
    session: dict[str, object] = {"__name__": "__main__"}
    for block in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        for example in doctest.DocTestParser().get_examples(block):
            line = re.sub(r'^model = ".*"', f"model = {arguments.model!r}", example.source)
            line = re.sub(r"layer=\d+, head=\d+", f"layer={layer}, head={head}", line)
            sys.stdout.write(">>> " + line.rstrip().replace("\n", "\n... ") + "\n")
            exec(compile(line, str(arguments.page), "single"), session)  # noqa: S102 lines of our own page
            if arguments.picture is not None and "figure" in session:
                figure: Any = session["figure"]
                figure.savefig(arguments.picture, dpi=150, bbox_inches="tight", facecolor="white")
                return


if __name__ == "__main__":
    main()
