"""Kills at random among several workers of one scan: what is lost, and how often a unit is measured twice.

    python benchmarks/kills.py CORPUS                              # 50 kills over 4 workers, the bundled model
    python benchmarks/kills.py CORPUS --kills 50 --tasks 4 --pool 64 --limit 4000

Real SIGKILL at random moments, also while the last worker puts all parts together; the worker that was killed is
started again at once. Only workers that have begun to measure are killed: before, there is nothing to lose. Scans
follow each other until there were enough kills. Each worker notes every pool before it measures it: how often one was
begun more than once is what the kills cost, and may not be more than there were kills. The arrays of every scan are
held against those of one undisturbed process.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

# pools of seconds are written as pools of a minute are: each when it is measured
os.environ |= {"OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1", "ATTNSCOPE_FLUSH_SECONDS": "0"}

import torch
import xarray as xr

from attnscope import scan
from attnscope.measure.stored import WINDOWS, load_scan
from attnscope.measure.texts import TextReader
from attnscope.store.folder import manifest_of
from attnscope.store.runs import RunFolder


def worker(given: argparse.Namespace, out: Path, task: str | None, log: Path) -> int:
    """One task of the scan in a process of its own; its number."""
    number = os.fork()
    if number:
        return number
    code = 1
    with contextlib.suppress(BaseException):
        own = TextReader.measure

        def measure(self: TextReader, batch: object, first: int) -> object:
            with log.open("a") as file:
                file.write(f"{os.getpid()} {first}\n")
            return own(self, batch, first)  # pyright: ignore[reportArgumentType]

        TextReader.measure = measure  # pyright: ignore[reportAttributeAccessIssue]
        scan(
            given.model,
            given.corpus,
            out=out,
            task=task,
            pool=given.pool,
            window=given.window,
            limit=given.limit,
            device="cpu",
        )
        code = 0
    os._exit(code)


def ended(number: int) -> bool:
    """Whether a process has ended; one that failed ends all."""
    found, status = os.waitpid(number, os.WNOHANG)
    if found and status and not os.WIFSIGNALED(status):
        sys.exit("a worker failed")
    return bool(found)


def opened(run: Path) -> tuple[xr.Dataset, xr.Dataset]:
    """Pools and windows."""
    with RunFolder(run, manifest_of(run).state["signature"]) as folder:
        windows = folder.apart(WINDOWS)
        return load_scan(folder), xr.Dataset() if windows is None else windows


def disturbed(given: argparse.Namespace, place: Path, chance: random.Random, kills: int) -> tuple[int, int, int]:
    """One scan with at most so many kills: kills, pools, and how often one was begun again."""
    log, out, done = place / "log", place / "run", 0
    running = {task: worker(given, out, f"{task}/{given.tasks}", log) for task in range(1, given.tasks + 1)}
    due = time.monotonic() + chance.uniform(*given.every)
    while running:
        time.sleep(0.02)
        running = {task: number for task, number in running.items() if not ended(number)}
        if running and done < kills and time.monotonic() > due:
            at_work = {line.split()[0] for line in log.read_text().splitlines()} if log.exists() else set()
            known = [task for task, number in running.items() if str(number) in at_work]
            if not known:  # all are loading: a kill costs nothing
                continue
            task = chance.choice(known)
            os.kill(running[task], signal.SIGKILL)
            os.waitpid(running[task], 0)
            running[task] = worker(given, out, f"{task}/{given.tasks}", log)
            done, due = done + 1, time.monotonic() + chance.uniform(*given.every)
    begun = Counter(line.split()[1] for line in log.read_text().splitlines())
    return done, len(begun), sum(begun.values()) - len(begun)


def main() -> None:
    """Kill."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--pool", type=int, default=64)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--limit", type=int, default=4000)
    parser.add_argument("--every", type=float, nargs=2, default=(1.0, 6.0), help="seconds between two kills")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    chance = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        began = time.monotonic()
        _, status = os.waitpid(worker(given, place / "whole", None, place / "log of whole"), 0)
        if status:
            sys.exit("the undisturbed scan failed")
        whole, windows = opened(place / "whole")
        print(f"undisturbed: {whole.sizes['window']} pools in {time.monotonic() - began:.0f} s", flush=True)
        kills = twice = scans = 0
        while kills < given.kills:
            own = place / f"scan {scans}"
            own.mkdir()
            done, pools, again = disturbed(given, own, chance, given.kills - kills)
            kills, twice, scans = kills + done, twice + again, scans + 1
            print(f"scan {scans}: {done} kills, {pools} pools, {again} begun again", flush=True)
            same = all(one.identical(other) for one, other in zip(opened(own / "run"), (whole, windows), strict=True))
            if not same or pools != whole.sizes["window"]:
                sys.exit("the arrays differ")
    print(
        f"{kills} kills over {given.tasks} workers in {scans} scans: {twice} pools begun again; "
        "the arrays are equal bit for bit"
    )
    if twice > kills:
        sys.exit("more pools were measured again than there were kills")


if __name__ == "__main__":
    main()
