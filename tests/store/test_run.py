"""A run folder survives whatever stops a run, and tells of whatever damages it."""

import logging
import os
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr

from attnscope import AttnscopeError, explain, intervene
from attnscope.store.files import are_in
from attnscope.store.folder import OwnedFolder
from attnscope.store.runs import RunFolder
from tests.packages.lineage.translation.small_translators import small_tokenizer
from tests.tiny_models import tiny

SIGNATURE = {"command": "scan", "model": {"name": "m", "sha256": "0"}, "settings": {"band": 10}}


def part(start, size):
    return xr.Dataset(
        {"entropy": (("window", "head"), np.arange(start, start + size)[:, None] * np.ones(3))},
        coords={
            "window": np.arange(start, start + size),
            "source": ("window", np.array([f"テキスト {i}" for i in range(start, start + size)], dtype=object)),
        },
    )


def opened(tmp_path, **options):
    return RunFolder(tmp_path / "run", SIGNATURE, **options)


def measured(run):
    return run.results().entropy.values[:, 0].tolist()


@pytest.fixture
def finished(tmp_path):
    """Pieces of 3 and 2 texts, and a summary."""
    with opened(tmp_path) as run:
        run.append(part(0, 3), 0)
        run.append(part(3, 2), 3)
        run.save("summary", part(0, 1))
        run.finish()
    return tmp_path / "run"


def flip(path, at=-40):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_only_what_is_missing_is_to_be_done(tmp_path):
    with opened(tmp_path) as run:
        run.append(part(4, 4), 4)
        assert [are_in(run.pieces, range(first, first + 2)) for first in range(0, 10, 2)] == [
            False,
            False,
            True,
            True,
            False,
        ]
        run.append(part(0, 4), 0)
        assert run.texts == 8
        assert measured(run) == list(range(8))


@pytest.mark.parametrize("calls", range(1, 80))
def test_stopped_at_any_moment_it_resumes(tmp_path, monkeypatch, calls):
    """A process that dies at the n-th call by which something reaches the disk, whichever that is."""
    left = iter(range(calls - 1, -1, -1))

    class Dead(BaseException):
        pass

    def dying(call):
        def instead(*arguments, **options):
            if next(left, 0) == 0:
                raise Dead
            return call(*arguments, **options)

        return instead

    with monkeypatch.context() as patched:
        for name in ("fsync", "mkdir", "open", "replace", "rename", "unlink", "rmdir"):
            patched.setattr(os, name, dying(getattr(os, name)))
        try:
            with opened(tmp_path) as run:
                run.append(part(0, 3), 0)
                run.append(part(3, 2), 3)
                run.save("summary", part(0, 1))
                run.finish()
        except Dead:
            pass
    with opened(tmp_path) as run:
        for first, size in ((0, 3), (3, 2)):
            if not are_in(run.pieces, range(first, first + size)):
                run.append(part(first, size), first)
        run.finish()
        assert measured(run) == [0, 1, 2, 3, 4]
        assert not run.damaged()


def test_another_signature_is_rejected_and_nothing_is_touched(finished, tmp_path):
    before = contents(finished)
    other = {**SIGNATURE, "settings": {"band": 5}}
    with (
        pytest.raises(AttnscopeError, match=r"holds another run: its settings\.band is 10, not 5"),
        RunFolder(finished, other),
    ):
        pass
    assert contents(finished) == before


@pytest.mark.parametrize("name", ["thesis.tex", ".x.partial", ".lock", "run.json", "manifest.json"])
def test_a_folder_with_other_files_is_rejected(tmp_path, name):
    place = tmp_path / "run"
    place.mkdir()
    (place / name).write_text('{"years": "of work"}')
    with pytest.raises(AttnscopeError, match=rf"holds other files \({name}\)"), opened(tmp_path):
        pass
    assert contents(place) == {place / name: b'{"years": "of work"}'}


