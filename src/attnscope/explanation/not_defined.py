"""What is raised where an analysis cannot be."""

from attnscope.support.errors import AttnscopeError


class NotDefinedError(AttnscopeError):
    """An analysis that this model does not admit.

    Examples
    --------
    >>> from transformers import LlamaConfig, LlamaModel
    >>> from attnscope import mechanism
    >>> config = LlamaConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    >>> study = mechanism.Study(LlamaModel(config).eval(), [[5, 6, 7, 8], [7, 8, 8, 5]], band=2)
    >>> study.computed(mechanism.known_analyses()["position_pca"])
    Traceback (most recent call last):
    ...
    attnscope.explanation.not_defined.NotDefinedError: LlamaModel: it turns queries and keys by their positions (RoPE)
    """
