"""What the tests of the commands share."""

import pytest

from tests.cli.command import attnscope


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
