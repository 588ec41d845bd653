"""Tables of absolute positions and of words, with the rows that the model reads."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import nn

from attnscope.capture.families import has_class_token, is_embedding_projection, named_scheme
from attnscope.capture.verify import stored_positions
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Generator

    from transformers import PreTrainedModel


@dataclass(frozen=True, eq=False)
class PositionTable:
    """The vectors that a model adds to words (or patches) to tell their positions."""

    name: str  # where it lies in the model
    rows: Float[np.ndarray, "position width"]  # ``(position, width)``, float64: row p is what position p reads
    reserved: int  # how many rows were left out at the start
    scheme: str  # ``"sinusoidal"`` where every column is a sampled sinusoid, else ``"learned"``
    # ``(position, model width)``: `rows` times the embedding projection of a model whose table is narrower than its
    # layers (ALBERT, ELECTRA), without that projection's bias and the LayerNorm before it; else None
    projected: Float[np.ndarray, "position model_width"] | None
    class_token: bool  # whether row 0 belongs to a class token and not to a place in the picture (ViT)


def position_table(model: PreTrainedModel, part: str | None = None) -> PositionTable:
    """Find the table of absolute positions, as the model uses it."""
    tables = position_tables(model)
    if not tables:
        raise AttnscopeError(
            f"{type(model).__name__} has no table of absolute positions: {position_scheme(model)}. "
            "Choose an analysis that needs no table"
        )
    chosen = [table for table in tables if part is None or part in table.name]
    if not chosen:
        names = ", ".join(table.name for table in tables)
        raise AttnscopeError(f"no position table of {type(model).__name__} is called {part!r}: choose from {names}")
    return chosen[0]


def position_tables(model: PreTrainedModel) -> list[PositionTable]:
    """Every table of absolute positions in the model; none for RoPE, T5 and the like."""
    tables: list[PositionTable] = []
    for stored in stored_positions(model):
        rows = stored.tensor[stored.reserved :].detach().double().cpu().numpy()
        linear = embedding_projection(model, rows.shape[1])
        tables.append(
            PositionTable(
                name=stored.name,
                rows=rows,
                reserved=stored.reserved,
                scheme="sinusoidal" if is_sinusoidal(rows).all() else "learned",
                projected=None if linear is None else rows @ linear.weight.detach().double().cpu().numpy().T,
                class_token=has_class_token(model.get_submodule(stored.name.rpartition(".")[0])),
            )
        )
    return tables


def position_scheme(model: PreTrainedModel) -> str:
    """Say in words how the model tells positions."""
    if any(stored_positions(model)):
        return "it adds a table of absolute positions to its inputs"
    return named_scheme(model) or "how it tells positions is not known to attnscope"


def is_sinusoidal(rows: Float[np.ndarray, "position width"], tolerance: float = 1e-4) -> Bool[np.ndarray, " width"]:
    r"""Say which columns are sampled sinusoids of one frequency each."""
    if len(rows) < 4:  # noqa: PLR2004 three rows satisfy it whatever they are
        return np.zeros(rows.shape[1], dtype=bool)
    around, here = rows[2:] + rows[:-2], rows[1:-1]
    power = np.maximum((here**2).sum(0), np.finfo(np.float64).tiny)
    factor = (around * here).sum(0) / power
    rest = np.sqrt(((around - factor * here) ** 2).mean(0) / np.maximum((rows**2).mean(0), np.finfo(float).tiny))
    return (rest < tolerance) & (np.abs(factor) <= 2 + tolerance)


@torch.no_grad()
def word_table(model: PreTrainedModel) -> Float[np.ndarray, "word width"]:
    """Give the word embeddings as the embedding module returns them, float64."""
    embedding = word_embedding(model)
    ids = torch.arange(embedding.num_embeddings, device=embedding.weight.device)
    return embedding(ids).double().cpu().numpy()


def word_embedding(model: PreTrainedModel) -> nn.Embedding:
    """Give the module that turns token ids into vectors."""
    try:
        embedding = model.get_input_embeddings()
    except NotImplementedError:
        embedding = None
    if not isinstance(embedding, nn.Embedding):
        raise AttnscopeError(
            f"{type(model).__name__} has no table of words: it reads something else than text. "
            "Choose an analysis of positions or scores"
        )
    return embedding


def embedding_projection(model: PreTrainedModel, width: int) -> nn.Linear | None:
    """Find the linear layer from embeddings of this width to the model's width (ALBERT, ELECTRA), where there is
    one.
    """
    for name, module in model.named_modules():
        if is_embedding_projection(name) and isinstance(module, nn.Linear) and module.in_features == width:
            return module
    return None


@contextmanager
def replaced_positions(
    model: PreTrainedModel, replacements: dict[str, Float[np.ndarray, "position width"]]
) -> Generator[None]:
    """Let the model read other rows in its position tables; on leaving, every number is as it was."""
    tensors = {table.name: (table.tensor, table.reserved) for table in stored_positions(model)}
    for name, rows in replacements.items():
        if name not in tensors:
            raise AttnscopeError(f"there is no position table {name!r}: choose from {', '.join(tensors) or 'none'}")
        tensor, reserved = tensors[name]
        if rows.shape[1] != tensor.shape[1] or len(rows) > len(tensor) - reserved:
            raise AttnscopeError(
                f"found {len(rows)} rows of width {rows.shape[1]} for {name}; expected at most "
                f"{len(tensor) - reserved} of width {tensor.shape[1]}"
            )
    before = {name: tensors[name][0].detach().clone() for name in replacements}
    try:
        with torch.no_grad():
            for name, rows in replacements.items():
                tensor, reserved = tensors[name]
                tensor[reserved : reserved + len(rows)] = torch.from_numpy(rows).to(tensor)
        yield
    finally:
        with torch.no_grad():
            for name, rows in before.items():
                tensors[name][0].copy_(rows)
