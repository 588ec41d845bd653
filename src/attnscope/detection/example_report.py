"""The report of `examples`: windows in context, and their shared features."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from attnscope.detection.common import LEAST_KEYS, LEVEL, SHARED
from attnscope.measure.stored import notes_of
from attnscope.report.reads import reads
from attnscope.report.schema import HEAD, MATTERS, Finding, Marked, Quantity, Report, Row, Table, value_of
from attnscope.support.numbers import count, significant

if TYPE_CHECKING:
    import xarray as xr

_RANKED = {
    "weight": Quantity("score", "weight over uniform", "rate", "weight over that of uniform attention on as many keys"),
    "value_norm": Quantity("score", "weight x norm over uniform", "norm", "that times the norm of the key's value"),
    "entropy": Quantity("score", "nats below uniform", "entropy", "entropy of the query's row below uniform attention"),
}
_SHOWN = 3  # features in a sentence


@reads("examples")
def report(result: xr.Dataset) -> Report:
    """The strongest examples of heads, and what they have in common."""
    features = _rows(result, "feature")
    for row in features:
        row |= {name.removeprefix("feature_"): row.pop(name) for name in list(row)}
    examples = sorted(_rows(result, "example"), key=lambda row: row["set"] != "top")
    for row in examples:
        row["offset"] = row["key"] - row["query"]
        row["context"] = Marked.of(json.loads(row["context"]))
    strongest = sum(row["set"] == "top" for row in examples)
    heads = [*dict.fromkeys((row["layer"], row["head"]) for row in examples)]
    named = ", ".join(f"{layer}.{head}" for layer, head in heads)
    return Report(
        title=f"Examples of head{'s' * (len(heads) > 1)} {named} of {result.attrs['model']}",
        read=f"{count(result.attrs['windows'], 'window')} ({result.attrs['tokens']:,} tokens in all)",
        finding=Finding(
            [_sentence(head, result, examples, features) for head in heads],
            f"features beyond uniform attention from the same queries, false discovery rate {LEVEL:.0%}",
            {"": heads},
            headline=_headline(heads, features),
        ),
        tables=[
            Table("examples", "Examples", _examples(str(result.attrs["by"])), examples, terminal=min(strongest, 8)),
            Table(
                "common",
                "Shared features of the strongest examples",
                _COMMON,
                features,
                reading="How many of the strongest examples have a feature, and how many would under uniform attention "
                "from the same queries; queries are compared with those at the same positions in other examples.",
                corrected="for all features of all heads that could occur",
                terminal=10,
            ),
        ],
        result=result,
        notes=[*notes_of(result).values()],
        method="Under the null, the queries of the strongest examples attend uniformly; the number of examples with a "
        "feature is compared with the Poisson-binomial distribution. The step-up rule bounds the false discovery rate "
        "over all features that could occur (Benjamini and Hochberg 1995).",
        care={
            "Examples show where a head attends, not what it does.": MATTERS,
            "Shared features need not be learned.": "Heads with random weights favour some tokens too.",
            "Each window has one example.": f"Queries that see fewer than {LEAST_KEYS} keys do not count, nor do the "
            "first token and special tokens as keys (--sinks counts them).",
        },
        hint="The query is marked in colour and underlined; the key has a box."
        + " Small digits count the tokens of one character." * any("₁" in row["context"] for row in examples),
    )


def _rows(result: xr.Dataset, dim: str) -> list[Row]:
    """The variables over one dimension, a row for each entry."""
    names = [str(name) for name, values in result.variables.items() if values.dims == (dim,)]
    return [{name: value_of(result[name].values[at]) for name in names} for at in range(result.sizes[dim])]


def _headline(heads: list[tuple[int, int]], features: list[Row]) -> str:
    shared = [row for row in features if row["significant"]]
    if len(heads) > 1:
        number = len({(row["layer"], row["head"]) for row in shared})
        return f"Heads whose strongest windows share features beyond chance: {number} of {len(heads)}"
    head = "{}.{}".format(*heads[0])
    if not shared:
        return f"The strongest windows of head {head} have nothing significant in common"
    return f"The strongest windows of head {head} have in common: {', '.join(map(_called, shared[:3]))}"


def _sentence(head: tuple[int, int], result: xr.Dataset, examples: list[Row], features: list[Row]) -> str:
    """How strong the strongest are, and what they share."""

    def own(rows: list[Row]) -> list[Row]:
        return [row for row in rows if (row["layer"], row["head"]) == head]

    top = [row for row in own(examples) if row["set"] == "top"]
    ranked = _RANKED[str(result.attrs["by"])]
    ends = [significant(row["score"], 3) for row in (top[-1], top[0])]
    between = " to ".join(dict.fromkeys(ends))
    is_weight = ranked is _RANKED["weight"]
    score = f"weight over uniform: {between}" if is_weight else f"{ranked.title}: {between}"
    shared = [row for row in own(features) if row["significant"]]
    name = f"Head {head[0]}.{head[1]}"
    if len(top) < SHARED:
        return f"{name}: one example ({score}). No test possible: shared features need {SHARED} or more examples."
    if not shared:
        return f"{name}: the {len(top)} strongest windows ({score}) have nothing significant in common."
    listed = "; ".join(
        f"{_called(row)}: {row['found']} of {row['of']}, {significant(row['expected'], 2)} expected"
        for row in shared[:_SHOWN]
    )
    return f"{name}: the {len(top)} strongest windows ({score}) have in common: {listed}."


def _called(feature: Row) -> str:
    kind, value = feature["kind"], feature["value"]
    if kind == "relation":
        return f"the key is the {value}"
    if kind == "offset":
        near = {-1: "the key is the previous token", 1: "the key is the next token"}
        return near.get(int(value), f"{kind} {int(value):+d}")
    return f"{kind} {value!r}" if "token" in kind else f"{kind} {value}"


def _examples(by: str) -> list[Quantity]:
    return [
        Quantity("set"),
        *HEAD,
        Quantity("weight", unit="share", meaning="weight of the query on the key"),
        _RANKED[by],
        Quantity("query_token", unit="token", detail="data"),
        Quantity("key_token", unit="token", detail="data"),
        Quantity("query", unit="count", detail="data"),
        Quantity("key", unit="count", detail="data"),
        Quantity("offset", unit="tokens", meaning="key minus query, in tokens"),
        Quantity("context", "«query» and [key] in context", "text"),
        Quantity("text", detail="data"),
        Quantity("window_number", unit="count", detail="data"),
    ]


_COMMON = (
    *HEAD,
    Quantity("kind", "feature"),
    Quantity("value", "", "token"),
    Quantity("found", "examples", "count", "examples that have it", significant="significant"),
    Quantity("of", "of", "count"),
    Quantity("expected", "expected", "rate", "number under uniform attention from the same queries"),
    Quantity("p", "p", "p", "probability of at least as many, Poisson-binomial test"),
)
