"""A walk in words: for each step a title, an explanation, its formula, and some of its numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
import yaml
from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from attnscope.kernels.reference import masked_softmax
from attnscope.read.shown import split_character
from attnscope.report.schema import with_marked_spaces
from attnscope.support.errors import AttnscopeError
from attnscope_lineage.forms import weights_of_form
from attnscope_lineage.head_walk import TOY, Walk, entropy

if TYPE_CHECKING:
    from attnscope_lineage.recurrent_walk import RecurrentWalk

LANGUAGES = ("en", "ja")
_SAME = 1e-3  # tolerance for equal factors

_LONGEST_NAME = 12  # columns of a terminal
_MOST_ROWS = 6  # of a matrix with one row a token
_LISTED = 100  # tokens of a list; of more, the first half and the last three
_WHOLE_ROW = 12  # longest row shown in full
_LARGEST = 10  # weights shown of longer rows
_CONTRIBUTIONS = 4
_BAR = 10  # columns of a weight of 1
_SHORT_FORMULA = 16  # characters

Named = list[tuple[int, str]]  # positions with the names of their tokens


@dataclass(frozen=True)
class Table:
    """Cells of text under a caption."""

    caption: str  # name and shape
    headings: tuple[str, ...]  # one for each column; the first column has the names of the rows
    rows: tuple[tuple[str, ...], ...]
    marked: int | None = None  # the row of the token that is followed
    shades: bool = False  # whether a page shades its cells by their numbers


@dataclass(frozen=True)
class Step:
    """One step of a walk."""

    title: str
    formula: str  # in LaTeX; may be empty
    plain_formula: str  # in characters, for a terminal; may be empty
    text: tuple[str, ...]  # paragraphs
    tables: tuple[Table, ...]


@cache
def words(language: str) -> dict[str, str]:
    """All text of a language by key, with ``{names}`` to fill in; formulas are in this module."""
    if language not in LANGUAGES:
        raise AttnscopeError(f"unknown language {language!r}: choose {' or '.join(LANGUAGES)}")
    return yaml.safe_load((Path(__file__).parent / f"walk.{language}.yaml").read_text(encoding="utf-8"))


def steps(walk: Walk | RecurrentWalk, language: str = "en", *, columns: int = 8, rows: int = _MOST_ROWS) -> list[Step]:
    """Explain a walk step by step."""
    if not isinstance(walk, Walk):
        return walk.steps(language, columns, rows)
    writer = _Writer(walk, words(language), columns, rows)
    written = [writer.input(), *([writer.positions()] if "positions" in walk else []), writer.projections()]
    written += [writer.products(), writer.division(), writer.mask(), writer.softmax(), writer.dimension()]
    written += [writer.sum(), writer.convex(), writer.exchange(), writer.other_weights()]
    if walk.forms is not None:
        written.append(writer.forms(walk.forms))
    if not walk.is_toy:
        written = [writer.tokens(), *written]
    if "concatenated" in walk:
        written.append(writer.heads())
    if "result" in walk or not walk.is_toy:
        written.append(writer.result())
    return [*written, writer.check(), writer.summary()]


def heading(walk: Walk | RecurrentWalk, language: str = "en") -> tuple[str, tuple[str, ...]]:
    """The title of a walk, and the lines below it."""
    if not isinstance(walk, Walk):
        return walk.heading(language)
    wording = words(language)
    facts = vars(walk) | {"layers": walk.layers, "tokens": len(walk.tokens), "width": walk["X"].shape[1]}
    kind = ".toy" if walk.drawn else ".module" if walk.is_toy else ""
    if walk.drawn:
        facts |= {"sentences": " / ".join(" · ".join(sentence) for sentence in TOY), "number": 1 + ("padding" in walk)}
    below = [wording[f"place{kind}"].format(**facts)]
    if "cross" in walk.kinds:
        layers = {
            kind: ", ".join(str(layer) for layer, kind_of_layer in enumerate(walk.kinds) if kind_of_layer == kind)
            for kind in ("self", "causal", "cross")
        }
        below.append(wording["kinds"].format(this=wording[f"kind.{walk.kind}"], layer=walk.layer, **layers))
    if walk.target:
        below.append(wording["target.own" if walk.translated else "target.given"].format(target=spoken(walk.target)))
    below.append(wording["followed"].format(token=walk.token, name=spoken(walk.tokens[walk.token])))
    return wording[f"title{kind}"].format(**facts), tuple(below)


_WIDTHS, _KEYS, _DRAWS = (4, 64, 512), 10, 400


@cache
def saturation(width: int) -> tuple[float, ...]:
    """Softmax over products of random queries and keys: standard deviation of the scores, mean of the largest weight,
    and mean norm of the gradient; without division by the root of the width, then with it.
    """
    draw = np.random.default_rng(0)
    query, keys = draw.standard_normal((_DRAWS, width)), draw.standard_normal((_DRAWS, _KEYS, width))
    products = np.einsum("td,tkd->tk", query, keys)
    statistics: list[float] = []
    for scores in (products, products / width**0.5):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        squares = (weights**2).sum(-1)
        gradient = squares - 2 * (weights**3).sum(-1) + squares**2  # squared Frobenius norm of diag(a) - a aᵀ
        gradient = np.sqrt(np.maximum(0, gradient))  # rounding
        statistics += [float(scores.std()), float(weights.max(-1).mean()), float(gradient.mean())]
    return tuple(statistics)


class _Writer:
    """Writes the steps of one walk in one language."""

    def __init__(self, walk: Walk, wording: dict[str, str], columns: int, rows: int) -> None:
        self.walk, self.wording, self.columns, self.most = walk, wording, columns, rows
        self.at = walk.token
        self.row = walk["weights"][self.at]
        self.best = int(self.row.argmax())
        self.names = {"name": spoken(walk.tokens[self.at]), "best": spoken(walk.keys[self.best])}
        is_cross = walk.kind == "cross"
        self.marked_key = None if is_cross else self.at
        of_queries = np.zeros(len(walk.tokens)) if is_cross else self.row
        rows_of_queries = shown_tokens(of_queries, [self.at], rows)
        followed = [] if is_cross else [self.at]
        self.key_columns = shown_columns(walk["weights"], [self.at, *rows_of_queries], followed, columns)
        self.rows = _named(rows_within(walk["weights"], rows_of_queries, self.key_columns), walk.tokens)
        self.key_rows = _named(shown_tokens(self.row, followed, rows), walk.keys)
        self.plus_mask = "" if walk["allowed"].all() else " + M"

    def say(self, key: str, **facts: Any) -> str:
        numbers = {name: plain(fact) if isinstance(fact, float) else fact for name, fact in facts.items()}
        return self.wording[key].format(**self.names | numbers)

    def _step(self, title: str, text: Sequence[str], *tables: Table, latex: str = "", characters: str = "") -> Step:
        return Step(self.say(title), latex, characters, tuple(text), tables)

    def tokens(self) -> Step:
        """The text in tokens; in a decoder the target too."""
        walk = self.walk
        if not (walk.target and walk.of_decoder):
            return self._step(self._sensed("tokens"), self._list(self._sensed("tokens.text"), walk.tokens))
        of_source = self._list(self._sensed("tokens.text"), walk.keys) if walk.kind == "cross" else []
        return self._step(f"tokens.{walk.kind}", [*of_source, *self._list("tokens.target", walk.tokens)])

    def _sensed(self, key: str) -> str:
        """The key of the wording for an image or sound, if there is one."""
        of_modality = f"{key}.{self.walk.reads}"
        return of_modality if of_modality in self.wording else key

    def _list(self, key: str, tokens: tuple[str, ...]) -> list[str]:
        named = [f"{i} {visible(token)}" for i, token in enumerate(tokens)]
        line = " · ".join(named if len(named) <= _LISTED else [*named[: _LISTED // 2], "…", *named[-3:]])
        text = [self.say(key, count=len(tokens), first=spoken(tokens[0])), line]
        pieces = split_character(tokens)
        return [*text, self.say("tokens.pieces", pieces=" ".join(pieces))] if pieces else text

    def input(self) -> Step:
        """X, and in cross-attention M."""
        walk = self.walk
        first = "X.decoder" if walk.of_decoder else "X.first"
        first = self._sensed(first)
        key = "X.toy" if walk.is_toy else first if walk.starts_stack else "X.later"
        text, tables = [self.say(key, layer=walk.layer)], [self._of_queries("X", "X")]
        if "memory" in walk:
            text.append(self.say("X.memory"))
            tables.append(self._of_keys("memory", "M"))
        shape = walk["X"].shape
        formula = {"latex": r"X \in \mathbb{R}^{n \times d}", "characters": f"X: {shape[0]} × {shape[1]}"}
        return self._step("X", text, *tables, **formula)

    def positions(self) -> Step:
        """The rotation by which a sinusoid moves to the next position."""
        walk = self.walk
        rows = [(i, str(i)) for i in range(min(self.most, len(walk["shift"])))]
        shift = corner(walk["shift"], self._caption("R(1)", "shift", len(rows)), rows, self.columns - 1)
        text = self.say("positions.text", error=f"{walk.errors['positions']:.0e}", count=len(walk.tokens))
        formula = {"latex": r"PE(p + k) = R(k)\, PE(p)", "characters": "PE(p + k) = R(k) PE(p)"}
        return self._step("positions", [text], self._of_queries("positions", "PE"), shift, **formula)

    def projections(self) -> Step:
        """Q, K and V, with their matrices where these are known."""
        walk = self.walk
        text = [self.say("QKV.text")]
        if walk.form != "bilinear":
            text.append(self.say(f"QKV.{walk.form}", reason=walk.reason))
        if walk.kv_heads != walk.heads:
            text.append(self.say("QKV.grouped", heads=walk.heads, kv_heads=walk.kv_heads))
        formulas: list[str] = []
        shapes: list[str] = []
        for symbol in (symbol for symbol in "QKV" if f"W_{symbol}" in walk):
            formulas.append(self._projection(symbol))
            shapes.append(f"W_{symbol}: {self._shape(f'W_{symbol}')}")
        tables = self._of_queries("Q", "Q"), self._of_keys("K", "K"), self._of_keys("V", "V")
        characters = "   ".join(formulas) + ("\n" + "   ".join(shapes) if shapes else "")
        return self._step("QKV", text, *tables, latex=r", \quad ".join(formulas), characters=characters)

    def _projection(self, symbol: str) -> str:
        """The formula of Q, K or V; only its symbol if its matrix is not known."""
        walk = self.walk
        if f"W_{symbol}" not in walk:
            return symbol
        x = "M" if "memory" in walk and symbol != "Q" else "X"
        product = f"{x} W_{symbol}" + (f" + b_{symbol}" if walk[f"b_{symbol}"].any() else "")
        rotated = walk.form == "rope" and symbol != "V"
        return f"{symbol} = R({product})" if rotated else f"{symbol} = {product}"

    def products(self) -> Step:
        walk = self.walk
        query, key = walk["Q"][self.at], walk["K"][self.best]
        terms = " + ".join(f"{number(a, 2)}·{number(b, 2)}" for a, b in zip(query[:2], key[:2], strict=True))
        product = float(walk["products"][self.at, self.best])
        text = self.say("products.text", terms=terms + " +", product=product, width=len(query))
        return self._step("products", [text], self._square("products", "Q Kᵀ"), latex=r"Q K^\top", characters="Q Kᵀ")

    def division(self) -> Step:
        """The scores: products times a factor, with the model's soft cap and bias if any."""
        walk = self.walk
        width = walk["Q"].shape[1]
        spread = {"before": float(walk["products"].std()), "after": float(walk["scaled"].std())}
        tables = [self._square("scores", "S")]
        if self._divides_by_root:
            text = [self.say("scale.text", width=width, root=width**0.5, **spread)]
            columns = ("column.std", "column.top", "column.gradient")
            names = [self.wording[name] for name in (*columns, *(f"{name}.divided" for name in columns))]
            values = zip(*(saturation(width) for width in _WIDTHS), strict=True)
            rows = [(name, *(number(value, 2) for value in row)) for name, row in zip(names, values, strict=True)]
            tables.append(Table(self.say("scale.widths", keys=_KEYS), ("d_k", *map(str, _WIDTHS)), tuple(rows)))
        else:
            text = [self.say("scale.other", scale=walk.scale, width=width, usual=width**-0.5, **spread)]
        if abs(walk.scale - 1) > _SAME:
            text.append(self._without_division())
        if walk.softcap is not None:
            text.append(self.say("scale.cap", cap=walk.softcap))
        if "bias" in walk:
            text.append(self.say("scale.bias"))
        latex, characters = self._scores_formula()
        return self._step("scale", text, *tables, latex=f"S = {latex}", characters=f"S = {characters}")

    @property
    def _divides_by_root(self) -> bool:
        return abs(self.walk.scale * self.walk["Q"].shape[1] ** 0.5 - 1) < _SAME

    def _scores_formula(self) -> tuple[str, str]:
        """The right side of S = ..., in LaTeX and in characters."""
        walk, scale = self.walk, plain(self.walk.scale)
        latex, characters = rf"{scale}\, Q K^\top", f"{scale} Q Kᵀ"
        if self._divides_by_root:
            latex, characters = r"\frac{Q K^\top}{\sqrt{d_k}}", "Q Kᵀ / √d_k"
        if walk.softcap is not None:
            cap = plain(walk.softcap)
            latex, characters = rf"{cap} \tanh\left({latex} / {cap}\right)", f"{cap} tanh({characters} / {cap})"
        return (latex + " + B", characters + " + B") if "bias" in walk else (latex, characters)

    def _without_division(self) -> str:
        walk = self.walk
        rows, bare = entropy(walk["weights"]), entropy(walk["unscaled_weights"])
        return self.say(
            "scale.without",
            bare=float(bare[self.at]),
            entropy=float(rows[self.at]),
            most=float(np.log(max(1, walk["allowed"].sum(-1)[self.at]))),
            bare_top=float(walk["unscaled_weights"][self.at].max()),
            top=float(self.row.max()),
            mean_bare=float(bare.mean()),
            mean=float(rows.mean()),
        )

    def mask(self) -> Step:
        """The keys that each query may attend to."""
        walk, allowed = self.walk, self.walk["allowed"]
        facts = {"count": allowed.shape[1], "seen": int(allowed[self.at].sum())}
        if allowed.all():
            return self._step("mask", [self.say("mask.none", **facts)])
        causal = np.array_equal(allowed, np.tril(np.ones_like(allowed)))
        latex = r"A = \mathrm{softmax}(S + M), \quad M_{ij} \in \{0, -\infty\}"
        characters = "A = softmax(S + M):  M_ij ∈ {0, −∞}"
        if "padding" not in walk:
            text = [self.say("mask.causal" if causal else "mask.other", **facts)]
            return self._step("mask", text, self._square("allowed", "M"), latex=latex, characters=characters)
        tables = [self._square("allowed", "M")]
        unpadded = np.broadcast_to(~walk["padding"], allowed.shape)
        if walk.kind == "causal":
            symbols = {"M_padding": unpadded, "M_causal": np.tril(np.ones_like(allowed)), "M": allowed}
            tables = [self._square("allowed", symbol, array) for symbol, array in symbols.items()]
        lost = float(walk["padded_weights"][self.at, walk["padding"]].sum())
        text = [self.say("mask.padding", **facts), self.say("mask.missing" if lost else "mask.hidden", lost=lost)]
        bare = self._square("padded_weights", self.wording["mask.without"])
        return self._step("mask", text, *tables, bare, latex=latex, characters=characters)

    def softmax(self) -> Step:
        """The weights, and the row that is followed in full."""
        row = self.row
        score, weight = float(self.walk["scores"][self.at, self.best]), float(row[self.best])
        facts = {"denominator": float(np.exp(score) / weight) if weight else math.inf, "total": float(row.sum())}
        text = [self.say("softmax.text", score=score, weight=weight, **facts)]
        if row.sum() < 1 - 1e-6:
            text.append(self.say("softmax.sink"))
        others = np.delete(row, self.key_columns)
        if len(others):
            text.append(self.say("softmax.hidden", count=len(others), others=float(others.sum())))
        tables = self._square("weights", "A"), self._followed_row()
        score, other_score = ("S_{ij} + M_{ij}", "S_{ik} + M_{ik}") if self.plus_mask else ("S_{ij}", "S_{ik}")
        latex = (
            rf"A = \mathrm{{softmax}}(S{self.plus_mask}), \quad A_{{ij}} = \frac{{e^{{{score}}}}}"
            rf"{{\sum_k e^{{{other_score}}}}}"
        )
        score, other_score = (each.replace("{", "").replace("}", "") for each in (score, other_score))
        characters = f"A = softmax(S{self.plus_mask}):  A_ij = exp({score}) / Σ_k exp({other_score})"
        return self._step("softmax", text, *tables, latex=latex, characters=characters)

    def _followed_row(self) -> Table:
        """Every step of the followed row, a key a line."""
        walk, row = self.walk, self.row
        whole = len(row) <= _WHOLE_ROW
        keys = list(range(len(row))) if whole else self._largest(_LARGEST)
        headings = {"products": "column.product", "scaled": "column.scaled", "scores": "column.score"}
        if walk.softcap is None and "bias" not in walk:
            del headings["scores"]
        columns = {heading: walk[name][self.at] for name, heading in headings.items()}
        allowed = walk["allowed"][self.at]
        if not allowed.all():
            columns["column.masked"] = np.where(allowed, walk["scores"][self.at], -np.inf)

        def cells(values: np.ndarray) -> list[str]:
            digits = decimals_for(np.where(allowed, values, walk["scores"][self.at])[keys])
            return [number(values[i], digits) if np.isfinite(values[i]) else self.wording["masked"] for i in keys]

        names = [f"{i} {visible(walk.keys[i])}" for i in keys]
        weights, bars = [number(row[i], 3) for i in keys], [_bar(row[i]) for i in keys]
        lines = list(zip(names, *map(cells, columns.values()), weights, bars, strict=True))
        if not whole:
            others = float(row.sum() - row[keys].sum())
            count = self.say("row.others", count=len(row) - len(keys))
            lines.append((count, *[""] * len(columns), number(others, 3), _bar(others)))
        headings = map(self.say, ("column.token", *columns, "column.weight"))
        return Table(self.say("softmax.row" if whole else "softmax.top"), (*headings, ""), tuple(lines))

    def _largest(self, count: int) -> list[int]:
        return sorted(np.argsort(-self.row, kind="stable")[:count].tolist())

    def sum(self) -> Step:
        """The output of the head, and the largest contributions to the row that is followed."""
        walk, row = self.walk, self.row
        output, largest = walk["head_output"][self.at], self._largest(_CONTRIBUTIONS)
        parts = row[largest, None] * walk["V"][largest]
        lines = [*parts]
        names = [f"{number(row[i], 3)} × {short(visible(walk.keys[i]), _LONGEST_NAME)}" for i in largest]
        if len(row) > len(largest):
            lines.append(output - parts.sum(0))
            names.append(self.say("row.others", count=len(row) - len(largest)))
        caption, rows = f"O[{self.at}]: {self.say('column.value')}", list(enumerate([*names, self.say("row.sum")]))
        columns = self.columns - 2  # the names are long
        table = corner(np.array([*lines, output]), caption, rows, columns, marked=len(names))
        text = [self.say("sum.text")]
        if walk.is_toy:
            text.insert(0, self.say("sum.toy", output=self._shape("head_output"), weights=self._shape("weights")))
        latex, characters = r"O = A V, \quad o_i = \sum_j A_{ij} v_j", "O = A V:  o_i = Σ_j A_ij v_j"
        return self._step("sum", text, self._of_queries("head_output", "O"), table, latex=latex, characters=characters)

    def dimension(self) -> Step:
        """The effect of a missing transpose, and of a softmax over the wrong dimension."""
        walk = self.walk
        n, width = walk["K"].shape
        scores, allowed = (torch.from_numpy(walk[name].T) for name in ("scores", "allowed"))
        wrong = masked_softmax(scores, allowed).numpy().T
        text = [self.say("dim.transpose", queries=len(walk.tokens), keys=n, width=width)]
        if len(walk.tokens) == width:
            text.append(self.say("dim.same"))
        text.append(self.say("dim.text", row=float(wrong[self.at].sum())))
        right, other = walk["weights"].sum(-1), wrong.sum(-1)
        rows = [(name, number(right[row], 2), number(other[row], 2)) for row, name in self.rows]
        headings = (self.wording["dim.rows"], "dim=-1", "dim=-2")
        table = Table(self.wording["dim.sums"], headings, tuple(rows), marked=_index(self.rows, self.at))
        formula = {"latex": r"\sum_j A_{ij} = 1 \neq \sum_i A_{ij}", "characters": "Σ_j A_ij = 1 ≠ Σ_i A_ij"}
        return self._step("dim", text, self._square("weights", "softmax(S, dim=-2)", wrong), table, **formula)

    def convex(self) -> Step:
        """The output lies among the values."""
        walk, allowed = self.walk, self.walk["allowed"][self.at]
        values, total = walk["V"][allowed], float(self.row.sum())
        parts = {"min v_j": values.min(0), "o": walk["head_output"][self.at], "max v_j": values.max(0)}
        table = corner(
            np.stack(list(parts.values())),
            self.say("convex.caption"),
            list(enumerate(parts)),
            self.columns - 1,
            marked=1,
        )
        key = "convex.text" if total > 1 - _SAME else "convex.sink"
        text = self.say(key, least=float(self.row.min()), total=total)
        formula = {"latex": r"A_{ij} \geq 0, \quad \sum_j A_{ij} = 1", "characters": "A_ij ≥ 0,  Σ_j A_ij = 1"}
        return self._step("convex", [text], table, **(formula if key == "convex.text" else {}))

    def exchange(self) -> Step:
        """The same weights over other values: V in reverse order."""
        walk = self.walk
        before, after = walk["head_output"][self.at], self.row @ walk["V"][::-1]
        change = float(np.linalg.norm(after - before) / (np.linalg.norm(before) or 1))
        table = corner(np.stack([before, after]), "A V, A V′", [(0, "o"), (1, "o′")], self.columns - 1, marked=0)
        formula = {"latex": r"O' = A V'", "characters": "O′ = A V′"}
        return self._step("exchange", [self.say("exchange.text", change=change)], table, **formula)

    def other_weights(self) -> Step:
        """Another row of weights with the same output, if there is one."""
        walk, weighted = self.walk, np.flatnonzero(self.row)
        other = same_output(self.row[weighted], walk["V"][weighted])
        if other is None:
            return self._step("other", [self.say("other.none", count=len(weighted), width=walk["V"].shape[1])])
        whole = np.zeros_like(self.row)
        whole[weighted] = other
        error = float(np.abs(whole @ walk["V"] - walk["head_output"][self.at]).max())
        moved = float(np.abs(whole - self.row).sum() / 2)
        largest = sorted(np.argsort(-np.abs(whole - self.row), kind="stable")[:_LARGEST].tolist())
        rows = [(f"{i} {visible(walk.keys[i])}", number(self.row[i], 3), number(whole[i], 3)) for i in largest]
        table = Table(self.wording["other.caption"], (self.wording["column.token"], "a", "a′"), tuple(rows))
        text = self.say("other.text", moved=moved, error=f"{error:.0e}")
        formula = {"latex": r"a' V = a V, \quad a' \neq a", "characters": "a′ V = a V,  a′ ≠ a"}
        return self._step("other", [text], table, **formula)

    def forms(self, lost: xr.Dataset) -> Step:
        """Full attention, a window, blocks and linear attention: what each costs and loses."""
        length, causal = 1000, self.walk.kind == "causal"
        mean = lost[["weight_moved", "output_error"]].mean(("window", "head"))
        rows = [
            (
                self.wording[f"form.{name.partition(' ')[0]}"],
                number(float(mean.weight_moved.sel(form=name)), 3),
                number(float(mean.output_error.sel(form=name)), 3),
                "–" if name == "linear" else f"{weights_of_form(name, length, causal=causal):,}",
            )
            for name in lost.form.values.tolist()
        ]
        headings = (self.wording["form"], self.wording["form.moved"], self.wording["form.error"])
        headings = (*headings, f"n = {length:,}")
        return self._step("forms", [self.say("forms.text")], Table(self.say("forms.caption"), headings, tuple(rows)))

    def heads(self) -> Step:
        walk = self.walk
        width, last = walk["head_output"].shape[1], walk.heads - 1
        columns = {"first": walk.head * width, "last": (walk.head + 1) * width - 1}
        if walk.heads == 1:
            characters = f"concat(O_0) = O_0:  {self._shape('concatenated')}"
            text = self.say("concat.one", width=width)
            return self._step("concat.one.title", [text], latex=r"\mathrm{concat}(O_0) = O_0", characters=characters)
        text = self.say("concat.text", heads=walk.heads, width=walk["concatenated"].shape[1], **columns)
        latex = r"\mathrm{concat}(O_0, \dots, O_{%d})" % last  # noqa: UP031 braces are LaTeX's
        characters = f"concat(O_0, …, O_{last}):  {self._shape('concatenated')}"
        return self._step("concat", [text], latex=latex, characters=characters)

    def result(self) -> Step:
        """The output of the layer, if the output matrix is known."""
        walk = self.walk
        if "result" not in walk:
            return self._step("result", [self.say("result.unknown")])
        width = walk["head_output"].shape[1]
        of_head = walk["W_O"][walk.head * width : (walk.head + 1) * width]
        part = float(np.linalg.norm(walk["head_output"][self.at] @ of_head))
        one = ".one" if walk.heads == 1 else ""
        text = [self.say(f"result.text{one}", part=part, whole=float(np.linalg.norm(walk["result"][self.at])))]
        if not walk.is_toy:  # a module alone may be added to anything
            text.append(self.say("result.added"))
        bias = " + b_O" if walk["b_O"].any() else ""
        latex = (r"O\, W_O" if one else r"\mathrm{concat}(O_0, \dots)\, W_O") + bias
        characters = ("O" if one else "concat(O_0, …)") + f" W_O{bias}   W_O: {self._shape('W_O')}"
        table = self._of_queries("result", ("O" if one else "concat(O)") + " W_O" + bias)
        return self._step(f"result{one}", text, table, latex=latex, characters=characters)

    def check(self) -> Step:
        """The differences from the model's own numbers."""
        errors = (f"{self.wording['errors.' + name]} {error:.0e}" for name, error in self.walk.errors.items())
        key = "check.toy" if self.walk.is_toy else "check.text"
        text = self.say(key, errors=self.wording["errors.comma"].join(errors), model=self.walk.model)
        return self._step("check", [text, self.say("caution")])

    def summary(self) -> Step:
        """The formulas of the whole head, each with the shapes of its matrices."""
        walk = self.walk
        latex, characters = self._scores_formula()
        scores = f"S = {characters}" if len(characters) <= _SHORT_FORMULA else "S"  # the line above has it
        rows = [(self._projection(symbol), self._of_projection(symbol)) for symbol in "QKV"]
        rows += [
            (scores, f"{self._size('Q')} · {self._size('K', transpose=True)} → {self._size('scores')}"),
            (f"A = softmax(S{self.plus_mask})", self._size("weights")),
            ("O = A V", f"{self._size('weights')} · {self._size('V')} → {self._size('head_output')}"),
        ]
        table = Table(self.wording["summary.caption"], (self.wording["summary.formula"], ""), tuple(rows))
        whole = rf"\mathrm{{Attention}}(Q, K, V) = \mathrm{{softmax}}\left({latex}{self.plus_mask}\right) V"
        plain_formula = f"Attention(Q, K, V) = softmax({characters}{self.plus_mask}) V"
        text = self.say("summary.text", queries=len(walk.tokens), keys=len(walk.keys), width=walk["Q"].shape[1])
        return self._step("summary", [text], table, latex=whole, characters=plain_formula)

    def _of_projection(self, symbol: str) -> str:
        """Shapes of a projection, from its input to its output."""
        walk = self.walk
        if f"W_{symbol}" not in walk:
            return self._size(symbol)
        x = "memory" if "memory" in walk and symbol != "Q" else "X"
        return f"{self._size(x)} · {self._size(f'W_{symbol}')} → {self._size(symbol)}"

    def _size(self, name: str, *, transpose: bool = False) -> str:
        """The shape of a matrix of one text, as in 14×64."""
        sizes = self.walk[name].shape
        return "×".join(map(str, sizes[::-1] if transpose else sizes))

    def _shape(self, name: str) -> str:
        sizes = self.walk[name].shape
        if self.walk.texts > 1 and set(self.walk.arrays[name].dims) & {"query", "key"}:
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
        return corner(self.walk[name], caption, self.key_rows, self.columns - 1, marked=self.marked_key)

    def _square(self, name: str, symbol: str, values: np.ndarray | None = None) -> Table:
        """Some rows and columns of a matrix of queries by keys."""
        values, allowed = self.walk[name] if values is None else values, self.walk["allowed"]
        digits = 3 if "weights" in name else decimals_for(values.astype(float))

        def cell(row: int, column: int) -> str:
            if name == "allowed":
                return self.wording["allowed" if values[row, column] else "masked"]
            return "" if name == "weights" and not allowed[row, column] else number(values[row, column], digits)

        distribution = values if "weights" in name else None
        caption = self._caption(symbol, name, len(self.rows))
        marked = _index(self.rows, self.at)
        others = self.wording["column.others" if distribution is None else "column.sum"]
        axes = self.rows, self.key_columns, self.walk.keys
        return square(caption, *axes, cell, others, marked=marked, distribution=distribution)


