"""Train the bundled causal model, which does the tasks of `attnscope.pairs`, and put it into the package.

    python scripts/task_model.py                # about an hour on one core
    python scripts/task_model.py --updates 50 --out runs/trial

A small Llama reads texts of the tasks, made from their templates, and random words said twice. The pairs that
`attnscope.pairs` draws for a task by default are not among them: its card has the share of those that it gets right.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors, trainers
from tokenizers.decoders import ByteLevel
from torch.utils.data import IterableDataset
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Trainer, TrainingArguments

from attnscope.bundled import MODELS
from attnscope.intervention.templates import TASKS, pairs_from

TOKENS = 64  # of a window
REPEATED = 0.3  # share of the texts that are random words said twice
PAIRS = 50  # of a task, held out
OFTEN = {"indirect-objects": 600, "docstrings": 600}  # pairs of these in a round, of others 200: they are learned last
ENDS = {"agreement": " old.", "greater-than": ".", "indirect-objects": ".", "induction": ".", "pronouns": "?"}


def held_out() -> dict[str, Any]:
    return {task: pairs_from(template, PAIRS, seed=0) for task, template in TASKS.items()}


def texts(seed: int, without: frozenset[str]) -> Iterator[str]:
    """Endless texts of all tasks with an answer, and random words said twice."""
    random, round_number = np.random.default_rng(seed), 0
    while True:
        round_number += 1
        rows = []
        for task, template in TASKS.items():
            frame = pairs_from(template, OFTEN.get(task, 200), seed=1000 * seed + round_number)
            for _, row in frame.iterrows():
                for text, answer in ((row.clean, row.answer), (row.corrupted, row.wrong)):
                    if text not in without:
                        several = answer if isinstance(answer, tuple) else (answer,)
                        rows.append(f"{text}{several[int(random.integers(len(several)))]}{ENDS.get(task, '')}")
        words = sorted({word for row in rows for word in row.split() if word.isalpha()})
        for _ in range(int(len(rows) * REPEATED / (1 - REPEATED))):
            said = " ".join(random.choice(words, int(random.integers(6, 26))))
            rows.append(f"{said} {said}")
        yield from (rows[at] for at in random.permutation(len(rows)))


def tokenizer_for(lines: list[str]) -> PreTrainedTokenizerFast:
    """Whole words and pairs of digits as tokens; every character is known."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\d{1,2}"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        min_frequency=20,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A $B", [("<s>", 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>", model_max_length=TOKENS
    )


class Windows(IterableDataset[dict[str, torch.Tensor]]):
    """Windows that begin with a text, each text in a line."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int, without: frozenset[str]) -> None:
        self.tokenizer, self.seed, self.without = tokenizer, seed, without

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        window = [self.tokenizer.bos_token_id]
        for text in texts(self.seed, self.without):
            window += self.tokenizer(text + "\n", add_special_tokens=False)["input_ids"]
            if len(window) >= TOKENS:
                ids = torch.tensor(window[:TOKENS])
                yield {"input_ids": ids, "labels": ids}
                window = [self.tokenizer.bos_token_id]


@torch.no_grad()
def share_right(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, frame: Any) -> float:
    """Share of the pairs whose answer is likelier than the wrong one, in the clean text."""
    right = []
    for _, row in frame.iterrows():
        logits = model(**tokenizer(row.clean, return_tensors="pt", return_token_type_ids=False)).logits[0, -1]
        sides = [side if isinstance(side, tuple) else (side,) for side in (row.answer, row.wrong)]
        ids = [[tokenizer(one, add_special_tokens=False)["input_ids"][0] for one in side] for side in sides]
        right.append(bool(logits[ids[0]].logsumexp(0) > logits[ids[1]].logsumexp(0)))
    return float(np.mean(right))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=3500)
    parser.add_argument("--out", type=Path, default=MODELS["bundled:tasks"])
    chosen = parser.parse_args()
    torch.manual_seed(0)
    pairs = held_out()
    without = frozenset(text for frame in pairs.values() for text in (*frame.clean, *frame.corrupted))
    source = texts(1, without)
    years = [f"{year:02d}" for year in range(100)] * 100  # else rare ones are two tokens
    tokenizer = tokenizer_for([*years, *(next(source) for _ in range(8000))])
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=96, intermediate_size=256, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=TOKENS, tie_word_embeddings=True,
            bos_token_id=0, eos_token_id=1, pad_token_id=1,
        )
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir=str(chosen.out), max_steps=chosen.updates, per_device_train_batch_size=32, learning_rate=4e-3,
        lr_scheduler_type="cosine", warmup_steps=100, weight_decay=0.05, adam_beta2=0.98, logging_steps=50,
        save_strategy="no", report_to=[], use_cpu=True, dataloader_pin_memory=False, disable_tqdm=True,
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=Windows(tokenizer, 2, without)).train()
    model.eval()
    card = {
        "trained_on": "texts of the tasks of attnscope.pairs, and random words said twice",
        "settings": "scripts/task_model.py",
        "updates": chosen.updates,
        "parameters": model.num_parameters(),
        "held_out_pairs_right": {task: share_right(model, tokenizer, frame) for task, frame in pairs.items()},
    }
    model.save_pretrained(chosen.out)
    tokenizer.save_pretrained(chosen.out)
    lines = [
        f"{row.clean}{row.answer if isinstance(row.answer, str) else row.answer[0]}{ENDS.get(task, '')}\n"
        for task, frame in pairs.items()
        if task != "docstrings"  # they have lines of their own
        for _, row in frame.iterrows()
    ]
    (chosen.out / "sentences.txt").write_text("".join(lines), encoding="utf-8")
    (chosen.out / "card.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(card, indent=2))


if __name__ == "__main__":
    main()
