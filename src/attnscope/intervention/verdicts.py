"""Tables and findings of `intervene`: where each head attends, why, and whether it matters."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from attnscope.explanation.analyses.verdict import POSITION
from attnscope.head_names import shown_component
from attnscope.intervention.edits import HARDLY
from attnscope.intervention.metrics import format_of, note_of, unit_of, unit_of_loss
from attnscope.intervention.replacements import ABLATIONS
from attnscope.report.reads import reads
from attnscope.report.schema import (
    Effect,
    Finding,
    Quantity,
    Report,
    Row,
    Table,
    effect_columns,
    effect_quantity,
    heads_by,
    rows_of,
    value_of,
    with_ends,
)
from attnscope.statistics.effects import EFFECTS, INTERVALS, by_document
from attnscope.statistics.units import units_of
from attnscope.store.runs import skipped_note, skipped_of
from attnscope.support.numbers import are, count, places

SHARP_SHARE = 0.5  # share of all weight at one offset, from which a head counts as sharp
_NAMED = 5  # heads that the sentence about a search names
_FORBIDDEN = 10  # heads in the table of a rule
_MANY_SETS = 40  # of which the middle 95% is named, not the range
SURE = 0.05  # p-value below which a rank correlation is reported without a warning
_CORRECTED = "for all heads and ablations"
_LEAST = "6 or more windows"

_WHERE, _WHY, _TRUST = "Where it attends", "Why there", "Can its weights be trusted?"

_WHETHER, _METRIC = "Change of the loss without it, nats", "Change of the metric without it"
_PEAK = "offset (key minus query position, in tokens) with the largest share of all weight"

PEAK = Quantity("peak_weight", "weight", "share", "share of all weight at the peak", group=_WHERE)
HEADS = (
    Quantity("layer", unit="count", detail="data", meaning="layer of the head, from 0"),
    Quantity("head", unit="head", meaning="layer.head, from 0", group=_WHERE),
    Quantity("attention", "type", detail="data", meaning="self: its own text, causal: its past, cross: another text"),
    Quantity("label", unit="label", meaning="label of the head, as in scan", group=_WHERE),
    Quantity("profile", unit="profile", detail="drawn", group=_WHERE),
    Quantity("peak_offset", "peak", "tokens", _PEAK, group=_WHERE),
    PEAK,
    replace(POSITION, heading="pos.", meaning="share of the scores' profile that position explains", group=_WHY),
    Quantity(
        "scores_agree",
        "scores agree",
        meaning="whether both offsets from the scores equal the offset of the weights",
        detail="page",
        group=_WHY,
    ),
    Quantity(
        "norm_offset",
        "peak by norms",
        "tokens",
        "peak of the weights times the norm of the values (Kobayashi et al. 2020)",
        detail="page",
        group=_TRUST,
    ),
    Quantity("norm_weight", "share there", "share", "share of the norms at that peak", detail="page", group=_TRUST),
    Quantity(
        "null_share",
        "not in output",
        "share",
        "share of the squared weights that do not affect the head's output; the higher, the less its weights say "
        "(Brunner et al. 2020)",
        detail="page",
        group=_TRUST,
    ),
    effect_quantity(
        "shuffled",
        heading="shuffled",
        meaning="change of the loss when the weights of each row are shuffled; near 0, it does not matter where the "
        "head attends (Jain and Wallace 2019)",
        group=_TRUST,
    ),
)
_MORE = (
    Quantity(
        "searched",
        "search",
        "nats",
        "change of the loss without the head, by sparse regression on random sets of heads",
        group=_WHETHER,
    ),
    Quantity("importance", unit="nats", detail="data", meaning="size of the loss's derivative in a gate on the head"),
    Quantity("forbidden_weight", unit="share", detail="data"),
    effect_quantity("forbidden", detail="data"),
    Quantity(
        "matters",
        unit="count",
        detail="data",
        meaning="1: every ablation significantly raises the loss; -1: every ablation lowers it; 0: neither",
    ),
)


def quantities_of_heads() -> list[Quantity]:
    """The columns of a table of heads, with those of every ablation."""
    same = "the same for your metric"
    ablations = ABLATIONS.items()
    loss = (effect_quantity(name, heading=name, meaning=one.meaning, group=_WHETHER) for name, one in ablations)
    metric = (effect_quantity(f"metric_{name}", "", heading=name, meaning=same, group=_METRIC) for name in ABLATIONS)
    return [*HEADS, *loss, *metric, *_MORE]


_FORBIDDEN_HEADS = (
    *HEADS[:2],
    Quantity(
        "forbidden_weight",
        "weight forbidden",
        "share",
        "share of the head's weight that the rule forbids (near 0, the rule cannot change the head)",
    ),
    effect_quantity(
        "forbidden",
        heading="loss",
        meaning="change of the loss when the rule applies to that head alone",
        interval=True,
    ),
)

_TOGETHER = (
    Quantity("heads"),
    Quantity("ablation"),
    with_ends("effect", "without all", "nats", "change of the loss without the heads at once", significant="shown"),
    Quantity("alone", "sum alone", "nats", "sum of the changes without each"),
    with_ends(
        "between",
        "difference",
        "nats",
        "above 0: the heads can replace each other; below 0: they work together",
        significant="between_shown",
        interval=True,
    ),
)

_AGAINST_CHANCE = (
    Quantity("random", "random sets", "nats", "mean change of the loss without a random set"),
    Quantity("p", "p", "p", "share of these sets, this one included, that raise the loss at least as much"),
    with_ends(
        "beyond",
        "beyond them",
        "nats",
        "change of the loss without the heads, less the mean of the random sets",
        interval=True,
    ),
)

#: Heads of a random set, by the way of matching.
_ALIKE = {
    "layer": "as many heads in each layer",
    "effect": "as many heads in each layer, with similar estimated effects",
    "size": "as many heads",
}

OF_P = {
    "The p-value holds for a set that was chosen without looking at its effect on these texts.": "Choose it on other "
    "texts, by its role or by its weights."
}

_QUESTIONS = {
    "masked": "The model predicts 15% of the words, behind masks.",
    "next": "The model predicts the token after each.",
    "translation": "The model predicts the translation, token by token.",
    "label": "The model predicts the label of each text, image or sound.",
    "label_predicted": "The right label is the one that the unchanged model predicts.",
    "output": "The embedding is the model's own, or the mean of its last layer over tokens.",
}


@reads("intervene")
def verdicts(tree: xr.DataTree) -> list[Row]:
    """A row for each head: where it attends, why, and whether it matters; the largest effect first."""
    nodes = {name: node.to_dataset() for name, node in tree.children.items()}
    heads = nodes["heads"]
    where, why, trust = (nodes.get(name, xr.Dataset()) for name in ("where", "why", "trust"))
    ablations = [str(name) for name in heads.ablation.values]
    columns: dict[str, xr.DataArray | None] = {
        "attention": heads.layer_kind,
        **{name: where.get(name) for name in ("label", "peak_offset", PEAK.name)},
        **{name: why.get(name) for name in (POSITION.name, "comparable", "agree")},
        **{name: trust.get(name) for name in ("norm_offset", "norm_weight", "null_share")},
        "importance": heads.get("importance"),
        "searched": nodes["search"].searched if "search" in nodes else None,
    }
    if "shuffled" in nodes:
        columns |= effect_columns(nodes["shuffled"], "shuffled", "shuffled_loss", "shuffled_")
    if "forbidden" in nodes:
        columns |= effect_columns(nodes["forbidden"], "forbidden")
        columns["forbidden_weight"] = nodes["forbidden"].forbidden_weight
    for number, name in enumerate(ablations):
        columns |= effect_columns(heads.isel(ablation=number, drop=True), name)
        if "metric_change" in heads:
            effects = heads.isel(ablation=number, drop=True)
            columns |= effect_columns(effects, f"metric_{name}", "metric_change", "metric_")
    rows = rows_of(columns, heads.effect.isel(ablation=0, drop=True))
    for row in rows:
        agree, comparable = row.pop("agree"), row.pop("comparable")
        row["scores_agree"] = bool(agree) if comparable else None
        row["label"] = row["label"] or ""
        signs = {int(np.sign(row[f"{name}_mean"])) if row[f"{name}_shown"] else 0 for name in ablations}
        tested = all(row[f"{name}_shown"] is not None for name in ablations)
        row["matters"] = (signs.pop() if len(signs) == 1 else 0) if tested else None
        if "profile" in where:
            values = np.nan_to_num(where.profile.sel(layer=row["layer"], head=row["head"]).values).tolist()
            row["profile"] = list(zip(where.offset.values.tolist(), values, strict=True))
    return sorted(rows, key=lambda row: -max(abs(row[f"{name}_mean"]) for name in ablations))


def effect_of(row: Row, name: str) -> Effect:
    """One effect of a row of `verdicts`, by its name."""
    return effect_quantity(name).effect(row)


@reads("intervene")
def report(tree: xr.DataTree) -> Report:
    if "heads" not in tree.children:
        return _report_of_sets(tree)
    rows = verdicts(tree)
    ablations = [str(name) for name in tree["heads"].ablation.values]
    tested = rows[0]["matters"] is not None
    windows, tokens = tree["effects"].sizes["window"], json.loads(tree.attrs["signature"])["settings"]["window"]
    care = {
        "A head without an effect of its own may still matter.": "Another head may replace it; --curves removes heads "
        "together.",
        "Effects depend on the texts and the task.": "Intervals are for other texts of the same kind."
        if tested
        else "Without intervals, their variation over texts is unknown.",
    }
    if "zero" in ablations:
        care["Zero ablation moves the model away from its training distribution."] = "Mean and resample are fairer."
    if "agreement" in tree.children:
        care["Estimates are linear."] = "They are off where the loss is curved; the figure shows by how much."
    if "together" in tree.children and "p" in tree["together"]:
        care |= OF_P
    care |= _care_of(tree)
    model = str(tree.attrs.get("model", "the model"))
    opened = _ablation_of_title(rows, [f"metric_{name}" for name in ablations] if "metric" in tree.attrs else ablations)
    metric = tree.attrs.get("metric")
    signs = (
        ("loss rises without it", "loss falls without it")
        if metric is None
        else (f"{metric} rises without it", f"{metric} falls without it")
    )
    hint = _QUESTIONS.get(str(tree.attrs.get("prediction", "")), "")
    if "shuffled" in tree.children:
        hint += f" Weights were shuffled over {count(int(tree['shuffled'].attrs['texts']), 'window')}."
    return Report(
        title=f"Whether the heads of {model} matter",
        read=f"{count(len(rows), 'head')} ablated over {count(windows, 'window')} of up to {tokens} tokens",
        finding=Finding(
            _sentences(tree, rows),
            "significant at 5%, corrected for all heads and ablations" if tested else "not tested",
            heads_by(rows, lambda row: _change(row, opened, signs), *signs) if tested else {"": ()},
            headline=_headline(tree, rows, tested),
        ),
        tables=_tables(tree, rows),
        result=tree,
        method=f"{INTERVALS} {EFFECTS}",
        notes=[*filter(None, [tree.attrs.get("left_out")]), *skipped_note(skipped_of(tree)), *note_of(tree.attrs)],
        care=care,
        hint=hint,
        colour=f"{opened}_mean",
    )


def _care_of(tree: xr.DataTree) -> dict[str, str]:
    """Caution about labels that the model chose itself."""
    if tree.attrs.get("prediction") != "label_predicted":
        return {}
    return {
        "A change of any kind makes the model's own label less likely on average.": "Compare a set of heads with "
        "random sets (--random), or give the right labels (--labels)."
    }


def _change(row: Row, ablation: str, signs: tuple[str, str]) -> str:
    """Which of two names a head has, as the loss or the metric rises or falls significantly without it."""
    return signs[row[f"{ablation}_mean"] <= 0] if row[f"{ablation}_shown"] else ""


def _ablation_of_title(rows: Sequence[Row], ablations: Sequence[str]) -> str:
    """The ablation with most significant heads, or else with the largest change: title and page open on it."""
    largest = {name: max(abs(row[f"{name}_mean"] or 0.0) for row in rows) for name in ablations}
    return max(ablations, key=lambda name: (sum(row[f"{name}_shown"] is True for row in rows), largest[name]))


def _tables(tree: xr.DataTree, rows: Sequence[Row]) -> list[Table]:
    quantities = quantities_of_heads()
    if len({row["attention"] for row in rows}) > 1:
        quantities = [replace(one, detail="table") if one.name == "attention" else one for one in quantities]
    if "metric" in tree.attrs:
        unit = tree.attrs["unit"]
        about = {"unit": format_of(unit), "group": f"Change of {tree.attrs['metric']} without it", "meaning": ""}
        quantities = [replace(one, **about) if one.group == _METRIC else one for one in quantities]
    unit = unit_of_loss(tree.attrs)
    if unit != "nats":
        quantities = [_in_shares(one) for one in quantities]
    search = tree["search"].attrs if "search" in tree.children else {}
    if "metric" in search:
        by = f"{search['metric']}, by sparse regression on random sets of heads"
        about = {"unit": format_of(search["unit"]), "group": "", "meaning": f"change of {by}"}
        quantities = [replace(one, **about) if one.name == "searched" else one for one in quantities]
    tables = [Table("heads", "Where, why, whether", quantities, rows, corrected=_CORRECTED, least=_LEAST)]
    if "forbidden" in tree.children:
        known = sorted(
            (row for row in rows if row["forbidden_mean"] is not None), key=lambda row: -abs(row["forbidden_mean"])
        )
        tables.append(
            Table(
                "forbidden_heads",
                f"Heads that may not attend to {_forbidden_names(tree)}",
                _FORBIDDEN_HEADS if unit == "nats" else [_in_shares(one) for one in _FORBIDDEN_HEADS],
                known,
                corrected="for all heads",
                least=_LEAST,
                terminal=_FORBIDDEN,
            )
        )
    if "together" in tree.children:
        tables.append(_table_of_sets(tree["together"].to_dataset(), unit))
    if "curves" in tree.children:
        tables.append(_table_of_curves(tree["curves"].to_dataset(), unit))
    return [*tables, *agreement_tables(tree)]


def agreement_tables(tree: xr.DataTree) -> list[Table]:
    """The rank correlation of each estimate with the measured effects, where there are estimates."""
    if "agreement" not in tree.children:
        return []
    agreement = tree["agreement"].to_dataset()
    rows = rows_of({name: agreement[name] for name in ("rank_correlation", "chance")}, agreement.rank_correlation)
    labels = map(str, agreement.rank_correlation.dims)
    quantities = [*map(Quantity, labels), *(Quantity(name, unit="share") for name in ("rank_correlation", "chance"))]
    return [Table("agreement", "Estimates", quantities, rows, terminal=0, page=0)]


def _in_shares(quantity: Quantity) -> Quantity:
    """A quantity of an encoder without a head, whose loss is a share."""
    group = "Change of the loss without it, share" if quantity.group == _WHETHER else quantity.group
    return replace(quantity, group=group, unit="change" if quantity.unit == "nats" else quantity.unit)


def curve_of(curves: xr.Dataset, order: str) -> tuple[np.ndarray, ...]:
    """Numbers of heads of an order that are removed together; the mean change, and the ends of its interval."""
    measure = "metric_change" if "metric_change" in curves else "loss_change"
    change = curves[measure].sel(order=order).dropna("removed")  # a chosen order may have few heads
    interval = by_document(change.values, units_of(curves.source.values.tolist())[0])
    return change.removed.values, interval.mean, interval.low, interval.high


def _table_of_curves(curves: xr.Dataset, unit_of_loss: str) -> Table:
    """More and more heads removed together; a chosen order comes first, next to random ones."""
    names = curves.order.values.tolist()
    orders = sorted(names, key=lambda name: {"chosen": 0, "random": 1}.get(name, 2))
    columns = ("removed", "change", "change_low", "change_high")
    rows: list[Row] = [
        {"order": name} | dict(zip(columns, map(value_of, row), strict=True))
        for name in orders
        for row in zip(*curve_of(curves, name), strict=True)
    ]
    subject, unit = _subject(curves), curves.attrs.get("unit", unit_of_loss)
    change = with_ends("change", "change", format_of(unit), f"change of {subject} without them", interval=True)
    quantities = (Quantity("order"), Quantity("removed", "heads removed", "count"), change)
    shown = sum(row["order"] in {"chosen", "random"} for row in rows) if "chosen" in orders else 0
    return Table("curves", "Heads removed in an order", quantities, rows, least=_LEAST, terminal=shown)


def _table_of_sets(sets: xr.Dataset, unit_of_loss: str = "nats") -> Table:
    """The sets of heads, next to each head alone and to random sets, where these were measured."""
    has_alone = bool(np.isfinite(sets.alone.values).any())
    quantities = (*_TOGETHER[:3], *(_TOGETHER[3:] if has_alone else ()), *(_AGAINST_CHANCE if "p" in sets else ()))
    if "metric" in sets.attrs:
        unit, metric = format_of(sets.attrs["unit"]), sets.attrs["metric"]
        meanings = {"p": "share of these sets, this one included, that change it at least as much for the worse"}
        if "better" not in sets.attrs:
            meanings["p"] = "share of these sets, this one included, that change it at least as much"
        quantities = [
            replace(
                one,
                unit=unit if one.unit == "nats" else one.unit,
                meaning=meanings.get(one.name, one.meaning.replace("the loss", metric)),
            )
            for one in quantities
        ]
    elif unit_of_loss != "nats":
        quantities = [_in_shares(one) for one in quantities]
    return Table(
        "together",
        "Heads removed together",
        quantities,
        together_rows(sets),
        reading="Difference: the joint change minus the sum of the single changes." * has_alone,
        corrected="for all sets and ablations (the column p compares with random sets)"
        if "p" in sets
        else "for all sets and ablations",
        least=_LEAST,
    )


def _report_of_sets(tree: xr.DataTree) -> Report:
    """The report on sets of heads alone."""
    sets, effects = tree["together"].to_dataset(), tree["effects"].to_dataset()
    table = _table_of_sets(sets, unit_of_loss(tree.attrs))
    tested = bool(sets.tested.any())
    model = str(tree.attrs.get("model", "the model"))
    care = {
        **(OF_P if "p" in sets else {}),
        **_care_of(tree),
        "Effects depend on the texts and the task.": "Intervals are for other texts of the same kind."
        if tested
        else "Without intervals, their variation over texts is unknown.",
    }
    guess = [] if "metric" in sets.attrs else _describe_guess(effects, tree.attrs)
    if unit_of_loss(tree.attrs) != "nats":
        guess = [_describe_loss(effects, tree.attrs)]
    return Report(
        title=f"Whether sets of heads of {model} matter",
        read=f"{count(sets.sizes['set'], 'set')} of heads ablated over {count(effects.sizes['window'], 'window')}",
        finding=Finding(
            [*guess, *(_describe_set(row, sets) for row in table.rows)],
            "p by random sets of heads" if "p" in sets else "intervals over texts" if tested else "not tested",
            headline=_headline_of_set(table.rows[0], _subject(sets)),
        ),
        tables=[table],
        result=tree,
        method=f"{INTERVALS} {EFFECTS}",
        notes=[*filter(None, [tree.attrs.get("left_out")]), *note_of(tree.attrs)],
        care=care,
        hint=_QUESTIONS.get(str(tree.attrs.get("prediction", "")), ""),
    )


def _subject(sets: xr.Dataset) -> str:
    return str(sets.attrs.get("metric", "the loss"))


def _headline_of_set(row: Row, subject: str) -> str:
    change = f"Without {listed(str(row['set']).split())}, {subject} changes by {row['effect']:+.3f}"
    if row.get("p") is None:
        return change
    return f"{change}; without random sets of heads, by {row['random']:+.3f} (p = {row['p']:.3f})"


def _describe_set(row: Row, sets: xr.Dataset) -> str:
    """The change of the loss without one set, next to that without random ones."""
    change = describe_effect(_TOGETHER[2].effect(row))
    heads = listed(str(row["set"]).split())
    sentence = f"Without {heads} ({row['ablation']} ablation), {_subject(sets)} changes by {change}"
    if row.get("p") is None:
        return f"{sentence}."
    those, alike, mean, low, high = beside_random(row, sets)
    return f"{sentence}; without {those} of {alike}, by {mean} ({low} to {high}): p = {row['p']:.3f}."


def beside_random(row: Row, sets: xr.Dataset) -> tuple[str, str, str, str, str]:
    """The number of random sets like one, in words, what is alike, and their effects: mean, low and high."""
    where = {name: row[name] for name in sets.random_effect.dims if name in row}
    drawn = sets.random_effect.sel(where).dropna("draw").values
    is_many = len(drawn) >= _MANY_SETS
    low, high = np.quantile(drawn, [0.025, 0.975] if is_many else [0, 1])
    is_sample = len(drawn) >= sets.attrs["random"]  # else there are fewer sets than were asked for: these are all
    those = f"{len(drawn)} random sets" if is_sample else f"each of the {len(drawn)} other sets"
    numbers = [f"{value:+.3f}".replace("-", "−") for value in (drawn.mean(), low, high)]
    return those, _ALIKE[sets.attrs["matched"]], numbers[0], "95% of them " * is_many + numbers[1], numbers[2]


def together_rows(sets: xr.Dataset, *more: str) -> list[Row]:
    """A row for each set of heads, with the sum of their single effects, random sets and other columns."""
    columns: dict[str, xr.DataArray | None] = {name: sets[name] for name in ("alone", *more)}
    if "p" in sets:
        columns |= {"p": sets.p, "random": sets.random_effect.mean("draw")}
    for name, prefix in (("effect", ""), ("between", "between_"), ("beyond", "beyond_")):
        if name not in sets:
            continue
        columns |= {f"{name}{end}": sets[f"{name}{end}"] for end in ("", "_low", "_high")}
        columns[f"{prefix}shown"] = effect_columns(sets, name, name, prefix)[f"{name}_shown"]
    return [row | {"heads": shown_component(row["set"])} for row in rows_of(columns, sets.effect.transpose("set", ...))]


_FEW = 3  # heads that a headline names


def _headline(tree: xr.DataTree, rows: Sequence[Row], tested: bool) -> str:
    effects = tree["effects"].to_dataset()
    names = [str(name) for name in tree["heads"].ablation.values]
    if tested and "metric" in tree.attrs:
        ablation = _ablation_of_title(rows, [f"metric_{name}" for name in names])
        changed = sum(bool(row[f"{ablation}_shown"]) for row in rows)
        metric, name = tree.attrs["metric"], ablation.removeprefix("metric_")
        return f"Removing one head ({name} ablation) changes {metric} significantly for {changed} of {len(rows)} heads"
    name = _ablation_of_title(rows, names)
    if not tested:
        row, size = _largest_change(rows, name, tree.attrs)
        return (
            f"Of {len(rows)} heads, the loss changes most without head {_name(row)} ({name} ablation): {size}; no test "
            f"possible: intervals need {_LEAST}"
        )
    if _describe_guess(effects, tree.attrs):
        return "This model predicts worse than a uniform guess: its loss does not show which heads matter"
    worse, better = (sum(row[f"{name}_shown"] and row[f"{name}_mean"] * sign > 0 for row in rows) for sign in (1, -1))
    if not worse and not better:
        changes = f"Removing one head ({name} ablation) changes the loss significantly for none of {len(rows)} heads"
        return changes + _largest_undecided(rows, name, tree.attrs)
    change = f"raises the loss significantly for {worse}" if worse else f"lowers the loss significantly for {better}"
    changes = f"Removing one head ({name} ablation) {change} of {len(rows)} heads"
    if worse and better:
        changes = f"{changes} and lowers it for {better}"
    changed = [row for row in rows if row[f"{name}_shown"]]
    if len(changed) <= _FEW:
        changes = f"{changes} ({' · '.join(map(_name, changed))})"
    always = sum(bool(row["matters"]) for row in rows)
    if len(names) > 1 and always == len(changed):
        kinds = len(names)
        changes = {1: f"{changes}, under all {kinds} ablations", 2: f"{changes}, both under all {kinds} ablations"}.get(
            always, f"{changes}, all of them under all {kinds} ablations"
        )
    elif len(names) > 1 and always:
        changes = f"{changes}, {always} of them under all {len(names)} ablations"
    if len(changed) <= _FEW:
        first = max(changed, key=lambda row: abs(row[f"{name}_mean"]))
        ends = [f"{first[f'{name}_{end}']:+.2g}" for end in ("mean", "low", "high")]
        size, low, high = (text.replace("-", "−") for text in ends)
        size += unit_of({"unit": unit_of_loss(tree.attrs)})
        changes = f"{changes}; most without head {_name(first)}: {size} ({low} to {high})"
    return changes + _largest_undecided(rows, name, tree.attrs)


def _largest_undecided(rows: Sequence[Row], name: str, attributes: Mapping[Any, Any]) -> str:
    """The largest change of the loss where it is not significant: none is not the same as no effect."""
    row, size = _largest_change(rows, name, attributes)
    return "" if row[f"{name}_shown"] else f"; the largest change, {size} without head {_name(row)}, is not significant"


def _largest_change(rows: Sequence[Row], name: str, attributes: Mapping[Any, Any]) -> tuple[Row, str]:
    """The head without which the loss changes most, and by how much, with its unit."""
    row = max(rows, key=lambda row: abs(row[f"{name}_mean"] or 0.0))
    size = f"{row[f'{name}_mean']:+.2g}".replace("-", "−") + unit_of({"unit": unit_of_loss(attributes)})
    return row, size


def _sentences(tree: xr.DataTree, rows: Sequence[Row]) -> list[str]:
    heads, effects = tree["heads"].to_dataset(), tree["effects"].to_dataset()
    ablations = [str(name) for name in heads.ablation.values]
    texts, unit = int(heads.attrs["texts"]), str(heads.attrs["intervals_over"])
    largest = _describe_largest(rows, ablations, unit_of({"unit": unit_of_loss(tree.attrs)}))
    if np.isfinite(heads.effect_low.values).any():
        over = count(heads.attrs["documents"], "document") if unit == "documents" else count(texts, "window")
        found = [*_describe_significant(rows, ablations, over), *largest]
    else:
        distinct = len(set(units_of(effects.source.values.tolist())[0]))  # equal texts count once
        found = [*largest, f"There are no intervals: they need {_LEAST}, and there {are(distinct)}."]
    return [
        *_describe_guess(effects, tree.attrs),
        *found,
        _describe_loss(effects, tree.attrs),
        *_describe_metric(tree, rows, ablations),
        *_describe_search(tree, rows, ablations),
        *_describe_forbidden(tree, rows),
        *_describe_estimates(tree),
    ]


def _describe_loss(effects: xr.Dataset, attributes: Mapping[Any, Any]) -> str:
    """The loss of the unchanged model and its accuracy; of an encoder without a head, its meaning."""
    loss, right = float(effects.loss.mean()), float(effects.accuracy.mean())
    prediction = attributes.get("prediction")
    if prediction == "output":
        return "The loss is 1 minus the projection of the embedding on that of the unchanged model, in its length."
    if prediction == "label_predicted":
        return f"The model gives its own label a loss of {loss:.3f} nats, mean over windows."
    if prediction == "label":
        return f"The loss is {loss:.3f} nats, mean over windows; {right:.0%} of the labels are right."
    return f"The loss is {loss:.3f} nats per token, mean over windows; {right:.0%} of the predictions are right."


def _describe_guess(effects: xr.Dataset, attributes: Mapping[Any, Any]) -> list[str]:
    """A warning if the model is worse than guessing."""
    loss = float(effects.loss.mean())
    guess = float(effects.guess_loss.mean()) if "guess_loss" in effects else np.inf
    if loss <= guess:
        return []
    if str(attributes.get("prediction")).startswith("label"):
        worse = f"This model predicts worse than a uniform guess over all labels, which loses {guess:.3f} nats."
    else:
        worse = (
            f"This model predicts worse than a uniform guess over all tokens, which loses {guess:.3f} nats per token."
        )
    return [f"{worse} Changes of its loss do not show that a head is useful."]


def _name(row: Row) -> str:
    return f"{row['layer']}.{row['head']}"


def _describe_largest(rows: Sequence[Row], ablations: Sequence[str], unit: str, prefix: str = "") -> list[str]:
    """The largest change of the loss, or with a prefix of the names of columns of a metric."""
    named = [(row, name, effect_of(row, f"{prefix}{name}")) for row in rows for name in ablations]

    def words(number: int, effect: Effect) -> str:
        row, name, _ = named[number]
        return f"{describe_effect(effect)}{unit}, without head {_name(row)} ({name} ablation)"

    every = "heads and ablations" if len(ablations) > 1 else "heads"
    return describe_largest([effect for *_, effect in named], words, every)


def _describe_metric(tree: xr.DataTree, rows: Sequence[Row], ablations: Sequence[str]) -> list[str]:
    """The number of heads that change a metric of one's own, and the largest change."""
    if "metric" not in tree.attrs:
        return []
    effects = [effect_of(row, f"metric_{ablation}") for row in rows for ablation in ablations]
    metric, unit = tree.attrs["metric"], unit_of(tree.attrs)
    significant = [effect.mean for effect in effects if effect.shown]
    rises, every = sum(mean > 0 for mean in significant), "heads and ablations" if len(ablations) > 1 else "heads"
    value = f"{float(tree['effects'].metric.mean()):.3g}{unit}".replace("-", "−")
    sentences = [f"{metric} is {value} in the unchanged model, mean over windows."]
    if effects[0].shown is not None:
        sentences.append(
            f"Removing one head at a time significantly raises {metric} for {rises} of {len(effects)} {every} and "
            f"lowers it for {len(significant) - rises} (p < 0.05, corrected for all {every})."
        )
    return [*sentences, *_describe_largest(rows, ablations, unit, "metric_")]


