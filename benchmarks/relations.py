"""Time of `attnscope relations` over a treebank, next to the plain forward pass over the same sentences.

    python benchmarks/relations.py ~/attnscope-models/all-MiniLM-L6-v2 --sentences 2000

The sentences are generated, of 5 to 30 words, with a link from every word but one; their words are drawn from the
bundled texts. Both sides read them in the same batches; the model is loaded and verified once before.
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from attnscope.bundled import TEXT
from attnscope.capture.borrow import LoadedModel
from attnscope.capture.load import load_model
from attnscope_relations import relations
from attnscope_relations.data import LinkedText, both_directions

RELATIONS = ("det", "nsubj", "obj", "obl", "amod", "advmod", "case", "conj", "mark", "aux", "cc", "nmod")


def treebank(count: int, seed: int = 0) -> list[LinkedText]:
    """Random sentences, each word linked to another one."""
    random = np.random.default_rng(seed)
    read = "".join(file.read_text(encoding="utf-8") for file in sorted(Path(TEXT).glob("*.txt")))
    words = sorted({*re.findall(r"[A-Za-z]{2,9}", read)})
    texts: list[LinkedText] = []
    for number in range(count):
        chosen = random.choice(words, random.integers(5, 31)).tolist()
        starts = np.cumsum([0, *(len(word) + 1 for word in chosen[:-1])])
        spans = [(int(start), int(start) + len(word)) for start, word in zip(starts, chosen, strict=True)]
        links = [
            (str(random.choice(RELATIONS)), spans[at], spans[(at + int(random.integers(1, len(spans)))) % len(spans)])
            for at in range(1, len(spans))
        ]
        texts.append(LinkedText(" ".join(chosen), both_directions(links), f"{number // 10}", tuple(spans)))
    return texts


@torch.no_grad()
def plain(loaded: LoadedModel, texts: list[LinkedText], size: int) -> float:
    """Seconds of the model alone over the sentences, tokenised and in batches."""
    start = time.perf_counter()
    for first in range(0, len(texts), size):
        inputs: Any = loaded.tokenizer(
            [text.text for text in texts[first : first + size]], padding=True, return_tensors="pt"
        )
        loaded.model(**inputs)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()
    loaded, texts = load_model(options.model), treebank(options.sentences)
    measured: Any = {"untrained": False, "batch_size": options.batch_size}
    relations(loaded.model, texts[:64], tokenizer=loaded.tokenizer, **measured)  # verifies the model
    ratios: list[float] = []
    for _ in range(options.repeats):
        of_model = plain(loaded, texts, options.batch_size)
        start = time.perf_counter()
        relations(loaded.model, texts, tokenizer=loaded.tokenizer, **measured)
        whole = time.perf_counter() - start
        ratios.append(whole / of_model)
        print(f"forward pass {of_model:.2f} s, relations {whole:.2f} s, ratio {ratios[-1]:.2f}", flush=True)
    print(f"median ratio {median(ratios):.2f}")


if __name__ == "__main__":
    main()
