"""Put a trained masked language model into the package, with what it was trained on and how well it does.

    python scripts/bundle.py runs/bundled

The folder is one of `attnscope train configs/bundled/small-mlm.yaml`, or `pronoun.yaml`, finished. Run it where the
training ran, in the folder of the texts.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from attnscope.bundled import MODEL, MODELS, NOUNS, SENTENCES
from attnscope.models.common import IGNORED
from attnscope.models.transformer import EncoderForMaskedLM
from attnscope_lineage.checkpoints import read_log
from attnscope_lineage.config import read_config
from attnscope_lineage.data import MaskedWindows, RestoredWords, read_data

FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
SHOWN = 300  # held-out sentences in the package


def unigram_entropy(data: MaskedWindows) -> float:
    """Nats per held-out token under the training text's token frequencies (add-one)."""
    counts = np.bincount(data.train_ids, minlength=len(data.tokenizer)) + 1.0
    return float(-np.log(counts / counts.sum())[data.valid_ids].mean())


def accuracy(model: EncoderForMaskedLM, data: RestoredWords) -> dict[str, Any]:
    """Share of the held-out replaced words that the model restores."""
    right = []
    for batch in data.validation():
        labels = batch.pop("labels")
        with torch.no_grad():
            replaced = (labels != IGNORED) & (labels != batch["input_ids"])
            right += (model(**batch).logits.argmax(-1) == labels)[replaced].tolist()
    return {"held_out_words": len(right), "held_out_accuracy": round(sum(right) / len(right), 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    last = read_log(run)[-1]
    if "final_loss" not in last:
        parser.error(f"{run}: the training is not finished: give its command again")
    config, model = read_config(run / "config.yaml"), EncoderForMaskedLM.from_pretrained(run)
    data = read_data(config, AutoTokenizer.from_pretrained(run))
    if isinstance(data, MaskedWindows):
        place = MODEL
        card = {
            "trained_on": "WikiText-2 (CC BY-SA), train split",
            "settings": "configs/bundled/small-mlm.yaml",
            "updates": last["update"],
            "held_out_masked_token_loss_nats": round(last["final_loss"], 4),
            "held_out_unigram_entropy_nats": round(unigram_entropy(data), 4),
            "uniform_nats": round(math.log(len(data.tokenizer)), 4),
        }
    elif isinstance(data, RestoredWords):
        place = MODELS["bundled:pronoun"]
        card = {
            "trained_on": "sentences of scripts/pronoun_text.py",
            "settings": "configs/bundled/pronoun.yaml",
            "updates": last["update"],
            "held_out_loss_nats": round(last["final_loss"], 4),
        } | accuracy(model, data)
    else:
        parser.error(f"{run}: found a translation model; expected a masked language model")
    card["parameters"] = model.num_parameters()
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name in FILES:
        shutil.copyfile(run / name, place / name)
    (place / "card.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    if isinstance(data, RestoredWords):
        for file, text in ((SENTENCES, config.valid_source), (NOUNS, config.valid_target)):
            file.write_text(
                "".join(text.read_text(encoding="utf-8").splitlines(keepends=True)[:SHOWN]), encoding="utf-8"
            )
    print(json.dumps(card, indent=2))


if __name__ == "__main__":
    main()
