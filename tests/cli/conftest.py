"""What the tests of the commands share."""

from contextlib import nullcontext

import pytest

from tests.cli.command import attnscope
from tests.sketched import sketched


@pytest.fixture(scope="module", autouse=True)
def figures_are_sketched(request):
    """Pages and files of figures hold what is in the figures, though they are drawn in `test_scan_command` alone.

    Drawing takes most of the time of a command; the figures of each are drawn in `tests/figures`.
    """
    with nullcontext() if request.module.__name__.endswith("test_scan_command") else sketched():
        yield


@pytest.fixture
def refused(tmp_path):
    """Exit code 2, one or two lines on standard error, nothing on standard output."""

    def run(*arguments, says, stdin=""):
        found = attnscope(*arguments, cwd=tmp_path, stdin=stdin)
        assert found.returncode == 2, found.stderr
        assert says in found.stderr
        assert len(found.stderr.strip().splitlines()) <= 2, found.stderr
        assert not found.stdout

    return run
