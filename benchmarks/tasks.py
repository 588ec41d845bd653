"""What two processes save: one scan by one task and by two at once, in turns, each process with one thread.

    python benchmarks/tasks.py CORPUS                        # the bundled model
    python benchmarks/tasks.py CORPUS --model MODEL --rounds 3 --limit 4000

Wall time, median over rounds, of all processes together, loading, merging and summary included; and, where other work
is on the machine, the processor time of the one process beside that of the busier of the two. The arrays of both are
held against each other.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import attnscope


def seconds(command: list[str], out: Path, tasks: int) -> tuple[float, float]:
    """Wall time until the last of all tasks has ended, and processor time of the one that took most."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    began = time.perf_counter()
    running = [
        subprocess.Popen(
            [*command, "--out", str(out), "--task", f"{number}/{tasks}"], env=environment, stdout=subprocess.DEVNULL
        )
        for number in range(1, tasks + 1)
    ]
    ended = [os.wait4(process.pid, 0) for process in running]
    if any(status for _, status, _ in ended):
        sys.exit("a task failed")
    return time.perf_counter() - began, max(usage.ru_utime + usage.ru_stime for _, _, usage in ended)


def main() -> None:
    """Scan in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--limit", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pool", type=int)
    given = parser.parse_args()
    command = [sys.executable, "-m", "attnscope", "scan", given.model, given.corpus, "--limit", str(given.limit)]
    command += ["--device", "cpu", "--no-report"]
    command += ["--pool", str(given.pool)] if given.pool else []
    found: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as place:
        for turn in range(given.rounds):
            for tasks in (1, 2) if turn % 2 == 0 else (2, 1):
                out = Path(place, f"{turn}-{tasks}")
                found[tasks].append(seconds(command, out, tasks))
            one, two = (attnscope.open_run(Path(place, f"{turn}-{tasks}")) for tasks in (1, 2))
            if not one.identical(two):
                sys.exit("the arrays differ")
    for number, what in enumerate(("wall time", "processor time")):
        one, two = (median(times[number] for times in found[tasks]) for tasks in (1, 2))
        print(f"{what}: one task {one:.1f} s, two {two:.1f} s: {one / two:.2f} x")
    print("the arrays are equal bit for bit")


if __name__ == "__main__":
    main()