def _describe_search(tree: xr.DataTree, rows: Sequence[Row], ablations: Sequence[str]) -> list[str]:
    """The heads that a search with random sets finds, and the number with a significant effect alone."""
    if "search" not in tree.children:
        return []
    search = tree["search"].attrs
    first = sorted((row for row in rows if row["searched"]), key=lambda row: -abs(row["searched"]))[:_NAMED]
    removed = int(search["removed"])
    sets = f"{removed} heads at once" if removed > 1 else "one head at once, as the model is small"
    opening = f"Search with random sets ({search['passes']} passes, {sets}): "
    if not first:
        return [f"{opening}no head accounts for the changes."]
    digits = "+.3g" if "metric" in search else "+.3f"
    named = ", ".join(f"{_name(row)} ({row['searched']:{digits}})".replace("-", "−") for row in first)
    shown = [f"{'metric_' * ('metric' in search)}{name}_shown" for name in ablations]
    alone = sum(any(row[name] for name in shown) for row in first)
    tested = any(row["matters"] is not None for row in first)
    single = f"{alone} of these {'has' if alone == 1 else 'have'} a significant effect alone"
    unit = unit_of({"unit": unit_of_loss(tree.attrs), **search})
    return [f"{opening}the largest estimates are {named}{unit}, without a test{f'; {single}' * tested}."]


