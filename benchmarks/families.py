"""What can be seen of every model family of the installed transformers: makes docs/reference/families.md anew.

    python benchmarks/families.py                   # all families: some 20 minutes on 2 cores
    python benchmarks/families.py bloom xlnet       # some, printed

Each family is a tiny random model (tests/capture/every_family), tried in a process of its own that may take 80 seconds
of the processor and 8 GiB of addresses. `--rows FILE` keeps what was found, line by line, and goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# ruff: noqa: E402 the tests stand beside this folder, and threads are set up before PyTorch is loaded
import torch

if find_spec("timm") is not None and not torch.cuda.is_available():
    # it imports torchvision, whose operators PyPI's wheel has for CUDA alone: no model calls them, two must be declared
    for operator in ("nms", "qnms"):
        torch.library.define(f"torchvision::{operator}", "(Tensor boxes, Tensor scores, float limit) -> Tensor")

import transformers
from rich.console import Console
from rich.progress import track
from tests.capture.every_family.judge import EAGER, FAST, NONE, PART, REFUSED, UNTRIED, Row, judge
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.utils import logging

from attnscope.capture.load import load_model

SECONDS, ADDRESSES = 80, 8 << 30
SECOND = "\nIts eager weights fail too: "


def in_process(family: str) -> Row:
    """Judge a family where neither its memory nor its time can stop the others."""
    context = get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_tell, args=(family, send))
    process.start()
    send.close()
    try:
        return receive.recv()
    except EOFError:
        process.join()
        ended = -(process.exitcode or 0)
        late = f"it took more than {SECONDS} seconds"
        return Row(
            family,
            UNTRIED,
            reason=late if ended in {signal.SIGALRM, signal.SIGPROF} else f"its process ended by signal {ended}",
        )
    finally:
        process.join()


def _tell(family: str, send: Any) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of the processor: a busy machine makes no family untried
    signal.alarm(10 * SECONDS)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        send.send(judge(family))
    except Exception as error:  # noqa: BLE001 a fault of ours is one line of the table too
        send.send(Row(family, UNTRIED, reason=f"{type(error).__name__}: {error}"[:300]))


def judged(families: list[str], rows: Path | None, jobs: int) -> dict[str, Row]:
    """Every family's row; those in `rows` are not tried again."""
    found: dict[str, Row] = {}
    if rows is not None and rows.exists():
        lines = map(json.loads, rows.read_text(encoding="utf-8").splitlines())
        found = {one["family"]: Row(**one) for one in lines}
    left = [family for family in families if family not in found]
    torch.set_num_threads(1)
    logging.set_verbosity(50)
    load_model("bundled", device="cpu")  # what every process needs is loaded once
    console = Console(stderr=True)
    with ThreadPoolExecutor(jobs) as pool:
        for row in track(pool.map(in_process, left), "families", total=len(left), console=console):
            found[row.family] = row
            if rows is not None:
                with rows.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row.as_dict()) + "\n")
    return found


def page(rows: Iterable[Row]) -> str:
    """The documentation page."""
    rows = sorted((row for row in rows if row.status != PART), key=lambda row: row.family)
    counts = Counter(row.status for row in rows)
    seen, attending = counts[FAST] + counts[EAGER], sum(counts[one] for one in (FAST, EAGER, REFUSED))
    apart = [row.difference for row in rows if row.difference is not None and not row.reason]
    text = [row for row in rows if "input_ids" in row.reads]
    of_text = Counter(row.status for row in text)
    lines = [
        _INTRODUCTION.format(version=transformers.__version__, torch=torch.__version__.split("+")[0]),
        "| capture | commands that work | families | of text |",
        "|---|---|---|---|",
        *(f"| {_WAYS[one]} | {counts[one]} | {of_text[one]} |" for one in _WAYS),
        f"| not tried: no tiny model could be built | not known | {counts[UNTRIED]} | not known |",
        "",
        _SEEN.format(
            attending=attending,
            seen=seen,
            share=seen / attending,
            fast=counts[FAST],
            eager=counts[EAGER],
            measured=len(apart),
            apart=max(apart),
        ),
        "",
        "## Supported",
        "",
        "| family | class | reads | capture | layers | largest difference | positions | projections found |",
        "|---|---|---|---|---|---|---|---|",
        *(_seen(row) for row in rows if row.status in {FAST, EAGER}),
        "",
        "## Notes",
        "",
        *_by_reason(row for row in rows if row.status in {FAST, EAGER} and row.reason),
    ]
    for status, title in _OTHERS.items():
        lines += ["", f"## {title}", "", *_by_reason(row for row in rows if row.status == status)]
    return "\n".join(lines) + "\n"


