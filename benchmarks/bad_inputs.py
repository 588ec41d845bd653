"""Bad input to every command, for `reliability.py`: what it is, the words typed, and what is prepared in the folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attnscope.bundled import MODEL

Case = tuple[str, list[str], Callable[[Path], Any]]

_SCAN = ["scan", "bundled", "--limit", "2", "--no-report"]
_EXPLAIN = ["explain", "bundled", "--limit", "2", "--window", "16", "--no-report"]
_NO_WHOLE = ("-1", "0.5", "nan", "1e3", "", "x", "10" * 3000)
_NO_REAL = ("nan", "inf", "", "x", "10" * 3000)
_HUGE = "99999999999999"


def nothing(_: Path) -> None:
    pass


def bad_inputs(place: Path) -> Iterator[Case]:
    """All of them; `place` holds the undisturbed results of `reliability.py`."""
    yield from _flags(place)
    yield from _texts()
    yield from _configs()
    yield from _weights()
    yield from _settings()
    yield from _translators(place)
    yield from _folders(place)


def _flags(place: Path) -> Iterator[Case]:
    translator = str(place / "undisturbed-compare" / "out" / "systems" / "additive")
    translate = ["translate", translator, "text.txt"]
    align = ["align", translator, "text.txt", "--target", "text.txt"]
    score = ["score", "text.txt", "--target", "text.txt"]
    walk = ["walk", "bundled", "A cat sat."]
    train = ["train", "--task-pairs", "100", "--updates", "1"]
    wholes = {
        "--seed": (_SCAN, _EXPLAIN, walk, translate, score, train),
        "--window --stride --batch-size --band --clusters": (_SCAN,),
        "--limit --band": (_EXPLAIN,),
        "--layer --head": (walk, align),
        "--beams --n-best --batch-tokens": (translate,),
        "--batch-size --gold-first --shown": (align,),
        "--resamples": (score,),
        "--threads --width --vocabulary --encoder-width --updates": (train,),
    }
    huge = ("--seed", "--band", "--layer", "--head", "--beams", "--shown", "--resamples", "--threads", "--width")
    reals = {
        "--length-penalty --temperature": translate,
        "--threshold": align,
        "--dropout --learning-rate --clip --adam-beta2": train,
    }
    write = _text("A cat sat.\n")
    for names, commands in wholes.items():
        for words in commands:
            for name in names.split():
                for value in (*_NO_WHOLE, *([_HUGE] if name in huge else [])):
                    yield f"{words[0]} {name} {value[:20]}", [*words, name, value], write
    for names, words in reals.items():
        for name in names.split():
            for value in _NO_REAL:
                yield f"{words[0]} {name} {value[:20]}", [*words, name, value], write
    for value in ("3:2", ":", "1:99999999", "a:b"):
        yield f"explain --frequencies {value}", [*_EXPLAIN, "--frequencies", value], write
    for value in ("5,3", "0", ",", ""):
        yield f"score --by-length {value}", [*score, "--text", "text.txt", "--by-length", value], write
    for words in (_SCAN, _EXPLAIN, walk, translate, align):
        for value in ("meta", "gpu", "cuda:99", "", "cpu:7"):
            yield f"{words[0]} --device {value}", [*words, "--device", value], write
        for value in ("int8", "float33", ""):
            yield f"{words[0]} --dtype {value}", [*words, "--dtype", value], write
    yield "an unknown command", ["scna"], nothing
    yield "an unknown flag", ["scan", "--bland", "3"], nothing
    yield "two formats", [*_SCAN, "--json", "--csv"], nothing
    yield "an unknown statistic", [*_SCAN, "--statistics", "entropy,sparkle"], nothing
    yield "a field and no JSON Lines", ["scan", "bundled", "text.txt", "--field", "x"], _text("A cat sat.\n")
    yield ("an escape in a query token", ["walk", "bundled", "A cat", "--query-token", "\x1b]52;c;x\x07"], nothing)
    yield "moses of no language", [*score, "--tokenize", "moses", "--language", "../../x"], _text("A cat\n")
    yield "an unknown tokenizer", [*score, "--tokenize", "sparkle"], _text("A cat\n")


def _text(content: str | bytes, name: str = "text.txt") -> Callable[[Path], Any]:
    def write(home: Path) -> None:
        (home / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return write


def _texts_of(source: str, target: str, gold: str = "") -> Callable[[Path], Any]:
    def write(home: Path) -> None:
        for name, content in (("s", source), ("t", target), ("g", gold)):
            (home / name).write_text(content)

    return write


def _mine(name: str) -> Callable[[Path], Any]:
    """A file of the user's, beside a text."""

    def write(home: Path) -> None:
        (home / "text.txt").write_text("a b\n")
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("mine")

    return write


