"""What a folder says of itself is not trusted: nothing outside of it is touched, and one line says what is wrong."""

import pytest
import xarray as xr

import attnscope
import attnscope_lineage
from attnscope import AttnscopeError
from attnscope.results.merge import merge
from attnscope.store.folder import OwnedFolder
from attnscope.store.runs import RunFolder
from attnscope.store.units import Parts
from attnscope_lineage import train
from tests.cli.command import attnscope as command
from tests.packages.lineage.translation.small_translators import small_tokenizer
from tests.store.forged_folders import forged, forged_again
from tests.tiny_models import tiny

SIGNATURE = {"command": "scan", "model": {"name": "m"}}
TEXTS = ["The tide is out, and the boats lie on the mud of the harbour."]
PAIR = {"clean": "The tide is <mask>.", "corrupted": "The mud is <mask>.", "answer": "the", "wrong": "a"}
VERBS = {
    "scan": lambda out: attnscope.scan(texts=TEXTS, out=out),
    "generate": lambda out: attnscope.generate(
        tiny("gpt2"), ["a hat and a bat"], tokenizer=small_tokenizer(), new_tokens=2, out=out
    ),
    "roles": lambda out: attnscope.roles(texts=TEXTS, out=out),
    "explain": lambda out: attnscope.explain("bundled", TEXTS * 4, window=16, out=out),
    "intervene": lambda out: attnscope.intervene("bundled", TEXTS, out=out),
    "patch": lambda out: attnscope.patch("bundled", pairs=[PAIR], out=out),
    "align": lambda out: attnscope_lineage.align("bundled", ["a"], ["b"], out=out),
    "train": lambda out: train(out=out, task_pairs=100, vocabulary=320, updates=1),
    "merge": merge,
}


@pytest.fixture
def home(tmp_path):
    """Files that are nobody's but the user's, beside the folder of a run."""
    (tmp_path / "home" / "pics").mkdir(parents=True)
    for name in ("thesis.tex", "pics/cat.svg", "pics/report.html"):
        (tmp_path / "home" / name).write_text("mine")
    yield tmp_path / "home"
    left = {path.name: path.read_text() for path in (tmp_path / "home").rglob("*") if path.is_file()}
    assert left == dict.fromkeys(("thesis.tex", "cat.svg", "report.html"), "mine")


def outside(home):
    return [
        "../home/thesis.tex",
        str(home / "thesis.tex"),
        "pieces/../../home/thesis.tex",
        "./../home/thesis.tex",
        "..\\home\\thesis.tex",
        ".attnscope/../../home/thesis.tex",
        "a//../../home/thesis.tex",
    ]


@pytest.mark.parametrize("which", range(7))
@pytest.mark.parametrize("where", ["undefined", "growing", "files"])
def test_a_name_outside_is_rejected(which, where, home, tmp_path):
    name = outside(home)[which]
    run = forged(tmp_path / "run", **{where: {name: [5, "0" * 64]} if where == "files" else [name]})
    with (
        pytest.raises(AttnscopeError, match="is not as this version of attnscope writes it"),
        RunFolder(run, SIGNATURE, repair=True),
    ):
        pass


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_removes_what_is_outside(verb, home, tmp_path):
    run = forged(tmp_path / "run", command=verb.replace("merge", "scan"), undefined=["../home/thesis.tex"])
    forged(tmp_path / "run.tasks" / "1-of-2", undefined=["../../home/thesis.tex"])
    with pytest.raises(AttnscopeError, match="is not as this version of attnscope writes it"):
        VERBS[verb](run)


@pytest.mark.parametrize("where", ["undefined", "growing", "files"])
def test_names_without_a_signature_are_rejected_and_what_lies_there_stays(where, tmp_path):
    entry = {"thesis.tex": [5, "0" * 64]} if where == "files" else ["thesis.tex"]
    run = forged(tmp_path / "run", **{where: entry})
    (run / "thesis.tex").write_text("mine")
    with pytest.raises(AttnscopeError, match="has files but no signature"), RunFolder(run, SIGNATURE):
        pass
    assert (run / "thesis.tex").read_text() == "mine"


