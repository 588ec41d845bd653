"""What a model reads in one forward pass, and which of it stands on either side of an attention call."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.kernels.at_offsets import weights_at_offsets
from attnscope.kernels.bins import far_starts
from attnscope.kernels.call import AttentionCall, Need, RowMeasures
from attnscope.kernels.sums import column_sums, weight_sums
from attnscope.measure.documents import called_in
from attnscope.measure.places import NEAR, Places, Shares
from attnscope.measure.quantities import BY_GROUP, CHOSEN, EQUAL, KNOWN, SECOND_PASS, by_group
from attnscope.measure.rows import GroupMarks, Rows, SecondPass, first_of
from attnscope.read.windows import Batch, collate

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import xarray as xr
    from transformers import PreTrainedModel

    from attnscope.read.windows import Window


@dataclass(frozen=True, eq=False)
class WindowBatch:
    """Windows side by side."""

    text: Batch  # what the encoder reads, or a model's only stack
    target: Batch  # what the decoder beside an encoder reads
    given: Mapping[str, Any] | None = None  # arguments of the forward pass, where they are not the tokens
    keys: Batch | None = None  # the encoder's tokens as keys, where they are not those of its queries

    @classmethod
    def given_as(
        cls, given: Mapping[str, Any], windows: Sequence[Window], device: torch.device | str = "cpu"
    ) -> WindowBatch:
        """Windows that the model is given in other arguments than token ids."""
        text = collate(windows, 0).to(device)
        return cls(text, text, given)

    @classmethod
    def of(cls, windows: Sequence[Window], pad_id: int, device: torch.device | str = "cpu") -> WindowBatch:
        """Put windows side by side, and their targets."""
        text = collate(windows, pad_id).to(device)
        if all(window.target is None for window in windows):
            return cls(text, text)
        return cls(text, collate([window.target or window for window in windows], pad_id).to(device))

    def sides(self, kind: str) -> tuple[Batch, Batch]:
        """What queries and keys of a site of that kind are made of: only a decoder is causal or looks across."""
        keys = self.text if self.keys is None else self.keys
        return self.text if kind == "self" else self.target, self.target if kind == "causal" else keys

    def inputs(self, model: PreTrainedModel) -> dict[str, Any]:
        """Arguments of the forward pass."""
        if self.given is not None:
            return dict(self.given)
        read = {"": self.text} | ({"decoder_": self.target} if model.config.is_encoder_decoder else {})
        given: dict[str, Tensor] = {}
        for side, batch in read.items():
            given |= {f"{side}{name}": value for name, value in batch.arguments(model.dtype).items()}
        return given


def plan(names: Sequence[str], band: int, columns: Tensor, reach: int = 0, *, equal: bool = False) -> Need:
    """Pack what the statistics need into one request for one pass."""
    wanted = {part for name in names for part in KNOWN[name].asks(equal=equal)}
    return Need(
        band=band if "band" in wanted else None,
        columns=columns if "columns" in wanted else None,
        entropy="entropy" in wanted,
        offsets="offsets" in wanted,
        variance="variance" in wanted,
        largest="largest" in wanted,
        largest_key="largest_key" in wanted,
        collision="collision" in wanted,
        bins=far_starts(band, reach) if "bins" in wanted else (),
    )


def reduce_call(
    rows: RowMeasures,
    names: Sequence[str],
    query_valid: Tensor,
    key_valid: Tensor,
    groups: GroupMarks | None = None,
    second: SecondPass | None = None,
    *,
    equal: bool = False,
) -> dict[str, Tensor]:
    """Statistics of one attention call: ``(batch, head)`` or with more dimensions, float64."""
    counted = query_valid[:, None] & (rows.mass > 0)
    sizes = query_valid.sum(1), key_valid.sum(1)
    reduced = Rows(rows, counted, *sizes, first_of(key_valid), groups, second)
    reduced_to = {name: KNOWN[name].of(reduced, equal=equal) for name in names}
    if groups is None:
        return reduced_to
    members = [
        replace(reduced, counted=counted & (groups.queries == number)[:, None]) for number in range(groups.count)
    ]
    return reduced_to | {
        f"{name}{BY_GROUP}": torch.stack([KNOWN[name].of(rows, equal=equal) for rows in members], -1)
        for name in by_group(names)
    }


OBSERVATION = 32  # queries, as SnapKV has them
_OFFSETS_AT_ONCE = 16  # whose weights are there for every query before they are summed


@dataclass(frozen=True)
class Asking:
    """What is asked of a second pass."""

    needs: Collection[str]  # which of `SECOND_PASS`, and `CHOSEN`
    observation: int  # queries at the end of each text whose weights `recent` sums
    reach: int  # largest offset: what lies beyond is left out
    chosen: Sequence[int] = ()  # offsets that were chosen

    @classmethod
    def for_names(
        cls, names: Sequence[str], observation: int, reach: int, chosen: Sequence[int] = (), *, equal: bool = False
    ) -> Asking:
        """What these statistics need, of heads or of equal weights."""
        needs = {need for name in names for need in KNOWN[name].asks(equal=equal)}
        return cls(needs, observation, reach, chosen)

    def of(self, call: AttentionCall, log_sum_exp: Tensor, valid: Tensor) -> SecondPass:
        """Sums over the `valid` queries, ``(batch, query)``, of a call with this log-sum-exp."""
        wanted = SECOND_PASS & set(self.needs)
        chosen = self._at_chosen(call, log_sum_exp, valid) if CHOSEN in self.needs else None
        if not wanted:
            return SecondPass(chosen=chosen)
        offsets = "offset_sum" in wanted or ("distance" in wanted and not _is_causal_mask(call))
        sums = weight_sums(call, log_sum_exp, valid, received="received" in wanted, offsets=offsets)
        recent = column_sums(call, log_sum_exp, valid, self.observation) if "recent" in wanted else None
        return SecondPass(sums.received, recent, self._centred(call, sums.offsets), chosen=chosen)

    def of_equal(self, call: AttentionCall, log_sum_exp: Tensor, valid: Tensor) -> SecondPass:
        """The same of equal weights over whatever the first head may see: one head."""
        if not {*SECOND_PASS, CHOSEN} & set(self.needs):
            return SecondPass()
        # equal weights have no mean offset to tell the distance by
        every = replace(self, needs={*self.needs} | ({"offset_sum"} if "distance" in self.needs else set()))
        return every.of(evenly(call), log_sum_exp, valid)

    def _at_chosen(self, call: AttentionCall, log_sum_exp: Tensor, valid: Tensor) -> Tensor:
        """Sums over the `valid` queries at each chosen offset; n d work for each."""
        nowhere = log_sum_exp < torch.finfo(torch.float32).min / 2  # a bias forbids all, as -inf does
        counted = (valid[:, None] & ~nowhere)[..., None]
        sums = [
            weights_at_offsets(call, log_sum_exp, self.chosen[first : first + _OFFSETS_AT_ONCE])
            .where(counted, 0.0)
            .sum(2, dtype=torch.float64)
            for first in range(0, len(self.chosen), _OFFSETS_AT_ONCE)
        ]
        return torch.cat(sums, -1)

    def _centred(self, call: AttentionCall, offsets: Tensor | None) -> Tensor | None:
        """From ``-reach`` to ``reach``; 0 where the text has no such offset."""
        if offsets is None:
            return None
        sides = (self.reach - size + 1 for size in (call.query.shape[2], call.key.shape[2]))
        return torch.nn.functional.pad(offsets, tuple(sides))


def _is_causal_mask(call: AttentionCall) -> bool:
    """Whether no query may look at a later key."""
    return bool((call.extent[1] <= call.query_positions + 1).all())


def settings_of(names: Sequence[str], observation: int) -> dict[str, int]:
    """What a signature says of the observation window: nothing where no statistic is over it."""
    return {"observation": observation} if "recent" in Asking.for_names(names, observation, 0).needs else {}


def evenly(call: AttentionCall) -> AttentionCall:
    """A call of one head with equal weights over whatever the first head may see."""
    query, key, value = (torch.zeros_like(side[:, :1, :, :1]) for side in (call.query, call.key, call.value))
    bias = None
    if call.bias is not None:
        forbids = call.bias[:, :1] <= torch.finfo(call.bias.dtype).min / 2
        bias = forbids.to(call.bias.dtype).masked_fill(forbids, -torch.inf)  # also one by offset alone
    mask = None if call.mask is None else call.mask[:, :1]
    return replace(call, query=query, key=key, value=value, mask=mask, bias=bias, softcap=None, sinks=None)


_AT = "weight_at"


def drop_fully_masked(numbers: dict[str, Tensor]) -> dict[str, Tensor]:
    """Statistics of a call, with NaN for the weight at offsets at which no head may look at anything."""
    if _AT not in numbers:
        return numbers
    names = (_AT, f"{EQUAL}{_AT}")
    own, equal = ((numbers[name] > 0).any(1, keepdim=True) for name in names)
    somewhere = own | equal
    return numbers | {name: numbers[name].where(somewhere, float("nan")) for name in names}


def notes_of_masked_offsets(results: xr.Dataset, unit: str) -> dict[str, str]:
    """Why the weight at some of the chosen offsets is not there, in some windows or layers or in all; else nothing."""
    if _AT not in results or "window" not in results[_AT].dims:
        return {}
    sizes = results.window_length if "window_length" in results else results.length
    known = results[_AT].notnull().any("head").transpose("chosen_offset", "window", "layer").values
    said = [
        (int(offset), _why(known[row], abs(int(offset)), sizes.values, results, unit))
        for row, offset in enumerate(results.chosen_offset.values)
    ]
    told = " ".join(f"{_AT}_{offset}: {why}." for offset, why in said if why)
    return {"offsets": told} if told else {}


def _why(known: np.ndarray, distance: int, sizes: np.ndarray, results: xr.Dataset, unit: str) -> str:
    """Of one offset, known ``(window, layer)``."""
    each = "pools" if "window_count" in results else called_in(results.attrs)["windows"]
    if not known.any():
        if sizes.max() <= distance:
            return f"none, for the longest window has {int(sizes.max())} {unit}"
        return "none, for the mask lets no query look there"
    reasons: list[str] = []
    layers = results["layer"].values[~known.any(0)].tolist()
    if layers:
        reasons.append(f"none in layers {', '.join(map(str, layers))}, where the mask lets no query look there")
    missing = int((~known.any(1)).sum())
    if missing:
        reasons.append(
            f"the mean is over {len(known) - missing} of {len(known)} {each}; the others have no query for it"
        )
    return "; ".join(reasons)


SHARE = 0.3  # of all weight in one place: a head that looks there
LEAST_SHARE = 0.1  # of all weight in one place, for a head to stand in a ranking
LOCAL = 0.5  # of all weight within some tokens: a local head
MORE = 2.0  # times what equal weights give; of sides, times the odds
SHARED_ODDS = 6.0  # times the odds of equal weights, of a key that all rows share: random Llama models reach 5.5
ALIKE_PLACES, ALIKE_ENTROPY = (0.1, 0.2)  # share of weight that lies elsewhere than of equal weights; nats below them
CHANCE = 0.01  # that any head of a run gets a name by chance
UNNAMED = ("uniform", "uniform over the past", "mixed", "flat")
_SIDES = ("left", "right")


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Shares of the weight where a head may be said to look, and how many rows tell: ``(head, candidate)`` each."""

    measured: Float[np.ndarray, "head candidate"]
    equal: Float[np.ndarray, "head candidate"]
    rows: Float[np.ndarray, "head candidate"]

    @classmethod
    def of(cls, places: Places) -> _Candidates:
        measured = places.measured
        whole = np.ones((len(measured.first), measured.offset.shape[1] + 3 + measured.near.shape[1]))
        near, far = measured.near_left + measured.near_right, measured.left + measured.right
        told = np.column_stack([whole, near, near, far, far])
        # frames that are no sound are all alike: heads rest on all of them or on none, trained or not
        first = measured.offset.shape[1]
        told[np.isnan(measured.columns_left), first : first + 2] = 0.0
        equal = _columns(places.equal)
        columns = _fraction(measured.columns_left, np.maximum(1.0 - measured.columns_left - measured.first, 0.0))
        columns = np.where(np.isnan(measured.columns_left), np.nan, columns)  # not known: then no side is named
        equal[:, -2] = np.maximum(equal[:, -2], columns)
        equal[:, -1] = np.maximum(equal[:, -1], 1.0 - columns)
        return cls(_columns(measured), equal, told * places.rows[:, None])

    def lean(self, side: int) -> Bool[np.ndarray, " head"]:
        """Whether a fraction's odds are `MORE` times those of equal weights; never where only one side is seen."""
        measured, equal = self.measured[:, side], self.equal[:, side]
        return (equal > 0) & (equal < 1) & (measured * (1 - equal) >= MORE * equal * (1 - measured))


