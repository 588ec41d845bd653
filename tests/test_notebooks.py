"""Notebooks of the documentation are stored without outputs: `sphinx-build` runs them, and stops at an error."""

import json
from pathlib import Path


def test_a_notebook_is_stored_without_outputs():
    notebooks = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))
    assert len(notebooks) > 1
    for path in notebooks:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert not any(cell.get("outputs") for cell in cells), path.name
