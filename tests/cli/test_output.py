"""What a command prints: nothing that acts on a terminal, nothing lost in silence, and soon."""

import os
import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from attnscope.cli import output
from attnscope.cli.output import emit, new_console, progress_bar
from attnscope.support.progress import Progress
from tests.cli.command import attnscope
from tests.command_processes import Started

COMMAND = [sys.executable, "-m", "attnscope"]
ESCAPES = "\x1b]52;c;cm0=\x07\x1b[2J\x9b31m\r\x08\u202etxt\u2066\x7f"


def acting(text):
    """Characters that do something to a terminal, but for line ends and tabs."""
    return [c for c in text if (ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0 or c in "\u202e\u2066"]


def test_nothing_acts_on_the_terminal(capsys):
    table = Table(title=Text(ESCAPES))
    table.add_column(Text(ESCAPES))
    table.add_row(Text(ESCAPES))
    new_console().print(table, ESCAPES, markup=False)
    with new_console().status(ESCAPES):
        pass
    shown = capsys.readouterr().out
    assert "␛" in shown
    assert not acting(shown)


def test_data_are_changed_for_a_terminal_alone(capsys, monkeypatch):
    emit("a\x1b[2J\n")
    assert capsys.readouterr().out == "a\x1b[2J\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    emit("a\x1b[2J\n")
    assert capsys.readouterr().out == "a␛[2J\n"


@pytest.mark.parametrize(
    "words",
    [
        ("scan", "./\x1b]52;c;cm0=\x07"),
        ("train", "\x1b[2J.yaml"),
        ("walk", "bundled", "A cat \x1b]52;c;cm0=\x07 sat.", "--query-token", "\x1b]52;c;cm0=\x07"),
    ],
    ids=lambda words: words[0],
)
def test_names_do_nothing_to_the_terminal(words, tmp_path):

    found = attnscope(*words, cwd=tmp_path)
    assert not acting(found.stderr + found.stdout)


def run(*words, **options):
    return subprocess.run([*COMMAND, *words], capture_output="stdout" not in options, text=True, check=False, **options)


def test_a_full_standard_output_is_reported():
    with Path("/dev/full").open("w") as full:
        found = run("scan", "--statistics", "list", stdout=full, stderr=subprocess.PIPE)
    assert found.returncode == 2
    assert found.stderr.startswith("attnscope: standard output cannot be written: no space left on device")
    assert len(found.stderr.splitlines()) == 1


def test_a_closed_standard_output_is_reported():
    found = run("scan", "--statistics", "list", preexec_fn=lambda: os.close(1), stdout=None, stderr=subprocess.PIPE)
    assert found.returncode == 2
    assert found.stderr.startswith("attnscope: standard output cannot be written: it is closed")


def test_a_reader_that_leaves_is_no_error():
    command = f"{sys.executable} -m attnscope scan --statistics list | head -1; echo ${{PIPESTATUS[0]}}"
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert found.stdout.splitlines()[-1] == "0"
    assert not found.stderr


def test_help_waits_for_neither_pytorch_nor_transformers(tmp_path):
    code = (
        "import sys; sys.argv = ['attnscope', '--help']\n"
        "from attnscope.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: print(sorted({'torch', 'transformers', 'xarray', 'matplotlib'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_ctrl_c_while_everything_is_still_imported(tmp_path):
    interruptible = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code = interruptible + "print('up', flush=True); from attnscope.__main__ import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "scan", "--no-report", "--stride", "1"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "up\n"
    try:
        process.wait(0.6)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "attnscope: stopped\n")


def as_a_command(*words):
    from attnscope.__main__ import main

    _and_tell(main, words)


def as_a_module(*words):
    _and_tell(lambda: runpy.run_module("attnscope", run_name="__main__"), words)


def _and_tell(run, words):
    sys.argv = ["attnscope", *words]
    try:
        run()
    except SystemExit:
        print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)


@pytest.mark.parametrize("run", [as_a_command, as_a_module], ids=lambda run: run.__name__)
def test_work_is_stopped_in_order_however_the_command_is_called(run, tmp_path):
    """Also as `python -m attnscope`, as torchrun calls it."""
    stopped = Started("scan", "nowhere", cwd=tmp_path, instead=run)
    said, wrong = stopped.communicate()
    assert said == "True\n", wrong


def test_the_bar_is_for_terminals_and_lines_name_each_part_once(capsys):
    for lines in (False, True):
        with progress_bar("compare", lines=lines) as show:
            for name, share in (("train one", 0.1), ("train one", 0.4), ("translate one", 0.9)):
                show(Progress(name, share, {"loss": 2.5}))
        assert capsys.readouterr() == ("", "train one\ntranslate one\n" if lines else "")


def test_without_a_terminal_a_line_a_minute_says_how_far_the_work_has_come(capsys, monkeypatch):
    """Also while one step takes longer than the interval; nothing is written to standard output."""
    monkeypatch.setattr(output, "PROGRESS_SECONDS", 0.05)
    with progress_bar("edges") as show:
        time.sleep(0.2)
        show(Progress("edges", 0.0))
        time.sleep(0.1)
        show(Progress("edges", 0.25, {"passes": "5 of 20"}))
        time.sleep(0.2)
    written, lines = capsys.readouterr()
    lines = lines.splitlines()
    assert written == ""
    assert lines[0] == "edges: at work for 0 s"
    assert re.fullmatch(r"edges passes 5 of 20: 25% done after \d+ s, about \d+ s left", lines[-1])
    assert 4 <= len(lines) <= 10
