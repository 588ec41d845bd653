"""Commands in processes of their own, each a fork of one that has imported PyTorch already: importing it takes longer
than most commands.
"""

import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from subprocess import TimeoutExpired

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.command_server"])
_READ_AT_IMPORT = {  # which the server has done before it knows what is set
    "ATTNSCOPE_FLUSH_SECONDS": ("attnscope.store.run", "FLUSH_SECONDS")
}


class Started:
    """A command on its way, in a process group of its own; what it prints goes to files.

    `prepare` is called first, in the new process; `instead`, with the arguments as words, in place of the command.
    """

    def __init__(self, *arguments, cwd=".", prepare=None, instead=None, **environment):
        self._place = Path(tempfile.mkdtemp())
        self._files = [self._place / name for name in ("out", "err")]
        words = [*map(str, arguments)]
        self._process = _SERVER.Process(
            target=_run, args=(words, str(cwd), [*map(str, self._files)], environment, prepare, instead), daemon=True
        )
        self._process.start()

    @property
    def returncode(self):
        """As of `subprocess.Popen`."""
        return self._process.exitcode

    def poll(self):
        """Its exit code; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number):
        """Send a signal to it; where it has ended since it was asked, there is nobody to send it to."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def communicate(self, timeout=300):
        """Wait for its end: what it printed to standard output and standard error."""
        self._process.join(timeout)
        if self.poll() is None:
            self._process.kill()
            raise TimeoutExpired(str(self._process), timeout)
        printed = self.printed()
        shutil.rmtree(self._place)
        return printed

    def printed(self):
        """What it has printed so far to standard output and standard error."""
        return tuple(file.read_text(encoding="utf-8") if file.exists() else "" for file in self._files)


def _run(words, cwd, files, environment, prepare, instead):
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
    os.chdir(cwd)
    os.environ.update(environment)
    for variable in _READ_AT_IMPORT.keys() & environment.keys():
        module, name = _READ_AT_IMPORT[variable]
        setattr(import_module(module), name, float(environment[variable]))
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    sys.argv = ["attnscope", *words]
    if prepare is not None:
        prepare()
    if instead is not None:
        instead(*words)
        return
    from attnscope.cli import main

    main()


def in_two_processes(function, *words, cwd):
    """What a function printed in each of two processes that know of each other, as `torchrun` starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    started = [Started(*words, cwd=cwd, instead=function, RANK=rank, LOCAL_RANK=rank, **place) for rank in ("0", "1")]
    printed = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0, 0], printed
    return [out for out, _ in printed]


def wait_until(condition, process, seconds=120):
    """Wait for something that a process does, while it runs."""
    until = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.01)