def same_output(row: np.ndarray, values: np.ndarray) -> np.ndarray | None:
    """Other weights ``a'`` with ``a' @ values == row @ values``, not negative, of the same sum; None if none exist.

    They differ by a null vector of the values and of the sum, as far as no weight becomes negative. It is the one that
    takes most from the largest weight that can change.
    """
    constraints = np.column_stack([values, np.ones(len(row))]).T
    _, sizes, right = np.linalg.svd(constraints)
    rank = int((sizes > sizes.max() * max(constraints.shape) * np.finfo(float).eps).sum())
    null = right[rank:]
    free = (null**2).sum(0)  # how much of each token's direction leaves the output as it is
    if not len(null):
        return None
    step = -null.T @ null[:, np.argmax(row * free)]
    down = step < 0
    return np.maximum(0.0, row + step * (row[down] / -step[down]).min())


def _named(positions: list[int], tokens: tuple[str, ...]) -> Named:
    return [(i, short(f"{i} {visible(tokens[i])}", _LONGEST_NAME)) for i in positions]


def _bar(weight: float) -> str:
    """A bar with steps of an eighth of a column."""
    eighths = round(weight * _BAR * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def shown_tokens(row: np.ndarray, first: list[int], count: int) -> list[int]:
    """Positions to show, in order: some first, then the ends of the text, then the largest weights."""
    ends = [0, len(row) - 1]
    return sorted([*dict.fromkeys([*first, *ends, *np.argsort(-row, kind="stable").tolist()])][:count])


def number(value: float, decimals: int) -> str:
    """Write a number; with a power of ten if it is too wide for its column."""
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
    r"""Write a token with its spaces at the ends and its invisible characters marked."""
    text = re.sub(r"\r\n?|\n", "⏎", with_marked_spaces(token)) or "∅"
    return "".join(letter if letter.isprintable() else f"U+{ord(letter):04X}" for letter in text)


def spoken(token: str) -> str:
    """Write a token within a sentence, without surrounding spaces if it has other characters."""
    return visible(token.strip() or token)


def short(text: str, columns: int) -> str:
    """Cut a text to a number of terminal columns; a Japanese character takes two."""
    if cell_len(text) <= columns:
        return text
    return set_cell_size(text, columns - 1).rstrip() + "…"


def corner(values: np.ndarray, caption: str, rows: Named, columns: int, *, marked: int | None = None) -> Table:
    """Some rows of a matrix and its first columns."""
    count = min(values.shape[1], columns)
    more = ["…"] * (values.shape[1] > count)
    part = values[[row for row, _ in rows], :count]
    digits = decimals_for(part if marked is None else values[marked, :count])
    cells = [
        (name, *(number(value, digits) for value in line), *more) for (_, name), line in zip(rows, part, strict=True)
    ]
    return Table(caption, ("", *map(str, range(count)), *more), tuple(cells), marked=_index(rows, marked), shades=True)


_HEADING = 6  # columns of a terminal


def shown_columns(weights: np.ndarray, rows: list[int], first: list[int], columns: int) -> list[int]:
    """Positions of the columns of a matrix; if not all fit, the last column stands for the others.

    The largest weight of each row comes before all else: a row without it would say nothing.
    """
    keys = weights.shape[1]
    largest = weights[rows].argmax(1).tolist()
    count = columns if keys <= columns else columns - 1
    return shown_tokens(weights[rows[0]], [*largest[:1], *first, *largest[1:]], count)


def rows_within(weights: np.ndarray, rows: list[int], columns: list[int]) -> list[int]:
    """The rows whose largest weight is among the columns."""
    return [row for row in rows if int(weights[row].argmax()) in columns]


def square(
    caption: str,
    rows: Named,
    columns: list[int],
    keys: tuple[str, ...],
    cell: Callable[[int, int], str],
    others: str,
    *,
    marked: int | None,
    distribution: np.ndarray | None = None,
) -> Table:
    """Some rows and columns of a matrix by keys; of a distribution, the last column has the sum of the other keys."""
    headings = [f"{i}\n{short(visible(keys[i]), _HEADING)}" for i in columns]
    lines = [[name, *(cell(row, i) for i in columns)] for row, name in rows]
    hidden = len(keys) - len(columns)
    if hidden:
        headings.append(others.format(count=hidden))
        for (row, _), line in zip(rows, lines, strict=True):
            line.append("…" if distribution is None else number(np.delete(distribution[row], columns).sum(), 3))
    return Table(caption, ("", *headings), tuple(map(tuple, lines)), marked=marked, shades=True)


def _index(rows: Named, marked: int | None) -> int | None:
    return next((index for index, (row, _) in enumerate(rows) if row == marked), None)


_COLUMNS = 10  # of a matrix in Markdown
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|$~])")


