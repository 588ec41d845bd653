"""A walk in words: for each step a title, what happens, its formula, and a legible corner of its numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from attnscope.lineage.walk import Walk, entropy
from attnscope.lineage.wording import words
from attnscope.read.shown import split_character, with_marked_spaces

if TYPE_CHECKING:
    from attnscope.lineage.walk import Walk

_LONGEST_NAME = 12  # columns of a terminal
_MOST_ROWS = 6  # of a matrix with one row a token
_WHOLE_ROW = 12  # tokens up to which the followed row is shown in full
_LARGEST = 10  # weights of it that are shown otherwise
_CONTRIBUTIONS = 4
_BAR = 10  # columns of a weight of 1


@dataclass(frozen=True)
class Step:
    """One step of a walk."""

    title: str  # a line
    formula: str  # in LaTeX, and in characters for a terminal; may be empty
    plain_formula: str  # in LaTeX, and in characters for a terminal; may be empty
    text: tuple[str, ...]  # paragraphs
    tables: tuple[Table, ...]  # numbers


def steps(walk: Walk, language: str = "en", *, columns: int = 8) -> list[Step]:
    """Put a walk into words."""
    return _Writer(walk, words(language), columns).steps()


def heading(walk: Walk, language: str = "en") -> tuple[str, tuple[str, ...]]:
    """Return the title of a walk, and what stands below it."""
    wording = words(language)
    facts: dict[str, Any] = {
        "layer": walk.layer,
        "layers": walk.layers,
        "head": walk.head,
        "heads": walk.heads,
        "model": walk.model,
        "module": walk.module,
        "texts": walk.texts,
        "tokens": len(walk.tokens),
        "width": walk["X"].shape[1],
    }
    toy = ".toy" if walk.drawn else ".module" if walk.is_toy else ""
    below = [wording[f"place{toy}"].format(**facts)]
    if "cross" in walk.kinds:
        below.append(_place_in_decoder(walk, wording))
    if walk.target:
        key = "target.own" if walk.translated else "target.given"
        below.append(wording[key].format(target=spoken(walk.target)))
    below.append(wording["followed"].format(token=walk.token, name=spoken(walk.tokens[walk.token])))
    return wording[f"title{toy}"].format(**facts), tuple(below)


def _place_in_decoder(walk: Walk, wording: dict[str, str]) -> str:
    """Which of an encoder-decoder's layers are of what kind."""
    layers = {
        kind: ", ".join(str(layer) for layer, own in enumerate(walk.kinds) if own == kind)
        for kind in ("self", "causal", "cross")
    }
    return wording["kinds"].format(this=wording[f"kind.{walk.kind}"], layer=walk.layer, **layers)