def _columns(shares: Shares) -> np.ndarray:
    left, right = shares.near_left, shares.near_right
    fractions = (_fraction(left, right), _fraction(right, left))
    sides = (_fraction(shares.left, shares.right), _fraction(shares.right, shares.left))
    return np.column_stack([shares.offset, shares.first, shares.special, shares.none, shares.near, *fractions, *sides])


def _fraction(side: np.ndarray, other: np.ndarray) -> np.ndarray:
    both = side + other
    return np.where(both > 0, side / np.where(both > 0, both, 1.0), 0.0)


def beyond_chance(
    measured: Float[np.ndarray, "*cell"], equal: Float[np.ndarray, "*cell"], rows: Float[np.ndarray, "*cell"] | float
) -> Bool[np.ndarray, "*cell"]:
    """Whether more lies in a place than so many rows that know nothing of places would put there by chance."""
    p, q = (np.clip(share, 1e-12, 1 - 1e-12) for share in (measured, equal))
    divergence = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    return (p > q) & (rows * divergence >= np.log(measured.size / CHANCE))


def beyond_shared(measured: Float[np.ndarray, "*cell"], equal: Float[np.ndarray, "*cell"]) -> Bool[np.ndarray, "*cell"]:
    """Whether a key that all rows share has `SHARED_ODDS` times the odds of equal weights."""
    return (measured > equal) & (measured * (1 - equal) >= SHARED_ODDS * equal * (1 - measured))


