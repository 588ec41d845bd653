"""Links of Python source against pairs written by hand, and against what programs do when they run."""

import json
import random
import re
from contextlib import suppress

import pytest

from attnscope import AttnscopeError
from attnscope_relations import relations
from attnscope_relations.data import BEFORE, REVERSED, linked_texts
from tests.cli.command import attnscope as command


def read(tmp_path, source, name="code.py"):
    """The text of a file, and its links as (relation, line and word of the query, line and word of the key)."""
    file = tmp_path / name
    file.write_bytes(source if isinstance(source, bytes) else source.encode())
    (text,) = linked_texts(file)

    def at(span):
        return text.text.count("\n", 0, span[0]) + 1, text.text[slice(*span)]

    return text, {(link.relation, at(link.query), at(key)) for link in text.links for key in link.keys}


CODE = '''\
import numpy as np
from os import path as where, sep

SIZE = 3


def mean(values, *, weight=SIZE):
    """The mean of values."""
    total = 0
    for value in values:
        total += value * weight
    if total:
        return total / len(values)
    elif weight:
        return np.zeros(3).sum()
    else:
        return mean([1], weight=2)


class Box:
    depth = SIZE
    height = depth

    def size(self):
        return self.depth if depth else [row for row in self.rows if row]


try:
    box = Box()
except (OSError, ValueError) as error:
    print(error)
finally:
    print(f"{box} {sep}", where.join("a", sep))
'''
#: Those that a reader of the code above finds: relation, query, key, by line and word.
PAIRS = {
    ("use", (7, "SIZE"), (4, "SIZE")),
    ("use", (10, "values"), (7, "values")),
    ("use", (11, "value"), (10, "value")),
    ("use", (11, "weight"), (7, "weight")),
    ("use", (13, "values"), (7, "values")),
    ("use", (14, "weight"), (7, "weight")),
    ("use", (15, "np"), (1, "np")),
    ("call", (17, "mean"), (7, "mean")),
    ("use", (21, "SIZE"), (4, "SIZE")),
    ("use", (22, "depth"), (21, "depth")),
    ("use", (25, "self"), (24, "self")),
    ("use", (25, "row"), (25, "row")),
    ("call", (29, "Box"), (20, "Box")),
    ("use", (31, "error"), (30, "error")),
    ("use", (33, "where"), (2, "where")),
    ("use", (33, "sep"), (2, "sep")),
    ("attribute", (15, "zeros"), (15, "np")),
    ("attribute", (15, "sum"), (15, "zeros")),
    ("attribute", (25, "depth"), (25, "self")),
    ("attribute", (25, "rows"), (25, "self")),
    ("attribute", (33, "join"), (33, "where")),
    ("branch", (14, "elif"), (12, "if")),
    ("branch", (16, "else"), (12, "if")),
    ("branch", (25, "else"), (25, "if")),
    ("branch", (30, "except"), (28, "try")),
    ("branch", (32, "finally"), (28, "try")),
    ("return", (13, "return"), (7, "def")),
    ("return", (15, "return"), (7, "def")),
    ("return", (17, "return"), (7, "def")),
    ("return", (25, "return"), (24, "def")),
}


def test_links_are_those_of_pairs_written_by_hand(tmp_path):
    """Without a link: total of lines 11 to 13 (0 or a sum), depth of line 25 (of the class), box of line 33."""
    text, found = read(tmp_path, CODE)
    one_way = {link for link in found if not link[0].endswith((BEFORE, REVERSED)) and link[0] != "bracket"}
    assert one_way == PAIRS
    assert {(relation + REVERSED, key, query) for relation, query, key in PAIRS} <= found
    brackets = {(link.query, link.keys) for link in text.links if link.relation == "bracket"}
    opened, expected = [], set()
    for sign in re.finditer(r"[(\[)\]]", text.text):  # CODE has none in strings or comments
        if sign[0] in "([":
            opened.append(sign.span())
        else:
            expected.add((sign.span(), (opened.pop(),)))
    assert brackets == expected
    assert len(brackets) == 13


def test_a_name_is_read_from_the_word_before_it_too(tmp_path):
    _, found = read(tmp_path, "def f(size):\n    return -size\n")
    assert {link for link in found if BEFORE in link[0]} == {
        ("bracket" + BEFORE, (1, "size"), (1, "(")),
        ("use" + BEFORE, (2, "-"), (1, "size")),
    }


