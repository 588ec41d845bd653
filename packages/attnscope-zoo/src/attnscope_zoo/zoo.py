"""One planted model with its ground truth: heads that matter, and others that only seem important."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from attnscope.models.common import IGNORED
from attnscope_zoo.heads import (
    ASK,
    COLUMNS,
    CONSTANT,
    GAIN,
    GAP,
    START,
    TEXTS,
    Head,
    Move,
    Rotary,
    ScoreRule,
    Shift,
    Space,
    Waves,
    carry,
    matching,
)


@dataclass(frozen=True, eq=False)
class AttendedKeys:
    """The keys that a head attends to by construction, and the share of its weight on them."""

    keys: Bool[Tensor, "text query key"]  # ``(text, query, key)``: the keys; rows without one are not constrained
    least: float  # share of a row's weight on them
    most: float


@dataclass(frozen=True, eq=False)
class PlantedModel:
    """A model whose circuit is known, and the task that it solves."""

    name: str  # such as ``induction-decoder-3``
    circuit: str  # such as ``induction``
    form: str  # such as ``decoder``
    architecture: str  # such as ``gpt2``
    seed: int
    noise: float  # standard deviation of the noise on weights, as a share of the root mean square of each matrix
    model: PreTrainedModel  # in eval mode, float32
    ids: Int[Tensor, "text token"]  # ``(text, token)``; the source, for an encoder-decoder
    # ``(text, query)``: input of the decoder of an encoder-decoder, else None
    target: Int[Tensor, "text query"] | None
    # ``(text, query)``: the token to predict, not shifted; -100 without a query
    labels: Int[Tensor, "text query"]
    # ``(vocabulary,)``: tokens of one number may replace each other in a valid text
    groups: Int[Tensor, " vocabulary"]
    # ``(layer, head)``: whether removing this head alone changes predictions, by construction
    heads: Bool[Tensor, "layer head"]
    roles: tuple[tuple[str, ...], ...]  # a description of each head
    # ``(text, query, token)``: whether the prediction at a query depends on this input token (of the source, for an
    # encoder-decoder); False in rows without a query
    tokens: Bool[Tensor, "text query token"] | None
    # groups of heads, as (layer, head), that are backups of each other
    redundant: tuple[tuple[tuple[int, int], ...], ...]
    attended: Mapping[tuple[int, int], tuple[AttendedKeys, ...]]  # the keys of planted heads

    @property
    def inputs(self) -> dict[str, Tensor]:
        """Arguments of the model's forward pass."""
        given = {"input_ids": self.ids}
        return given if self.target is None else given | {"decoder_input_ids": self.target}

    @torch.no_grad()
    def logits(self) -> Float[Tensor, "text query vocabulary"]:
        return self.model(**self.inputs).logits

    def loss(self, logits: Float[Tensor, "text query vocabulary"]) -> Float[Tensor, ""]:
        """Mean cross-entropy over all queries, in nats."""
        return cross_entropy(logits.flatten(0, 1), self.labels.flatten(), ignore_index=IGNORED)

    def accuracy(self, logits: Float[Tensor, "text query vocabulary"]) -> Float[Tensor, ""]:
        """Share of queries with a correct answer."""
        return (logits.argmax(-1) == self.labels)[self.labels != IGNORED].double().mean()

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """A tokenizer of the words ``t0 t1 ...``, for `attnscope.scan`."""
        from transformers import PreTrainedTokenizerFast

        words = {f"t{number}": number for number in range(len(self.groups))}
        padding = "t0"
        backend = Tokenizer(WordLevel(words, unk_token=padding))
        backend.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
        return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=padding, unk_token=padding)


HEAD_WIDTH = 48  # columns of a head's queries, keys and values


@dataclass(frozen=True)
class Setting:
    """The planted model that is requested."""

    form: str  # ``decoder``, ``encoder`` or ``encoder-decoder``
    architecture: str  # an architecture of that form
    noise: float  # standard deviation of the noise on weights, as a share of the root mean square of each matrix
    seed: int


Ids = Int[np.ndarray, " id"]


