"""A command given again: the same answer, byte for byte, as if everything were loaded; and nothing is loaded."""

import errno
import fcntl
import json
import shutil
import subprocess
import sys
from contextlib import ExitStack

import pytest
from transformers import AutoTokenizer

from attnscope.bundled import MODEL
from attnscope.cli import place as again
from attnscope.cli.place import RepeatedCommand
from attnscope.measure import windows as _scan_texts
from attnscope.store import signature as _signature
from attnscope.store.folder import OwnedFolder, manifest_of
from attnscope.support.errors import AttnscopeError
from tests.cli.command import attnscope
from tests.pictured import save_pictured_model, write_pictured
from tests.pictures import save_vision_model, write_pictures
from tests.sounds import SAID, save_whisper, write_sounds

SCAN = ("scan", "model", "texts", "--limit", "3", "--window", "32")
RUN = ("--out", "run")
HEAVY = ("torch", "transformers", "sklearn", "scipy", "matplotlib", "numba", "tokenizers")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model, texts, and two finished scans of them, one in a folder that was named."""
    place = tmp_path_factory.mktemp("again") / "here"
    shutil.copytree(MODEL, place / "model")
    (place / "texts" / "more").mkdir(parents=True)
    (place / "texts" / "a.txt").write_text("The tide comes in twice a day. " * 9)
    (place / "texts" / "more" / "b.txt").write_text("The boats lie on the mud. " * 9)
    for words in (RUN, ("--no-report",)):
        found = attnscope(*SCAN, *words, cwd=place)
        assert found.returncode == 0, found.stderr
    shutil.copytree(place, place.with_name("made"))
    return place


@pytest.fixture
def here(made):
    """That folder as it was made: answers name it, so that a copy of it is no other's answer."""
    _put_back(made)
    return made


@pytest.fixture
def loads(monkeypatch):
    """Models that were loaded."""
    found, load = [], _scan_texts.load_model

    def watched(source, **options):
        found.append(source)
        return load(source, **options)

    monkeypatch.setattr(_scan_texts, "load_model", watched)
    return found


@pytest.fixture
def same(here, loads, monkeypatch):
    """Give a command on what `change` made of the folder, first as it is and then with everything loaded.

    Both do and say the same; returns what they said, and whether the first loaded the model.
    """

    def compare(*words, change=lambda _: None):
        def answer():
            _put_back(here)
            change(here)
            said = attnscope(*words, cwd=here)
            loaded, loads[:] = bool(loads), []
            return said, loaded, _files(here)

        said, loaded, files = answer()
        with monkeypatch.context() as patch:
            patch.setattr(RepeatedCommand, "found", lambda *_: None)
            ordinary, _, ordinary_files = answer()
        assert (said.returncode, said.stdout, said.stderr) == (
            ordinary.returncode,
            ordinary.stdout,
            ordinary.stderr,
        )
        assert files == ordinary_files
        return said, loaded

    return compare


@pytest.fixture
def is_loaded(here, monkeypatch):
    """Whether a command loads the model; it ends there."""

    def refuse(*_, **__):
        raise AttnscopeError("here a model would be loaded")

    monkeypatch.setattr(_scan_texts, "load_model", refuse)

    def ask(*words, change=lambda _: None):
        change(here)
        return "here a model would be loaded" in attnscope(*words, cwd=here).stderr

    return ask


def _put_back(here):
    shutil.rmtree(here)
    shutil.copytree(here.with_name("made"), here)


def _files(folder):
    """Every file but the manifest, which notes what was asked, and its bytes."""
    return {
        path.relative_to(folder): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "manifest.json"
    }


def _edit(name, old=b"", new=b"", *, end=b""):
    """Change bytes of a file."""

    def change(here):
        path = here / name
        content = path.read_bytes()
        assert old in content
        path.write_bytes(content.replace(old, new, 1) + end)

    return change


def _flip(name):
    """Change the last bit of a file."""

    def change(here):
        path = here / name
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    return change