def used(source, tmp_path):
    """Lines of names and of what they refer to."""
    _, found = read(tmp_path, source + "\nprint()")
    return {(query, key) for relation, (query, _), (key, _) in found if relation in {"use", "call"}}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1\nx = 2\nprint(x)\n", {(3, 2)}),
        ("x = 1\nx = x + 1\nprint(x)\n", {(2, 1), (3, 2)}),
        ("x = 1\nif y:\n    x = 2\nprint(x)\n", set()),
        ("x = 1\nif y:\n    x = 2\n    print(x)\n", {(4, 3)}),
        ("x = 1\nfor y in z:\n    print(x)\n    x = 2\n", set()),
        ("x = 1\nwhile x:\n    x -= 1\n", set()),
        ("for x in y:\n    print(x)\nprint(x)\n", {(2, 1)}),
        ("with y as x:\n    print(x)\nprint(x)\n", {(2, 1)}),
        ("x = 1\ndel x\nprint(x)\n", set()),
        ("x = 1\ndef f():\n    return x\n", {(3, 1)}),
        ("x = 1\ndef f():\n    return x\nx = 2\n", set()),
        ("x = 1\ndef f():\n    global x\n    x = 2\nprint(x)\n", set()),
        ("from y import *\nx = 1\nprint(x)\n", set()),
        ("def f(x):\n    x: int\n    return x\n", set()),
        ("def f(x):\n    return lambda: x\n", {(2, 1)}),
        ("def f(x):\n    x = 2\n    return lambda: x\n", set()),
        ("class A:\n    __x = 1\n    print(__x)\n", set()),
        ("if (x := f()):\n    print(x)\n", set()),
        ("x = 1\nprint([(y := 2) for z in (x,)])\ny = 3\nprint(y)\n", {(2, 1)}),
        ("x = 1\nmatch x:\n    case [x, *y]:\n        print(x)\n", {(2, 1)}),
        ("x = {k: v for k, v in y for k in v}\n", {(1, 1)}),
        ("def f(x: int = 1) -> x:\n    y: x = x\n", {(2, 1)}),
        ("async def f(x):\n    async for y in x:\n        await y\n    else:\n        x()\n", {(2, 1), (3, 2), (5, 1)}),
        ("try:\n    x = 1\n    print(x)\nexcept A:\n    print(x)\nelse:\n    print(x)\n", {(3, 2)}),
    ],
)  # fmt: skip
def test_a_name_has_a_link_if_one_binding_is_right_on_every_path(source, expected, tmp_path):
    assert used(source, tmp_path) == expected


def program(random, depth=0):
    """Random statements: LINE is the number of their line, which names are bound to, and `see` notes."""
    lines = []
    for _ in range(random.randint(2, 4)):
        name = random.choice("xy")
        heads = {
            "if": ["if chance():"],
            "for": [f"for {name} in [LINE, LINE][: pick()]:"],
            "while": ["while chance():"],
            "def": [f"def f({name}=LINE):"],
            "with": [f"with suppress(OSError) as {name}:"],
        }
        kind = random.choice(["bind", "bind", "see", "see", "see", "jump", "try", *(heads if depth < 3 else [])])
        if kind == "bind":
            lines += [random.choice([f"{name} = LINE", f"{name} = LINE", f"del {name}", f"[{name}] = [LINE]"])]
        elif kind == "see":
            lines += [
                random.choice(
                    [f"see(LINE, {name})", f"[see(LINE, {name}) for z in [0]]", f"f = lambda: see(LINE, {name})"]
                )
            ]
            lines += [random.choice(["pass", "f()"])]
        elif kind == "jump":
            lines += ["if chance(): raise OSError"]
        elif kind == "try" and depth < 3:
            lines += ["try:", *program(random, depth + 1), "except Exception:", *program(random, depth + 1)]
            lines += random.choice([[], ["    pass", "else:", *program(random, depth + 1)]])
            lines += random.choice([[], ["    pass", "finally:", *program(random, depth + 1)]])
        elif kind in heads:
            lines += [*heads[kind], *program(random, depth + 1)]
            if kind in {"for", "while"}:
                lines += [f"    if chance(): {random.choice(['break', 'continue'])}"]
            if kind in {"for", "while", "if"}:
                lines += random.choice([[], ["else:", *program(random, depth + 1)]])
            if kind == "def":
                lines += ["f()"]
    return [f"    {line}" if depth else line for line in [*lines, "pass"]]


