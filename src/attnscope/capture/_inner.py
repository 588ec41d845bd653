"""The model of transformers inside what other tools make of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from transformers import PreTrainedModel

from attnscope.capture._loaded import LoadedModel
from attnscope.errors import AttnscopeError

if TYPE_CHECKING:
    from torch import nn

_HOLDERS = ("_orig_mod", "original_model", "_model", "_module")  # torch.compile, TransformerLens, nnsight


@runtime_checkable
class Bridge(Protocol):
    """What holds a model as TransformerLens' ``TransformerBridge`` does.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> isinstance(SimpleNamespace(original_model=None), Bridge), isinstance(SimpleNamespace(), Bridge)
    (True, False)
    """

    @property
    def original_model(self) -> nn.Module:
        """The model of transformers."""
        ...


@runtime_checkable
class Envoy(Protocol):
    """What holds a model as nnsight's ``LanguageModel`` does.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> isinstance(SimpleNamespace(_module=None), Envoy), isinstance(SimpleNamespace(), Envoy)
    (True, False)
    """

    @property
    def _module(self) -> nn.Module:
        """The model of transformers."""
        ...


def inner_model(source: object) -> object:
    """The model that `source` wraps (``torch.compile``, TransformerLens, nnsight, `LoadedModel`); else `source` itself.

    Other packages' are known by the names of attributes, so that none of these packages is needed.

    Raises
    ------
    AttnscopeError
        If the model within has no weights yet.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1))
    >>> inner_model(SimpleNamespace(original_model=model)) is model, inner_model("bert-base-uncased")
    (True, 'bert-base-uncased')
    """
    if isinstance(source, PreTrainedModel):
        return source
    if isinstance(source, LoadedModel):
        return source.model
    for name in _HOLDERS:
        held: object = getattr(source, name, None)
        if held is None or held is source:
            continue
        inner = inner_model(held)
        if isinstance(inner, PreTrainedModel):
            if any(parameter.is_meta for parameter in inner.parameters()):
                raise AttnscopeError(
                    f"{type(source).__name__} holds a {type(inner).__name__} whose weights are not loaded yet: load "
                    "them first (nnsight: dispatch=True)"
                )
            return inner
    return source
