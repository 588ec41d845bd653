"""CONTRIBUTING.md names every package, in the order of the imports, and nothing that is not there."""

import re
from pathlib import Path

import attnscope
from tests.test_packages import FLOORS

ROOT = Path(__file__).parents[1]
SOURCE = Path(attnscope.__file__).parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAP = TEXT.partition("from the top down:")[2].partition("Where a new one goes:")[0]
NAMED = re.findall(r"`([\w/]+)/`", MAP)


def test_the_map_names_every_package_once():
    packages = [path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("__init__.py")]
    drawn = [name for name in packages if name != "."]
    assert sorted(NAMED) == sorted(drawn)


def test_the_map_goes_from_the_top_down():
    floors = [FLOORS[name] for name in NAMED if "/" not in name]
    assert floors == sorted(floors)


def test_ci_runs_the_commands_of_the_readme_and_contributing_the_last():
    found = re.findall(r"^pip install .*", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(found) == 3
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8").replace("pip install -q", "pip install")
    assert all(command in ci for command in found)
    assert found[-1].replace("'.[dev]'", "'.[dev,docs]'") in TEXT


def test_every_path_is_there():
    paths = [name for name in re.findall(r"`([\w./*-]+)`", TEXT) if "/" in name]
    brought = {"wikitext-2/", "rxnmapper-albert/", "stories260K-llama/"}  # whoever has them
    absent = {name for name in paths if name not in brought and not any([*ROOT.glob(name), *SOURCE.glob(name)])}
    assert not absent
