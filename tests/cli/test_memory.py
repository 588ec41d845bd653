"""When memory runs out, a line says so, and what to do."""

import subprocess
import sys

import pytest
import torch

from attnscope.cli import main
from attnscope.errors import AttnscopeError, out_of_memory

# The address space may grow by so much once all is loaded and has run: enough for a small batch, not for a large one.
LIMITED = """
import resource, sys
import attnscope
from attnscope.cli import main, output
output._LEAST_MEMORY = int(sys.argv.pop(1))
attnscope.scan(texts=["The tide comes in twice a day."])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))
sys.argv = ["attnscope", *sys.argv[1:]]
main()
"""


def limited(*words, least, cwd):
    return subprocess.run(
        [sys.executable, "-c", LIMITED, str(least), *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is set as Linux does")
def test_a_scan_that_runs_out_of_memory_says_so_in_a_line(tmp_path):
    (tmp_path / "text.txt").write_text(
        "The tide comes in twice a day, and twice a day it goes out again.\n" * 5_000
    )
    words = ("scan", "bundled", "text.txt", "--no-report", "--limit", "800", "--device", "cpu")
    found = limited(*words, "--batch-size", "800", least=1, cwd=tmp_path)
    assert found.returncode == 2, found.stderr
    assert found.stderr.splitlines()[-1].startswith("attnscope: memory ran out")
    assert "--batch-size" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is set as Linux does")
def test_too_little_for_libraries_that_cannot_tell_is_told_before(tmp_path):
    """Where less is left, Rust libraries abort the process and OpenBLAS waits for ever."""
    found = limited("scan", least=768 << 20, cwd=tmp_path)
    assert found.returncode == 2
    assert found.stderr.startswith("attnscope: memory ran out: less than 768 MiB can be had")
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of ..."
        ),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to"
        ),
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


def test_what_an_error_was_raised_from_counts():
    error = OSError("Could not find/load shared object file 'libllvmlite.so'")
    error.__cause__ = OSError("libllvmlite.so: failed to map segment from shared object")
    assert "failed to map segment" in str(out_of_memory(error))


def test_another_error_stays_what_it_is(monkeypatch):
    def fail():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr("attnscope.cli.app", fail)
    with pytest.raises(RuntimeError, match="mat1"):
        main()
