"""What a generation found, as data: heads that turn to the model's own output, spans, and the texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.comparison.spans import OwnOutputShare, describe_own_output, explain_dashes, own_output_shares, span_uses
from attnscope.measure.stored import notes_of
from attnscope.results.schema import Finding, Quantity, Report, Row, Table
from attnscope.support.arguments import reads
from attnscope.support.numbers import count, with_nulls

if TYPE_CHECKING:
    import xarray as xr

_FIRST, _LAST = "First third of the new tokens", "Last third"
_OWN = "weight on the model's own output in the last third of the new tokens"
_EQUAL, _PLACES = ("of uniform attention", "of a head with the same weight at each distance and on the first token")
_TURN = Quantity(
    "turn",
    unit="change",
    meaning="how much more the own output's share grows than the larger of uniform and places",
    low="turn_low",
    high="turn_high",
    interval=True,
)
_HEADS = (
    Quantity("layer", unit="count", detail="data"),
    Quantity("head", unit="head"),
    Quantity("attention", detail="data"),
    Quantity("own_first", "own output", "share", detail="page", group=_FIRST),
    Quantity("equal_first", "uniform", "share", detail="page", group=_FIRST),
    Quantity("places_first", "places", "share", detail="page", group=_FIRST),
    Quantity("own_last", "own output", "share", _OWN, group=_LAST),
    Quantity("equal_last", "uniform", "share", _EQUAL, group=_LAST),
    Quantity("places_last", "places", "share", _PLACES, group=_LAST),
    _TURN,
    Quantity(
        "beyond_chance",
        "beyond chance",
        meaning="it turns by 0.02 or more, and more than texts do by chance, corrected for all heads",
    ),
)
_SPANS = (
    Quantity("span"),
    Quantity("weight", "all heads", "share", "mean weight on the span", group="All heads"),
    Quantity("equal", "uniform", "share", _EQUAL, group="All heads"),
    Quantity("places", "places", "share", _PLACES, group="All heads"),
    Quantity("layer", unit="count", detail="data"),
    Quantity(
        "head", "most above", "head", "the head furthest above the larger of uniform and places", group="Most above"
    ),
    Quantity("most", "its weight", "share", group="Most above"),
    Quantity("most_equal", "its uniform", "share", group="Most above"),
    Quantity("most_places", "its places", "share", group="Most above"),
)
_TEXTS = tuple(
    Quantity(name, unit="text", detail="data")
    for name in ("source", "prompt_tokens", "new_tokens", "written", "token_ids")
)
CARE = {
    "The query is the token before.": "The model chooses each new token at the last token that it has read: its "
    "weights are reported.",
    "Shares grow by themselves.": "The model's own output becomes longer, and is always nearest. Uniform attention and "
    "the head's places report how much that alone gives.",
    "Places are known in parts of doublings.": "Within a part, weight is taken to be even, which alone may move a "
    "share by about 0.01.",
    "A head above both may be so by chance.": "Heads of untrained models that attend to certain positions turn too.",
    "A weight is no explanation.": "It is a share of the sum; it does not report whether the output depends on it.",
}


@reads("generate")
def report(results: xr.Dataset) -> Report:
    """What a generation found."""
    rows, uses = own_output_shares(results), span_uses(results)
    new, texts = results.length.values, (results.isel(sequence=at) for at in range(results.sizes["sequence"]))
    tokens = f"{new.min()}" if new.min() == new.max() else f"{new.min()} to {new.max()}"
    heads = _heads(results, {(row.layer, row.head): row for row in rows})
    notes = [*notes_of(results).values(), explain_dashes(uses)]
    if "full_pass" in results.attrs:
        notes.append(
            f"Checked on the first text: as in one full pass over it, to {results.attrs['full_pass']} of the weight."
        )
    spans = [Quantity(f"weight {span}", unit="share", detail="data") for span in results.span.values]
    model = str(results.attrs.get("model", "the model"))
    tested = any(row.beyond_chance is not None for row in rows)
    return Report(
        command="generate",
        title=f"Where {model} attends while it writes",
        model=model,
        read=f"{count(results.sizes['sequence'], 'prompt')}, {tokens} new tokens each, {count(len(heads), 'head')}",
        finding=Finding(
            [f"{describe_own_output(rows)}."],
            "significant at 5%, corrected for all heads" if tested else "not tested",
            [(row.layer, row.head) for row in rows if row.beyond_chance],
        ),
        tables=[
            Table("heads", "Who turns to its own output", (*_HEADS, *spans), heads, terminal=10),
            Table("spans", "Spans: mean weight over all texts and new tokens", _SPANS, [use.as_dict() for use in uses]),
            Table(
                "texts",
                "Texts",
                _TEXTS,
                [*map(_text, texts)] if "written" in results.variables else [],
                terminal=0,
                page=0,
            ),
        ],
        result=results,
        notes=[note for note in notes if note],
        care=CARE,
    )


def _heads(results: xr.Dataset, turning: dict[tuple[int, int], OwnOutputShare]) -> list[Row]:
    """Rows of the heads that turn, the furthest first, then of the others: heads of cross-attention."""
    weight = results.span_weight.mean(("sequence", "step")).transpose("layer", "head", "span").values
    layers, heads = results.layer.values.tolist(), results["head"].values.tolist()
    known = results.entropy.notnull().any(("sequence", "step")).transpose("layer", "head").values
    every = [(layer, head) for i, layer in enumerate(layers) for j, head in enumerate(heads) if known[i, j]]
    return [
        _head(at, turning.get(at))
        | {"attention": str(results.layer_kind.values[layers.index(at[0])])}
        | {
            f"weight {span}": with_nulls(float(value))
            for span, value in zip(results.span.values, weight[layers.index(at[0]), heads.index(at[1])], strict=True)
        }
        for at in dict.fromkeys([*turning, *every])
    ]


def _head(at: tuple[int, int], row: OwnOutputShare | None) -> Row:
    values: dict[str, Any] = dict(zip(("layer", "head"), at, strict=True))
    if row is None:
        return values
    for name in ("own", "equal", "places"):
        values |= dict(zip((f"{name}_first", f"{name}_last"), getattr(row, name), strict=True))
    turn = {"turn": row.turn, "turn_low": row.low, "turn_high": row.high, "beyond_chance": row.beyond_chance}
    return with_nulls(values | turn)


def _text(text: xr.Dataset) -> Row:
    return {
        "source": str(text.source.item()),
        "prompt_tokens": int(text.prompt_length),
        "new_tokens": int(text.length),
        "written": str(text.written.item()),
        "token_ids": text.token_id.values[: int(text.length)].tolist(),
    }
