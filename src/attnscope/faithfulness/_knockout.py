"""Attention forbidden by rule: what the predictions lose when a head may not look at certain places."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool
from torch import Tensor

from attnscope._arguments import typed
from attnscope.attention import attend_in_full
from attnscope.capture import layer_coordinates
from attnscope.errors import AttnscopeError
from attnscope.faithfulness._effects import most_variants
from attnscope.faithfulness._sets import of_layers
from attnscope.faithfulness.passes import stacked_passes
from attnscope.progress import Progress, Tell, tell_nobody

if TYPE_CHECKING:
    from attnscope.attention import AttentionCall
    from attnscope.capture import Site
    from attnscope.faithfulness._inquiry import Inquiry


@dataclass(frozen=True)
class Forbidden:
    """Where a head may not look.

    Attributes
    ----------
    offsets
        Offsets, key position minus query position: -1 is the token before. Of self-attention alone.
    first
        Whether the first token is forbidden.
    tokens
        Token ids of keys that are forbidden.

    Examples
    --------
    >>> rule = Forbidden(offsets=(-1,))
    >>> rule.where(3, torch.tensor([[5, 6, 7]]))[0].int().tolist()
    [[0, 0, 0], [1, 0, 0], [0, 1, 0]]
    """

    offsets: tuple[int, ...] = ()
    first: bool = False
    tokens: tuple[int, ...] = ()

    def where(self, queries: int, keys: Tensor) -> Bool[Tensor, "text query key"]:
        """Which entries of the weights the rule forbids; `keys` are token ids ``(text, key)``."""
        index = torch.arange(keys.shape[1], device=keys.device)
        shift = index - torch.arange(queries, device=keys.device)[:, None]
        forbidden = torch.zeros(len(keys), queries, keys.shape[1], dtype=torch.bool, device=keys.device)
        for offset in self.offsets:
            forbidden |= shift == offset
        if self.first:
            forbidden[:, :, 0] = True
        if self.tokens:
            forbidden |= torch.isin(keys, torch.tensor(self.tokens, device=keys.device))[:, None]
        return forbidden


@typed
def knock_out(
    inquiry: Inquiry,
    rule: Forbidden,
    *,
    renormalise: bool = True,
    progress: Tell | None = None,
) -> xr.Dataset:
    """Forbid each head alone to look where a rule says, and measure what the predictions lose.

    The weights of one layer are written out: memory grows with the square of the window.

    Parameters
    ----------
    inquiry
        Checked.
    rule
        Where a head may not look.
    renormalise
        Whether what is left of a row is scaled to its sum before; a row of which nothing is left gives nothing.
    progress
        Called with a `Progress` after each batch; it tells of ``windows`` done.

    Returns
    -------
    xarray.Dataset
        ``loss_change`` (nats) and ``weight`` (share of all weight that was forbidden) ``(text, layer, head)``. Where
        the rule is of offsets, cross-attention is NaN.

    Raises
    ------
    AttnscopeError
        If the rule forbids nothing.

    Examples
    --------
    >>> from attnscope.capture import load_model
    >>> from attnscope.corpus import texts_of
    >>> from attnscope.faithfulness import inquiry
    >>> asked = inquiry(load_model("bundled", device="cpu"), texts_of(["The tide comes in twice."]), window=16, limit=1)
    >>> asked.check()
    >>> bool(knock_out(asked, Forbidden(offsets=(-1,))).weight.sel(layer=0, head=3) > 0.5)
    True
    """
    if not (rule.offsets or rule.first or rule.tokens):
        raise AttnscopeError("the rule forbids nothing; expected offsets, first or tokens: give one")
    changes: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    sites: list[Site] = []
    tell = progress or tell_nobody
    for place in inquiry.slices():
        asked = inquiry.batch(place)
        with stacked_passes(inquiry.model, skips=inquiry.skips) as passes, torch.no_grad():
            before = passes.plain(
                asked.reading.inputs(inquiry.model), asked.places, inquiry.name(place.start)
            )
            loss = asked.scores(before[None])["loss"]
            most = most_variants(asked, before, passes.outputs)
            heads = [output.shape[1] for output in passes.outputs]
            of_texts: list[list[Tensor]] = []
            shares: list[list[Tensor]] = []
            for call, site in enumerate(passes.sites):
                if rule.offsets and site.kind == "cross":
                    unknown = torch.full((len(asked), heads[call]), torch.nan, dtype=torch.float32)
                    of_texts.append([unknown])
                    shares.append([unknown])
                    continue
                queries, keys = asked.reading.sides(site.kind)
                knocked = _Knocked(rule, queries.valid, keys.input_ids, renormalise=renormalise)
                parts: list[Tensor] = []
                for first in range(0, heads[call], most):
                    some = range(first, min(first + most, heads[call]))
                    logits = passes.run({call: knocked.edit(some)}, len(some))
                    parts.append((asked.scores(logits)["loss"] - loss).T)
                of_texts.append(parts)
                shares.append([knocked.share])
        sites = passes.sites
        changes.append(_joined(of_texts, heads))
        weights.append(_joined(shares, heads))
        tell(
            Progress(
                "heads that may not look there", place.stop / len(inquiry.windows), {"windows": place.stop}
            )
        )
    dims = ("text", "layer", "head")
    return xr.Dataset(
        {
            "loss_change": (dims, np.concatenate(changes), {"units": "nats"}),
            "weight": (dims, np.concatenate(weights), {"units": "share"}),
        },
        coords={
            "source": ("text", np.array(inquiry.documents, dtype=object)),
            **layer_coordinates(sites),
            "head": np.arange(changes[0].shape[-1]),
        },
        attrs={"offsets": list(rule.offsets), "first": int(rule.first), "renormalise": int(renormalise)},
    )


class _Knocked:
    """Outputs of one call without what the rule forbids."""

    def __init__(self, rule: Forbidden, valid: Tensor, keys: Tensor, *, renormalise: bool) -> None:
        self.rule, self.valid, self.keys, self.renormalise = rule, valid, keys, renormalise
        self.share = torch.empty(0, dtype=torch.float32)

    def edit(self, heads: Iterable[int]) -> Callable[[AttentionCall, Tensor], Tensor]:
        """Variant i has the i-th of these heads changed."""
        chosen = list(heads)

        def change(call: AttentionCall, output: Tensor) -> Tensor:
            _, weights = attend_in_full(call)
            kept = weights.masked_fill(self.rule.where(weights.shape[2], self.keys)[:, None], 0)
            rows = weights.sum(-1)
            lost = torch.where(self.valid[:, None], rows - kept.sum(-1), 0).sum(-1)
            self.share = lost / self.valid.sum(-1, keepdim=True)
            if self.renormalise:
                kept = kept * (rows / kept.sum(-1).clamp(min=1e-30))[..., None]
            value = call.value.repeat_interleave(call.group, 1)
            other = (kept.to(value.dtype) @ value).to(output.dtype)
            output = output.clone()
            for variant, head in enumerate(chosen):
                output[variant, :, head] = other[:, head]
            return output

        return change


def _joined(parts: list[list[Tensor]], heads: list[int]) -> np.ndarray:
    """``(text, layer, head)``."""
    flat = (
        torch.cat([torch.cat([tensor.cpu() for tensor in layer], 1) for layer in parts], 1).double().numpy()
    )
    return np.stack([of_layers(row, heads) for row in flat])
