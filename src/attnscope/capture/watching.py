"""Capture every attention call of a model, by whichever method works for it."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Literal

from attnscope.capture.eager import with_weights
from attnscope.capture.watch import Observer, current, way_of
from attnscope.support.errors import AttnscopeError
from attnscope.support.state import replaced

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.hooks import RemovableHandle
    from transformers import PreTrainedModel

#: Method of capture.
Capture = Literal["registry", "eager weights"]


def capture_of(model: PreTrainedModel) -> Capture:
    """Method of capture for a model: the registry, unless `verify` chose the second method."""
    return "registry" if way_of(model).eager is None else "eager weights"


@contextmanager
def watching(
    model: PreTrainedModel,
    observer: Observer,
    *,
    weights_suffice: bool = False,
    modules: Mapping[str, nn.Module] | None = None,
) -> Generator[None]:
    """Pass every attention call of `model` to `observer(site, call)`, which returns the output.

    If the observer returns None, PyTorch's own attention computes the output. The numbers of sites restart with each
    forward pass, and the model is restored afterwards. With `weights_suffice`, models that do not use the registry are
    captured too: their calls have only weights (`attnscope.kernels.call.call_of_weights`), and the observer cannot
    change the output. To list the `modules` of a model takes a while: a caller that knows them passes them on.
    """
    way = way_of(model)
    if way.eager is not None and not weights_suffice:
        raise AttnscopeError(only_weights(model))
    if way.eager is not None:
        with with_weights(model, way.eager, observer):
            yield
        return
    from attnscope.capture.registry import on_registry

    with on_registry(model, observer, masks_written_out=way.masks_written_out, modules=modules):
        yield


@contextmanager
def held(model: PreTrainedModel) -> Generator[None]:
    """Keep a model watched from one `watching` to the next: to begin takes some milliseconds."""
    way = way_of(model)
    if way.eager is not None or way.products:  # whose hooks would change what runs between two passes
        yield
        return
    with watching(model, lambda *_: None), replaced(vars(current.get()), held=model):
        yield


@contextmanager
def attached(hooks: Iterable[RemovableHandle]) -> Generator[None]:
    """Attach hooks one by one, from a generator, and remove them at the end, also after an interrupt between two."""
    with ExitStack() as stack:
        for hook in hooks:
            stack.enter_context(hook)
        yield


def only_weights(model: PreTrainedModel) -> str:
    """The error for a model with only weights."""
    return (
        f"{type(model).__name__} does not use transformers' attention registry, so only its weights can be measured "
        "(scan), not its queries, keys and values"
    )