def test_files_that_others_put_there_stay(finished, tmp_path):
    for name in ("notes.txt", "pieces/notes.txt", ".x.partial", "figures/mine.svg"):
        (finished / name).parent.mkdir(exist_ok=True)
        (finished / name).write_text("mine")
    with opened(tmp_path) as run, run.replacing("figures/", "pieces/") as new:
        (new / "figures").mkdir()
        (new / "figures" / "ours.svg").write_text("ours")
    with (
        pytest.raises(AttnscopeError, match=r"mine\.svg is there already, and attnscope scan did not write it"),
        opened(tmp_path) as run,
    ):
        run.write({"figures/mine.svg": b"ours"})
    for name in ("notes.txt", "pieces/notes.txt", ".x.partial", "figures/mine.svg"):
        assert (finished / name).read_text() == "mine"
    assert {path.name for path in (finished / "pieces").iterdir()} == {"notes.txt"}


def test_what_another_writes_meanwhile_is_not_taken_for_damage(tmp_path, monkeypatch):
    place, seen = OwnedFolder._place, []

    def placed(folder, path, name):
        seen.append((before.damaged(), None))  # no longer as it was, not yet as it will be
        place(folder, path, name)
        seen.append((before.damaged(), (tmp_path / name).read_bytes()))

    with OwnedFolder(tmp_path, "align") as folder:
        folder.write({"links": b"few", "record": b"1"})
        before, reader = OwnedFolder(tmp_path, "align").look(), OwnedFolder(tmp_path, "align").look()
        monkeypatch.setattr(OwnedFolder, "_place", placed)
        folder.write({"links": b"many more"})
        assert seen == [([], None), ([], b"many more")]
        assert reader.damaged() == []
        assert OwnedFolder(tmp_path, "align").look().read("links") == b"many more"
        late = OwnedFolder(tmp_path, "align").look()
        folder.write({"links": b"most"})
        assert late.read("links") == b"most"
        flip(tmp_path / "links", at=0)
        assert late.damaged() == reader.damaged() == folder.damaged() == ["links"]
        with pytest.raises(AttnscopeError, match="not what was written"):
            late.read("links")


@pytest.mark.parametrize("place", [".attnscope", ".attnscope/lock"])
def test_no_link_is_followed(tmp_path, place):
    precious = tmp_path / "precious"
    (precious / "lock").parent.mkdir()
    (precious / "lock").write_text("mine")
    link = tmp_path / "run" / place
    link.parent.mkdir(parents=True)
    link.symlink_to(precious / "lock" if place.endswith("lock") else precious)
    with pytest.raises(AttnscopeError), opened(tmp_path):
        pass
    assert (precious / "lock").read_text() == "mine"


