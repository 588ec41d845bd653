"""The report of `find`: heads by what goes from one word to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.measure.stored import describe_corpus, notes_of
from attnscope.results.schema import Finding, Quantity, Report, Row, Table, effect_columns, effect_quantity, rows_of
from attnscope.support.arguments import reads
from attnscope.support.numbers import count, significant

if TYPE_CHECKING:
    import xarray as xr


@reads("find")
def report(result: xr.Dataset) -> Report:
    """All heads by the weight from one word to another, next to uniform attention and other words."""
    query, key, windows = str(result.attrs["query"]), str(result.attrs["key"]), int(result.attrs["with_both"])
    columns = {
        "weight": result.weight,
        "weight_low": result.weight_low,
        "weight_high": result.weight_high,
        **effect_columns(result, "above", "above"),
        **{name: result[name] for name in ("uniform", "same_offset", "first_of", "rank", "strongest")},
    }
    rows = sorted(rows_of(columns, result.weight), key=lambda row: -row["weight"])
    tested = any(row["above_shown"] is not None for row in rows)
    own = [row for row in rows if _attends(row)]
    return Report(
        command="find",
        title=f"Attention from {query!r} to {key!r} in {result.attrs['model']}",
        model=str(result.attrs["model"]),
        read=f"{describe_corpus(result)}; both words in {count(windows, 'window')}",
        finding=Finding(
            _sentences(rows, own, query, key),
            f"95% intervals over {result.attrs['intervals_over']}; significant above uniform attention and the same offset, "
            "corrected for all heads"
            if tested
            else "no test: fewer than 6 windows have both words",
            [(row["layer"], row["head"]) for row in own],
        ),
        tables=[
            Table(
                "heads",
                f"Weight from {query!r} to {key!r}",
                _HEADS,
                rows,
                reading="Heads by the weight from the one word to the other, with two baselines and the other words.",
                corrected="for all heads",
                least="6 or more windows",
            )
        ],
        result=result,
        notes=[*notes_of(result).values()],
        care={"A weight shows where a head attends, not what it does.": "attnscope intervene measures whether a head matters."},
    )


def _attends(row: Row) -> bool:
    """Whether the word gets the most of all words in most texts, and more than both baselines."""
    return row["first_of"] > 0.5 and (row["above_mean"] > 0 if row["above_shown"] is None else row["above_shown"] and row["above_mean"] > 0)  # noqa: E501, PLR2004


def _sentences(rows: list[Row], own: list[Row], query: str, key: str) -> list[str]:
    """Which heads attend to the word, or that none does and what the strongest head does."""
    top = (own or rows)[0]
    name = f"{top['layer']}.{top['head']}"
    baselines = f"uniform attention {significant(top['uniform'], 2)}"
    if top["same_offset"] is not None:
        baselines += f", same offset from other words {significant(top['same_offset'], 2)}"
    weight = significant(top["weight"], 2)
    if own:
        return [
            f"{len(own)} of {count(len(rows), 'head')} attend{'s' * (len(own) == 1)} from {query!r} to {key!r} more than to any other word.",
            f"Head {name} has the largest weight: {weight} ({baselines}).",
        ]
    return [
        f"No head attends from {query!r} to {key!r} more than to any other word and than both baselines.",
        f"Head {name} has the largest weight: {weight} ({baselines}); in the first text {top['strongest']!r} gets the most, and "
        f"{key!r} has rank {int(top['rank'])}.",
    ]


_HEADS = (
    Quantity("layer", unit="count", detail="data"),
    Quantity("head", unit="head"),
    Quantity("weight", unit="share", meaning="weight from the one word to the other", low="weight_low", high="weight_high", interval=True),  # noqa: E501
    Quantity("uniform", unit="share", meaning="the same under uniform attention"),
    Quantity("same_offset", "same offset", "share", "mean weight at the same offset from other words of the text"),
    effect_quantity("above", "above", heading="above", meaning="weight less the larger of both baselines"),
    Quantity("first_of", "first", "share", "share of the windows in which no other word gets more"),
    Quantity("rank", "rank", "count", "rank of the word among all words, in the first window with both words"),
    Quantity("strongest", "most", "token", "word that gets the most, in that window"),
)
