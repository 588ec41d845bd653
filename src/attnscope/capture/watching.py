"""Every attention call of a model, seen as it happens, in whichever way the model can be captured."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from attnscope.capture.eager import with_weights
from attnscope.capture.watch import way_of
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Generator

    from transformers import PreTrainedModel

    from attnscope.capture.watch import Observer

#: In which way a model is captured.
Capture = Literal["registry", "eager weights"]


def capture_of(model: PreTrainedModel) -> Capture:
    """In which way a model is captured: through the registry, unless `verify` found that it takes the second way."""
    return "registry" if way_of(model).eager is None else "eager weights"


@contextmanager
def watching(model: PreTrainedModel, observer: Observer, *, weights_suffice: bool = False) -> Generator[None]:
    """Give every attention call of `model` to `observer(site, call)`, which returns the output.

    Where the observer returns None, the output is what PyTorch's own attention gives. Each forward pass counts sites
    anew; afterwards the model is as it was. With `weights_suffice`, models that never ask the registry are watched
    too: their calls have weights alone (`attnscope.kernels.call.call_of_weights`), and the observer changes nothing.
    """
    way = way_of(model)
    if way.eager is not None and not weights_suffice:
        raise AttnscopeError(only_weights(model))
    if way.eager is not None:
        with with_weights(model, way.eager, observer):
            yield
        return
    from attnscope.capture.registry import on_registry

    with on_registry(model, observer, masks_written_out=way.masks_written_out):
        yield


def only_weights(model: PreTrainedModel) -> str:
    """Why a model that has only weights to show is refused."""
    return (
        f"{type(model).__name__} does not attend through transformers' attention registry: its weights can be seen "
        "(scan), its queries, keys and values cannot, and this asks for them"
    )
