"""The weights of each head shuffled: what the predictions lose, beside random changes of the same size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope._arguments import typed
from attnscope._documents import units_of
from attnscope.capture import layer_coordinates
from attnscope.faithfulness._calls import values_of, weights_of
from attnscope.faithfulness._effects import most_variants
from attnscope.faithfulness._sets import of_layers
from attnscope.faithfulness.arrays import by_document, permuted_weights
from attnscope.faithfulness.passes import stacked_passes
from attnscope.faithfulness.weights import same_size
from attnscope.progress import Progress, Tell, tell_nobody

if TYPE_CHECKING:
    from attnscope.attention import AttentionCall
    from attnscope.faithfulness._inquiry import Inquiry
    from attnscope.faithfulness.passes import Questions, StackedPasses

_WORDS = {
    "shuffled_loss": ("Change of the loss with the head's weights shuffled", "nats"),
    "shuffled_kl": ("KL divergence of the predictions with the head's weights shuffled", "nats"),
    "random_kl": ("KL divergence by a random change of the head's output of the same size", "nats"),
    "shuffled_loss_low": ("Lower end of its 95% interval", "nats"),
    "shuffled_loss_high": ("Upper end of its 95% interval", "nats"),
    "shuffled_shown": ("Change of the loss told from 0, all heads together", "1"),
    "shuffled_tested": ("Whether that was tested", "1"),
}
_SCORES = ("shuffled_loss", "shuffled_kl", "random_kl")


@typed
def shuffled_weights(
    inquiry: Inquiry, *, texts: int = 8, seed: int = 0, progress: Tell | None = None
) -> xr.Dataset:
    """Shuffle each row of each head's weights among the keys that it may look at, one head at a time.

    Where the predictions lose nothing, it does not matter where this head looks, whatever its weights show. A change of
    the head's output may matter by its size alone: ``random_kl`` is that of a change as large in each row, in a random
    direction. One permutation for each head of each text; `permutation_test` takes many.

    Parameters
    ----------
    inquiry
        Checked.
    texts
        How many windows are read, from the first.
    seed
        Seed of the permutations.
    progress
        Called with a `Progress` after each batch; it tells of ``windows`` done.

    Returns
    -------
    xarray.Dataset
        Means over texts ``(layer, head)``, nats: ``shuffled_loss``, with ``shuffled_loss_low``,
        ``shuffled_loss_high``, ``shuffled_shown`` and ``shuffled_tested`` as `heads_of` has them of effects;
        ``shuffled_kl`` and ``random_kl``. The attribute ``texts`` counts the windows.

    References
    ----------
    Jain and Wallace (2019), Attention is not Explanation, NAACL 2019, section 4.2.1.

    Examples
    --------
    >>> from attnscope.capture import load_model
    >>> from attnscope.corpus import texts_of
    >>> from attnscope.faithfulness import inquiry
    >>> asked = inquiry(load_model("bundled", device="cpu"), texts_of(["The tide comes in twice."]), window=16, limit=1)
    >>> asked.check()
    >>> shuffled_weights(asked).shuffled_loss.dims
    ('layer', 'head')
    """
    parts: dict[str, list[np.ndarray]] = {name: [] for name in _SCORES}
    documents: list[str] = []
    heads = inquiry.heads
    places = [place for place in inquiry.slices() if place.start < texts]
    tell = progress or tell_nobody
    for place in places:
        asked = inquiry.batch(place)
        with stacked_passes(inquiry.model, skips=inquiry.skips) as passes, torch.no_grad():
            before = passes.plain(
                asked.reading.inputs(inquiry.model), asked.places, inquiry.name(place.start)
            )
            calls = [_of_call(passes, asked, before, call, place.start, seed) for call in range(len(heads))]
        for name, values in parts.items():
            flat = np.concatenate([call[name] for call in calls], 1)
            values.append(np.stack([of_layers(row, heads) for row in flat]))
        documents += inquiry.documents[place]
        tell(Progress("weights shuffled", place.stop / places[-1].stop, {"windows": place.stop}))
    every = {name: np.concatenate(values) for name, values in parts.items()}
    loss = by_document(every["shuffled_loss"], units_of(documents)[0], seed=seed)
    means = {name: values.mean(0) for name, values in every.items()}
    ends = {"shuffled_loss_low": loss.low, "shuffled_loss_high": loss.high}
    ends |= {"shuffled_shown": loss.shown, "shuffled_tested": loss.tested}
    return xr.Dataset(
        {
            name: (("layer", "head"), values, {"long_name": _WORDS[name][0], "units": _WORDS[name][1]})
            for name, values in (means | ends).items()
        },
        coords={**layer_coordinates(inquiry.sites), "head": np.arange(max(heads))},
        attrs={"texts": len(documents)},
    )


def _of_call(
    passes: StackedPasses, asked: Questions, before: Tensor, call: int, first_text: int, seed: int
) -> dict[str, np.ndarray]:
    """Scores ``(text, head)`` of one attention call."""
    heads = passes.outputs[call].shape[1]
    loss = asked.scores(before[None])["loss"]
    size = max(1, most_variants(asked, before, passes.outputs) // 2)
    parts: dict[str, list[Tensor]] = {name: [] for name in _SCORES}
    for first in range(0, heads, size):
        some = range(first, min(first + size, heads))
        edit = shuffling(some, (seed, first_text, call))
        scores = asked.scores(passes.run({call: edit}, 2 * len(some)), before)
        shuffled, random = (slice(0, len(some)), slice(len(some), None))
        parts["shuffled_loss"].append((scores["loss"][shuffled] - loss).T)
        parts["shuffled_kl"].append(scores["kl"][shuffled].T)
        parts["random_kl"].append(scores["kl"][random].T)
    return {name: torch.cat(values, 1).double().cpu().numpy() for name, values in parts.items()}


def shuffling(heads: Sequence[int], seed: tuple[int, ...]) -> Callable[[AttentionCall, Tensor], Tensor]:
    """Variants with the i-th head's weights shuffled, then as many with its output changed as far at random."""

    def edit(call: AttentionCall, output: Tensor) -> Tensor:
        weights, values = weights_of(call), values_of(call)
        output = output.clone()
        for text in range(output.shape[1]):
            for variant, head in enumerate(heads):
                generator = np.random.default_rng((*seed, text, head))
                own = weights[text, head].double().cpu().numpy()
                shuffled = permuted_weights(own, generator, call.allowed(text, head).cpu().numpy())
                other = torch.from_numpy(shuffled).to(values) @ values[text, head]
                random = same_size(other[None], output[variant, text, head], generator)[0]
                output[variant, text, head] = other.to(output)
                output[len(heads) + variant, text, head] = random.to(output)
        return output

    return edit
