"""The heads on a page: the colours of the map and the numbers of each head, from the tables of a report."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from attnscope.measure.quantities import STATISTICS
from attnscope.report.language import language, translate
from attnscope.report.schema import NO_NUMBERS, UNITS, Detail, Quantity, Report, Row, Table, Unit, shown_label, text_of
from attnscope.results.figures.style import SIGNS, cluster_colours, with_minus
from attnscope.store.files import MANIFEST, PAGE
from attnscope.store.folder import OwnedFolder, read_manifest
from attnscope.support.errors import AttnscopeError

#: The tab that a command fills on pages of other commands: its name and title.
TABS = {"scan": ("text", "Text"), "explain": ("why", "Why"), "intervene": ("effect", "Effect")}
_OWN = {
    "patch": ("effect", "Effect"),
    "diff": ("change", "Change"),
    "roles": ("roles", "Roles"),
    "card": ("card", "Card"),
}
_MOST_LABELS = 24
_UNITS = {"nats": "nats", "logits": "logits", "tokens": "tokens", "shift": "tokens", "percent": "%", "deviations": "SD"}
DATA = '<script type="application/json" id="data">'


@dataclass(frozen=True)
class Tab:
    """One view of the chosen head."""

    name: str
    title: str
    panel: str = ""  # the part of the template that it shows
    is_numbers: bool = False  # whether it has the table of the head's numbers
    command: str = ""  # of another run, that measures it


@dataclass(frozen=True)
class _Cells:
    """The cells of the map of heads, counted layer by layer."""

    index: Mapping[tuple[int, int], int]  # the cell of each head, by layer and head
    count: int  # of all cells: layers may have different numbers of heads

    def of(self, row: Row) -> int:
        """The cell of a row's head."""
        return self.index[_head(row)]


def of_report(report: Report, kinds: Mapping[tuple[int, int], str] | None = None) -> dict[str, Any] | None:
    """Layers, heads, and every quantity of each head; None if no table is about heads.

    `kinds` has the kind of attention of each head by layer and head, where the tables need not have all heads.
    """
    tables = [table for table in report.tables if _by_head(table)]
    most = max((len({*map(_head, table.rows)}) for table in tables), default=0)
    tables = [table for table in tables if len({*map(_head, table.rows)}) > 1 or most == 1]  # not of one chosen head
    named = kinds is not None
    kinds = kinds or {_head(row): row.get("attention") or "" for table in tables for row in table.rows}
    if not kinds:
        return None
    layers, heads = (sorted({pair[axis] for pair in kinds}) for axis in (0, 1))
    index = {pair: layers.index(pair[0]) * len(heads) + heads.index(pair[1]) for pair in kinds}
    cells = _Cells(index, len(layers) * len(heads))
    quantities = [one for table in tables for one in _quantities(table, cells)]
    if not quantities and not named:
        return None
    rows = tables[0].rows if tables else []
    groups = {name: members for name, members in report.finding.heads.items() if name}
    labels = _groups(groups, cells, quantities) if groups else _labels(rows, cells)
    leading = [*report.finding.leading, *map(_head, rows[:1]), *index]
    effects = [one["key"] for one in quantities if one["signed"]]
    drawn = [one["key"] for one in quantities if one["values"]]
    first = next((key for key in drawn if key.endswith(f".{report.colour}")), next(iter(effects), None))
    group = next((one["group"] for one in quantities if one["key"] == first), "")
    by_sign = (
        bool(first)
        and first in effects
        and first.endswith(f".{report.colour}")
        and _are_signs(groups, first, quantities, cells)
    )
    quantities.sort(key=lambda one: one["group"] != group)  # what the finding is about comes first
    return {
        "layers": layers,
        "layerLabels": [*map(str, layers)],
        "layerNames": [str(layer) for layer in layers],
        "layerKinds": [next(kind for pair, kind in kinds.items() if pair[0] == layer) for layer in layers],
        "heads": heads,
        "there": [at in set(index.values()) for at in range(cells.count)],
        "texts": 1,
        "noun": "window",
        "quantities": quantities,
        "labels": labels,
        "profile": _profiles(rows, cells),
        "opens": {
            "labels": labels is not None and not by_sign and (bool(groups) or first is None),
            "quantity": first or next((one["key"] for one in quantities if one["values"]), None),
            "said": first if first and first.split(".")[1] == "" else None,
            "signs": _names_of_signs(groups, first, quantities, cells) if first and by_sign else None,
            "head": next(index[pair] for pair in leading if pair in index),
        },
    }


def numbers_tab(command: str) -> Tab:
    name, title = _OWN.get(command) or TABS.get(command) or ("numbers", "Numbers")
    return Tab(name, title, is_numbers=True)