class _Writer:
    """Writes the steps of one walk in one language."""

    def __init__(self, walk: Walk, wording: dict[str, str], columns: int) -> None:
        self.walk, self.wording, self.columns = walk, wording, columns
        self.at = walk.token
        self.name = spoken(walk.tokens[self.at])
        self.weights = walk["weights"]
        row = self.weights[self.at]
        self.best = int(row.argmax())
        own = None if walk.kind == "cross" else self.at
        self.rows = self._named(shown_tokens(self._row_of_queries(), self.at, _MOST_ROWS), walk.tokens)
        self.key_rows = self._named(shown_tokens(row, own, _MOST_ROWS), walk.keys)
        self.key_columns = self._named(shown_tokens(row, own, columns), walk.keys)

    def _row_of_queries(self) -> np.ndarray:
        """Show the same tokens as queries and as keys, where they are the same."""
        row = self.weights[self.at]
        return row if self.walk.kind != "cross" else np.zeros(len(self.walk.tokens))

    @staticmethod
    def _named(positions: list[int], tokens: tuple[str, ...]) -> list[tuple[int, str]]:
        return [(i, short(f"{i} {visible(tokens[i])}", _LONGEST_NAME)) for i in positions]

    def say(self, key: str, **facts: Any) -> str:
        """One paragraph."""
        return self.wording[key].format(
            **{name: plain(fact) if isinstance(fact, float) else fact for name, fact in facts.items()}
        )

    def steps(self) -> list[Step]:
        """All of them."""
        steps = [self._input(), self._projections(), self._products(), self._division(), self._mask()]
        steps += [self._softmax(), self._sum()]
        if not self.walk.is_toy:
            steps = [self._tokens(), *steps, self._heads(), self._result()]
        return [*steps, self._check()]

    def _step(
        self, title: str, formulas: tuple[str, str], text: list[str], tables: list[Table] | None = None
    ) -> Step:
        return Step(self.say(title), *formulas, tuple(text), tuple(tables or ()))

    def _tokens(self) -> Step:
        walk = self.walk
        if not (walk.target and walk.of_decoder):
            return self._step("tokens", ("", ""), self._list_of("tokens.text", walk.tokens))
        of_source = self._list_of("tokens.text", walk.keys) if walk.kind == "cross" else []
        return self._step(
            f"tokens.{walk.kind}", ("", ""), [*of_source, *self._list_of("tokens.target", walk.tokens)]
        )

    def _list_of(self, key: str, tokens: tuple[str, ...]) -> list[str]:
        shown = " · ".join(f"{i} {visible(token)}" for i, token in enumerate(tokens))
        said = [self.say(key, count=len(tokens), first=spoken(tokens[0])), shown]
        pieces = split_character(tokens)
        return [*said, self.say("tokens.pieces", pieces=" ".join(pieces))] if pieces else said

    def _input(self) -> Step:
        walk = self.walk
        first = "X.decoder" if walk.of_decoder else "X.first"
        key = "X.toy" if walk.is_toy else first if walk.starts_stack else "X.later"
        text = [self.say(key, layer=walk.layer)]
        tables = [self._of_queries("X", "X")]
        if "memory" in walk:
            text.append(self.say("X.memory"))
            tables.append(self._of_keys("memory", "M"))
        return self._step("X", (r"X \in \mathbb{R}^{n \times d}", ""), text, tables)

    def _projections(self) -> Step:
        walk = self.walk
        text = [self.say("QKV.text")]
        if walk.form != "bilinear":
            text.append(self.say(f"QKV.{walk.form}", reason=walk.reason))
        if walk.kv_heads != walk.heads:
            text.append(self.say("QKV.grouped", heads=walk.heads, kv_heads=walk.kv_heads))
        tables = [self._of_queries("Q", "Q"), self._of_keys("K", "K"), self._of_keys("V", "V")]
        return self._step("QKV", self._formula_of_projections(), text, tables)

    def _formula_of_projections(self) -> tuple[str, str]:
        """With a bias where there is one, and the rotation where there is one."""
        latex: list[str] = []
        characters: list[str] = []
        for symbol in "QKV":
            if f"W_{symbol}" not in self.walk:
                continue
            bias = bool(self.walk[f"b_{symbol}"].any())
            x = "M" if "memory" in self.walk and symbol != "Q" else "X"
            inner = f"{x} W_{symbol}" + (f" + b_{symbol}" if bias else "")
            turned = self.walk.form == "rope" and symbol != "V"
            latex.append(rf"{symbol} = R({inner})" if turned else f"{symbol} = {inner}")
            characters.append(latex[-1])
        shapes = [
            f"W_{symbol}: {self._shape(f'W_{symbol}')}" for symbol in "QKV" if f"W_{symbol}" in self.walk
        ]
        return r", \quad ".join(latex), "   ".join(characters) + ("\n" + "   ".join(shapes) if shapes else "")

    def _products(self) -> Step:
        walk = self.walk
        query, key = walk["Q"][self.at], walk["K"][self.best]
        terms = " + ".join(f"{number(a, 2)}·{number(b, 2)}" for a, b in zip(query[:2], key[:2], strict=True))
        text = self.say(
            "products.text",
            name=self.name,
            best=self._best,
            terms=terms + " +",
            product=float(walk["products"][self.at, self.best]),
            width=len(query),
        )
        return self._step("products", (r"Q K^\top", "Q Kᵀ"), [text], [self._square("products", "Q Kᵀ")])

    def _division(self) -> Step:
        walk = self.walk
        width = walk["Q"].shape[1]
        spread = {"before": float(walk["products"].std()), "after": float(walk["scaled"].std())}
        usual = abs(walk.scale * width**0.5 - 1) < 1e-3  # noqa: PLR2004
        if usual:
            text = [self.say("scale.text", width=width, root=width**0.5, **spread)]
        else:
            text = [self.say("scale.other", scale=walk.scale, width=width, usual=width**-0.5, **spread)]
        if abs(walk.scale - 1) > 1e-3:  # noqa: PLR2004
            text.append(self._without_division())
        if walk.softcap is not None:
            text.append(self.say("scale.cap", cap=walk.softcap))
        if "bias" in walk:
            text.append(self.say("scale.bias"))
        return self._step("scale", self._formula_of_scores(usual=usual), text, [self._square("scores", "S")])

    def _without_division(self) -> str:
        walk = self.walk
        rows, bare = entropy(walk["weights"]), entropy(walk["unscaled_weights"])
        seen = walk["allowed"].sum(-1)
        return self.say(
            "scale.without",
            name=self.name,
            bare=float(bare[self.at]),
            entropy=float(rows[self.at]),
            most=float(np.log(max(1, seen[self.at]))),
            bare_top=float(walk["unscaled_weights"][self.at].max()),
            top=float(walk["weights"][self.at].max()),
            mean_bare=float(bare.mean()),
            mean=float(rows.mean()),
        )

    def _formula_of_scores(self, *, usual: bool) -> tuple[str, str]:
        factor = plain(self.walk.scale)
        latex = r"\frac{Q K^\top}{\sqrt{d_k}}" if usual else rf"{factor}\, Q K^\top"
        characters = "Q Kᵀ / √d_k" if usual else f"{factor} Q Kᵀ"
        if self.walk.softcap is not None:
            cap = plain(self.walk.softcap)
            latex = rf"{cap} \tanh\left({latex} / {cap}\right)"
            characters = f"{cap} tanh({characters} / {cap})"
        if "bias" in self.walk:
            latex, characters = latex + " + B", characters + " + B"
        return f"S = {latex}", f"S = {characters}"

    def _mask(self) -> Step:
        allowed = self.walk["allowed"]
        facts: dict[str, Any] = {
            "name": self.name,
            "count": allowed.shape[1],
            "seen": int(allowed[self.at].sum()),
        }
        if allowed.all():
            return self._step("mask", ("", ""), [self.say("mask.none", **facts)])
        causal = np.array_equal(allowed, np.tril(np.ones_like(allowed)))
        text = self.say("mask.causal" if causal else "mask.other", **facts)
        cells = np.where(allowed, self.wording["allowed"], self.wording["masked"])
        table = square(
            cells, self._caption("M", "allowed", len(self.rows)), self.rows, self.key_columns, marked=self.at
        )
        formula = r"S_{ij} = -\infty \text{ if } M_{ij} = -\infty"
        return self._step("mask", (formula, ""), [text], [table])

    def _softmax(self) -> Step:
        walk = self.walk
        row = self.weights[self.at]
        score = float(walk["scores"][self.at, self.best])
        weight = float(row[self.best])
        text = [
            self.say(
                "softmax.text",
                total=float(row.sum()),
                name=self.name,
                best=self._best,
                score=score,
                denominator=float(np.exp(score) / weight) if weight else float("inf"),
                weight=weight,
            )
        ]
        if row.sum() < 1 - 1e-6:
            text.append(self.say("softmax.sink"))
        formula = r"A = \mathrm{softmax}(S), \quad A_{ij} = \frac{e^{S_{ij}}}{\sum_k e^{S_{ik}}}"
        tables = [self._square("weights", "A"), self._followed_row()]
        return self._step(
            "softmax", (formula, "A = softmax(S):  A_ij = exp(S_ij) / Σ_k exp(S_ik)"), text, tables
        )

    def _followed_row(self) -> Table:
        """Every step of the followed row below each other."""
        walk = self.walk
        row = self.weights[self.at]
        whole = len(row) <= _WHOLE_ROW
        shown = (
            list(range(len(row))) if whole else sorted(np.argsort(-row, kind="stable")[:_LARGEST].tolist())
        )
        steps = ["products", "scaled"]
        if walk.softcap is not None or "bias" in walk:
            steps.append("scores")
        names = {"products": "column.product", "scaled": "column.scaled", "scores": "column.score"}
        digits = {name: decimals_for(walk[name][self.at][shown]) for name in steps}
        lines = [
            (
                f"{i} {visible(walk.keys[i])}",
                *(self._score(name, i, digits[name]) for name in steps),
                number(row[i], 3),
                _bar(row[i]),
            )
            for i in shown
        ]
        if not whole:
            others = float(row.sum() - row[shown].sum())
            lines.append(
                (
                    self.say("row.others", count=len(row) - len(shown)),
                    *[""] * len(steps),
                    number(others, 3),
                    _bar(others),
                )
            )
        headings = ["column.token", *(names[name] for name in steps), "column.weight"]
        caption = self.say("softmax.row" if whole else "softmax.top", name=self.name)
        return Table(caption, (*map(self.say, headings), ""), tuple(lines))

    def _score(self, name: str, key: int, digits: int) -> str:
        if not self.walk["allowed"][self.at, key]:
            return self.wording["masked"]
        return number(self.walk[name][self.at, key], digits)

    def _sum(self) -> Step:
        walk = self.walk
        row, values = self.weights[self.at], walk["V"]
        largest = sorted(np.argsort(-row, kind="stable")[:_CONTRIBUTIONS].tolist())
        parts = row[largest, None] * values[largest]
        rest = walk["head_output"][self.at] - parts.sum(0)
        names = [f"{number(row[i], 3)} × {short(visible(walk.keys[i]), _LONGEST_NAME)}" for i in largest]
        lines = [*parts, *([rest] if len(row) > len(largest) else []), walk["head_output"][self.at]]
        if len(row) > len(largest):
            names.append(self.say("row.others", count=len(row) - len(largest)))
        names.append(self.say("row.sum"))
        table = corner(
            np.array(lines),
            f"O[{self.at}]: {self.say('column.value')}",
            list(enumerate(names)),
            self.columns - 2,  # the names are long
            marked=len(names) - 1,
        )
        text: list[str] = []
        if walk.is_toy:
            output, weights = self._shape("head_output"), self._shape("weights")
            text.append(self.say("sum.toy", output=output, weights=weights))
        text.append(self.say("sum.text", name=self.name))
        formula = (r"O = A V, \quad o_i = \sum_j A_{ij} v_j", "O = A V:  o_i = Σ_j A_ij v_j")
        return self._step("sum", formula, text, [self._of_queries("head_output", "O"), table])

    def _heads(self) -> Step:
        walk = self.walk
        width = walk["head_output"].shape[1]
        text = self.say(
            "concat.text",
            heads=walk.heads,
            first=walk.head * width,
            last=(walk.head + 1) * width - 1,
            width=walk["concatenated"].shape[1],
        )
        formula = (
            r"\mathrm{concat}(O_0, \dots, O_{%d})" % (walk.heads - 1),  # noqa: UP031 braces are LaTeX's
            f"concat(O_0, …, O_{walk.heads - 1}):  {self._shape('concatenated')}",
        )
        return self._step("concat", formula, [text])

    def _result(self) -> Step:
        walk = self.walk
        if "result" not in walk:
            return self._step("result", ("", ""), [self.say("result.unknown")])
        width = walk["head_output"].shape[1]
        of_head = walk["W_O"][walk.head * width : (walk.head + 1) * width]
        text = self.say(
            "result.text",
            name=self.name,
            part=float(np.linalg.norm(walk["head_output"][self.at] @ of_head)),
            whole=float(np.linalg.norm(walk["result"][self.at])),
        )
        bias = " + b_O" if walk["b_O"].any() else ""
        formula = (
            r"\mathrm{concat}(O_0, \dots)\, W_O" + bias,
            f"concat(O_0, …) W_O{bias}   W_O: {self._shape('W_O')}",
        )
        return self._step("result", formula, [text], [self._of_queries("result", "concat(O) W_O" + bias)])

    def _check(self) -> Step:
        comma = "、" if self.wording is words("ja") else ", "
        errors = comma.join(
            f"{self.wording['errors.' + name]} {error:.0e}" for name, error in self.walk.errors.items()
        )
        key = "check.toy" if self.walk.is_toy else "check.text"
        return self._step(
            "check", ("", ""), [self.say(key, errors=errors, model=self.walk.model), self.say("caution")]
        )

    @property
    def _best(self) -> str:
        return spoken(self.walk.keys[self.best])

    def _shape(self, name: str) -> str:
        of_text = set(self.walk.arrays[name].dims) & {"query", "key"}
        sizes = self.walk[name].shape
        if self.walk.texts > 1 and of_text:
            sizes = (self.walk.texts, *sizes)
        return str(tuple(sizes))

    def _caption(self, symbol: str, name: str, rows: int) -> str:
        key = "of" if rows == self.walk[name].shape[0] else "part"
        return self.say(key, symbol=symbol, shape=self._shape(name), rows=rows)

    def _of_queries(self, name: str, symbol: str) -> Table:
        caption = self._caption(symbol, name, len(self.rows))
        return corner(self.walk[name], caption, self.rows, self.columns - 1, marked=self.at)

    def _of_keys(self, name: str, symbol: str) -> Table:
        caption = self._caption(symbol, name, len(self.key_rows))
        marked = None if self.walk.kind == "cross" else self.at
        return corner(self.walk[name], caption, self.key_rows, self.columns - 1, marked=marked)

    def _square(self, name: str, symbol: str) -> Table:
        values = self.walk[name]
        allowed = self.walk["allowed"]
        digits = 3 if name == "weights" else decimals_for(values)
        hidden = ~allowed if name == "weights" else np.zeros_like(allowed)
        cells = np.array(
            [
                ["" if masked else number(value, digits) for value, masked in zip(*line, strict=True)]
                for line in zip(values, hidden, strict=True)
            ],
            dtype=object,
        )
        caption = self._caption(symbol, name, len(self.rows))
        return square(cells, caption, self.rows, self.key_columns, marked=self.at)


