"""Every attention call of a model, seen as it happens, in whichever way the model can be captured."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary, WeakSet

from attnscope.capture.eager import EagerWay, with_weights
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Generator

    from torch import nn
    from transformers import PreTrainedModel

    from attnscope.capture.watch import Observer

#: In which way a model is captured.
Capture = Literal["registry", "eager weights"]

_ways: WeakKeyDictionary[nn.Module, EagerWay] = WeakKeyDictionary()
_misleading: WeakSet[nn.Module] = WeakSet()


def take_weights(model: PreTrainedModel, way: EagerWay | None) -> None:
    """From now on `watching` takes this model's weights as its modules return them; with None, it asks the registry."""
    if way is None:
        _ways.pop(model, None)
    else:
        _ways[model] = way


def capture_of(model: PreTrainedModel) -> Capture:
    """In which way a model is captured: through the registry, unless `verify` found that it takes the second way."""
    return "eager weights" if model in _ways else "registry"


def write_masks_out(model: PreTrainedModel, *, out: bool = True) -> None:
    """From now on `watching` lets this model write out causal masks: its layers do not say what they may look at."""
    (_misleading.add if out else _misleading.discard)(model)


def are_written_out(model: PreTrainedModel) -> bool:
    """Whether `write_masks_out` was asked for."""
    return model in _misleading


@contextmanager
def watching(model: PreTrainedModel, observer: Observer, *, weights_suffice: bool = False) -> Generator[None]:
    """Give every attention call of `model` to `observer(site, call)`, which returns the output.

    Where the observer returns None, the output is what PyTorch's own attention gives. Each forward pass counts sites
    anew; afterwards the model is as it was. With `weights_suffice`, models that never ask the registry are watched
    too: their calls have weights alone (`attnscope.kernels.call.call_of_weights`), and the observer changes nothing.
    """
    way = _ways.get(model)
    if way is not None and not weights_suffice:
        raise AttnscopeError(only_weights(model))
    if way is not None:
        with with_weights(model, way, observer):
            yield
        return
    from attnscope.capture.registry import on_registry

    with on_registry(model, observer, masks_written_out=model in _misleading):
        yield


def only_weights(model: PreTrainedModel) -> str:
    """Why a model that has only weights to show is refused."""
    return (
        f"{type(model).__name__} does not attend through transformers' attention registry: its weights can be seen "
        "(scan), its queries, keys and values cannot, and this asks for them"
    )
