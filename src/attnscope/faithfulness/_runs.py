"""The two runs of a batch of pairs, between which activations are carried, and how far a patched run went."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope.capture import borrowed, layer_coordinates
from attnscope.errors import AttnscopeError
from attnscope.faithfulness._effects import variants_at_once
from attnscope.faithfulness.passes import EncodedPairs, Pair, StackedPasses, kind_of_question, stacked_passes

if TYPE_CHECKING:
    from attnscope.capture import LoadedModel

Direction = Literal["noising", "denoising"]
DIRECTIONS: tuple[Direction, ...] = ("noising", "denoising")


@dataclass(frozen=True, eq=False)
class Runs:
    """Both runs of some pairs; the plain pass of the one that is patched was the last.

    Attributes
    ----------
    passes
        Passes of the run that is patched.
    encoded
        The pairs.
    donors, donor_states
        What heads and blocks gave in the other run.
    logits
        ``(pair, 1, token)``: of the run that is patched.
    source, base
        ``(pair,)``: answer minus wrong answer in the other run, and in the one that is patched.
    """

    passes: StackedPasses
    encoded: EncodedPairs
    donors: Sequence[Tensor]
    donor_states: Sequence[Tensor]
    logits: Tensor
    source: Tensor
    base: Tensor

    def variants(self, most: int | None) -> int:
        """How many variants stand side by side: those asked for, or what the device is quickest with."""
        return most or variants_at_once(self.logits, self.encoded.clean.numel(), self.donors)


@contextmanager
def both_runs(
    loaded: LoadedModel, encoded: EncodedPairs, direction: Direction, *, skips: bool = True
) -> Generator[Runs]:
    """Run clean and corrupted texts as they are; the model is watched until the end of the context."""
    turned = encoded if direction == "denoising" else encoded.turned()
    with borrowed(loaded.model), stacked_passes(loaded.model, skips=skips) as passes, torch.no_grad():
        source = encoded.difference(passes.plain({"input_ids": turned.clean}, encoded.places))
        donors, states = passes.outputs, passes.states
        logits = passes.plain({"input_ids": turned.corrupted}, encoded.places)
        yield Runs(passes, encoded, donors, states, logits, source, encoded.difference(logits))


def differences(
    runs: Runs, dims: Sequence[str], values: np.ndarray, direction: Direction, coords: Mapping[str, Any]
) -> xr.Dataset:
    """What was measured of each pair, ``(pair, *dims)``, beside the two runs as they are."""
    ends = (runs.source, runs.base) if direction == "denoising" else (runs.base, runs.source)
    clean, corrupted = (end.double().cpu().numpy() for end in ends)
    logits = {"units": "logits"}
    return xr.Dataset(
        {
            "difference": (("pair", *dims), values, {"long_name": "Answer minus wrong answer", **logits}),
            "clean": ("pair", clean, {"long_name": "The same of the clean run", **logits}),
            "corrupted": ("pair", corrupted, {"long_name": "The same of the corrupted run", **logits}),
        },
        coords=dict(coords),
        attrs={"direction": direction},
    )


def head_coordinates(runs: Runs) -> dict[str, Any]:
    """Labels of layers and heads."""
    widest = max(output.shape[1] for output in runs.donors)
    return {**layer_coordinates(runs.passes.sites), "head": np.arange(widest)}


def ends_of(pairs: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray]:
    """Of each pair, the difference of answers in the run that activations come from, and in the one they go into."""
    ends = pairs.clean, pairs.corrupted
    return ends if pairs.attrs["direction"] == "denoising" else (ends[1], ends[0])


def with_recovered(pairs: xr.Dataset) -> xr.Dataset:
    """Add how far the mean over pairs went from the run that was patched (0) to the other (1).

    Raises
    ------
    AttnscopeError
        If clean and corrupted texts give the same answers.

    Examples
    --------
    >>> ends = {"clean": ("pair", [3.0, 1.0]), "corrupted": ("pair", [-1.0, -1.0])}
    >>> results = xr.Dataset({"difference": (("pair", "head"), [[2.0], [-1.0]]), **ends})
    >>> with_recovered(results.assign_attrs(direction="denoising")).recovered.values.tolist()
    [0.5]
    """
    check_apart(pairs)
    source, base = (float(end.mean()) for end in ends_of(pairs))
    recovered = (pairs.difference.mean("pair", skipna=False) - base) / (source - base)
    attrs = {"long_name": "Way from the patched run to the other", "units": "share"}
    return pairs.assign(recovered=recovered.assign_attrs(attrs))


def check_apart(pairs: xr.Dataset) -> None:
    """Refuse pairs of which the model says the same, clean or corrupted."""
    source, base = ends_of(pairs)
    if not abs(float((source - base).mean())) > 1e-6 * float((abs(source) + abs(base)).mean()):
        raise AttnscopeError(
            "clean and corrupted texts give the same difference of answers, so nothing can be brought back: give pairs "
            "on which the model answers differently"
        )


def encoded_pairs(
    loaded: LoadedModel, pairs: Iterable[Pair], numbers: Sequence[int] | None = None
) -> EncodedPairs:
    """Pairs as this model reads them.

    Raises
    ------
    AttnscopeError
        If it is an encoder-decoder, or what `EncodedPairs.of` raises.
    """
    return EncodedPairs.of(
        pairs,
        loaded.tokenizer,
        masked=is_masked(loaded),
        device=loaded.model.device,
        numbers=numbers,
    )


def is_masked(loaded: LoadedModel) -> bool:
    """Whether the model is asked at a mask, not after the last token.

    Raises
    ------
    AttnscopeError
        If it is an encoder-decoder, or makes no logits.
    """
    kind = kind_of_question(loaded.model)
    if kind == "translation":
        raise AttnscopeError(
            f"{loaded.name} is an encoder-decoder; pairs are of texts that one stack reads: give a causal or a masked "
            "language model"
        )
    return kind == "masked"
