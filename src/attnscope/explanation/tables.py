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
    """The vectors that a model adds to words (or patches) to tell their positions.

    Attributes
    ----------
    name
        Where it lies in the model.
    rows
        ``(position, width)``, float64: row p is what position p reads. Rows that a family keeps for itself (the
        first two of RoBERTa, BART and OPT) are left out.
    reserved
        How many rows were left out at the start.
    scheme
        ``"sinusoidal"`` where every column is a sampled sinusoid, else ``"learned"``.
    projected
        ``(position, model width)``: `rows` times the embedding projection of a model whose table is narrower
        than its layers (ALBERT, ELECTRA), without that projection's bias and the LayerNorm before it; else None.
    class_token
        Whether row 0 belongs to a class token and not to a place in the picture (ViT).

    Examples
    --------
    >>> PositionTable("wpe", np.zeros((4, 2)), 0, "learned", None, False).rows.shape
    (4, 2)
    """

    name: str
    rows: Float[np.ndarray, "position width"]
    reserved: int
    scheme: str
    projected: Float[np.ndarray, "position model_width"] | None
    class_token: bool


def position_table(model: PreTrainedModel, part: str | None = None) -> PositionTable:
    """Find the table of absolute positions, as the model uses it.

    Parameters
    ----------
    model
        Any.
    part
        Part of the table's name, such as ``"decoder"``, where a model has several. By default the first (an
        encoder's before a decoder's).

    Raises
    ------
    AttnscopeError
        If the model has none, with the scheme that it has instead; or none of that name.

    Examples
    --------
    >>> from transformers import RobertaConfig, RobertaModel
    >>> config = RobertaConfig(
    ...     hidden_size=8, num_attention_heads=1, num_hidden_layers=1, intermediate_size=8,
    ...     max_position_embeddings=66,
    ... )
    >>> table = position_table(RobertaModel(config))
    >>> table.name, table.rows.shape, table.reserved
    ('embeddings.position_embeddings', (64, 8), 2)
    """
    tables = position_tables(model)
    if not tables:
        raise AttnscopeError(
            f"{type(model).__name__} has no table of absolute positions: {position_scheme(model)}. "
            "Choose an analysis that needs no table"
        )
    chosen = [table for table in tables if part is None or part in table.name]
    if not chosen:
        names = ", ".join(table.name for table in tables)
        raise AttnscopeError(
            f"no position table of {type(model).__name__} is called {part!r}: choose from {names}"
        )
    return chosen[0]


def position_tables(model: PreTrainedModel) -> list[PositionTable]:
    """Every table of absolute positions in the model; none for RoPE, T5 and the like.

    Examples
    --------
    >>> from transformers import BartConfig, BartModel
    >>> config = BartConfig(
    ...     d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=1, decoder_attention_heads=1,
    ...     encoder_ffn_dim=8, decoder_ffn_dim=8, vocab_size=9, max_position_embeddings=16,
    ... )
    >>> [(table.name, table.rows.shape) for table in position_tables(BartModel(config))]
    [('encoder.embed_positions', (16, 8)), ('decoder.embed_positions', (16, 8))]
    """
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
    """Say in words how the model tells positions.

    Examples
    --------
    >>> from transformers import LlamaConfig, LlamaModel
    >>> config = LlamaConfig(hidden_size=8, num_attention_heads=1, num_hidden_layers=1, intermediate_size=8)
    >>> position_scheme(LlamaModel(config))
    'it turns queries and keys by their positions (RoPE)'
    """
    if any(stored_positions(model)):
        return "it adds a table of absolute positions to its inputs"
    return named_scheme(model) or "how it tells positions is not known to attnscope"


def is_sinusoidal(
    rows: Float[np.ndarray, "position width"], tolerance: float = 1e-4
) -> Bool[np.ndarray, " width"]:
    r"""Say which columns are sampled sinusoids of one frequency each.

    A sampled sinusoid, and nothing else that stays bounded, satisfies :math:`x_{p+1} + x_{p-1} = c\,x_p` with one
    :math:`c=2\cos\omega`, \|c\| at most 2. Deviations are taken as a share of the column's root mean square.

    Examples
    --------
    >>> p = np.arange(16.0)
    >>> is_sinusoidal(np.stack([np.sin(0.3 * p), np.ones(16), p**2], 1)).tolist()
    [True, True, False]
    """
    if len(rows) < 4:  # noqa: PLR2004 three rows satisfy it whatever they are
        return np.zeros(rows.shape[1], dtype=bool)
    around, here = rows[2:] + rows[:-2], rows[1:-1]
    power = np.maximum((here**2).sum(0), np.finfo(np.float64).tiny)
    factor = (around * here).sum(0) / power
    rest = np.sqrt(
        ((around - factor * here) ** 2).mean(0) / np.maximum((rows**2).mean(0), np.finfo(float).tiny)
    )
    return (rest < tolerance) & (np.abs(factor) <= 2 + tolerance)


