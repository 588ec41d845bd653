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

    Within the context the model runs on the registered function; afterwards it is as it was before. Each
    forward pass starts the count of sites anew.

    Parameters
    ----------
    model
        In eval mode.
    observer
        Called with a `Site` and an `attnscope.kernels.call.AttentionCall`. Where it returns None, the output is what
        PyTorch's own attention gives.
    weights_suffice
        Whether the observer asks for no more than weights. Then also models are watched of which `verify` found that
        they never ask the registry: their calls have no queries, keys and values (see
        `attnscope.kernels.call.call_of_weights`), and what the observer returns changes nothing.

    Raises
    ------
    AttnscopeError
        If transformers does not let this model's attention be replaced, or it can be seen by its weights alone and
        they do not suffice.

    Examples
    --------
    >>> import torch
    >>> from transformers import BertConfig, BertModel
    >>> from attnscope.kernels import Need, measure
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=8)
    >>> model = BertModel(config).eval()
    >>> seen = []
    >>> def observe(site, call):
    ...     seen.append((site.index, site.name, call.query.shape[1]))
    ...     return measure(call, Need())[0]
    >>> with torch.no_grad(), watching(model, observe):
    ...     _ = model(torch.tensor([[5, 6, 7]]))
    >>> seen
    [(0, 'encoder.layer.0.attention.self', 2), (1, 'encoder.layer.1.attention.self', 2)]
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
