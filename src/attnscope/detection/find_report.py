"""The report of `find`: heads by what goes from one word to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.measure.stored import describe_corpus, notes_of
from attnscope.report import schema
from attnscope.report.reads import reads
from attnscope.statistics.effects import EFFECTS, INTERVALS
from attnscope.statistics.units import LEAST
from attnscope.support.numbers import count, significant

if TYPE_CHECKING:
    import xarray as xr


@reads("find")
def report(result: xr.Dataset) -> schema.Report:
    """All heads by the weight from one word to another, next to uniform attention and other words."""
    query, key = str(result.attrs["query"]), str(result.attrs["key"])
    columns = {
        "weight": result.weight,
        "weight_low": result.weight_low,
        "weight_high": result.weight_high,
        **schema.effect_columns(result, "above", "above"),
        **{name: result[name] for name in ("uniform", "same_offset", "first_of", "rank", "strongest")},
    }
    rows = sorted(schema.rows_of(columns, result.weight), key=lambda row: -row["above_mean"])
    tested = any(row["above_shown"] is not None for row in rows)
    # the word gets the most of all words in most texts, and clearly more than both baselines
    beyond = [row for row in rows if row["first_of"] > _MOST and row["above_mean"] >= _SIZE]
    beyond = [row for row in beyond if row["above_shown"] or (not tested and row is rows[0])]
    certainty = (
        f"95% intervals over {result.attrs['intervals_over']}; above both baselines, corrected for all heads"
        if tested
        else f"no test: {LEAST} or more windows with both words are needed"
    )
    headline = ""
    if tested and len(beyond) == 1:
        weight = f"{beyond[0]['weight']:.2f}"
        headline = (
            f"Head {beyond[0]['layer']}.{beyond[0]['head']} attends from {query!r} most to {key!r}: weight {weight}"
        )
    return schema.Report(
        title=f"Attention from {query!r} to {key!r} in {result.attrs['model']}",
        read=f"{describe_corpus(result)}; both words in {count(int(result.attrs['with_both']), 'window')}",
        finding=schema.Finding(
            _sentences(rows, beyond, query, key, tested=tested),
            certainty,
            schema.heads_by(beyond, lambda _: "beyond both baselines" if tested else "largest weight"),
            headline,
        ),
        tables=[
            schema.Table(
                "heads",
                f"Weight from {query!r} to {key!r}",
                _HEADS,
                rows,
                reading="Heads by weight above both baselines: uniform attention, and other words at the same offset.",
                corrected="for all heads",
                least=f"{LEAST} or more windows with both words",
            )
        ],
        result=result,
        method=f"{INTERVALS} {EFFECTS}",
        notes=[*notes_of(result).values()],
        care={"A weight shows where a head attends, not what it does.": schema.MATTERS},
    )


def _sentences(rows: list[schema.Row], beyond: list[schema.Row], query: str, key: str, *, tested: bool) -> list[str]:
    """How many heads attend to the word if that was tested, and what the strongest of them does."""
    top = beyond[0] if tested and beyond else rows[0]
    uniform, weight = significant(top["uniform"], 2), significant(top["weight"], 2)
    position = "undefined" if top["same_offset"] is None else significant(top["same_offset"], 2)
    if beyond:
        attend = (
            f"{len(beyond)} of {len(rows)} heads attend{'s' * (len(beyond) == 1)} from {query!r} most to {key!r}, "
            f"significantly and by {_SIZE:g} or more beyond both baselines."
        )
    else:
        attend = (
            f"No head of {len(rows)} attends from {query!r} most to {key!r}, significantly and by {_SIZE:g} or more "
            "beyond both baselines."
        )
    largest = (
        f"Furthest above both baselines is head {top['layer']}.{top['head']}, weight {weight} from {query!r} to "
        f"{key!r}; uniform attention {uniform}, the same offset from other words {position}."
    )
    rank = f"In this head {key!r} has rank {int(top['rank'])} among the words, and {top['strongest']!r} gets the most."
    return [attend] * tested + [largest] + [rank] * (not tested or not beyond)


_MOST = 0.5  # share of the windows
_SIZE = 0.1  # weight above both baselines, from which a head counts: smaller ones are significant in many texts
_HEADS = (
    *schema.HEAD,
    schema.Quantity(
        "weight",
        unit="share",
        meaning="weight from the one word to the other",
        low="weight_low",
        high="weight_high",
        interval=True,
    ),
    schema.Quantity("uniform", unit="share", meaning="first baseline: the same under uniform attention"),
    schema.Quantity(
        "same_offset",
        "same offset",
        "share",
        "second baseline: mean weight at the same offset from other words of the text",
    ),
    schema.effect_quantity(
        "above", "above", heading="above baselines", meaning="weight less the larger of both baselines"
    ),
    schema.Quantity("first_of", "ranks first", "share", "share of the windows in which no other word gets more"),
    schema.Quantity("rank", "rank", "count", "rank of the word among all words, in the first window with both words"),
    schema.Quantity("strongest", "top word", "token", "word that gets the most, in that window"),
)
