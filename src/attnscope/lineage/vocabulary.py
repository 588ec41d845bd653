"""Subwords: one vocabulary for both languages, learned from the texts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from attnscope.support.errors import AttnscopeError

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
MASK = "<mask>"
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
SPACE = "▁"
LONGEST_SUBWORD = 16  # characters: bounds the time where words are not divided by spaces
LINES_AT_ONCE = 10_000  # encoded together: bounds the memory

# Punctuation and symbols stand alone, with the space before them. Not cut: an apostrophe or hyphen between letters
# (don't, T-shirt), a point or comma between digits (3.5).
INSIDE_WORDS = r"(?<=\p{L})['’\-](?=\p{L})|(?<=\p{N})[.,](?=\p{N})"
PUNCTUATION = rf"{SPACE}?(?!{INSIDE_WORDS})[\p{{P}}\p{{S}}&&[^{SPACE}]]"


def train_subwords(
    texts: Sequence[str],
    size: int,
    *,
    lowercase: bool = False,
    nfkc: bool = False,
    coverage: float = 0.9999,
    masked: bool = False,
) -> PreTrainedTokenizerFast:
    r"""Learn a vocabulary by byte-pair encoding."""
    special = [*SPECIAL, MASK] if masked else [*SPECIAL]
    normalizer = normalizers.Sequence(
        [*([normalizers.NFKC()] if nfkc else []), *([normalizers.Lowercase()] if lowercase else [])]
    )
    alphabet = _alphabet((normalizer.normalize_str(text) for text in texts), coverage)
    fixed = len(special) + len(BYTES)
    if size < fixed + len(alphabet):
        raise AttnscopeError(
            f"found a vocabulary of {size} tokens for {len(alphabet)} characters; expected at least "
            f"{fixed + len(alphabet)} ({fixed} special tokens and bytes, and the characters): "
            "ask for more tokens (--vocabulary), or in Python leave rarer characters to bytes (coverage)"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always"),
            pre_tokenizers.Split(Regex(PUNCTUATION), "isolated"),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(BYTES),
        special_tokens=special,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        max_token_length=LONGEST_SUBWORD,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer, length=len(texts))
    tokenizer.model = _with_bytes(tokenizer, special)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _wrap(tokenizer, masked=masked)


def _alphabet(texts: Iterable[str], coverage: float) -> list[str]:
    """The fewest characters that make up this share of the texts, sorted."""
    counts = Counter(chain.from_iterable(texts))
    counts = Counter({character: count for character, count in counts.items() if character != " "})
    wanted = coverage * counts.total()
    if not wanted:
        raise AttnscopeError("found no characters to learn a vocabulary from; expected sentences: give some text")
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    before = accumulate((count for _, count in ordered), initial=0)
    alphabet = [character for (character, _), reached in zip(ordered, before, strict=False) if reached < wanted]
    return sorted({*alphabet, SPACE})


def _with_bytes(tokenizer: Tokenizer, special: Sequence[str]) -> models.BPE:
    """The trained model with the 256 bytes after the special tokens."""
    model = json.loads(tokenizer.to_str())["model"]
    learned = sorted(model["vocab"], key=model["vocab"].get)[len(special) :]
    names = [*special, *BYTES, *learned]
    return models.BPE(
        {name: i for i, name in enumerate(names)},
        [(first, second) for first, second in model["merges"]],
        unk_token="<unk>",  # noqa: S106
        byte_fallback=True,
    )


def _wrap(tokenizer: Tokenizer, *, masked: bool) -> PreTrainedTokenizerFast:
    begin = "<s> " if masked else ""
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin}$A </s>", pair=f"{begin}$A </s> $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    if masked:
        names |= {"cls_token": "<s>", "sep_token": "</s>", "mask_token": MASK}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        split_special_tokens=not masked,
        **names,
    )


def encode_lines(tokenizer: PreTrainedTokenizerBase, lines: Sequence[str]) -> list[list[int]]:
    """Token ids of each line, with the special tokens that the tokenizer puts around a text."""
    ids: list[list[int]] = []
    options = {"padding": False, "truncation": False, "return_attention_mask": False, "verbose": False}
    for start in range(0, len(lines), LINES_AT_ONCE):
        ids.extend(tokenizer(list(lines[start : start + LINES_AT_ONCE]), **options)["input_ids"])
    return ids
