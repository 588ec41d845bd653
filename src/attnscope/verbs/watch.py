"""`attnscope.watch`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from attnscope.options import WIDEST, GivenSpans, Module
from attnscope.support.checked import Bounds
from attnscope.verbs import verb

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from attnscope.measure.watched import WatchedCalls


@verb()
def watch(
    module: Annotated[
        Module, "Watch this module, in eval mode, from Hugging Face or not. Attention with active dropout is rejected."
    ],
    *,
    statistics: Annotated[
        Sequence[str] | str | None, "Measure these statistics: see `attnscope.scan`; not for ``generate()``."
    ] = None,
    band: Annotated[
        int,
        Bounds(1, WIDEST),
        "Measure profiles up to this offset. Instead of ``offsets``, use a wider band or ``offset_sum``.",
    ] = 10,
    spans: Annotated[
        GivenSpans | None,
        "Mark for ``generate()``: parts of the prompt by name, each as its first token and the one after the last "
        '(``{"question": (3, 12)}``), a slice, or a list of tokens. Give one mapping for all prompts, a list with '
        "one for each, or a function from the token ids of a prompt to a mapping. Padding does not count.",
    ] = None,
) -> "AbstractContextManager[WatchedCalls]":
    """Measure the attention inside a PyTorch module while you call it.

    Every call of ``torch.nn.functional.scaled_dot_product_attention``, of ``flex_attention`` and of
    ``torch.nn.MultiheadAttention`` (its fast path included) is measured as it happens; so are layers of transformers
    that are set to eager attention. The module's output does not change. Calls of submodules, in order, are the layers;
    two calls with the same queries, keys and mask count once.

    Yields
    ------
    Seen
        Its ``result()`` has the form of `attnscope.scan`, with one entry of ``window`` for each text of each pass, and
        the calling submodule in ``layer_name``. ``length`` counts the real tokens: a token that no query can see
        (or that ``key_padding_mask`` names) is padding. No token counts as special. Layers are ``cross`` if queries and
        keys differ in number, or in their states in ``nn.MultiheadAttention``. For ``generate()`` it is another
        Dataset, over ``sequence, step, layer, head``: see Notes.

    Raises
    ------
    AttnscopeError
        If calls cannot be captured (scripted, compiled or data-parallel modules), if dropout is active, if keys are
        not tokens (a cache, a prefix), if passes differ in their layers, or if the captured calls do not reproduce the
        module's output.

    Notes
    -----
    Hand-written attention is not captured: use `measure_weights`. The attribute ``uncaptured`` of the result names
    submodules without a captured call that have "attention" in their name or call a softmax over as many keys; the
    attribute ``packed`` counts texts of several documents. The scores of ``flex_attention`` are in memory, one
    layer at a time; PyTorch modules with a fast path (``nn.TransformerEncoder``, ...) run twice. ``flex_attention``
    runs without ``torch.compile``, and its ``score_mod`` must accept all scores of a call at once.

    ``generate()`` of a model of transformers is measured token by token. A step is a new token; its numbers are those
    of the query that predicted it, the token before it. They equal those of one full pass over the final text, with any
    cache; with beams, those of the beam that wrote the token. ``span_weight`` is the weight on the prompt, on each of
    its named spans, and on the model's own output; ``equal_span_weight`` is that of uniform attention over the same
    keys. See docs/guides/generation.md.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> module = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3).eval()
    >>> with watch(module, band=2) as seen, torch.no_grad():
    ...     _ = module(torch.randn(4, 7, 8))
    >>> results = seen.result()
    >>> dict(results.profile.sizes), results.layer_name.values[0]
    ({'window': 4, 'layer': 3, 'head': 2, 'offset': 5}, 'layers.0.self_attn')
    """
    from attnscope.measure.quantities import choose
    from attnscope.measure.watched import WatchedCalls

    return WatchedCalls(module, choose(statistics), band).during(spans)