def _bar(weight: float) -> str:
    """A bar with steps of an eighth of a column."""
    eighths = round(weight * _BAR * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


_HEADING = 6  # columns of a terminal


@dataclass(frozen=True)
class Table:
    """Cells of text under a caption."""

    caption: str  # what it is, with its shape
    headings: tuple[str, ...]  # one for each column; the first column holds the names of the rows
    rows: tuple[tuple[str, ...], ...]  # cells
    marked: int | None = None  # which row is that of the token that is followed, or None


def shown_tokens(row: np.ndarray, followed: int | None, count: int) -> list[int]:
    """Positions to show: the followed one, the first and last, and those of the largest weights, in order."""
    ends = [0, len(row) - 1] if followed is None else [followed, 0, len(row) - 1]
    by_weight = np.argsort(-row, kind="stable").tolist()
    wanted = list(dict.fromkeys([*ends, *by_weight]))
    return sorted(wanted[:count])


def number(value: float, decimals: int) -> str:
    """Write a number; what is too large for its column, in powers of ten."""
    if abs(value) >= 1e5:  # noqa: PLR2004 six columns
        return f"{value:.0e}"
    text = f"{value:.{decimals}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def decimals_for(values: np.ndarray) -> int:
    """As many decimals as show about two digits of the usual number, within six columns."""
    usual = float(np.median(np.abs(values))) if values.size else 0.0
    if usual == 0:
        usual = float(np.abs(values).max(initial=0.0)) or 1.0
    if usual >= 100:  # noqa: PLR2004
        return 0
    return int(np.clip(1 - math.floor(math.log10(usual)), 1, 4))


def plain(value: float) -> str:
    """Write a number within a sentence: three digits."""
    size = abs(value)
    if size >= 1000 or size < 1e-3:  # noqa: PLR2004
        return "0.000" if size < 1e-3 else number(value, 0)  # noqa: PLR2004
    return f"{value:#.3g}".rstrip(".")


def visible(token: str) -> str:
    r"""Write a token so that it can be seen: marks for the spaces at its ends, and for what has no shape."""
    shown = re.sub(r"\r\n?|\n", "⏎", with_marked_spaces(token)) or "∅"
    return "".join(letter if letter.isprintable() else f"U+{ord(letter):04X}" for letter in shown)


def spoken(token: str) -> str:
    """Write a token within a sentence: without the spaces around it, where it has more."""
    return visible(token.strip() or token)


def short(text: str, columns: int) -> str:
    """Cut a text to so many columns of a terminal, where a Japanese character takes two."""
    if cell_len(text) <= columns:
        return text
    return set_cell_size(text, columns - 1).rstrip() + "…"


def corner(
    values: np.ndarray,
    caption: str,
    rows: Sequence[tuple[int, str]],
    columns: int,
    *,
    marked: int | None = None,
    first: str = "",
) -> Table:
    """Some rows of a matrix and its first columns."""
    count = min(values.shape[1], columns)
    more = ["…"] * (values.shape[1] > count)
    part = values[[row for row, _ in rows], :count]
    digits = decimals_for(part if marked is None else values[marked, :count])
    cells = [
        (name, *(number(value, digits) for value in line), *more)
        for (_, name), line in zip(rows, part, strict=True)
    ]
    return Table(caption, (first, *map(str, range(count)), *more), tuple(cells), marked=_index(rows, marked))


def square(
    cells: np.ndarray,
    caption: str,
    rows: Sequence[tuple[int, str]],
    columns: Sequence[tuple[int, str]],
    *,
    marked: int | None = None,
    first: str = "",
) -> Table:
    """Some rows and columns of a matrix of tokens by tokens; its cells are text."""
    lines = [(name, *(str(cells[row, column]) for column, _ in columns)) for row, name in rows]
    headings = (first, *(_two_lines(name) for _, name in columns))
    return Table(caption, headings, tuple(lines), marked=_index(rows, marked))


def _two_lines(name: str) -> str:
    position, _, token = name.partition(" ")
    return f"{position}\n{short(token, _HEADING)}"


def _index(rows: Sequence[tuple[int, str]], marked: int | None) -> int | None:
    return next((index for index, (row, _) in enumerate(rows) if row == marked), None)


_COLUMNS = 10
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|$~])")


