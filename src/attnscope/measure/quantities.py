"""The statistics of a head: the input that each needs from a pass, its computation from the rows, and its wording."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from functools import lru_cache, partial
from operator import add, attrgetter
from typing import TYPE_CHECKING, Any

from attnscope.kernels.call import FLAGS
from attnscope.report import registry
from attnscope.support.checked import checked
from attnscope.support.errors import AttnscopeError, explaining

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch import Tensor

    from attnscope.measure.rows import Rows


def top(received: Tensor, count: int) -> Tensor:
    """Share of all weight on the `count` keys that receive most: ``(batch, head)``; NaN without weight."""
    return (received / received.sum(-1, keepdim=True)).topk(min(count, received.shape[-1])).values.sum(-1)


def effective(received: Tensor) -> Tensor:
    """Effective number of keys, exp of the entropy of their shares: ``(batch, head)``."""
    shares = received / received.sum(-1, keepdim=True)
    return shares.xlogy(shares).sum(-1).neg().exp()


EQUAL = "equal_"  # prefix: uniform attention over the visible tokens
ERROR = "_error"  # suffix: standard error of an estimate from some rows
FREEDOM = "_freedom"  # suffix: degrees of freedom of that standard error
SKEWNESS = "_skewness"  # suffix: skewness of such an estimate
EFFECTIVE = "_effective_rows"  # suffix: effective number of rows behind such an estimate
OF_ESTIMATES = (ERROR, FREEDOM, SKEWNESS, EFFECTIVE)
BY_GROUP = "_by_group"  # suffix: a statistic for the queries of each group of tokens


@dataclass(frozen=True)
class Wording:
    """The name and meaning of a number of each head."""

    long_name: str  # for tables and axes
    units: str = ""
    reading: str = ""  # meaning of small and large values, in a line
    signed: bool = False  # whether 0 is the middle of the scale

    @property
    def largest(self) -> float:
        """The upper bound: 1 for a share, 0 for unbounded numbers."""
        return 1.0 if self.units == "share" else 0.0

    @property
    def attributes(self) -> dict[str, str]:
        """Attributes of a variable."""
        return {"long_name": self.long_name, "units": self.units}


def _as_it_is(number: Tensor) -> Tensor:
    return number


@dataclass(frozen=True)
class RowMeasure:
    """A measure of each row of weights that no engine takes by itself: a second pass gives it, tile by tile."""

    # the number of each row for a tile of weights, ``(..., query, key)`` to ``(..., query)``; a weight of 0, as a
    # masked key has, adds nothing
    of_tile: Callable[[Tensor], Tensor]
    join: Callable[[Tensor, Tensor], Tensor] = add  # the number for two tiles, from those of each
    finish: Callable[[Tensor], Tensor] = _as_it_is  # the measure, from the number for all tiles


@dataclass(frozen=True)
class Statistic:
    """A number of each head and window."""

    words: Wording
    reduce: Callable[[Rows], Tensor]  # rows -> ``(batch, head)``, or with more dimensions
    # names of the fields of `Need`, ``band`` and ``columns`` among them, and of `SECOND_PASS`; `CHOSEN`; ``blocks``;
    # `EVERY_WEIGHT`; or a measure of each row of its own
    needs: tuple[str | RowMeasure, ...] = ()
    along: tuple[str, ...] = field(default=(), kw_only=True)  # the dimensions behind ``(batch, head)``
    has_equal: bool = field(default=False, kw_only=True)  # whether a result also has the number of uniform attention
    # computation and needs for uniform attention, if they differ from those of the head
    of_equal: Callable[[Rows], Tensor] | None = field(default=None, kw_only=True)
    needs_of_equal: tuple[str | RowMeasure, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        measured = {*FLAGS, "band", "bins", "columns", "blocks", CHOSEN, EVERY_WEIGHT, *SECOND_PASS}
        for need in (*self.needs, *self.needs_of_equal):
            if isinstance(need, str) and need not in measured:
                raise AttnscopeError(
                    f"the statistic {self.words.long_name!r} needs {need!r}; expected {', '.join(sorted(measured))}"
                )


#: Other values of `needs`: sums over queries, which take a second pass over the scores.
SECOND_PASS = frozenset({"received", "recent", "offset_sum", "distance"})
STRONGEST = "strongest"
#: Every weight, a block of queries at a time.
EVERY_WEIGHT = "weights"
#: The weights at chosen offsets, from the log-sum-exp of each row.
CHOSEN = "chosen"


_optional = partial(Statistic, has_equal=True)
# under uniform attention, a key's chance to have a row's largest weight is its weight
_of_largest = partial(_optional, needs=("largest_key",))
_EACH_SHARE = "5, 10, 25%"  # of the blocks, all three in one variable
_EACH_OFFSET = "each chosen offset"
#: Wording of statistics with several numbers a head, by their last dimension: of all numbers, and of one.
_OF_EACH = {"kept": (_EACH_SHARE, "{}%"), "chosen_offset": (_EACH_OFFSET, "offset {}")}
SEVERAL = tuple(_OF_EACH)
_WORDS = {
    "band_sum": Wording("Sum of the weights at each offset, tr_t", "tokens"),
    "bin_sum": Wording("Sum of the weights in each bin of offsets", "tokens"),
    "profile": Wording("Mean weight at each offset", "share"),
    "outside": Wording(
        "Weight outside the band of offsets", "share", "Weight on tokens beyond the offsets of the profile."
    ),
    "entropy": Wording("Entropy of a row", "nats", "0: each query attends to one token; ln n: uniform over n tokens."),
    "first_token": Wording("Weight on the first token", "share", "Near 1: the head uses the first token as a sink."),
    "special_tokens": Wording(
        "Weight on special tokens",
        "share",
        "Tokens that the tokenizer adds, and beginning, end, class, separator and padding tokens in the text; "
        "not <unk> or the mask, which replace words.",
    ),
    "mean_offset": Wording(
        "Mean offset (negative is left)",
        "tokens",
        "Key position minus query position: negative is left, positive is right.",
        signed=True,
    ),
    "offset_spread": Wording(
        "Spread of the offset within a row",
        "tokens",
        "Root mean square over rows of the standard deviation of key minus query.",
    ),
    "max_weight": Wording("Largest weight of a row", "share", "1: one token takes everything."),
    "gini_simpson": Wording(
        "Gini-Simpson index of a row, 1 − ΣA²",
        "share",
        "Near 0: the softmax is saturated on one token; near 1: it is spread over many. A learned sink counts as one "
        "more key.",
    ),
    "block_recall": Wording(
        f"Weight in the best {_EACH_SHARE} of the blocks of each block row",
        "share",
        "Blocks are 64 x 64 tokens, chosen in each block row; compare with uniform attention.",
    ),
    "map_block_recall": Wording(
        f"Weight in the best {_EACH_SHARE} of the blocks of the whole map",
        "share",
        "Blocks are 64 x 64 tokens, chosen in the whole map; compare with uniform attention.",
    ),
    "learned_sink": Wording("Weight on a learned sink (no token)", "share"),
    "attention_distance": Wording(
        "Mean distance between query and key, Σ A |i − j| / Σ A",
        "tokens",
        "To either side; compare with uniform attention.",
    ),
    "largest_distance": Wording(
        "Mean distance to the key with the largest weight",
        "tokens",
        "0: each query attends most to itself; near uniform attention: the largest weight may be anywhere.",
    ),
    "largest_first": Wording(
        "Queries whose largest weight is on the first token",
        "share",
        "1: every query attends most to the first token (a sink), however small the weight is.",
    ),
    "offset_sum": Wording("Sum of the weights at every offset", "tokens"),
    "top_key": Wording(
        "Share of all weight on the key that receives most",
        "share",
        "1: all queries attend to one token; near uniform attention: no token dominates.",
    ),
    "top_10_keys": Wording(
        "Share of all weight on the 10 keys that receive most",
        "share",
        "Share that a cache of the best 10 keys for this head and window would keep.",
    ),
    "effective_keys": Wording(
        "Effective number of keys, exp of the entropy of their shares",
        "tokens",
        "1: all weight is on one key; n: n keys receive the same.",
    ),
    "group_rows": Wording("Queries of each group", "tokens"),
    "group_weight": Wording("Weight from the queries of one group to all keys of another", "share"),
    "position_group_weight": Wording("Weight from one group to another predicted from offsets alone", "share"),
    "weight_at": Wording(
        f"Share of the weight at {_EACH_OFFSET}",
        "share",
        "Mean over all queries, including those without a token there: compare with uniform attention. Missing if "
        "the mask hides the offset.",
    ),
    STRONGEST: Wording(
        "Weight, query and key of the row with the largest weight",
        "",
        "Without rows that have it on the first token or a special token; it gives the examples of each head. "
        "Measured by default for texts without --pool and --rows.",
    ),
}
_OF_KEYS = {"top_key": partial(top, count=1), "top_10_keys": partial(top, count=10), "effective_keys": effective}
_GROUPS = ("group_query", "group_key")


def _within(distance: int) -> Statistic:
    """Weight within a distance, whatever the band: bins end at powers of 2."""
    reading = f"Share of the weight on tokens at most {distance:,} away, on either side."
    words = Wording(f"Weight within {distance:,} tokens", "share", reading)
    return _optional(words, lambda rows: rows.within(distance), ("band", "bins"))


_POSITIONAL = "0.9 or more: a positional head (Voita et al. 2019)."


def _of_side(side: str, offset: int) -> Statistic:
    words = Wording(f"Queries whose largest weight is on the {side} token", "share", _POSITIONAL)
    how: dict[str, Any] = {"of_equal": lambda rows: rows.weight_at(offset), "needs_of_equal": ("band",)}
    return _of_largest(words, lambda rows: rows.mean(rows.largest_offset == offset), **how)


def _of_keys(prefix: str, what: str, of: str, *, by_cache: bool = False) -> dict[str, Statistic]:
    """Statistics of what keys receive; `by_cache`, from all query heads of a key-value head, at each of them."""

    def statistic(words: Wording, reduce: Callable[[Tensor], Tensor]) -> Statistic:
        wording_of = replace(words, long_name=words.long_name + of)
        return _optional(
            wording_of, lambda rows: reduce(rows.summed_by_cache(what) if by_cache else rows.summed(what)), (what,)
        )

    return {prefix + name: statistic(_WORDS[name], reduce) for name, reduce in _OF_KEYS.items()}


def _own(
    name: str, *needs: str | RowMeasure, reduce: Callable[[Rows], Tensor] | None = None, **how: Any
) -> dict[str, Statistic]:
    """A statistic by its name, which is also that of a property of `Rows` unless another computation is given."""
    return {name: Statistic(_WORDS[name], reduce or attrgetter(name), needs, **how)}


_RECENT = ", over the last queries (the observation window)"
_BY_CACHE = ", from all query heads of a key-value head"
_WITH_EQUAL: dict[str, Any] = {"has_equal": True}
_OF_BLOCKS: dict[str, Any] = _WITH_EQUAL | {"along": ("kept",)}
STATISTICS: dict[str, Statistic] = {
    **_own("band_sum", "band", along=("offset",), **_WITH_EQUAL),
    **_own("bin_sum", "band", "bins", along=("offset_bin",), **_WITH_EQUAL),
    **_own("profile", "band", along=("offset",)),
    **_own("outside", "band", **_WITH_EQUAL),
    **_own("entropy", "entropy", reduce=lambda rows: rows.mean_of("entropy"), **_WITH_EQUAL),
    **_own("first_token", "columns", **_WITH_EQUAL),
    **_own("special_tokens", "columns", **_WITH_EQUAL),
    **_own("mean_offset", "offsets", reduce=lambda rows: rows.mean_of("mean_offset")),
    **_own("offset_spread", "offsets", "variance", reduce=lambda rows: rows.mean_of("offset_variance").sqrt()),
    **_own("max_weight", "largest", reduce=lambda rows: rows.mean_of("largest")),
    **_own("gini_simpson", "collision", reduce=attrgetter("gini_simpson")),
    **_own("block_recall", "blocks", reduce=lambda rows: rows.summed("blocks").recall(), **_OF_BLOCKS),
    **_own("map_block_recall", "blocks", reduce=lambda rows: rows.summed("blocks").map_recall(), **_OF_BLOCKS),
    **_own("learned_sink", reduce=lambda rows: 1.0 - rows.mass),
    **{f"within_{distance}": _within(distance) for distance in (64, 256, 1024, 4096)},
    **_own("attention_distance", "offsets", "distance", **_WITH_EQUAL),
    "largest_distance": _of_largest(
        _WORDS["largest_distance"],
        lambda rows: rows.mean(rows.largest_offset.abs()),
        of_equal=attrgetter("attention_distance"),
        needs_of_equal=("offsets", "distance"),
    ),
    "largest_first": _of_largest(
        _WORDS["largest_first"],
        attrgetter("largest_first"),
        of_equal=attrgetter("first_token"),
        needs_of_equal=("columns",),
    ),
    **{f"largest_{side}": _of_side(side, offset) for side, offset in (("previous", -1), ("next", 1))},
    **_of_keys("", "received", ""),
    **_of_keys("recent_", "recent", _RECENT),
    **_of_keys("kv_", "received", _BY_CACHE, by_cache=True),
    **_of_keys("kv_recent_", "recent", _RECENT + _BY_CACHE, by_cache=True),
    **_own(
        "offset_sum", "offset_sum", reduce=lambda rows: rows.summed("offsets"), along=("every_offset",), **_WITH_EQUAL
    ),
    **_own(STRONGEST, "largest", "largest_key", along=("part",)),
}
#: Statistics that are measured by default.
DEFAULT = (
    "band_sum", "bin_sum", "profile", "outside", "entropy", "first_token", "special_tokens", "mean_offset",
    "offset_spread", "max_weight", "gini_simpson",
)  # fmt: skip
#: Needs whose sums over the rows of a pass are kept; statistics of these alone are computed from the sums.
_SUMMED = {"band", "bins", "columns", "entropy", "offsets", "variance", "largest", "collision"}
OF_SUMS = frozenset(name for name, statistic in STATISTICS.items() if _SUMMED.issuperset(statistic.needs))
#: Further statistics if tokens are in groups.
OF_GROUPS = {
    **_own("group_weight", "columns", along=_GROUPS, **_WITH_EQUAL),
    **_own("position_group_weight", "columns", "band", "bins", along=_GROUPS),
}
_CHOSEN: dict[str, Any] = {"along": ("chosen_offset",), "has_equal": True}
#: Further statistics if offsets are chosen.
OF_OFFSETS = _own("weight_at", CHOSEN, reduce=lambda rows: rows.summed("chosen") / rows.count[..., None], **_CHOSEN)
GROUP_ROWS = "group_rows"
#: Further statistics of pooled windows: the weights of means over windows.
OF_POOLED_GROUPS = _own(GROUP_ROWS, along=("group_query",), **_WITH_EQUAL)
KNOWN = ChainMap(STATISTICS, OF_OFFSETS, OF_GROUPS, OF_POOLED_GROUPS)


def needs_of(names: Sequence[str], *, equal: bool = False) -> frozenset[str | RowMeasure]:
    """The measurements that these statistics need, of heads or of uniform attention."""
    return _needs_of(tuple(names), equal)


@lru_cache(maxsize=64)
def _needs_of(names: tuple[str, ...], equal: bool) -> frozenset[str | RowMeasure]:
    kinds = (KNOWN[name] for name in names)
    return frozenset(need for one in kinds for need in (one.needs_of_equal if equal and one.of_equal else one.needs))


def of_rows(needs: Collection[str | RowMeasure]) -> list[RowMeasure]:
    """The measures of each row among needs."""
    return [need for need in needs if isinstance(need, RowMeasure)]


def needing_all(names: Sequence[str]) -> list[str]:
    """The statistics that need all rows."""
    needs = {name: STATISTICS[name].needs for name in names}
    return [name for name in names if {*SECOND_PASS, "blocks", EVERY_WEIGHT} & {*needs[name]} or of_rows(needs[name])]


def by_group(names: Sequence[str]) -> list[str]:
    """The statistics that are also measured for each group of queries: one number a head, from its rows."""
    kinds = {name: KNOWN[name] for name in names}
    return [
        name for name, one in kinds.items() if not one.along and not SECOND_PASS & {*one.needs, *one.needs_of_equal}
    ]


@lru_cache(maxsize=256)
def dimensions(name: str) -> tuple[str, ...]:
    """Names of the dimensions of a statistic in a result."""
    base = without_end(name.removeprefix(EQUAL).removesuffix(BY_GROUP))
    along = KNOWN[base].along + (("group_query",) if name.endswith(BY_GROUP) else ())
    return ("window", "layer", *(() if name.startswith(EQUAL) else ("head",)), *along)


#: Statistics of a vision encoder's patches, in addition to `OF_ANY_TOKENS`; see `images.measure_patches`.
PATCH_STATISTICS = {
    "patch_profile": Wording("Mean weight at each offset in rows and columns of patches", "share"),
    "same_row": Wording(
        "Weight on the same row of patches", "share", "Share of a patch's weight in its own row, including itself."
    ),
    "same_column": Wording(
        "Weight on the same column of patches",
        "share",
        "Share of a patch's weight in its own column, including itself.",
    ),
    "class_token": Wording(
        "Weight of patches on the class token", "share", "Near 1: the head uses the class token as a sink."
    ),
    "registers": Wording(
        "Weight of patches on registers", "share", "Weight on tokens that are neither patches nor the class token."
    ),
    "patch_distance": Wording(
        "Mean distance", "patches", "Between the centres of two patches, weighted by the attention between them."
    ),
    "row_offset_mean": Wording(
        "Mean offset in rows (negative is up)",
        "patches",
        "Row of the key minus row of the query, weighted by attention.",
        signed=True,
    ),
    "column_offset_mean": Wording(
        "Mean offset in columns (negative is left)",
        "patches",
        "Column of the key minus column of the query, weighted by attention.",
        signed=True,
    ),
}
#: Statistics of `STATISTICS` that do not depend on the order of tokens.
OF_ANY_TOKENS = ("entropy", "max_weight", "gini_simpson", "learned_sink")
_OF_ANY_ORDER = {"entropy", "largest", "collision", "received", EVERY_WEIGHT}  # needs of such statistics


def of_any_tokens() -> list[str]:
    """Statistics that do not depend on the order of tokens, registered ones among them."""
    needs = {name: STATISTICS[name].needs for name in registry.registered("statistic")}
    return [*OF_ANY_TOKENS, *(name for name in needs if {*needs[name]} - {*of_rows(needs[name])} <= _OF_ANY_ORDER)]


#: Variables that `summarize` adds to a scan; "cluster, centroid" are two variables with one sentence.
SUMMARIES = {
    "label": Wording("Label of the head in each text, as its number in cluster"),
    "cluster, centroid": Wording("Names of the labels; their mean shares of the weight at each offset"),
    "label_share": Wording("Share of the texts with each label", "share"),
    "majority_share": Wording(
        "Share of the texts with the most frequent label", "share", "1: the head has the same label on every text."
    ),
    "effective_labels": Wording(
        "Effective number of labels, exp of their entropy", "", "Over texts; 1: always the same label."
    ),
    "direction": Wording(
        "Direction of the weight",
        "(right − left) / (right + left)",
        "−1: only to the left; 0: balanced; 1: only to the right.",
        signed=True,
    ),
    "direction_sign_agreement": Wording(
        "Share of the texts whose direction has the usual sign",
        "share",
        "1: the head prefers the same side on every text.",
    ),
}


def wording(name: str) -> Wording:
    """The wording of a variable of a scan; by default its name."""
    if name in SUMMARIES:
        return SUMMARIES[name]
    base = without_end(name.removeprefix(EQUAL).removesuffix(BY_GROUP))
    words = KNOWN[base].words if base in KNOWN else PATCH_STATISTICS.get(base) or _of_one(base)
    if words is None:
        return Wording(name.replace("_", " "))
    of = ", by group of queries" if name.endswith(BY_GROUP) else ""
    of += ", under uniform attention" if name.startswith(EQUAL) else ""
    of += ", standard error from the sampled rows" if name.endswith(ERROR) else ""
    for end, meaning in _ENDS.items():
        if name.endswith(end):
            return Wording(f"{words.long_name}{of}, {meaning}")
    return replace(words, long_name=words.long_name + of)


@lru_cache(maxsize=256)
def attributes_of(name: str, unit: str) -> dict[str, str]:
    """Attributes of a variable of a scan whose tokens are called so."""
    attributes = wording(name).attributes
    return attributes | {"units": attributes["units"].replace("tokens", unit)}


def _of_one(name: str) -> Wording | None:
    """The wording of one of several numbers, such as ``block_recall_5`` or ``weight_at_-1``; None for other names."""
    base, _, one = name.rpartition("_")
    if base not in KNOWN or not {*KNOWN[base].along} & {*SEVERAL}:
        return None
    words = KNOWN[base].words
    of_all, of_one = _OF_EACH[KNOWN[base].along[0]]
    return replace(words, long_name=words.long_name.replace(of_all, of_one.format(one)))


def without_end(name: str) -> str:
    """The name of a statistic, without the suffix of an error, its degrees of freedom, skewness or rows."""
    for end in OF_ESTIMATES:
        name = name.removesuffix(end)
    return name


_ENDS = {
    FREEDOM: "degrees of freedom of the standard error",
    SKEWNESS: "skewness of the estimate",
    EFFECTIVE: "effective number of sampled rows",
}
_COMPUTED = {name for names in SUMMARIES for name in names.split(", ")}
#: Coordinates and other variables of a scan, and words of the option.
_TAKEN = (
    *("window", "layer", "head", "offset", "offset_bin", "every_offset", "kept", "part", "layer_name", "layer_kind"),
    *("length", "target_length", "sampled_rows", "start", "source", "by", "rows", "columns", "frames", "default"),
    "list",
)
_DEFAULT = "default"  # among names: all default statistics


def choose(
    names: Sequence[str] | str | None,
    known: Callable[[], Collection[str]] = lambda: STATISTICS,
    default: tuple[str, ...] = DEFAULT,
    of: str = "",
    brought: Collection[str] = (),
) -> tuple[str, ...]:
    """Validate names of statistics; None means `default`, and a string is a comma-separated list."""
    if names is None:
        return default
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",") if name.strip()]
    if not {*names} <= {*known(), *brought, _DEFAULT}:
        registry.load_records()
    every = known()
    unknown = [name for name in names if name not in every and name not in brought and name != _DEFAULT]
    if unknown or not names:
        reason = _unknown(unknown[0], every, of) if unknown else "found no name of a statistic"
        raise AttnscopeError(
            f"{reason}. To list all: attnscope scan --statistics list (one of your own once its module is imported)"
        )
    chosen = {*names, *(default if _DEFAULT in names else ())}
    added = registry.registered("statistic")  # in an order that does not depend on what was imported first
    return tuple(name for name in (*(one for one in every if one not in added), *added) if name in chosen)


def _unknown(name: str, known: Collection[str], of: str) -> str:
    """Why a name cannot be requested: the option that adds it, or that it does not exist."""
    base = name.removeprefix(EQUAL).removesuffix(BY_GROUP)
    whole = base.rpartition("_")[0] if _of_one(base) else base
    if whole in OF_OFFSETS:
        return f"{name} needs offsets, in a scan of texts: add --offsets -1,-64"
    if whole in OF_POOLED_GROUPS:
        return f"{name} needs groups and a pool, in a scan of texts: add --groups types --pool 64"
    if whole in OF_GROUPS or (name.endswith(BY_GROUP) and whole in known):
        return f"{name} needs groups, in a scan of texts: add --groups types"
    if base != whole:
        return f"{name} is part of {whole}: request {whole}"
    if name in _COMPUTED or whole in known:
        return f"{name} is computed automatically and cannot be requested by name"
    nearest = "".join(f": the nearest is {near}" for near in get_close_matches(name, known, 1))
    return f"there is no statistic {name!r}{of}{nearest}"


#: What the function of a statistic of one's own may need, and what it then finds in the rows.
NEEDS = {
    "entropy": "measures.entropy",
    "largest": "measures.largest",
    "largest_key": "measures.largest_key, largest_offset",
    "collision": "measures.collision",
    "offsets": "measures.mean_offset",
    "variance": "measures.offset_variance",
    "band": "measures.band, band_sum, weight_at(offset)",
    "columns": "first_token, special_tokens",
    "received": 'summed("received")',
    "recent": 'summed("recent")',
    "offset_sum": 'summed("offsets")',
    EVERY_WEIGHT: "of_weights(function)",
}


def register_statistic(
    function: Callable[[Rows], Tensor],
    name: str,
    needs: tuple[str | RowMeasure, ...],
    null: Callable[[Rows], Tensor] | bool,
    words: Wording,
) -> None:
    """Add a statistic of a caller's own to `STATISTICS`, with a check of all that its functions return."""
    unknown = [need for need in needs if not isinstance(need, RowMeasure) and need not in NEEDS]
    if unknown:
        raise AttnscopeError(f"the statistic {name} needs {unknown[0]!r:.40}; expected {', '.join(NEEDS)}")
    if without_end(name.removeprefix(EQUAL).removesuffix(BY_GROUP)) != name:
        raise AttnscopeError(f"the statistic {name!r} has an ending or a beginning with a meaning: choose another name")
    of_equal = None if isinstance(null, bool) else _checked(name, null)
    needs_of_equal: Any = {"of_equal": of_equal, "needs_of_equal": needs if of_equal else ()}
    reduce = _checked(name, function)
    record = Statistic(words, reduce, needs, has_equal=bool(null), **needs_of_equal)
    taken = {*KNOWN, *PATCH_STATISTICS, *_COMPUTED, *_TAKEN}
    stored = {**asdict(words), "has_equal": record.has_equal}
    registry.register("statistic", name, record, STATISTICS, function, null, needs, words, taken=taken, words=stored)
    for cached in (_needs_of, dimensions, attributes_of):
        cached.cache_clear()


