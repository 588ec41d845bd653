"""The findings of a command as data: quantities, rows, tables and sentences. Every output is made from these.

Each command builds one `Report`. `attnscope.report.render` turns it into terminal output, ``--json``, ``--csv`` and a
page, independently of the command.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from attnscope.support.numbers import change_places, places, plain, significant

if TYPE_CHECKING:
    import xarray as xr

Row = dict[str, Any]
#: Where a quantity is shown: in tables and on the page, on the page only, in CSV and JSON only, or drawn on the page.
Detail = Literal["table", "page", "data", "drawn"]


class Unit(NamedTuple):
    """How a number is written."""

    digits: int = 2  # after the point
    sign: str = ""
    more: Literal["", "significant", "always"] = ""  # when a small number gets more digits
    percent: bool = False
    full: float = 0.0  # end of a colour scale, at least: a smaller number is never in full colour


#: By name; other units have three digits after the point.
UNITS = {
    "share": Unit(2),
    "percent": Unit(1, percent=True, full=0.1),
    "nats": Unit(3, "+", "significant", full=0.01),  # a change
    "logits": Unit(3, "+", "significant", full=0.1),
    "tokens": Unit(0, "+", full=1.0),  # an offset
    "shift": Unit(2, "+", full=1.0),  # an offset between tokens
    "score": Unit(1),  # BLEU, chrF
    "gain": Unit(1, "+"),
    "rate": Unit(1),
    "p": Unit(3),
    "above": Unit(2, "+", full=0.1),  # a difference of shares
    "change": Unit(3, "+", "always", full=0.1),  # in units that differ from row to row
    "deviations": Unit(1, "+", "always", full=1.0),
}
#: Units that are not numbers: words, a name as it is typed (in every language), a running text, a token, a head, values
#: by offset.
NO_NUMBERS = {"words", "name", "label", "text", "token", "head", "profile"}
#: How labels of heads are shown, where it is not by their names in the data.
_SHOWN_LABELS = {"mixed": "no fixed pattern"}
_WRITTEN_OUT = 5  # digits after the point; with more, a power of ten


class Marked(str):
    """A text with marked tokens; a page shows `pieces`, each a text with the name of its mark or none."""

    __slots__ = ("pieces",)
    pieces: Sequence[tuple[str, str]]

    @classmethod
    def of(cls, pieces: Sequence[Sequence[str]]) -> Marked:
        """As plain text, «query» and [key]."""
        ends = {"query": "«»", "key": "[]", "": ("", "")}
        marked = cls("".join(f"{ends[mark][0]}{text}{ends[mark][1]}" for text, mark in pieces))
        marked.pieces = [(str(text), str(mark)) for text, mark in pieces]
        return marked


@dataclass(frozen=True)
class Effect:
    """A mean and its 95% interval, NaN if there is none."""

    mean: float
    low: float = math.nan
    high: float = math.nan
    shown: bool | None = None  # whether it is significant, corrected; None if not tested


@dataclass(frozen=True)
class Quantity:
    """A number or word in a row: its meaning and its format."""

    name: str  # in JSON and CSV
    heading: str = ""  # of its column; empty: the name
    unit: str = "words"
    meaning: str = ""  # one sentence
    detail: Detail = "table"
    group: str = ""  # heading over columns that belong together, on the page
    low: str = ""  # names of the ends of its 95% interval
    high: str = ""
    significant: str = ""  # name of its significance, corrected; None in rows without a test
    interval: bool = False  # whether a terminal shows the interval
    like: str = ""  # quantity that sets its digits; of yes or no, how often it is yes by chance
    unsigned: bool = False  # whether positive numbers have no sign

    @property
    def columns(self) -> list[str]:
        """Names in JSON and CSV."""
        return [name for name in (self.name, self.low, self.high, self.significant) if name]

    @property
    def title(self) -> str:
        """Heading of its column."""
        return self.heading or self.name

    def effect(self, row: Row) -> Effect:
        """The value of a row with its interval."""
        mean, low, high = (
            math.nan if row.get(name) is None else float(row[name]) for name in (self.name, self.low, self.high)
        )
        return Effect(mean, low, high, row.get(self.significant))


#: Of rows that are about one head.
SPACE = "␣"  # a displayed space
HEAD = (Quantity("layer", unit="count", detail="data"), Quantity("head", unit="head"))
MATTERS = "attnscope intervene measures whether a head matters."


@dataclass(frozen=True)
class Table:
    """Rows of quantities."""

    name: str  # in JSON, and as the anchor on the page
    title: str
    quantities: Sequence[Quantity]
    rows: Sequence[Row]
    reading: str = ""  # a sentence above it, on the page
    corrected: str = ""  # what significance was corrected for, such as "for all heads"
    least: str = ""  # number of units that an interval needs, such as "6 or more windows"
    terminal: int = 20  # rows that a terminal shows; 0: not shown there
    best: Sequence[Row] = ()  # these rows; by default the first ones
    page: int = 400  # rows that the page shows; 0: not shown there
    level: float = 0.05  # of significance

    @property
    def columns(self) -> list[str]:
        """Names in JSON and CSV."""
        return list(dict.fromkeys(name for one in self.quantities if one.detail != "drawn" for name in one.columns))

    def shown(self, *details: Detail) -> list[Quantity]:
        """Quantities with a value in at least one row."""
        return [
            one
            for one in self.quantities
            if one.detail in details and any(row.get(one.name) is not None for row in self.rows)
        ]

    def tested(self, quantities: Sequence[Quantity]) -> bool | None:
        """Whether the significance of any was tested; None if none of them can be tested."""
        names = [one.significant for one in quantities if one.significant]
        return any(row.get(name) is not None for name in names for row in self.rows) if names else None


@dataclass(frozen=True)
class Finding:
    """The findings in sentences, their certainty, and the heads concerned."""

    sentences: Sequence[str]
    certainty: str
    heads: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict[str, Any])  # by what the finding says
    headline: str = ""  # the finding in at most 20 words, for a page; empty: the first sentence

    @property
    def leading(self) -> list[tuple[int, int]]:
        """The heads concerned, each once."""
        return [*dict.fromkeys(head for group in self.heads.values() for head in group)]


@dataclass(frozen=True)
class Report:
    """Everything that can be shown of a result."""

    title: str  # of the page
    read: str  # the input: heads, texts, tokens
    finding: Finding
    tables: Sequence[Table]  # the first is what --csv prints
    result: Any  # the dataset or tree itself, for figures
    notes: Sequence[str] = ()  # anything unexpected, and parts that were skipped
    care: Mapping[str, str] = field(default_factory=dict[str, str])  # caveats with reasons, most important first
    method: str = ""  # definitions, nulls and tests with their sources, for the methods of a paper
    hint: str = ""  # a line below the finding, on the page
    colour: str = ""  # the quantity that colours the map of heads first; by default the first effect
    heads: Sequence[tuple[int, int]] | None = None  # heads with detailed figures; by default the leading ones
    command: str = ""
    model: str = ""
    drawing: str = ""  # module of its figures; by default that of its verb

    @property
    def rows(self) -> Sequence[Row]:
        """Rows of the first table."""
        return self.tables[0].rows

    @property
    def signature(self) -> dict[str, Any]:
        """Model, texts, settings and versions of the numbers."""
        return json.loads(getattr(self.result, "attrs", {}).get("signature", "{}"))


def rows_of(columns: Mapping[str, xr.DataArray | None], cells: xr.DataArray) -> list[Row]:
    """A row for each cell that is not NaN: its labels, and the values of the columns at these labels."""
    aligned = {
        name: None if values is None else values.reindex_like(cells).broadcast_like(cells).transpose(*cells.dims).values
        for name, values in columns.items()
    }
    labels = {str(dim): cells[dim].values for dim in cells.dims}
    rows: list[Row] = []
    for at in map(tuple, np.argwhere(cells.notnull().values).tolist()):
        row: Row = {name: value_of(values[index]) for (name, values), index in zip(labels.items(), at, strict=True)}
        rows.append(row | {name: None if values is None else value_of(values[at]) for name, values in aligned.items()})
    return rows


def heads_by(rows: Sequence[Row], says: Callable[[Row], str], *kinds: str) -> dict[str, list[tuple[int, int]]]:
    """Heads by the kind that `says` names, in the order of `kinds` and then of rows."""
    heads: dict[str, list[tuple[int, int]]] = {kind: [] for kind in kinds}
    for row in rows:
        kind = says(row) if "head" in row else ""
        if kind:
            heads.setdefault(kind, []).append((row["layer"], row["head"]))
    return heads


def hyphen_minus(text: str) -> str:
    """A text for terminal and JSON, where a minus is a hyphen; pages and figures have the true minus."""
    return text.replace("−", "-")


def value_of(value: Any) -> Any:
    """A Python value; None for a number that is not finite."""
    number = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(number, float) and not math.isfinite(number) else number


def effect_columns(
    data: xr.Dataset, name: str, variable: str = "effect", prefix: str = ""
) -> dict[str, xr.DataArray | None]:
    """Columns of a mean, its interval and its significance, from the arrays of a result."""
    significance = data[f"{prefix}shown"].astype(object).where(data[f"{prefix}tested"])
    parts = {"mean": data[variable], "low": data[f"{variable}_low"], "high": data[f"{variable}_high"]}
    return {f"{name}_{part}": values for part, values in (*parts.items(), ("shown", significance))}


def effect_quantity(name: str, unit: str = "nats", **more: Any) -> Quantity:
    """The quantity of `effect_columns`."""
    ends = replace(with_ends(name, unit=unit, **more), name=f"{name}_mean")
    return replace(ends, significant=f"{name}_shown")


def with_ends(name: str, *about: Any, **more: Any) -> Quantity:
    """A quantity with an interval, whose ends are ``{name}_low`` and ``{name}_high``."""
    return Quantity(name, *about, low=f"{name}_low", high=f"{name}_high", **more)


def text_of(quantity: Quantity, row: Row, like: Quantity | None = None) -> tuple[str, str]:
    """A value and its interval as text; empty if there is none."""
    value = row.get(quantity.name)
    if value is None:
        return "", ""
    if quantity.unit == "head":
        return f"{row['layer']}.{value}", ""
    if quantity.unit == "label":
        return shown_label(value), ""
    if value is True and like is not None and row.get(like.name) is not None:
        chance = f"{significant(100 * row[like.name], 2)}%"
        return f"yes ({chance} by chance)", ""
    if isinstance(value, str | bool):
        return value if isinstance(value, str) else "yes" if value else "no", ""
    if quantity.unit == "significant":
        ends = [significant(row[end], 3) for end in (quantity.low, quantity.high) if row.get(end) is not None]
        return f"{value:,}" if isinstance(value, int) else significant(value, 3), " to ".join(ends)
    if quantity.unit == "p" and value < 0.001:  # noqa: PLR2004 as in sentences
        return "<0.001", ""
    if quantity.unit == "error":
        return f"{value:.1e}", ""
    if quantity.unit in {"count", "threshold"}:
        return f"{value:g}" if quantity.unit == "threshold" else f"{value:,.0f}", ""
    unit = UNITS.get(quantity.unit, Unit(3))
    effect, own_sign = quantity.effect(row), "" if quantity.unsigned else unit.sign

    def written(number: float, digits: int) -> str:
        number += 0.0  # no negative zero
        sign = "" if digits == 0 and round(number) == 0 else own_sign
        return f"{number:{sign}z.{digits}%}" if unit.percent else plain(number, digits, sign)

    digits = _digits(effect, unit)
    if like is not None:
        digits = _digits(like.effect(row), UNITS[like.unit])
        digits = digits if digits <= _WRITTEN_OUT else places(value, unit.digits)
    interval = f"{written(effect.low, digits)} to {written(effect.high, digits)}" if math.isfinite(effect.low) else ""
    return written(float(value), digits), interval


def _digits(effect: Effect, unit: Unit) -> int:
    """Digits after the point: those of its unit, or enough to show a small change."""
    if unit.more == "always" or (unit.more == "significant" and effect.shown):
        return change_places(effect.mean, effect.low, effect.high, unit.digits)
    return unit.digits


def shown_label(name: str) -> str:
    """The label of a head in words."""
    return _SHOWN_LABELS.get(name, name)


def with_marked_spaces(token: str) -> str:
    """The token with visible marks for spaces at its ends, at most four."""
    return re.sub(r"^ +| +$", lambda spaces: SPACE * min(len(spaces[0]), 4), token)
