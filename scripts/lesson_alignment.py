"""Write the scores of a translator's attention at checkpoints of its training, for the lesson on translation.

    python scripts/lesson_alignment.py runs/lessons/dot

The training is that of configs/lessons/dot.yaml with `validate_every: 30` and `keep: 40`. The page takes the softmax of
the scores and draws it; entropy and the share of words with most weight on the word that they translate are means over
held-out sentences.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnscope_lineage.checkpoints import begin_with
from attnscope_lineage.lessons.translation.numbers import MODELS
from attnscope_lineage.models.recurrent import RecurrentForConditionalGeneration
from attnscope_lineage.parallel_text import generate_task

SHOWN = (30, 60, 90, 120, 180, 240, 300, 450, 600, 900)
HELD_OUT = 100
LONGEST = 10  # tokens that the decoder reads, of the sentence that is drawn


@torch.no_grad()
def alignment(model: RecurrentForConditionalGeneration, ids: list[int], reads: list[int]) -> torch.Tensor:
    """Logarithms of the weights, one row for each word of the target: scores up to a number of their row."""
    output = model(input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([reads]), output_attentions=True)
    return output.cross_attentions[0][0, 0].double().clamp_min(1e-30).log()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    folder = parser.parse_args().run
    names = json.loads((MODELS / "vocabulary.json").read_text(encoding="utf-8"))
    numbers = dict(zip(names, range(len(names)), strict=True))
    text = generate_task(HELD_OUT, seed=11, longest=12, held_out=True)
    model = RecurrentForConditionalGeneration.from_pretrained(MODELS / "dot").eval()
    encoded = [
        ([*(numbers[word] for word in source.split()), 2], [1, *(numbers[word] for word in target.split())], links)
        for source, target, links in zip(text.source, text.target, text.alignments, strict=True)
    ]
    moved = [sum(abs(source - target) for source, target in links) for *_, links in encoded]
    drawn = max(
        range(len(encoded)), key=lambda i: (len(encoded[i][1]) <= LONGEST, moved[i])
    )  # the words that move most
    steps: list[dict[str, Any]] = []
    for update in SHOWN:
        begin_with(model, folder / "checkpoints" / f"{update:08d}")
        every = [alignment(model, ids, reads)[:-1] for ids, reads, _ in encoded]
        entropy = np.concatenate([-(row.exp() * row).sum(-1).numpy() for row in every])
        uniform = np.concatenate([np.full(len(row), np.log(row.shape[1])) for row in every])
        on_word = [
            float(row[target].argmax() == source)
            for row, (_, _, links) in zip(every, encoded, strict=True)
            for source, target in links
        ]
        steps.append(
            {
                "update": update,
                "scores": np.round(every[drawn].numpy(), 4).tolist(),
                "entropy": round(float(entropy.mean()), 4),
                "uniform": round(float(uniform.mean()), 4),
                "on_word": round(float(np.mean(on_word)), 4),
            }
        )
        print(update, steps[-1]["entropy"], steps[-1]["on_word"])
    written = {
        "source": text.source[drawn].split(),
        "target": text.target[drawn].split(),
        "links": text.alignments[drawn],
        "sentences": HELD_OUT,
        "steps": steps,
    }
    (MODELS / "training.json").write_text(
        json.dumps(written, separators=(",", ":"), default=list) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