@checked
def stored_statistic(
    name: str,  # noqa: ARG001
    *,
    long_name: str,
    units: str,
    reading: str,
    signed: bool,
    has_equal: bool,
) -> tuple[dict[str, Statistic], Statistic]:
    """A statistic of a caller's own as a run stores it, without its function; and its table."""
    for cached in (_needs_of, dimensions, attributes_of):
        cached.cache_clear()
    words = Wording(long_name, units, reading, signed)
    return STATISTICS, Statistic(words, lambda rows: rows.count, has_equal=has_equal)


def _checked(name: str, function: Callable[[Rows], Tensor]) -> Callable[[Rows], Tensor]:
    """The function of a statistic, with an error for anything but a finite number of each head, always the same."""
    advice = "Correct its function, or add what it uses to its needs"
    is_tried = False

    def reduce(rows: Rows) -> Tensor:
        nonlocal is_tried
        with explaining(f"the statistic {name} failed", advice):
            number: Any = function(rows)
            again: Any = number if is_tried else function(rows)
        shape = getattr(number, "shape", None)
        if shape != rows.count.shape:
            what = f"shape {tuple(shape)}" if shape is not None else f"a {type(number).__name__}"
            raise AttnscopeError(
                f"the statistic {name} returns {what}; expected a tensor of shape {tuple(rows.count.shape)}, a number "
                "of each head, as rows.mean returns it"
            )
        if not is_tried and not bool(((number == again) | (number.isnan() & again.isnan())).all()):
            raise AttnscopeError(f"the statistic {name} returns other numbers for the same rows: remove random numbers")
        if not bool((number.isfinite() | (rows.count == 0)).all()):
            raise AttnscopeError(
                f"the statistic {name} returns NaN or an infinite number for a head with rows: expected finite ones"
            )
        is_tried = True
        return number.double()

    return reduce
