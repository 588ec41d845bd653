"""Every notebook of the documentation runs in a kernel, and shows something in each of its cells."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the client's own
def test_each_runs_and_shows_something(tmp_path, monkeypatch):
    """One after the other in one kernel, emptied between: importing PyTorch takes as long as most cells together."""
    import nbformat  # a second, which every worker would take
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parents[1] / "src"))
    notebooks = {path.name: nbformat.read(path, as_version=4) for path in sorted(FOLDER.glob("*.ipynb"))}
    assert len(notebooks) > 1
    whole = nbformat.v4.new_notebook()
    for notebook in notebooks.values():
        assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are made by whoever runs it"
        whole.cells += [nbformat.v4.new_code_cell("%reset -f"), *notebook.cells]
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(whole, timeout=300, kernel_name="python3", resources=place).execute()
    for name, notebook in notebooks.items():
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        shown = [cell.outputs for cell in code if not cell.source.startswith("import")]
        assert all(shown), name
        outputs = [output for of_cell in shown for output in of_cell]
        said = "".join(output.get("text", "") for output in outputs if output.output_type == "stream")
        assert "Traceback" not in said
        pages = [output.data.get("text/html", "") for output in outputs if "data" in output]
        assert any("attnscope" in page for page in pages), name
