"""A browser for the tests of pages."""

import shutil

import pytest

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
]
LOADED = "document.getElementById('window').dataset.head !== undefined"


@pytest.fixture(scope="session")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium is installed")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def visit(browser):
    """Open a page, and at the end see that it loaded nothing else and had nothing to complain of."""
    contexts, complaints, requests, files = [], [], [], []

    def open_page(path, *, width=1200, scheme="light", fragment=""):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        files.append(path.as_uri() + fragment)
        page.goto(path.as_uri() + fragment)
        if page.query_selector("#window"):
            page.wait_for_function(LOADED)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url.split("#")[0] for url in requests if not url.startswith("data:")] == [
        url.split("#")[0] for url in files
    ]