class Draft:
    """A model with planted heads, by attention call; `fill` adds heads without effect, and positions."""

    positions: Rotary | Waves

    def __init__(
        self,
        setting: Setting,
        groups: dict[str, int],
        *,
        calls: int = 2,
        slots: int = 0,
        lengths: tuple[int, int] = (16, 28),
        is_faint: bool = False,
    ) -> None:
        self.is_faint = is_faint
        self.setting = setting
        self.rng = np.random.default_rng(setting.seed)
        self.length = int(self.rng.integers(lengths[0], lengths[1] + 1))
        starts = ASK + 1 + np.cumsum([0, *groups.values()])
        self.ids: dict[str, Ids] = {
            name: np.arange(start, start + size)
            for (name, size), start in zip(groups.items(), starts[:-1], strict=True)
        }
        self.vocabulary = int(starts[-1])
        self.heads = int(self.rng.choice([4, 5]))
        parts = {"token": self.vocabulary, "position": COLUMNS, "answer": self.vocabulary}
        parts |= {f"slot{number}": self.vocabulary for number in range(slots)}
        self.space = Space(self.heads * HEAD_WIDTH - 1, **parts)
        self.unembed = self.rows("answer")
        self.encoder_calls = calls if setting.form == "encoder-decoder" else 0
        count = 3 * calls if self.encoder_calls else calls
        self.calls: list[list[Head]] = [[] for _ in range(count)]
        self.attended: list[tuple[Head, AttendedKeys]] = []

    @property
    def is_causal(self) -> bool:
        """Whether queries see no later keys."""
        return self.setting.form == "decoder"

    @property
    def is_pair(self) -> bool:
        """Whether it is an encoder-decoder."""
        return self.setting.form == "encoder-decoder"

    @property
    def groups(self) -> Int[np.ndarray, " vocabulary"]:
        """Index of each token's group; the three special tokens have one each."""
        groups = np.arange(self.vocabulary)
        for ids in self.ids.values():
            groups[ids] = ids[0]
        return groups

    def calls_of_chain(self, count: int = 1) -> list[int]:
        """Calls, in order, for a chain of heads that ends at the answer."""
        if self.is_pair:
            cross = self.encoder_calls + 1 + 2 * int(self.rng.integers(self.encoder_calls))
            early = self.rng.choice(self.encoder_calls, count - 1, replace=False)
            return [*sorted(int(call) for call in early), cross]
        return sorted(int(call) for call in self.rng.choice(len(self.calls), count, replace=False))

    def rows(self, part: str, ids: Ids | None = None) -> Float[np.ndarray, "row width"]:
        """Directions of these tokens in a part of the residual stream."""
        return self.space.rows(part, ids)

    def moving(self, source: str, ids: Ids, to: str, images: Ids | None = None, gain: float = 1.0) -> Move:
        """Copy words from one part to another, each as its image."""
        return carry(self.rows(source, ids), self.rows(to, ids if images is None else images), gain)

    def at(self, offset: int, *, gap: float = GAP, nats: float | None = None, mirror: bool = False) -> ScoreRule:
        """Attend to one offset, as in `Shift`."""
        return replace(self.anywhere(), shifts=(Shift(offset, gap, nats, mirror),))

    def anywhere(self) -> ScoreRule:
        """Attend to all tokens uniformly."""
        nothing = np.zeros((0, self.space.width))
        return ScoreRule(nothing, nothing)

    def toward(self, ids: Ids | int, nats: float, queries: Float[np.ndarray, "1 width"] | None = None) -> ScoreRule:
        """Attend to these tokens at any position, from any query (or from queries with `queries`)."""
        keys = self.rows("token", np.atleast_1d(ids)).sum(0, keepdims=True)
        return matching(self.space.one if queries is None else queries, keys, nats)

    def matching(self, query: str, key: str, ids: Ids, nats: float) -> ScoreRule:
        """Attend to keys whose word in one part is the query's word in another."""
        return matching(self.rows(query, ids), self.rows(key, ids), nats)

    def plant(
        self,
        role: str,
        rule: ScoreRule,
        move: Move,
        *keys: Bool[np.ndarray, "text query key"],
        least: float = 0.7,
        most: float = 1.0,
        call: int | None = None,
        matters: bool = True,
        backup: str = "",
    ) -> None:
        """Add a head to a call, by default a random one, with `least` to `most` of its weight on its `keys`."""
        head = Head(role, rule, move, matters, backup)
        self.calls[self.calls_of_chain()[0] if call is None else call].append(head)
        self.attended += [(head, AttendedKeys(torch.from_numpy(one), least, most)) for one in keys]

    def words(self, ids: Ids) -> Int[np.ndarray, "text token"]:
        """Texts of random words after a start token, without repeated neighbours."""
        count = self.length - 1
        words = np.empty((TEXTS, count), dtype=np.int64)
        words[:, 0] = self.rng.integers(len(ids), size=TEXTS)
        for place in range(1, count):  # a step of 1 or more around the circle of words
            words[:, place] = (words[:, place - 1] + self.rng.integers(1, len(ids), TEXTS)) % len(ids)
        return np.hstack([np.full((TEXTS, 1), START), ids[words]])

    @property
    def tokens(self) -> Float[np.ndarray, "vocabulary width"]:
        return self.rows("token") + self.space.rows("constant") * CONSTANT

    @property
    def layers(self) -> int:
        """Feed-forward parts: one for each attention call, or for each pair of self and cross."""
        return self.encoder_calls + (len(self.calls) - self.encoder_calls) // (2 if self.is_pair else 1)


