"""Manifests and arrays that a stranger wrote, under checksums that are right: every verb says so in one line."""

import io
import json
import random
import shutil
import zipfile

import numpy as np
import pytest

import attnscope
from tests.cli.command import attnscope as command
from tests.store.forged_folders import arrays, forged_again, npy, replaced

TEXTS = ["The tide is out, and the boats lie on the mud of the harbour.", "More mud. " * 9]
DEEP = json.loads("[" * 90 + "]" * 90)
ODD = [None, True, -1, 1e999, 10**400, "x", "\x1b]0;x\x07", [], [[]], {}, {"x": {}}, DEEP]
_FIELDS = ["command", "files", "growing", "undefined", "state"]
_STATE = ["complete", "signature", "attributes", "views", "asked", "texts", "units", "parts"]
_SIGNATURE = ["command", "model", "tokenizer", "corpus", "settings", "versions"]


def manifests():
    """What is changed in a manifest, by name."""

    def put(*path):
        def change(content, value):
            for part in path[:-1]:
                content = content[part]
            if value is ...:
                content.pop(path[-1], None)
            else:
                content[path[-1]] = value

        return change

    for where in (
        *((field,) for field in _FIELDS),
        *(("state", field) for field in _STATE),
        *(("state", "signature", field) for field in _SIGNATURE),
        ("state", "signature", "settings", "statistics"),
        ("files", "summary.npz"),
        ("files", PIECE),
    ):
        for value in (..., *ODD):
            yield (f"{'.'.join(where)}={str(value)[:12]}", lambda content, w=where, v=value: put(*w)(content, v))
    for name in ("a/../../b", "/etc/passwd", "", "a" * 2000, "a\nb", "pieces/1-2.npz", "pieces/x.npz",
                 "pieces/000000009-000000001.npz", "pieces/000000000-999999999999.npz", "figures/"):  # fmt: skip
        yield f"name {name[:9]!r}", lambda content, n=name: content["files"].update({n: [0, "0" * 64]})


PIECE = "pieces/000000000-000000001.npz"


def of_outline(*path, value):
    def change(outline):
        for part in path[:-1]:
            outline = outline[part]
        if value is ...:
            del outline[path[-1]]
        else:
            outline[path[-1]] = value

    return change


def contents(content):
    """Other bytes for a file of arrays, by name."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        variable = next(iter(json.loads(archive.read("dataset.json"))["data_vars"]))
    entropy = ("data_vars", variable)
    for value in (..., *ODD, ["window"], ["window", "window", "head"], ["offset", "layer", "head"]):
        for part in ("dims", "shape", "dtype", "attrs", "data"):
            change = of_outline(*entropy, part, value=value)
            yield f"{part}={str(value)[:12]}", (lambda change=change: arrays(content, change))
    for value in (..., *ODD):
        for part in (("data_vars",), ("coords",), ("attrs",), entropy, ("coords", "window"), ("coords", "layer")):
            change = of_outline(*part, value=value)
            yield f"{'.'.join(part)}={str(value)[:12]}", (lambda change=change: arrays(content, change))
    members = {
        "objects": npy(np.array([{}, []], object)),
        "strings": npy(np.array(["x"])),
        "no dimension": npy(np.array(1.0)),
        "other shape": npy(np.ones((2, 3))),
        "other type": npy(np.ones((2, 3, 4), complex)),
        "no array": b"x",
        "gone": ...,
        "huge": npy(np.ones(1)).replace(b"(1,)", b"(10**9,)".ljust(4)),
    }
    for name, member in members.items():
        yield f"entropy is {name}", (lambda member=member: arrays(content, **{f"{variable}.npy": member}))
    for name, whole in {"empty": b"", "no archive": b"PK\x03\x04", "text": b"x" * 99, "cut": content[:-30]}.items():
        yield name, (lambda whole=whole: whole)
    for name, outline in {"no JSON": b"{", "a list": b"[]", "deep": b"[" * 9999, "gone": ..., "half": b"\xff"}.items():
        yield f"outline is {name}", (lambda outline=outline: arrays(content, **{"dataset.json": outline}))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished scan, one that is not, and one by tasks of which the last has not put all together."""
    place = tmp_path_factory.mktemp("whole")
    given = {"texts": TEXTS, "batch_size": 2, "show": False}
    attnscope.scan(**given, out=place / "run")
    attnscope.scan(**given, out=place / "run.tasks" / "1-of-1")
    forged_again(place / "run.tasks" / "1-of-1", lambda manifest: manifest["state"].update(texts=2, units=[0]))
    for number, text in enumerate(TEXTS):
        (place / f"{number}.txt").write_text(text)
    return place


SCAN = "scan bundled 0.txt 1.txt --batch-size 2 --no-report --out run"
VERBS = {
    "scan": [SCAN],
    "show": ["runs show run --verify", "runs show run --json"],
    "export": ["runs export run --to csv --out made", "runs export run --to nc --out made.nc"],
    "diff": ["diff run run --no-report --out changes"],
    "merge": ["runs merge run --no-report"],
    "runs": ["runs list ."],
}


def said(verb, place, what):
    """Every line of a verb ends well, or in one line."""
    for line in VERBS[verb]:
        told = command(*line.split(), cwd=place)
        assert told.returncode in {0, 2}, (what, told.stderr)
        lines = [one for one in told.stderr.splitlines() if one.startswith("attnscope: ")]
        assert len(lines) <= 1, told.stderr
        assert lines or told.returncode == 0 or verb == "show"
        assert "\x1b" not in told.stdout + told.stderr
        assert "Traceback" not in told.stderr


@pytest.fixture
def place(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "place")
    return tmp_path / "place"


def rerun(place, whole):
    """The place as it was."""
    for path in place.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(whole, place, dirs_exist_ok=True)


@pytest.mark.parametrize("verb", VERBS)
def test_a_forged_manifest_is_reported_in_one_line(verb, whole, place):
    for name, change in random.Random(verb).sample([*manifests()], 5):
        rerun(place, whole)
        for folder in ("run", "run.tasks/1-of-1"):
            forged_again(place / folder, change)
        if verb == "merge":
            shutil.rmtree(place / "run")
        said(verb, place, name)


@pytest.mark.parametrize("name", ["summary.npz", PIECE])
@pytest.mark.parametrize("verb", ["scan", "show", "export", "diff", "merge"])
def test_forged_arrays_are_reported_in_one_line(verb, name, whole, place):
    content = (whole / "run" / name).read_bytes()
    for what, make in random.Random(verb).sample([*contents(content)], 3):
        rerun(place, whole)
        for folder in ("run", "run.tasks/1-of-1"):
            if (place / folder / name).exists():
                replaced(place / folder, name, make())
        if verb == "merge":
            shutil.rmtree(place / "run")
        said(verb, place, what)
