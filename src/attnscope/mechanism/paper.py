"""The published numbers of position waves beside what a model gives: which hold, which do not, which cannot be told.

Sources: ``S`` is Yamamoto and Matsuzaki (NLP2023), ``E`` their paper of EMNLP 2023, ``K21`` Kobayashi et al. (EMNLP
2021), table 2. All but rows 20 and 21 are about roberta-base. Papers count layers and heads from 1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from attnscope.bundled import MODEL
from attnscope.capture import load_model
from attnscope.corpus import Corpus, Sources
from attnscope.errors import AttnscopeError
from attnscope.mechanism._paper_rows import FINDERS, PAPER_LENGTH, Case, Ours
from attnscope.mechanism._texts import Windows
from attnscope.mechanism.evidence import gather
from attnscope.mechanism.explain import DEFAULT_TEXTS, Kept, Step, equal_windows, explain
from attnscope.mechanism.phase_map import phase_map
from attnscope.mechanism.tables import position_table
from attnscope.statistics import window_length
from attnscope.store import RunFolder

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROBERTA, GPT2 = "roberta-base", "gpt2"
NAMED_HEADS = ((1, 1), (2, 3), (7, 5), (8, 9))  # (layer, head), from 1
FIGURE_6 = (25, 60)  # cycles per 512 tokens
COMPLETIONS = ("minimal", "lapack")
COLUMNS = ("#", "quantity", "published", "source", "this model", "tolerance", "verdict")


@dataclass(frozen=True)
class Published:
    """A row of the table: what was published, where, of which model, and what we take for agreement."""

    quantity: str
    value: str
    source: str
    tolerance: str = ""
    model: str = ROBERTA
    not_run: str = ""


@dataclass(frozen=True)
class Shape:
    """How a published model is recognised: classes, and sizes in its config."""

    classes: tuple[str, ...]
    sizes: Mapping[str, int]


SHAPES = {
    ROBERTA: Shape(
        ("RobertaForMaskedLM",),
        {
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "hidden_size": 768,
            "max_position_embeddings": 514,
            "vocab_size": 50265,
        },
    ),
    GPT2: Shape(
        ("GPT2LMHeadModel", "GPT2Model"),
        {
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "hidden_size": 768,
            "max_position_embeddings": 1024,
            "vocab_size": 50257,
        },
    ),
}

PUBLISHED: dict[int, Published] = {
    1: Published("variance of the position table in 4 dimensions", "50.51%", "S app. B, E 4.1.2", "0.01 points"),
    2: Published("the same in 12 dimensions", "92.23%", "S, E", "0.01 points"),
    3: Published("dimensions that positions take", "about 15", "E 4.1"),
    4: Published("peak of the table's spectrum", "near f=50", "S 3.3", "in 40..60, 3 x noise"),
    5: Published("periods of the table's waves", "about 8 tokens or more", "E 4.3", "10% at shorter periods"),
    6: Published("spectrum of words", "no peak", "S, E", "no column passes Fisher's g at 0.001"),
    7: Published("profiles clustered", "14,400, k=6, 21 offsets", "S 3.1, E 3"),
    8: Published("heads with one or two labels over the texts", "all", "E 3 (S: most)", "90% of heads"),
    9: Published("head(8,9)", "t=-1, sharp", "S 3.1, 3.5; E", "largest weight at -1"),
    10: Published("head(2,3)", "t=+1", "S 3.4", "largest weight at +1"),
    11: Published("head(1,1)", "left; scores at t=-2", "S 3.4, 3.5", "scores at -3..-1"),
    12: Published("head(7,5)", "right, softly (inferred)", "S 3.1", "more weight right than left"),
    13: Published("head(1,1), columns 5 and 6", "t=-2, -3", "E 4.3", "both at -2 or -3"),
    14: Published("head(1,1), lobes that cancel", "near t=±30", "S 3.5"),
    15: Published("periodic columns of a positional head", "4 to 12", "S 3.3, app. B", "median in 4..12"),
    16: Published(
        "spectra of Q and K near f=50", "a peak, none in X, less in deeper layers", "S 3.3, E 4.2.2",
        "Q, K over noise and X in layer 1; last layer lower",
    ),
    17: Published("where position is lost", "layers 3 and 4 (cited)", "E 4.2.2"),
    18: Published(
        "components that X shares with positions", "5 to 20, fewer in deeper layers", "E 4.1.2",
        "5..20 correlations over 0.5",
    ),
    19: Published("tokens behind row 18", "200 x 512", "E"),
    20: Published("GPT-2: waves of its table", "f<10, periods over 51.2", "E app. C", "90% of the energy", model=GPT2),
    21: Published("GPT-2: profiles of scores clustered", "k=2, t=-30..30", "E app. C", model=GPT2),
    22: Published(
        "positions learned anew", "8,645 samples, 3 unknown tokens", "E app. E",
        not_run="needs training: relearn_positions does it",
    ),
    23: Published(
        "words for a mask after that", "article, adventure, exercise, essay, experiment", "E table 1",
        not_run="needs the table that relearn_positions trains, and the paper's sentence",
    ),
    24: Published("BERT's training steps at 128 tokens", "90%", "S, E"),
    25: Published(
        "RoBERTa's mixing ratio: weights, norms, half residual, residual, LayerNorm",
        "95.8, 84.4, 47.9, 19.6, 16.2%", "K21", "2 points",
        not_run="norms of what is mixed: not a part of explain",
    ),
    26: Published(
        "BERT's mixing ratio", "97.1, 85.2, 48.6, 22.3, 18.8%", "K21", "2 points",
        not_run="norms of what is mixed: not a part of explain",
    ),
}  # fmt: skip


def paper_table(
    source: Any,
    texts: Sources = None,
    *,
    window: int | None = None,
    limit: int = DEFAULT_TEXTS,
    band: int = 10,
    seed: int = 0,
    comparable: bool | None = None,
    field: str | None = None,
    by_line: bool = False,
    **load: Any,
) -> xr.Dataset:
    """Every published number beside that of a model.

    Parameters
    ----------
    source
        A folder, a hub id, or a loaded model with ``tokenizer=``; it must have a table of absolute positions.
    texts
        As in `attnscope.scan`; by default the bundled sample.
    window, limit
        Tokens of a window, by default 512 or what the model takes; how many windows.
    band, seed
        Largest offset of the profiles; of the clustering.
    comparable
        Whether the published values are held against this model. By default only against a model of the class and
        sizes of roberta-base (rows 20 and 21: GPT-2).
    field, by_line
        See `attnscope.scan`.
    **load
        See `attnscope.capture.load_model`.

    Returns
    -------
    xarray.Dataset
        Over ``row`` (from 1): ``quantity``, ``published``, ``source``, ``ours``, ``tolerance``, ``verdict`` and
        ``note``, all text, and ``value``, a number (NaN where there is none). A verdict is ``agrees``, ``differs``,
        ``descriptive``, ``not comparable`` or ``not run``; the note says why. Tolerances are ours, not the papers'.

    Raises
    ------
    AttnscopeError
        If the model has no table of absolute positions, or the texts do not fill two windows.

    References
    ----------
    Yamamoto and Matsuzaki (2023), NLP2023 and EMNLP 2023; Kobayashi et al. (2021), EMNLP.

    Examples
    --------
    >>> found = paper_table(MODEL, limit=4)
    >>> found.verdict.sel(row=[1, 3, 9]).values.tolist()
    ['not comparable', 'descriptive', 'not run']
    >>> str(found.note.sel(row=9).values)
    'no head(8,9) in 3 layers of 4 heads'
    """
    loaded = load_model(source, **load)
    length = (
        min(window_length(loaded, window), PAPER_LENGTH) if window is None else window_length(loaded, window)
    )
    windows = equal_windows(Corpus.from_sources(texts, field=field, by_line=by_line), loaded, length, limit)
    return table_of_windows(loaded.model, windows, band=band, seed=seed, comparable=comparable)


def table_of_windows(
    model: PreTrainedModel,
    windows: Windows,
    *,
    band: int = 10,
    seed: int = 0,
    comparable: bool | None = None,
    analyses: Mapping[str, xr.Dataset] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> xr.Dataset:
    """`paper_table` of a model in eval mode and windows, or lists of token ids, that are all equally long.

    Parameters
    ----------
    model, windows, band, seed, comparable
        See `paper_table`.
    analyses
        What `explain` found in the same windows (``waves``, ``position_cca``, ``spectra``): not computed again.
    progress
        Called with texts done and texts in all.

    Examples
    --------
    >>> model = load_model(MODEL, device="cpu", need_tokenizer=False).model
    >>> ids = np.random.default_rng(0).integers(5, 500, (2, 128)).tolist()
    >>> float(table_of_windows(model, ids).value.sel(row=19))
    256.0
    """
    position_table(model)  # or an error that says what the model has instead
    windows = list(windows)
    evidence = gather(model, windows, band=band, progress=progress)
    case = Case(model, windows, evidence, analyses or {}, seed)
    rows = [_row(case, number, published, comparable) for number, published in PUBLISHED.items()]
    texts = ("quantity", "published", "source", "ours", "tolerance", "verdict", "note")
    found = xr.Dataset(
        {name: ("row", np.array([row[name] for row in rows], dtype=object)) for name in texts}
        | {"value": ("row", np.array([row["value"] for row in rows]))},
        coords={"row": list(PUBLISHED)},
    )
    return found.assign_attrs(model=type(model).__name__, texts=evidence.texts, length=evidence.length)


def paper_lines(table: xr.Dataset) -> list[tuple[str, ...]]:
    """Rows of a `paper_table` to be printed under the headings `COLUMNS`.

    Examples
    --------
    >>> lines = paper_lines(paper_table(MODEL, limit=4))
    >>> len(lines), len(lines[0]) == len(COLUMNS), lines[19][-1]
    (26, True, 'not run: the model is no gpt2')
    """
    lines: list[tuple[str, ...]] = []
    for row in table["row"].values:
        one = {str(name): str(values.item()) for name, values in table.sel(row=row).data_vars.items()}
        verdict = f"{one['verdict']}: {one['note']}" if one["note"] else one["verdict"]
        cells = (one["quantity"], one["published"], one["source"], one["ours"], one["tolerance"], verdict)
        lines.append((str(row), *cells))
    return lines


def reproduce(
    model: str | Path | PreTrainedModel | None = None,
    texts: Sources = None,
    out: str | Path | Callable[[dict[str, Any]], Path] | None = None,
    *,
    tokenizer: Any = None,
    window: int | None = None,
    limit: int = DEFAULT_TEXTS,
    band: int = 10,
    seed: int = 0,
    comparable: bool | None = None,
    field: str | None = None,
    by_line: bool = False,
    device: str | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    progress: Callable[[Step], None] | None = None,
    **options: Any,
) -> tuple[xr.DataTree, xr.Dataset]:
    """`explain` with the papers' settings, figure 6 in their form, and the table of published numbers.

    Parameters
    ----------
    model, texts, tokenizer, out, limit, band, seed, field, by_line, device, dtype, revision, trust_remote_code
        See `explain`. The run folder also gets ``figure_6`` and ``paper``.
    window, comparable
        See `paper_table`.
    progress
        Called before each analysis.
    **options
        Of `explain`: ``frequencies``, ``intervene``, ...

    Returns
    -------
    xarray.DataTree
        That of `explain`, with two more nodes. ``figure_6``: `phase_map` of the heads that the papers show, by
        ``named_head`` (``"8.9"``, from 1) and ``completion`` (``minimal``, and ``lapack`` as in the papers), on the
        first text and without biases; not there where the model has none of these heads. ``paper``: the table.
    xarray.Dataset
        The table: see `paper_table`.

    Raises
    ------
    AttnscopeError
        As `explain` and `paper_table`.

    Examples
    --------
    >>> tree, table = reproduce(limit=4)
    >>> tree["figure_6"].named_head.values.tolist(), table.sizes["row"]
    (['1.1', '2.3'], 26)
    """
    source = MODEL if model is None else model
    load: dict[str, Any] = {"tokenizer": tokenizer, "device": device, "dtype": dtype, "revision": revision}
    loaded = load_model(source, **load, trust_remote_code=trust_remote_code)
    position_table(loaded.model)
    length = (
        min(window_length(loaded, window), PAPER_LENGTH) if window is None else window_length(loaded, window)
    )
    tell = progress or (lambda _: None)
    tree = explain(
        source, texts, **load, out=out, window=length, limit=limit, band=band, seed=seed, field=field,
        by_line=by_line, trust_remote_code=trust_remote_code, **options,
        progress=lambda step: tell(Step(step.name, 0.7 * step.share)),
    )  # fmt: skip
    windows = equal_windows(Corpus.from_sources(texts, field=field, by_line=by_line), loaded, length, limit)
    found = {name: node.to_dataset() for name, node in tree.children.items()}

    def table() -> xr.Dataset:
        return table_of_windows(
            loaded.model, windows, band=band, seed=seed, comparable=comparable, analyses=found,
            progress=lambda done, total: tell(Step("published numbers", 0.75 + 0.25 * done / total)),
        )  # fmt: skip

    def both(kept: Kept) -> tuple[xr.Dataset | None, xr.Dataset]:
        tell(Step("figure 6", 0.7))
        figure = figure_6(loaded.model, windows[:2], seed=seed)
        return (None if figure is None else kept.get("figure_6", lambda: figure)), kept.get("paper", table)

    if out is None:
        figure, numbers = both(Kept(None))
    else:
        with RunFolder(Path(tree.attrs["run"]), json.loads(tree.attrs["signature"])) as run:
            figure, numbers = both(Kept(run))
    if figure is not None:
        tree["figure_6"] = xr.DataTree(figure)
    tree["paper"] = xr.DataTree(numbers)
    tell(Step("done", 1.0))
    return tree, numbers


def figure_6(model: PreTrainedModel, windows: Windows, *, seed: int = 0) -> xr.Dataset | None:
    """Phase maps of the heads that the papers show, in their form: on the first text, without biases.

    Parameters
    ----------
    model
        In eval mode.
    windows
        Two or more windows, or lists of token ids, all equally long.
    seed
        See `phase_map`.

    Returns
    -------
    xarray.Dataset or None
        `phase_map` over ``named_head`` (``"8.9"``, from 1) and ``completion`` (``minimal`` and the papers' own,
        ``lapack``); None where the model has none of these heads or their scores are not bilinear in X.

    Examples
    --------
    >>> model = load_model(MODEL, device="cpu", need_tokenizer=False).model
    >>> found = figure_6(model, np.random.default_rng(0).integers(5, 500, (2, 128)).tolist())
    >>> found.median_shift.dims
    ('named_head', 'completion')
    """
    windows = list(windows)
    evidence = gather(model, windows)
    case = Case(model, windows, evidence, {}, seed)
    length = evidence.length
    band = tuple(max(1, round(edge * length / PAPER_LENGTH)) for edge in FIGURE_6)
    found: dict[str, xr.Dataset] = {}
    for layer, head in NAMED_HEADS:
        try:
            place, number = case.head(layer, head)
        except AttnscopeError:
            continue
        if place.projections.form != "bilinear":
            continue
        query, key = place.matrices(number, affine=False)
        maps = [
            phase_map(place.sample, query, key, completion=name, band=(band[0], band[1]), seed=seed)
            for name in COMPLETIONS
        ]
        found[f"{layer}.{head}"] = xr.concat(
            maps, xr.Variable("completion", list(COMPLETIONS)), combine_attrs="drop_conflicts"
        )
    if not found:
        return None
    return xr.concat(list(found.values()), xr.Variable("named_head", list(found)), combine_attrs="override")


def is_shaped_like(model: PreTrainedModel, name: str) -> bool:
    """Whether a model has the class and sizes of a published one, ``"roberta-base"`` or ``"gpt2"``.

    Examples
    --------
    >>> is_shaped_like(load_model(MODEL, device="cpu", need_tokenizer=False).model, "roberta-base")
    False
    """
    sizes = SHAPES[name].sizes.items()
    return type(model).__name__ in SHAPES[name].classes and all(
        getattr(model.config, size, None) == wanted for size, wanted in sizes
    )


def _row(case: Case, number: int, published: Published, comparable: bool | None) -> dict[str, Any]:
    """One row; what this model does not admit is not run, with the reason."""
    ours, reason = Ours(""), published.not_run
    if published.model == GPT2 and type(case.model).__name__ not in SHAPES[GPT2].classes:
        reason = f"the model is no {GPT2}"
    if not reason:
        try:
            ours = FINDERS[number](case)
        except AttnscopeError as error:
            reason = str(error)
    holds = is_shaped_like(case.model, published.model) if comparable is None else comparable
    return {
        "quantity": published.quantity,
        "published": published.value,
        "source": published.source,
        "tolerance": published.tolerance,
        "ours": ours.text,
        "value": float(ours.number),
        "verdict": "not run" if reason else _verdict(ours, holds),
        "note": reason or ours.note,
    }


def _verdict(ours: Ours, comparable: bool) -> str:
    if ours.holds is None:
        return "descriptive"
    return ("agrees" if ours.holds else "differs") if comparable else "not comparable"
