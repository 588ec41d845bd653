"""Every notebook of the documentation runs, in a kernel of its own, and shows something in each of its cells."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore")  # of the client's own
def test_it_runs(path, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER.parents[1] / "src")]))
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are made by whoever runs it"
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=place).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = [cell.outputs for cell in code if not cell.source.startswith("import")]
    assert all(shown)
    said = "".join(
        output.get("text", "") for outputs in shown for output in outputs if output.output_type == "stream"
    )
    assert "Traceback" not in said
    pages = [output.data.get("text/html", "") for outputs in shown for output in outputs if "data" in output]
    assert any("attnscope" in page for page in pages)
