"""A corpus of ten million tokens by two workers: memory over time, rate, size on the disk.

    python benchmarks/large.py --text FILE [FILE ...]                    # the bundled model
    python benchmarks/large.py --text FILE --tokens 1000000 --plot docs/images/large.svg

Real text, a paragraph a document, and behind it paragraphs drawn from the pairs of words that it has, until there are
enough tokens. Each worker has one thread. With `--kill` one of them is killed every so many seconds, and started again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import attnscope

_LETTERS = 2.1  # of a token of the bundled model: how much text is enough


def paragraphs(files: list[Path], tokens: int) -> Iterator[str]:
    """Those of the files, then made ones."""
    follows: defaultdict[str, list[str]] = defaultdict(list)
    letters = 0
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            words = line.split()
            if letters >= tokens * _LETTERS:
                return
            if len(words) > 20:
                yield line.strip()
                letters += len(line)
                for one, two in pairwise(words):
                    follows[one].append(two)
    rng = random.Random(0)
    words = sorted(follows)
    while letters < tokens * _LETTERS:
        made = [rng.choice(words)]
        while len(made) < 150 and follows[made[-1]]:
            made.append(rng.choice(follows[made[-1]]))
        yield " ".join(made)
        letters += sum(map(len, made)) + len(made)


def memory(process: subprocess.Popen[bytes]) -> float:
    """What it holds now, MiB; 0 where it has ended."""
    try:
        pages = Path(f"/proc/{process.pid}/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0.0
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


def size_of(folder: Path) -> int:
    """Bytes of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def plot(samples: dict[int, list[tuple[float, float]]], path: Path) -> None:
    """Memory of each worker over time."""
    import matplotlib.pyplot as plt

    plt.rcParams["svg.fonttype"] = "none"
    figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    for number, (worker, points) in enumerate(samples.items()):
        colour = ("#0072B2", "#D55E00")[number % 2]
        axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.2, label=f"worker {worker}")
    axes.legend(loc="lower right", frameon=False)
    axes.set(xlabel="seconds", ylabel="memory (MiB)", ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def main() -> None:
    """Scan and watch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--pool", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kill", type=float, help="seconds between kills")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        corpus, out = Path(place, "corpus.jsonl"), given.out or Path(place, "run")
        with corpus.open("w", encoding="utf-8") as file:
            for text in paragraphs(given.text, given.tokens):
                file.write(json.dumps({"text": text}) + "\n")
        command = [sys.executable, "-m", "attnscope", "scan", given.model, str(corpus), "--out", str(out)]
        command += ["--pool", str(given.pool), "--device", "cpu", "--no-report"]

        def start(number: int) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [*command, "--task", f"{number}/{given.workers}"],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

        began = last = time.perf_counter()
        running = {number: start(number) for number in range(1, given.workers + 1)}
        samples: dict[int, list[tuple[float, float]]] = {number: [] for number in running}
        rng, kills = random.Random(0), 0
        while any(process.poll() is None for process in running.values()):
            time.sleep(2)
            now = time.perf_counter() - began
            for number, process in running.items():
                if held := memory(process):
                    samples[number].append((now, held))
            alive = [number for number, process in running.items() if process.poll() is None]
            if given.kill and alive and time.perf_counter() - last > given.kill:
                number = rng.choice(alive)
                running[number].send_signal(signal.SIGKILL)
                running[number].wait()
                running[number], kills, last = start(number), kills + 1, time.perf_counter()
        seconds = time.perf_counter() - began
        if any(process.wait() for process in running.values()):
            sys.exit("a worker failed")
        results = attnscope.open_run(out)
        tokens, windows = int(results.length.sum()), int(results.window_count.sum())
        print(f"{tokens:,} tokens in {windows:,} windows, {results.sizes['window']} pools; {kills} kills")
        print(f"{seconds:.0f} s: {tokens / seconds:,.0f} tokens a second by {given.workers} workers")
        print(f"the run takes {size_of(out) / 2**20:.0f} MiB, {size_of(out) / windows:,.0f} bytes a window")
        for number, points in samples.items():
            quarter = len(points) / 4
            largest = [max(held for _, held in points[int(i * quarter) : int((i + 1) * quarter)]) for i in range(4)]
            said = ", ".join(f"{held:.0f}" for held in largest)
            print(f"worker {number}: at most {said} MiB in each quarter of its time")
        if given.plot:
            plot(samples, given.plot)


if __name__ == "__main__":
    main()
