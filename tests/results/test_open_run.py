"""Every finished run opens as its command's function returned it; what is no finished run is told apart in one line."""

import json

import pytest
import xarray as xr

import attnscope
import attnscope_lineage
from attnscope import AttnscopeError, open_run
from attnscope.bundled import MODEL
from attnscope.results.describe import describe
from attnscope.results.reports import report_of
from attnscope.store.folder import OwnedFolder
from attnscope.store.runs import RunFolder
from attnscope_lineage import comparison as held_out
from attnscope_lineage.config import read_config
from tests.packages.lineage.compare.small_systems import SMALL
from tests.packages.lineage.translation.small_translators import small_model, small_tokenizer
from tests.planted_models import wave_bert

TEXT = "The tide comes in twice a day, and twice a day it goes out again. " * 30


def scan(out):
    return attnscope.scan(texts=[TEXT], window=64, limit=2, device="cpu", out=out)


def scan_of_pairs(out):
    """Whose attributes tell what the decoder read."""
    texts = {"texts": ["a b c", "b"], "targets": ["b c", "a"], "window": 16, "band": 4}
    return attnscope.scan(small_model("bart"), tokenizer=small_tokenizer(), out=out, **texts)


def explain(out):
    return attnscope.explain(wave_bert((-1, 1, -3, 2)), [TEXT], tokenizer=MODEL, window=32, limit=2, out=out)


def train(out):
    return attnscope_lineage.train(out=out, **SMALL)


def compare(out):
    return attnscope_lineage.compare({"one": read_config(**SMALL)}, out=out, beams=1, resamples=20, threads=1)


@pytest.fixture(autouse=True)
def _small_text(monkeypatch):
    monkeypatch.setattr(held_out, "HELD_OUT", 20)


@pytest.mark.parametrize("verb", [scan_of_pairs, explain, train, compare], ids=lambda verb: verb.__name__)
def test_a_finished_run_opens_as_it_was_returned(verb, tmp_path):
    returned = verb(tmp_path / "run")
    opened = open_run(str(tmp_path / "run"))
    xr.testing.assert_identical(opened, returned)
    assert json.loads(opened.attrs["signature"])["command"] == verb.__name__.split("_")[0]
    if verb is explain:
        told = describe(tmp_path / "run")
        assert told.headline[:2] == report_of("explain", returned).finding.sentences[:2]
        assert {one.node for one in told.variables} == {name for name in returned.children if returned[name].data_vars}
        assert any(note.startswith("Skipped: scheme kernel (") for note in told.notes)


def test_the_windows_that_a_page_shows_open_as_a_part(tmp_path):
    attnscope.scan(texts=[TEXT], window=64, limit=2, device="cpu", out=tmp_path / "shown", show=[(0, 3)])
    sample = open_run(tmp_path / "shown", part="sample")
    assert {"layer", "head", "window"} <= set(sample.received.dims)
    received = sample.received.sum("position")  # every query gives 1 in all
    xr.testing.assert_allclose(received, xr.full_like(received, 64), rtol=1e-5)
    attnscope.scan(texts=[TEXT], window=64, limit=2, device="cpu", out=tmp_path / "bare", show=False)
    with pytest.raises(AttnscopeError, match=r"has no part 'sample'.*scans with a page 'sample'"):
        open_run(tmp_path / "bare", part="sample")


@pytest.mark.parametrize("command", ["scan", "train"])
def test_an_unfinished_run_is_reported_to_be_one(command, tmp_path):
    if command == "scan":
        with RunFolder(tmp_path / "run", {"command": command}):
            pass
    else:
        with OwnedFolder(tmp_path / "run", command) as folder:
            folder.write({"settings": b""})
    with pytest.raises(AttnscopeError, match=f"unfinished run of attnscope {command}: repeat the command"):
        open_run(tmp_path / "run")


def test_what_another_version_wrote_is_reported_to_be_of_one(tmp_path):
    with OwnedFolder(tmp_path / "run", "compare") as folder:
        folder.write({"run.json": b"{}", "scores.npz": b""})
    with pytest.raises(AttnscopeError, match=r"is not as this version of attnscope writes it"):
        open_run(tmp_path / "run")


def test_a_damaged_model_is_rejected_by_name(tmp_path):
    train(tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").write_bytes(b"0")
    with pytest.raises(AttnscopeError, match=r"model.safetensors is not what was written .*Repeat the command"):
        open_run(tmp_path / "run")
