"""What explaining costs beside the plain forward passes over the same texts.

    python benchmarks/explain.py --corpus ../shared/data/wikitext-2/train.txt --windows 100

roberta-base's shape with random weights, windows of 512 tokens. Plain forward passes (sdpa) and the whole of
`explain` without interventions are taken in turns, a part of the windows at a time; then come the analyses.
The plain passes are the model's own, logits included; `explain` leaves the head out, so its share is told too.
"""

from __future__ import annotations

import argparse
import os
import time
from itertools import pairwise
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from scan import roberta_shape
from transformers import AutoTokenizer

from attnscope.bundled import MODEL
from attnscope.capture.borrow import LoadedModel
from attnscope.explanation.catalogue import ANALYSES
from attnscope.explanation.inputs import batches, token_ids
from attnscope.explanation.study import Study
from attnscope.read.texts import Corpus
from attnscope.read.windows import Windows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--windows", type=int, default=100)
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    corpus = Corpus.from_sources([options.corpus])
    windows = list(Windows(corpus, tokenizer, length=512, limit=options.windows))
    model = roberta_shape("sdpa")
    ids = token_ids(windows)

    def plain(part: slice, through: torch.nn.Module = model) -> float:
        started = time.perf_counter()
        with torch.no_grad():
            for _, batch in batches(ids[part]):
                through(input_ids=batch.ids)
        return time.perf_counter() - started

    plain(slice(0, 4))  # warm up
    # half of the plain passes before and half after, so that a drift of the machine's speed falls on both
    middle = len(windows) // 2
    before = plain(slice(0, middle))
    loaded = LoadedModel(model, tokenizer, "roberta-base's shape", {})
    steps: list[tuple[float, str]] = []
    started = time.perf_counter()
    study = Study(model, windows, name=loaded.name, loaded=loaded)
    study.tell = lambda step: steps.append((time.perf_counter(), step.name))
    read = study.evidence.texts  # the one pass over the texts, which comes first
    study.run(ANALYSES)
    steps.append((time.perf_counter(), "done"))
    explained = time.perf_counter() - started
    after = plain(slice(middle, None))
    whole = before + after
    first = slice(0, 8)
    headless = plain(first, model.base_model) / plain(first)
    print(f"{read} windows of 512 tokens, {torch.get_num_threads()} threads")
    print(f"plain forward passes  {whole:8.1f} s ({before:.1f} + {after:.1f}); without the head {headless:.2f} of it")
    print(f"explain               {explained:8.1f} s = {explained / whole:.2f} x plain")
    last: dict[str, float] = {}
    for (begun, name), (ended, _) in pairwise(steps):
        last[name] = last.get(name, 0.0) + ended - begun
    last["reading the texts"] = next(begun for begun, name in steps if name != "reading the texts") - started
    for name, seconds in last.items():
        print(f"  {name:20}{seconds:8.1f} s")


if __name__ == "__main__":
    main()
