"""What is measured of a head: each statistic as what it needs of a pass, what it makes of the rows, and its words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch import Tensor

    from attnscope.measure.rows import Rows


def top(received: Tensor, count: int) -> Tensor:
    """Share of all weight on the keys that receive most, so many of them: ``(batch, head)``; NaN if there is none."""
    return _received_shares(received).topk(min(count, received.shape[-1])).values.sum(-1)


def effective(received: Tensor) -> Tensor:
    """Effective number of keys, exp of the entropy of what they receive: ``(batch, head)``."""
    shares = _received_shares(received)
    return shares.xlogy(shares).sum(-1).neg().exp()


def _received_shares(received: Tensor) -> Tensor:
    return received / received.sum(-1, keepdim=True)


EQUAL = "equal_"  # begins the name of what equal weights over the visible tokens give
ERROR = "_error"  # ends the name of the standard error of what is estimated from some rows
FREEDOM = "_freedom"  # ends the name of the degrees of freedom of that standard error
SKEWNESS = "_skewness"  # ends the name of the skewness of such an estimate
EFFECTIVE = "_effective_rows"  # ends the name of the number of rows that such an estimate rests on
OF_ESTIMATES = (ERROR, FREEDOM, SKEWNESS, EFFECTIVE)
BY_GROUP = "_by_group"  # ends the name of a statistic of the queries of each group of tokens


@dataclass(frozen=True)
class Wording:
    """How a number of each head is named and read."""

    long_name: str  # for tables and axes
    units: str = ""
    reading: str = ""  # what small and large values mean, in a line
    signed: bool = False  # whether 0 is the middle of the scale

    @property
    def largest(self) -> float:
        """The largest size that it can have, by what it is: 1 of a share; 0 where nothing bounds it."""
        return 1.0 if self.units == "share" else 0.0

    @property
    def attributes(self) -> dict[str, str]:
        """Those of a variable."""
        return {"long_name": self.long_name, "units": self.units}


@dataclass(frozen=True)
class Statistic:
    """A number of each head and window."""

    words: Wording
    reduce: Callable[[Rows], Tensor]  # rows -> ``(batch, head)``, or with more dimensions
    # names of the fields of `Need`, ``band`` and ``columns`` among them, and of `SECOND_PASS`; `CHOSEN`; or ``blocks``
    needs: tuple[str, ...] = ()
    along: tuple[str, ...] = field(default=(), kw_only=True)  # the dimensions behind ``(batch, head)``
    has_equal: bool = field(default=False, kw_only=True)  # whether a result has uniform attention's number beside it
    # what reduces uniform attention, and what that needs, where it is not as of the head itself
    of_equal: Callable[[Rows], Tensor] | None = field(default=None, kw_only=True)
    needs_of_equal: tuple[str, ...] = field(default=(), kw_only=True)
    by_default: bool = field(default=True, kw_only=True)  # whether it is measured where nothing was chosen

    @property
    def is_row_wise(self) -> bool:
        """Whether it is had of the rows of one pass, and what equal weights give too."""
        return not SECOND_PASS & {*self.needs, *self.needs_of_equal}


#: What `needs` may name beside fields of `Need`: sums over queries, which take a second pass over the scores.
SECOND_PASS = frozenset({"received", "recent", "offset_sum", "distance"})
#: And the weights at offsets that were chosen, which follow from the log-sum-exp of each row.
CHOSEN = "chosen"


def _within(distance: int) -> Statistic:
    """Weight on what is near, however far the band reaches: bins end at powers of 2."""
    return Statistic(
        Wording(
            f"Weight within {distance:,} tokens",
            "share",
            f"Share of the weight on tokens at most {distance:,} away, on either side.",
        ),
        lambda rows: rows.within(distance),
        ("band", "bins"),
        has_equal=True,
        by_default=False,
    )


def _of_largest(
    name: str,
    units: str,
    reading: str,
    reduce: Callable[[Rows], Tensor],
    of_equal: Callable[[Rows], Tensor],
    needs_of_equal: tuple[str, ...],
) -> Statistic:
    """Where a row's largest weight lies. Of equal weights each key has it as likely as it has the weight."""
    return Statistic(
        Wording(name, units, reading),
        reduce,
        ("largest_key",),
        has_equal=True,
        of_equal=of_equal,
        needs_of_equal=needs_of_equal,
        by_default=False,
    )