def _remove(name):
    return lambda here: (here / name).unlink()


@pytest.mark.parametrize(
    "more",
    [
        RUN,
        (*RUN, "--json"),
        (*RUN, "--csv"),
        (*RUN, "--figures", "none"),
        ("--no-report",),
        ("--no-report", "--device", "cpu"),
    ],
)
def test_what_was_measured_is_not_loaded_again(same, more):
    said, loaded = same(*SCAN, *more)
    assert (said.returncode, loaded) == (0, False)
    of_tables = "--json" not in more and "--csv" not in more
    assert (
        "a head's kind is the one that it has in most of them" in " ".join(said.stdout.split())
    ) == of_tables


def test_views_are_drawn_again_without_the_model(same):
    def damage(here):
        _remove("run/figures/labels.svg")(here)
        _edit("run/report.html", end=b" ")(here)

    said, loaded = same(*SCAN, *RUN, change=damage)
    assert (said.returncode, loaded) == (0, False)


@pytest.mark.parametrize(
    "more",
    [
        ("--limit", "2"),
        ("--window", "31"),
        ("--stride", "16"),
        ("--batch-size", "1"),
        ("--seed", "1"),
        ("--band", "4"),
        ("--clusters", "3"),
        ("--dtype", "float64"),
        ("--by-line",),
        ("--statistics", "entropy"),
        ("--tokenizer", "model"),
        ("--repair",),
        ("--revision", "main"),
        ("--report", "--show", "2.1", *RUN),
    ],
)
def test_another_question_is_asked_of_the_model(is_loaded, more):
    assert is_loaded(*SCAN, "--no-report", *more)
    assert not is_loaded(*SCAN, "--no-report")


def test_heads_that_there_are_not_are_told_of(same):
    assert "there is no head 9.9" in same(*SCAN, *RUN, "--show", "9.9")[0].stderr


def _linked(here):
    (here / "model" / "config.json").rename(here / "elsewhere.json")
    (here / "model" / "config.json").symlink_to(here / "elsewhere.json")


@pytest.mark.parametrize(
    "change",
    [
        _edit("texts/a.txt", b"tide", b"tidE"),
        _edit("texts/more/b.txt", end=b"."),
        lambda here: (here / "texts" / "a.txt").rename(here / "texts" / "c.txt"),
        lambda here: (here / "texts" / "c.md").write_text("One more."),
        _edit("model/tokenizer.json", b"1.0", b"1.1"),
        _flip("model/model.safetensors"),
        _edit("model/config.json", end=b"\n"),
        lambda here: (here / "model" / "adapter_config.json").write_text("{}"),
        lambda here: (here / "model" / "model.safetensors").rename(here / "model" / "model.bin"),
        _linked,
    ],
)
def test_files_that_changed_are_read(is_loaded, change):
    assert is_loaded(*SCAN, "--no-report", change=change)


def test_damaged_results_are_refused(same):
    said, _ = same(*SCAN, *RUN, change=_flip("run/pieces/000000000-000000002.npz"))
    assert said.returncode == 2
    assert "3 windows are lost with it. Give the same command with --repair" in said.stderr


def test_a_damaged_manifest_is_told_of(same):
    said, _ = same(*SCAN, *RUN, change=_edit("run/manifest.json", b'"complete": true', b'"complete": null'))
    assert "manifest.json is damaged" in said.stderr


def test_a_text_that_changed_is_measured(same):
    said, loaded = same(*SCAN, *RUN, "--no-report", change=_edit("texts/a.txt", b"tide", b"tidE"))
    assert "holds another run: its corpus.sha256 is" in said.stderr
    assert loaded


def test_other_versions_measure_anew(same, monkeypatch):
    version = _signature.version
    monkeypatch.setattr(_signature, "version", lambda name: "9.9" if name == "numpy" else version(name))
    assert "its versions.numpy is" in same(*SCAN, *RUN)[0].stderr


