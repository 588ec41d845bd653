"""The weights of generated rows on each span, and those predicted from a head's offsets alone."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from attnscope.kernels.bins import bin_ranges
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.full import row_weights
from attnscope.measure.quantities import EQUAL
from attnscope.measure.rows import fitted_places, row_factors
from attnscope.support.errors import AttnscopeError

SPANS, BINS, PATCHES = "span_weight", "bin_weight", "patch_weight"
POSITIONS = f"position_{SPANS}"
_REACH = 1 << 17  # tokens: larger distances are in the last bin
_PARTS = 4  # of a doubling, so that a head's decay within a bin is small
#: First and last offset of each bin of a result, from far left to the query itself.
DOUBLINGS = [(first, last) for first, last in bin_ranges(0, _REACH) if last <= 0]
#: First and last offset of each measured bin, parts of those of a result.
RANGES = [
    (start, stop - 1)
    for first, last in DOUBLINGS
    for start, stop in pairwise(first + (last - first + 1) * part // _PARTS for part in range(_PARTS + 1))
    if stop > start
]


@dataclass(frozen=True, eq=False)
class KeyMarks:
    """Padding and spans of the keys of a side."""

    padding: Tensor  # ``(batch,)``: positions before the first token of each text
    # ``(batch, position, span)``: 1 at the positions of each span, NaN for a span that the text or the side lacks; the
    # last position stands for all later ones
    spans: Tensor
    patches: Tensor | None = None  # ``(patch,)``: positions of the patches of images, of a batch without padding

    def columns(self, keys: int, shift: int) -> Tensor:
        """The spans of keys, the first of them at position `shift`, ``(batch, key, span)``."""
        at = torch.arange(shift, shift + keys, device=self.spans.device)
        return self.spans[:, at.clamp(0, self.spans.shape[1] - 1)] * (at >= 0)[:, None]


def measure_rows(call: AttentionCall, first: int, start: int, marks: KeyMarks, *, is_cross: bool) -> dict[str, Tensor]:
    """Statistics of the rows from `first` on: ``(batch, head, row[, span])``; one head for uniform attention."""
    weights, allowed = row_weights(call, slice(first, None), torch.float64)
    rows, keys = weights.shape[-2:]
    shift = 0 if is_cross else start - _own_key(call, allowed, rows)
    query = torch.arange(start, start + rows, device=weights.device)
    offset = (torch.arange(shift, shift + keys, device=weights.device) - query[:, None])[None, None]
    if is_cross:
        offset = offset - marks.padding[:, None, None, None]
    columns = marks.columns(keys, shift)[:, None]
    first_key = (marks.padding - shift)[:, None, None]  # below 0 if the first token is not among the keys

    def sums(weights: Tensor) -> dict[str, Tensor]:
        at = first_key.clamp(0, keys - 1)[..., None].expand(*weights.shape[:-1], 1)
        return {
            "entropy": -torch.xlogy(weights, weights).sum(-1),
            "first_token": weights.gather(-1, at)[..., 0].where(first_key >= 0, 0.0),
            "mean_offset": (weights * offset).sum(-1) / weights.sum(-1),
            SPANS: weights @ columns,
        }

    even = allowed[:, :1].double()
    even = even / even.sum(-1, keepdim=True).clamp_min(1.0)
    largest, top = weights.max(-1)
    on_patches: dict[str, Tensor] = {}
    if marks.patches is not None:
        at = marks.patches - shift  # below 0 for a patch that has left the cache of a sliding window
        on_patches[PATCHES] = (weights[..., at.clamp(0, keys - 1)] * (at >= 0)).float()
    return {
        **on_patches,
        "max_weight": largest,
        "top_key": (top - first_key).double(),
        BINS: _bins(weights, None if is_cross else start - shift),
        **sums(weights),
        **{f"{EQUAL}{name}": value for name, value in sums(even).items()},
    }


def _bins(weights: Tensor, own: int | None) -> Tensor:
    """Weight in each bin of offsets, from far left to the query itself, float32; NaN in cross-attention."""
    if own is None:
        return weights.new_full((*weights.shape[:-1], len(RANGES)), torch.nan).float()
    rows, keys = weights.shape[-2:]
    edges = torch.tensor([-keys, *(last + 1 for _, last in RANGES)], device=weights.device)
    query = torch.arange(own, own + rows, device=weights.device)
    at = (query[:, None] + edges).clamp(0, keys).expand(*weights.shape[:2], -1, -1)
    return torch.nn.functional.pad(weights.cumsum(-1), (1, 0)).gather(-1, at).diff(dim=-1).float()


def _own_key(call: AttentionCall, allowed: Tensor, rows: int) -> int:
    """The first measured query's own key: its last visible one."""
    keys = allowed.shape[-1]
    if not call.query.shape[-1]:  # weights only: the query's own key is the last in the cache
        return keys - rows
    last = keys - 1 - allowed.any(1).flip(-1).to(torch.uint8).argmax(-1)  # (batch, row)
    own_keys = last - torch.arange(rows, device=last.device)
    if bool((own_keys != own_keys[0, 0]).any()):
        raise AttnscopeError(
            "the texts of a batch have different last keys in a layer, so the positions of its keys are unknown"
        )
    return int(own_keys[0, 0])