def markdown(walk: Walk | RecurrentWalk, language: str = "en") -> str:
    r"""Write a walk as Markdown, with formulas between ``$$``."""
    title, below = heading(walk, language)
    parts = [f"# {escape(title)}", *map(escape, below)]
    for at, step in enumerate(steps(walk, language, columns=_COLUMNS), 1):
        parts.append(f"## {at}. {escape(step.title)}")
        if step.formula:
            parts.append(f"$$\n{step.formula}\n$$")
        parts += map(escape, step.text)
        for table in step.tables:
            parts += [f"**{escape(table.caption)}**", _table(table)]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    r"""Escape the special characters of Markdown."""
    return _SPECIAL.sub(r"\\\1", text)


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


def terminal(walk: Walk | RecurrentWalk, language: str = "en", *, width: int = 80) -> Group:
    """Lay a walk out for rich: ``Console().print(terminal(walk))``."""
    title, below = heading(walk, language)
    columns = max(3, min(_MOST_COLUMNS, (width - _NAMES) // _COLUMN))
    parts: list[RenderableType] = [Text(title, style="bold reverse")]
    parts += [Text(wrapped(line, width)) for line in below]
    for at, step in enumerate(steps(walk, language, columns=columns), 1):
        parts += ["", *_terminal_step(at, step, width - _INDENT)]
    return Group(*parts)


def _terminal_step(at: int, step: Step, width: int) -> list[RenderableType]:
    within: list[RenderableType] = []
    if step.plain_formula:
        within.append(Text(step.plain_formula, style="cyan"))
    within += [Text(wrapped(paragraph, width)) for paragraph in step.text]
    for table in step.tables:
        within += [Text(""), Text(table.caption, style="italic"), _terminal_table(table, width)]
    inside = [Padding(part, (0, 0, 0, _INDENT), expand=False) for part in within]
    return [Text(f"{at}  {step.title}", style="bold"), *inside]


def wrapped(text: str, width: int) -> str:
    """Break a text into lines: between words, and between any two Japanese characters except before 、 or 。."""
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
    laid_out = RichTable(
        box=box.SIMPLE_HEAD,
        padding=(0, int(roomy)),  # narrow rather than truncated
        show_edge=False,
    )
    for index, name in enumerate(table.headings):
        bar = index == len(table.headings) - 1 and not name
        laid_out.add_column(Text(name), justify="left" if (index == 0 or bar) else "right", no_wrap=True)
    for index, row in enumerate(table.rows):
        marked = index == table.marked
        name, *cells = row
        laid_out.add_row(Text(("▸ " if marked else "  ") + name), *map(Text, cells), style="bold" if marked else "")
    return laid_out
