"""How fast a live view answers, in a browser: medians over keystrokes, heads taken out, and tokens written.

    python benchmarks/live.py                     # the bundled models
    python benchmarks/live.py MODEL --tokens 64   # another, on a text of so many tokens
    python benchmarks/live.py --requests 5000     # and its memory over a day of use

The time of an answer is from the event of the browser until the page has drawn it: tokens, all heads, the open head and
the predictions. Beside it stands the model's plain forward pass on the same text, measured in the same minute.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import time

import psutil
import torch
from playwright.sync_api import Page, sync_playwright

from attnscope.capture.load import load_model

WORDS = re.findall(r"\S+", "The keeper lit the lamp before the tide came in, and the lamp burned until the morning.")
#: Resolves when the page has drawn predictions that differ from those before.
DRAWN = """() => new Promise((resolve) => {
  const box = document.querySelector(".predicted"), start = performance.now();
  const end = () => resolve(performance.now() - start);
  const drawn = (_, watcher) => { watcher.disconnect(); requestAnimationFrame(end); };
  new MutationObserver(drawn).observe(box, { childList: true });
  ACT
})"""
TYPE = r"""const area = document.querySelector("textarea"); area.value = area.value.replace(/\S+$/, TEXT);
  area.dispatchEvent(new Event("input"));"""
CLICK = """[...document.querySelectorAll("button")].find((one) => one.textContent.match(/NAME/)).click();"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["bundled", "bundled:pronoun", "bundled:tasks"])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--requests", type=int, default=0)
    settings = parser.parse_args()
    for model in settings.models:
        measure(model, settings.tokens, settings.repeat, settings.requests)


def measure(model: str, tokens: int, repeat: int, requests: int) -> None:
    """Print the medians of one model."""
    loaded = load_model(model, device="cpu")
    tokens = min(tokens, loaded.model.config.max_position_embeddings - 20)
    text = ""
    while len(loaded.tokenizer(text).input_ids) < tokens:
        text += " " + WORDS[len(text.split()) % len(WORDS)]
    command = [sys.executable, "-m", "attnscope", "view", model, text.strip(), "--no-browser", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:
        assert server.stdout is not None  # noqa: S101
        address = re.search(r"http://\S+", server.stdout.readline())[0]  # type: ignore[index]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(address)
        page.locator(".predicted tbody tr").first.wait_for()
        typed = times(page, repeat, lambda i: TYPE.replace("TEXT", repr(WORDS[i % 14])))
        out = times(page, repeat, lambda i: CLICK.replace("NAME", "Take head" if i % 2 == 0 else "^Put head"))
        written = (
            times(page, min(repeat, 15), lambda _: CLICK.replace("NAME", "Write a token")) if can_write(page) else []
        )
        ids = torch.tensor([loaded.tokenizer(text).input_ids])
        plain = [passed(loaded.model, ids) for _ in range(repeat)]
        parts = {"typed": typed, "head out or in": out, "token written": written, "plain forward pass": plain}
        told = ", ".join(f"{name} {statistics.median(some):.0f} ms" for name, some in parts.items() if some)
        print(f"{loaded.name}, {ids.shape[1]} tokens: {told} (medians of {repeat})", flush=True)
        if requests:
            print(f"  {memory(page, server.pid, requests)}", flush=True)
        browser.close()
        server.terminate()


def can_write(page: Page) -> bool:
    """Whether the model writes."""
    return page.get_by_role("button", name="Write a token").count() > 0


def times(page: Page, repeat: int, act: object) -> list[float]:
    """Milliseconds from an event until its answer is drawn."""
    found = []
    for number in range(repeat):
        found.append(page.evaluate(DRAWN.replace("ACT", act(number))))  # type: ignore[operator]
        page.wait_for_timeout(150)
    return found


def passed(model: torch.nn.Module, ids: torch.Tensor) -> float:
    """Milliseconds of a plain pass."""
    with torch.no_grad():
        start = time.perf_counter()
        model(ids)
        return 1000 * (time.perf_counter() - start)


def memory(page: Page, process: int, requests: int) -> str:
    """Memory of the server over many questions, and of the page."""
    resident = []
    for number in range(requests):
        if number % max(1, requests // 10) == 0:
            resident.append(psutil.Process(process).memory_info().rss / 2**20)
        word = WORDS[number % 14]
        fill = f"const area = document.querySelector('textarea'); area.value = area.value.slice(-200) + {f' {word}'!r};"
        page.evaluate(DRAWN.replace("ACT", f"{fill} area.dispatchEvent(new Event('input'));"))
    return f"{requests} requests: MiB of the server {', '.join(f'{size:.0f}' for size in resident)}"


if __name__ == "__main__":
    main()