def test_nor_do_diff_and_compare(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    attnscope.scan(texts=TEXTS, out="one", statistics="entropy")
    (tmp_path / "none.yaml").write_text("task_pairs: 100\nvocabulary: 320\nupdates: 1\nmodel: recurrent\n")
    for words in (["diff", "one", "one"], ["compare", "none.yaml"]):
        run = forged(tmp_path / "run", command=words[0], undefined=["../home/thesis.tex"])
        told = command(*words, "--no-report", "--out", run, cwd=tmp_path)
        assert told.returncode == 2
        assert "is not as this version of attnscope writes it" in told.stderr


@pytest.mark.parametrize("name", ["report.html", "figures", "pieces", "manifest.json", "run.json", ".attnscope"])
@pytest.mark.parametrize("complete", [True, False])
def test_a_link_in_a_folder_is_rejected(name, complete, home, tmp_path):
    with RunFolder(tmp_path / "run", SIGNATURE) as run:
        run.append(xr.Dataset({"length": ("window", [3])}), 0)
        run.write({"figures/cat.svg": b"ours", "report.html": b"ours"}, complete=complete or None)
    inside = tmp_path / "run" / name
    inside.rename(tmp_path / "moved")
    for target in (tmp_path / "moved", home / "pics"):
        inside.symlink_to(target)
        with pytest.raises(AttnscopeError, match=r"is a link|is not a folder"):  # noqa: SIM117
            with RunFolder(tmp_path / "run", SIGNATURE, repair=True) as run:
                run.write({"report.html": b"ours", "figures/cat.svg": b"ours", "pieces/cat.svg": b"ours"})
        inside.unlink()


def test_the_folder_itself_may_be_reached_by_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    with RunFolder(tmp_path / "run", SIGNATURE) as run:
        run.append(xr.Dataset({"length": ("window", [3])}), 0)
    assert RunFolder(tmp_path / "disk", SIGNATURE).look().texts == 1


def test_a_pipe_in_the_place_of_a_file_is_damage(tmp_path):
    import os

    with OwnedFolder(tmp_path, "scan") as folder:
        folder.write({"note.txt": b""})
        (tmp_path / "note.txt").unlink()
        os.mkfifo(tmp_path / "note.txt")
        assert folder.damaged() == ["note.txt"]
        with pytest.raises(AttnscopeError, match="not what was written"):
            folder.read("note.txt")


def test_nothing_is_removed_before_the_signature_is_compared(tmp_path):
    with RunFolder(tmp_path / "run", SIGNATURE) as run:
        run.append(xr.Dataset({"length": ("window", [3])}), 0)
    (tmp_path / "run" / "half").write_text("written when the process was killed")
    (tmp_path / "run" / ".attnscope" / "half").write_text("as this")
    forged_again(tmp_path / "run", lambda manifest: manifest["undefined"].append("half"))
    with (
        pytest.raises(AttnscopeError, match="another run"),
        RunFolder(tmp_path / "run", SIGNATURE | {"model": {"name": "other"}}),
    ):
        pass
    halves = [tmp_path / "run" / "half", tmp_path / "run" / ".attnscope" / "half"]
    assert all(half.exists() for half in halves)
    with RunFolder(tmp_path / "run", SIGNATURE) as run:
        run.append(xr.Dataset({"length": ("window", [4])}), 1)
    assert not any(half.exists() for half in halves)


def test_parts_are_taken_away_and_nothing_else(tmp_path):
    for task in ("2/2", "1/2"):
        if task == "1/2":
            (tmp_path / "run.tasks" / "notes.txt").write_text("mine")
        attnscope.scan(texts=TEXTS, out=tmp_path / "run", statistics="entropy", task=task)
    assert [path.name for path in (tmp_path / "run.tasks").iterdir()] == ["notes.txt"]


def test_the_part_of_a_task_is_no_link(home, tmp_path):
    attnscope.scan(texts=TEXTS, out=tmp_path / "run", statistics="entropy", task="2/2")
    (tmp_path / "run.tasks" / "2-of-2").rename(tmp_path / "moved")
    (tmp_path / "run.tasks" / "2-of-2").symlink_to(tmp_path / "moved")
    with pytest.raises(AttnscopeError, match="2-of-2 is a link"):
        merge(tmp_path / "run")
    assert (tmp_path / "moved" / "manifest.json").exists()


def test_the_folder_of_the_parts_is_no_link(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Parts, "is_whole", lambda _: False)  # so that both parts stay
        for task in ("1/2", "2/2"):
            attnscope.scan(texts=TEXTS, out=tmp_path / "theirs", statistics="entropy", task=task)
    files = sorted((tmp_path / "theirs.tasks").rglob("*"))
    (tmp_path / "run.tasks").symlink_to(tmp_path / "theirs.tasks")
    for use in (
        lambda: merge(tmp_path / "run"),
        lambda: attnscope.scan(texts=TEXTS, out=tmp_path / "run", statistics="entropy", task="1/2"),
    ):
        with pytest.raises(AttnscopeError, match=r"run\.tasks is a link; expected a folder"):
            use()
        assert sorted((tmp_path / "theirs.tasks").rglob("*")) == files
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("task", ["１/２", "1/２", "¹/2"])
def test_a_task_is_numbered_by_plain_digits(task, tmp_path):
    with pytest.raises(AttnscopeError, match="expected I/N"):
        attnscope.scan(texts=TEXTS, out=tmp_path / "run", task=task)