def test_a_folder_in_use_is_left_alone(same):
    with ExitStack() as held:

        def lock(here):
            file = held.enter_context((here / "run" / ".attnscope" / "lock").open("wb"))
            fcntl.flock(file, fcntl.LOCK_EX)

        assert "another command is writing" in same(*SCAN, *RUN, change=lock)[0].stderr
        said, loaded = same(*SCAN, *RUN, "--no-report", change=lock)
        assert (said.returncode, loaded) == (0, False)


def test_a_run_is_read_where_nothing_can_be_written(same, monkeypatch):
    def refuse(_):
        raise PermissionError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(OwnedFolder, "lock", refuse)
    said, loaded = same(*SCAN, *RUN)
    assert (said.returncode, loaded) == (0, False)
    assert same(*SCAN, *RUN, change=_remove("run/report.html"))[0].returncode == 0


def test_standard_input_is_read_once(here, loads):
    for text in ("The tide comes in. " * 9, "The boats lie on the mud. " * 9):
        found = attnscope("scan", "model", "-", "--no-report", "--csv", cwd=here, stdin=text)
        assert found.returncode == 0, found.stderr
    assert len(loads) == 2


def test_where_a_gpu_may_be_used_the_model_is_loaded(is_loaded, monkeypatch):
    monkeypatch.setattr(again, "_GPU", ("null",))
    assert is_loaded(*SCAN, "--no-report")
    assert not is_loaded(*SCAN, "--no-report", "--device", "cpu")


def test_files_that_change_meanwhile_are_noted_for_no_answer(here, monkeypatch):
    load = _scan_texts.load_model

    def meddle(*given, **options):
        (here / "model" / "card.json").write_text("{}")
        return load(*given, **options)

    monkeypatch.setattr(_scan_texts, "load_model", meddle)
    assert attnscope(*SCAN, "--no-report", "--seed", "5", "--out", "new", cwd=here).returncode == 0
    assert "asked" not in manifest_of(here / "new").state


def test_an_unfinished_run_goes_on(same):
    def unfinish(here):
        with OwnedFolder(here / "run", "scan") as run:
            run.write({}, complete=None)

    said, loaded = same(*SCAN, *RUN, change=unfinish)
    assert (said.returncode, loaded, said.stderr) == (0, True, "")


def test_pytorch_is_not_even_imported(here):
    """In one process, which nothing has been imported into: first the table, then JSON, then CSV."""
    commands = [["attnscope", *SCAN, *RUN, *more] for more in ((), ("--json",), ("--csv",))]
    program = f"""
import sys
from attnscope.cli import main
for sys.argv in {commands}:
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, ended.code
    print("after", [name for name in {HEAVY} if name in sys.modules], flush=True)
"""
    words = [sys.executable, "-c", program]
    found = subprocess.run(words, cwd=here, capture_output=True, text=True, check=True)
    table, as_json, as_csv, end = found.stdout.split("after []")
    assert not end.strip()
    assert "positional" in table
    assert "positional" in json.loads(as_json)["heads"]
    assert "peak_offset" in as_csv.splitlines()[1]


@pytest.fixture(scope="module")
def senses(tmp_path_factory):
    """Models that read images, sounds, texts with images and chats, and what they read."""
    place = tmp_path_factory.mktemp("senses") / "here"
    place.mkdir()
    write_pictures(place / "photos", 2)
    save_vision_model("vit", place / "vit")
    write_sounds(place / "said")
    for number, said in enumerate(SAID):
        (place / "said" / f"{number}.txt").write_text(said)
    save_whisper(place / "whisper")
    write_pictured(place / "pictured")
    save_pictured_model("llava", place / "llava")
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    shutil.copytree(MODEL, place / "chatty")
    tokenizer.save_pretrained(place / "chatty")
    chat = [{"role": "user", "content": "Is the tide out?"}, {"role": "assistant", "content": "It is."}]
    (place / "chats.jsonl").write_text("\n".join(json.dumps({"messages": chat}) for _ in range(2)))
    return place