def profile_tab(heads: Mapping[str, Any]) -> list[Tab]:
    """The tab with the mean weights by offset, where a report has them."""
    return [Tab("profile", "Profile", "profile_panel")] if heads["profile"] else []


def _by_head(table: Table) -> bool:
    named = [one.name for one in table.quantities[:2]] == ["layer", "head"]
    return named and bool(table.rows) and all(row["head"] is not None for row in table.rows)


def _split(table: Table) -> str:
    """The column that tells the rows of one head apart; empty if it has one row."""
    size = len(table.rows)
    if len({*map(_head, table.rows)}) == size:
        return ""
    words = (one.name for one in table.quantities if one.unit in NO_NUMBERS and one.name not in {"head", "attention"})
    return next((name for name in words if len({(*_head(row), row.get(name)) for row in table.rows}) == size), "")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _head(row: Row) -> tuple[int, int]:
    return row["layer"], row["head"]


def _quantities(table: Table, cells: _Cells) -> list[dict[str, Any]]:
    """A record for each quantity of a table and, where a head has several rows, for each of these."""
    split = _split(table)
    groups: dict[str, list[Row]] = {}
    for row in table.rows:
        groups.setdefault(str(row.get(split, "")), []).append(row)
    if not split and len(table.rows) > cells.count:
        return []
    by_name = {one.name: one for one in table.quantities}
    left_out = {"layer", "head", "attention", split}
    entries: list[dict[str, Any]] = []
    tested = {one.group: one.name for one in table.quantities if one.title == "significant"}
    details: tuple[Detail, ...] = ("table", "page") if table.page else ("table", "page", "data")
    for name, rows in groups.items():
        for one in table.shown(*details):
            words = not any(_is_number(row.get(one.name)) for row in rows)
            if one.name in left_out or one.unit == "profile" or (split and words):
                continue
            entry = _entry(one, rows, cells, by_name.get(one.like), one.significant or tested.get(one.group, ""))
            if not any(entry["text"]):
                continue
            entry |= {"key": f"{table.name}.{name}.{one.name}", "name": one.title}
            if split:
                group = STATISTICS[name].words.long_name if name in STATISTICS else name.replace("_", " ")
                entry |= {"name": f"{translate(group)}: {translate(one.title)}", "group": group}
                units = STATISTICS[name].words.units if one.unit == "change" and name in STATISTICS else ""
                entry["units"] = entry["units"] or units.replace("share", "")
            entries.append(entry)
    return entries


def _entry(one: Quantity, rows: Sequence[Row], cells: _Cells, like: Quantity | None, test: str) -> dict[str, Any]:
    """The record of a quantity: its words, and its value, interval and significance (`test`) in every cell."""
    number = one.unit != "head" and any(_is_number(row.get(one.name)) for row in rows)
    entry: dict[str, Any] = {
        "help": with_minus(one.meaning),
        "group": one.group,
        "units": _UNITS.get(one.unit, ""),
        "signed": number and bool(one.significant),
        "largest": 1 if one.unit == "share" else None,
        "full": UNITS.get(one.unit, Unit()).full * (100 if one.unit == "percent" else 1),
        "values": [None] * cells.count if number else None,
        "text": [""] * cells.count,
        "interval": [""] * cells.count,
        "shown": [None] * cells.count,
    }
    for row in rows:
        at = cells.of(row)
        text, interval = text_of(one, row, like)
        entry["text"][at] = with_minus(text) if number or one.unit == "token" else translate(text)
        entry["interval"][at] = translate(with_minus(interval))
        entry["shown"][at] = row.get(test) if test else None
        if number and row.get(one.name) is not None:
            entry["values"][at] = float(f"{row[one.name] * (100 if one.unit == 'percent' else 1):.5g}")
    if not any(entry["interval"]):
        del entry["interval"]
    return entry


def _are_signs(
    groups: Mapping[str, Sequence[tuple[int, int]]], key: str, quantities: Sequence[Mapping[str, Any]], cells: _Cells
) -> bool:
    """Whether the groups say no more of their heads than the sign of a quantity, or are empty: the map draws it."""
    (values,) = (one["values"] for one in quantities if one["key"] == key)
    signs = [{(values[cells.index[pair]] or 0) > 0 for pair in members} for members in groups.values() if members]
    return all(len(sign) == 1 for sign in signs) and len(set[bool]().union(*signs)) == len(signs)