@torch.no_grad()
def word_table(model: PreTrainedModel) -> Float[np.ndarray, "word width"]:
    """Give the word embeddings as the embedding module returns them, float64.

    Raises
    ------
    AttnscopeError
        If the model reads no words (pictures, sound).

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(
    ...     hidden_size=8, num_attention_heads=1, num_hidden_layers=1, intermediate_size=8, vocab_size=9
    ... )
    >>> word_table(BertModel(config)).shape
    (9, 8)
    """
    embedding = word_embedding(model)
    ids = torch.arange(embedding.num_embeddings, device=embedding.weight.device)
    return embedding(ids).double().cpu().numpy()


def word_embedding(model: PreTrainedModel) -> nn.Embedding:
    """Give the module that turns token ids into vectors.

    Raises
    ------
    AttnscopeError
        If the model reads no words (pictures, sound).

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(
    ...     hidden_size=8, num_attention_heads=1, num_hidden_layers=1, intermediate_size=8, vocab_size=9
    ... )
    >>> word_embedding(BertModel(config))
    Embedding(9, 8, padding_idx=0)
    """
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
    """Find the linear layer from embeddings of this width to the model's width (ALBERT, ELECTRA), where there is one.

    Parameters
    ----------
    model
        Any model.
    width
        Columns of its embeddings.

    Examples
    --------
    >>> from transformers import ElectraConfig, ElectraModel
    >>> config = ElectraConfig(
    ...     hidden_size=8, embedding_size=4, num_attention_heads=1, num_hidden_layers=1, intermediate_size=8
    ... )
    >>> embedding_projection(ElectraModel(config), 4)
    Linear(in_features=4, out_features=8, bias=True)
    """
    for name, module in model.named_modules():
        if is_embedding_projection(name) and isinstance(module, nn.Linear) and module.in_features == width:
            return module
    return None


@contextmanager
def replaced_positions(
    model: PreTrainedModel, replacements: dict[str, Float[np.ndarray, "position width"]]
) -> Generator[None]:
    """Let the model read other rows in its position tables; on leaving, every number is as it was.

    Parameters
    ----------
    model
        Its tables are written in place.
    replacements
        By table name: rows for positions 0, 1, ...; the rows beyond stay as they are.

    Raises
    ------
    AttnscopeError
        If there is no such table, or the rows do not fit it.

    Examples
    --------
    >>> from transformers import GPT2Config, GPT2Model
    >>> model = GPT2Model(GPT2Config(n_embd=8, n_head=1, n_layer=1, n_positions=4, vocab_size=5))
    >>> before = model.wpe.weight.clone()
    >>> with replaced_positions(model, {"wpe": np.zeros((3, 8))}):
    ...     print(model.wpe.weight.any(-1).tolist())
    [False, False, False, True]
    >>> bool(torch.equal(model.wpe.weight, before))
    True
    """
    tensors = {table.name: (table.tensor, table.reserved) for table in stored_positions(model)}
    for name, rows in replacements.items():
        if name not in tensors:
            raise AttnscopeError(
                f"there is no position table {name!r}: choose from {', '.join(tensors) or 'none'}"
            )
        tensor, reserved = tensors[name]
        if rows.shape[1] != tensor.shape[1] or len(rows) > len(tensor) - reserved:
            raise AttnscopeError(
                f"found {len(rows)} rows of width {rows.shape[1]} for {name}; expected at most "
                f"{len(tensor) - reserved} of width {tensor.shape[1]}"
            )
    kept = {name: tensors[name][0].detach().clone() for name in replacements}
    try:
        with torch.no_grad():
            for name, rows in replacements.items():
                tensor, reserved = tensors[name]
                tensor[reserved : reserved + len(rows)] = torch.from_numpy(rows).to(tensor)
        yield
    finally:
        with torch.no_grad():
            for name, rows in kept.items():
                tensors[name][0].copy_(rows)