# of a random head's output, with a norm of about 1 in unused directions: into tokens and positions, and the answer
_LEAK, _MURMUR = 0.1, 2.0
_COLUMNS = 16  # nonzero columns of a random head


def fill(draft: Draft) -> None:
    """Fill every call with heads that do not matter, in random order."""
    for number, call in enumerate(draft.calls):
        call += [_distractor(draft, number) for _ in range(draft.heads - len(call))]
        call[:] = [call[place] for place in draft.rng.permutation(draft.heads)]
        for place, head in enumerate(call):
            head.index = (number, place)
    rotary = draft.setting.architecture == "llama"
    draft.positions = Rotary(draft.length, HEAD_WIDTH) if rotary else Waves(draft.length, draft.rng)


def _distractor(draft: Draft, call: int) -> Head:
    """One of five types, at random."""
    kind = ("sink", "offset", "match", "uniform", "random")[int(draft.rng.integers(5))]
    if kind == "sink":
        return sink(draft)
    if kind == "random":
        return _random(draft)
    if kind == "offset":
        offset = int(draft.rng.integers(-3, 1 if _is_causal(draft, call) else 4))
        rule, does = draft.at(offset), f"attends to offset {offset}"
    elif kind == "match":
        words = next(iter(draft.ids.values()))
        rule, does = draft.matching("token", "token", words[:16], 10.0), "attends to the same word"
    else:
        rule, does = draft.anywhere(), "attends uniformly"
    return Head(f"idle: {does}, writes to unused directions", rule, _into_junk(draft), matters=False)


def sink(draft: Draft) -> Head:
    """All weight on the first token, whose value is 0; values of words would be read."""
    words = next(iter(draft.ids.values()))
    images = draft.rng.permutation(words)
    return Head(
        "sink: all weight on the first token, whose value is 0",
        draft.toward(START, 14.0),
        draft.moving("token", words, "answer", images, GAIN),
        matters=False,
    )


def _random(draft: Draft) -> Head:
    heard = np.vstack([draft.rows("token"), draft.rows("position")])
    junk = draft.rows("junk")
    query, key, read = draft.rng.normal(size=(3, _COLUMNS, len(heard))) @ heard
    write = draft.rng.normal(size=(_COLUMNS, len(junk))) @ junk / len(junk) ** 0.5
    for rows, size in ((heard, 0.0 if draft.is_faint else _LEAK), (draft.rows("answer"), _MURMUR)):
        write += draft.rng.normal(size=(_COLUMNS, len(rows))) @ rows * (size / len(rows) ** 0.5)
    return Head(
        "random: attends and writes at random",
        ScoreRule(query * _COLUMNS**-0.25, key * _COLUMNS**-0.25),
        Move(read * _COLUMNS**-0.5, write),
        matters=False,
    )


def _into_junk(draft: Draft) -> Move:
    """Adds an unused direction to every token, up to six times its norm."""
    junk = draft.rows("junk")
    turn = draft.rng.normal(size=(draft.vocabulary, len(junk))) / len(junk) ** 0.5
    rows = draft.rng.choice(draft.vocabulary, min(24, draft.vocabulary), replace=False)
    return carry(draft.rows("token", rows), turn[rows] @ junk, float(draft.rng.uniform(1, 6)))


def _is_causal(draft: Draft, call: int) -> bool:
    own = draft.is_pair and call >= draft.encoder_calls and (call - draft.encoder_calls) % 2 == 0
    return draft.is_causal or own
