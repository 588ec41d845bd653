"""The first layer's X, taken apart exactly: what the position table adds, and the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.capture.forward import forward
from attnscope.capture.watch import Site
from attnscope.explanation.inputs import watching_inputs
from attnscope.explanation.tables import (
    PositionTable,
    embedding_projection,
    position_table,
    position_tables,
    replaced_positions,
)
from attnscope.explanation.tokens import Inputs
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SAME = 1e-4  # differences of float32 sums, as a share of the largest entry


@dataclass(frozen=True, eq=False)
class FirstLayerSplit:
    """X of a layer that reads a position table, as the sum of what the table adds and the rest."""

    position: Float[np.ndarray, "position width"]  # ``(position, width)``, float64
    content: Float[np.ndarray, "position width"]
    # ``(position,)``: the standard deviation that the LayerNorm divides by; position and content share it
    deviation: Float[np.ndarray, " position"]


@torch.no_grad()
def first_layer_split(model: PreTrainedModel, inputs: Inputs) -> dict[Site, FirstLayerSplit]:
    r"""Split X of the first layer into the position table's part and the rest, exactly.

    LayerNorm distributes over a sum, given the deviation :math:`\sigma_i` of the whole:
    :math:`\mathrm{LN}(\sum z) = \sum \gamma\odot(z-\bar z)/\sigma_i + \beta` (Kobayashi et al. 2021, section 3).
    The table's part is followed through the LayerNorm and, where there is one, the embedding projection. Which
    LayerNorm it is, is found by running the model with the table set to zero: its input must change by the
    table's rows.
    """
    position_table(model)  # refuses a model that has none
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
            f"no layer of {type(model).__name__} reads its position table through a LayerNorm alone: "
            "use the position means (method='means')"
        )
    return splits


def _split(
    model: PreTrainedModel, table: PositionTable, x: Tensor, whole: _Pass, without: _Pass, site: Site
) -> FirstLayerSplit | None:
    """The split of one layer's X, if it is the LayerNorm of this table plus something."""
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
            matrix = projection.weight.detach().double().cpu()
            constant = (
                torch.zeros(1, dtype=torch.float64)
                if "bias" not in dict(projection.named_parameters())
                else projection.bias.detach()
            )
            if not _close(norm.returned @ matrix.T + constant.double().cpu(), x):
                continue
        if _close(norm.given - without.norms[number].given, rows):
            deviation = torch.sqrt(norm.given.var(-1, unbiased=False) + norm.module.eps)
            position = (rows - rows.mean(-1, keepdim=True)) / deviation[:, None]
            if norm.module.elementwise_affine:
                position = position * norm.module.weight.detach().double().cpu()
            if matrix is not None:
                position = position @ matrix.T
            return FirstLayerSplit(position.numpy(), (x - position).numpy(), deviation.numpy())
    return None


@dataclass(frozen=True, eq=False)
class _Norm:
    """What one LayerNorm was given and returned for the first text, float64."""

    module: nn.LayerNorm
    given: Tensor
    returned: Tensor


@dataclass(frozen=True, eq=False)
class _Pass:
    """LayerNorms in the order in which they ran, and X of every site."""

    norms: list[_Norm]
    states: dict[Site, Tensor]

    @classmethod
    def of(cls, model: PreTrainedModel, inputs: Inputs) -> _Pass:
        whole = cls([], {})

        def note(module: nn.LayerNorm, given: tuple[Tensor, ...], returned: Tensor) -> None:
            whole.norms.append(_Norm(module, _first(given[0]), _first(returned)))

        def observe(site: Site, call: AttentionCall, query_states: Tensor, _: Tensor) -> Tensor:
            whole.states[site] = _first(query_states)
            return output_of(call)

        hooks = [module.register_forward_hook(note) for module in model.modules() if isinstance(module, nn.LayerNorm)]
        try:
            with watching_inputs(model, observe):
                forward(model, inputs, lambda _: "the text")
        finally:
            for hook in hooks:
                hook.remove()
        return whole


def _first(states: Tensor) -> Tensor:
    return (states[0] if states.ndim > 2 else states).double().cpu()  # noqa: PLR2004


def _close(own: Tensor, expected: Tensor) -> bool:
    if own.shape != expected.shape:
        return False
    return float((own - expected).abs().max()) <= _SAME * float(expected.abs().max())
