"""Run the rows of docs/start/from-the-texts.md, and print seconds and result of each.

    python scripts/from_the_texts.py           # rows without a comment
    python scripts/from_the_texts.py --all     # also those whose comment gives minutes
    python scripts/from_the_texts.py 29 34     # these rows

A command runs in a folder of its own, as a user types it. Its output must contain each number or formula that the row
names in backticks. The lines of Python run as one session, as on the page.
"""

from __future__ import annotations

import argparse
import doctest
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

PAGES = {
    "en": Path(__file__).parents[1] / "docs/start/from-the-texts.md",
    "ja": Path(__file__).parents[1] / "docs/start/from-the-texts.ja.md",
}
#: A row of a table, and a section: the forms of a statement in English and in Japanese.
LINE = re.compile(r"^\| (?P<number>\d+) \| \*\*(?P<title>.+?)\*\*.*? \| (?P<code>.+?) \| (?P<see>.+) \|$", re.MULTILINE)
SECTION = re.compile(
    r"^### (?P<number>\d+)\. (?P<title>.+)\n\n(?P<statement>.+)\n\n```(?P<language>\w+)\n(?P<code>[^`]*?)```\n\n"
    r"\* \*\*\S.*?\*\* (?P<see>.+)\n\* \*\*.+?\*\* `(?P<test>.+)`$",
    re.MULTILINE,
)
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


class Row(NamedTuple):
    number: int
    title: str
    language: str
    code: str
    see: list[str]
    test: str

    @property
    def comment(self) -> str:
        """Why a command is not a quick one: its minutes, or a download."""
        return self.code.partition(" # ")[2] if self.language == "bash" else ""

    def missing(self, output: str) -> list[str]:
        """What the row names and the output lacks, spaces and line breaks apart."""
        return [text for text in self.see if "".join(text.split()) not in "".join(output.split())]


def rows(language: str = "en") -> list[Row]:
    """The rows of a page; numbers that only a line of Python shows are checked by its own output."""
    page = PAGES[language].read_text(encoding="utf-8")
    blocks, tests = code_by_number(page), tests_by_number(page)
    found = []
    for m in (*LINE.finditer(page), *SECTION.finditer(page)):
        number, fields = int(m["number"]), m.groupdict()
        row_language, code = blocks.get(number, (fields.get("language", "bash"), m["code"].strip("`")))
        see = re.findall(r"`([^`]+)`", m["see"])
        test = fields.get("test") or tests[number]
        found.append(Row(number, m["title"].replace("\\|", "|"), row_language, code.strip() + "\n", see, test))
    return found


def code_by_number(page: str) -> dict[int, tuple[str, str]]:
    """Language and code of the rows of tables whose code is in a block, after a comment with their number."""
    found = {}
    for language, block in re.findall(r"^```(bash|python)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        _, *parts = re.split(r"^(?:>>> )?# (\d+)\n", block, flags=re.MULTILINE)
        found |= {int(number): (language, code) for number, code in zip(parts[::2], parts[1::2], strict=True)}
    return found


def tests_by_number(page: str) -> dict[int, str]:
    """The test of each row of tables, by the last table."""
    lines = re.findall(r"^\| ([\d, ]+) \| `(tests/.+)` \|$", page, re.MULTILINE)
    return {int(number): test for numbers, test in lines for number in numbers.split(",")}


def session(row: Row, names: dict) -> int:
    """Failures of a row's lines of Python in a session with these names."""
    test = doctest.DocTest(doctest.DocTestParser().get_examples(row.code), {}, row.title, None, 0, row.code)
    test.globs = names  # not a copy: later rows continue
    return doctest.DocTestRunner(optionflags=FLAGS).run(test, clear_globs=False).failed


def command(row: Row, folder: str) -> list[str]:
    """What is wrong with a row's command, run as a user types it."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "LC_ALL": "C.UTF-8"}
    words = ["bash", "-ec", row.code]
    done = subprocess.run(words, check=False, cwd=folder, env=environment, capture_output=True, text=True)  # noqa: S603
    return row.missing(done.stdout) if not done.returncode else [done.stderr.strip()[-200:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--all", action="store_true", help="also rows that take minutes")
    parser.add_argument("numbers", nargs="*", type=int, help="these rows only")
    given, names, failed = parser.parse_args(), {}, 0
    for row in rows():
        if given.numbers and row.number not in given.numbers:
            continue
        if row.comment and not ((given.all or given.numbers) and " min" in row.comment):
            print(f"{row.number:3} {'':7}  skipped ({row.comment.strip()})  {row.title}")
            continue
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            wrong = command(row, folder) if row.language == "bash" else session(row, names)
        failed += bool(wrong)
        print(f"{row.number:3} {time.monotonic() - start:5.1f} s  {f'WRONG {wrong}' if wrong else 'ok'}  {row.title}")
        sys.stdout.flush()
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
