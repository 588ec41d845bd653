"""Weights as unlike a head's own as can be, while predictions stay within a bound: by gradient search."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from attnscope.intervention.arrays.changes import jensen_shannon, permuted_weights
from attnscope.intervention.arrays.changes import total_variation as distance
from attnscope.intervention.given import InterventionInput
from attnscope.intervention.weights.over_heads import TestOptions, over_heads, prepared
from attnscope.intervention.weights.read_text import ReadText, total_variation
from attnscope.intervention.weights.read_text import jensen_shannon as divergence
from attnscope.support.arguments import Draws, validated
from attnscope.support.checks import check_real

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.explanation.study import Study
    from attnscope.read.encoded import Sources

_SHARES = np.linspace(1.0, 0.0, 21)  # of the way from the head's own weights to others
_LEAST = 1e-6  # weight from which the search starts where there is none
_NOISE = 0.1  # of the logits at the start, where both distances are 0 and have no slope
_RATE = 0.2  # of Adam, in logits
_VARIABLES = {
    "weights_jsd": ("Largest divergence of the weights found within the bound, mean over rows", "nats"),
    "weights_tvd": ("Total variation distance of these weights, mean over rows", "share"),
    "tvd": ("Total variation distance of the predictions with them", "share"),
    "weights_jsd_null": ("Divergence of weights mixed up at random and moved up to the bound, median", "nats"),
}


@validated
def adversarial_test(
    model: Model | Study | InterventionInput | None = None,
    texts: Sources = None,
    *,
    bound: float = 0.05,
    steps: Draws = 50,
    draws: Draws = 4,
    **options: Unpack[TestOptions],
) -> xr.Dataset:
    r"""Search weights of one head that differ most from its own while predictions move by no more than a bound."""
    check_real(0.0, 1.0, bound=bound)
    given, chosen = prepared(model, texts, options)

    def of_head(text: ReadText, layer: int, head: int, generator: np.random.Generator) -> dict[str, float]:
        search = WeightSearch(text, layer, head, bound)
        furthest = search.furthest(search.climb(steps, generator))
        random = [
            search.furthest(permuted_weights(search.weights, generator, search.allowed)[None])[0] for _ in range(draws)
        ]
        return {
            "weights_jsd": search.divergence(furthest[0]),
            "weights_tvd": float(distance(search.weights, furthest[0]).mean()),
            "tvd": furthest[1],
            "weights_jsd_null": float(np.median([search.divergence(weights) for weights in random])),
        }

    return over_heads(given, "adversarial_test", _VARIABLES, lambda _, __: of_head, **chosen).assign_attrs(
        bound=bound, steps=steps
    )


class WeightSearch:
    """The weights of one head of one text, and which others keep the bound."""

    def __init__(self, text: ReadText, layer: int, head: int, bound: float) -> None:
        self.text, self.layer, self.head, self.bound = text, layer, head, bound
        self.weights, self.allowed = text.weights(layer, head), text.visible(layer, head)

    def divergence(self, weights: Float[np.ndarray, "query key"]) -> float:
        """Mean over rows, nats."""
        return float(jensen_shannon(self.weights, weights).mean())

    def climb(self, steps: int, generator: np.random.Generator) -> Float[np.ndarray, "variant query key"]:
        """Weights on the way: the last, and the furthest that kept the bound."""
        values = self.text.values(self.layer, self.head)
        own = torch.from_numpy(self.weights).to(values)
        total = own.sum(-1, keepdim=True)
        hidden = torch.from_numpy(~self.allowed).to(own.device)
        noise = torch.from_numpy(generator.normal(size=self.weights.shape)).to(own)
        logits = (own.clamp_min(_LEAST).log() + _NOISE * noise).masked_fill(hidden, -torch.inf)
        logits = logits.masked_fill(hidden.all(-1, keepdim=True), 0.0).requires_grad_()
        optimiser = torch.optim.Adam([logits], lr=_RATE)
        best, furthest = own, 0.0
        made = own
        with torch.enable_grad():
            for _ in range(steps):
                made = logits.softmax(-1) * total
                moved, far = self._moved(made @ values), divergence(made, own).mean()
                if float(moved.detach()) <= self.bound and float(far.detach()) > furthest:
                    best, furthest = made.detach(), float(far.detach())
                loss = -far + (moved - self.bound).clamp_min(0.0) / max(self.bound, _LEAST)
                optimiser.zero_grad()
                (logits.grad,) = torch.autograd.grad(loss, logits)
                optimiser.step()
        both = torch.stack([best, made.detach()])
        return both.double().cpu().numpy()

    def furthest(self, several: Float[np.ndarray, "variant query key"]) -> tuple[Float[np.ndarray, "query key"], float]:
        """The furthest mixture of the head's own weights and others that keeps the bound, and the distance reached."""
        mixed = np.concatenate(
            [[self.weights + share * (weights - self.weights) for share in _SHARES] for weights in several]
        )
        outputs = self.text.of_weights(self.layer, self.head, mixed)
        reached = self.text.effects(self.layer, self.head, outputs)["tvd"].mean(1)
        # the head's own weights move nothing, whatever the rounding of a batch says
        reached[len(_SHARES) - 1 :: len(_SHARES)] = 0.0
        far = np.array([self.divergence(np.maximum(weights, 0.0)) for weights in mixed])
        chosen = int(np.where(reached <= self.bound, far, -1.0).argmax())
        return mixed[chosen], float(reached[chosen])

    def _moved(self, output: Tensor) -> Tensor:
        after = self.text.changed(self.layer, self.head, output[None])
        return total_variation(after, self.text.log_probabilities).mean()
