"""A browser for the tests of pages."""

import os
import shutil

import pytest

from tests.results.page.planted_explanation import explain_page_of, explanation
from tests.undrawn_figures import sketched

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
]
LOADED = "#panel-text[data-head]"


@pytest.fixture(scope="session")
def explained():
    return explanation()


@pytest.fixture(scope="session")
def explain_page(explained, tmp_path_factory):
    """The page of that explanation, without its figures, which take seconds."""
    with sketched():
        return explain_page_of(explained, tmp_path_factory.mktemp("explained") / "new" / "report.html")


@pytest.fixture(scope="session")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None or "ATTNSCOPE_TEST_BARE" in os.environ:
        pytest.skip("no Chromium is installed")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def idle(browser):
    """Pages that no test looks at: a new one for each visit takes the browser longer than most tests."""
    context = browser.new_context()
    yield [context.new_page()]
    context.close()


@pytest.fixture
def visit(idle):
    """Open a page, and at the end see that it loaded nothing else and had nothing to complain of."""
    complaints, requests, files, pages = [], [], [], []
    told = {
        "request": lambda request: requests.append(request.url),
        "console": lambda message: complaints.append(f"{message.type}: {message.text}"),
        "pageerror": lambda error: complaints.append(f"error: {error}"),
        "dialog": lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()),
    }

    def open_page(path, *, width=1200, scheme="light", fragment=""):
        page = idle.pop() if idle else pages[0].context.new_page()
        pages.append(page)
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(media="null", color_scheme=scheme)
        for event, listener in told.items():
            page.on(event, listener)
        files.append(path.as_uri() + fragment)
        page.goto(path.as_uri() + fragment)
        if page.query_selector("#partners"):
            page.wait_for_selector(LOADED)
        return page

    yield open_page
    for page in pages[1:]:  # one that another hides is drawn once a second
        page.close()
    for page in pages[:1]:
        for event, listener in told.items():
            page.remove_listener(event, listener)
        page.mouse.move(0, 0)
        page.goto("about:blank")
        idle.append(page)
    assert complaints == []
    assert [url.split("#")[0] for url in requests if not url.startswith("data:")] == [
        url.split("#")[0] for url in files
    ]
