"""Chosen sets of heads taken out together, beside the sum of what each loses alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from attnscope._arguments import typed
from attnscope._documents import units_of
from attnscope.errors import AttnscopeError
from attnscope.faithfulness._sets import changes_by_sets
from attnscope.faithfulness.arrays import by_document

if TYPE_CHECKING:
    from attnscope.faithfulness._inquiry import Inquiry
    from attnscope.faithfulness.passes import Ablation

Heads = Sequence[tuple[int, int]]


def checked_sets(together: Sequence[Heads], cells: Heads) -> list[list[tuple[int, int]]]:
    """Sets of heads that exist, each head once.

    Parameters
    ----------
    together
        Sets of ``(layer, head)``.
    cells
        Every head that there is.

    Raises
    ------
    AttnscopeError
        If a set is empty, or a head does not exist.

    Examples
    --------
    >>> checked_sets([[(0, 1), (0, 0), (0, 1)]], [(0, 0), (0, 1)])
    [[(0, 1), (0, 0)]]
    """
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


@typed
def taken_together(
    inquiry: Inquiry,
    sets: Sequence[Heads],
    ablations: Sequence[Ablation],
    effects: xr.Dataset,
    *,
    seed: int = 0,
) -> xr.Dataset:
    """Take chosen sets of heads out, each set at once.

    Heads that stand in for each other lose little alone and much together; heads in one chain lose together no more
    than one of them alone.

    Parameters
    ----------
    inquiry
        Checked.
    sets
        From `checked_sets`.
    ablations
        What stands in for the heads.
    effects
        Effects of single heads on the same texts.
    seed
        Seed of the bootstrap.

    Returns
    -------
    xarray.Dataset
        ``loss_change`` of each text ``(text, ablation, set)``, nats. Over texts ``effect`` with ``effect_low``,
        ``effect_high``, ``shown`` and ``tested`` as `heads_of` has them (all sets together), ``alone``, the sum of the
        effects of the set's heads one by one, and ``between``, what the effect differs from that sum, with
        ``between_low``, ``between_high``, ``between_shown`` and ``between_tested``.

    Examples
    --------
    >>> from attnscope.capture import load_model
    >>> from attnscope.corpus import texts_of
    >>> from attnscope.faithfulness import effects, inquiry
    >>> texts = texts_of(["The tide is out.", "The boats lie on the sand."])
    >>> asked = inquiry(load_model("bundled", device="cpu"), texts, window=16, limit=2)
    >>> asked.check()
    >>> single = next(effects(asked, ["zero"], steps=0))
    >>> both = taken_together(asked, [[(0, 0), (0, 3)]], ["zero"], single)
    >>> both.set.values.tolist(), bool(np.allclose(both.effect - both.alone, both.between))
    (['0.0 0.3'], True)
    """
    cells = inquiry.cells
    rows = np.array([[cell in set(heads) for cell in cells] for heads in sets])
    batches = [rows] * len(inquiry.slices())
    changes = np.stack([changes_by_sets(inquiry, batches, ablation) for ablation in ablations], 1)
    single = (
        effects.loss_change.sel(ablation=list(ablations))
        .transpose("text", "ablation", "layer", "head")
        .values
    )
    alone = np.stack([sum(single[..., layer, head] for layer, head in heads) for heads in sets], -1)
    units, called = units_of(inquiry.documents)
    dims = ("ablation", "set")
    variables: dict[str, object] = {
        "loss_change": (
            ("text", *dims),
            changes,
            {"long_name": "Change of the loss without the heads", "units": "nats"},
        ),
        "alone": (
            dims,
            alone.mean(0),
            {"long_name": "Sum of the changes without each alone", "units": "nats"},
        ),
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
            "source": ("text", np.array(inquiry.documents, dtype=object)),
            "ablation": list(ablations),
            "set": names,
        },
        attrs={"intervals_over": called},
    )
