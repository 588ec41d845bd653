"""Train the bundled model: a small masked language model with learned absolute positions.

    python scripts/train_bundled.py --corpus ../shared/data/wikitext-2 --out runs/bundled

The corpus folder holds train.txt and valid.txt (WikiText-2, one paragraph or heading a line). A run
that was stopped goes on from its last checkpoint. `--out` ends with the model, its tokenizer,
`history.npz` (the position table over training) and `card.json` (what was trained and how well it does).
"""

from __future__ import annotations

import argparse
import json
import math
import re
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint

POSITIONS = 128
VOCABULARY = 512
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def plain_text(path: Path) -> str:
    """WikiText without its tokenisation marks, so that the model reads text as people write it."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r" @(.)@ ", r"\1", text)
    text = re.sub(r" ([,.;:!?%)\]]|'s\b|n't\b)", r"\1", text)
    text = re.sub(r"([(\[$]) ", r"\1", text)
    text = re.sub(r'" ([^"\n]*) "', r'"\1"', text)
    text = text.replace(" <unk>", "").replace("<unk> ", "")
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def train_tokenizer(text: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE: every text can be written, nothing is unknown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(text.splitlines(), trainer)
    cls, sep = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", cls), ("[SEP]", sep)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=POSITIONS,
    )


class Windows(torch.utils.data.Dataset[dict[str, list[int]]]):
    """Every start position is a window: [CLS], POSITIONS - 2 tokens, [SEP]."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, text: str, step: int = 1) -> None:
        self.ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        self.ends = tokenizer.cls_token_id, tokenizer.sep_token_id
        self.starts = range(0, len(self.ids) - (POSITIONS - 2) + 1, step)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        start = self.starts[index]
        first, last = self.ends
        return {"input_ids": [first, *self.ids[start : start + POSITIONS - 2], last]}


class PositionHistory(TrainerCallback):
    """Keep the position table over training: when do its waves appear?"""

    def __init__(self, path: Path, every: int = 250) -> None:
        self.path, self.every = path, every
        self.tables: dict[int, np.ndarray] = {}
        if path.exists():
            with np.load(path) as stored:
                self.tables = dict(zip(stored["step"].tolist(), stored["table"], strict=True))

    def keep(self, step: int, model: BertForMaskedLM) -> None:
        table = model.bert.embeddings.position_embeddings.weight
        self.tables[step] = table.detach().numpy().astype(np.float16)
        steps = sorted(self.tables)
        np.savez_compressed(self.path, step=steps, table=np.stack([self.tables[s] for s in steps]))

    def on_train_begin(self, args, state, control, model, **kwargs):
        self.keep(state.global_step, model)

    def on_step_end(self, args, state, control, model, **kwargs):
        if state.global_step % self.every == 0 or state.global_step == args.max_steps:
            self.keep(state.global_step, model)


def unigram_entropy(train: list[int], held_out: list[int]) -> float:
    """Nats per held-out token under the training text's token frequencies (add-one)."""
    counts = np.bincount(train, minlength=VOCABULARY) + 1.0
    return float(-np.log(counts / counts.sum())[held_out].mean())


def tokenizer_in(folder: Path, text: str) -> PreTrainedTokenizerFast:
    """Read the folder's tokenizer; trained on the text where there is none yet."""
    if (folder / "tokenizer.json").exists():
        return PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer = train_tokenizer(text)
    tokenizer.save_pretrained(folder)
    return tokenizer


def new_model(tokenizer: PreTrainedTokenizerFast) -> BertForMaskedLM:
    """Draw the weights of the untrained model."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=POSITIONS,
        type_vocab_size=1,
        pad_token_id=tokenizer.pad_token_id,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",  # with bfloat16 on a CPU, faster than the fused kernel at 128 tokens
    )
    return BertForMaskedLM(config)


def training_arguments(checkpoints: Path, steps: int) -> TrainingArguments:
    """How the model is trained."""
    return TrainingArguments(
        output_dir=str(checkpoints),
        max_steps=steps,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=64,
        learning_rate=1.5e-3,
        adam_beta1=0.9,
        adam_beta2=0.98,
        weight_decay=0.01,
        lr_scheduler_type="warmup_stable_decay",
        lr_scheduler_kwargs={"num_decay_steps": steps // 4},
        warmup_steps=500,
        max_grad_norm=1.0,
        logging_steps=250,
        save_steps=1000,
        save_total_limit=2,
        eval_strategy="steps",
        eval_steps=4000,
        seed=0,
        use_cpu=True,
        bf16=True,
        report_to="none",
        dataloader_num_workers=0,
        disable_tqdm=True,
    )


def card_of(trainer: Trainer, steps: int, train: Windows, held_out: Windows) -> dict[str, str | int | float]:
    """What was trained, and how well it does."""
    torch.manual_seed(0)
    losses = [trainer.evaluate()["eval_loss"] for _ in range(3)]  # three draws of the masks
    return {
        "trained_on": "WikiText-2 (CC BY-SA), train split",
        "script": "scripts/train_bundled.py",
        "steps": steps,
        "held_out_masked_token_loss_nats": round(float(np.mean(losses)), 4),
        "held_out_unigram_entropy_nats": round(unigram_entropy(train.ids, held_out.ids), 4),
        "uniform_nats": round(math.log(VOCABULARY), 4),
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=28_000)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)

    text, checkpoints = plain_text(options.corpus / "train.txt"), options.out / "checkpoints"
    tokenizer = tokenizer_in(options.out, text)
    train = Windows(tokenizer, text)
    held_out = Windows(tokenizer, plain_text(options.corpus / "valid.txt"), step=POSITIONS - 2)
    model = new_model(tokenizer)
    trainer = Trainer(
        model=model,
        args=training_arguments(checkpoints, options.steps),
        train_dataset=train,
        eval_dataset=held_out,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15),
        callbacks=[PositionHistory(options.out / "history.npz")],
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(checkpoints)) or None)
    card = card_of(trainer, options.steps, train, held_out)
    model.save_pretrained(options.out)
    (options.out / "card.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(card, indent=2))


if __name__ == "__main__":
    main()
