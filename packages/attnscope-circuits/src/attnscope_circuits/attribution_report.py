"""The report of `attribute`: what each component adds to the logit, and the logit lens."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.head_names import shown_component
from attnscope.intervention.metrics import format_of, note_of, unit_of
from attnscope.report.reads import reads
from attnscope.report.schema import (
    Finding,
    Quantity,
    Report,
    Row,
    Table,
    effect_columns,
    effect_quantity,
    heads_by,
    rows_of,
    with_ends,
)
from attnscope.statistics.effects import EFFECTS, INTERVALS
from attnscope.statistics.units import LEAST
from attnscope.support.numbers import count
from attnscope_circuits.attribution import BEHIND, REST
from attnscope_circuits.score_parts import RELATIONS, SIDES

if TYPE_CHECKING:
    import xarray as xr

_PLACE = (Quantity("layer", unit="count", detail="data"), Quantity("head", unit="head"))
_COMPONENT = Quantity(
    "component",
    meaning="MLP (feed-forward layer), mixer (Mamba), embedding, position embedding, all biases, or the biases behind "
    "the last block (output layers)",
)
_MEAN = "mean part, direct path only"
_OF_DIRECTION = (effect_quantity("excess", "logits", heading="part", interval=True, meaning=_MEAN),)
_OF_TOKEN = (
    effect_quantity(
        "excess", "logits", heading="above mean token", interval=True,
        meaning="part of the logit less that of the mean token of the texts",
    ),
    effect_quantity("part", "logits", heading="part", meaning="mean part of the logit, direct path only"),
)  # fmt: skip
_LENS = (
    Quantity("depth", "attention layers", "count", "layers before the final norm"),
    with_ends("metric", "", "change", "metric if the stream ended there"),
    with_ends("logit", "", "logits", "logit of the token, less that of the other one, if the stream ended there"),
    with_ends("probability", "", "share", "of the token itself"),
    with_ends("rank", "", "rate", "mean rank of the token itself, 1 is the highest"),
)
_OF_SITE = effect_quantity(
    "excess", "", heading="part", interval=True, meaning="mean part of the product, direct path only"
)
_LENS_OF_SITE = with_ends("logit", "product", meaning="product with the direction, if the stream ended there")
_OF_DIFFERENCE = {"logit": "logit difference", "probability": "probability of token", "rank": "rank of token"}
_SHARES = (
    effect_quantity("key", "percent", heading="through keys", interval=True, meaning="share of the excess"),
    effect_quantity("query", "percent", heading="through queries", interval=True, meaning="share of the excess"),
)
_KEYS = (
    Quantity("relation", "keys", meaning="keys whose score is compared with the mean key of the row"),
    Quantity("rows", unit="count", meaning="queries with such keys and others"),
    Quantity("chosen", "strongest", "percent", "rows whose strongest key is one of them"),
    Quantity("chance", "by chance", "percent", "the same for a random key"),
    Quantity("excess", unit="nats", meaning="mean score of these keys less that of the mean key"),
    Quantity("source", "largest source", meaning="of the largest share through keys"),
    Quantity("share", unit="percent", meaning="its share"),
)
_PAIRS = (
    Quantity("query_source", "query from"),
    Quantity("key_source", "key from"),
    Quantity("pair_share", "share", "percent", "share of the excess", low="pair_low", high="pair_high", interval=True),
)
#: By whether the largest source in the keys is significant.
_CERTAINTY = {
    True: "significant at 5%, corrected for all components",
    False: "the largest source in the keys is not significant at 5%, corrected for all components",
    None: "not tested",
}
_MOST = 0.5  # of rows
_DEPTHS = 60  # of the logit lens, that a terminal shows
_LINEAR = 1e-2  # difference of a metric from its gradient times the logits, as a share of it
_TWICE = np.log(2)  # nats: twice the weight of the mean key
_KINDS = ({"head"}, {"mlp"}, {"embedding", "position", "layer embedding"}, {"bias", BEHIND}, {"mixer"})


def _shown(row: Row) -> Row:
    return {name: shown_component(row[name]) for name in ("component", "source") if name in row}


def components_of(tree: xr.DataTree) -> list[Row]:
    """A row for each component, the largest first."""
    data = tree["parts"].to_dataset()
    columns = effect_columns(data, "excess", "excess") | effect_columns(data, "part", "part", "part_")
    columns |= {name: data[name] for name in ("kind", "layer", "head")}
    return sorted(
        rows_of(columns, data.part.drop_vars(["kind", "layer", "head"])), key=lambda row: -abs(row["excess_mean"])
    )


@reads("attribute")
def report(tree: xr.DataTree) -> Report:
    """Report of direct logit attribution, or of the scores of a head."""
    if "scores" in tree:
        return _of_scores(tree)
    rows, predictions, lens = components_of(tree), tree["predictions"].to_dataset(), tree["lens"].to_dataset()
    heads = [row for row in rows if row["kind"] == "head"]
    others = [row | _shown(row) for row in rows if row["kind"] != "head" and row["part_mean"]]
    metric = str(predictions.attrs.get("metric", ""))
    asked, model = int(predictions["query"].notnull().sum()), str(tree.attrs["model"])
    tested, alone = rows[0]["excess_shown"] is not None, "; on the clean texts alone" * ("pairs" in tree.attrs)
    site = tree.attrs.get("site")
    effects = (_OF_SITE,) if site else _OF_TOKEN if "random" in predictions else _OF_DIRECTION
    how: Any = {"corrected": "for all components", "least": f"{LEAST} or more windows"}
    what = "logit" if "random" in predictions else "logit difference" if "probability" in lens else "value"
    what = "product" if site else what
    if metric:
        what = metric if _is_linear(predictions) else f"gradient of {metric} times logits"
    unit = format_of(predictions.attrs.get("unit", "logits"))
    effects = [replace(one, unit=unit) for one in effects] if metric else effects
    sentences = _sentences(predictions, rows, heads, what)
    headings = _OF_DIFFERENCE if what == "logit difference" else {}
    headings = {"metric": metric} if metric else headings
    of_lens = [replace(one, heading=headings.get(one.name, one.heading)) for one in _LENS]
    of_lens = [_LENS[0], _LENS_OF_SITE] if site else of_lens
    tables = [
        Table("heads", "Heads", (*_PLACE, *effects), heads, **how),
        Table("others", "Other components", (_COMPONENT, *effects), others, **how),
        Table(
            "lens",
            "Product by depth" if site else "Logit lens",
            of_lens,
            rows_of({str(name): lens[name] for name in lens}, lens.metric if metric else lens.logit),
            terminal=_DEPTHS,  # the last ones tell most
        ),
    ]
    if "by_span" in predictions:
        tables.insert(1, _of_spans(predictions, unit))
    return Report(
        title=f"Direct attribution at {site} in {model}" if site else f"Direct logit attribution in {model}",
        read=f"{count(asked, 'prediction')} in {count(predictions.sizes['window'], 'window')}{alone}",
        finding=Finding(
            sentences,
            ("significant at 5%, corrected for all components" if tested else "not tested") + alone,
            heads_by(heads, _favours, *_SIGNS) if tested else {},
            headline=sentences[1],
        ),
        tables=tables,
        result=tree,
        method=f"{INTERVALS} {EFFECTS}",
        notes=[*filter(None, [tree.attrs.get("left_out")]), *note_of(tree.attrs | predictions.attrs)],
        care={
            "A part is what a component adds directly.": "The effect of later layers that use its output counts as "
            "theirs. The denominator of the final norm is frozen at its value."
        },
        hint=f"Split: the product of the residual stream at {site} with a direction." if site else "",
        colour="excess_mean",
    )


def _of_spans(predictions: xr.Dataset, unit: str) -> Table:
    """The parts of heads through the tokens of each span, the largest first."""
    means = predictions.by_span.mean("window")
    columns = {name: predictions[name] for name in ("kind", "layer", "head")}
    rows = rows_of(columns | {"part": means}, means.drop_vars([*columns]))
    rows = [row for row in rows if row["kind"] == "head"]
    rows.sort(key=lambda row: -abs(row["part"]))
    meaning = "mean part through the tokens of the span that the head attends to"
    part = Quantity("part", unit=unit, meaning=meaning)
    return Table("spans", "Parts by span", (*_PLACE, Quantity("span"), part), rows, terminal=8)


_SIGNS = "raise it", "lower it"


def _favours(row: Row) -> str:
    return _SIGNS[row["excess_mean"] < 0] if row["excess_shown"] else ""


def _sentences(predictions: xr.Dataset, rows: list[Row], heads: list[Row], what: str) -> list[str]:
    sums = [sum(row["part_mean"] for row in rows if row["kind"] in kinds) for kinds in (*_KINDS, {REST})]
    whole, *own = (f"{value:+.2f}" for value in (float(predictions.total.mean()), *sums))
    strong, tested = [row for row in heads if row["excess_shown"]], heads[0]["excess_shown"] is not None
    head = (strong or heads)[0]
    unit = "" if what == "product" else unit_of(predictions.attrs)
    most, largest = f"{head['layer']}.{head['head']}", f"{head['excess_mean']:+.2f}{unit}"
    less = "random" in predictions  # parts are those of the token less those of the mean token
    significant = f"Heads with a significant part: {len(strong)} of {len(heads)}, the largest {most} ({largest})."
    if what == "product":
        text = significant if tested else f"Head {most} has the largest part of the product: {largest}."
    elif tested and not strong:
        text = f"None of {len(heads)} heads has a significant part; the largest is that of {most} ({largest})."
    elif tested and less:
        text = (
            f"Heads that favour the token over the mean token significantly, or oppose it: {len(strong)} of "
            f"{len(heads)}, the largest {most} ({largest})."
        )
    elif tested:
        text = significant
    elif less:
        text = f"Head {most} has the largest part of the token less that of the mean token: {largest}."
    else:
        text = f"Head {most} has the largest part: {largest}."
    added = f"Mean {what}: {whole} = heads {own[0]}, MLPs {own[1]}, embeddings {own[2]}, biases {own[3]}."
    if any(row["kind"] == REST for row in rows):
        added = f"Mean {what}: {whole} = these heads {own[0]}, all others {own[5]}."
    elif any(row["kind"] == "mixer" for row in rows):
        added = (
            f"Mean {what}: {whole} = heads {own[0]}, mixers {own[4]}, MLPs {own[1]}, "
            f"embeddings {own[2]}, biases {own[3]}."
        )
    difference = f"{float(predictions.difference.max()):.0e}"
    sums_up = f"The parts add up to the logits within {difference}."
    if what == "product":
        sums_up = f"The parts add up to the product within {difference}."
    elif "metric" in predictions:
        name, mean = predictions.attrs["metric"], f"{float(predictions.metric.mean()):.3g}{unit_of(predictions.attrs)}"
        sums_up = f"{name} is not linear in the logits: its mean is {mean}, and the parts are those of its gradient."
        if _is_linear(predictions):
            sums_up = f"{name} is linear in the logits: the parts add up to its value."
    return [added, text, sums_up]


def _is_linear(predictions: xr.Dataset) -> bool:
    """Whether the gradient of a metric times the logits is its value."""
    value, total = predictions.metric.values, predictions.total.values
    return np.allclose(value, total, rtol=_LINEAR, atol=_LINEAR * abs(value).max())


def _of_scores(tree: xr.DataTree) -> Report:
    """Report of the scores of one head, at the keys that are strongest more often than by chance."""
    data, head, model = tree["parts"].to_dataset(), str(tree.attrs["head"]), str(tree.attrs["model"])
    at = int(np.where(data.excess > 0, data.chosen - data.chance, 0)[1:].argmax()) + 1
    one, rows = data.isel(relation=at if data.chosen[at] > data.chance[at] and data.excess[at] > 0 else 0), data["rows"]
    columns: dict[str, Any] = {name: data[name] for name in ("kind", "layer", "head")}
    cells = one.kind.drop_vars([*columns])
    for side in SIDES:
        columns |= effect_columns(one.sel(side=side), side, "share")
    found = [row for row in rows_of(columns, cells) if row["key_mean"] or row["query_mean"]]
    found.sort(key=lambda row: -max(abs(row["key_mean"]), abs(row["query_mean"])))
    heads, others = ([row for row in found if (row["kind"] == "head") == own] for own in (True, False))
    own = data.share.sel(side="key").where(rows > 0, drop=True)
    keys = {name: data[name] / rows.where(rows > 0) for name in ("chosen", "chance", "excess")}
    keys |= {"source": own.idxmax("source"), "share": own.max("source")}
    pairs = {name: one[name] for name in ("query_source", "key_source", "pair_share", "pair_low", "pair_high")}
    both: Any = {"corrected": "for all components and both sides", "least": f"{LEAST} or more windows"}
    tables = [
        Table("heads", "Heads", (*_PLACE, *_SHARES), heads, **both),
        Table(
            "others",
            "Other components",
            (Quantity("source", "component"), *_SHARES),
            [row | _shown(row) for row in others],
            **both,
        ),
        Table("keys", "Keys", _KEYS, rows_of({"rows": rows, **keys}, keys["excess"])),
        Table("pairs", "Pairs", _PAIRS, rows_of(pairs, one.pair_share), terminal=8),
    ]
    key, query = (max(found, key=lambda row, side=side: row[f"{side}_mean"]) for side in ("key", "query"))
    named = [_named(row["kind"], row["source"].removeprefix(f"{row['kind']} ")) for row in (key, query)]
    name, share, other = str(one["relation"].values), f"{key['key_mean']:.0%}", f"{query['query_mean']:.0%}"
    share += "" if key["key_low"] is None else f" ({key['key_low']:.0%} to {key['key_high']:.0%})"
    chosen, chance, excess = (float(keys[side].sel(relation=name)) for side in ("chosen", "chance", "excess"))
    first = f"Head {head} attends to the {name}; the largest source in the keys is {named[0]}: {share} of the excess."
    if chosen <= _MOST or excess <= _TWICE or name == RELATIONS[0]:
        first = (
            f"Head {head} has no clear preference for a kind of key. At the {name}, the largest source in the keys is "
            f"{named[0]}: {share} of the excess."
        )
    often = (
        f"Such a key is strongest in {chosen:.0%} of rows, by chance in {chance:.0%}; its excess is {excess:.2g} nats."
        if name != RELATIONS[0]
        else f"Its excess is {excess:.2g} nats."
    )
    return Report(
        title=f"Why head {head} of {model} attends where it does",
        read=f"{count(int(rows[0]), 'row')} in {count(data.attrs['windows'], 'window')}",
        finding=Finding(
            [
                first,
                f"In the queries the largest source is {named[1]}: {other}.",
                often,
                f"The parts add up to the scores within {data.attrs['difference']:.0e}.",
            ],
            _CERTAINTY[key["key_shown"]],
            heads_by(
                heads, lambda row: "in the keys" * bool(row["key_shown"]) or "in the queries" * bool(row["query_shown"])
            ),
        ),
        tables=[table for table in tables if table.rows],
        result=tree,
        method=f"{INTERVALS} {EFFECTS}",
        notes=[*filter(None, [tree.attrs.get("left_out")])],
        care={
            "A source is what a component adds directly to queries or keys.": "The denominators of norms on the way "
            "are frozen. The excess is the score of some keys less that of the row's mean key."
        },
        colour="key_mean",
    )


def _named(kind: str, number: str) -> str:
    if number == "ahead":
        layers = {"mlp": "MLPs", "mixer": "mixers", "layer embedding": "layer embeddings"}
        return f"the {layers[kind]} ahead of the first attention layer"
    words = {"head": f"head {number}", "mlp": f"MLP {number}", "embedding": "the token embedding"}
    words |= {"mixer": f"mixer {number}", "layer embedding": f"the embedding of layer {number}"}
    words |= {"position": "the position embedding", "bias": "biases", "score": "the bias of the scores"}
    return words[kind]
