"""A machine without memory, or with a package that does not fit, ends in a line or two."""

import importlib
import os
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

import attnscope
from attnscope.cli import main, output
from attnscope.store.run import _flush_seconds
from attnscope.support.errors import AttnscopeError, out_of_memory
from tests.command_processes import Started

# --- when memory runs out, a line says so, and what to do ---


def limit_memory(least):
    """Let the address space grow once all is loaded and has run: enough for a small batch, not for a large one."""
    output._LEAST_MEMORY = least
    attnscope.scan(texts=["The tide comes in twice a day."])
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**27, used + 2**27))


def limited(*words, least, cwd):
    process = Started(*words, cwd=cwd, prepare=partial(limit_memory, least))
    _, said = process.communicate()
    return process.returncode, said


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is set as Linux does")
def test_a_scan_that_runs_out_of_memory_says_so_in_a_line(tmp_path):
    (tmp_path / "text.txt").write_text("The tide comes in twice a day, and twice a day it goes out again.\n" * 2_500)
    words = ("scan", "bundled", "text.txt", "--no-report", "--limit", "400", "--device", "cpu")
    code, said = limited(*words, "--batch-size", "400", least=1, cwd=tmp_path)
    assert code == 2, said
    assert said.splitlines()[-1].startswith("attnscope: memory ran out")
    assert "--batch-size" in said
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is set as Linux does")
def test_too_little_for_libraries_that_cannot_tell_is_reported_before(tmp_path):
    """Where less is left, Rust libraries abort the process and OpenBLAS waits for ever."""
    code, said = limited("scan", least=768 << 20, cwd=tmp_path)
    assert code == 2, said
    assert said.startswith("attnscope: memory ran out: less than 768 MiB can be had")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of ..."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("std::bad_alloc"),
        MemoryError(),
        RuntimeError("can't start new thread"),
        RuntimeError("could not create a primitive"),  # oneDNN
        OSError(12, "Cannot allocate memory"),
        OSError("libllvmlite.so: failed to map segment from shared object"),
    ],
)
def test_every_command_says_so(error, tmp_path, monkeypatch, refused):
    def fail(*_, **__):
        raise error

    assert isinstance(out_of_memory(error), AttnscopeError)
    monkeypatch.setattr("attnscope.cli.app", fail)
    refused("scan", says="attnscope: memory ran out")


def test_another_error_stays_what_it_is(monkeypatch):
    def fail(**_):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr("attnscope.cli.app", fail)
    with pytest.raises(RuntimeError, match="mat1"):
        main()


# --- a package that is installed and does not fit ends in two lines, not in a traceback ---


def install_broken(package, reason, place):
    """A package that cannot be imported, below a folder."""
    for folder in (package, f"{package}-99.0.dist-info"):
        (place / folder).mkdir(parents=True)
    (place / package / "__init__.py").write_text(f"raise RuntimeError({reason!r})\n")
    (place / f"{package}-99.0.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {package}\nVersion: 99.0\n"
    )


def test_a_torchvision_that_cannot_be_imported_is_named(tmp_path):
    install_broken("torchvision", "operator torchvision::nms does not exist", tmp_path / "stub")
    (tmp_path / "text.txt").write_text("The tide is out.")
    paths = [str(tmp_path / "stub"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(  # packages are imported anew
        [sys.executable, "-m", "attnscope", "scan", "bundled", "text.txt", "--no-report", "--statistics", "entropy"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.endswith(
        "attnscope: torchvision is installed and cannot be imported: operator torchvision::nms does not exist.\n"
        "Install the torchvision that is made for the PyTorch here, or remove it: pip uninstall torchvision\n"
    )


def test_a_package_that_cannot_be_imported_is_named(tmp_path, monkeypatch, refused):
    install_broken("unfit", "made for another PyTorch", tmp_path / "stub")
    monkeypatch.syspath_prepend(tmp_path / "stub")
    monkeypatch.setattr("attnscope.cli.app", lambda **_: importlib.import_module("unfit"))
    refused(
        "scan",
        says="attnscope: unfit is installed and cannot be imported: made for another PyTorch.\nInstall the unfit",
    )


def test_a_variable_of_the_environment_that_a_package_rejects_is_not_called_a_misfit(tmp_path, monkeypatch, refused):
    (tmp_path / "strict.py").write_text("float('nonsense')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("attnscope.cli.app", lambda **_: importlib.import_module("strict"))
    refused("scan", says="\nCheck the settings of strict: its files and the variables of the environment")


def test_a_wrong_number_of_seconds_is_named(monkeypatch):
    for text in ("x", "nan", "-1"):
        monkeypatch.setenv("ATTNSCOPE_FLUSH_SECONDS", text)
        with pytest.raises(AttnscopeError, match=f"ATTNSCOPE_FLUSH_SECONDS is '{text}'; expected a number of seconds"):
            _flush_seconds()


def test_commands_need_no_docstrings():
    words = [sys.executable, "-OO", "-B", "-m", "attnscope", "scan", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--window" in done.stdout
