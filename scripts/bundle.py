"""Put a trained masked language model into the package, with what it was trained on and how well it does.

    python scripts/bundle.py runs/bundled

The folder is one of `attnscope train configs/bundled/small-mlm.yaml`, finished.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from pathlib import Path

import numpy as np
from attnscope.models.encoder import EncoderForMaskedLM
from transformers import AutoTokenizer

from attnscope.bundled import MODEL
from attnscope.lineage.checkpoints import read_log
from attnscope.lineage.config import read_config
from attnscope.lineage.data import MaskedWindows, read_data

FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def unigram_entropy(data: MaskedWindows) -> float:
    """Nats per held-out token under the training text's token frequencies (add-one)."""
    counts = np.bincount(data.train_ids, minlength=len(data.tokenizer)) + 1.0
    return float(-np.log(counts / counts.sum())[data.valid_ids].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    last = read_log(run)[-1]
    if "final_loss" not in last:
        parser.error(f"{run}: the training is not finished: give its command again")
    data = read_data(read_config(run / "config.yaml"), AutoTokenizer.from_pretrained(run))
    if not isinstance(data, MaskedWindows):
        parser.error(f"{run}: found a translation model; expected a masked language model")
    card = {
        "trained_on": "WikiText-2 (CC BY-SA), train split",
        "settings": "configs/bundled/small-mlm.yaml",
        "updates": last["update"],
        "held_out_masked_token_loss_nats": round(last["final_loss"], 4),
        "held_out_unigram_entropy_nats": round(unigram_entropy(data), 4),
        "uniform_nats": round(math.log(len(data.tokenizer)), 4),
        "parameters": EncoderForMaskedLM.from_pretrained(run).num_parameters(),
    }
    shutil.rmtree(MODEL)
    MODEL.mkdir()
    for name in FILES:
        shutil.copyfile(run / name, MODEL / name)
    (MODEL / "card.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(card, indent=2))


if __name__ == "__main__":
    main()
