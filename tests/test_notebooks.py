"""Notebooks of the documentation are stored without outputs: `sphinx-build` runs them, and stops at an error."""

import json
import re
from pathlib import Path


def test_a_notebook_is_stored_without_outputs():
    notebooks = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))
    assert len(notebooks) > 1
    for path in notebooks:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert not any(cell.get("outputs") for cell in cells), path.name


def test_a_notebook_opens_in_colab_and_installs_the_release_of_what_it_imports():
    for path in sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        title, install, *code = ["".join(cell["source"]) for cell in cells]
        assert (
            f"(https://colab.research.google.com/github/attnscope/attnscope/blob/main/docs/notebooks/{path.name})"
            in title
        )
        imported = {name.replace("_", "-") for name in re.findall(r"(?:import|from) (attnscope_\w+)", "\n".join(code))}
        (installed,) = re.findall(r"%pip install -q (.*)", install)
        assert {*installed.split()} == {"attnscope", *imported}, path.name