def _of_keys(prefix: str, what: str, of: str) -> dict[str, Statistic]:
    """How the weight is shared out among the keys, from what each of them receives."""

    def statistic(name: str, units: str, reading: str, reduce: Callable[[Tensor], Tensor]) -> Statistic:
        words = Wording(name + of, units, reading)
        return Statistic(words, lambda rows: reduce(getattr(rows, what)), (what,), has_equal=True, by_default=False)

    return {
        f"{prefix}top_key": statistic(
            "Share of all weight on the key that receives most",
            "share",
            "1: all queries attend to one token; near uniform attention: no token stands out.",
            lambda received: top(received, 1),
        ),
        f"{prefix}top_10_keys": statistic(
            "Share of all weight on the 10 keys that receive most",
            "share",
            "What a cache of 10 keys, the best for this head and window, would keep.",
            lambda received: top(received, 10),
        ),
        f"{prefix}effective_keys": statistic(
            "Effective number of keys, exp of the entropy of what they receive",
            "tokens",
            "1: all weight is on one key; n: all n keys receive alike.",
            effective,
        ),
    }


_EACH_SHARE = "5, 10, 25%"  # of the blocks, all three in one variable
_EACH_OFFSET = "each chosen offset"
#: By the last dimension of what is several numbers of a head: what its name says of all, and of one.
_OF_EACH = {"kept": (_EACH_SHARE, "{}%"), "chosen_offset": (_EACH_OFFSET, "offset {}")}
SEVERAL = tuple(_OF_EACH)
STATISTICS: dict[str, Statistic] = {
    "band_sum": Statistic(
        Wording("Sum of the weights at each offset, tr_t", "tokens"),
        lambda rows: rows.band_sum,
        ("band",),
        along=("offset",),
        has_equal=True,
    ),
    "bin_sum": Statistic(
        Wording("Sum of the weights in each bin of offsets", "tokens"),
        lambda rows: rows.bin_sum,
        ("band", "bins"),
        along=("offset_bin",),
        has_equal=True,
    ),
    "profile": Statistic(
        Wording("Mean weight at each offset", "share"), lambda rows: rows.profile, ("band",), along=("offset",)
    ),
    "outside": Statistic(
        Wording("Weight outside the band of offsets", "share", "Mass on tokens beyond the offsets of the profile."),
        lambda rows: rows.outside,
        ("band",),
        has_equal=True,
    ),
    "entropy": Statistic(
        Wording("Entropy of a row", "nats", "0: each query attends to one token; ln n: to all n tokens alike."),
        lambda rows: rows.mean_of("entropy"),
        ("entropy",),
        has_equal=True,
    ),
    "first_token": Statistic(
        Wording("Weight on the first token", "share", "Near 1: the head rests on the first token (a sink)."),
        lambda rows: rows.first_token,
        ("columns",),
        has_equal=True,
    ),
    "special_tokens": Statistic(
        Wording(
            "Weight on special tokens",
            "share",
            "On what the tokenizer puts at the ends, and its beginning, end, class, separator and padding tokens "
            "between; not on <unk> and the mask, which stand for words.",
        ),
        lambda rows: rows.special_tokens,
        ("columns",),
        has_equal=True,
    ),
    "mean_offset": Statistic(
        Wording(
            "Mean offset (negative is left)",
            "tokens",
            "Key minus query position: negative looks left, positive looks right.",
            signed=True,
        ),
        lambda rows: rows.mean_of("mean_offset"),
        ("offsets",),
    ),
    "offset_spread": Statistic(
        Wording(
            "Spread of the offset within a row",
            "tokens",
            "Root mean square over rows of the standard deviation of key minus query.",
        ),
        lambda rows: rows.mean_of("offset_variance").sqrt(),
        ("offsets", "variance"),
    ),
    "max_weight": Statistic(
        Wording("Largest weight of a row", "share", "1: one token takes everything."),
        lambda rows: rows.mean_of("largest"),
        ("largest",),
    ),
    "gini_simpson": Statistic(
        Wording(
            "Gini-Simpson index of a row, 1 − ΣA²",
            "share",
            "Near 0: the softmax is saturated on one token; near 1: spread over many.",
        ),
        lambda rows: 1.0 - rows.mean_of("collision"),
        ("collision",),
    ),
    "block_recall": Statistic(
        Wording(
            f"Weight that the best {_EACH_SHARE} of the blocks of each row of blocks hold",
            "share",
            "The best 64 x 64 blocks of each row of blocks; compare with uniform attention.",
        ),
        lambda rows: rows.blocks.recall(),
        ("blocks",),
        along=("kept",),
        has_equal=True,
        by_default=False,
    ),
    "map_block_recall": Statistic(
        Wording(
            f"Weight that the best {_EACH_SHARE} of the blocks of the whole map hold",
            "share",
            "The best 64 x 64 blocks of the whole map; compare with uniform attention.",
        ),
        lambda rows: rows.blocks.map_recall(),
        ("blocks",),
        along=("kept",),
        has_equal=True,
        by_default=False,
    ),
    "learned_sink": Statistic(
        Wording("Weight on a learned sink, on no token", "share"), lambda rows: 1.0 - rows.mass, by_default=False
    ),
    **{f"within_{distance}": _within(distance) for distance in (64, 256, 1024, 4096)},
    "attention_distance": Statistic(
        Wording(
            "Mean distance between query and key, Σ A |i − j| / Σ A",
            "tokens",
            "On either side; compare with uniform attention.",
        ),
        lambda rows: rows.attention_distance,
        ("offsets", "distance"),
        has_equal=True,
        by_default=False,
    ),
    "largest_distance": _of_largest(
        "Mean distance to the key with the largest weight",
        "tokens",
        "0: each query attends most to itself; near uniform attention: the largest weight may be anywhere.",
        lambda rows: rows.mean(rows.largest_offset.abs()),
        lambda rows: rows.attention_distance,
        ("offsets", "distance"),
    ),
    "largest_first": _of_largest(
        "Queries whose largest weight is on the first token",
        "share",
        "1: every query attends most to the first token (a sink), however small the weight is.",
        lambda rows: rows.largest_first,
        lambda rows: rows.first_token,
        ("columns",),
    ),
    **{
        f"largest_{side}": _of_largest(
            f"Queries whose largest weight is on the {side} token",
            "share",
            "0.9 or more: a positional head (Voita et al. 2019).",
            lambda rows, offset=offset: rows.mean((rows.largest_offset == offset).double()),
            lambda rows, offset=offset: rows.weight_at(offset),
            ("band",),
        )
        for side, offset in (("previous", -1), ("next", 1))
    },
    **_of_keys("", "received", ""),
    **_of_keys("recent_", "recent", ", of the last queries (the observation window)"),
    "offset_sum": Statistic(
        Wording("Sum of the weights at every offset", "tokens"),
        lambda rows: rows.offset_sum,
        ("offset_sum",),
        along=("every_offset",),
        has_equal=True,
        by_default=False,
    ),
}
DEFAULT = tuple(name for name, statistic in STATISTICS.items() if statistic.by_default)
#: What is measured where the tokens are in groups, beside what is chosen by name.
OF_GROUPS: dict[str, Statistic] = {
    "group_weight": Statistic(
        Wording("Weight of the queries of one group on all keys of another", "share"),
        lambda rows: rows.group_weight,
        ("columns",),
        along=("group_query", "group_key"),
        has_equal=True,
    ),
    "place_group_weight": Statistic(
        Wording("Weight of one group on another by the head's places alone", "share"),
        lambda rows: rows.place_group_weight,
        ("columns", "band", "bins"),
        along=("group_query", "group_key"),
    ),
}
#: What is measured where offsets are chosen, beside what is chosen by name.
OF_OFFSETS: dict[str, Statistic] = {
    "weight_at": Statistic(
        Wording(
            f"Share of the weight at {_EACH_OFFSET}",
            "share",
            "Mean over all queries, also those without a token there: compare with uniform attention. None where no "
            "query of a text may look there.",
        ),
        lambda rows: rows.weight_at_chosen,
        (CHOSEN,),
        along=("chosen_offset",),
        has_equal=True,
    )
}
GROUP_ROWS = "group_rows"
#: What is measured beside these where windows come in pools: what a mean over windows is weighted by.
OF_POOLED_GROUPS: dict[str, Statistic] = {
    GROUP_ROWS: Statistic(
        Wording("Queries of each group", "tokens"), lambda rows: rows.group_rows, along=("group_query",), has_equal=True
    )
}
KNOWN = STATISTICS | OF_OFFSETS | OF_GROUPS | OF_POOLED_GROUPS


