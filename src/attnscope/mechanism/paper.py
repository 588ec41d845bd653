"""The published numbers of position waves beside what a model gives: which hold, which do not, which cannot be told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from attnscope.errors import AttnscopeError
from attnscope.mechanism._paper_rows import FINDERS, Case, Ours
from attnscope.mechanism._texts import Windows
from attnscope.mechanism.evidence import gather
from attnscope.mechanism.published import GPT2, PUBLISHED, SHAPES, Published, is_shaped_like
from attnscope.mechanism.tables import position_table

if TYPE_CHECKING:
    from transformers import PreTrainedModel

KEY = (
    "S: Yamamoto and Matsuzaki (NLP 2023); E: their paper of EMNLP 2023; K21: Kobayashi et al. (EMNLP 2021). Layers "
    "and heads count from 1, as there. agrees, differs: within our tolerance or not; not comparable: of "
    "another model than the published one; descriptive: nothing to hold it against; not run: cannot be had "
    "of this model."
)
COLUMNS = ("#", "quantity", "published", "source", "this model", "tolerance", "verdict")


def paper_table(
    model: PreTrainedModel,
    windows: Windows,
    *,
    band: int = 10,
    seed: int = 0,
    comparable: bool | None = None,
) -> xr.Dataset:
    """Every published number beside that of a model.

    Parameters
    ----------
    model
        In eval mode, with a table of absolute positions.
    windows
        Two or more windows, or lists of token ids, all equally long.
    band, seed
        Largest offset of the profiles; of the clustering.
    comparable
        Whether the published values are held against this model. By default only against a model of the class and
        sizes of roberta-base (rows 20 and 21: GPT-2).

    Returns
    -------
    xarray.Dataset
        Over ``row`` (from 1): ``quantity``, ``published``, ``source``, ``ours``, ``tolerance``, ``verdict`` and
        ``note``, all text, and ``value``, a number (NaN where there is none). A verdict is ``agrees``, ``differs``,
        ``descriptive``, ``not comparable`` or ``not run``; the note says why. Tolerances are ours, not the papers'.

    Raises
    ------
    AttnscopeError
        If the model has no table of absolute positions, or there are fewer than two windows.

    References
    ----------
    Yamamoto and Matsuzaki (2023), NLP2023 and EMNLP 2023; Kobayashi et al. (2021), EMNLP.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> from attnscope.capture import load_model
    >>> model = load_model(MODEL, device="cpu", need_tokenizer=False).model
    >>> found = paper_table(model, np.random.default_rng(0).integers(5, 500, (2, 128)).tolist())
    >>> found.verdict.sel(row=[1, 3, 9]).values.tolist()
    ['not comparable', 'descriptive', 'not run']
    >>> str(found.note.sel(row=9).values)
    'no head(8,9) in 3 layers of 4 heads'
    """
    position_table(model)  # or an error that says what the model has instead
    windows = list(windows)
    return table_of(Case(model, windows, gather(model, windows, band=band), {}, seed), comparable)


def table_of(case: Case, comparable: bool | None = None) -> xr.Dataset:
    """`paper_table` of what was gathered already."""
    rows = [_row(case, number, published, comparable) for number, published in PUBLISHED.items()]
    texts = ("quantity", "published", "source", "ours", "tolerance", "verdict", "note")
    return xr.Dataset(
        {name: ("row", np.array([row[name] for row in rows], dtype=object)) for name in texts}
        | {"value": ("row", np.array([row["value"] for row in rows]))},
        coords={"row": list(PUBLISHED)},
        attrs={"model": type(case.model).__name__, "texts": case.evidence.texts, "length": case.length},
    )


def paper_lines(table: xr.Dataset) -> list[tuple[str, ...]]:
    """Rows of a `paper_table` to be printed under the headings `COLUMNS`.

    Examples
    --------
    >>> texts = ("quantity", "published", "source", "ours", "tolerance", "verdict", "note")
    >>> paper_lines(xr.Dataset({name: ("row", [name.upper()]) for name in texts}, {"row": [4]}))
    [('4', 'QUANTITY', 'PUBLISHED', 'SOURCE', 'OURS', 'TOLERANCE', 'VERDICT: NOTE')]
    """
    lines: list[tuple[str, ...]] = []
    for row in table["row"].values:
        one = {str(name): str(values.item()) for name, values in table.sel(row=row).data_vars.items()}
        verdict = f"{one['verdict']}: {one['note']}" if one["note"] else one["verdict"]
        cells = (one["quantity"], one["published"], one["source"], one["ours"], one["tolerance"], verdict)
        lines.append((str(row), *cells))
    return lines


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
