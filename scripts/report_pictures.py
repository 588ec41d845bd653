"""Pictures of a scan's report and of the live view for the documentation, from the bundled models.

python scripts/report_pictures.py          # docs/images/report*.png and live.png; needs Chromium
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

import attnscope
from attnscope.results.reports import report_of, write_page

IMAGES = Path(__file__).parents[1] / "docs" / "images"
#: What a picture shows: a head, a tab of the report, and the part of the page.
PARTS = {
    "report-heads": ("0.1", "text", "#overview"),
    "report-text": ("0.1", "text", ".pair.beside"),
    "report-received": ("1.1", "text", "#received"),  # the others' keys receive alike
    "report-profile": ("0.1", "profile", "#head"),
    "report-examples": ("0.1", "examples", "#head"),
    "report-numbers": ("0.1", "numbers", "#head"),
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        run = Path(folder) / "run"
        attnscope.scan(out=run)
        result = attnscope.open_run(run)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 860}, color_scheme="light")
        for language, name in (("ja", "report.ja"), ("en", "report")):
            attnscope.set_language(language)
            page.goto(write_page(report_of("scan", result), Path(folder) / "report.html").as_uri())
            page.wait_for_selector("#panel-text[data-head]")
            page.screenshot(path=IMAGES / f"{name}.png")
        for name, (head, tab, selector) in PARTS.items():
            page.evaluate(f"location.hash = '#{head}/{tab}'")
            page.wait_for_timeout(500)
            page.locator(selector).screenshot(path=IMAGES / f"{name}.png")
        take_live(page)
        browser.close()


@contextmanager
def ended(server: subprocess.Popen[str]) -> Generator[None]:
    """Ends a server also after an error, which would wait for it."""
    try:
        yield
    finally:
        server.terminate()


def take_live(page: Page) -> None:
    """The live view of two sentences, with a head patched."""
    command = [sys.executable, "-m", "attnscope", "view", "bundled:tasks", "The car near the rivers", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, ended(server):  # noqa: S603
        assert server.stdout is not None  # noqa: S101
        (address,) = re.findall(r"http://\S+", server.stdout.readline())
        page.goto(address)
        page.locator(".predicted tbody tr").first.wait_for()
        page.get_by_role("button", name="Compare with a second text").click()
        page.get_by_label("Second text", exact=True).fill("The cars near the rivers")
        page.get_by_role("button", name="Patch each head alone").click()
        page.locator(".effects button").first.wait_for()
        page.wait_for_timeout(3000)
        page.get_by_label("Layer 1, head 3").first.click()  # its effect follows
        page.get_by_role("button", name="Patch head 1.3 from the second text").click()
        page.locator("p", has_text="of the difference between the texts returns").wait_for()
        page.get_by_label("Key", exact=True).select_option("2")
        page.wait_for_timeout(500)
        page.screenshot(path=IMAGES / "live.png", full_page=True)


if __name__ == "__main__":
    main()
