"""A run folder survives whatever stops a run."""

import json

import numpy as np
import pytest
import xarray as xr
import zarr

from attnscope import AttnscopeError
from attnscope.store import RunFolder, short_hash

SIGNATURE = {"model": {"name": "m", "sha256": "0"}, "settings": {"band": 10}}


def part(start, size):
    return xr.Dataset(
        {"entropy": (("text", "head"), np.arange(start, start + size)[:, None] * np.ones(3))},
        coords={
            "text": np.arange(start, start + size),
            "source": ("text", np.array([f"テキスト {i}" for i in range(start, start + size)], dtype=object)),
        },
    )


def test_what_is_appended_is_read_back(tmp_path):
    with RunFolder(tmp_path / "run", SIGNATURE) as run:
        run.append(part(0, 3))
        run.append(part(3, 2))
        run.finish()
    with RunFolder(tmp_path / "run", SIGNATURE) as run:
        assert run.complete
        found = run.results()
    assert found.entropy.values[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert found.source.values[4] == "テキスト 4"


@pytest.mark.parametrize("tail", [1, 2])
def test_what_a_killed_run_wrote_after_its_mark_is_cut_off(tmp_path, tail):
    with RunFolder(tmp_path / "run", SIGNATURE) as run:
        run.append(part(0, 3))
        part(3, tail).to_zarr(
            run.path / "results.zarr", append_dim="text", consolidated=False
        )  # then it dies
    with RunFolder(tmp_path / "run", SIGNATURE) as run:
        assert run.texts == 3
        run.append(part(3, 4))
        assert run.results().entropy.values[:, 0].tolist() == list(range(7))


def test_texts_count_only_once_they_are_written(tmp_path, monkeypatch):
    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(xr.Dataset, "to_zarr", killed)
    with pytest.raises(KeyboardInterrupt), RunFolder(tmp_path / "run", SIGNATURE) as run:
        run.append(part(0, 3))
    monkeypatch.undo()
    with RunFolder(tmp_path / "run", SIGNATURE) as run:
        run.append(part(0, 3))
    monkeypatch.setattr(xr.Dataset, "to_zarr", killed)
    with pytest.raises(KeyboardInterrupt), RunFolder(tmp_path / "run", SIGNATURE) as run:
        run.append(part(3, 2))
    with RunFolder(tmp_path / "run", SIGNATURE) as run:
        assert run.texts == 3
        assert run.results().entropy.values[:, 0].tolist() == [0, 1, 2]


def test_a_failed_write_leaves_nothing_behind_for_the_next(tmp_path, monkeypatch):
    whole = xr.Dataset.to_zarr

    def fail_at_the_end(self, *arguments, **options):
        whole(self, *arguments, **options)
        raise OSError(28, "No space left on device")

    with RunFolder(tmp_path / "run", SIGNATURE) as run:
        run.append(part(0, 3))
        monkeypatch.setattr(xr.Dataset, "to_zarr", fail_at_the_end)
        with pytest.raises(AttnscopeError, match="The 3 texts before are safe"):
            run.append(part(3, 2))
        monkeypatch.undo()
        run.append(part(3, 4))
        assert run.results().entropy.values[:, 0].tolist() == list(range(7))


def test_arrays_that_were_extended_only_in_part_are_mended(tmp_path):
    with RunFolder(tmp_path / "run", SIGNATURE) as run:
        run.append(part(0, 3))
    group = zarr.open_group(tmp_path / "run" / "results.zarr", mode="r+")
    group["entropy"].resize((9, 3))  # the other arrays were not reached
    with RunFolder(tmp_path / "run", SIGNATURE) as run:
        run.append(part(3, 1))
        assert run.results().entropy.values[:, 0].tolist() == [0, 1, 2, 3]


def test_a_run_that_died_before_its_first_mark_starts_anew(tmp_path):
    with RunFolder(tmp_path / "run", SIGNATURE) as run:
        part(0, 3).to_zarr(run.path / "results.zarr", mode="w", consolidated=False)
    with RunFolder(tmp_path / "run", SIGNATURE) as run:
        assert run.texts == 0
        run.append(part(0, 2))
        assert run.results().sizes["text"] == 2


def test_another_signature_is_refused_and_nothing_is_touched(tmp_path):
    with RunFolder(tmp_path / "run", SIGNATURE) as run:
        run.append(part(0, 3))
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    other = {**SIGNATURE, "settings": {"band": 5}}
    with (
        pytest.raises(AttnscopeError, match=r"holds another run: its settings\.band is 10, not 5"),
        RunFolder(tmp_path / "run", other),
    ):
        pass
    after = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert before == after


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with (
        pytest.raises(AttnscopeError, match=r"holds other files \(thesis\.tex\)"),
        RunFolder(tmp_path, SIGNATURE),
    ):
        pass
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(AttnscopeError, match="cannot use"), RunFolder(tmp_path / "run", SIGNATURE):
        pass


def test_two_runs_do_not_share_a_folder(tmp_path):
    with (
        RunFolder(tmp_path / "run", SIGNATURE),
        pytest.raises(AttnscopeError, match="another run is writing"),
    ):
        RunFolder(tmp_path / "run", SIGNATURE).__enter__()


def test_a_torn_signature_is_said(tmp_path):
    (tmp_path / "run.json").write_text('{"model"')
    with pytest.raises(AttnscopeError, match="not readable as JSON"), RunFolder(tmp_path, SIGNATURE):
        pass


def test_what_is_computed_from_results_is_whole_or_absent(tmp_path, monkeypatch):
    with RunFolder(tmp_path / "run", SIGNATURE) as run:
        run.save("summary.zarr", part(0, 2))

        def fail(*_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(xr.Dataset, "to_zarr", fail)
        with pytest.raises(AttnscopeError, match="no space left on device"):
            run.save("summary.zarr", part(0, 9))
        monkeypatch.undo()
        assert run.load("summary.zarr").sizes["text"] == 2


def test_the_hash_follows_the_signature():
    assert short_hash(SIGNATURE) == short_hash(json.loads(json.dumps(SIGNATURE)))
    assert short_hash(SIGNATURE) != short_hash({**SIGNATURE, "settings": {"band": 5}})
