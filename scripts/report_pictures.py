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
PARTS = {
    "report-heads": "#overview",
    "report-head": "#head",
    "report-window": "#window .pair",
    "report-received": "#received",
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        run = Path(folder) / "run"
        attnscope.scan(out=run)
        page_file = write_page(report_of("scan", attnscope.open_run(run)), Path(folder) / "report.html")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 1050}, color_scheme="light")
        page.goto(page_file.as_uri())
        page.wait_for_timeout(1000)
        page.screenshot(path=IMAGES / "report.png")
        for name, selector in PARTS.items():
            page.locator(selector).screenshot(path=IMAGES / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
