"""The report of `relations`: of each relation the best head, next to controls."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attnscope.measure.stored import describe_corpus, notes_of
from attnscope.report import schema
from attnscope.report.reads import reads
from attnscope.statistics.effects import INTERVALS
from attnscope.statistics.units import LEAST
from attnscope.support.numbers import count, percent, significant
from attnscope_relations.ablation_report import ablation_method, ablation_sentences, ablation_tables
from attnscope_relations.contact_tables import (
    contact_headline,
    contact_heads,
    contact_method,
    contact_sentences,
    contact_tables,
)
from attnscope_relations.speech_report import speech_report
from attnscope_relations.summary import SIZE
from attnscope_relations.together_report import together_method, together_sentences, together_tables, tree_headline
from attnscope_relations.translation_report import translation_method, translation_sentences, translation_tables

if TYPE_CHECKING:
    import xarray as xr

_METHOD = (
    "Tokens are merged to words: queries are averaged, keys summed (Clark et al. 2019). A head is right for a query if "
    "its largest weight on another word is on one that the query belongs to. The best head of a relation is chosen on "
    "one half of the documents and scored on the other, next to three controls: a fixed offset, chosen in the same "
    "way; exchanged links, those of other texts of the same length (or of a lone text, moved along it); a random "
    "visible word. It links the relation if it is right by "
    f"{SIZE:g} or more above all of them, and significantly: p is the largest of three (an intersection-union test, "
    "Berger 1982), with the false discovery rate over relations at 0.05 (Benjamini and Hochberg 1995). Further heads "
    "of a linked relation are tested alike, with the false discovery rate over heads at 0.05 times the share of "
    "relations that are linked (Benjamini and Bogomolov 2014). "
)


@reads("relations")
def report(result: xr.Dataset) -> schema.Report:
    """The best head of every relation, and all heads that are above every control."""
    if result.attrs.get("reads") == "sounds":
        return speech_report(result)
    unseen = result.relation.values[(result.queries == 0).values].tolist()
    result = result.isel(relation=(result.queries > 0).values)
    rows = [_relation(result.isel(relation=number)) for number in range(result.sizes["relation"])]
    rows.sort(key=_further)
    heads = [row for number in range(result.sizes["relation"]) for row in _heads(result.isel(relation=number))]
    linked = [row for row in rows if row["shown"]]
    tested = any(row["shown"] is not None for row in rows)
    heads.sort(key=_further if tested else _by_score)
    has_contacts = "precision" in result
    certainty = (
        f"95% intervals over {result.attrs['intervals_over']}; head chosen on one half of them, tested on the other, "
        "corrected for all relations"
        if tested
        else f"{_units(result)}, not tested: a relation needs {LEAST} or more documents or texts"
    )
    of_relations = _sentences(rows, linked, heads) if tested else _largest_weight(rows[0], result)
    headline = contact_headline(result) if has_contacts else tree_headline(result) or _headline(linked)
    model = result.attrs["model"]
    tables = [
        schema.Table(
            "relations",
            "Largest weights" if has_contacts else "Relations",
            _RELATIONS if tested else [_IN_TABLES.get(one.name, one) for one in _RELATIONS],
            rows,
            reading=_LARGEST if has_contacts else "The best head of each relation; those that a head links come first.",
            corrected="for all relations",
            least=f"{LEAST} or more documents",
        ),
        *together_tables(result),
        *ablation_tables(result),
        schema.Table(
            "heads",
            "Heads",
            _HEADS if tested else _UNTESTED,
            heads,
            reading=_STARS if tested else "",
            terminal=0 if len(rows) > 1 or has_contacts else _SHOWN,
            corrected="for all heads and relations",
            least=f"{LEAST} or more documents",
        ),
    ]
    return schema.Report(
        title=f"Contacts in {model}" if has_contacts else f"Relations in {model}",
        read=f"{count(result.sizes['relation'], 'relation')} over {describe_corpus(result)}",
        finding=schema.Finding(
            [
                *([] if tested else [_untested(result)]),
                *contact_sentences(result),
                *([] if has_contacts else of_relations),
                *together_sentences(result),
                *ablation_sentences(result),
                *translation_sentences(result),
            ],
            certainty,
            contact_heads(result)
            if has_contacts
            else schema.heads_by(_first_of_each(heads, rows[0]), lambda row: row["relation"]),
            headline if tested else "" if has_contacts else of_relations[0],
        ),
        tables=[*contact_tables(result), *tables, *translation_tables(result)],
        colour="above" if tested or has_contacts else "weight",  # as the finding says
        result=result,
        method="".join(
            [
                _METHOD,
                contact_method(result),
                together_method(result),
                ablation_method(result),
                translation_method(result),
                INTERVALS,
            ]
        ),
        notes=[*_notes(result), *([f"Not seen by any layer: {', '.join(unseen)}."] if unseen else [])],
        care={"A weight shows where a head attends, not what it does.": schema.MATTERS},
    )


def _notes(result: xr.Dataset) -> list[str]:
    """Notes of every reader of texts, and those of this one."""
    own = (str(result.attrs[name]) for name in _OWN_NOTES if name in result.attrs)
    return [*notes_of(result).values(), *own]


def _further(row: schema.Row) -> tuple[bool, bool, float, float]:
    """Linked relations and heads first, then tested ones, furthest above the controls first; then by weight."""
    above = np.inf if row["above"] is None else -row["above"]
    return not row["shown"], row["shown"] is None, above, -(row["weight"] or 0.0)


def _by_score(row: schema.Row) -> tuple[float, float]:
    """Rows with the largest score first; of equal ones those with more weight."""
    return -(row["score"] or 0.0), -(row["weight"] or 0.0)


def _first_of_each(heads: list[schema.Row], first: schema.Row) -> list[schema.Row]:
    """Heads with the relation for which they are furthest above the controls, that of the first row first."""
    of_head: dict[tuple[int, int], schema.Row] = {}
    for row in heads:
        if row["shown"]:
            of_head.setdefault((row["layer"], row["head"]), row)
    return sorted(of_head.values(), key=lambda row: (row["layer"], row["head"]) != (first["layer"], first["head"]))


def _relation(of_relation: xr.Dataset) -> schema.Row:
    """The best head of one relation."""
    layer, head = int(of_relation.best_layer), int(of_relation.best_head)
    best = of_relation.sel(layer=layer, head=head)
    row: schema.Row = {"relation": str(of_relation.relation.item()), "layer": layer, "head": head}
    names = (
        "score",
        "score_low",
        "score_high",
        "held_out",
        "held_out_low",
        "held_out_high",
        "offset_score",
        "exchanged",
    )
    row |= {name: schema.value_of(best[name].item()) for name in (*names, "chance", "weight", "uniform", "above")}
    row["untrained"] = schema.value_of(best.untrained_held_out.item()) if "untrained_held_out" in best else None
    tested = bool(np.isfinite(of_relation.held_out_p))
    return row | {
        "above": schema.value_of(of_relation.held_out_above.item()) if tested else row["above"],
        "p": schema.value_of(of_relation.held_out_p.item()),
        "offset": int(of_relation.best_offset),
        "linked": int(of_relation.shown.sum()) if tested else None,
        "queries": int(of_relation.queries),
        "units": int(of_relation.units),
        "shown": bool(of_relation.linked) if tested else None,
    }


def _heads(of_relation: xr.Dataset) -> list[schema.Row]:
    names = ("score", "score_low", "score_high", "above", "weight", "exchanged", "untrained", "p")
    columns = {name: of_relation[name] for name in names if name in of_relation}
    columns |= {"shown": of_relation.shown, "tested": of_relation.tested}
    rows = schema.rows_of(columns, of_relation.score)
    name = str(of_relation.relation.item())
    return [{"relation": name, **row, "shown": bool(row["shown"]) if row["tested"] else None} for row in rows]


def _largest_weight(row: schema.Row, result: xr.Dataset) -> list[str]:
    """The weight of a head, and its first query, where there are too few texts for a test."""
    relation, head = row["relation"], f"{row['layer']}.{row['head']}"
    of_head = result.sel(relation=relation, layer=row["layer"], head=row["head"])
    exchanged = float(of_head.exchanged_weight)
    weight, uniform = significant(row["weight"], 2), significant(row["uniform"], 2)
    others = significant(exchanged, 2) if np.isfinite(exchanged) else "undefined"
    if row["weight"] <= row["uniform"]:
        even = f"uniform attention ({uniform})"
        return [f"Head {head} is right most often, but its weight along “{relation}” ({weight}) is not above {even}."]
    every = result.weight.sel(relation=relation)
    first = (
        f"In {_units(result)}, head {head} has weight {weight} along “{relation}”; uniform attention {uniform}, the "
        f"same links at other places (exchanged links) {others}."
    )
    if int(result.units.max()) == 1 and row["weight"] >= float(every.max()):
        first = (
            f"In {_units(result)}, head {head} has the highest weight of {int(every.notnull().sum())} heads along "
            f"“{relation}”: {weight}; uniform attention {uniform}, the same link at other places of the text "
            f"(exchanged links) {others}."
        )
    sentences = [first]
    if "first_rank" in result:
        first = of_head.isel(window=np.flatnonzero(np.isfinite(of_head.first_rank))[:1])
        for rank, largest in zip(first.first_rank.values, first.first_largest.values, strict=True):
            sentences.append(
                f"In the first text, the target of “{relation}” has rank {int(rank)} in this head; {str(largest)!r} "
                "gets the largest weight."
            )
    return sentences


def _units(result: xr.Dataset) -> str:
    """How many texts or proteins there are."""
    units = int(result.units.max())
    if "precision" in result:
        return "one protein" if units == 1 else f"{units} proteins"
    return "one text" if units == 1 else f"{units} texts"


def _untested(result: xr.Dataset) -> str:
    """That there are too few texts for a test."""
    units = int(result.units.max())
    if "precision" in result:
        return "One protein: nothing can be tested." if units == 1 else f"{units} proteins: nothing can be tested."
    return "One text: nothing can be tested." if units == 1 else f"{units} texts: nothing can be tested."


def _sentences(rows: list[schema.Row], linked: list[schema.Row], every: list[schema.Row]) -> list[str]:
    """How many heads link how many relations, and which is furthest above the controls."""
    if not linked:
        return [f"No head is significantly, and by {SIZE:g} or more, above every control for any relation."]
    heads = {(row["layer"], row["head"]) for row in [*linked, *every] if row["shown"]}
    of = {row["relation"] for row in linked}
    several, relations = count(len(heads), "head"), count(len(rows), "relation")
    number = (
        f"{several} link {len(of)} of {relations}" if len(heads) > 1 else f"{several} links {len(of)} of {relations}"
    )
    first = linked[0]
    return [
        f"{number}, significantly and by {SIZE:g} or more above every control.",
        f"Furthest above is {_first(first)}; held out, {percent(first['held_out'])}.",
    ]


def _first(row: schema.Row) -> str:
    return f"head {row['layer']}.{row['head']} for {row['relation']}, right for {_share(row)} of its queries"


def _share(row: schema.Row) -> str:
    return "all" if row["score"] == 1 else percent(row["score"])


def _headline(linked: list[schema.Row]) -> str:
    if not linked:
        return ""
    row = linked[0]
    head, control = f"{row['layer']}.{row['head']}", percent(row["held_out"] - row["above"])
    return f"Head {head} links {row['relation']}: right for {_share(row)} of its queries; the best control {control}"


_OWN_NOTES = ("proteins", "cut", "untrained", "together", "contacts", "ablation")
_LARGEST = "For how many residues the largest weight of a head is on one that touches it."
_STARS = (
    "Heads with a star come first: both halves of the documents choose them, or they pass the test alone. A larger "
    "difference without a star varies more between documents."
)
_SHOWN = 20  # heads of a single relation on a terminal
_SCORE = schema.Quantity(
    "score",
    unit="share",
    meaning="share of queries whose largest weight on another word is right",
    low="score_low",
    high="score_high",
)
_ABOVE = schema.Quantity("above", unit="above", meaning="held-out score less the largest control", significant="shown")
_UNTRAINED = schema.Quantity(
    "untrained", unit="share", meaning="score with fresh weights, of the best head of the other half"
)
_WEIGHT = schema.Quantity("weight", unit="share", meaning="mean weight on the linked word")
_UNIFORM = schema.Quantity("uniform", unit="share", meaning="the same under uniform attention")
_RELATIONS = (
    schema.Quantity("relation", meaning="name of the relation; reversed: from a head word to its dependents"),
    *schema.HEAD,
    _SCORE,
    schema.Quantity(
        "held_out",
        "held out",
        "share",
        "score of the head that is best in the other half of the documents",
        low="held_out_low",
        high="held_out_high",
    ),
    schema.Quantity("offset_score", "offset", "share", "control: a fixed offset, chosen on the other half"),
    schema.Quantity("offset", "best offset", "tokens", "the best fixed offset over all documents", detail="page"),
    schema.Quantity(
        "exchanged", unit="share", meaning="control: links of other texts of the same length, or moved in a lone one"
    ),
    schema.Quantity("chance", unit="share", meaning="control: a random visible word", detail="page"),
    _UNTRAINED,
    _ABOVE,
    schema.Quantity("linked", "heads", "count", "heads that are above every control", detail="page"),
    replace(_WEIGHT, detail="page"),
    replace(_UNIFORM, detail="page"),
    schema.Quantity("queries", unit="count", meaning="queries with a link of this relation", detail="page"),
    schema.Quantity("units", "documents", "count", "documents with such queries", detail="page"),
)
_IN_TABLES = {one.name: one for one in (_WEIGHT, _UNIFORM)}  # of few texts, where shares of queries say little
_OF_HEAD = (
    schema.Quantity(
        "exchanged", unit="share", meaning="score for links of other texts of the same length", detail="data"
    ),
    schema.Quantity("untrained", unit="share", meaning="score of the same head with fresh weights", detail="data"),
    schema.Quantity("p", unit="p", meaning="largest p-value of the tests against the controls", detail="data"),
)
_ABOVE_ALL = replace(_ABOVE, meaning="score less the largest control")
_HEADS = (*schema.HEAD, schema.Quantity("relation"), _SCORE, _ABOVE_ALL, _WEIGHT, *_OF_HEAD)
_UNTESTED = (
    *schema.HEAD,
    schema.Quantity("relation"),
    _WEIGHT,
    _SCORE,
    replace(_ABOVE_ALL, significant=""),
    *(replace(one, detail="table") for one in _OF_HEAD),
)