def _describe_significant(rows: Sequence[Row], ablations: Sequence[str], over: str) -> list[str]:
    """The number of heads with a significant effect, and of sharp heads with one."""
    worse, better = (sum(row["matters"] == sign for row in rows) for sign in (1, -1))
    some = sum(row["matters"] == 0 and any(row[f"{name}_shown"] for name in ablations) for row in rows)
    idle = len(rows) - worse - better - some
    heads, several = count(len(rows), "head"), len(ablations) > 1
    sentences: list[str] = []
    if idle == len(rows):
        sentences.append(
            f"None of {heads} significantly changes the loss when removed, by {listed(ablations, 'or')} ablation "
            f"(p < 0.05, corrected for all heads{' and ablations' * several}, over {over})."
        )
    else:
        how = f"each of {listed(ablations)} ablation" if several else f"{ablations[0]} ablation"
        rest = [f" For {some} more it depends on the ablation."] * (some > 0)
        rest += [f" {idle} {'has' if idle == 1 else 'have'} no significant effect."] * (idle > 0)
        sentences.append(
            f"Removing one head at a time significantly raises the loss for {worse} of {heads} and lowers it for "
            f"{better}, under {how} (p < 0.05, corrected for all heads{' and ablations' * several}, over {over})."
            + "".join(rest)
        )
    if several and idle < len(rows):
        counted = "; ".join(_counted(rows, name) for name in ablations)
        sentences.append(f"Heads whose removal raises and lowers the loss, by ablation: {counted}.")
    sharp = [row for row in rows if (row[PEAK.name] or 0) >= SHARP_SHARE]
    if sharp:
        needed = sum(row["matters"] == 1 for row in sharp)
        many = "head puts" if len(sharp) == 1 else "heads put"
        sentences.append(
            f"{len(sharp)} {many} at least half of all weight at one offset; removing {needed} of them "
            f"significantly raises the loss{' under every ablation' * several}."
        )
    return sentences