#: Parts of a reason that name one model, its class or a layer, and advice.
_OF_ONE_MODEL = re.compile(r"^layer \d+ \(.*?\): | \([\w.]+(, of class \w+)?\)|, so there is nothing to measure.*")


def _by_reason(rows: Iterable[Row]) -> list[str]:
    """A table with a row for each reason, and its families."""
    families: dict[str, list[str]] = {}
    for row in rows:
        reason = _short(row.reason).removeprefix(row.model).strip()
        families.setdefault(_OF_ONE_MODEL.sub("", reason), []).append(row.family)
    rows_of_reasons = [f"| {reason} | {', '.join(named)} |" for reason, named in sorted(families.items())]
    return ["| reason | families |", "|---|---|", *rows_of_reasons]


#: Schemes of positions in the words of the table.
_SCHEMES = {
    "it rotates queries and keys by their positions (RoPE)": "RoPE",
    "how it tells positions is not known to attnscope": "unknown",
    "it adds a bias for each distance to the scores (T5)": "bias by distance (T5)",
}


def _seen(row: Row) -> str:
    apart = "" if row.difference is None else f"{row.difference:.0e}"
    positions = _SCHEMES.get(row.positions, row.positions) if row.status == FAST else "weights only"
    counted = re.fullmatch(r"\d+ of \d+|", row.projections) is not None
    projections = row.projections if counted else "not found"
    cells = (row.family, row.model, row.reads, row.status, row.layers, apart, positions, projections)
    return "| " + " | ".join(cells) + " |"


def _short(reason: str) -> str:
    """The second way's reason where there is one: it is the one that nothing comes after."""
    reason = re.sub(r"<module '([\w.]+)' from '[^']*'>", r"\1", reason)  # places are of this machine
    first, _, second = reason.partition(SECOND)
    known = " ".join((second or first).split()).replace("|", "/")
    return known if len(known) < 300 else known[:297] + "..."


_WAYS = {
    FAST: "`fast` | all on text; other inputs: [guides](../guides/index.md)",
    EAGER: "`eager` | `scan` and `align`, slower: only weights are seen",
    REFUSED: "[rejected](#rejected) | none",
    NONE: "[without attention](#without-attention) | none",
}
_OTHERS = {REFUSED: "Rejected", UNTRIED: "Not tried", NONE: "Without attention"}
_SEEN = """\
{seen} of {attending} families with attention work ({share:.0%}): {fast} with queries and keys, {eager} with weights
only. The largest difference of any statistic is {apart:.0e} (over {measured} families without a [note](#notes)).

| column | meaning |
|---|---|
| largest difference | of any statistic from eager attention, relative above 1; empty where that gives no weights |
| positions | the scheme that `explain` finds |
| projections found | layers whose query and key matrices are found |

Images, videos and sounds were random. Four families were tried with stand-ins for missing packages
(`tests/capture/every_family/stand_ins.py`); those of timm need timm and torchvision. Pooling heads on top of vision
encoders (SigLIP, AIMv2) are not counted."""
_INTRODUCTION = """\
# Model support

Does attnscope measure your model? Find its `model_type` (in `config.json`) below. Every model type of transformers
{version} (PyTorch {torch}) was tried as a tiny random model, by `python benchmarks/families.py`.
"""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "reference" / "families.md")
    given = parser.parse_args()
    table = judged(given.families or sorted(CONFIG_MAPPING_NAMES), given.rows, given.jobs)
    if given.families:
        for one in table.values():
            print(json.dumps(one.as_dict()))
    else:
        given.out.write_text(page(table.values()), encoding="utf-8")
