"""Pictures of a scan's report for the documentation, from the bundled model.

python scripts/report_pictures.py          # docs/images/report*.png; needs Chromium
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

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
        browser.close()


if __name__ == "__main__":
    main()
