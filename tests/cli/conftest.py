"""What the tests of the commands share."""

import io
import sys

import pytest

from attnscope.cli import main


@pytest.fixture
def refused(tmp_path, monkeypatch, capfd):
    """Exit code 2, one or two lines on standard error, nothing on standard output (within this process)."""

    def run(*arguments, says, stdin=""):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["attnscope", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capfd.readouterr()
        assert stopped.value.code == 2, err
        assert says in err
        assert len(err.strip().splitlines()) <= 2, err
        assert out == ""

    return run
