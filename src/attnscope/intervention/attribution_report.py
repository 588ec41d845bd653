"""The report of `attribute`: what each component adds to the logit, and the logit lens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.measure.documents import LEAST
from attnscope.results.schema import Finding, Quantity, Report, Row, Table, effect_columns, effect_quantity, rows_of
from attnscope.support.arguments import reads
from attnscope.support.numbers import count

if TYPE_CHECKING:
    import xarray as xr

_EFFECTS = (
    effect_quantity(
        "excess", "logits", heading="above mean token", interval=True,
        meaning="part of the logit less that of the mean token of the texts; of a difference, the part itself",
    ),
    effect_quantity("part", "logits", heading="part", meaning="mean part of the logit, direct path only"),
)  # fmt: skip
_HEADS = (Quantity("layer", unit="count", detail="data"), Quantity("head", unit="head"), *_EFFECTS)
_OTHERS = (
    Quantity("component", meaning="feed-forward layer (mlp), embedding, position embedding, or all biases"),
    *_EFFECTS,
)
_LENS = (
    Quantity("depth", "attention layers", "count", "layers before the final norm"),
    Quantity("logit", unit="logits", meaning="logit if the stream ended there", low="logit_low", high="logit_high"),
    Quantity("probability", "probability", "share", "of the token", low="probability_low", high="probability_high"),
    Quantity("rank", unit="rate", meaning="mean rank of the token, 1 is the highest", low="rank_low", high="rank_high"),
)
_KINDS = ({"head"}, {"mlp"}, {"embedding", "position"}, {"bias"})


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
    """Report of direct logit attribution."""
    rows, predictions, lens = components_of(tree), tree["predictions"].to_dataset(), tree["lens"].to_dataset()
    heads = [row for row in rows if row["kind"] == "head"]
    others = [row for row in rows if row["kind"] != "head" and row["part_mean"]]
    asked, model = int(predictions["query"].notnull().sum()), str(tree.attrs["model"])
    corrected, least = "for all components", f"{LEAST} or more windows"
    tables = [
        Table("heads", "Heads", _HEADS, heads, corrected=corrected, least=least),
        Table("others", "Other components", _OTHERS, others, corrected=corrected, least=least),
        Table("lens", "Logit lens", _LENS, rows_of({str(name): lens[name] for name in lens}, lens.logit)),
    ]
    return Report(
        command="attribute",
        title=f"Direct logit attribution in {model}",
        model=model,
        read=f"{count(asked, 'prediction')} in {count(predictions.sizes['window'], 'window')}",
        finding=Finding(
            _sentences(predictions, rows, heads),
            "significant at 5%, corrected for all components" if rows[0]["excess_shown"] is not None else "not tested",
            [(row["layer"], row["head"]) for row in heads if row["excess_shown"]],
        ),
        tables=tables,
        result=tree,
        care={
            "A part is what a component adds directly.": "The effect of later layers that use its output counts as "
            "theirs. The denominator of the final norm is frozen at its value."
        },
        colour="excess_mean",
    )


def _sentences(predictions: xr.Dataset, rows: list[Row], heads: list[Row]) -> list[str]:
    sums = [sum(row["part_mean"] for row in rows if row["kind"] in kinds) for kinds in _KINDS]
    whole, *own = (f"{value:+.2f}" for value in (float(predictions.total.mean()), *sums))
    shown, most = sum(bool(row["excess_shown"]) for row in heads), f"{heads[0]['layer']}.{heads[0]['head']}"
    largest, tested = f"{heads[0]['excess_mean']:+.2f}", heads[0]["excess_shown"] is not None
    if "random" in predictions:
        found = (
            f"Heads that favour the token over the mean token significantly, or oppose it: {shown} of {len(heads)}, "
            f"most {most} ({largest} logits)."
            if tested
            else f"The head with the largest part beyond the mean token is {most}: {largest} logits."
        )
    elif tested:
        found = f"Heads with a significant part: {shown} of {len(heads)}, the largest {most} ({largest} logits)."
    else:
        found = f"The largest part of a head is that of {most}: {largest} logits."
    return [
        f"Mean logit: {whole} = heads {own[0]}, feed-forward layers {own[1]}, embeddings {own[2]}, biases {own[3]}.",
        found,
        f"The parts add up to the logits within {float(predictions.difference.max()):.0e}.",
    ]