def needs_of(names: Sequence[str], *, equal: bool = False) -> set[str]:
    """What has to be measured for these statistics, of heads or of equal weights."""
    needs = set[str]()
    for name in names:
        statistic = KNOWN[name]
        needs |= {*(statistic.needs_of_equal if equal and statistic.of_equal else statistic.needs)}
    return needs


def by_group(names: Sequence[str]) -> list[str]:
    """Which of these statistics are had of the queries of each group too: those of one number a head, from its rows."""
    return [name for name in names if not KNOWN[name].along and KNOWN[name].is_row_wise]


#: What is measured of a vision encoder's patches, beside those `OF_ANY_TOKENS`; see `images.measure_patches`.
PATCH_STATISTICS = {
    "patch_profile": Wording("Mean weight at each offset in rows and columns of patches", "share"),
    "same_row": Wording(
        "Weight on the same row of patches", "share", "Mass of a patch's weight in its own row, itself counted."
    ),
    "same_column": Wording(
        "Weight on the same column of patches", "share", "Mass of a patch's weight in its own column, itself counted."
    ),
    "class_token": Wording(
        "Weight of patches on the class token", "share", "Near 1: the head rests on the class token (a sink)."
    ),
    "registers": Wording(
        "Weight of patches on registers", "share", "Mass on tokens that are neither patches nor the class token."
    ),
    "patch_distance": Wording(
        "Mean distance", "patches", "Between the middles of two patches, under the weight that lies on patches."
    ),
    "row_offset_mean": Wording(
        "Mean offset in rows (negative is up)",
        "patches",
        "Row of the key minus row of the query, under the weight that lies on patches.",
        signed=True,
    ),
    "column_offset_mean": Wording(
        "Mean offset in columns (negative is left)",
        "patches",
        "Column of the key minus column of the query, under the weight that lies on patches.",
        signed=True,
    ),
}
#: Statistics of `STATISTICS` that know nothing of an order of tokens.
OF_ANY_TOKENS = ("entropy", "max_weight", "gini_simpson", "learned_sink")
#: What `summarize` adds to a scan; "cluster, centroid" are two variables of one sentence.
SUMMARIES = {
    "label": Wording("Kind of the head in each text, its number among cluster"),
    "cluster, centroid": Wording("Names of the kinds; their mean shares of the weight at each offset"),
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
        "1: the head leans to the same side on every text.",
    ),
}


