"""Is attention an explanation? The tests of the debate on `bundled:pronoun` and `bundled`, for the lesson `limits`.

    python benchmarks/weights_debate.py --out debate.json

`bundled:pronoun` names the noun that "it" stands for; the last layer's weights of "it" are the explanation in question.
They are replaced in held-out sentences (Jain and Wallace 2019: permuted, adversarial; Wiegreffe and Pinter 2019:
uniform, those of another sentence; Serrano and Smith 2019: erased in order of weight, of gradient, at random). A model
without context, an MLP over weighted word vectors, is trained on the weights as they are and on others (Wiegreffe and
Pinter, section 4.3). Next to it, the tests of `attnscope_lineage.weights.tests` on two heads of `bundled`.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from attnscope.bundled import NOUNS, SENTENCES
from attnscope.explanation.study import study
from attnscope_lineage.lessons.limits.pronoun import BOUND, End, adversarial, divergence, moved, pronoun_model, read
from attnscope_lineage.weights.tests import adversarial_test, erasure_test, permutation_test

DRAWS, EPOCHS = 100, 300
HEADS = ((0, 3), (2, 1))  # of `bundled`: one that predictions need, and one that they do not


def ends() -> list[End]:
    """The held-out sentences, those of one length together."""
    tokenizer, by_length = pronoun_model()[1], defaultdict[int, list[str]](list)
    for sentence in SENTENCES.read_text(encoding="utf-8").splitlines():
        by_length[len(tokenizer(sentence)["input_ids"])].append(sentence)
    return [read(sentences) for sentences in by_length.values()]


def permuted(weights: Tensor) -> Tensor:
    """Each row in a random order."""
    return weights.gather(-1, torch.rand_like(weights).argsort(-1))


def erased(end: End, importance: Tensor, count: int) -> Tensor:
    """The rows without their most important weights, scaled to the sum 1 again."""
    left = end.weights.scatter(-1, importance.topk(count, dim=-1).indices, 0.0)
    return left / left.sum(-1, keepdim=True).clamp_min(1e-12)


def to_flip(end: End, importance: Tensor) -> Tensor:
    """Share of the keys to erase, the most important first, until the likeliest word changes; 1 where it never does."""
    tokens = end.weights.shape[-1]
    share = torch.ones(len(end.weights))
    for count in range(tokens - 1, 0, -1):
        flipped = moved(end, erased(end, importance, count))[1]
        share = torch.where(flipped, torch.tensor(count / tokens), share)
    return share


def gradient(end: End) -> Tensor:
    """Slope of the likeliest word's log probability by each weight."""
    weights = end.weights.clone().requires_grad_()
    end.log_probabilities(weights).max(-1).values.sum().backward()
    assert weights.grad is not None  # noqa: S101
    return weights.grad


