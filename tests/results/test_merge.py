"""Parts of a run put together without its model: by hand-made parts, whose arrays are known."""

import shutil

import pytest
import xarray as xr

from attnscope import AttnscopeError, open_run
from attnscope.results.merge import merge
from attnscope.store.runs import RunFolder, is_finished
from attnscope.store.units import Task, parts_of
from tests.results.planted_runs import UNITS, WHOLE, part_of, profiles


@pytest.fixture
def run(tmp_path):
    part_of(tmp_path / "run", 1, 2)
    part_of(tmp_path / "run", 2, 2)
    return tmp_path / "run"


def test_what_the_last_task_did_not_put_together_is_put_together_once(run):
    merged = merge(run)
    assert (merged.command, merged.texts, merged.tasks, merged.complete) == ("scan", 14, 2, True)
    found = open_run(run)
    expected = xr.concat([profiles(unit) for unit in UNITS], "window", data_vars="minimal")
    xr.testing.assert_equal(found.band_sum, expected.band_sum)
    assert found.attrs["padding"] == "One at a time."
    assert found.sizes["cluster"] == 2
    assert not parts_of(run).exists()
    again = merge(run)
    assert (again.texts, again.tasks, again.complete) == (14, 0, True)
    assert open_run(run).identical(found)


def test_parts_copied_into_one_folder(tmp_path):
    for number in (1, 2):
        part_of(tmp_path / f"machine {number}" / "run", number, 2)
        parts = parts_of(tmp_path / f"machine {number}" / "run")
        shutil.copytree(parts, parts_of(tmp_path / "run"), dirs_exist_ok=True)
    assert merge(tmp_path / "run").texts == 14


def test_one_that_was_stopped_while_it_put_them_together_is_ended(run):
    with RunFolder(run, WHOLE) as half:
        half.append(profiles(UNITS[0]), 0)
    assert merge(run).texts == 14
    assert [*RunFolder(run, WHOLE).look().files].count("pieces/000000000-000000003.npz") == 1


@pytest.mark.parametrize(
    ("left", "said"),
    [
        ([(1, 3, None), (2, 3, 2)], r"1 of 4 units is missing .3.: give the command of --task 3/3 again"),
        ([(1, 2, None)], r"2 of 4 units are missing .2, 4.: give the command of --task 2/2 again, or wait for it"),
        ([(2, 4, None), (4, 4, 3)], r"3 of 4 units are missing .1, 3, 4.: .* --task 1/4, --task 3/4, --task 4/4"),
        ([(1, 2, 3), (2, 2, 3)], r"none of its tasks .1-of-2, 2-of-2. has come to its end"),
    ],
)
def test_what_is_missing_is_reported_by_units(left, said, tmp_path):
    for number, count, until in left:
        part_of(tmp_path / "run", number, count, until=until)
    with pytest.raises(AttnscopeError, match=said):
        merge(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_parts_of_tasks_that_run_are_left_to_them(run):
    with RunFolder(Task(2, 3).folder(run), WHOLE) as running:
        running.lock()
        assert merge(run).complete
        assert is_finished(run)
        assert parts_of(run).exists()
        with pytest.raises(AttnscopeError, match="another command is writing to"):
            RunFolder(running.path, WHOLE).lock()
    merge(run)
    assert not parts_of(run).exists()


def test_two_do_not_put_together_at_once(run):
    with RunFolder(run, WHOLE) as other:
        other.lock()
        with pytest.raises(AttnscopeError, match=r"another process is merging .*run"):
            merge(run)


def test_parts_of_another_run_than_the_one_there_stay(run):
    other = WHOLE | {"settings": WHOLE["settings"] | {"clusters": 3}}
    with RunFolder(run, other) as there:
        there.append(profiles(UNITS[0]), 0)
        there.finish()
    with pytest.raises(AttnscopeError, match=r"holds another run: its settings\.clusters"):
        merge(run)
    assert parts_of(run).exists()