def markdown(walk: Walk, language: str = "en") -> str:
    r"""Write a walk as Markdown; formulas stand between ``$$``."""
    title, below = heading(walk, language)
    parts = [f"# {escape(title)}", *map(escape, below)]
    for place, step in enumerate(steps(walk, language, columns=_COLUMNS), 1):
        parts += _step(place, step)
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    r"""Write characters that mean something in Markdown so that they mean themselves."""
    return _SPECIAL.sub(r"\\\1", text)


def _step(place: int, step: Step) -> list[str]:
    parts = [f"## {place}. {escape(step.title)}"]
    if step.formula:
        parts.append(f"$$\n{step.formula}\n$$")
    parts += map(escape, step.text)
    for table in step.tables:
        parts += [f"**{escape(table.caption)}**", _table(table)]
    return parts


def _table(table: Table) -> str:
    lines = [
        "| " + " | ".join(escape(name.replace("\n", " ")) or " " for name in table.headings) + " |",
        "|" + "|".join([":--", *["--:"] * (len(table.headings) - 1)]) + "|",
    ]
    for index, row in enumerate(table.rows):
        name = ("▸ " if index == table.marked else "") + row[0]
        lines.append("| " + " | ".join(escape(cell) for cell in (name, *row[1:])) + " |")
    return "\n".join(lines)


