"""Figures of relations: heads by relation, their scores, sentences with arcs, contacts and alignments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import xarray as xr
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from attnscope.report.schema import Report
from attnscope.results.figures import style
from attnscope.results.figures.panels import HeadMap, head_maps
from attnscope.results.scan_report import sample_of
from attnscope_relations.figures.arcs import Arc, Sentence, sentence_arcs, side_by_side
from attnscope_relations.figures.contacts import contact_map
from attnscope_relations.figures.timeline import timeline
from attnscope_relations.shown import ShownLink, ShownText, in_order, texts_of
from attnscope_relations.translations import SURE

_LEADING = 8  # relations that are drawn
_SENTENCES = 3  # of a relation
_HEADS = 6  # heads of one sentence
_LINKS, _ENDS = 12, 18  # of a sentence, and their words: more arcs are not told apart
_NONE = "0.9"

Head = tuple[int, int]


def captions(report: Report) -> dict[str, tuple[str, str]]:
    """Title and caption of each figure, by name."""
    texts = {
        "map": (
            "Heads by relation",
            (
                "Each head has the colour and name of the relation for which it is furthest above the controls. Grey: "
                "above every control for none."
            ),
        ),
        "scores": (
            "Scores of all heads",
            "One panel for each relation, one cell for each head, all on one scale. Dots: above every control.",
        ),
    }
    for name, text in _mapped(report.result):
        kind = _SOUND if text.said else _ALIGNMENT if text.contacts is None else _CONTACTS
        texts[name] = (text.name, kind)
    return texts


_CONTACTS = (
    "Above the diagonal the contacts of the data, below it the attention of the head, and the pairs that it ranks "
    "highest: filled if they are contacts, else a cross."
)
_SOUND = (
    "Boxes: the times of each word. Rows: when heads start it, filled if within 100 ms, else a cross and a line to the "
    "true start."
)
_ALIGNMENT = (
    "Rows are target words, columns source words; the colour is the weight. Dots: what the head chooses. Squares: "
    "links of the data."
)


def figures(report: Report) -> Iterator[tuple[str, style.Figure]]:
    if report.finding.leading:
        yield "map", grid(report)
    yield "scores", scores(report.result)
    for name, text in _mapped(report.result):
        yield name, _map_of(report.result, text)
    names = [str(report.result.relation.values[relation]) for relation in in_order(report.result)[:_LEADING]]
    for name, file in zip(names, file_names(names), strict=True):
        figure = sentences(report.result, name)
        if figure is not None:
            yield f"sentences-{file}", figure


def file_names(relations: Sequence[str]) -> list[str]:
    """Names of files for relations: letters, digits and hyphens; equal ones are numbered."""
    names: list[str] = []
    for relation in relations:
        name = re.sub(r"[^\w]+", "-", relation).strip("-") or "relation"
        count = sum(other == name or re.fullmatch(rf"{name}-\d+", other) is not None for other in names)
        names.append(f"{name}-{count + 1}" if count else name)
    return names


@style.figure_style()
def grid(report: Report) -> style.Figure:
    """Draw the map of heads, each in the colour of the relation that it links best."""
    result, groups = report.result, {name: heads for name, heads in report.finding.heads.items() if name and heads}
    layers, count = result.layer.values.tolist(), result.sizes["head"]
    colours = style.cluster_colours([*groups], style.SIGNS)
    cells = np.tile(to_rgb(_NONE), (len(layers), count, 1))
    cell = float(np.clip(6.0 / count, 0.12, 0.42))
    keys = max(1, int(6.75 / 1.5))
    size = (cell * count + 0.8, cell * len(layers) + 0.7 + 0.17 * -(-(len(groups) + 1) // keys))
    figure = style.Figure(figsize=size, layout="constrained")
    figure.set_figwidth(style.PAGE if cell * count > style.COLUMN else style.COLUMN)
    axes = figure.add_subplot()
    handles = [Patch(color=_NONE, label="none")]
    for number, (name, heads) in enumerate(groups.items()):
        handles.insert(-1, Patch(color=colours[number], label=f"{style.drawable(name, longest=28)} ({len(heads)})"))
        for layer, head in heads:
            row = layers.index(layer)
            cells[row, head] = to_rgb(colours[number])
            if cell >= 0.36:  # noqa: PLR2004 inches: narrower ones have no room for a name
                ink = "black" if np.dot(cells[row, head], (0.299, 0.587, 0.114)) > 0.5 else "white"  # noqa: PLR2004
                short = "\n".join(style.drawable(part, longest=8) for part in name.replace(" (", "\n(", 1).split("\n"))
                axes.text(head, row, short, ha="center", va="center", fontsize=6, color=ink, parse_math=False)
    axes.imshow(cells, aspect="auto", interpolation="nearest")
    style.name_heads(axes, [str(layer) for layer in layers], [*range(count)])
    axes.set_xticks(np.arange(0.5, count - 1), minor=True)
    axes.set_yticks(np.arange(0.5, len(layers) - 1), minor=True)
    axes.grid(which="minor", color="white", linewidth=1.0)
    axes.tick_params(which="minor", length=0)
    columns = style.legend_columns(figure, [str(handle.get_label()) for handle in handles])
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)
    return figure


def scores(result: xr.Dataset) -> style.Figure:
    """Draw the score of every head for the leading relations."""
    maps = [
        HeadMap(
            style.drawable(str(result.relation.values[at]), longest=30),
            result.score.isel(relation=at).values,
            result.shown.isel(relation=at).values,
            "Blues",
            label=str(result.score.attrs.get("label", "Share of queries")),
        )
        for at in in_order(result)[:_LEADING]
    ]
    return head_maps(maps, result.layer.values, mark=style.MARK)


def sentences(result: xr.Dataset, relation: str, head: Head | None = None) -> style.Figure | None:
    """Draw some sentences with a relation: its links above the words, below them what a head chooses.

    Parameters
    ----------
    result
        Result of `attnscope_relations.relations`.
    relation
        Name of a relation in it.
    head
        Layer and head, counted from 0; by default the best one. Where nothing was tested, as in one text, by default
        all heads whose largest weight is right, with their weights.

    Returns
    -------
    Figure or None
        None if no text with this relation is stored.
    """
    sample = sample_of(result)
    shown = [text for text in texts_of(sample) if not text.target]
    linked = ([link for link in text.links if link.relation == relation] for text in shown)
    texts = [(text, links) for text, links in zip(shown, linked, strict=True) if links]
    texts.sort(key=lambda one: len(one[1]) > _LINKS)
    if sample is None or not texts:
        return None
    of_relation = result.sel(relation=relation)
    uniform = float(of_relation.uniform.mean())
    several = head is None and not bool(of_relation.tested.any())
    layer, number = head or (int(of_relation.best_layer), int(of_relation.best_head))
    drawn: list[Sentence] = []
    for text, every in texts[:_SENTENCES]:
        links = _first(every)
        above = [Arc(link.query, keys) for link in links for keys in side_by_side(link.keys)]
        heads = passing(sample, links[0].number, links[0].keys)[:_HEADS] if several and len(links) == 1 else []
        below: list[Arc] = []
        for link in links:
            for of_layer, of_head in heads or [(layer, number)]:
                at = sample.sel(layer=of_layer, head=of_head).isel(link=link.number)
                choice, weight = int(at.choice), float(at.weight)
                if choice < 0:
                    continue
                right = choice in link.keys
                faint = right and weight <= 2 * uniform
                tick = "" if faint else f"{_MARKS[right]} "
                mark = f"head {of_layer}.{of_head}: {weight:.2f}" if heads else f"{tick}{weight:.2f}"
                below.append(Arc(link.query, [choice], right, weight, mark, faint))
        drawn.append(Sentence(text.words, above, below))
    several = any(arc.label.startswith("head") for sentence in drawn for arc in sentence.below)
    whose = "Heads whose largest weight is on the linked word" if several else f"Head {layer}.{number}"
    return sentence_arcs(f"{whose}: {relation}", drawn, several=several)


def _first(links: list[ShownLink]) -> list[ShownLink]:
    """The first links, as many as have room."""
    ends: set[int] = set()
    kept: list[ShownLink] = []
    for link in links[:_LINKS]:
        ends.update(link.query, link.keys)
        if kept and len(ends) > _ENDS:
            break
        kept.append(link)
    return kept


_MARKS = {True: "✓", False: "✗"}


def passing(sample: xr.Dataset, link: int, keys: tuple[int, ...]) -> list[Head]:
    """Heads that choose what is right for a link, those with the largest weight first."""
    right = np.isin(sample.choice.values[link], keys)
    weight = np.where(right, sample.weight.values[link], -1.0)
    order = np.argsort(-weight, axis=None, kind="stable")[: int(right.sum())]
    pairs = (np.unravel_index(at, right.shape) for at in order)
    return [(int(sample.layer[layer]), int(sample["head"][head])) for layer, head in pairs]


def _mapped(result: xr.Dataset) -> Iterator[tuple[str, ShownText]]:
    """Texts that are drawn as whole maps, after the names of their figures."""
    for number, text in enumerate(texts_of(sample_of(result)), start=1):
        if text.said or text.map is not None:
            kind = "sound" if text.said else "alignment" if text.contacts is None else "contacts"
            yield f"{kind}-{number}", text


def _map_of(result: xr.Dataset, text: ShownText) -> style.Figure:
    """The map of the best head on a protein or a translation, or the timeline of a sound."""
    if text.map is None:
        return timeline(text.said, text.times)
    title = f"Head {sample_of(result).attrs['best']}: {text.name}"  # pyright: ignore[reportOptionalMemberAccess]
    if text.contacts is not None:
        return contact_map(title, text.contacts, text.map)
    from attnscope_lineage.figures.alignment import alignment_maps

    links: dict[str, set[tuple[int, int]]] = {}
    for link in text.links:
        links.setdefault(link.relation, set()).update((key, query) for query in link.query for key in link.keys)
    every = set().union(*links.values())
    return alignment_maps(
        {title: text.map},
        text.words,
        text.target,
        links={title: _chosen(result, text)},
        sure=links.get(SURE, every),
        possible=every,
    )


def _chosen(result: xr.Dataset, text: ShownText) -> set[tuple[int, int]]:
    """The links of a translation that the best head chooses, by source and target word."""
    sample: xr.Dataset = sample_of(result)  # pyright: ignore[reportAssignmentType]
    layer, head = map(int, sample.attrs["best"].split("."))
    choice = sample.choice.sel(layer=layer, head=head).values
    return {(int(choice[link.number]), query) for link in text.links for query in link.query}
