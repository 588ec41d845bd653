"""`attnscope relations` on what is known: planted heads, models without relations, and its time.

    python benchmarks/relations.py zoo                  # planted heads: AUROC of the score less its controls
    python benchmarks/relations.py null                 # random weights of 8 families: how many relations are linked
    python benchmarks/relations.py time ~/attnscope-models/all-MiniLM-L6-v2 --sentences 2000

`time` prints the time of the verb over a treebank, next to the plain forward pass over the same sentences in the same
batches. The sentences are generated, of 5 to 30 words, with a link from every word but one; their words are drawn from
the bundled texts.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata

sys.path.insert(0, str(Path(__file__).parents[1]))

from attnscope.bundled import TEXT
from attnscope.capture.borrow import LoadedModel
from attnscope.capture.load import load_model
from attnscope.statistics.intervals import interval
from attnscope_relations import relations
from attnscope_relations.data import Link, LinkedText, both_directions
from attnscope_zoo.catalogue import zoo
from attnscope_zoo.zoo import PlantedModel

RELATIONS = ("det", "nsubj", "obj", "obl", "amod", "advmod", "case", "conj", "mark", "aux", "cc", "nmod")
FAMILIES = ("bert", "gpt2", "llama", "t5", "roberta", "bart", "gemma2", "albert")
POSITION = 0.9  # score of a control from which the texts do not tell a relation from a position


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


# Planted heads


def planted_links(planted: PlantedModel) -> list[LinkedText]:
    """The texts of a planted model; each head with keys of its own is a relation, from its queries to these keys."""
    texts: list[LinkedText] = []
    for number, ids in enumerate(planted.ids.tolist()):
        words = [f"t{token}" for token in ids]
        starts = np.cumsum([0, *(len(word) + 1 for word in words[:-1])]).tolist()
        spans = [(start, start + len(word)) for start, word in zip(starts, words, strict=True)]
        links: list[Link] = []
        for (layer, head), several in planted.attended.items():
            for attended in several:
                for query in range(len(ids)):
                    keys = attended.keys[number, query].nonzero()[:, 0].tolist()
                    right = tuple(spans[key] for key in keys if key != query)
                    if right and len(right) < query / 2:  # most words would be right by chance
                        links.append(Link(f"{layer}.{head}", spans[query], right))
        texts.append(LinkedText(" ".join(words), tuple(links), f"text {number}", tuple(spans)))
    return texts


def planted_heads(each: int) -> None:
    """AUROC of every relation: heads planted for it against the others, by score less the largest control.

    Relations are left out that lie at one place in all texts, and those whose head puts less than half of its weight on
    its keys by construction.
    """
    found: list[float] = []
    kinds: list[str] = []
    linked = false = left_out = 0
    for planted in zoo(each=each):
        texts = planted_links(planted) if planted.form != "encoder-decoder" else []
        if not any(text.links for text in texts):
            continue
        result = relations(planted.model, texts, tokenizer=planted.tokenizer, untrained=False)
        for name in result.relation.values.tolist():
            of_relation = result.sel(relation=name)
            layer, head = map(int, name.split("."))
            keys = planted.attended[layer, head]
            alike = np.zeros(of_relation.above.shape, bool)
            for place, others in planted.attended.items():
                alike[place] = any(torch.equal(one.keys, other.keys) for one in keys for other in others)
            scores = of_relation.above.values
            by_position = max(float(of_relation.offset_score), float(of_relation.exchanged.sel(layer=layer, head=head)))
            is_largest = min(attended.least for attended in keys) >= 0.5
            if by_position > POSITION or not is_largest or alike.all():
                left_out += 1
            elif np.isfinite(scores).all() and bool(of_relation.tested.all()):
                found.append(auroc(scores.ravel(), alike.ravel()))
                kinds.append(planted.name)
                shown = of_relation.shown.values
                linked, false = linked + int(shown[alike].sum()), false + int(shown[~alike].sum())
                others = [planted.roles[place[0]][place[1]] for place in zip(*np.nonzero(shown & ~alike), strict=True)]
                if found[-1] < 1 or others:
                    role = planted.roles[layer][head]
                    print(f"{planted.name} {name} ({role}): AUROC {found[-1]:.2f}; linked too: {others}", flush=True)
    low, high = interval(np.array(found)[:, None], kinds)
    print(f"{len(found)} relations of {len({*kinds})} models: mean AUROC {np.mean(found):.3f}")
    print(f"95% interval over models {float(low[0]):.3f} to {float(high[0]):.3f}")
    print(f"linked: {linked} planted heads, {false} others; relations left out: {left_out}")


def auroc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Probability that a positive has a higher score than a negative."""
    ranks, count = rankdata(scores), positive.sum()
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(scores) - count)))


# Models without relations


def without_relations(runs: int) -> None:
    """Random weights over random links: a head that is said to link a relation is a mistake."""
    from tests.tiny_models import tiny_reader

    for family in FAMILIES:
        counts: list[int] = []
        for seed in range(runs):
            model, tokenizer = tiny_reader(family)
            torch.manual_seed(seed)
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    torch.nn.init.normal_(parameter, std=0.3)
            result = relations(model, treebank(100, seed), tokenizer=tokenizer, untrained=False, seed=seed)
            counts.append(int(result.linked.sum()))
        tested = result.sizes["relation"]
        print(
            f"{family}: {sum(map(bool, counts))} of {runs} runs link a relation; {tested} relations a run", flush=True
        )


# Time


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


def times(options: argparse.Namespace) -> None:
    """The verb beside the model alone, one after the other."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("zoo").add_argument("--each", type=int, default=2)
    kinds.add_parser("null").add_argument("--runs", type=int, default=20)
    of_time = kinds.add_parser("time")
    of_time.add_argument("model", type=Path)
    of_time.add_argument("--sentences", type=int, default=2000)
    of_time.add_argument("--repeats", type=int, default=3)
    of_time.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()
    if options.kind == "zoo":
        planted_heads(options.each)
    elif options.kind == "null":
        without_relations(options.runs)
    else:
        times(options)


if __name__ == "__main__":
    main()
