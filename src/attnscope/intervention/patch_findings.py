"""Tables and findings of activation patching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr
from scipy.stats import binom

from attnscope.intervention.metrics import format_of, note_of, subject_of, unit_of
from attnscope.intervention.pairs import texts_of
from attnscope.intervention.patch import MOVED
from attnscope.intervention.verdicts import (
    ESTIMATORS,
    HEADS,
    OF_P,
    SURE,
    agreement_tables,
    beside_random,
    describe_agreement,
    describe_effect,
    describe_largest,
    listed,
    together_rows,
)
from attnscope.report.reads import reads
from attnscope.report.schema import HEAD, Effect, Finding, Quantity, Report, Row, Table, heads_by, rows_of, with_ends
from attnscope.statistics.effects import EFFECTS, INTERVALS
from attnscope.statistics.units import LEAST, numbered
from attnscope.support.numbers import are, count

_OF_SUMS = "sum of the changes over the sum of the differences between both runs"
_TWO: Any = (("effect", "change", "logits"), ("recovered", "recovered", "percent", _OF_SUMS))
_EFFECT, RECOVERED = (with_ends(name, *more, significant="shown", interval=name == "recovered") for name, *more in _TWO)
_SHARES = ("recovered", "recovered_low", "recovered_high")
_PAIRS = (
    Quantity("pair", unit="count"),
    Quantity("clean", unit="text"),
    Quantity("corrupted", unit="text"),
    Quantity("answer", unit="token"),
    Quantity("wrong", unit="token"),
    Quantity("clean_difference", "clean run", "logits"),
    Quantity("corrupted_difference", "corrupted run", "logits", "the same in the corrupted run"),
)
_TOGETHER = (
    Quantity("heads", "patched", meaning="heads, MLPs (m)"),
    with_ends("effect", "all at once", "logits", "change with all of them patched at once", significant="shown"),
    with_ends("recovered", "recovered", "percent", _OF_SUMS),
    Quantity("alone", "sum alone", "logits", "sum of the changes with each patched alone"),
    with_ends("between", "difference", "logits", "all at once minus it", significant="between_shown", interval=True),
)
_AGAINST_CHANCE = (
    Quantity("random", "random sets", "logits", "mean change by patching a random set"),
    Quantity("p", "p", "p", "share of these sets, this one included, that move the answer at least as far"),
    with_ends("beyond", "beyond them", "logits", "all at once minus the mean of the random sets", interval=True),
)
_CARE = {
    "Results depend on the corruption.": "Another kind can show other heads. Heads that both runs need equally carry "
    "no difference.",
    "Two directions answer two questions.": "Denoising shows what suffices to restore the answer, noising what is "
    "needed. If one head can replace another, only one direction shows it.",
    "Shares need not add up to 1.": "Heads act together and one after the other; a share below 0 or above 1 goes "
    "beyond one of the runs.",
}
#: Of answers with several tokens.
_SEVERAL_TOKENS = {
    "Answers have several tokens.": "The difference is that of their summed log probabilities. Each token lowers the "
    "sum, so long answers are at a disadvantage in both runs."
}
#: Of several answers of one token each.
_ODDS = {
    "Each side has several answers.": "The difference is the log of the summed probability of the answers over that of "
    "the wrong ones. It does not say which of them changed."
}


def care_of_answers(pairs: xr.Dataset) -> dict[str, str]:
    """A caution on the difference of answers, where it is not that of two logits."""
    if pairs.attrs.get("answers") == "several":
        return _ODDS
    return _SEVERAL_TOKENS if pairs.attrs.get("unit", "logits") == "nats" else {}


_PATCHED = {
    "heads": "one head's output",
    "query": "one head's queries",
    "key": "one head's keys",
    "value": "one head's values",
    "weights": "one head's weights",
    "attention": "the output of attention in one block",
    "mlp": "the output of the MLP in one block",
    "residual": "the residual stream after one block",
    "resid_pre": "the residual stream before one block",
    "resid_mid": "the residual stream between attention and MLP of one block",
    "resid_post": "the residual stream after one block, before a norm that ends it",
    "attn_out": "what attention adds to the residual stream in one block",
    "mlp_out": "what the MLP adds to the residual stream in one block",
    "mixer_out": "what the mixer adds to the residual stream in one block",
    "neurons": "all neurons of the MLP in one block",
    "ln1": "the output of the first norm of one block",
    "ln2": "the output of the second norm of one block",
}


@reads("patch")
def patched_positions(tree: xr.DataTree) -> list[Row]:
    """A row for each patched head, block or position, the largest effect first."""
    patched = tree["patched"].to_dataset()
    ends = [f"{name}{end}" for name in ("effect", "recovered") for end in ("", "_low", "_high")]
    columns: dict[str, xr.DataArray | None] = {name: patched[name] for name in ends}
    # a share needs a difference between both runs whose sign is certain
    columns["recovered"] = patched.recovered.where(patched.recovered_low.notnull() | ~patched.tested)
    columns |= {"shown": patched.shown.astype(object).where(patched.tested), "attention": patched.get("layer_kind")}
    if "token" in patched.coords:
        columns["token"] = patched.token
    for name in patched.estimator.values.tolist() if "estimate" in patched else ():
        columns[f"estimate_{name}"] = patched.estimate.sel(estimator=name, drop=True)
    return sorted(rows_of(columns, patched.effect), key=lambda row: -abs(row["effect"]))


def name_of(row: Row) -> str:
    """Short name of a patched head, block or position."""
    what = f"block {row['block']}" if "block" in row else f"{row['layer']}.{row['head']}"
    return what if "position" not in row else f"{what} at {row['position']}"


@reads("patch")
def report(tree: xr.DataTree) -> Report:
    rows, pairs = patched_positions(tree), tree["pairs"].to_dataset()
    tested = rows[0]["shown"] is not None
    has_shares = rows[0]["recovered"] is not None
    care = dict(_CARE) | care_of_answers(pairs)
    if tested:
        care["Intervals are for pairs like these."] = "Pairs from one template say little about other sentences."
    if "agreement" in tree.children:
        care["Estimates are linear."] = "They are off where the change is large; the figure shows by how much."
    if "together" in tree.children and "p" in tree["together"]:
        care |= OF_P
    model, towards = str(tree.attrs.get("model", "the model")), _towards(pairs)
    return Report(
        title=f"Activation patching in {model}",
        read=f"{count(len(rows), 'activation')} patched in {count(pairs.sizes['pair'], 'pair')} of texts",
        finding=Finding(
            _sentences(tree, rows),
            f"significant at 5%, corrected for all {_kinds(rows)}" if tested else "not tested",
            heads_by(
                rows, lambda row: (towards if (row["recovered"] or 0) > 0 else AWAY) * bool(row["shown"]), towards, AWAY
            )
            if tested and has_shares and "head" in rows[0]
            else {},
            headline=_headline(rows, pairs),
        ),
        tables=_tables(tree, rows),
        colour="recovered" if has_shares else "",
        result=tree,
        method=f"{INTERVALS} {EFFECTS}",
        notes=[*filter(None, [tree.attrs.get("left_out")]), *note_of(pairs.attrs)],
        care=care,
        hint=f"Path patching: all later heads keep their output on the way to {pairs.attrs['receiver']}, so the effect "
        "passes through the residual stream and the MLPs only."
        if "receiver" in pairs.attrs
        else first_pair(pairs),
    )


AWAY = "away from it"


def _towards(pairs: xr.Dataset) -> str:
    """The name of a change in the direction of the run whose activations are patched in."""
    return f"towards the {_SOURCE[pairs.attrs['direction']]} run"


_SOURCE = {"denoising": "clean", "noising": "corrupted"}


def _tables(tree: xr.DataTree, rows: Sequence[Row]) -> list[Table]:
    first = rows[0]
    pairs, where = tree["pairs"].to_dataset(), [Quantity("block", unit="count")]
    unit = pairs.attrs.get("unit", "logits")
    in_unit = unit_of(pairs.attrs).replace(" ", ", ")
    effect = replace(_EFFECT, meaning=f"change of {subject_of(pairs.attrs)} by patching{in_unit}")
    if "head" in first:
        kinds = {row["attention"] for row in rows}
        where = [*HEAD, replace(HEADS[2], detail="table" if len(kinds) > 1 else "data")]
    if "position" in first:
        by_name = isinstance(first["position"], str)
        where += [Quantity("position", unit="text" if by_name else "count"), Quantity("token", unit="token")]
    estimates = [
        Quantity(f"estimate_{name}", f"estimate: {title}", "logits")
        for name, title in ESTIMATORS.items()
        if f"estimate_{name}" in first
    ]
    least, quantities = f"{LEAST} or more pairs", (*where, effect, RECOVERED, *estimates)
    all_of = f"for all {_kinds(rows)}"
    tables = [Table("patched", "Patched activations", quantities, rows, corrected=all_of, least=least)]
    if "together" in tree.children:
        sets = together_rows(tree["together"].to_dataset(), *_SHARES)
        quantities = (*_TOGETHER, *(_AGAINST_CHANCE if "p" in sets[0] else ()))
        words = "Heads and MLPs patched together"
        tables.append(Table("together", words, quantities, sets, corrected="for all sets", least=least))
    tables += agreement_tables(tree)
    columns = {name: pairs[f"{name}_text"] for name in ("clean", "corrupted", "answer", "wrong")}
    columns |= {f"{name}_difference": pairs[name] for name in ("clean", "corrupted")}
    ends = replace(_PAIRS[5], meaning=f"{subject_of(pairs.attrs)} in the clean run")
    of_pairs = rows_of({name: values.where(values != "") for name, values in columns.items()}, pairs.clean)
    tables.append(Table("pairs", "The pairs", (*_PAIRS[:5], ends, _PAIRS[-1]), of_pairs, terminal=0, page=100))

    def own(one: Quantity) -> Quantity:
        heading = MOVED[pairs.attrs["direction"]] if one.name == "recovered" else one.heading
        return replace(one, heading=heading, unit=format_of(unit) if one.unit == "logits" else one.unit)

    return [replace(table, quantities=[*map(own, table.quantities)]) for table in tables]


def _describe_sets(tree: xr.DataTree) -> list[str]:
    """The effect of each set of heads, next to those of random sets."""
    if "together" not in tree.children or "p" not in tree["together"]:
        return []
    sets, unit = tree["together"].to_dataset(), tree["pairs"].attrs.get("unit", "logits")
    sentences: list[str] = []
    for row in together_rows(sets, *_SHARES):
        heads, effect = listed(row["heads"].split(", ")), describe_effect(_EFFECT.effect(row))
        those, alike, mean, low, high = beside_random(row, sets)
        sentences.append(
            f"Patching {heads} together changes answer minus wrong answer by {effect} {unit}; patching {those} of "
            f"{alike}, by {mean} ({low} to {high}): p = {row['p']:.3f}."
        )
    return sentences


def _kinds(rows: Sequence[Row]) -> str:
    return "positions" if "position" in rows[0] else "heads"


def first_pair(pairs: xr.Dataset) -> str:
    """The texts of the first pair, with their answers."""
    clean, corrupted, answer, wrong = (
        str(pairs[f"{name}_text"].values[0]).strip() if f"{name}_text" in pairs else ""
        for name in ("clean", "corrupted", "answer", "wrong")
    )
    if not answer:
        return f"First pair: “{clean}”; “{corrupted}”."
    return f"First pair: “{clean}” → “{answer}”; “{corrupted}” → “{wrong}”."


def _headline(rows: Sequence[Row], pairs: xr.Dataset) -> str:
    kinds, moved = _kinds(rows), MOVED[pairs.attrs["direction"]]
    shown, most_of_all = [row for row in rows if row["shown"]], max(rows, key=lambda row: abs(row["effect"]))
    largest = max(shown or rows, key=lambda row: abs(row["effect"]))
    digits = "+.3g" if "metric" in pairs.attrs else "+.2f"
    size, size_of_all = (
        f"{row['effect']:{digits}}{unit_of(pairs.attrs)}" if row["recovered"] is None else f"{row['recovered']:.0%}"
        for row in (largest, most_of_all)
    )
    size, size_of_all = size.replace("-", "−"), size_of_all.replace("-", "−")
    most = f"the largest, of {_named(largest)}, is {size}"
    if largest["recovered"] is not None:
        most = f"the largest, of {_named(largest)}, is {size} of the difference {moved}"
    if largest["shown"] is None:
        return f"No test possible: intervals need {LEAST} or more pairs of one kind; of the effects, {most}"
    everything = f"; that of {_named(most_of_all)} is {size_of_all}, not significant"
    if not shown:
        return f"No patch of {len(rows)} {kinds} has a significant effect{everything}"
    if len(shown) == 1:
        number, one = len(rows), _named(largest)
        effect = f"Of {number} {kinds}, only {one} has a significant effect: {size}"
        if largest["recovered"] is not None:
            effect = f"Of {number} {kinds}, only {one} has a significant effect: {size} of the difference {moved}"
        low, high = most_of_all["recovered_low"], most_of_all["recovered_high"]
        more = f"; {_named(most_of_all)} has more, {size_of_all}, not significantly"
        if low is not None and high is not None:
            interval = f"{low:.0%} to {high:.0%}".replace("-", "−")
            more = f"; {_named(most_of_all)} has more, {size_of_all} ({interval}), not significantly"
        return effect if largest is most_of_all else effect + more
    effects = f"Patches of {len(shown)} of {len(rows)} {kinds} have a significant effect: {most}"
    return effects if largest is most_of_all else effects + everything


def _named(row: Row) -> str:
    return name_of(row) if "block" in row else f"head {name_of(row)}"


def _sentences(tree: xr.DataTree, rows: Sequence[Row]) -> list[str]:
    pairs, kinds = tree["pairs"].to_dataset(), _kinds(rows)
    number, sentences = numbered(texts_of(pairs))[1], describe_runs(pairs)
    effects = [_EFFECT.effect(row) for row in rows]
    largest = describe_largest(effects, lambda number, effect: _describe_share(rows[number], effect), kinds)
    sentences.append(" ".join([_what_is_done(tree), *largest]))
    if number < LEAST:
        sentences.append(
            f"There are no intervals: they need {LEAST} or more pairs of one kind, and there {are(number)}."
        )
        if rows[0]["recovered"] is None:
            sentences.append(NO_SHARE)
    else:
        shares = [row["recovered"] for row in rows if row["shown"]]
        if rows[0]["recovered"] is None:
            sentences.append(
                f"{len(shares)} of {len(rows)} {kinds} have a significant effect (p < 0.05, corrected, over {number} "
                "pairs)."
            )
            sentences.append(NO_SHARE)
        else:
            towards = sum(share > 0 for share in shares)
            sentences.append(
                f"{len(shares)} of {len(rows)} {kinds} have a significant effect (p < 0.05, corrected, over {number} "
                f"pairs): {towards} towards the {_SOURCE[pairs.attrs['direction']]} run, {len(shares) - towards} away "
                "from it."
            )
    agreement = ""
    if "agreement" in tree.children:
        orders = tree["agreement"].to_dataset()
        agreement = describe_agreement(orders, orders.estimator.values.tolist())
    sentences += _describe_sets(tree)
    return [*sentences, *([f"Rank correlation of estimates with measured changes: {agreement}."] * bool(agreement))]


#: Where the interval of the mean difference includes 0.
NO_SHARE = "The difference between clean and corrupted runs may be 0 on average, so there are no shares of it."


def describe_runs(pairs: xr.Dataset) -> list[str]:
    """The answers of clean and corrupted runs, with warnings if the model guesses or pairs contradict each other."""
    clean, corrupted = pairs.clean.values, pairs.corrupted.values
    number, unit = len(clean), unit_of(pairs.attrs)
    both = (
        f"Answer minus wrong answer: {f'{clean.mean():+.2f}{unit}'} in clean runs, {corrupted.mean():+.2f} in "
        f"corrupted runs (mean over {count(number, 'pair')}). Clean runs prefer the answer in {int((clean > 0).sum())} "
        f"of {number}, corrupted runs the wrong answer in {int((corrupted < 0).sum())}."
    )
    if "metric" in pairs.attrs:
        both = (
            f"{pairs.attrs['metric']}: {f'{clean.mean():.3g}{unit}'} in clean runs, {corrupted.mean():.3g} in "
            f"corrupted runs (mean over {count(number, 'pair')})."
        )
    _, first = np.unique(numbered(texts_of(pairs))[0], return_index=True)  # of equal pairs
    sentences = [both.replace("-", "−")]
    if "metric" not in pairs.attrs:
        sentences += _unsolved(int((clean[first] > 0).sum()), len(first))
    turned = int((np.sign(clean - corrupted) != np.sign((clean - corrupted).mean())).sum())
    if turned:
        sentences.append(
            f"Check {count(turned, 'pair')} of {number}: there the difference has the opposite sign of the mean."
        )
    return sentences


def _unsolved(right: int, pairs: int) -> list[str]:
    """A warning if the clean runs do not prefer the answer significantly more often than chance."""
    chance = float(binom.sf(right - 1, pairs, 0.5))
    if right == pairs or chance <= SURE:
        return []
    doubt = f"This is no better than guessing (p = {chance:.2f}): the model may not know these answers."
    return [f"{doubt} " + "Heads can carry a difference all the same, as they do with random weights."]


def _describe_share(row: Row, effect: Effect) -> str:
    """The recovered share, with an interval if the effect has one."""
    share, name = RECOVERED.effect(row), name_of(row) if "block" in row else f"head {name_of(row)}"
    if not np.isfinite(share.mean):
        return f"with {name}"
    text = f"{share.mean:.0%} of the difference"
    if np.isfinite(effect.low) and np.isfinite(share.low):
        text += f" ({share.low:.0%} to {share.high:.0%})"
    return f"{text.replace('-', '−')}, with {name}"


def _what_is_done(tree: xr.DataTree) -> str:
    """The patched positions and heads, in one sentence."""
    pairs = tree["pairs"].to_dataset()
    source = _SOURCE[pairs.attrs["direction"]]
    other = "corrupted" if source == "clean" else "clean"
    words = _PATCHED[pairs.attrs["what"]]
    if "receiver" in pairs.attrs:
        through = pairs.attrs["receiver"]
        return f"Patched: the effect of {words} of the {source} run on {through} alone, in the {other} run."
    where = ", within one span" if "position" in pairs.coords else ", at one position"
    where = where if "position" in pairs.dims else ""
    return f"Patched: {words}{where}, from the {source} run into the {other} one."