def _counted(rows: Sequence[Row], name: str) -> str:
    """The numbers of significant effects above and below 0 under one ablation."""
    significant = [row[f"{name}_mean"] for row in rows if row[f"{name}_shown"]]
    return f"{name} {sum(mean > 0 for mean in significant)} and {sum(mean < 0 for mean in significant)}"


def _forbidden_names(tree: xr.DataTree) -> str:
    return listed([str(name).replace("-", "−") for name in tree["forbidden"].attrs["forbid"]])


def _describe_forbidden(tree: xr.DataTree, rows: Sequence[Row]) -> list[str]:
    """Effects of a rule that forbids attention."""
    if "forbidden" not in tree.children:
        return []
    forbidden = tree["forbidden"].to_dataset()
    named = _forbidden_names(tree)
    scaled = "the rest scaled up" if forbidden.attrs["renormalise"] else "the rest as it is"
    unit = unit_of({"unit": unit_of_loss(tree.attrs)})
    tested = [(row, effect_of(row, "forbidden")) for row in rows if row["forbidden_mean"] is not None]
    significant = [effect.mean for _, effect in tested if effect.shown]
    idle = sum((row["forbidden_weight"] or 0) < HARDLY for row, _ in tested)
    sentences: list[str] = []
    if np.isfinite(forbidden.effect_low.values).any():
        rises = sum(mean > 0 for mean in significant)
        sentences.append(
            f"If one head may not attend to {named} ({scaled}), the loss significantly rises for {rises} of "
            f"{count(len(tested), 'head')} and falls for {len(significant) - rises}; {idle} put{'s' * (idle == 1)} "
            f"less than {HARDLY:.0%} of {'its' if idle == 1 else 'their'} weight there."
        )

    def words(number: int, effect: Effect) -> str:
        row = tested[number][0]
        there = f"{row['forbidden_weight']:.0%} of its weight is there"
        return f"{describe_effect(effect)}{unit}, if head {_name(row)} may not attend to {named}; {there}"

    return [*sentences, *describe_largest([effect for _, effect in tested], words, "heads")]


