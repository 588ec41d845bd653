"""`attnscope merge` says what it made and what is missing."""

from tests.cli.command import attnscope
from tests.results.planted import part_of


def test_the_command_says_what_it_made_and_draws_the_page(refused, tmp_path):
    part_of(tmp_path / "run", 1, 2)
    refused("merge", "run", says="2 of 4 units are missing (2, 4): give the command of --task 2/2 again")
    part_of(tmp_path / "run", 2, 2)
    refused("merge", "nothing", says="nothing.tasks holds no parts of a run")
    found = attnscope("merge", "run", "--figures", "none", cwd=tmp_path)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.splitlines() == ["run: 14 texts of 2 tasks", "report:  run/report.html"]
    assert (tmp_path / "run" / "report.html").is_file()
    assert attnscope("merge", "run", cwd=tmp_path).stdout.startswith("run: 14 texts, whole before\n")