@pytest.mark.parametrize(
    ("words", "change"),
    [
        (("vit", "photos"), _flip("photos/1.jpg")),
        (("whisper", "said"), _edit("said/1.txt", b"again", b"later")),
        (("llava", "pictured/texts.jsonl"), _flip("pictured/2.png")),
        (("chatty", "chats.jsonl"), _edit("chats.jsonl", b"tide", b"tidE")),
        (("chatty", "chats.jsonl"), _edit("chatty/chat_template.jinja", b"[", b"<")),
    ],
)
def test_images_sounds_and_chats_are_not_read_by_the_model_again(senses, monkeypatch, words, change):
    command = ("scan", *words, "--no-report", "--json")
    first = attnscope(*command, cwd=senses)
    assert first.returncode == 0, first.stderr
    with monkeypatch.context() as patch:
        patch.setattr("attnscope.measure.scan.scan", lambda *_, **__: pytest.fail("the model is asked"))
        assert attnscope(*command, cwd=senses).stdout == first.stdout
    before = {path: path.read_bytes() for path in senses.rglob("*") if path.is_file()}
    asked = []
    module = sys.modules["attnscope.cli.scan"]  # a function of the package has its name
    monkeypatch.setattr(module, "_measured", lambda *given, **_: asked.append(given) or 1 / 0)
    try:
        change(senses)
        with pytest.raises(ZeroDivisionError):
            attnscope(*command, cwd=senses)
    finally:
        for path, content in before.items():
            path.write_bytes(content)
    assert asked


def test_a_template_that_writes_the_date_is_asked_each_day(senses):
    name = senses / "chatty" / "chat_template.jinja"
    template = name.read_text()
    name.write_text(template + "{# strftime_now #}")
    try:
        found = RepeatedCommand.of(
            str(senses / "chatty"),
            [senses / "chats.jsonl"],
            command="scan",
            tokenizer=None,
            device="cpu",
            field=None,
            by_line=False,
        )
    finally:
        name.write_text(template)
    assert found is None


EXPLAIN = ("explain", "model", "texts", "--limit", "3", "--window", "32", "--out", "why")


@pytest.fixture
def explained(here, monkeypatch):
    """A finished explanation, and what is asked of the model from here on."""
    (here / "texts" / "a.txt").write_text("The tide comes in twice a day. " * 40)
    first = attnscope(*EXPLAIN, cwd=here)
    assert first.returncode == 0, first.stderr
    asked = []
    module = sys.modules["attnscope.cli.explain"]  # a function of the package has its name
    monkeypatch.setattr(module, "_analysed", lambda *given, **_: asked.append(given) or 1 / 0)

    def ask(*more):
        try:
            said = attnscope(*EXPLAIN, *more, cwd=here)
        except ZeroDivisionError:
            said = None
        loaded, asked[:] = bool(asked), []
        return said, loaded

    return first, ask


def test_an_explanation_is_not_made_again(explained, here):
    first, ask = explained
    page = (here / "why" / "report.html").read_bytes()
    said, loaded = ask()
    assert (said.stdout, loaded) == (first.stdout, False)
    assert "already finished in why" in said.stderr
    assert (here / "why" / "report.html").read_bytes() == page
    assert ask("--layer", "1", "--no-report")[1] is False
    for more in (
        ("--layer", "9"),
        ("--band", "5"),
        ("--interventions",),
        ("--paper",),
        ("--also", "texts"),
        ("--repair",),
    ):
        assert ask(*more)[1], more
    with OwnedFolder(here / "why", "explain") as run:
        own = run.state["analyses"]
        run.write({}, analyses=own | {"asked": ["paper"]})
    assert ask()[1]  # other analyses were made there since
    with OwnedFolder(here / "why", "explain") as run:
        run.write({}, analyses=own)
    assert not ask()[1]
    (here / "texts" / "a.txt").write_text("The tide goes out twice a day. " * 40)
    assert ask()[1]
