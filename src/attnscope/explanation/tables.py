"""Tables of absolute positions and of words, and their part of the first layer's input X."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from attnscope.capture.families import is_embedding_projection, named_scheme
from attnscope.capture.placement import device_of
from attnscope.capture.verify import stored_positions
from attnscope.capture.watch import Site
from attnscope.capture.weights import Affine, affine_alone, embedding_within, in_single_precision, linear_layers
from attnscope.explanation.inputs import Inputs, observed_pass
from attnscope.explanation.projections import LayerRun
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of
from attnscope.support.errors import AttnscopeError


@dataclass(frozen=True, eq=False)
class PositionTable:
    """The position embeddings that a model adds to words or patches."""

    name: str  # its address in the model
    rows: Float[np.ndarray, "position width"]  # ``(position, width)``, float64: row p is what position p reads
    reserved: int  # number of rows left out at the start
    scheme: str  # ``"sinusoidal"`` if every column is a sampled sinusoid, else ``"learned"``


def position_table(model: PreTrainedModel, part: str | None = None) -> PositionTable:
    tables = position_tables(model)
    if not tables:
        raise AttnscopeError(
            f"{type(model).__name__} has no table of absolute positions: {position_scheme(model)}. "
            "Choose an analysis without one"
        )
    chosen = [table for table in tables if part is None or part in table.name]
    if not chosen:
        names = ", ".join(table.name for table in tables)
        raise AttnscopeError(f"{type(model).__name__} has no position table {part!r}: choose from {names}")
    return chosen[0]


def position_tables(model: PreTrainedModel) -> list[PositionTable]:
    """Every table of absolute positions in the model; none for RoPE, T5 and the like."""
    tables: list[PositionTable] = []
    for stored in stored_positions(model):
        rows = stored.tensor[stored.reserved :].detach().double().cpu().numpy()
        scheme = "sinusoidal" if is_sinusoidal(rows).all() else "learned"
        tables.append(PositionTable(stored.name, rows, stored.reserved, scheme))
    return tables


def position_scheme(model: PreTrainedModel) -> str:
    """How the model encodes positions, in words."""
    if any(stored_positions(model)):
        return "it adds a table of absolute positions to its inputs"
    return named_scheme(model) or "attnscope does not recognise its position scheme"


def is_sinusoidal(rows: Float[np.ndarray, "position width"], tolerance: float = 1e-4) -> Bool[np.ndarray, " width"]:
    r"""Which columns are sampled sinusoids of one frequency each."""
    if len(rows) < 4:  # noqa: PLR2004 three rows satisfy it whatever they are
        return np.zeros(rows.shape[1], dtype=bool)
    around, here = rows[2:] + rows[:-2], rows[1:-1]
    factor = (around * here).sum(0) / np.maximum((here**2).sum(0), np.finfo(np.float64).tiny)
    rest = np.sqrt(((around - factor * here) ** 2).mean(0) / np.maximum((rows**2).mean(0), np.finfo(float).tiny))
    return (rest < tolerance) & (np.abs(factor) <= 2 + tolerance)


@torch.no_grad()
def word_table(model: PreTrainedModel) -> Float[np.ndarray, "word width"]:
    """The word embeddings as the embedding module returns them, float64."""
    embedding, table = word_embedding(model)
    with in_single_precision(embedding):  # some multiply
        return embedding(torch.arange(table.num_embeddings, device=device_of(model))).double().cpu().numpy()


def word_embedding(model: PreTrainedModel) -> tuple[nn.Module, nn.Embedding]:
    """The module that turns token ids into vectors, and its table."""
    try:
        embedding = model.get_input_embeddings()
    except NotImplementedError:
        embedding = None
    table = None if embedding is None else embedding_within(embedding)
    if embedding is None or table is None:
        raise AttnscopeError(
            f"{type(model).__name__} has no word embeddings, as it does not read text: choose an analysis of positions "
            "or scores"
        )
    return embedding, table


def embedding_projection(model: PreTrainedModel, width: int) -> Affine | None:
    """The linear layer from embeddings of this width to the model's width (ALBERT, ELECTRA), if there is one."""
    for name, module in linear_layers(model):
        if is_embedding_projection(name) and getattr(module, "in_features", 0) == width:
            return affine_alone(model, module, width)
    return None


@contextmanager
def replaced_positions(
    model: PreTrainedModel, replacements: dict[str, Float[np.ndarray, "position width"]]
) -> Generator[None]:
    """Replace rows of the model's position tables within the context."""
    tensors = {table.name: (table.tensor, table.reserved) for table in stored_positions(model)}
    offloaded = {name for name, parameter in model.named_parameters() if parameter.is_meta}
    for name, rows in replacements.items():
        if name not in tensors:
            raise AttnscopeError(f"there is no position table {name!r}: choose from {', '.join(tensors) or 'none'}")
        tensor, reserved = tensors[name]
        if not offloaded.isdisjoint({name, f"{name}.weight"}):
            raise AttnscopeError(f"the position table {name} is offloaded, so it cannot be replaced. Load it in memory")
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


