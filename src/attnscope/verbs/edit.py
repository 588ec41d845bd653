"""`attnscope.edit`."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

from attnscope.options import Model
from attnscope.verbs import verb

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@verb(borrows=False)
@contextmanager
def edit(
    model: Annotated[
        Model, "Edit a model object (or a folder or hub id, to be loaded), in the mode that you have set."
    ],
    changes: Annotated[
        Mapping[Any, Any],
        "Replace these tensors. A function for each head, ``{(layer, head): f}``, or for another activation, "
        '``{"3.resid_mid": f}``. It takes the tensor of that head, or the activation ``(batch, position, width)``, '
        "and returns one of the same shape. Names of activations are in docs/questions/edit.md: the residual "
        "stream (``resid_pre``, ``resid_mid``, ``resid_post``), ``attn_out``, ``mlp_out``, ``neurons``, norms "
        "(``ln1``), ``embed``, ``logits``. A key can also be TransformerLens' name of a hook "
        '(``"blocks.3.hook_resid_mid"``, ``"blocks.3.attn.hook_z"``); f then takes all heads, in the shape of '
        "TransformerLens.",
    ],
    *,
    on: Annotated[
        Literal["output", "z", "weights", "scores", "query", "key", "value"],
        "Replace what f takes:\n\n* ``output``: what the head adds to the output of its layer, ``(batch, query, "
        "model_width)``, without bias.\n* ``z``: weights times values, ``(batch, query, value_width)``.\n* "
        "``weights``: ``(batch, query, key)``, after the softmax.\n* ``scores``: ``(batch, query, key)``, before "
        "the softmax, with scale, cap and bias; -inf where masked.\n* ``query``, ``key``, ``value``: ``(batch, "
        "token, width)``, after any rotation. Heads that share keys and values\n  get a copy each.",
    ] = "output",
    kind: Annotated[
        Literal["self", "causal", "cross"] | None,
        "Count only layers of this kind: of an encoder-decoder, ``self`` (encoder), ``causal`` (decoder) or "
        "``cross``. By default layers are numbered as in `attnscope.scan`: encoder, then self- and cross-attention "
        "of the decoder.",
    ] = None,
    positions: Annotated[
        Any,
        "Replace them at these positions only: ``(text, position)``, as an array of truth values. "
        "`attnscope.intervention.pair_sources.positions_of` makes it of the name of a span of pairs.",
    ] = None,
    inputs: Annotated[
        Mapping[str, Any] | None,
        "Find the layers with these arguments of a forward pass, for a model that reads no tokens.",
    ] = None,
) -> "Generator[PreTrainedModel]":
    """Replace tensors of heads and other activations by what functions make of them, in each pass within the context.

    Yields
    ------
    PreTrainedModel
        The model. Call it as you like, also with gradients and in ``generate()``. It is restored afterwards.

    Raises
    ------
    AttnscopeError
        If a head or an activation does not exist, a function returns another shape, attention is not captured (see
        `attnscope.scan`), or no linear layer reads the heads of an edited ``output``.

    Examples
    --------
    >>> import torch
    >>> from attnscope.capture.load import load_model
    >>> loaded = load_model("bundled", device="cpu")
    >>> ids = loaded.tokenizer("The tide<mask> in twice a day.", return_tensors="pt").input_ids
    >>> before = loaded.model(ids).logits
    >>> with edit(loaded.model, {(0, 1): torch.zeros_like}) as edited:
    ...     after = edited(ids).logits
    >>> bool((before - after).abs().max() > 0.1), torch.equal(loaded.model(ids).logits, before)
    (True, True)
    >>> with edit(loaded.model, {"1.mlp_out": torch.zeros_like}) as edited:
    ...     bool((edited(ids).logits - before).abs().max() > 0.1)
    True
    """
    from transformers import PreTrainedModel

    from attnscope.capture.borrow import alone, inner_model
    from attnscope.capture.load import load_model
    from attnscope.capture.outline import rejecting
    from attnscope.intervention.activations import check_name
    from attnscope.intervention.edit import Anatomy, changed, changes_of, is_hook_of_heads

    inner = inner_model(model)
    for key in changes:
        if isinstance(key, str) and not is_hook_of_heads(key):
            check_name(key)
    pairs = [key for key in changes if isinstance(key, tuple) and [*map(type, key)] == [int, int]]
    first = rejecting(pairs, "heads", kind)
    inner = inner if isinstance(inner, PreTrainedModel) else load_model(model, need_tokenizer=False, first=first).model
    anatomy = Anatomy(inner, inputs)
    edits = changes_of(changes, on, kind, anatomy, positions)
    with alone(inner, anatomy.modules.values()), changed(anatomy, edits):
        yield inner