def test_programs_that_run_see_what_their_names_are_linked_to(tmp_path):
    """120 random programs, each run 10 times: a name with a link has the value of that binding whenever it is used."""
    seen_links = 0
    for seed in range(120):
        chosen = random.Random(seed)
        lines = ["x = y = f = None", *program(chosen), "f()"]
        source = "\n".join(line.replace("LINE", str(number)) for number, line in enumerate(lines, start=1))
        _, found = read(tmp_path, source)
        links = {
            query: key
            for relation, (query, name), (key, _) in found
            if relation == "use" and name in {"x", "y"} and "see(" in lines[query - 1]
        }
        code = compile(source, "program", "exec")
        for _ in range(10):
            seen = []
            steps = iter(range(60))

            def chance(chosen=chosen, steps=steps):
                next(steps)  # a program ends
                return chosen.random() < 0.5

            names = {
                "see": lambda line, value, seen=seen: seen.append((line, value)),
                "chance": chance,
                "pick": lambda chosen=chosen: chosen.randint(0, 2),
                "suppress": suppress,
            }
            with suppress(Exception):
                exec(code, names)  # noqa: S102 written here
            for line, value in seen:
                if line in links:
                    key = links[line]
                    assert value == (key if "LINE" in lines[key - 1] else None), (source, line)
                    seen_links += 1
    assert seen_links > 500


def test_positions_are_characters(tmp_path):
    """Bytes, tabs, form feeds, a mark of the byte order, and ends of lines of other systems."""
    source = '\ufefföl = "日本"; wert = (öl, 1)\r\n\x0cif wert:\r\n\tname = wert[0]  # ein "(" darin\r\n'
    text, found = read(tmp_path, source.encode())
    assert "\r" not in text.text
    assert ("use", (1, "öl"), (1, "öl")) in found
    assert ("use", (3, "wert"), (1, "wert")) in found
    assert {link for link in found if link[0] == "bracket"} == {
        ("bracket", (1, ")"), (1, "(")),
        ("bracket", (3, "]"), (3, "[")),
    }


def test_f_strings_have_no_links(tmp_path):
    _, found = read(tmp_path, 'x = [1]\nprint(f"{x[0]} {sum(x)}")\n')
    assert {link for link in found if link[1][0] == 2 and REVERSED not in link[0]} == {
        ("bracket", (2, ")"), (2, "(")),
        ("bracket" + BEFORE, (2, '"'), (2, "(")),
    }


def test_source_is_not_executed(tmp_path):
    mark = tmp_path / "mark"
    read(tmp_path, f"from pathlib import Path\nPath({str(mark)!r}).touch()\n")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (
            b"x = 1\nprint x\n",
            r"broken\.py, line 2: Python 3\.\d+ does not parse it: .*Correct it, or leave the file out",
        ),
        (b"if x:\n", "line 1: Python"),
        (b"x = (1,\n", "line 1: Python"),
        (b"x = 1\n  y = 2\n", "line 2: Python"),
        (b"x = '\xff'\n", "expected text in UTF-8"),
        (b"x" + b"+x" * 20_000, "nested too deeply"),
        (b"", "found no link"),
    ],
)
def test_source_that_does_not_parse_is_explained(source, problem, tmp_path):
    file = tmp_path / "broken.py"
    file.write_bytes(source)
    with pytest.raises(AttnscopeError, match=problem):
        linked_texts(file)


def test_a_folder_of_source_is_a_document_a_file(tmp_path):
    for name in ("a", "b"):
        folder = tmp_path / "code" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(f'VALUE = "{name}"\nprint(VALUE, "\\d")\n', encoding="utf-8")
        (folder / "empty.py").write_text("", encoding="utf-8")
    texts = linked_texts(tmp_path / "code")
    assert [text.document for text in texts] == ["a/__init__.py", "b/__init__.py"]


def test_the_command_reads_source(tmp_path):
    (tmp_path / "code.py").write_text(CODE, encoding="utf-8")
    done = command("relations", "bundled", "code.py", "--only", "use,bracket", "--no-untrained", "--json", cwd=tmp_path)
    rows = json.loads(done.stdout)["tables"]["relations"]
    assert {row["relation"] for row in rows} == {
        name + end for name in ("use", "bracket") for end in ("", REVERSED, BEFORE)
    }


def test_brackets_that_a_tokenizer_reads_together_have_no_link(tmp_path):
    file = tmp_path / "code.py"
    file.write_text("f()\ng(x)\n", encoding="utf-8")
    found = relations("bundled", file, only=["bracket"], untrained=False)
    assert int(found.queries.sel(relation="bracket")) <= 2