def _names_of_signs(
    groups: Mapping[str, Sequence[tuple[int, int]]], key: str, quantities: Sequence[Mapping[str, Any]], cells: _Cells
) -> list[str | None]:
    """The name of the heads above 0, and of those below."""
    (values,) = (one["values"] for one in quantities if one["key"] == key)
    names: list[str | None] = [None, None]
    for name, members in groups.items():
        if members:
            names[(values[cells.index[members[0]]] or 0) <= 0] = with_minus(translate(name))
    return names


def _groups(
    groups: Mapping[str, Sequence[tuple[int, int]]], cells: _Cells, quantities: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The group of each head in the finding, as the map shows labels; a head of several groups is in the first."""
    group_of: dict[int, int] = {}
    for number, members in enumerate(groups.values()):
        for pair in members:
            group_of.setdefault(cells.index[pair], number)
    tested = {at for one in quantities for at, value in enumerate(one["shown"]) if value is not None}
    for cell in tested or cells.index.values():  # an untested head is not called insignificant
        group_of.setdefault(cell, len(groups))
    rest = "not significant" if tested else "others"
    return {
        "names": [*(with_minus(translate(name)) for name in groups), translate(rest)],
        "colours": cluster_colours([*groups, "mixed"], SIGNS),
        "shares": _shares(group_of, len(groups) + 1, cells),
        "finding": True,
    }


def _labels(rows: Sequence[Row], cells: _Cells) -> dict[str, Any] | None:
    """The label of each head, as the map shows labels."""
    labels = {cells.of(row): row["label"] for row in rows if row.get("label")}
    names = list(dict.fromkeys(labels.values()))
    if not names or len(names) > _MOST_LABELS or len(labels) > cells.count:
        return None
    shares = _shares({cell: names.index(label) for cell, label in labels.items()}, len(names), cells)
    return {
        "names": [with_minus(shown_label(name)) for name in names],
        "colours": cluster_colours(names),
        "shares": shares,
    }


def _shares(label_of: Mapping[int, int], labels: int, cells: _Cells) -> list[list[int | None]]:
    """Shares of labels in every cell: 1 for that of its head, None in a cell without one."""
    return [
        [int(label == label_of[cell]) if cell in label_of else None for label in range(labels)]
        for cell in range(cells.count)
    ]


def _profiles(rows: Sequence[Row], cells: _Cells) -> dict[str, Any] | None:
    """Mean weight by offset of each head, where the table has it."""
    rows = [row for row in rows if row.get("profile")]
    if not rows:
        return None
    offsets = [int(offset) for offset, _ in rows[0]["profile"]]
    mean: list[list[float | None]] = [[None] * len(offsets) for _ in range(cells.count)]
    for row in rows:
        mean[cells.of(row)] = [float(f"{value:.4g}") for _, value in row["profile"]]
    return {"offsets": offsets, "mean": mean}


def tabs_of_others(
    report: Report, heads: Mapping[str, Any], present: Collection[str], run: Path | None
) -> tuple[list[Tab], dict[str, Any]]:
    """Tabs that another command fills, and their entries from runs in the same folder."""
    if not report.signature.get("corpus"):
        return [], {}
    others = {other["kind"]: (page, other) for page, other in siblings(run, report.signature)} if run else {}
    wanted = {one: tab for one, tab in TABS.items() if tab[0] not in present and one != report.command}
    entries = {wanted[one][0]: beside(*others[one], heads) for one in wanted if one in others}
    return [Tab(*tab, is_numbers=True, command=one) for one, tab in wanted.items()], entries


def siblings(run: Path, signature: Mapping[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The other pages in the same folder, of the same model and texts, and their data, as far as checksums hold."""
    for path in sorted(run.parent.glob(f"*/{MANIFEST}")):
        # not a run, or damaged; another program may have written the manifest
        with suppress(AttnscopeError, OSError, ValueError, KeyError, TypeError, RecursionError):
            manifest = read_manifest(path)
            if manifest is None or manifest.command not in TABS or PAGE not in manifest.files:
                continue
            parts = manifest.state["signature"]
            if any(parts.get(name) != signature.get(name) for name in ("model", "corpus")):
                continue
            page = OwnedFolder(path.parent, manifest.command).look().read(PAGE).decode()
            other = json.loads(page.partition(DATA)[2].partition("</script>")[0])
            if isinstance(other["finding"], str) and {"layers", "heads", "quantities"} <= other.keys():
                yield path.parent / PAGE, other | {"kind": manifest.command}


def beside(page: Path, other: Mapping[str, Any], heads: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of another page in a tab: address and finding; its numbers if its heads and language are the same."""
    same = all(other[axis] == heads[axis] for axis in ("layers", "heads")) and other.get("language") == language()
    return {
        "page": f"../{quote(page.parent.name)}/{page.name}",
        "finding": translate(with_minus(other["finding"])),
        "quantities": other["quantities"] if same else [],
    }