def admissible(places: Places) -> Bool[np.ndarray, "head candidate"]:
    """What each head may be named by: where there is more than by chance."""
    candidates = _Candidates.of(places)
    return beyond_chance(candidates.measured, candidates.equal, candidates.rows)


def kind_list(places: Places) -> list[str]:
    """All kinds that there could be, as `kind_codes` numbers them."""
    local = ["local" if reach == NEAR else f"within {reach}" for reach in places.reaches]
    return [
        *(f"offset {offset:+d}" for offset in places.offsets),
        *("first token", "special tokens", "no token"),
        *(f"{name}{side}" for name in local for side in ("", " left", " right")),
        *("leftward", "rightward", "uniform", "mixed"),
    ]


def kind_codes(places: Places, allowed: Bool[np.ndarray, "head candidate"]) -> np.ndarray:
    """Number of the kind of each head in `kind_list`."""
    kinds, candidates = kind_list(places), _Candidates.of(places)
    single, reaches = len(places.offsets) + 3, len(places.reaches)
    enough = allowed & (candidates.measured >= MORE * candidates.equal)
    shared = slice(len(places.offsets), single)
    enough[:, shared] &= beyond_shared(candidates.measured[:, shared], candidates.equal[:, shared])
    shares = np.where(enough[:, :single], candidates.measured[:, :single], 0.0)
    choices = [(shares.max(-1) >= SHARE, shares.argmax(-1)), (_alike(places), kinds.index("uniform"))]
    for reach in range(reaches):
        near = single + reach
        is_local = enough[:, near] & (candidates.measured[:, near] >= LOCAL)
        for number in range(len(_SIDES)):
            side = near + (1 + number) * reaches
            choices.append((is_local & allowed[:, side] & candidates.lean(side), single + 3 * reach + 1 + number))
        choices.append((is_local, single + 3 * reach))
    for number, share in enumerate((places.measured.left, places.measured.right)):
        side = single + 3 * reaches + number
        leans = (share >= SHARE) & allowed[:, side] & candidates.lean(side)
        choices.append((leans, kinds.index(f"{_SIDES[number]}ward")))
    conditions, codes = zip(*choices, strict=True)
    return np.select(conditions, codes, kinds.index("mixed"))