def wording(name: str) -> Wording:
    """The words for a variable of a scan; its own name where there are none."""
    if name in SUMMARIES:
        return SUMMARIES[name]
    own = name.removeprefix(EQUAL).removesuffix(BY_GROUP)
    own = without_end(own)
    words = KNOWN[own].words if own in KNOWN else PATCH_STATISTICS.get(own) or _of_one(own)
    if words is None:
        return Wording(name.replace("_", " "))
    of = ", by group of queries" if name.endswith(BY_GROUP) else ""
    of += ", under uniform attention" if name.startswith(EQUAL) else ""
    of += ", standard error from the rows drawn" if name.endswith(ERROR) else ""
    for end, said in _ENDS.items():
        if name.endswith(end):
            return Wording(f"{words.long_name}{of}, {said}")
    return replace(words, long_name=words.long_name + of)


def _of_one(name: str) -> Wording | None:
    """The words for one of several numbers, as in ``block_recall_5`` or ``weight_at_-1``; None for no such name."""
    own, _, one = name.rpartition("_")
    if own not in KNOWN or not {*KNOWN[own].along} & {*SEVERAL}:
        return None
    words = KNOWN[own].words
    of_all, of_one = _OF_EACH[KNOWN[own].along[0]]
    return replace(words, long_name=words.long_name.replace(of_all, of_one.format(one)))


def without_end(name: str) -> str:
    """The name of the statistic of which a variable says how far its estimate may be off."""
    for end in OF_ESTIMATES:
        name = name.removesuffix(end)
    return name


_ENDS = {
    FREEDOM: "degrees of freedom of the standard error",
    SKEWNESS: "skewness of the estimate",
    EFFECTIVE: "effective number of the rows drawn",
}
_FOUND_BESIDE = {name for names in SUMMARIES for name in names.split(", ")}
_DEFAULT = "default"  # among names: all that are measured where nothing was chosen


def choose(
    names: Sequence[str] | str | None,
    known: Collection[str] = tuple(STATISTICS),
    default: tuple[str, ...] = DEFAULT,
    of: str = "",
    brought: Collection[str] = (),
) -> tuple[str, ...]:
    """Validate the names of statistics; None means `default`, one string holds names with commas between."""
    if names is None:
        return default
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in names if name not in known and name not in brought and name != _DEFAULT]
    if unknown or not names:
        said = _unknown(unknown[0], known, of) if unknown else "no statistic was named"
        raise AttnscopeError(f"{said}. All are listed by: attnscope scan --statistics list")
    chosen = {*names, *(default if _DEFAULT in names else ())}
    return tuple(name for name in known if name in chosen)


def _unknown(name: str, known: Collection[str], of: str) -> str:
    """What to say of a name that cannot be asked for: what brings it, or that there is none such."""
    own = name.removeprefix(EQUAL).removesuffix(BY_GROUP)
    whole = own.rpartition("_")[0] if _of_one(own) else own
    if whole in OF_OFFSETS:
        return f"{name} comes with offsets, in a scan of texts: give them (--offsets -1,-64)"
    if whole in OF_POOLED_GROUPS:
        return f"{name} comes with groups and a pool, in a scan of texts: give both (--groups kinds --pool 64)"
    if whole in OF_GROUPS or (name.endswith(BY_GROUP) and whole in known):
        return f"{name} comes with groups, in a scan of texts: give them (--groups kinds)"
    if own != whole:
        return f"{name} is one number of {whole}: ask for that"
    if name in _FOUND_BESIDE or whole in known:
        return f"{name} is found beside what is measured, and not asked for by name"
    nearest = "".join(f": the nearest is {near}" for near in get_close_matches(name, known, 1))
    return f"there is no statistic {name!r}{of}{nearest}"