def summary(values: list[Tensor]) -> dict[str, float]:
    """Median and quartiles over sentences."""
    quantiles = torch.quantile(torch.cat(values).double(), torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
    return dict(zip(("low", "median", "high"), quantiles.tolist(), strict=True))


def of_sentences(every: list[End]) -> dict[str, Any]:
    """All tests that replace the weights of "it"."""
    results: dict[str, Any] = {}
    far = {id(end): adversarial(end) for end in every}

    def replaced(name: str, others: dict[int, list[Tensor]]) -> None:
        tvd, flips, weights = list[Tensor](), list[Tensor](), list[Tensor]()
        for end in every:
            pairs = [moved(end, other) for other in others[id(end)]]
            tvd.append(torch.stack([one for one, _ in pairs]).median(0).values)
            flips.append(torch.stack([flip.float() for _, flip in pairs]).mean(0))
            weights.append(torch.stack([divergence(end.weights, other) for other in others[id(end)]]).mean(0))
        results[name] = {"tvd": summary(tvd), "flipped": float(torch.cat(flips).mean()), "divergence": summary(weights)}

    replaced("permuted", {id(end): [permuted(end.weights) for _ in range(DRAWS)] for end in every})
    replaced("uniform", {id(end): [torch.full_like(end.weights, 1 / end.weights.shape[-1])] for end in every})
    replaced("other", {id(end): [end.weights.roll(1, 0)] for end in every})
    replaced("adversarial", {id(end): [far[id(end)]] for end in every})
    # the null of the adversary: permuted weights, mixed with the model's own until predictions reach the bound
    mixed = {}
    for end in every:
        target, best = permuted(end.weights), end.weights
        for part in torch.linspace(0, 1, 101):
            mixture = end.weights + part * (target - end.weights)
            best = torch.where((moved(end, mixture)[0] <= BOUND)[:, None], mixture, best)
        mixed[id(end)] = [best]
    replaced("adversarial_null", mixed)
    orders = {
        "attention": [to_flip(end, end.weights) for end in every],
        "gradient": [to_flip(end, gradient(end)) for end in every],
        "random": [to_flip(end, torch.rand_like(end.weights)) for end in every],
    }
    results["erased"] = {name: summary(values) for name, values in orders.items()}
    results["largest"] = summary([end.weights.max(-1).values for end in every])
    results["sentences"] = sum(len(end.weights) for end in every)
    results["guides"] = guides(every, far)
    return results


def guides(every: list[End], far: dict[int, Tensor]) -> dict[str, dict[str, float]]:
    """Accuracy on held-out sentences of an MLP without context that mixes word vectors by different weights."""
    model, tokenizer = pronoun_model()
    embedding: Any = model.get_input_embeddings()
    table = embedding.weight.detach()
    nouns = dict(zip(*(file.read_text(encoding="utf-8").splitlines() for file in (SENTENCES, NOUNS)), strict=True))
    texts = [sentence for end in every for sentence in end_sentences(end, nouns)]
    answers = torch.tensor([answer_of(sentence, nouns[sentence], tokenizer) for sentence in texts])
    kinds = {
        "own": [end.weights for end in every],
        "uniform": [torch.full_like(end.weights, 1 / end.weights.shape[-1]) for end in every],
        "permuted": [permuted(end.weights) for end in every],
        "adversarial": [far[id(end)] for end in every],
    }
    ids = [torch.tensor([tokenizer.convert_tokens_to_ids(row) for row in end.tokens]) for end in every]
    found: dict[str, dict[str, float]] = {}
    for name, weights in kinds.items():
        mixed = torch.cat(
            [torch.einsum("st,stw->sw", row, table[words]) for row, words in zip(weights, ids, strict=True)]
        )
        scores = [trained(mixed, answers, seed) for seed in range(5)]
        found[name] = {"mean": sum(scores) / len(scores), "low": min(scores), "high": max(scores)}
    return found


def end_sentences(end: End, nouns: dict[str, str]) -> list[str]:
    """The sentences of an end, by their tokens."""
    tokenizer = pronoun_model()[1]
    by_tokens = {tuple(tokenizer.convert_ids_to_tokens(tokenizer(one)["input_ids"])): one for one in nouns}
    return [by_tokens[tuple(row)] for row in end.tokens]


def answer_of(sentence: str, with_noun: str, tokenizer: Any) -> int:
    """The token that the text with the noun has where the sentence has "it"."""
    pairs = zip(tokenizer(sentence)["input_ids"], tokenizer(with_noun)["input_ids"], strict=True)
    return next(noun for it, noun in pairs if it != noun)


def trained(inputs: Tensor, answers: Tensor, seed: int) -> float:
    """Accuracy on a third of the sentences of an MLP trained on the rest."""
    torch.manual_seed(seed)
    order = torch.randperm(len(inputs))
    test, train = order[: len(order) // 3], order[len(order) // 3 :]
    mlp = nn.Sequential(nn.Linear(inputs.shape[1], 128), nn.ReLU(), nn.Linear(128, int(answers.max()) + 1))
    optimiser = torch.optim.AdamW(mlp.parameters(), lr=3e-3, weight_decay=0.01)
    for _ in range(EPOCHS):
        optimiser.zero_grad()
        F.cross_entropy(mlp(inputs[train]), answers[train]).backward()
        optimiser.step()
    return float((mlp(inputs[test]).argmax(-1) == answers[test]).float().mean())


def of_heads() -> dict[str, Any]:
    """The product's own tests on two heads of `bundled`."""
    prepared, found = study("bundled", limit=4), dict[str, Any]()
    tests = {
        "permutation": permutation_test(prepared, draws=20, heads=HEADS),
        "adversarial": adversarial_test(prepared, heads=HEADS),
        "erasure": erasure_test(prepared, heads=HEADS, draws=2),
    }
    for layer, head in HEADS:
        means = {name: test.sel(layer=layer, head=head).mean("window") for name, test in tests.items()}
        found[f"{layer}.{head}"] = {
            "max_weight": float(means["permutation"].max_weight),
            "tvd": float(means["permutation"].tvd),
            "tvd_null": float(means["permutation"].tvd_null),
            "divergence": float(means["adversarial"].weights_jsd),
            "divergence_null": float(means["adversarial"].weights_jsd_null),
            "flipped": float(means["erasure"].flipped.sel(order="attention", fraction=0.1)),
            "flipped_random": float(means["erasure"].flipped.sel(order="random", fraction=0.1)),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="File for the numbers, as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = {"command": "python benchmarks/weights_debate.py", "bound": BOUND, "pronoun": of_sentences(ends())}
    print(json.dumps(found, indent=1), flush=True)
    found["bundled"] = of_heads()
    print(json.dumps(found["bundled"], indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