def _describe_estimates(tree: xr.DataTree) -> list[str]:
    if "agreement" not in tree.children:
        return []
    agreement = tree["agreement"].to_dataset()
    ablation = "mean" if "mean" in agreement.ablation.values else str(agreement.ablation.values[0])
    parts = describe_agreement(agreement.sel(ablation=ablation), ("attribution", "integrated", "importance"))
    if not parts:
        return []
    heads = tree["heads"].to_dataset()
    measured = int(np.isfinite(heads.effect.sel(ablation=ablation)).sum())
    of = f"{count(measured, 'head')} over {count(int(heads.attrs['texts']), 'window')}"
    return [f"Rank correlation of estimates with the {ablation} ablation ({of}): {parts}."]


#: Names of the estimators.
ESTIMATORS = {
    "attribution": "attribution patching",
    "integrated": "integrated gradients",
    "eap_ig": "EAP-IG",
    "importance": "gradient importance",
}


def describe_agreement(agreement: xr.Dataset, names: Sequence[str]) -> str:
    """The rank correlation of each estimator with the measured effects; empty if none is defined."""
    parts: list[str] = []
    for name in names:
        value, chance = (float(agreement[key].sel(estimator=name)) for key in ("rank_correlation", "chance"))
        if np.isfinite(value):
            doubt = "" if chance < SURE else f" (p = {chance:.2f})"
            parts.append(f"{ESTIMATORS[name]} {f'{value:.2f}'.replace('-', '−')}{doubt}")
    return "; ".join(parts)


def listed(names: Sequence[str], last: str = "and") -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}"


def describe_effect(effect: Effect) -> str:
    """A change with its interval, with more digits if it is small and significant."""
    digits = places(effect.mean, 3) if effect.shown else 3
    text = f"{effect.mean:+.{digits}f}"
    if np.isfinite(effect.low):
        text += f" ({effect.low:+.{digits}f} to {effect.high:+.{digits}f})"
    return text.replace("-", "−")


def describe_largest(effects: Sequence[Effect], words: Callable[[int, Effect], str], every: str) -> list[str]:
    """The largest effect and its significance; if it is not significant, also the largest that is."""
    order = sorted(range(len(effects)), key=lambda number: -abs(effects[number].mean))
    first = effects[order[0]]
    sentence = f"The largest change is {words(order[0], first if first.shown else Effect(first.mean))}."
    if first.shown is None:
        return [sentence]
    if first.shown:
        return [f"{sentence} It is significant (corrected for all {every})."]
    largest = [number for number in order if effects[number].shown][:1]
    return [
        f"{sentence} It is not significant (corrected for all {every}).",
        *(f"The largest significant change is {words(number, effects[number])}." for number in largest),
    ]
