"""`examples`: where in a corpus a head attends most strongly, in context, and the features that these pairs share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
import xarray as xr

from attnscope.bundled import MODEL
from attnscope.capture.borrow import verb
from attnscope.capture.modalities import reject_modalities
from attnscope.capture.parameters import Loading, ScanSettings, StudyReading
from attnscope.detection.common import LEAST_KEYS, ExamplePair, common_features
from attnscope.intervention.calls import checked_heads
from attnscope.kernels.call import AttentionCall
from attnscope.measure.maps import weight_rows
from attnscope.measure.texts import TextReader
from attnscope.read.encoded import Sources
from attnscope.read.groups import kinds_of
from attnscope.store.units import task_for
from attnscope.support.arguments import Count
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.capture.load import Model
    from attnscope.capture.watch import Site
    from attnscope.read.windows import Window

#: What rows are ranked by: the largest weight; that times the norm of the value; or the least entropy of a row.
RANKINGS = ("weight", "value_norm", "entropy")
CONTEXT = 16  # tokens shown before and after a marked one


@verb()
def examples(
    model: Model | None = None,
    texts: Sources = None,
    *,
    head: tuple[int, int] | Sequence[tuple[int, int]],
    k: Count = 20,
    by: str = "weight",
    query: str | None = None,
    key: str | None = None,
    sinks: bool = False,
    batch_size: Count | None = None,
    **reading: Unpack[StudyReading],
) -> xr.Dataset:
    r"""Find where in a corpus a head attends most strongly, in context, and the features that these pairs share.

    Every window is measured exactly, row by row; the memory does not grow with its weights. Each window has at most
    one example of a head, so that examples are different texts. The strongest windows (``top``) are compared with
    windows around the median (``middle``) and with rows drawn at random from all windows (``random``).

    Parameters
    ----------
    model
        A model of texts, as in `attnscope.scan`.
    texts
        Texts, as in `attnscope.scan`.
    head
        The head as (layer, head), counted from 0, or several.
    k
        Number of examples of each set.
    by
        What the strength of a row is: ``"weight"``, its largest weight :math:`\max_j A_{ij}`; ``"value_norm"``, the
        largest :math:`A_{ij} \lVert v_j \rVert` (Kobayashi et al. 2020, without the output projection); or
        ``"entropy"``, the least entropy (nats) among rows whose largest weight is on a key that counts.
    query, key
        A token, without the space around it, or a pattern between slashes (``"/[0-9]+/"``): only queries, or keys,
        that match it count. This also searches a corpus for a pair of tokens.
    sinks
        Whether the first token and special tokens count as keys. By default they do not, because many heads put most
        of their weight there.
    batch_size
        Windows at a time. By default about 2,048 tokens' worth.

    Returns
    -------
    xarray.Dataset
        Over ``example``: ``set``, ``layer``, ``head``, ``score``, ``weight``, ``query``, ``key`` (positions in the
        window), ``query_token``, ``key_token``, ``window_number``, ``text`` (its name) and ``context`` (JSON: pieces
        of text, each with the mark ``query``, ``key`` or none). Over ``feature``: what the top examples have in common,
        such as a token or an offset, with ``found`` examples, ``expected`` ones under uniform attention in the same
        windows, ``p`` and ``significant``. Over ``window`` and ``chosen`` (the heads): the strongest and one random row
        of every window.

    Raises
    ------
    AttnscopeError
        If there is no such head, no row counts, or an argument, the model or a text cannot be used.

    Notes
    -----
    Features are tested by a Poisson-binomial test: under uniform attention from a random query of the same window,
    the number of top examples with a feature is a sum of independent yes-or-no variables, one for each window.
    The false discovery rate over all features that could occur, of all heads, is 0.05 (Benjamini and Hochberg 1995).

    Examples
    --------
    >>> import attnscope
    >>> found = attnscope.examples(head=(0, 1), k=3, limit=8, window=64)
    >>> top = found.sel(example=found.set == "top")
    >>> bool((top.weight.diff("example") <= 0).all()), dict(top.sizes)["example"]
    (True, 3)
    """
    if by not in RANKINGS:
        raise AttnscopeError(f"by is {by!r:.60}; expected {', '.join(RANKINGS[:-1])} or {RANKINGS[-1]}")
    task = task_for(examples, locals(), in_memory=True)
    model = MODEL if model is None else model
    reject_modalities("examples", model, texts, field=reading["field"], revision=reading["revision"])
    heads: Any = [head] if len(head) == 2 and not isinstance(head[0], Sequence) else head  # noqa: PLR2004
    settings = ScanSettings(
        **{name: reading[name] for name in _SHARED},
        task=task,
        processor=reading["tokenizer"],
        loading=Loading(reading["revision"], reading["device"], reading["dtype"], reading["trust_remote_code"], None),
        statistics="entropy",
        batch_size=batch_size,
    )
    return ExampleReader(model, texts, settings, heads, Choice(k, by, query, key, sinks)).scan()


_SHARED = (ScanSettings.__annotations__.keys() & StudyReading.__annotations__.keys()) - {"task"}


@dataclass(frozen=True)
class Choice:
    """Which rows count, and how they are ranked."""

    k: int
    by: str
    query: str | None
    key: str | None
    sinks: bool


def matcher(wanted: str | None, name: str) -> Callable[[str], bool]:
    """Whether a token is the wanted one, or matches a pattern between slashes; any token if nothing is wanted."""
    if wanted is None:
        return lambda _: True
    if len(wanted) > 2 and wanted[0] == wanted[-1] == "/":  # noqa: PLR2004
        try:
            pattern = re.compile(wanted[1:-1])
        except re.error as error:
            raise AttnscopeError(f"{name} is {wanted!r:.60}, which is no regular expression: {error}") from None
        return lambda token: pattern.fullmatch(token.strip()) is not None
    if not wanted.strip():
        raise AttnscopeError(f"{name} is {wanted!r}; expected a token, or a pattern between slashes")
    return lambda token: token.strip() == wanted.strip()


@dataclass(frozen=True, eq=False)
class Sides:
    """The tokens of a window on both sides of a call, and which of them count."""

    queries: Window
    keys: Window
    rows: np.ndarray  # ``(query,)``
    columns: np.ndarray  # ``(key,)``


class ExampleReader(TextReader):
    """The strongest row of every window for some heads, and one at random."""

    command = "examples"

    def __init__(
        self, model: Model | None, texts: Sources, settings: ScanSettings, heads: Sequence[Any], choice: Choice
    ) -> None:
        self.choice = choice
        self.is_query, self.is_key = matcher(choice.query, "query"), matcher(choice.key, "key")
        super().__init__(model, texts, settings)
        known = [(site.index, head) for site in self.sites for head in range(site.heads)]
        self.heads = checked_heads(heads, known, "head")
        if "places" in self.notes:
            raise AttnscopeError(f"{self.notes['places']} Examples need attention between tokens")

    def signature_settings(self) -> dict[str, Any]:
        """The settings behind the numbers."""
        signed = super().signature_settings()
        names = ("limit", "seed", "window", "stride", "batch_size")
        return {name: signed[name] for name in names} | {"heads": self.heads} | vars(self.choice)

    def measure_batch(self, items: Sequence[Window], numbers: Sequence[int]) -> xr.Dataset:
        """The strongest row of each window, and a random one."""
        read = self.read(items, numbers)
        arrays = _empty(len(items), len(self.heads))

        def look(site: Site, call: AttentionCall) -> None:
            for place, (layer, head) in enumerate(self.heads):
                if layer != site.index:
                    continue
                for text, window in enumerate(items):
                    sides, draw = self.sides(window, site.kind), [self.settings.seed, numbers[text], layer, head]
                    for name, values in self._rows(call, text, head, sides, draw).items():
                        arrays[name][text, place] = values

        self.run(read, look, numbers)
        dims = {name: ("window", "chosen", "drawn")[: array.ndim] for name, array in arrays.items()}
        return xr.Dataset(
            {name: (dims[name], array) for name, array in arrays.items()}
            | {"length": ("window", np.array([len(window) for window in items]))},
            coords={
                "window": np.array(numbers),
                "source": ("window", np.array([window.source for window in items], dtype=object)),
                "start": ("window", np.array([window.start for window in items])),
                "drawn": ["strongest", "random"],
                "layer_of": ("chosen", np.array([layer for layer, _ in self.heads])),
                "head_of": ("chosen", np.array([head for _, head in self.heads])),
            },
        )

    def sides(self, window: Window, kind: str) -> Sides:
        """Both sides of a call; neither special tokens nor, by default, the first one count."""
        target = window.target or window
        queries, keys = (window if kind == "self" else target), (target if kind == "causal" else window)
        rows = np.array([not special for special in queries.special])
        columns = np.ones(len(keys), bool)
        if not self.choice.sinks:
            columns = ~np.array(keys.special)
            columns[:1] &= kind == "cross"
        rows &= [self.is_query(token) for token in queries.tokens]
        columns &= [self.is_key(token) for token in keys.tokens]
        return Sides(queries, keys, rows, columns)

    def _rows(self, call: AttentionCall, text: int, head: int, sides: Sides, draw: list[int]) -> dict[str, Any]:
        """Score, weight, query and key of the strongest row and of a random one, and what rows see."""
        shape, found = (len(sides.rows), len(sides.columns)), (call.query.shape[2], call.key.shape[2])
        if shape[0] > found[0] or shape[1] > found[1]:
            raise AttnscopeError(f"a layer attends over {found[1]} positions, but the window has {shape[1]} tokens")
        score, weight, key = np.full(shape[0], np.nan), np.zeros(shape[0]), np.zeros(shape[0], np.int64)
        columns = torch.from_numpy(sides.columns).to(call.key.device)
        norms = call.value[text, head // call.group, : shape[1]].float().norm(dim=-1)
        first, left, right = 0, 0, 0
        for block in weight_rows(call, head, shape[0], text=text):
            rows = slice(first, first + len(block))
            allowed = call.allowed(text, head, rows)[:, : shape[1]]
            counts, weights = allowed & columns, block[:, : shape[1]]
            of_rows = _strongest(weights, counts, allowed, norms, self.choice.by)
            score[rows], weight[rows], key[rows] = (values.double().cpu().numpy() for values in of_rows)
            reach = _reach(allowed, first)
            first, left, right = rows.stop, max(left, reach[0]), max(right, reach[1])
        candidates = np.flatnonzero(sides.rows & np.isfinite(score))
        if not len(candidates):
            return {"rows": 0}
        strongest = candidates[np.argmax(self.sign * score[candidates])]
        drawn = [strongest, candidates[np.random.default_rng(draw).integers(len(candidates))]]
        values = {"row_score": score[drawn], "row_weight": weight[drawn], "row_query": drawn, "row_key": key[drawn]}
        return values | {"rows": len(candidates), "left": left, "right": right}

    @property
    def sign(self) -> int:
        """-1 where a small score is a strong one."""
        return -1 if self.choice.by == "entropy" else 1

    def kinds(self) -> Callable[[xr.Dataset], xr.Dataset] | None:
        """The examples, from the rows of all windows."""
        return self._chosen

    def _chosen(self, results: xr.Dataset) -> xr.Dataset:
        chosen = [
            (place, name, int(at), int(name == "random"))
            for place in range(len(self.heads))
            for name, windows in self._sets(results, place).items()
            for at in windows
        ]
        if not chosen:
            wanted = {"query": self.choice.query, "key": self.choice.key}
            tokens = "".join(f", and the {name} be {value!r}" for name, value in wanted.items() if value is not None)
            raise AttnscopeError(
                f"found no example in {count(results.sizes['window'], 'window')}: a query must see {LEAST_KEYS} keys "
                f"or more{tokens}. Give longer texts, or other tokens"
            )
        windows = self._windows({int(results.window[at]) for _, _, at, _ in chosen})
        rows = [self._row(results, windows, *one) for one in chosen]
        pairs: dict[tuple[int, int], list[ExamplePair]] = {head: [] for head in self.heads}
        for (place, name, at, _), row in zip(chosen, rows, strict=True):
            if name == "top":
                sides = self.sides(windows[row["window_number"]], self.sites[row["layer"]].kind)
                extent = int(results.left[at, place]), int(results.right[at, place])
                pairs[row["layer"], row["head"]].append(_pair(sides, row, extent))
        features = common_features(pairs)
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        return xr.Dataset(
            {name: ("example", _array(values)) for name, values in columns.items()}
            | {f"feature_{name}": ("feature", _array(values)) for name, values in features.items()},
            attrs={"by": self.choice.by, "k": str(self.choice.k)},
        ).set_coords(["set"])

    def _sets(self, results: xr.Dataset, place: int) -> dict[str, np.ndarray]:
        """The windows of each set: the strongest, those around the median, and random ones by their rows."""
        score = self.sign * results.row_score.values[:, place, 0]
        order = np.argsort(-score, kind="stable")[: np.isfinite(score).sum()]
        k = self.choice.k
        rest = order[k:]
        begin = max(0, (len(rest) - k) // 2)
        rows = results.rows.values[order, place]
        keys = np.random.default_rng(self.settings.seed).random(len(score))[order]
        drawn = order[np.argsort(-(keys ** (1 / np.maximum(rows, 1))))[:k]]  # Efraimidis and Spirakis 2006
        return {"top": order[:k], "middle": rest[begin : begin + k], "random": drawn}

    def _windows(self, numbers: set[int]) -> dict[int, Window]:
        """Windows by their numbers, read again."""
        found: dict[int, Window] = {}
        for number, window in enumerate(self.items()):
            if number in numbers:
                found[number] = window
            if len(found) == len(numbers):
                break
        return found

    def _row(
        self, results: xr.Dataset, windows: Mapping[int, Window], place: int, name: str, at: int, drawn: int
    ) -> dict[str, Any]:
        (layer, head), number = self.heads[place], int(results.window[at])
        sides = self.sides(windows[number], self.sites[layer].kind)
        query, key = (int(results[side][at, place, drawn]) for side in ("row_query", "row_key"))
        return {
            "set": name,
            "layer": layer,
            "head": head,
            "score": float(results.row_score[at, place, drawn]),
            "weight": float(results.row_weight[at, place, drawn]),
            "query": query,
            "key": key,
            "query_token": sides.queries.tokens[query],
            "key_token": sides.keys.tokens[key],
            "window_number": number,
            "text": str(windows[number].source),
            "context": json.dumps(context(sides.queries, sides.keys, query, key), ensure_ascii=False),
        }


def _empty(windows: int, heads: int) -> dict[str, np.ndarray]:
    """Arrays of a batch: NaN, and no position, where no row counts."""
    numbers = {name: np.full((windows, heads, 2), np.nan) for name in ("row_score", "row_weight")}
    positions = {name: np.full((windows, heads, 2), -1) for name in ("row_query", "row_key")}
    return numbers | positions | {name: np.zeros((windows, heads), np.int64) for name in ("rows", "left", "right")}


def _strongest(
    weights: Tensor, counts: Tensor, allowed: Tensor, norms: Tensor, by: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Score of each row (NaN where it does not count), and weight and number of the key behind it."""
    strength = (weights * norms if by == "value_norm" else weights).masked_fill(~counts, -1.0)
    score, key = strength.max(-1)
    weight = weights.gather(-1, key[:, None])[:, 0]
    counted = (allowed.sum(-1) >= LEAST_KEYS) & (score >= 0)
    if by == "entropy":
        counted &= weight >= weights.max(-1).values
        score = -torch.xlogy(weights, weights).sum(-1)
    return score.masked_fill(~counted, torch.nan), weight, key


