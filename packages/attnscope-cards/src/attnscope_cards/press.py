"""A press for kvpress, from a card."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnscope.capture.functional import cache_of
from attnscope.options import Share
from attnscope.report.reads import reads
from attnscope.support.checked import checked
from attnscope.support.errors import AttnscopeError
from attnscope_cards.head_files import duo_table


@checked
@reads("card")
def kvpress(card: xr.Dataset, *, limited: Share = 0.5, role: str | None = None) -> Any:
    """Return a press of kvpress that limits the key-value heads of a card to its cache.

    The press is kvpress's `DuoAttentionPress` with the card's table in place of a published one: after the prompt, the
    limited heads attend to its first and its latest tokens alone. kvpress 0.5.5 asks for transformers before 5.3, and
    attnscope needs later ones: install it by ``pip install --no-deps kvpress cachetools fire termcolor``.

    Parameters
    ----------
    card
        Result of `attnscope_cards.card`, on the same model.
    limited
        Share of the key-value heads to limit, those first that need the cache least.
    role
        Kept share or effect of the card that orders the heads, as for ``attnscope runs export --to duo``.

    Returns
    -------
    kvpress.DuoAttentionPress
        Use it as ``with press(model): ...`` or in kvpress's pipeline. It rejects models with other heads.

    Raises
    ------
    AttnscopeError
        If kvpress is not installed, the card has no such role, or a layer of the model has no causal attention.

    References
    ----------
    Xiao et al. (2024), DuoAttention.
    """
    if "kvpress" not in sys.modules and find_spec("kvpress") is None:
        raise AttnscopeError("kvpress is not installed: install it as help(attnscope_cards.kvpress) says")
    table = duo_table(card, role)
    if table.numbers != [*range(len(table.numbers))]:
        raise AttnscopeError(
            f"the card has causal attention in layers {table.numbers}; kvpress counts every layer. Use attnscope runs "
            "export --to duo, and limit these layers by hand"
        )
    press: Any = import_module("kvpress").DuoAttentionPress

    class CardPress(press):
        """DuoAttention by the heads of a card."""

        def load_attention_pattern(self, model: Any) -> tuple[int, int, np.ndarray]:
            config = model.config.get_text_config()
            heads = config.num_hidden_layers, config.num_key_value_heads
            if heads != table.scores.shape:
                size = "{} x {}".format(*table.scores.shape)
                raise AttnscopeError(
                    f"the model has {heads[0]} x {heads[1]} key-value heads, and the card {size}: use its own card"
                )
            return table.sinks, table.recent, table.scores

        def forward_hook(self, module: Any, input: Any, kwargs: dict[str, Any], output: Any) -> Any:  # noqa: A002
            # transformers no longer passes the positions in the cache, by which kvpress knows the prompt
            seen = cache_of(kwargs).get_seq_length(module.layer_idx)
            return super().forward_hook(module, input, {"cache_position": torch.tensor([seen - 1])} | kwargs, output)

    return CardPress(head_compression_ratio=limited)
