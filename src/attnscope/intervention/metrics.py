"""A metric of one's own: a number for each text, with its name, unit and better direction."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from attnscope.report.identity import identity_of
from attnscope.report.schema import UNITS
from attnscope.support.checked import checked
from attnscope.support.errors import AttnscopeError, explaining

Better = Literal["higher", "lower"]
_BETTER = {"higher": "Higher is better.", "lower": "Lower is better."}


@dataclass(frozen=True, eq=False)
class Metric:
    """A function of logits and inputs that returns a number for each text, and how reports name its numbers."""

    function: Callable[..., Any]
    name: str
    unit: str = "1"
    better: Better | None = None  # direction in which the model does better; None: neither
    meaning: str = ""  # a sentence

    def __call__(self, *arguments: Any) -> Any:
        """The function itself."""
        return self.function(*arguments)

    @property
    def identity(self) -> str:
        """Name and hash, for a signature."""
        identity = identity_of(self.function, "metric")
        parts = [identity["sha256"], self.name, self.unit, self.better, self.meaning]
        return f"{identity['name']}@{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}"

    @property
    def attributes(self) -> dict[str, str]:
        """Name, unit and direction, as attributes of a result."""
        parts = {"metric": self.name, "unit": self.unit, "better": self.better or "", "meaning": self.meaning}
        return {name: part for name, part in parts.items() if part}

    def of_texts(self, logits: Tensor, inputs: Mapping[str, Any], count: int) -> Tensor:
        """The metric of a run of `count` texts, ``(text,)``."""
        with explaining(f"the metric {self.name!r} failed", "Correct its function"):
            value = self.function(logits, inputs)
        if not isinstance(value, Tensor) or value.shape != (count,) or value.is_complex():
            returned = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise AttnscopeError(f"metric returned {returned}; expected a number for each text, ({count},)")
        if not bool(value.isfinite().all()):
            raise AttnscopeError(f"the metric {self.name!r} is NaN or infinite for a text; expected finite numbers")
        return value.to(torch.promote_types(value.dtype, torch.float32))

    def depends_on_padding(self) -> AttnscopeError:
        """The error for a metric that differs between batches."""
        return AttnscopeError(
            f"the metric {self.name!r} depends on padding, which differs between batches: leave out positions "
            'where inputs["attention_mask"] is 0'
        )

    def gradient(self, logits: Tensor, inputs: Mapping[str, Any], count: int, without: str) -> tuple[Tensor, Tensor]:
        """The metric of each text, and its gradient with respect to the logits; `without` says what else to use."""
        leaf = logits.detach().requires_grad_()
        with torch.enable_grad():
            value = self.of_texts(leaf, inputs, count)
            whole = value.sum()
        if not whole.requires_grad:
            raise AttnscopeError(f"the metric {self.name!r} has no gradient with respect to the logits: {without}")
        return value.detach(), torch.autograd.grad(whole, leaf)[0]


def note_of(attributes: Mapping[Any, Any]) -> list[str]:
    """The part of the texts that a result is of, and its metric: notes of its report, none without them."""
    part = [f"Only tokens in the part {attributes['part']} are predicted."] if "part" in attributes else []
    if "metric" not in attributes:
        return part
    unit, better = unit_of(attributes), attributes.get("better")
    sentences = [f"Metric: {attributes['metric']}{unit and f', in{unit}'}."]
    sentences += [_BETTER[better]] if better else []
    return [*part, " ".join([*sentences, attributes.get("meaning", "")]).strip()]


def subject_of(attributes: Mapping[Any, Any]) -> str:
    """The quantity whose change a result measures."""
    return str(attributes.get("metric", "answer minus wrong answer"))


def format_of(unit: str) -> str:
    """The unit by which tables write changes; in a unit of the caller's, they have digits by size."""
    return unit if unit in UNITS and UNITS[unit].sign else "change"


def unit_of_loss(attributes: Mapping[Any, Any]) -> str:
    """The unit of the loss of a result of `intervene`: of an encoder without a head, a share of its embedding."""
    return "share" if attributes.get("prediction") == "output" else "nats"


def unit_of(attributes: Mapping[Any, Any]) -> str:
    """The unit behind a number in a sentence, with the space before it."""
    unit = attributes.get("unit", "logits")
    return "" if unit in {"1", "share"} else f" {unit}"


def metric_of(function: Callable[..., Any]) -> Metric:
    """A metric as it is; another function by its name and the first line of its docstring."""
    if isinstance(function, Metric):
        return function
    name = getattr(function, "__name__", type(function).__name__)
    meaning = (getattr(function, "__doc__", None) or "").strip().partition("\n")[0]
    return Metric(function, "metric" if name == "<lambda>" else name.replace("_", " "), meaning=meaning)


@checked
def metric(*, name: str = "", unit: str = "1", better: Better | None = None) -> Callable[[Callable[..., Any]], Metric]:
    """Name a metric of your own, for tables, pages and JSON of the verbs that take ``metric=``.

    Parameters
    ----------
    name
        Its name in reports. By default that of the function.
    unit
        Unit of its numbers, such as ``"nats"``, ``"logits"`` or ``"share"``.
    better
        Whether ``"higher"`` or ``"lower"`` numbers mean a better model. By default neither.

    Returns
    -------
    Callable
        A decorator of the function. The function takes the logits ``(text, position, vocabulary)`` and the inputs of
        the model, a dict of tensors, and returns a tensor ``(text,)``. The first line of its docstring is its meaning.

    Examples
    --------
    >>> @metric(unit="nats", better="lower")
    ... def entropy(logits, inputs):
    ...     "Entropy of the next token, mean over positions."
    ...     return torch.distributions.Categorical(logits=logits).entropy().mean(1)
    >>> entropy.attributes
    {'metric': 'entropy', 'unit': 'nats', 'better': 'lower', 'meaning': 'Entropy of the next token, ...'}
    """

    def named(function: Callable[..., Any]) -> Metric:
        record = metric_of(function)
        return Metric(record.function, name or record.name, unit, better, record.meaning)

    return named
