"""Pages in the sandboxed frame of a notebook, and in JupyterLab: a head is clicked, and what it shows is read."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnscope.results.notebook import Page
from tests.results.page.planted_result import planted, scan_page

CELLS = [
    "import attnscope",
    "view = attnscope.view('bundled', 'The tide comes in twice a day, and twice a day it goes out.')\nview",
    "page = attnscope.view(attnscope.scan(limit=4))\npage",
    "print('chosen', page.layer, page.head, page.token)\npage.layer, page.head = 2, 1",
    "print('chosen', view.layer, view.head, view.token, view.span)",
]
PAINTED = """() => { const c = byId('map'), paper = c.getContext('2d');
    return new Set(new Uint32Array(paper.getImageData(0, 0, c.width, c.height).data.buffer)).size }"""


def read_after_click(frame, index, name):
    """Click a head in the frame of a page: its name, the points of its profile, and the colours of its map."""
    frame.locator(f'#grid [data-head="{index}"]').click()
    frame.locator(f'#panel-text[data-head="{index}"]').wait_for()
    assert frame.locator("#head-title").text_content() == name
    assert frame.locator(":root").evaluate(PAINTED) > 20
    frame.locator("#tab-profile").click()
    assert frame.locator("#profile circle").count() == 21


@pytest.fixture
def framed(visit, tmp_path):
    """Open a page as a notebook shows it."""

    def show(path):
        notebook = tmp_path / "notebook.html"
        notebook.write_text(f"<!doctype html>{Page(path.read_text(encoding='utf-8'), 800)._repr_html_()}")
        page = visit(notebook)
        return page.frame_locator("iframe[title=attnscope]")

    return show


def test_a_click_in_a_frame_fills_panel_and_map(framed, tmp_path):
    made = planted(layers=3, heads=4, texts=12, tokens=48, rank=12)
    frame = framed(scan_page(made.result, made.sample, tmp_path / "report.html"))
    read_after_click(frame, 6, "Layer 1, head 2")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of a JupyterLab that has the notebook, and its folder."""
    pytest.importorskip("jupyterlab", reason="JupyterLab is not installed")
    place = tmp_path_factory.mktemp("lab")
    import nbformat

    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), place / "notebook.ipynb")
    names = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")
    own = {f"JUPYTER_{name}": str(place / ".own" / name) for name in names}
    own |= {"IPYTHONDIR": str(place / ".own"), "JUPYTERLAB_SETTINGS_DIR": str(place / ".own")}
    options = ["--no-browser", "--allow-root", "--ServerApp.port=0", "--IdentityProvider.token="]
    with (place / "said").open("w") as said:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options],
            cwd=place,
            env=os.environ | own,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            running = Path(own["JUPYTER_RUNTIME_DIR"])
            while not (found := [one for one in running.glob("jpserver-*.json") if one.stat().st_size]):
                assert server.poll() is None, (place / "said").read_text()
                time.sleep(0.1)
            yield json.loads(found[0].read_text())["url"], place
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait()


@pytest.fixture(scope="module")
def notebook(browser, lab):
    """The notebook in JupyterLab, with all its cells run."""
    pytest.importorskip("anywidget", reason="anywidget is not installed")
    page = browser.new_page(viewport={"width": 1400, "height": 1000}, color_scheme="null")  # the machine's
    page.goto(f"{lab[0]}lab/workspaces/own/tree/notebook.ipynb")
    page.get_by_text("| Idle").wait_for(timeout=120_000)
    page.get_by_text("Run", exact=True).first.click()
    page.get_by_text("Run All Cells", exact=True).click()
    page.locator(".attnscope-view .grid canvas").first.wait_for(timeout=120_000)
    page.frame_locator("iframe[title=attnscope]").locator("#panel-text[data-head]").wait_for(timeout=120_000)
    yield page
    page.close()


def run_cell(page, number):
    page.locator(".jp-CodeCell").nth(number).locator(".jp-InputArea-editor").click()
    page.keyboard.press("Shift+Enter")


@pytest.mark.slow
def test_a_click_in_jupyterlab_fills_panel_and_map(notebook):
    frame = notebook.frame_locator("iframe[title=attnscope]")
    read_after_click(frame, 6, "Layer 1, head 2")
    run_cell(notebook, 3)
    notebook.get_by_text("chosen 1 2 None").wait_for(timeout=60_000)
    frame.locator("#head-title", has_text="Layer 2, head 1").wait_for()  # as Python chose


@pytest.mark.slow
def test_a_view_and_a_page_follow_the_theme_of_jupyterlab(notebook):
    paper = "c => Math.max(...c.getContext('2d').getImageData(0, c.height - 1, 1, 1).data.slice(0, 3))"
    cell = notebook.locator(".attnscope-view .grid canvas").first
    frame = notebook.frame_locator("iframe[title=attnscope]")
    for theme, dark in {"Dark": True, "Light": False}.items():
        notebook.get_by_text("Settings", exact=True).first.click()
        notebook.get_by_text("Theme", exact=True).first.hover()
        notebook.get_by_text(f"JupyterLab {theme}", exact=True).click()
        notebook.locator(f"body[data-jp-theme-light={str(not dark).lower()}]").wait_for(state="attached")
        notebook.wait_for_timeout(500)
        assert (cell.evaluate(paper) < 128) == dark
        assert frame.locator(":root").evaluate("() => matchMedia('(prefers-color-scheme: dark)').matches") == dark


@pytest.mark.slow
def test_a_model_answers_in_a_notebook(notebook):
    live = notebook.locator(".attnscope-live")
    live.get_by_role("button", name="Take head 0.0 out").click()
    live.locator("td.after").first.wait_for(timeout=60_000)
    live.get_by_role("button", name="Undo").click()
    live.locator("td.after").first.wait_for(state="detached")
    text = live.get_by_label("Text", exact=True).input_value()
    live.get_by_label("Text", exact=True).fill("The")
    live.locator(".queries .token[data-token='5']").wait_for(state="detached")
    live.get_by_label("Text", exact=True).fill(text)
    live.locator(".queries .token[data-token='5']").wait_for()


@pytest.mark.slow
def test_what_is_clicked_in_a_view_is_read_back_in_python_and_saved_with_the_notebook(browser, lab, notebook):
    notebook.get_by_label("Layer 2, head 1", exact=True).click(timeout=120_000)
    notebook.locator(".attnscope-view canvas[aria-label*='layer 2, head 1']").wait_for()  # Python has answered
    notebook.locator(".attnscope-view .queries .token").nth(5).click()
    notebook.locator(".attnscope-view .queries .token.current[data-token='5']").wait_for()
    notebook.wait_for_timeout(1000)  # a change waits until the kernel is idle
    run_cell(notebook, 4)
    notebook.get_by_text("chosen 2 1 5 [5, 6]").wait_for(timeout=60_000)
    notebook.keyboard.press("Control+s")
    notebook.wait_for_timeout(1500)
    saved = json.loads((lab[1] / "notebook.ipynb").read_text())
    shown = saved["cells"][1]["outputs"][0]["data"]
    assert "application/vnd.jupyter.widget-view+json" in shown
    assert "data:image/svg+xml" in "".join(shown["text/html"])  # where no widget can be drawn
    command = [sys.executable, "-m", "nbconvert", "--to", "html", lab[1] / "notebook.ipynb"]
    subprocess.run(command, check=True, timeout=120)
    page = browser.new_page()
    page.goto((lab[1] / "notebook.html").as_uri())
    picture = page.locator("img[src^='data:image/svg+xml']")
    picture.first.wait_for()
    assert picture.first.bounding_box()["width"] > 200
    page.close()