_NAMES, _COLUMN, _INDENT = 16, 8, 3  # columns of a terminal
_MOST_COLUMNS = 14  # of numbers
_WIDE = r"\u3041-\u30ff\u3400-\u9fff"  # kana and kanji
_UNIT = re.compile(rf"\d+ \S+ · |「?(?:[{_WIDE}]|[^\s{_WIDE}「]+)[、。」）：₀-₉]*\s*|\s+|「")


def terminal(walk: Walk, language: str = "en", *, width: int = 80) -> Group:
    """Lay a walk out for rich: ``Console().print(terminal(walk))``."""
    title, below = heading(walk, language)
    columns = max(3, min(_MOST_COLUMNS, (width - _NAMES) // _COLUMN))
    parts: list[RenderableType] = [Text(title, style="bold reverse")]
    parts += [Text(wrapped(line, width)) for line in below]
    for place, step in enumerate(steps(walk, language, columns=columns), 1):
        parts += ["", *_terminal_step(place, step, width - _INDENT)]
    return Group(*parts)


def _terminal_step(place: int, step: Step, width: int) -> list[RenderableType]:
    within: list[RenderableType] = []
    if step.plain_formula:
        within.append(Text(step.plain_formula, style="cyan"))
    within += [Text(wrapped(paragraph, width)) for paragraph in step.text]
    for table in step.tables:
        within += [Text(""), Text(table.caption, style="italic"), _terminal_table(table, width)]
    inside = [Padding(part, (0, 0, 0, _INDENT), expand=False) for part in within]
    return [Text(f"{place}  {step.title}", style="bold"), *inside]


def wrapped(text: str, width: int) -> str:
    """Break a text into lines: between words, and between any two Japanese characters but before a 、 or a 。."""
    lines = [""]
    for unit in _UNIT.findall(text):
        if cell_len(lines[-1] + unit.rstrip()) > width and lines[-1]:
            lines.append("")
        lines[-1] += unit
    return "\n".join(line.rstrip() for line in lines)


def _terminal_table(table: Table, width: int) -> RichTable:
    columns = list(zip(table.headings, *table.rows, strict=True))
    needed = sum(max(cell_len(line) for cell in column for line in cell.split("\n")) for column in columns)
    roomy = len("▸ ") + needed + 3 * len(columns) - 1 <= width
    shown = RichTable(
        box=box.SIMPLE_HEAD,
        padding=(0, int(roomy)),  # rather close together than cut
        show_edge=False,
    )
    for index, name in enumerate(table.headings):
        bar = index == len(table.headings) - 1 and not name
        left = index == 0 or bar
        shown.add_column(Text(name), justify="left" if left else "right", no_wrap=True)
    for index, row in enumerate(table.rows):
        marked = index == table.marked
        name, *cells = row
        shown.add_row(
            Text(("▸ " if marked else "  ") + name), *map(Text, cells), style="bold" if marked else ""
        )
    return shown