def _texts() -> Iterator[Case]:
    contents: dict[str, bytes] = {
        "empty": b"",
        "blank": b" \n\t\n",
        "Shift-JIS": "潮が満ちる".encode("shift_jis"),
        "UTF-16 with a mark": "A cat sat.".encode("utf-16"),
        "UTF-16 without a mark": "A cat sat on the mat.".encode("utf-16-le"),
        "UTF-16BE without a mark": "A cat sat on the mat.".encode("utf-16-be"),
        "bytes of a program": bytes(range(256)) * 20,
    }
    for what, content in contents.items():
        for words in (["scan", "bundled", "text.txt"], ["explain", "bundled", "text.txt"]):
            yield f"{words[0]} of text that is {what}", [*words, "--no-report"], _text(content)
    for what, path in (("a missing file", "none.txt"), ("/dev/full", "/dev/full"), ("/dev/zero", "/dev/zero")):
        for words in (["scan", "bundled", path], ["explain", "bundled", path], ["score", path, "--target", path]):
            yield f"{words[0]} of {what}", words, nothing
    yield "a FIFO that nobody writes to", ["scan", "bundled", "pipe"], lambda home: os.mkfifo(home / "pipe")
    yield "a folder without texts", ["scan", "bundled", "."], nothing
    yield "a broken link", ["scan", "bundled", "link"], lambda home: (home / "link").symlink_to("nothing")
    yield ("a folder of links to itself", ["scan", "bundled", "loop"], lambda home: (home / "loop").symlink_to("loop"))
    for what, line in {
        "no JSON": "{",
        "a list": "[1]",
        "no field": '{"body": "x"}',
        "a number": '{"text": 3}',
        "nested deep": "[" * 100_000,
        "half a surrogate": '{"text": "\\ud800"}',
        "a number of a million digits": '{"text": ' + "1" * 1_000_000 + "}",
    }.items():
        yield f"JSON Lines with {what}", ["scan", "bundled", "text.jsonl"], _text(line + "\n", "text.jsonl")


def _changed(change: Callable[[Path], Any]) -> Callable[[Path], Any]:
    def prepare(home: Path) -> None:
        shutil.copytree(MODEL, home / "model")
        change(home / "model")

    return prepare


def _with(file: str, **values: Any) -> Callable[[Path], Any]:
    def change(model: Path) -> None:
        known = json.loads((model / file).read_text())
        (model / file).write_text(json.dumps(known | values))

    return _changed(change)


def _raw(file: str, content: str | bytes) -> Callable[[Path], Any]:
    return _changed(lambda model: (model / file).write_bytes(content.encode() if isinstance(content, str) else content))


def _configs() -> Iterator[Case]:
    words = ["scan", "model", "--limit", "2", "--no-report"]
    no_names = [-1, 1.5, float("nan"), True, 10**15, [[["x"]]], {"a": 1}]
    no_sizes = ["three", None, [], {"a": 1}, -1, 0, 1.5, float("nan"), float("inf"), 10**15, [[["x"]]], "9" * 5000]
    sizes = ("heads", "width", "encoder_layers", "vocab_size", "max_position_embeddings")
    wrong = {"architectures": no_names, "model_type": [*no_names, "nothing"]} | dict.fromkeys(sizes, no_sizes)
    for key, values in wrong.items():
        for value in values:
            what = f"config.json with {key} = {str(value)[:20]}"
            yield what, words, _with("config.json", **{key: value})
    for value in ("three", [], -1, 1.5, {"a": 1}):
        what = f"tokenizer_config.json with model_max_length = {value}"
        yield what, words, _with("tokenizer_config.json", model_max_length=value)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        for what, content in {
            "empty": "",
            "a list": "[1, 2]",
            "a number": "3",
            "cut off": '{"a": ',
            "nested deep": "[" * 3000 + "]" * 3000,
            "nested deep in a mapping": '{"a":' * 3000 + "1" + "}" * 3000,
            "a number of a million digits": '{"vocab_size": ' + "1" * 1_000_000 + "}",
            "not UTF-8": b"\xff\xfe\x00",
        }.items():
            yield f"{name} that is {what}", words, _raw(name, content)
    for name in ("config.json", "tokenizer.json"):
        yield f"{name} is missing", words, _changed(lambda model, name=name: (model / name).unlink())


