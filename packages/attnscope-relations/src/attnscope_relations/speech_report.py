"""The report of `relations` for sounds: sets of heads by the error of the times they give, and every head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.measure.stored import describe_corpus, notes_of
from attnscope.report import schema
from attnscope.statistics.effects import INTERVALS
from attnscope.statistics.units import LEAST
from attnscope.support.numbers import count
from attnscope_relations.ablation_report import IN_LISTS, ablation_method, ablation_sentences, ablation_tables
from attnscope_relations.speech_summary import ALL, CHOSEN, PACE, PUBLISHED, RANDOM

if TYPE_CHECKING:
    import xarray as xr

_TIMED = (
    "The decoder reads the transcript. The row that predicts a token is compared with the sound of its word, with 0.1 "
    "s around it. Starts of words are those of Whisper's word timestamps (Radford et al. 2022): weights are "
    "standardised over tokens, median-filtered over 7 frames, averaged over a set of heads, and a path through them by "
    "dynamic time warping (Sakoe and Chiba 1978) gives the first frame of each word. A set is grown on one half of the "
    "sounds, each time by the head with which the error is smallest, and scored on the other half. "
)
_ORDERED = (
    "The decoder reads the transcript. The mean time of a token's weights is compared with the order of the tokens, by "
    "rank correlation in each sound; and once more while the decoder attends to another sound of about the same "
    "duration. A head follows the sound if its correlation is significantly above 0 and above that with the other "
    "sound (an intersection-union test), and above the best with fresh weights, if these are measured; the false "
    "discovery rate over heads is 0.05. "
)
_UNTIMED = {
    "The order needs no times, and shows no error.": "A head that is always late has a correlation of 1 too. Times of "
    "words tell it apart."
}
_PAIRS = {"A weight shows where a head attends, not what it does.": schema.MATTERS}
_CHOICE = {
    "The set holds for sounds like these.": "Other voices, noise or languages may have another best set. The table has "
    "the error on sounds on which the set was not chosen."
}


def speech_report(result: xr.Dataset) -> schema.Report:
    """Sets of heads and heads, those that follow the sound most closely first."""
    timed = "set_error" in result
    sets = _sets(result) if timed else []
    numbered = result.assign_coords(layer=("layer", result.decoder_layer.values))  # as lists of alignment heads
    heads = _heads(numbered, timed=timed)
    listed = [row for row in heads if row["published"]]
    chosen = sorted((row for row in heads if row["number"] is not None), key=lambda row: row["number"])
    sentences = _of_times(sets, chosen) if timed else _of_order(heads, chosen)
    notes = [*notes_of(result).values()]
    notes += [str(result.attrs[name]) for name in ("languages", "exchanged", "untrained") if name in result.attrs]
    called = result.attrs["intervals_over"]
    named = {"in the set for export": [(row["layer"], row["head"]) for row in chosen]}
    return schema.Report(
        title=f"Words and their sound in {result.attrs['model']}",
        read=f"{int(result.tokens.sum()):,} tokens of words in {describe_corpus(result)}",
        finding=schema.Finding(
            [*sentences, *ablation_sentences(result), *_of_list(result, listed)],
            f"95% intervals over {called}"
            if result.sizes["window"] >= LEAST
            else f"{count(int(result.sizes['window']), 'sound')}, not tested: intervals need {LEAST} or more",
            named,
            _title_of_times(sets) or sentences[0],
        ),
        tables=[
            *([schema.Table("sets", "Errors of the starts of words, by sets of heads", _SETS, sets)] if timed else []),
            schema.Table("heads", "Heads of the decoder", _TIMED_HEADS if timed else _ORDERED_HEADS, heads),
            *ablation_tables(result),
        ],
        result=numbered,
        method=f"{_TIMED if timed else _ORDERED}{ablation_method(result)}{INTERVALS}",
        notes=notes,
        care=_PAIRS | (_CHOICE if timed else _UNTIMED),
        colour="error" if timed else "correlation",
    )


def _sets(result: xr.Dataset) -> list[schema.Row]:
    names = [f"set_{name}{end}" for name in ("error", "difference") for end in ("", "_low", "_high")]
    rows: list[schema.Row] = []
    for number, name in enumerate(result.set.values.tolist()):
        one = result.isel(set=number)
        row: schema.Row = {"set": name, "size": float(one.set_size) or None}
        row |= {key.removeprefix("set_"): schema.value_of(one[key].item()) for key in names}
        if row["difference"] == 0 and name in {PUBLISHED, ALL}:
            row |= dict.fromkeys(("difference", "difference_low", "difference_high"))
        rows.append(row)
    return rows


def _heads(result: xr.Dataset, *, timed: bool) -> list[schema.Row]:
    of_relation = result.isel(relation=0)
    names = ("error", "error_low", "error_high", "correlation", "correlation_low", "correlation_high", "p", "set_order")
    names += ("score", "score_low", "score_high", "weight", "exchanged_weight", "untrained", "untrained_error")
    names += ("exchanged_correlation",)
    columns = {name: of_relation[name] for name in names if name in of_relation}
    columns |= {"shown": of_relation.shown, "tested": of_relation.tested}
    if "listed" in result:
        columns["listed"] = result.listed
    rows = schema.rows_of(columns, of_relation.correlation)
    for row in rows:
        row["in_lists"] = f"{row['layer']}.{row['head']}"
        row["published"] = "yes" if row.pop("listed", False) else ""
        order = row.pop("set_order")
        row["number"] = order + 1 if order >= 0 else None
        row["shown"] = bool(row["shown"]) if row["tested"] else None
    by = (lambda row: row["error"]) if timed else (lambda row: -row["correlation"])
    return sorted(rows, key=by)


def _named(rows: list[schema.Row]) -> str:
    return ", ".join(row["in_lists"] for row in rows)


_BY = {
    PUBLISHED: "by the published heads",
    RANDOM: "by as many random heads",
    ALL: "by all heads",
    PACE: "at a constant pace",
}

_IN_TITLE = {PUBLISHED: "published", RANDOM: "random", ALL: "all heads", PACE: "constant pace"}


def _of_times(sets: list[schema.Row], chosen: list[schema.Row]) -> list[str]:
    """The error of the chosen set next to the published one and to all heads."""
    errors = {row["set"]: row["error"] for row in sets}
    names = [name for name in (PUBLISHED, ALL) if name in errors]
    names += [RANDOM] if errors[RANDOM] < errors.get(PUBLISHED, 0.0) else []
    names += [PACE] if errors[PACE] < errors.get(CHOSEN, errors[ALL]) else []
    others = [f"{_BY[name]} {errors[name]:.0f} ms" for name in names]
    several = f"{count(len(chosen), 'head')} ({_named(chosen)})"
    if CHOSEN not in errors:
        return [f"Starts of words are off, on average: {', '.join(others)}.", f"Best on these sounds: {several}."]
    chosen_row = next(row for row in sets if row["set"] == CHOSEN)
    error = f"{errors[CHOSEN]:.0f} ms"
    if chosen_row["error_low"] is None:
        certain = f"Fewer than {LEAST} sounds: too few to say that one error is smaller than another."
    else:
        error = f"{error} ({chosen_row['error_low']:.0f} to {chosen_row['error_high']:.0f})"
        certain = _difference(chosen_row, has_list=PUBLISHED in errors)
    by_others = ", ".join(others)
    return [
        f"By heads chosen on the other half of the sounds, starts of words are off by {error} on average; {by_others}.",
        certain,
        f"The set for export is chosen on all sounds: {several}. Its own error on other sounds is unknown.",
    ]


def _title_of_times(sets: list[schema.Row]) -> str:
    """The error of the chosen set next to published or all heads, random ones, and a pace that is better."""
    errors = {row["set"]: row["error"] for row in sets}
    if CHOSEN not in errors:
        return ""
    names = [PUBLISHED if PUBLISHED in errors else ALL, RANDOM]
    names += [PACE] if errors[PACE] < errors[CHOSEN] else []
    others = ", ".join(f"{_IN_TITLE[name]} {errors[name]:.0f}" for name in names)
    row = next(row for row in sets if row["set"] == CHOSEN)
    if row["error_low"] is None:
        return f"Word starts: off by {row['error']:.0f} ms with heads chosen on other sounds; {others}"
    interval = f"{row['error_low']:.0f} to {row['error_high']:.0f}"
    return f"Word starts: off by {row['error']:.0f} ms ({interval}) with heads chosen on other sounds; {others}"


def _difference(row: schema.Row, *, has_list: bool) -> str:
    """How the chosen sets differ from the published list, or from all heads where there is none."""
    reference = "the published list" if has_list else "all heads"
    interval = f"95% interval {row['difference_low']:.0f} to {row['difference_high']:.0f} ms"
    if row["difference_high"] < 0:
        return f"That is less than with {reference} ({interval} of the difference)."
    return f"That is not shown to be less than with {reference} ({interval} of the difference)."


def _of_order(heads: list[schema.Row], chosen: list[schema.Row]) -> list[str]:
    best = next((row for row in heads if row["shown"]), heads[0])
    measured = f"rank correlation {best['correlation']:.2f}"
    if best["exchanged_correlation"] is not None:
        measured = f"rank correlation {best['correlation']:.2f}; {best['exchanged_correlation']:.2f} with another sound"
    tested = [row for row in heads if row["shown"] is not None]
    following = sum(row["shown"] for row in tested)
    if tested and not following:
        sentences = [f"No head of the decoder follows the sound that it hears (head {best['in_lists']}: {measured})."]
    else:
        sentences = [
            f"Head {best['in_lists']} of the decoder follows the order of the tokens most closely ({measured})."
        ]
    if following:
        sentences.append(f"{following} of {count(len(tested), 'head')} follow the sound that they hear.")
    return [
        *sentences,
        f"The {count(len(chosen), 'head')} with the largest correlations: {_named(chosen)}.",
        "Without times of words this is a ranking, not a chosen set.",
    ]


def _of_list(result: xr.Dataset, listed: list[schema.Row]) -> list[str]:
    if not listed:
        return []
    words = {"weight": "by weight near the word", "error": "by error", "correlation": "by correlation"}
    areas = ", ".join(
        f"{words[str(one.measure.item())]} {float(one.listed_auroc):.2f}"
        for one in (result.isel(measure=at) for at in range(result.sizes["measure"]))
    )
    several = count(len(listed), "head")
    return [f"The model's generation config lists {several}. How well each measure ranks them first (AUROC): {areas}."]


_CORRELATION = schema.Quantity(
    "correlation",
    unit="share",
    meaning="rank correlation of the mean time of a token's weights with the time of its word, or with its order",
    low="correlation_low",
    high="correlation_high",
)
_CHOSEN = schema.Quantity("number", "chosen", "count", "its number in the set that is chosen on all sounds")
_RANK = schema.Quantity("number", "rank", "count", "rank by the correlation, of as many heads as the list has")
_PUBLISHED = schema.Quantity("published", meaning="whether the model's generation config lists it")
_P = schema.Quantity("p", unit="p", meaning="p-value, not corrected", detail="page", significant="shown")
_SETS = (
    schema.Quantity("set", "heads"),
    schema.Quantity("size", "number", "rate", "number of heads; of two halves the mean"),
    schema.Quantity(
        "error",
        "error, ms",
        "rate",
        "mean error of the start of a word",
        low="error_low",
        high="error_high",
        interval=True,
    ),
    schema.Quantity(
        "difference",
        "from published, ms",
        "gain",
        "difference from the error of the published heads, or of all heads if none are published; negative is better",
        low="difference_low",
        high="difference_high",
        interval=True,
    ),
)
_TIMED_HEADS = (
    *IN_LISTS,
    schema.Quantity(
        "error",
        "error, ms",
        "rate",
        "mean error of the start of a word by this head alone",
        low="error_low",
        high="error_high",
    ),
    schema.Quantity("untrained_error", "untrained, ms", "rate", "the same with fresh weights"),
    schema.Quantity("weight", "near", "share", "mean weight within 0.1 s of the word"),
    schema.Quantity(
        "exchanged_weight", "exchanged", "share", "the same for words of other sounds, at the same relative times"
    ),
    schema.Quantity(
        "score",
        "right",
        "share",
        "share of tokens whose largest weight is near the word",
        low="score_low",
        high="score_high",
        detail="page",
    ),
    _CORRELATION,
    _P,
    _CHOSEN,
    _PUBLISHED,
)
_ORDERED_HEADS = (
    *IN_LISTS,
    _CORRELATION,
    schema.Quantity("exchanged_correlation", "other sound", "share", "the same while the decoder hears another one"),
    schema.Quantity("untrained", unit="share", meaning="the same with fresh weights"),
    _P,
    _RANK,
    _PUBLISHED,
)