class TestDamage:
    def test_of_a_finished_run_is_reported(self, finished, tmp_path):
        (piece, _) = sorted((finished / "pieces").iterdir())
        flip(piece)
        before = contents(finished)
        with (
            pytest.raises(AttnscopeError, match=rf"{piece.name} is not what was written.* 3 windows are lost"),
            opened(tmp_path),
        ):
            pass
        assert contents(finished) == before

    def test_is_recomputed_on_request(self, finished, tmp_path, caplog):
        min((finished / "pieces").iterdir()).unlink()
        with caplog.at_level(logging.WARNING), opened(tmp_path, repair=True) as run:
            assert not run.complete
            assert [are_in(run.pieces, range(3)), are_in(run.pieces, range(3, 5))] == [False, True]
            run.append(part(0, 3), 0)
            assert measured(run) == [0, 1, 2, 3, 4]
        assert "000000000-000000002.npz is damaged and will be recomputed" in caplog.text

    def test_of_an_unfinished_run_is_measured_again(self, tmp_path):
        with opened(tmp_path) as run:
            run.append(part(0, 3), 0)
            run.append(part(3, 2), 3)
        flip(sorted((run.path / "pieces").iterdir())[1], at=0)
        with opened(tmp_path) as run:
            assert run.texts == 3
            run.append(part(3, 2), 3)
            assert measured(run) == [0, 1, 2, 3, 4]

    def test_of_a_view_costs_nothing(self, finished, tmp_path):
        with opened(tmp_path) as run, run.replacing("report.html", views="v") as new:
            (new / "report.html").write_text("page")
        flip(finished / "report.html", at=0)
        with opened(tmp_path) as run:
            assert run.complete
            assert "report.html" not in run.files
            assert "views" not in run.state

    def test_while_it_is_read_is_reported(self, finished, tmp_path):
        with opened(tmp_path) as run:
            flip(finished / "summary.npz")
            with pytest.raises(AttnscopeError, match=r"summary\.npz is not what was written"):
                run.load("summary")

    @pytest.mark.parametrize("seed", range(16))
    def test_at_random_is_found_or_changes_nothing(self, finished, tmp_path, seed):
        draw = np.random.default_rng(seed)
        files = [path for path in finished.rglob("*") if path.is_file() and path.name != "lock"]
        victim = files[draw.integers(len(files))]
        content = bytearray(victim.read_bytes())
        match draw.integers(4):
            case 0:
                content[draw.integers(len(content))] ^= 1 << draw.integers(8)
            case 1:
                del content[draw.integers(len(content)) :]
            case 2:
                content[:] = bytes(len(content))
            case _:
                victim.unlink()
        if victim.exists():
            victim.write_bytes(content)
        said = ""
        try:
            with opened(tmp_path) as run:
                assert measured(run) == [0, 1, 2, 3, 4]
                assert run.load("summary").sizes["window"] == 1
        except AttnscopeError as error:
            said = str(error)
        assert not said or (str(finished) in said and len(said.splitlines()) <= 2)


def test_a_finished_run_opens_where_nothing_can_be_written(finished, tmp_path):
    """As another user than root, for whom permissions count."""
    code = f"""
import os
from pathlib import Path
from attnscope.store.runs import RunFolder
for user in (0, 65534):
    os.seteuid(user)
    with RunFolder(Path({str(finished)!r}), {SIGNATURE!r}) as run:
        print(run.results().sizes["window"], user and run.is_writable())
"""
    if os.getuid():
        pytest.skip("only root can become another user")
    for path in (*tmp_path.parents, tmp_path, finished):
        if path.is_relative_to("/tmp/pytest-of-root") or path == finished:  # noqa: S108
            path.chmod(0o755)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.stdout.split() == ["5", "0", "5", "False"], found.stderr


def test_what_was_rejected_before_anything_was_measured_leaves_nothing(tmp_path):
    """Else it would be listed as unfinished, and the same command would be refused again and again."""
    there = tmp_path / "there"
    there.mkdir()
    for folder in (tmp_path / "new" / "run", there):
        with pytest.raises(AttnscopeError, match="too few"), RunFolder(folder, {"command": "scan"}):
            raise AttnscopeError("too few texts")
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["there"]


@pytest.mark.parametrize("task", [None, "1/2"])
def test_a_command_that_rejects_the_model_leaves_nothing(tmp_path, task):
    texts = ["a hat and a bat are on the mat but the cat sat on the hat of a man who ran. " * 4]
    settings = {"tokenizer": small_tokenizer(), "window": 24, "limit": 2, "task": task}
    for verb in (explain, intervene):
        with pytest.raises(AttnscopeError, match="cannot be captured"):
            verb(tiny("bloom"), texts, out=tmp_path / "new" / "run", **settings)
    assert not list(tmp_path.iterdir())


def test_a_folder_of_another_command_is_rejected(finished):
    with (
        pytest.raises(AttnscopeError, match="belongs to attnscope scan, not to attnscope explain"),
        RunFolder(finished, {**SIGNATURE, "command": "explain"}),
    ):
        pass
