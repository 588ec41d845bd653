"""`attnscope runs merge` says what it made and what is missing."""

from attnscope.store.folder import OwnedFolder
from tests.cli.command import attnscope
from tests.results.planted import part_of


def test_a_run_of_a_command_that_makes_no_parts_is_refused(refused, tmp_path):
    with OwnedFolder(tmp_path / "model", "train") as folder:
        folder.write({"log.jsonl": b"{}"})
    says = "model is a run of train, which has no parts; expected a run with --task"
    refused("runs", "merge", "model", says=says)


def test_the_command_says_what_it_made_and_draws_the_page(refused, tmp_path):
    part_of(tmp_path / "run", 1, 2)
    refused("runs", "merge", "run", says="2 of 4 units are missing (2, 4): give the command of --task 2/2 again")
    part_of(tmp_path / "run", 2, 2)
    refused("runs", "merge", "nothing", says="nothing.tasks contains no parts of a run")
    found = attnscope("runs", "merge", "run", "--figures", "none", cwd=tmp_path)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.splitlines() == ["run: 14 texts of 2 tasks", "report:  run/report.html"]
    assert (tmp_path / "run" / "report.html").is_file()
    assert attnscope("runs", "merge", "run", cwd=tmp_path).stdout.startswith("run: 14 texts, whole before\n")
