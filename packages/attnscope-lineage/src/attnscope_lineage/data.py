"""Training data: subwords, and batches of pairs or masked windows, reproducible from the seed."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from math import ceil
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Int
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from attnscope.models.common import IGNORED
from attnscope.read.windows import padded
from attnscope.support.errors import AttnscopeError, explaining
from attnscope_lineage.config import TrainConfig
from attnscope_lineage.parallel_text import ParallelText, generate_task, is_unsegmented, read_parallel

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
MASK = "<mask>"
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
SPACE = "▁"
LONGEST_SUBWORD = 16  # characters: bounds the time where words are not divided by spaces
LINES_AT_ONCE = 10_000  # encoded together: bounds the memory

# Punctuation and symbols are tokens of their own, with the space before them, except an apostrophe or hyphen between
# letters (don't, T-shirt) and a point or comma between digits (3.5).
INSIDE_WORDS = r"(?<=\p{L})['’\-](?=\p{L})|(?<=\p{N})[.,](?=\p{N})"
PUNCTUATION = rf"{SPACE}?(?!{INSIDE_WORDS})[\p{{P}}\p{{S}}&&[^{SPACE}]]"


def train_subwords(
    texts: Sequence[str], size: int, *, lowercase: bool = False, coverage: float = 0.9999, masked: bool = False
) -> PreTrainedTokenizerFast:
    r"""Learn a vocabulary by byte-pair encoding."""
    special = [*SPECIAL, MASK] if masked else [*SPECIAL]
    tokenizer = _without_model(lowercase=lowercase)
    normalizer = tokenizer.normalizer
    alphabet = _alphabet((normalizer.normalize_str(text) for text in texts), coverage)
    fixed = len(special) + len(BYTES)
    if size < fixed + len(alphabet):
        raise AttnscopeError(
            f"found a vocabulary of {size} tokens for {len(alphabet)} characters; expected at least "
            f"{fixed + len(alphabet)} (with {fixed} special tokens and bytes): increase --vocabulary, or in Python "
            "lower the coverage, which encodes rare characters as bytes"
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
    model = json.loads(tokenizer.to_str())["model"]
    learned = sorted(model["vocab"], key=model["vocab"].get)[len(special) :]
    tokenizer.model = models.BPE(
        {name: i for i, name in enumerate([*special, *BYTES, *learned])},
        [(first, second) for first, second in model["merges"]],
        unk_token="<unk>",  # noqa: S106
        byte_fallback=True,
    )
    return _with_ends(tokenizer, _NAMES, masked=masked)


def train_words(
    texts: Sequence[str], size: int, *, lowercase: bool = False, masked: bool = False
) -> PreTrainedTokenizerFast:
    """Learn the most frequent words: pieces between spaces, with punctuation apart; others are ``<unk>``."""
    tokenizer = _without_model(lowercase=lowercase)
    tokenizer.model = models.WordLevel(unk_token="<unk>")  # noqa: S106
    special = [*SPECIAL, MASK] if masked else [*SPECIAL]
    trainer = trainers.WordLevelTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer, length=len(texts))
    return _with_ends(tokenizer, _NAMES, masked=masked)


def _without_model(*, lowercase: bool) -> Tokenizer:
    """A tokenizer that divides texts at spaces and punctuation, and has not learned anything yet."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase()] if lowercase else [])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always"),
            pre_tokenizers.Split(Regex(PUNCTUATION), "isolated"),
        ]
    )
    tokenizer.decoder = _DECODER
    return tokenizer


_DECODER = decoders.Sequence(
    [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)
_NAMES = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def _with_ends(backend: Tokenizer, names: dict[str, str], *, masked: bool) -> PreTrainedTokenizerFast:
    """A tokenizer of transformers that ends each text, with the special tokens of these names."""
    if masked:
        names = names | {"cls_token": names["bos_token"], "sep_token": names["eos_token"], "mask_token": MASK}
    backend.add_special_tokens([*names.values()])  # no effect on those that it has
    first, last = names["bos_token"], names["eos_token"]
    begin = f"{first} " if masked else ""
    ends = [(token, backend.token_to_id(token)) for token in (first, last)]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{begin}$A {last}", pair=f"{begin}$A {last} $B {last}", special_tokens=ends
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        split_special_tokens=not masked,
        **names,
    )


