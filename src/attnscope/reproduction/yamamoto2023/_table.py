"""The published numbers of position waves beside what a model gives: which hold, which do not, which cannot be told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from attnscope.errors import AttnscopeError
from attnscope.mechanism import Study
from attnscope.mechanism.evidence import Windows, position_table
from attnscope.reproduction.yamamoto2023._finding import Finding
from attnscope.reproduction.yamamoto2023._models import GPT2, SHAPES, check_published, is_shaped_like
from attnscope.reproduction.yamamoto2023._rows import ROWS, Row
from attnscope.reproduction.yamamoto2023._subject import Subject

if TYPE_CHECKING:
    from transformers import PreTrainedModel

KEY = (
    "S: Yamamoto and Matsuzaki (NLP 2023); E: their paper of EMNLP 2023; K21: Kobayashi et al. (EMNLP 2021). Layers "
    "and heads count from 1, as there. agrees, differs: within our tolerance or not; by chance: so many untrained "
    "models of that shape are within it too; same shape, other weights: nothing says that these are the published "
    "weights; not comparable: of another model than the published one; descriptive: nothing to hold it "
    "against; not run: cannot be had of this model."
)
COLUMNS = ("#", "quantity", "published", "source", "this model", "tolerance", "by chance", "verdict")


def paper_table(
    model: PreTrainedModel,
    windows: Windows,
    *,
    band: int = 10,
    seed: int = 0,
    published_as: str | None = None,
) -> xr.Dataset:
    """Every published number beside that of a model.

    Parameters
    ----------
    model
        In eval mode, with a table of absolute positions.
    windows
        Two or more windows, or lists of token ids, all equally long.
    band
        Largest offset of the profiles.
    seed
        Seed of the clustering.
    published_as
        Name of the published model whose weights these are, ``roberta-base`` or ``gpt2``. Only its values are held
        against this model: a model of the same sizes may hold any weights.

    Returns
    -------
    xarray.Dataset
        Over ``row`` (from 1): ``quantity``, ``published``, ``source``, ``ours``, ``tolerance``, ``by_chance``,
        ``verdict`` and ``note``, all text, and ``value``, a number (NaN where there is none). A verdict is ``agrees``,
        ``differs``, ``descriptive``, ``same shape, other weights``, ``not comparable`` or ``not run``; the note says
        why. Tolerances are ours, not the papers'. ``by_chance`` says how many untrained models of the published shape
        are within the tolerance too (``benchmarks/paper_chance.py``).

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
    >>> table = paper_table(model, np.random.default_rng(0).integers(5, 500, (2, 128)).tolist())
    >>> table.verdict.sel(row=[1, 3, 9]).values.tolist()
    ['not comparable', 'descriptive', 'not run']
    >>> str(table.note.sel(row=9).values)
    'no head(8,9) in 3 layers of 4 heads'
    """
    position_table(model)  # or an error that says what the model has instead
    check_published(published_as)
    return table_of(Subject(Study(model, list(windows), band=band, seed=seed)), published_as)


def table_of(subject: Subject, published_as: str | None = None) -> xr.Dataset:
    """`paper_table` of what was gathered already.

    Parameters
    ----------
    subject
        What was gathered.
    published_as
        Name of the published model that it is to be held against; by default found by class and sizes.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> from attnscope.mechanism import Study
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    >>> texts = np.random.default_rng(0).integers(5, 500, (2, 64)).tolist()
    >>> table = table_of(Subject(Study(BertModel(config).eval(), texts)))
    >>> table.attrs["texts"], table.verdict.sel(row=9).item()
    (2, 'not run')
    """
    filled = [_filled(subject, row, published_as) for row in ROWS]
    texts = ("quantity", "published", "source", "ours", "tolerance", "by_chance", "verdict", "note")
    return xr.Dataset(
        {name: ("row", np.array([row[name] for row in filled], dtype=object)) for name in texts}
        | {"value": ("row", np.array([row["value"] for row in filled]))},
        coords={"row": [row.number for row in ROWS]},
        attrs={
            "model": type(subject.model).__name__,
            "texts": subject.evidence.texts,
            "length": subject.length,
        },
    )


def paper_lines(table: xr.Dataset) -> list[tuple[str, ...]]:
    """Rows of a `paper_table` to be printed under the headings `COLUMNS`.

    Examples
    --------
    >>> texts = ("quantity", "published", "source", "ours", "tolerance", "by_chance", "verdict", "note")
    >>> paper_lines(xr.Dataset({name: ("row", [name.upper()]) for name in texts}, {"row": [4]}))
    [('4', 'QUANTITY', 'PUBLISHED', 'SOURCE', 'OURS', 'TOLERANCE', 'BY_CHANCE', 'VERDICT: NOTE')]
    """
    lines: list[tuple[str, ...]] = []
    for row in table["row"].values:
        fields = {str(name): str(values.item()) for name, values in table.sel(row=row).data_vars.items()}
        verdict = f"{fields['verdict']}: {fields['note']}" if fields["note"] else fields["verdict"]
        cells = ("quantity", "published", "source", "ours", "tolerance", "by_chance")
        lines.append((str(row), *(fields[name] for name in cells), verdict))
    return lines


def _filled(subject: Subject, row: Row, published_as: str | None) -> dict[str, Any]:
    """One row; what this model does not admit is not run, with the reason."""
    finding, reason = Finding(""), row.impossible
    if row.model == GPT2 and type(subject.model).__name__ not in SHAPES[GPT2].classes:
        reason = f"the model is not {GPT2}"
    if not reason:
        try:
            finding = row.find(subject)
        except AttnscopeError as error:
            reason = str(error)
    return {
        "quantity": row.quantity,
        "published": row.published,
        "source": row.source,
        "tolerance": row.tolerance,
        "by_chance": row.by_chance,
        "ours": finding.text,
        "value": float(finding.number),
        "verdict": "not run" if reason else _verdict(subject, finding, row, published_as),
        "note": reason or finding.note,
    }


def _verdict(subject: Subject, finding: Finding, row: Row, published_as: str | None) -> str:
    if finding.holds is None:
        return "descriptive"
    if published_as == row.model:
        return "agrees" if finding.holds else "differs"
    return "same shape, other weights" if is_shaped_like(subject.model, row.model) else "not comparable"
