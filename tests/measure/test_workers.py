"""One scan by workers that are lost: the arrays of one process, bit for bit. Without Ray: it has tests of its own."""

import json
import os
from pathlib import Path

import pytest

import attnscope
from attnscope import AttnscopeError, open_run
from attnscope.bundled import TEXT
from attnscope.measure import texts as _texts
from attnscope.measure.texts import TextReader
from attnscope.store import units as _units
from attnscope.store.arrays import unpacked
from attnscope.store.runs import RunFolder
from tests.measure.test_targets import TARGETS, TEXTS
from tests.packages.lineage.translation.small_translators import small_model, small_tokenizer
from tests.store.workers.simulated_workers import Simulated
from tests.tiny_models import tiny

SIZES = {"window": 32, "batch_size": 2, "limit": 18, "device": "cpu"}


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """In place of Ray, workers in this process that die; units are small."""

    class Engine(Simulated):
        def __init__(self, cluster, recipe):
            super().__init__(recipe, seed=cluster.workers, deaths=2, size=cluster.workers)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(_units, "RayEngine", Engine)
    monkeypatch.setattr(_texts, "UNIT", 3)


def scan(*given, **more):
    return attnscope.scan(*(given or ("bundled", TEXT)), **({} if given else SIZES), **more)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Scans of one process in folders, and what they returned, by their options."""
    made = {}

    def run(**more):
        key = repr(more)
        if key not in made:
            out = tmp_path_factory.mktemp("whole") / "run"
            made[key] = out, scan(out=out, show=[(1, 2)], **more)
        return made[key]

    return run


def saved(tmp_path, model):
    model.save_pretrained(tmp_path / "model")
    small_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(
    "more", [{"pool": 4}, {"groups": "types", "words": "unicode", "stride": 16, "clusters": 3}], ids="-".join
)
def test_the_arrays_are_those_of_one_process(more, runs, tmp_path):
    folder, whole = runs(**more)
    told = []
    given = {"ray": "local", "workers": 3, "progress": told.append}
    found = scan(out=tmp_path / "run", show=[(1, 2)], **given, **more)
    assert found.identical(whole)
    both = folder, tmp_path / "run"
    sample, again = (unpacked((place / "sample.npz").read_bytes()) for place in both)
    assert sample.identical(again)
    if "pool" in more:
        short, again = (open_run(place, part="windows") for place in both)
        assert short.identical(again)
    shares = [one.share for one in told]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert max(one.details.get("texts", 0) for one in told) == found.sizes["window"]


def test_pools_of_values_are_those_of_one_process(tmp_path):
    """Where pools of several values are open at once, no unit begins where all before it is measured."""
    lines = " ".join(path.read_text(encoding="utf-8") for path in sorted(TEXT.iterdir())).split(". ")
    rows = [{"text": line, "by": ("en", "ja", "de")[number % 3]} for number, line in enumerate(lines[:40])]
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    given = SIZES | {"pool": 3, "by": "by"}
    whole = attnscope.scan("bundled", path, **given)
    assert attnscope.scan("bundled", path, **given, ray="local", workers=3).identical(whole)


def test_unknown_tokens_are_counted_over_all_texts(tmp_path):
    """Also those of units that a worker did not read, as it went on behind them."""
    texts = ["##### #### ####"] * 12 + ["a long one that goes on"] * 12
    given = saved(tmp_path, tiny("bert")), texts
    whole = scan(*given, batch_size=1, band=3, device="cpu")
    assert "of the tokens are <unk>, unknown to the tokenizer" in whole.attrs["unknown"]
    for workers in (1, 3):
        assert scan(*given, batch_size=1, band=3, device="cpu", ray="local", workers=workers).identical(whole)


def test_translations_by_workers_are_those_of_one_process(tmp_path):
    given = saved(tmp_path, small_model("bart")), TEXTS
    more = {"targets": TARGETS, "band": 3, "batch_size": 1, "device": "cpu"}
    assert scan(*given, **more, ray="local", workers=2).identical(scan(*given, **more))


@pytest.mark.parametrize("first", ["workers", "one process"])
def test_a_stopped_scan_resumes(first, runs, tmp_path, monkeypatch):
    def stop(progress):
        if max(progress.details.get("windows", 0), progress.details.get("texts", 0)) > 7:
            raise KeyboardInterrupt

    whole, out = runs()[1], tmp_path / "run"
    by_workers = {"ray": "local", "workers": 2}
    with pytest.raises(KeyboardInterrupt):
        scan(out=out, show=False, progress=stop, **(by_workers if first == "workers" else {}))
    held = [*RunFolder(out, {"command": "scan"}).look().files]
    assert any(name.startswith("pieces/") for name in held)
    measured = []

    def note(reader, batch, numbers):
        measured.append(len(batch))
        return own(reader, batch, numbers)

    own = TextReader.measure_batch
    monkeypatch.setattr(TextReader, "measure_batch", note)
    found = scan(out=out, show=False, **(by_workers if first != "workers" else {}))
    assert found.identical(whole)
    if first == "workers":
        assert sum(measured) == 18 - 12
    else:
        assert 18 - 8 <= sum(measured) <= 18 - 8 + 2 * 6  # two deaths lose a unit each, at most


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ray_gpus": 0.5}, "are of Ray"),
        ({"ray": "local", "texts": (one for one in ["a", "b"])}, "texts of a generator cannot go to workers .--ray."),
        ({"ray": "local", "texts": [Path("pipe")]}, "pipe is read once"),
        ({"ray": "local", "model": small_model("bart")}, "the model is an object in this process"),
        ({"ray": "local", "texts": Path("a.png")}, r"ray \(--ray\) needs texts, but the input is images"),
        ({"ray": "local", "texts": Path("nothing.txt"), "workers": 1}, "no such file or folder"),
    ],
)
def test_inputs_that_cannot_go_to_workers_are_rejected(given, message, tmp_path, monkeypatch):
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Image.new("RGB", (8, 8)).save("a.png")
    with pytest.raises(AttnscopeError, match=message):
        attnscope.scan(**{"model": "bundled", "texts": TEXT} | given)
    assert not Path("run").exists()