_USUAL_NAMES = {
    "pad_token": ("<pad>", "[PAD]"),
    "bos_token": ("<s>", "[CLS]", "<bos>", "<|startoftext|>", "<|endoftext|>"),
    "eos_token": ("</s>", "[SEP]", "<eos>", "<|endoftext|>"),
    "unk_token": ("<unk>", "[UNK]"),
}


def read_tokenizer(path: Path, *, masked: bool = False) -> PreTrainedTokenizerFast:
    """Read a SentencePiece model, a file of tokenizers, or a folder; special tokens that it lacks are added."""
    names: dict[str, str] = {}
    with explaining(
        f"cannot read the tokenizer {path}",
        "Pass a SentencePiece model (which needs sentencepiece and protobuf), a file of tokenizers (.json) or a folder",
    ):
        if path.is_dir():
            loaded = AutoTokenizer.from_pretrained(path)
            names = {name: getattr(loaded, name) for name in _USUAL_NAMES if getattr(loaded, name)}
            backend: Tokenizer = loaded.backend_tokenizer  # pyright: ignore[reportAttributeAccessIssue]
        elif path.suffix == ".json":
            backend = Tokenizer.from_file(str(path))
        else:
            backend = _from_sentencepiece(path)
    for name, (usual, *others) in _USUAL_NAMES.items():
        existing = (token for token in (usual, *others) if backend.token_to_id(token) is not None)
        names.setdefault(name, next(existing, usual))
    return _with_ends(backend, names, masked=masked)


