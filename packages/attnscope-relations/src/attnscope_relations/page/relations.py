"""The page of relations: the map of heads, and the chosen head's arcs over some texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnscope.report.render import page_table
from attnscope.report.schema import Report, Row
from attnscope.results.page import heads, parts
from attnscope.results.page.heads import Tab
from attnscope.results.scan_report import sample_of
from attnscope_relations.figures import relations as drawing
from attnscope_relations.shown import in_order, texts_of
from attnscope_relations.speech_summary import CHOSEN

_HERE = Path(__file__).parent


def write(report: Report, path: Path | str, run: Path | None = None) -> Path:
    """Write relations as one HTML page, open on the best head and the texts that show its relation."""
    data = heads.of_report(report)
    shown = _shown(report)
    captions = drawing.captions(report)
    drawn = {name: figure for name, figure in drawing.figures(report) if name in captions and name != "map"}
    tabs = [Tab("links", "Links", "links_panel")] if shown else []
    sets = next((table.rows for table in report.tables if table.name == "sets"), [])
    if data is not None:
        data |= {"shown": shown}
        if sets:
            data["sets"] = [_bar(row) for row in sets]
            data["labels"], data["opens"]["labels"] = None, False  # the set for export is not that of the finding
            for one in data["quantities"]:
                one["least"] = one["key"].endswith(".error")
            tabs.append(Tab("sets", "Sets of heads", "sets_panel"))
        tabs.append(heads.numbers_tab(report.command))
    return parts.write_page(
        path,
        str(_HERE / "relations"),
        report,
        heads=data,
        tabs=tabs,
        scripts=[str(_HERE / f"{tab.name}.js") for tab in tabs if tab.panel],
        run=run,
        sections=_sections(drawn, captions),
        sets_have_intervals=any(row["error_low"] is not None for row in sets),
        tables=[page_table(table) for table in report.tables if table.page and table.rows],
    )


def _bar(row: Row) -> dict[str, Any]:
    """The error of a set of heads, as the page draws it."""
    ends = None if row["error_low"] is None else [row["error_low"], row["error_high"]]
    return {"name": row["set"], "value": row["error"], "ends": ends, "strong": row["set"] == CHOSEN}


def _sections(drawn: dict[str, Any], captions: dict[str, tuple[str, str]]) -> list[parts.Section]:
    """A section for the scores, and one for all maps of texts, with one of them open."""
    sections = [*parts.sections({name: drawn[name] for name in drawn if name == "scores"}, captions)]
    for kind, title in (("contacts", "Contact maps"), ("alignment", "Alignments"), ("sound", "Times of words")):
        names = [name for name in drawn if name.startswith(f"{kind}-")]
        pictures = [parts.picture(drawn[name], name, captions[name][0]) for name in names]
        if pictures:
            sections.insert(0, parts.Section(f"{kind}-maps", title, captions[names[0]][1], pictures, folded=True))
    return sections


def _shown(report: Report) -> dict[str, Any] | None:
    """The stored texts, and for each link the word that every head chooses, in the order of the map's cells."""
    sample = sample_of(report.result)
    texts = [text for text in texts_of(sample) if text.links]
    if sample is None or not texts:
        return None
    choice, weight = (sample[name].values.reshape(sample.sizes["link"], -1) for name in ("choice", "weight"))
    names = [str(report.result.relation.values[at]) for at in in_order(report.result)]
    uniform = report.result.uniform.mean("layer")
    present = {link.relation for text in texts for link in text.links}
    return {
        "relations": [name for name in names if name in present],
        "tested": bool(report.result.tested.any()),
        "uniform": {name: round(float(uniform.sel(relation=name)), 4) for name in names},
        "texts": [
            {
                "name": text.name,
                "words": text.words,
                "target": text.target,
                "links": [[link.relation, [*link.query], [*link.keys], link.number] for link in text.links],
            }
            for text in texts
        ],
        "choice": choice.tolist(),
        "weight": (100 * weight).round().clip(0, 100).astype(int).tolist(),
    }