def by_positions(measured: Mapping[str, np.ndarray], columns: np.ndarray, prompt: int) -> np.ndarray:
    """The weight on each span predicted from each head's offsets alone, ``(step, layer, head, span)``."""
    steps, layers, heads = measured["first_token"].shape
    fitted = np.full((steps, layers, heads, columns.shape[1]), np.nan)
    query = prompt - 1 + np.arange(steps)
    for layer in range(layers):
        bins, first = measured[BINS][:, layer], measured["first_token"][:, layer]
        present = np.isfinite(bins).all((0, 2))  # not cross-attention, nor a head that the layer lacks
        if not present.any():
            continue
        seen = np.rint(np.exp(measured[f"{EQUAL}entropy"][:, layer])).astype(np.int64)
        counts, of_spans = _counts(query, seen, columns)
        weights = _weights(bins[:, present], first[:, present], query)
        mass = weights.sum(-1).T  # (head, step)
        share, _ = fitted_places(weights.sum(0), mass, counts)
        fitted[:, layer, present] = np.einsum("hp,spk,hs->shk", share, of_spans, row_factors(share, mass, counts))
    return fitted


def _counts(query: np.ndarray, seen: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The number of visible keys of each query in each bin, ``(step, bin)``, and of each span."""
    edges = np.array([-query.max() - 1, *(last + 1 for _, last in RANGES)])
    at = np.clip(query[:, None] + edges, (query - seen + 1)[:, None], query[:, None] + 1)
    both = np.concatenate([np.ones((len(columns), 1)), columns], axis=1)
    rest = both.copy()
    rest[0] = 0.0  # the first token is a bin of its own
    of_bins = np.diff(np.concatenate([np.zeros((1, both.shape[1])), rest.cumsum(0)])[at], axis=1)
    counts = np.concatenate([of_bins, np.where((seen > query)[:, None], both[0], 0.0)[:, None]], axis=1)
    return counts[..., 0], counts[..., 1:]


def _weights(bins: np.ndarray, first: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Weight in each bin, ``(step, head, bin)``; the first token is a bin of its own."""
    first_bin = np.searchsorted(np.array([last for _, last in RANGES]), -query)
    rest = bins.astype(np.float64)
    rest[np.arange(len(query)), :, first_bin] -= first
    return np.concatenate([rest.clip(0.0), first[..., None]], axis=-1)


PROMPT, SOURCE, START, OWN = "prompt", "source", "start", "own output"
_RESERVED = (PROMPT, SOURCE, START, OWN)
MOST = 16  # spans: each is stored for every head and token
#: Spans of one prompt by name: first token and the one after the last, a slice, or indices of tokens.
Spans = Mapping[str, tuple[int, int] | slice | Iterable[int]]
#: Spans for all prompts, for each prompt of a batch, or a function of the token ids of a prompt.
GivenSpans = Spans | Sequence[Spans] | Callable[[list[int]], Spans]


class Prompts:
    """The texts to continue (for an encoder-decoder, its sources), and their spans."""

    def __init__(self, ids: Tensor | None, mask: Tensor | None, spans: GivenSpans | None = None) -> None:
        self.ids, self.mask = ids, mask
        self.spans = [] if spans is None else self._read(spans)
        self.names = list(dict.fromkeys(name for of_prompt in self.spans for name in of_prompt))
        if len(self.names) > MOST:
            raise AttnscopeError(f"there are {len(self.names)} named spans; expected at most {MOST}")

    @property
    def count(self) -> int:
        """The number of texts; 1 without token ids."""
        return 1 if self.ids is None else len(self.ids)

    def tokens(self, text: int) -> list[int]:
        """The ids of a text without padding; empty without token ids."""
        if self.ids is None:
            return []
        return (self.ids[text] if self.mask is None else self.ids[text][self.mask[text] > 0]).tolist()

    def marks(self, batch: int, length: int, side: str) -> KeyMarks:
        """Padding and spans of the keys in a batch, which may repeat each text, on a side (text, source or target)."""
        padding = torch.zeros(batch, dtype=torch.int64)
        if self.mask is not None and side != "target":
            first = self.mask.to(torch.uint8).argmax(1).cpu()
            padding = first.repeat_interleave(batch // len(first))
        last = 1 if side == "text" else 2  # spans of the decoder's own text
        columns = torch.zeros(batch, length + 1, 1 + len(self.names) + last, dtype=torch.float64)
        columns[..., :length, -2 if side == "target" else 0] = (torch.arange(length) >= padding[:, None]).double()
        columns[:, length, -1] = 1.0
        for row in range(batch if self.spans else 0):
            of_prompt = self.spans[row * len(self.spans) // batch]
            for number, name in enumerate(self.names, 1):
                columns[row, :, number] = 0.0 if name in of_prompt else torch.nan
                if name in of_prompt and side != "target":
                    columns[row, torch.from_numpy(of_prompt[name]) + padding[row], number] = 1.0
        if side != "text":
            columns[..., slice(-last, None) if side == "source" else slice(-last)] = torch.nan
        return KeyMarks(padding, columns)

    def _read(self, spans: Any) -> list[dict[str, np.ndarray]]:
        if self.ids is None:
            raise AttnscopeError("spans need the tokens of a prompt: give input_ids")
        texts = [self.tokens(text) for text in range(len(self.ids))]
        if callable(spans):
            each = [spans(text) for text in texts]
        else:
            is_list = isinstance(spans, Iterable) and not isinstance(spans, Mapping)
            each = list(cast("Iterable[Any]", spans)) if is_list else [spans] * len(texts)
        if len(each) != len(texts):
            raise AttnscopeError(f"found spans for {len(each)} prompts; expected {len(texts)}, one for each prompt")
        return [_of_text(of_prompt, len(text)) for of_prompt, text in zip(each, texts, strict=True)]


def _of_text(spans: Any, length: int) -> dict[str, np.ndarray]:
    if not isinstance(spans, Mapping):
        raise AttnscopeError(f'spans are {spans!r:.60}; expected them by name, as {{"question": (3, 12)}}')
    named = cast("Mapping[Any, Any]", spans)
    for name in named:
        check_name(name)
    return {name: _tokens(name, value, length) for name, value in named.items()}


def check_name(name: Any) -> None:
    """Reject an empty or reserved name of a span."""
    if not isinstance(name, str) or not name.strip() or name in _RESERVED:
        raise AttnscopeError(f"a span has the name {name!r:.60}; choose a word other than {', '.join(_RESERVED)}")


def _tokens(name: str, value: Any, length: int) -> np.ndarray:
    """Indices of the tokens of a span."""
    if isinstance(value, tuple) and len(cast("tuple[Any, ...]", value)) == 2:  # noqa: PLR2004
        value = slice(*value)
    try:
        if isinstance(value, slice):
            last = [at for at in (value.start, value.stop) if at is not None]
            tokens, outside = np.arange(length)[value], any(not 0 <= at <= length for at in last)
        else:
            tokens = np.unique(np.array(list(value), dtype=np.int64))
            outside = bool(tokens.size) and not (tokens[0] >= 0 and tokens[-1] < length)
    except (TypeError, ValueError) as error:
        raise AttnscopeError(
            f"the span {name!r} is {value!r:.60}; expected its first token and the one after the last, such as (3, 12)"
        ) from error
    if outside:
        raise AttnscopeError(f"the span {name!r} goes beyond the prompt, which has {length} tokens")
    return tokens