def _from_sentencepiece(path: Path) -> Tokenizer:
    """A tokenizer of the same pieces: a unigram or BPE model of SentencePiece."""
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # pyright: ignore[reportAttributeAccessIssue]

    proto: Any = ModelProto()
    proto.ParseFromString(path.read_bytes())
    unknown, fallback = proto.trainer_spec.unk_id, proto.trainer_spec.byte_fallback
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    if proto.trainer_spec.model_type == proto.trainer_spec.UNIGRAM:
        tokenizer = Tokenizer(models.Unigram(pieces, unknown, byte_fallback=fallback))
    else:
        vocabulary = {piece: number for number, (piece, _) in enumerate(pieces)}
        merges = _merges_of(vocabulary)
        bpe = models.BPE(vocabulary, merges, unk_token=pieces[unknown][0], fuse_unk=True, byte_fallback=fallback)
        tokenizer = Tokenizer(bpe)
    table = proto.normalizer_spec.precompiled_charsmap
    spaces = [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence([*([normalizers.Precompiled(table)] if table else []), *spaces])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    tokenizer.decoder = _DECODER
    marks = [piece.piece for piece in proto.pieces if piece.type in {piece.UNKNOWN, piece.CONTROL}]
    tokenizer.add_special_tokens(marks)
    return tokenizer


def _merges_of(vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """The merges of a BPE model of SentencePiece, in the order in which it learned its pieces."""
    merges: list[tuple[int, int, int, str, str]] = []
    for piece, number in vocabulary.items():
        for cut in range(1, len(piece)):
            first, second = piece[:cut], piece[cut:]
            if first in vocabulary and second in vocabulary:
                merges.append((number, vocabulary[first], vocabulary[second], first, second))
    return [(first, second) for *_, first, second in sorted(merges)]


def _alphabet(texts: Iterable[str], coverage: float) -> list[str]:
    """The smallest set of characters that covers this share of the texts, sorted."""
    counts = Counter(chain.from_iterable(texts))
    counts = Counter({character: count for character, count in counts.items() if character != " "})
    wanted = coverage * counts.total()
    if not wanted:
        raise AttnscopeError("found no characters to learn a vocabulary from; expected sentences")
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    before = accumulate((count for _, count in ordered), initial=0)
    alphabet = [character for (character, _), reached in zip(ordered, before, strict=False) if reached < wanted]
    return sorted({*alphabet, SPACE})


def encode_lines(tokenizer: PreTrainedTokenizerBase, lines: Sequence[str]) -> list[list[int]]:
    """Token ids of each line, with the special tokens that the tokenizer puts around a text."""
    ids: list[list[int]] = []
    options: dict[str, Any] = {"padding": False, "truncation": False, "return_attention_mask": False, "verbose": False}
    for start in range(0, len(lines), LINES_AT_ONCE):
        ids.extend(tokenizer(list(lines[start : start + LINES_AT_ONCE]), **options)["input_ids"])
    return ids


Batch = dict[str, Tensor]
_BY_SPACES = ("13a", "intl")  # tokenizers of BLEU that need spaces
HELD_OUT = 500  # pairs held out if no validation text is given


@dataclass(eq=False)
class Pairs:
    """Parallel text as tokens, and its division into batches."""

    config: TrainConfig
    train: EncodedText  # encoded pairs
    text: ParallelText  # their text; `train.index` maps each to its pair
    valid: ParallelText  # the validation text
    tokenizer: Any

    def __post_init__(self) -> None:
        self.left_out = self.train.left_out
        self.description = _describe_pairs(len(self.train), len(self.valid))
        self.lengths = self.train.lengths()
        share = self.config.bpe_dropout
        self.segmenter = Segmenter(self.tokenizer, share) if share else None

    def epoch(self, number: int) -> list[np.ndarray]:
        """Batches of about `batch_tokens` target tokens, of similar lengths."""
        return epoch_batches(self.lengths, self.config.batch_tokens, self.config.seed, number)

    def parts(self, members: np.ndarray, count: int, seed: int) -> list[Batch | None]:
        """Padded tokens of these pairs in `count` parts, None for an empty one; `seed` determines the randomness.

        They are divided by their lengths without dropout.
        """
        return [
            collate(*zip(*(self._pair(i, seed) for i in part.tolist()), strict=True)) if len(part) else None
            for part in split_batch(members, self.lengths, count)
        ]

    def _pair(self, member: int, seed: int) -> tuple[list[int], list[int]]:
        """Tokens of source and target; where merges are left out, a function of the seed and the pair alone."""
        plain = self.train.source[member], self.train.target[member]
        if self.segmenter is None:
            return plain
        line, draw = self.train.index[member], Random(f"{seed} {member}")
        source, target = self.text.source[line], self.text.target[line]
        new = self.segmenter.encode(source, draw), self.segmenter.encode(target, draw)
        return new if max(map(len, new)) <= self.config.longest else plain

    def validation(self) -> list[Batch]:
        """Batches of the validation pairs, always tokenized without dropout."""
        encoded = encode_pairs(self.tokenizer, self.valid, longest=self.config.longest)
        batches = epoch_batches(encoded.lengths(), self.config.batch_tokens, 0, 0)
        return [collate([encoded.source[i] for i in part], [encoded.target[i] for i in part]) for part in batches]

    def sha256(self) -> str:
        tokens = json.dumps([self.train.source, self.train.target])
        return hashlib.sha256((tokens + self.valid.sha256()).encode()).hexdigest()


@dataclass(eq=False)
class MaskedWindows:
    """Plain text, cut into windows of `longest` tokens that start anywhere; some tokens are masked."""

    config: TrainConfig
    train_ids: np.ndarray
    valid_ids: np.ndarray
    tokenizer: Any
    left_out: dict[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        self.description = f"tokens: {len(self.train_ids):,} for training, {len(self.valid_ids):,} for validation"
        for name, ids in (("training", self.train_ids), ("validation", self.valid_ids)):
            if len(ids) < self.body:
                raise AttnscopeError(
                    f"the {name} text has {len(ids)} tokens; expected {self.body} or more: add text, or reduce "
                    "'longest'"
                )

    @property
    def body(self) -> int:
        """Tokens of a window between its two ends."""
        return self.config.longest - 2

    @property
    def batch(self) -> int:
        return max(1, self.config.batch_tokens // self.config.longest)

    def epoch(self, number: int) -> list[np.ndarray]:
        """Starts of windows, in batches of `batch_tokens` tokens."""
        rng = np.random.default_rng((self.config.seed, number))
        count = len(self.train_ids) // self.body
        starts = rng.integers(0, len(self.train_ids) - self.body + 1, count)
        return [starts[i : i + self.batch] for i in range(0, count, self.batch)]

    def parts(self, members: np.ndarray, count: int, seed: int) -> list[Batch | None]:
        """Windows that start there, with some tokens masked."""
        whole = self._masked(self.train_ids, members, seed)
        rows = np.array_split(np.arange(len(members)), count)
        return [{name: values[part] for name, values in whole.items()} if len(part) else None for part in rows]

    def validation(self) -> list[Batch]:
        """The held-out text, window by window, with a fixed mask."""
        starts = np.arange(0, len(self.valid_ids) - self.body + 1, self.body)
        size = self.batch
        return [self._masked(self.valid_ids, starts[i : i + size], i) for i in range(0, len(starts), size)]

    def sha256(self) -> str:
        return hashlib.sha256(self.train_ids.tobytes() + b"|" + self.valid_ids.tobytes()).hexdigest()

    def _masked(self, ids: np.ndarray, starts: np.ndarray, seed: int) -> Batch:
        body = torch.from_numpy(ids[starts[:, None] + np.arange(self.body)])
        ends = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        first, last = (torch.full((len(starts), 1), end) for end in ends)
        window = torch.cat([first, body, last], 1)
        draw = torch.Generator().manual_seed(seed)
        chosen = torch.rand(window.shape, generator=draw, dtype=torch.float32) < self.config.mask_share
        chosen[:, [0, -1]] = False
        chosen[:, 1] |= ~chosen.any(1)  # every window has a masked token
        how = torch.rand(window.shape, generator=draw, dtype=torch.float32)
        other = torch.randint(len(self.tokenizer), window.shape, generator=draw)
        masked = torch.where(chosen & (how < 0.8), self.tokenizer.mask_token_id, window)  # noqa: PLR2004
        masked = torch.where(chosen & (how >= 0.9), other, masked)  # noqa: PLR2004
        return {
            "input_ids": masked,
            "attention_mask": torch.ones_like(masked),
            "labels": window.masked_fill(~chosen, -100),
        }


@dataclass(eq=False)
class RestoredWords:
    """Lines in which words were replaced (the source), and the words to restore (the target), token by token."""

    config: TrainConfig
    train: EncodedText
    valid: EncodedText
    tokenizer: Any

    def __post_init__(self) -> None:
        self.left_out = self.train.left_out
        self.description = _describe_pairs(len(self.train), len(self.valid))
        for name, text in (("training", self.train), ("validation", self.valid)):
            for source, target, line in zip(text.source, text.target, text.index, strict=True):
                if len(source) != len(target) or source == target:
                    raise AttnscopeError(
                        f"{name} pair {line + 1} has {len(source)} tokens in the source and {len(target)} in the "
                        "target; expected the same number, and another token at one position or more"
                    )

    def epoch(self, number: int) -> list[np.ndarray]:
        """Batches of about `batch_tokens` tokens, of similar lengths."""
        return epoch_batches(self.train.lengths(), self.config.batch_tokens, self.config.seed, number)

    def parts(self, members: np.ndarray, count: int, seed: int) -> list[Batch | None]:  # noqa: ARG002
        """Lines, with a label at each replaced token and at a share of the others, in `count` parts."""
        divided = split_batch(members, self.train.lengths(), count)
        return [self._batch(self.train, part) if len(part) else None for part in divided]

    def validation(self) -> list[Batch]:
        """Batches of the validation lines."""
        batches = epoch_batches(self.valid.lengths(), self.config.batch_tokens, 0, 0)
        return [self._batch(self.valid, part) for part in batches]

    def sha256(self) -> str:
        texts = [[text.source, text.target] for text in (self.train, self.valid)]
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest()

    def _batch(self, text: EncodedText, part: np.ndarray) -> Batch:
        batch = collate([text.source[i] for i in part], [text.target[i] for i in part])
        draw = torch.Generator().manual_seed(int(part[0]))
        others = torch.rand(batch["labels"].shape, generator=draw) > self.config.mask_share
        batch["labels"] = batch["labels"].masked_fill((batch["labels"] == batch["input_ids"]) & others, IGNORED)
        return batch


def _describe_pairs(train: int, valid: int) -> str:
    return f"pairs: {train:,} for training, {valid:,} for validation"


TrainingData: TypeAlias = Pairs | MaskedWindows | RestoredWords


def read_data(config: TrainConfig, tokenizer: PreTrainedTokenizerBase | None = None) -> TrainingData:
    """Read the texts of a configuration, and learn their vocabulary if there is none yet."""
    return _masked(config, tokenizer) if config.model == "masked-lm" else _pairs(config, tokenizer)


def _pairs(config: TrainConfig, tokenizer: PreTrainedTokenizerBase | None) -> Pairs:
    train, valid = (text.joined(config.join, config.seed) for text in training_pairs(config))
    if config.bleu_tokenizer in _BY_SPACES and is_unsegmented(valid.target):
        raise AttnscopeError(
            f"the validation target has no spaces between words, which BLEU with {config.bleu_tokenizer} needs: "
            "use --bleu-tokenizer ja-mecab, zh or char"
        )
    tokenizer = tokenizer or _tokenizer_for(config, [*train.source, *train.target])
    tokenizer.model_max_length = config.longest
    return Pairs(config, encode_pairs(tokenizer, train, longest=config.longest), train, valid, tokenizer)


def _tokenizer_for(config: TrainConfig, lines: Sequence[str]) -> PreTrainedTokenizerFast:
    """The tokenizer that the settings name, or that of the first weights; else one that is learned from the lines."""
    masked = config.model == "masked-lm"
    path = config.tokenizer or (None if config.init is None else run_of(config.init))
    if path is not None:
        return read_tokenizer(path, masked=masked)
    learn = train_words if config.tokens == "words" else train_subwords
    return learn(lines, config.vocabulary, lowercase=config.lowercase, masked=masked)


def run_of(folder: Path) -> Path:
    """The folder of a training, of which `folder` may be a checkpoint."""
    return folder.parent.parent if folder.parent.name == "checkpoints" else folder


def training_pairs(config: TrainConfig) -> tuple[ParallelText, ParallelText]:
    """Training and validation pairs, not joined yet; without validation text, the last pairs are set aside."""
    if config.source is None:
        longest, held_out = config.task_longest, min(HELD_OUT, config.task_pairs // 10)
        train = generate_task(config.task_pairs, config.seed, longest)
        return train, generate_task(held_out, config.seed, longest, held_out=True)
    first, _, second = config.sides.partition(",")
    sides = first.strip(), second.strip()
    text = read_parallel(config.source, config.target, sides=sides)
    if config.valid_source is not None:
        return text, read_parallel(config.valid_source, config.valid_target, sides=sides)
    cut = len(text) - min(HELD_OUT, len(text) // 10)
    if cut == len(text):
        raise AttnscopeError(f"found {len(text)} pairs; expected 10 or more: add text")
    train = ParallelText(text.source[:cut], text.target[:cut], text.left_out)
    return train, ParallelText(text.source[cut:], text.target[cut:])


def _restored(config: TrainConfig, tokenizer: PreTrainedTokenizerBase | None) -> RestoredWords:
    train, valid = training_pairs(config)
    tokenizer = tokenizer or _tokenizer_for(config, [*train.source, *train.target])
    tokenizer.model_max_length = config.longest
    encoded, held_out = (encode_pairs(tokenizer, text, longest=config.longest) for text in (train, valid))
    return RestoredWords(config, encoded, held_out, tokenizer)


def _masked(config: TrainConfig, tokenizer: PreTrainedTokenizerBase | None) -> MaskedWindows | RestoredWords:
    if config.source is not None and config.text is None:
        return _restored(config, tokenizer)
    if config.text is None or config.source is not None:
        raise AttnscopeError(
            "a masked language model needs either 'text' (plain text) or 'source' and 'target' (lines with replaced "
            "words, and the original lines); set one of both"
        )
    lines = _lines(config.text)
    if config.valid_text is None:
        cut = max(1, len(lines) * 19 // 20)
        lines, held_out = lines[:cut], lines[cut:]
    else:
        held_out = _lines(config.valid_text)
    tokenizer = tokenizer or _tokenizer_for(config, lines)
    tokenizer.model_max_length = config.longest
    return MaskedWindows(config, _stream(tokenizer, lines), _stream(tokenizer, held_out), tokenizer)


def _lines(path: Path) -> list[str]:
    from attnscope.read.texts import Corpus

    return [line.strip() for text in Corpus.from_sources([path]) for line in text.content.splitlines() if line.strip()]


def _stream(tokenizer: PreTrainedTokenizerBase, lines: Sequence[str]) -> np.ndarray:
    """All tokens in sequence, without the marks at the ends of lines."""
    encoded = encode_lines(tokenizer, lines)
    return np.array([token for line in encoded for token in line if token not in tokenizer.all_special_ids])


FILL = 0.98  # share of the budget aimed at, as parts do not divide evenly
FEW = 64  # batches, up to which halving leaves too much padding and every cut is tried
SLACK = 1.25  # cells of a side, in budgets, beyond which a batch is split for its padding


@dataclass(frozen=True)
class EncodedText:
    """Pairs as token ids."""

    source: list[list[int]]  # ids of each pair, ``</s>`` included
    target: list[list[int]]
    index: list[int]  # which pair of the parallel text each one is
    left_out: dict[str, int]  # number of dropped pairs, by reason: those of the parallel text, and ``too long``

    def __len__(self) -> int:
        return len(self.index)

    def lengths(self) -> Int[np.ndarray, "pair side"]:
        """Tokens of source and target of each pair."""
        pairs = zip(self.source, self.target, strict=True)
        return np.array([(len(source), len(target)) for source, target in pairs], np.int64).reshape(-1, 2)


def encode_pairs(tokenizer: PreTrainedTokenizerBase, text: ParallelText, *, longest: int | None = None) -> EncodedText:
    """Encode both sides, and drop the pairs that are too long."""
    source, target = encode_lines(tokenizer, text.source), encode_lines(tokenizer, text.target)
    lengths = (max(map(len, pair)) for pair in zip(source, target, strict=True))
    short = [i for i, length in enumerate(lengths) if longest is None or length <= longest]
    if not short:
        raise AttnscopeError(
            f"found no pair of at most {longest} tokens per side among {len(text)}: increase 'longest', or split "
            "the lines into sentences"
        )
    left_out = dict(text.left_out)
    if len(short) < len(text):
        left_out["too long"] = len(text) - len(short)
    return EncodedText([source[i] for i in short], [target[i] for i in short], short, left_out)


def epoch_batches(
    lengths: Int[np.ndarray, "pair side"], budget: int, seed: int, epoch: int
) -> list[Int[np.ndarray, " _"]]:
    """Divide all pairs into the batches of one epoch."""
    generator = np.random.default_rng((seed, epoch))
    # sorting by one of these orders by one side, then by the other, then at random
    scale = int(lengths.max()) + 1
    chance = generator.random(len(lengths))
    source, target = lengths.T
    keys = source * scale + target + chance, target * scale + source + chance
    longer = lengths.max(1)
    batches_wanted = ceil(int(longer.sum()) / (FILL * budget))
    parts = [(np.arange(len(lengths)), batches_wanted)]
    batches: list[np.ndarray] = []
    while parts:
        part, count = parts.pop()
        cells = len(part) * int(longer[part].max())
        fits = int(longer[part].sum()) <= budget and cells <= SLACK * budget
        if len(part) == 1 or (count == 1 and fits):
            batches.append(part)
        else:
            parts.extend(_divide(part, max(2, count), lengths, keys, every=batches_wanted <= FEW))
    return [batches[i] for i in generator.permutation(len(batches))]


def _divide(
    part: np.ndarray, count: int, lengths: np.ndarray, keys: tuple[np.ndarray, np.ndarray], *, every: bool
) -> list[tuple[np.ndarray, int]]:
    """Divide the pairs of `count` batches into two parts, by the side and cut with the least padding."""
    ways: list[tuple[int, np.ndarray, int, int]] = []
    for key in keys:
        order = part[np.argsort(key[part])]
        reached = np.cumsum(lengths[order].max(1))
        for left in range(1, count) if every else [count // 2]:
            cut = int(np.abs(reached[:-1] - reached[-1] * (left / count)).argmin()) + 1
            cells = sum(len(half) * int(lengths[half].max(0).sum()) for half in (order[:cut], order[cut:]))
            ways.append((cells, order, cut, left))
    _, order, cut, left = min(ways, key=lambda way: way[0])
    return [(order[:cut], left), (order[cut:], count - left)]


def split_batch(
    batch: Int[np.ndarray, " batch"], lengths: Int[np.ndarray, "pair side"], world: int
) -> list[Int[np.ndarray, " _"]]:
    """Divide one batch among processes, so that together they process exactly this batch."""
    reached = np.cumsum(lengths[batch].max(1))
    return np.split(batch, np.searchsorted(reached, reached[-1] * np.arange(1, world) / world, side="right"))


def collate(
    source: Sequence[Sequence[int]], target: Sequence[Sequence[int]] | None = None, *, pad_id: int = 0
) -> dict[str, Int[Tensor, "pair position"]]:
    """Stack pairs, padded on the right to the longest."""
    batch = {"input_ids": padded(source, pad_id), "attention_mask": padded([[1] * len(ids) for ids in source])}
    if target is not None:
        batch["labels"] = padded(target, IGNORED)
    return batch


CACHED = 2**16  # partly merged pieces whose next merges are remembered: some 50 MB


class Segmenter:
    """Byte-pair encoding that skips merges at random."""

    def __init__(self, tokenizer: Any, dropout: float) -> None:
        self.dropout = dropout
        backend = tokenizer.backend_tokenizer
        self._normalizer, self._pre_tokenizer = backend.normalizer, backend.pre_tokenizer
        self._end: int = tokenizer.eos_token_id
        model = json.loads(backend.to_str())["model"]
        self._ids: dict[str, int] = model["vocab"]
        self._merges = {
            (self._ids[first], self._ids[second]): (rank, self._ids[first + second])
            for rank, (first, second) in enumerate(model["merges"])
        }
        self._characters = lru_cache(CACHED)(self._find_characters)
        self._possible = lru_cache(CACHED)(self._find_possible)

    def encode(self, line: str, draw: Random) -> list[int]:
        """Token ids of a line, ``</s>`` included."""
        pieces = self._pre_tokenizer.pre_tokenize_str(self._normalizer.normalize_str(line))
        return [*(token for piece, _ in pieces for token in self._merged(piece, draw)), self._end]

    def _merged(self, piece: str, draw: Random) -> tuple[int, ...]:
        tokens = self._characters(piece)
        while True:
            for at, token in self._possible(tokens):
                if draw.random() >= self.dropout:
                    tokens = (*tokens[:at], token, *tokens[at + 2 :])
                    break
            else:
                return tokens

    def _find_characters(self, piece: str) -> tuple[int, ...]:
        pieces = ([one] if one in self._ids else [BYTES[byte] for byte in one.encode()] for one in piece)
        return tuple(self._ids[name] for names in pieces for name in names)

    def _find_possible(self, tokens: tuple[int, ...]) -> list[tuple[int, int]]:
        """Where two tokens can be merged, and into which one: the merge that was learned first comes first."""
        pairs = enumerate(pairwise(tokens))
        possible = sorted((*self._merges[pair], at) for at, pair in pairs if pair in self._merges)
        return [(at, token) for _, token, at in possible]
