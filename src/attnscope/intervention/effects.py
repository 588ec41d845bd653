"""A change with its interval, in words, and the largest of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.capture.forward import forward
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.intervention.given import NUMBERS_AT_ONCE
from attnscope.intervention.session import attended, log_probabilities, sides_of
from attnscope.intervention.sets import changes_by_sets
from attnscope.kernels.call import AttentionCall
from attnscope.measure.documents import DRAWS, by_document, interval, units_of
from attnscope.results.schema import Effect
from attnscope.support.arguments import validated
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import places

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnscope.intervention.passes.replacements import Ablation
    from attnscope.intervention.session import PredictionSession


@validated
def describe_effect(effect: Effect) -> str:
    """A change with its interval; with more digits where it is small and significant."""
    digits = places(effect.mean, 3) if effect.shown else 3
    text = f"{effect.mean:+.{digits}f}"
    if np.isfinite(effect.low):
        text += f" ({effect.low:+.{digits}f} to {effect.high:+.{digits}f})"
    return text.replace("-", "−")


def describe_largest(effects: Sequence[Effect], words: Callable[[int, Effect], str], every: str) -> list[str]:
    """The largest effect and whether it is significant; where it is not, the largest that is, too."""
    order = sorted(range(len(effects)), key=lambda number: -abs(effects[number].mean))
    first = effects[order[0]]
    sentence = f"The largest change is {words(order[0], first if first.shown else Effect(first.mean))}."
    if first.shown is None:
        return [sentence]
    if first.shown:
        return [f"{sentence} It is significant (corrected for all {every})."]
    largest = [number for number in order if effects[number].shown][:1]
    return [
        f"{sentence} It is not significant (corrected for all {every}).",
        *(f"The largest significant change is {words(number, effects[number])}." for number in largest),
    ]


Heads = Sequence[tuple[int, int]]


def checked_sets(together: Sequence[Heads], cells: Heads) -> list[list[tuple[int, int]]]:
    """Sets of heads that exist, each head once."""
    known = set(cells)
    sets: list[list[tuple[int, int]]] = []
    for heads in together:
        chosen = list(dict.fromkeys((int(layer), int(head)) for layer, head in heads))
        for layer, head in chosen:
            if (layer, head) not in known:
                raise AttnscopeError(
                    f"there is no head {layer}.{head} to take out (--together): layers go from 0 to "
                    f"{max(known)[0]}, heads from 0 to {max(effect for _, effect in known)}"
                )
        if not chosen:
            raise AttnscopeError("found a set without heads (--together); expected heads, as in 0.1,0.3")
        sets.append(chosen)
    return sets


@validated
def joint_ablation(
    session: PredictionSession,
    sets: Sequence[Heads],
    ablations: Sequence[Ablation],
    effects: xr.Dataset,
    *,
    seed: int = 0,
) -> xr.Dataset:
    """Take chosen sets of heads out, each set at once."""
    cells = session.cells
    rows = np.array([[cell in set(heads) for cell in cells] for heads in sets])
    batches = [rows] * len(session.slices())
    changes = np.stack([changes_by_sets(session, batches, ablation) for ablation in ablations], 1)
    single = effects.loss_change.sel(ablation=list(ablations)).transpose("window", "ablation", "layer", "head").values
    alone = np.stack([sum(single[..., layer, head] for layer, head in heads) for heads in sets], -1)
    units, called = units_of(session.documents)
    dims = ("ablation", "set")
    variables: dict[str, object] = {
        "loss_change": (
            ("window", *dims),
            changes,
            {"long_name": "Change of the loss without the heads", "units": "nats"},
        ),
        "alone": (dims, alone.mean(0), {"long_name": "Sum of the changes without each alone", "units": "nats"}),
    }
    for name, values in (("effect", changes), ("between", changes - alone)):
        parts = by_document(values, units, seed=seed)
        told = ["shown", "tested"] if name == "effect" else [f"{name}_shown", f"{name}_tested"]
        for key, value in zip((name, f"{name}_low", f"{name}_high", *told), parts, strict=True):
            variables[key] = (dims, value, {"units": "1" if key in told else "nats"})
    names = [" ".join(f"{layer}.{head}" for layer, head in heads) for heads in sets]
    return xr.Dataset(
        variables,
        coords={
            "source": ("window", np.array(session.documents, dtype=object)),
            "ablation": list(ablations),
            "set": names,
        },
        attrs={"intervals_over": called},
    )


@torch.no_grad()
def leave_one_out(
    model: PreTrainedModel,
    inputs: dict[str, Tensor],
    positions: Int[Tensor, " prediction"],
    name: str,
    tokens: Sequence[int] | None = None,
) -> Float[Tensor, "token prediction"]:
    """Total variation distance of each prediction from what it is when no query may look at a token."""
    sides = sides_of(inputs)
    chosen = list(range(sides.tokens)) if tokens is None else list(tokens)
    hidden = torch.tensor([], dtype=torch.int64)
    largest = 1

    def observe(site: Site, call: AttentionCall) -> Tensor:
        nonlocal largest
        largest = max(largest, call.query.shape[1] * call.query.shape[2] * call.key.shape[2])
        keys = sides.of(site.kind)[1]
        index = torch.arange(keys.start, keys.start + call.key.shape[2], device=call.key.device)
        keep = (index != hidden.to(index.device)[:, None])[:, None, None]
        mask = keep if call.mask is None else call.mask & keep
        return attended(replace(call, mask=mask.expand(-1, -1, call.query.shape[2], -1)))[0]

    def run(some: Sequence[int]) -> Tensor:
        nonlocal hidden
        hidden = torch.tensor(some)
        several = {key: tensor.expand(len(some), *tensor.shape[1:]) for key, tensor in inputs.items()}
        with watching(model, observe):
            return log_probabilities(forward(model, several, lambda _: name), positions).exp()

    whole = run([-1])
    largest = max(largest, whole.numel())
    size = max(1, NUMBERS_AT_ONCE // largest)
    changes = [(run(chosen[at : at + size]) - whole).abs().sum(-1) / 2 for at in range(0, len(chosen), size)]
    return torch.cat(changes) if changes else whole.new_zeros(0, whole.shape[1])


@validated
def with_intervals(
    effects: xr.Dataset, names: Sequence[str], documents: Sequence[str], *, draws: int = DRAWS, seed: int = 0
) -> xr.Dataset:
    """Add to each variable its mean over texts and its 95% interval over documents."""
    added: dict[str, xr.DataArray] = {}
    for name in names:
        values = effects[name].transpose("window", ...)
        known = np.isfinite(values.values)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(known, values.values, 0.0).sum(0) / known.sum(0)
        low, high = interval(values.values, documents, draws=draws, seed=seed)
        like = values.isel(window=0, drop=True)
        for end, part in (("mean", mean), ("low", low), ("high", high)):
            said = {"mean": "mean over texts", "low": "lower end", "high": "upper end"}[end]
            attrs = values.attrs | {"long_name": f"{values.attrs.get('long_name', name)}, {said}"}
            added[f"{name}_{end}"] = like.copy(data=part).assign_attrs(attrs)
    return effects.assign(added)
