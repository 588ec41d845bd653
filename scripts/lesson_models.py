"""Train the models of lessons and put them into the package, with what was measured of them.

    python scripts/pronoun_text.py runs/lesson-text && python scripts/digit_text.py runs/lesson-text
    cd runs/lesson-text && python .../scripts/lesson_models.py ../lessons

The settings are in configs/lessons: two models of the lesson on heads, and the four translators of the lesson on
translation, which `attnscope compare` measures on held-out sentences of its generated task. What is trained already is
not trained again.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from transformers import AutoTokenizer

import attnscope_lineage
from attnscope.models.transformer import EncoderForMaskedLM
from attnscope_lineage.lessons import HERE

ROOT = Path(__file__).parents[1]
SETTINGS = ROOT / "configs" / "lessons"
TRANSLATORS = ("fixed", "dot", "bilinear", "additive")


def put(run: Path, folder: Path) -> None:
    """Copy a trained model, without its tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(run / name, folder / name)


def write_json(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values, ensure_ascii=False) + "\n", encoding="utf-8")


def names_of(run: Path) -> list[str]:
    """The words of a trained model, by their number."""
    tokenizer = AutoTokenizer.from_pretrained(run)
    return [token.removeprefix("▁") for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))]


@torch.no_grad()
def right_digits(run: Path) -> dict[str, int]:
    """Held-out pictures, and those whose digit the model names."""
    names, model = names_of(run), EncoderForMaskedLM.from_pretrained(run).eval()
    lines = [Path(f"valid.{ending}.txt").read_text(encoding="utf-8").splitlines() for ending in ("picture", "digit")]
    ids = [[1, *(names.index(word) for word in line.split()), 2] for line in lines[0]]
    best = model(torch.tensor(ids)).logits[:, 1].argmax(-1).tolist()
    answers = [line.split()[0] for line in lines[1]]
    return {"pictures": len(ids), "right": sum(names[i] == one for i, one in zip(best, answers, strict=True))}


def measured(tree: xr.DataTree, longest: int) -> dict[str, Any]:
    """BLEU by length and the shares of the gradient, each with its interval."""
    scores, gradients = tree["scores"].to_dataset().sel(metric="BLEU"), tree["gradients"].to_dataset()
    limits = [[int(part) for part in re.findall(r"\d+", name)] for name in scores.bucket.values]
    ends = ("lower_by_length", "upper_by_length")
    return {
        "buckets": [{"low": low, "high": high[0] if high else longest} for low, *high in limits],
        "sentences": int(scores.sentences.sum()),
        "bleu": {str(name): _short(scores.score_by_length.sel(system=name)) for name in scores.system.values},
        "bleu_ends": {
            str(name): [*map(_short, zip(*(scores[end].sel(system=name).values for end in ends), strict=True))]
            for name in scores.system.values
        },
        "gradients": {
            str(name): [
                _short(triple)
                for triple in zip(
                    *(gradients[key].sel(system=name).values for key in ("share", "lower", "upper")), strict=True
                )
            ]
            for name in gradients.system.values
        },
        "gradient_sentences": int(gradients.sentences.max()),
        "alignment_error_rate": dict(
            zip(map(str, scores.system.values), _short(scores.alignment_error_rate), strict=True)
        ),
    }


def _short(values: Any) -> list[float | None]:
    return [None if np.isnan(value) else round(float(value), 4) for value in np.asarray(values)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    four = folder / "four-heads"
    attnscope_lineage.train(SETTINGS / "four-heads.yaml", four)
    put(four, HERE / "heads" / "four")
    digits, here = folder / "digits", HERE / "heads" / "digits"
    attnscope_lineage.train(SETTINGS / "digits.yaml", digits)
    put(digits, here)
    write_json(here / "vocabulary.json", names_of(digits))
    shutil.copyfile("pictures.json", here / "pictures.json")
    write_json(here / "measured.json", right_digits(digits))
    for name in TRANSLATORS:
        attnscope_lineage.train(SETTINGS / f"{name}.yaml", folder / name)
        put(folder / name, HERE / "translation" / "models" / name)
    tree = attnscope_lineage.compare([folder / name for name in TRANSLATORS], out=folder / "comparison", beams=1)
    source = (folder / "comparison" / "text" / "source.txt").read_text(encoding="utf-8")
    models = HERE / "translation" / "models"
    write_json(models / "vocabulary.json", names_of(folder / "fixed"))
    results = measured(tree, max(len(line.split()) for line in source.splitlines()))
    (models / "measured.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