_SAME = 1e-4  # differences of float32 sums, as a share of the largest entry


@dataclass(frozen=True, eq=False)
class FirstLayerSplit:
    """X of a layer that reads a position table, as the sum of the table's part and the rest."""

    position: Float[np.ndarray, "position width"]  # ``(position, width)``, float64
    content: Float[np.ndarray, "position width"]
    # ``(position,)``: the standard deviation that the LayerNorm divides by; position and content share it
    deviation: Float[np.ndarray, " position"]


@torch.no_grad()
def first_layer_split(model: PreTrainedModel, inputs: Inputs) -> dict[Site, FirstLayerSplit]:
    r"""Split X of the first layer into the position table's part and the rest, exactly.

    LayerNorm distributes over a sum, given the deviation :math:`\sigma_i` of the whole:
    :math:`\mathrm{LN}(\sum z) = \sum \gamma\odot(z-\bar z)/\sigma_i + \beta` (Kobayashi et al. 2021, section 3).
    The table's part passes through the LayerNorm and the embedding projection, if there is one. A run with the table
    set to zero identifies the LayerNorm: its input must change by the table's rows.
    """
    position_table(model)  # rejects a model without a table
    whole = _Pass.of(model, inputs)
    splits: dict[Site, FirstLayerSplit] = {}
    for table in position_tables(model):
        with replaced_positions(model, {table.name: np.zeros_like(table.rows)}):
            without = _Pass.of(model, inputs)
        for site, x in whole.states.items():
            split = None if site.kind == "cross" else _split(model, table, x, whole, without, site)
            if split is not None:
                splits[site] = split
                break
    if not splits:
        raise AttnscopeError(
            f"in {type(model).__name__} no layer reads the position table through a LayerNorm alone: use method='means'"
        )
    return splits


def _split(
    model: PreTrainedModel, table: PositionTable, x: Tensor, whole: _Pass, without: _Pass, site: Site
) -> FirstLayerSplit | None:
    """The split of one layer's X; None unless it is the LayerNorm of this table plus other terms."""
    rows = torch.from_numpy(table.rows[: len(x)])
    if len(rows) < len(x):
        return None
    if _close(x - without.states[site], rows):  # nothing in between
        return FirstLayerSplit(rows.numpy(), (x - rows).numpy(), np.ones(len(x)))
    projection = embedding_projection(model, rows.shape[1])
    for number, norm in enumerate(whole.norms):
        matrix = None
        if not _close(norm.returned, x):
            if projection is None:
                continue
            matrix, constant = (one.detach().double().cpu() for one in projection[:2])
            if not _close(norm.returned @ matrix + constant, x):
                continue
        if _close(norm.received - without.norms[number].received, rows):
            layer: Any = norm.module
            deviation = torch.sqrt(norm.received.var(-1, unbiased=False) + layer.eps)
            position = (rows - rows.mean(-1, keepdim=True)) / deviation[:, None]
            if layer.elementwise_affine:
                position = position * layer.weight.detach().double().cpu()
            if matrix is not None:
                position = position @ matrix
            return FirstLayerSplit(position.numpy(), (x - position).numpy(), deviation.numpy())
    return None


@dataclass(frozen=True, eq=False)
class _Pass:
    """LayerNorms in the order in which they ran, and X of every site."""

    norms: list[LayerRun]
    states: dict[Site, Tensor]

    @classmethod
    def of(cls, model: PreTrainedModel, inputs: Inputs) -> _Pass:
        whole = cls([], {})

        def note(module: nn.LayerNorm, arguments: tuple[Tensor, ...], returned: Tensor) -> None:
            whole.norms.append(LayerRun("", module, _first(arguments[0]), _first(returned)))

        def observe(site: Site, call: AttentionCall, query_states: Tensor, _: Tensor) -> Tensor:
            whole.states[site] = _first(query_states)
            return output_of(call)

        norms = (module for module in model.modules() if isinstance(module, nn.LayerNorm))
        observed_pass(model, inputs, (norm.register_forward_hook(note) for norm in norms), observe)
        return whole


def _first(states: Tensor) -> Tensor:
    return (states[0] if states.ndim > 2 else states).double().cpu()  # noqa: PLR2004


def _close(one: Tensor, expected: Tensor) -> bool:
    if one.shape != expected.shape:
        return False
    return float((one - expected).abs().max()) <= _SAME * float(expected.abs().max())
