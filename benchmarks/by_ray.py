"""What Ray's workers save, and what their deaths cost: one corpus by one process, by workers, and by workers of which
one is killed every so many seconds.

    python benchmarks/by_ray.py --text FILE [FILE ...] --tokens 1000000 --kill 30

Each process has one thread. Wall time from the command to its end, loading and summary included; the arrays are held
against each other.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from large import paragraphs

import attnscope


def run(command: list[str], kill: float | None = None) -> tuple[float, int]:
    """Seconds that a command takes, and how often one of its actors was killed."""
    began = last = time.perf_counter()
    kills, rng = 0, random.Random(0)
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        time.sleep(0.2)
        if kill and time.perf_counter() - last > kill:
            below = psutil.Process(process.pid).children(recursive=True)
            actors = [one for one in below if one.is_running() and "_Holder" in " ".join(one.cmdline() or [""])]
            if actors:
                rng.choice(actors).kill()
                kills, last = kills + 1, time.perf_counter()
    if process.returncode:
        sys.exit("the scan failed")
    return time.perf_counter() - began, kills


def main() -> None:
    """Scan in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--pool", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kill", type=float, help="seconds between kills")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        corpus = Path(place, "corpus.jsonl")
        with corpus.open("w", encoding="utf-8") as file:
            for text in paragraphs(given.text, given.tokens):
                file.write(json.dumps({"text": text}) + "\n")
        command = [sys.executable, "-m", "attnscope", "scan", given.model, str(corpus), "--device", "cpu"]
        command += ["--no-report", *(["--pool", str(given.pool)] if given.pool else [])]
        by_ray = ["--ray", "local", "--workers", str(given.workers)]
        turns: dict[str, tuple[list[str], float | None]] = {
            "one process": ([], None),
            f"{given.workers} workers": (by_ray, None),
        }
        turns |= {f"one killed every {given.kill:g} s": (by_ray, given.kill)} if given.kill else {}
        whole = None
        for number, (name, (more, kill)) in enumerate(turns.items()):
            out = Path(place, f"run-{number}")
            seconds, kills = run([*command, "--out", str(out), *more], kill)
            results = attnscope.open_run(out)
            print(f"{name}: {seconds:.1f} s, {int(results.length.sum()):,} tokens, {kills} kills", flush=True)
            whole = results.drop_attrs() if whole is None else whole
            if not results.drop_attrs().identical(whole):
                sys.exit("the arrays differ")
        print("the arrays are equal bit for bit")


if __name__ == "__main__":
    main()
