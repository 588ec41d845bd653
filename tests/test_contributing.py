"""CONTRIBUTING.md names every package, in the order of the imports, and nothing that is not there."""

import re
import tomllib
from pathlib import Path

import yaml

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


def test_workflows_run_scripts_and_commands_that_run_here():
    """A workflow that only a server can run is read by nobody before a release."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    ran = {
        command
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
        for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
        for step in job["steps"]
        if (command := step.get("run"))
    }
    scripts = {command for command in ran if command.startswith("bash ") and (ROOT / command.split()[1]).is_file()}
    installs = {command for command in ran if command.replace(" && pytest -m quick", " && pytest") in readme}
    assert len(scripts) >= 3
    assert len(installs) == 2
    (version,) = ran - scripts - installs
    assert "GITHUB_REF_NAME" in version


def test_the_recipe_has_the_dependencies_of_the_package():
    names = {"lazy_loader": "lazy-loader", "matplotlib": "matplotlib-base", "torch": "pytorch"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    needed = {
        f"{names.get(name, name)} {floor}"
        for name, floor in (re.match(r"([\w-]+)(>=.*)", one).groups() for one in project["dependencies"])
    }
    assert {one for one in recipe["requirements"]["run"] if not one.startswith("python ")} == needed
    assert recipe["context"]["version"] == project["version"] == attnscope.__version__
    assert recipe["about"]["summary"] == project["description"]


def test_pypi_shows_no_relative_link():
    """Links and pictures of README.md go to the repository, by the rules of pyproject.toml."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    rules = settings["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]
    text = readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for rule in rules:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert len(links) == len(re.findall(r"\]\(", readme)) > 20
    assert all(link.startswith("https://") for link in links)
    assert "raw.githubusercontent.com" in text
    home = settings["project"]["urls"]["Homepage"]
    badges = ("https://img.shields.io/", "https://pypi.org/", "https://colab.research.google.com/")
    assert all(
        link.removeprefix("https://raw.githubusercontent.com/attnscope/attnscope").startswith(("/main/", home, *badges))
        for link in links
    )
