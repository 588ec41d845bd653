"""DeBERTa's attention, which is not on transformers' registry: products of queries and keys, and a bias by distance."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from attnscope.capture._heuristics import disentangled_version

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    Attend = Callable[..., tuple[Tensor, None]]


@contextmanager
def disentangled(model: nn.Module, attend: Attend) -> Generator[None]:
    """Let the layers of DeBERTa (v1, v2 and v3) call `attend` as those of models on the registry do.

    What their queries make of vectors of distances (content-to-position), and their keys (position-to-content), is
    the ``position_bias``. Layers that mix their heads (``talking_head``) are left as they are.
    """
    changed: list[nn.Module] = []
    for module in model.modules():
        version = disentangled_version(module)
        if version is not None:
            module.forward = partial(_first if version == 1 else _second, module, attend)
            changed.append(module)
    try:
        yield
    finally:
        for module in changed:
            del module.forward


def _first(
    module: Any,
    attend: Attend,
    hidden_states: Tensor,
    attention_mask: Tensor,
    _: bool = False,
    *,
    relative_pos: Tensor | None = None,
    rel_embeddings: Tensor | None = None,
    **__: Any,
) -> tuple[Tensor, None]:
    """Attend as DeBERTa's first version: one matrix for queries, keys and values, whose queries are scaled first."""
    made = module.transpose_for_scores(module.in_proj(hidden_states))
    query, key, value = made.chunk(3, -1)
    query = query + module.transpose_for_scores(module.q_bias[None, None])
    value = value + module.transpose_for_scores(module.v_bias[None, None])
    terms = 1 + len(module.pos_att_type)
    query = query * (query.shape[-1] * terms) ** -0.5
    bias = None
    if module.relative_attention and module.pos_att_type:
        distances = module.pos_dropout(rel_embeddings)
        bias = module.disentangled_att_bias(query, key, relative_pos, distances, terms)
    output, _weights = attend(
        module, query, key, value, attention_mask.bool(), scaling=1.0, is_causal=False, position_bias=bias
    )
    return output.flatten(2), None


def _second(
    module: Any,
    attend: Attend,
    hidden_states: Tensor,
    attention_mask: Tensor,
    _: bool = False,
    *,
    query_states: Tensor | None = None,
    relative_pos: Tensor | None = None,
    rel_embeddings: Tensor | None = None,
) -> tuple[Tensor, None]:
    """Attend as DeBERTa's second and third version: a matrix each."""
    heads = module.num_attention_heads
    asking = hidden_states if query_states is None else query_states
    flat = [
        module.transpose_for_scores(projection(states), heads)
        for projection, states in (
            (module.query_proj, asking),
            (module.key_proj, hidden_states),
            (module.value_proj, hidden_states),
        )
    ]
    terms = 1 + ("c2p" in module.pos_att_type) + ("p2c" in module.pos_att_type)
    bias = None
    if module.relative_attention and terms > 1:
        distances = module.pos_dropout(rel_embeddings)
        bias = module.disentangled_attention_bias(flat[0], flat[1], relative_pos, distances, terms)
        bias = bias.view(-1, heads, *bias.shape[-2:])
    query, key, value = (table.view(-1, heads, *table.shape[-2:]) for table in flat)
    scaling = (query.shape[-1] * terms) ** -0.5
    output, _weights = attend(
        module, query, key, value, attention_mask.bool(), scaling=scaling, is_causal=False, position_bias=bias
    )
    return output.flatten(2), None
