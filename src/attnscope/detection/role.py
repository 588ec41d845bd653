"""What a role of an attention head is: the text that it shows on, its score, and who defined it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope.capture.borrow import preserve_model_state
from attnscope.capture.forward import forward
from attnscope.capture.load import load_model
from attnscope.capture.notes import layer_coordinates
from attnscope.capture.placement import device_of
from attnscope.capture.verify import verify
from attnscope.capture.watching import watching
from attnscope.detection.seen import DELIMITERS, FIRST, Nearness, RepeatedCalls, TextCalls
from attnscope.explanation.tokens import TOKENS_AT_ONCE
from attnscope.kernels.call import Need, weights_at
from attnscope.kernels.engines import measure, output_of
from attnscope.measure.kinds import LOCAL, MORE
from attnscope.read.groups import grouping_of
from attnscope.read.windows import Window
from attnscope.store.arrays import padded_heads
from attnscope.support.arguments import validated
from attnscope.support.checks import shortly
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count

if TYPE_CHECKING:
    from jaxtyping import Int

    from attnscope.capture.load import Model
    from attnscope.capture.watch import Site
    from attnscope.kernels.call import AttentionCall

Kind = Literal["text", "repeated", "needle"]
LOOKS_BACK, LOOKS_AROUND, ANY = ("causal",), ("self", "causal"), ("self", "causal", "cross")


@dataclass(frozen=True)
class Role:
    """A role that heads may have, by a score between 0 and 1.

    Attributes
    ----------
    name, title
        In results, and for people.
    definition
        What the score is, in a sentence or two.
    source
        Who defined it.
    probe
        What is read: ``text`` (windows of the corpus), ``repeated`` (random tokens said twice), ``needle`` (a sentence
        hidden in a text, and a question about it).
    score
        From what one attention call shows of a batch of that (`seen`) to ``(batch, head)``.
    threshold
        From which score on a head has the role, where its source says so.
    more
        How many times uniform attention's score it must also be.
    layers
        Kinds of attention calls of which it is asked: ``self`` (sees both sides), ``causal``, ``cross``.
    otherwise
        Why it is not asked where there are no such layers.

    Examples
    --------
    >>> from attnscope.detection.role import ROLES
    >>> role = ROLES["previous_token"]
    >>> role.title, role.probe, role.threshold
    ('previous token', 'text', 0.5)
    """

    name: str
    title: str
    definition: str
    source: str
    probe: Kind
    score: Callable[[Any], Tensor]  # each takes what is seen of its own probe
    threshold: float | None = None
    layers: tuple[str, ...] = LOOKS_AROUND
    otherwise: str = "no layer attends within one text"
    more: float = 0.0


_CLARK = "Clark et al. 2019, What Does BERT Look At?"
_SINK = "Gu et al. 2024, When Attention Sink Emerges in Language Models (sail-sg/Attention-Sink)"
_LENS = "TransformerLens, head_detector"
_ONE_SIDED = "every layer sees both sides or another text"

ROLES: dict[str, Role] = {
    role.name: role
    for role in (
        Role(
            "previous_token",
            "previous token",
            "Share of the weight at offset -1; more than half makes a previous-token head.",
            f"{_CLARK}; the score is that of {_LENS}",
            "text",
            lambda seen: seen.at(-1),
            threshold=0.5,
        ),
        Role(
            "next_token",
            "next token",
            "Share of the weight at offset 1; more than half makes a next-token head.",
            _CLARK,
            "text",
            lambda seen: seen.at(1),
            threshold=0.5,
            layers=("self",),
            otherwise="no layer sees later tokens",
        ),
        Role(
            "current_token",
            "current token",
            "Share of the weight on the token itself.",
            _CLARK,
            "text",
            lambda seen: seen.at(0),
        ),
        Role(
            "first_token",
            "first-token sink",
            "Mean weight on the first token, over all queries that see it; above 0.3 it is a sink.",
            _SINK,
            "text",
            lambda seen: seen.on(FIRST),
            threshold=0.3,
            layers=ANY,
        ),
        Role(
            "sink",
            "sink, any token",
            "Largest mean weight that a key gets from the queries that see it, over the keys that at least half of the "
            "queries see; above 0.3 that key is a sink.",
            f"{_SINK}, for every key; the bound on late keys, which few queries see, is ours",
            "text",
            lambda seen: seen.most_received(),
            threshold=0.3,
            layers=ANY,
        ),
        Role(
            "local",
            "local",
            "Share of the weight within 8 tokens on either side; half or more, and twice uniform attention's share, is "
            "local.",
            "attnscope scan, kinds of heads",
            "text",
            lambda seen: seen.near(),
            threshold=LOCAL,
            more=MORE,
        ),
        Role(
            "delimiter",
            "delimiter",
            "Share of the weight on punctuation, line breaks and special tokens behind the first place.",
            f"{_CLARK} (heads that look at periods, commas and [SEP])",
            "text",
            lambda seen: seen.on(DELIMITERS),
            layers=ANY,
        ),
        Role(
            "streaming",
            "streaming",
            "Share of the weight on the first 4 and the latest 64 tokens, of queries that see more than these. Of the "
            "definition this is the attention pattern; that the output does not change is not measured here.",
            "Xiao et al. 2024, DuoAttention",
            "text",
            lambda seen: seen.streamed(),
            layers=LOOKS_BACK,
            otherwise=_ONE_SIDED,
        ),
        Role(
            "duplicate_token",
            "duplicate token",
            "On random tokens said twice: mean weight from a token's second occurrence to its first.",
            f"{_LENS}; Wang et al. 2022, Interpretability in the Wild",
            "repeated",
            lambda seen: seen.mean(0),
        ),
        Role(
            "induction",
            "induction",
            "On random tokens said twice: mean weight from a token's second occurrence to the token after its first.",
            f"{_LENS}; Olsson et al. 2022, In-context Learning and Induction Heads",
            "repeated",
            lambda seen: seen.mean(1),
            layers=LOOKS_BACK,
            otherwise=f"{_ONE_SIDED}: what comes next need not be guessed there",
        ),
        Role(
            "retrieval",
            "retrieval",
            "Of the tokens of a needle hidden in a text, the share that the model says while the head's largest weight "
            "lies on that very token; mean over prompts that the model answers; 0.1 or more makes a retrieval head.",
            "Wu et al. 2024, Retrieval Head Mechanistically Explains Long-Context Factuality "
            "(nightdessert/Retrieval_Head)",
            "needle",
            lambda seen: seen.score(),
            threshold=0.1,
            layers=LOOKS_BACK,
            otherwise=f"{_ONE_SIDED}: the model does not go on with a text",
        ),
    )
}


@validated
def choose_roles(names: Sequence[str] | str | None) -> tuple[str, ...]:
    """Validate the names of roles; None means all, one string holds names with commas between."""
    if names is None:
        return tuple(ROLES)
    asked = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    unknown = [name for name in asked if name not in ROLES]
    if unknown or not asked:
        what = f"there is no role {unknown[0]!r:.60}" if unknown else "no role was named"
        raise AttnscopeError(f"{what}: choose from {', '.join(ROLES)}")
    return tuple(name for name in ROLES if name in asked)


PATTERNS = ("previous_token_head", "duplicate_token_head", "induction_head")


@validated
@preserve_model_state
@torch.no_grad()
def pattern_scores(
    model: Model, ids: Sequence[int], pattern: str, *, exclude_bos: bool = False, exclude_current_token: bool = False
) -> xr.DataArray:
    r"""Share of each head's weight on the pairs of a pattern, as TransformerLens' ``detect_head`` gives it (``"mul"``).

    The sum of the weights on the pairs, divided by the sum of all weights. On P different tokens said twice, of n in
    all, `roles` takes the mean over the second occurrences alone: its score is n / P times this one.

    Parameters
    ----------
    model
        See `attnscope.scan`.
    ids
        Token ids of one text.
    pattern
        ``previous_token_head``: the token before. ``duplicate_token_head``: earlier tokens that are the same.
        ``induction_head``: the tokens after these.
    exclude_bos, exclude_current_token
        Leave the weights on the first token, or on the token itself, out of both sums.

    Returns
    -------
    xarray.DataArray
        ``(layer, head)``; NaN for cross-attention.

    Raises
    ------
    AttnscopeError
        If there is no such pattern.

    Examples
    --------
    >>> scores = pattern_scores("bundled", [1, 40, 50, 60, 40, 50, 60, 2], "previous_token_head")
    >>> scores.dims, round(float(scores[0, 3]), 2)
    (('layer', 'head'), 0.75)
    """
    if pattern not in PATTERNS:
        raise AttnscopeError(f"there is no pattern {shortly(pattern)}: choose from {', '.join(PATTERNS)}")
    own = load_model(model, need_tokenizer=False)
    device = device_of(own.model)
    given = torch.tensor([list(ids)], device=device)
    inputs = {"input_ids": given}
    if own.model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = given
    sites, _ = verify(own.model, inputs, weights_suffice=True)
    keys = pattern_keys(given[0], pattern)
    layers: dict[int, np.ndarray] = {}
    heads: dict[int, int] = {}

    def observe(site: Site, call: AttentionCall) -> Tensor:
        heads[site.index] = call.query.shape[1]
        if site.kind == "cross":
            return output_of(call)
        output, rows = measure(call, Need())
        score = _share(call, rows.log_sum_exp, rows.mass, keys, exclude_bos, exclude_current_token)
        layers[site.index] = score[0].cpu().numpy()
        return output

    with watching(own.model, observe, weights_suffice=True):
        forward(own.model, inputs, lambda _: "the text", with_head=False)
    scores = padded_heads([layers.get(site.index, np.full(heads[site.index], np.nan)) for site in sites])
    return xr.DataArray(
        scores,
        dims=("layer", "head"),
        coords={**layer_coordinates(sites), "head": np.arange(scores.shape[1])},
        name=pattern,
        attrs={"long_name": pattern.replace("_", " "), "units": "share"},
    )


def _share(
    call: AttentionCall, log_sum_exp: Tensor, mass: Tensor, keys: Tensor, exclude_bos: bool, exclude_current: bool
) -> Tensor:
    place = torch.arange(len(keys), device=keys.device)[:, None]
    excluded = torch.zeros_like(keys, dtype=torch.bool)
    beside: list[Tensor] = []  # what is left out of the sum of all weights, no pair twice
    if exclude_bos:
        excluded |= keys == 0
        beside.append(torch.zeros_like(place))
    if exclude_current:
        excluded |= keys == place
        beside.append(torch.where((place == 0) & exclude_bos, -1, place))

    def total(keys: Tensor) -> Tensor:
        return weights_at(call, log_sum_exp, keys[None]).double().sum((2, 3))

    others = total(torch.cat(beside, -1)) if beside else 0.0
    return total(keys.masked_fill(excluded, -1)) / (mass.sum(-1) - others)


def pattern_keys(ids: Int[Tensor, " token"], pattern: str) -> Int[Tensor, "token most"]:
    """Keys of each query in a pattern; -1 fills up."""
    if pattern == "previous_token_head":
        return torch.arange(-1, len(ids) - 1, device=ids.device)[:, None]
    seen: dict[int, list[int]] = {}
    rows: list[list[int]] = []
    for place, token in enumerate(ids.tolist()):
        earlier = seen.setdefault(token, [])
        rows.append([key + (pattern == "induction_head") for key in earlier])
        earlier.append(place)
    most = max(1, *map(len, rows))
    return torch.tensor([[-1] * (most - len(row)) + row for row in rows], device=ids.device)


_LEAST = 8  # tokens of a window from which offsets and sinks mean something
_SEQUENCES, _SAID_TWICE = 16, 50
_FEW = 2


@dataclass(frozen=True, eq=False)
class Probe:
    """Windows, and how one attention call over some of them is measured."""

    kind: Kind  # as a role names it
    windows: tuple[Window, ...]  # at least one
    # from windows of one length, by number, and a call over them to what it shows, with its ``output``
    look: Callable[[Sequence[int], AttentionCall], Any]
    batch_size: int | None = None  # windows at a time

    def batches(self) -> Iterator[list[int]]:
        """Numbers of windows of one length, some at a time: nothing is ever padded."""
        by_length = sorted(range(len(self.windows)), key=lambda number: len(self.windows[number]))
        for length, numbers in groupby(by_length, key=lambda number: len(self.windows[number])):
            several = list(numbers)
            size = self.batch_size or max(1, TOKENS_AT_ONCE // length)
            yield from (several[first : first + size] for first in range(0, len(several), size))


def text_probe(windows: Sequence[Window], length: int, reach: Nearness, batch_size: int | None) -> Probe:
    """Windows of the corpus: the full ones, where half of them are; else all of 8 tokens or more."""
    full = [window for window in windows if len(window) == length]
    kept = full if 2 * len(full) >= len(windows) else [window for window in windows if len(window) >= _LEAST]
    if not kept:
        raise AttnscopeError(
            f"found no window of {_LEAST} tokens or more; expected some, so that places mean something: give longer "
            "texts"
        )
    marks = [torch.tensor(delimiters_of(window)) for window in kept]

    def look(numbers: Sequence[int], call: AttentionCall) -> TextCalls:
        return TextCalls.of(call, torch.stack([marks[number] for number in numbers]), reach)

    return Probe("text", tuple(kept), look, batch_size)


def left_out_note(windows: Sequence[Window], kept: Sequence[Window], length: int) -> dict[str, str]:
    """Which windows `text_probe` left out, and why; nothing where it left out none."""
    missing = len(windows) - len(kept)
    if not missing:
        return {}
    why = (
        f"fewer than the {length} tokens of a full one, and where at least half are full only those are read, so that "
        "all are alike."
        if 2 * sum(len(window) == length for window in windows) >= len(windows)
        else f"fewer than {_LEAST} tokens, too few for places to mean anything."
    )
    was, has = ("were", "they have") if missing > 1 else ("was", "it has")
    return {"left_out": f"{missing} of {count(len(windows), 'window')} {was} left out: {has} {why}"}


def delimiters_of(window: Window) -> list[bool]:
    r"""Which tokens part others: punctuation, line breaks, and special tokens behind the first place."""
    kinds = grouping_of("kinds").given(window)
    return [
        kind == "punctuation" or (kind == "special" and place > 0) or "\n" in token
        for place, (kind, token) in enumerate(zip(kinds, window.tokens, strict=True))
    ]


def repeated_probe(around: Window, words: Sequence[int], length: int, seed: int, batch_size: int | None) -> Probe:
    """16 texts of random tokens said twice, with the special tokens around them that a window has."""
    begins = list(around.special).index(False) if False in around.special else 0
    ends = list(reversed(around.special)).index(False) if False in around.special else 0
    prefix, suffix = around.ids[:begins], around.ids[len(around) - ends :]
    period = min(_SAID_TWICE, (length - begins - ends) // 2, len(words))
    if period < _FEW:
        raise AttnscopeError(
            f"found {len(words)} different tokens and windows of {length}; expected room to say two tokens twice"
        )
    generator = np.random.default_rng(seed)
    windows: list[Window] = []
    for number in range(_SEQUENCES):
        drawn = tuple(generator.choice(np.asarray(words), period, replace=False).tolist())
        windows.append(plain_window((*prefix, *drawn, *drawn, *suffix), f"random tokens {number + 1}"))
    return Probe("repeated", tuple(windows), lambda _, call: RepeatedCalls.of(call, begins, period), batch_size)


def plain_window(ids: Sequence[int], name: str) -> Window:
    """A window of which the ids alone matter."""
    nothing = len(ids)
    return Window(tuple(ids), (False,) * nothing, ((0, 0),) * nothing, name, 0, ("",) * nothing)


def ordinary_tokens(tokenizer: Any, windows: Sequence[Window], rows: int) -> list[int]:
    """Ids of a vocabulary that are no special tokens; without a tokenizer, those of the texts."""
    if tokenizer is None:
        pairs = (pair for window in windows for pair in zip(window.ids, window.special, strict=True))
        return sorted({token for token, special in pairs if not special})
    special = set(tokenizer.all_special_ids)
    return [token for token in range(min(len(tokenizer), rows)) if token not in special]