def _reach(allowed: Tensor, first: int) -> tuple[int, int]:
    """How far rows from `first` on see to the left and to the right."""
    sees = allowed.any(-1)
    if not bool(sees.any()):
        return 0, 0
    own = torch.arange(first, first + len(allowed), device=allowed.device)[sees]
    most = allowed.shape[1] - 1
    low, high = allowed[sees].int().argmax(-1), most - allowed[sees].flip(-1).int().argmax(-1)
    return int((own - low).max().clamp_min(0)), int((high - own).max().clamp_min(0))


def context(queries: Window, keys: Window, query: int, key: int) -> list[tuple[str, str]]:
    """Pieces of text around both tokens, each with the mark ``query``, ``key`` or none."""
    if queries is not keys:
        pieces = [*_around(queries.tokens, {query: "query"}), (" ← ", ""), *_around(keys.tokens, {key: "key"})]
        return list(pieces)
    if query == key:
        return list(_around(queries.tokens, {query: "query"}))
    return list(_around(queries.tokens, {key: "key", query: "query"}))


def _around(tokens: Sequence[str], marks: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    """The tokens near the marked ones, with an ellipsis where some are left out."""
    last = -1
    for at in sorted(marks):
        begin, start = max(last + 1, at - CONTEXT), last + 1
        text = "".join(tokens[begin:at])
        if begin > start + CONTEXT and start:
            text = f"{''.join(tokens[start : start + CONTEXT])} … {text}"
        elif begin > start:
            text = f"{''.join(tokens[start:begin]) if start else '… '}{text}"
        token = tokens[at]
        bare = token.strip() or token
        before, _, after = token.partition(bare)  # spaces are outside of the mark
        yield from ((_on_a_line(text + before), ""), (bare, marks[at]), (_on_a_line(after), ""))
        last = at
    end = last + 1 + CONTEXT
    yield _on_a_line("".join(tokens[last + 1 : end]) + (" …" if end < len(tokens) else "")), ""


def _on_a_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def _pair(sides: Sides, row: Mapping[str, Any], extent: tuple[int, int]) -> ExamplePair:
    same = sides.queries is sides.keys
    return ExamplePair(
        [token.strip() for token in sides.queries.tokens],
        [token.strip() for token in sides.keys.tokens],
        kinds_of(sides.queries),
        kinds_of(sides.keys),
        sides.rows,
        sides.columns,
        extent if same else None,
        row["query"],
        row["key"],
    )


def _array(values: list[Any]) -> np.ndarray:
    return np.array(values, dtype=object if values and isinstance(values[0], str) else None)