def _alike(places: Places) -> Bool[np.ndarray, " head"]:
    """Which heads weigh as equal weights do, in places and in sharpness."""
    measured, equal = places.measured, places.equal
    moved = np.abs(measured.bins - equal.bins).sum(-1) / 2
    first, entropy = np.abs(measured.first - equal.first), np.abs(measured.entropy - equal.entropy)
    return (moved <= ALIKE_PLACES) & (first <= ALIKE_PLACES) & (entropy <= ALIKE_ENTROPY)


def kind_name(kind: str, attention: str) -> str:
    """What a kind is called in attention of the kind ``self``, ``causal`` or ``cross``."""
    if attention == "cross":
        return {"offset +0": "same position"}.get(kind, kind)
    names = {"offset -1": "previous", "offset +0": "self", "offset +1": "next"}
    if attention == "causal":
        names["uniform"] = "uniform over the past"
    return names.get(kind, kind)


def named_clusters(names: list[str], places: Places) -> list[str]:
    """Clusters of one name, told apart by the share of weight within the band; where that is alike, by a number."""
    shown = [
        f"{name} ({100 * inside:.0f}% in the band)" if names.count(name) > 1 else name
        for name, inside in zip(names, places.measured.offset.sum(-1), strict=True)
    ]
    return [
        f"{name[:-1]}, no. {shown[: place + 1].count(name)})" if shown.count(name) > 1 else name
        for place, name in enumerate(shown)
    ]