def _weights() -> Iterator[Case]:
    words = ["scan", "model", "--limit", "2", "--no-report"]
    whole = (MODEL / "model.safetensors").read_bytes()
    header = int.from_bytes(whole[:8], "little")
    for what, content in {
        "empty": b"",
        "zeros": bytes(500),
        "cut off": whole[: len(whole) // 2],
        "with a header longer than the file": (1 << 60).to_bytes(8, "little") + whole[8:],
        "with a broken header": whole[:8] + b"}" + whole[9:],
        "with another type in its header": whole[:8]
        + whole[8 : 8 + header].replace(b"F32", b"Q32")
        + whole[8 + header :],
        "a pickle": b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00\x8c\x01a\x94.",
    }.items():
        yield f"weights that are {what}", words, _raw("model.safetensors", content)

    def index(names: dict[str, str], files: tuple[str, ...]) -> Callable[[Path], Any]:
        def change(model: Path) -> None:
            for file in files:
                (model / file).parent.mkdir(exist_ok=True)
                shutil.copy(model / "model.safetensors", model / file)
            (model / "model.safetensors").unlink()
            content = {"metadata": {}, "weight_map": names}
            (model / "model.safetensors.index.json").write_text(json.dumps(content))

        return _changed(change)

    def list_as_index(model: Path) -> None:
        (model / "model.safetensors").unlink()
        (model / "model.safetensors.index.json").write_text("[]")

    keys = list(json.loads(whole[8 : 8 + header]))
    named = {
        "a pickle": "weights.bin",
        "a file outside": "../outside.safetensors",
        "an absolute file": "/etc/passwd",
        "a missing shard": "none.safetensors",
    }
    for what, file in named.items():
        copied = () if file.startswith(("/", "none")) else (file,)
        yield f"an index that names {what}", words, index(dict.fromkeys(keys, file), copied)
    yield "an index that is empty", words, index({}, ())
    yield "an index that is a list", words, _changed(list_as_index)


def _aliases(depth: int) -> str:
    """A list of nine lists of nine lists ..."""
    rows = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, depth + 1)]
    return "\n".join(["a0: &a0 [x]", *rows, f"updates: *a{depth}", ""])


def _settings() -> Iterator[Case]:
    for what, content in {
        "a list": "- 1",
        "no YAML": "{",
        "an unknown key": "lable_smoothing: 0.1",
        "nested deep": "[" * 3000,
        "a whole number of a million digits": "updates: " + "1" * 1_000_000,
        "aliases that blow up": _aliases(9),
        "an object of Python": "updates: !!python/object/apply:os.system ['true']",
        "a tag of its own": "updates: !x 3",
        "millions of layers": "model: transformer\nlayers: 100000000\n",
        "a width of millions": "model: transformer\nwidth: 100000000\n",
        "heads that do not divide": "model: transformer\nwidth: 15\nheads: 4\ntask_pairs: 100\n",
        "infinity": "learning_rate: .inf",
        "an escape": '"\\x1b]0;x\\x07": 3',
    }.items():
        for command in ("train", "compare"):
            words = [command, "settings.yaml", "--out", "out"]
            yield f"{command} with settings that are {what}", words, _text(content, "settings.yaml")
    yield "settings that are a device", ["train", "/dev/zero"], nothing
    yield "settings that are missing", ["train", "none.yaml"], nothing
    yield "texts that are missing", ["train", "--source", "a", "--target", "b"], nothing


def _translators(place: Path) -> Iterator[Case]:
    system = str(place / "undisturbed-compare" / "out" / "systems" / "additive")
    align = ["align", system, "s", "--target", "t"]
    yield "texts of unequal length", align, _texts_of("a b\n", "a\nb\n")
    for gold in ("1-1 x\n", "0-0\n", "1-" + "9" * 5000 + "\n", "1-1\n1-1\n", "-1--1\n"):
        yield f"gold {gold[:10]!r}", [*align, "--gold", "g"], _texts_of("a b\n", "a b\n", gold)
    yield ("a source that is a device", ["align", system, "/dev/zero", "--target", "/dev/zero"], nothing)
    yield ("align of a model of one text", ["align", "bundled", "s", "--target", "t"], _texts_of("a\n", "b\n"))
    yield "translate by a model of one text", ["translate", "bundled", "s"], _texts_of("a\n", "b\n")
    yield "a line that is too long", ["translate", system, "s"], _texts_of("seven " * 500 + "\n", "")
    yield "a target without its text", ["scan", "bundled", "--target", "t"], _texts_of("", "b\n")
    yield "a target for one stack", ["scan", "bundled", "s", "--target", "t"], _texts_of("a b c\n", "b\n")
    yield "hypotheses of unequal length", ["score", "s", "--target", "t"], _texts_of("a\nb\n", "a\n")


def _folders(place: Path) -> Iterator[Case]:
    system = str(place / "undisturbed-compare" / "out" / "systems" / "additive")
    commands = {
        "scan": [*_SCAN, "--out", "out"],
        "explain": [*_EXPLAIN, "--out", "out"],
        "train": ["train", "--updates", "1", "--task-pairs", "100", "--out", "out"],
        "compare": ["compare", system, "--out", "out"],
        "align": ["align", system, "text.txt", "--target", "text.txt", "--out", "out"],
    }
    others = ("thesis.tex", "report.html", "config.yaml", "links.txt", "checkpoints/1000", ".x.partial", "run.json")
    for name, words in commands.items():
        for file in (*others, "manifest.json"):
            yield f"{name} into a folder with {file}", words, _mine(f"out/{file}")
        yield f"{name} into a file", words, _mine("out")
        yield f"{name} into a place of the system", [*words[:-1], "/proc/attnscope"], _mine("mine")
    yield ("a system called '..'", ["compare", "...yaml", "--out", "out"], _text("model: recurrent\n", "...yaml"))
