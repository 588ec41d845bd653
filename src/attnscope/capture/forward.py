"""A forward pass whose numbers are looked at: what is not finite is refused, by text and layer."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from attnscope.capture.families import main_output
from attnscope.capture.watch import Site, looking
from attnscope.kernels.call import magnitude
from attnscope.support.errors import AttnscopeError, reason_of
from attnscope.support.state import same_random_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import PreTrainedModel

if TYPE_CHECKING:
    Name = Callable[[int], str]
    Valid = Callable[[str], Tensor]

_HALF = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


def forward(
    model: PreTrainedModel,
    inputs: dict[str, Any],
    name: Name,
    valid: Valid | None = None,
    *,
    with_head: bool = True,
) -> Tensor:
    """Run a model within `watching`, and refuse texts on which it overflows.

    Parameters
    ----------
    model
        In eval mode.
    inputs
        Arguments of its forward pass.
    name
        What to call a text of the batch, by its number from 0.
    valid
        From the kind of a site to ``(batch, query)``, True on real tokens; by default all are real.
    with_head
        Whether what stands on the model's body is run too, such as that which makes logits.

    Returns
    -------
    Tensor
        The model's main output, ``(batch, position, ...)``.

    Raises
    ------
    AttnscopeError
        If a token id is beyond the model's vocabulary, or at a real token what an attention layer or the model gives is
        NaN or infinite.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> from attnscope.kernels import Need, measure
    >>> from attnscope.capture import watching
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=8)
    >>> model = BertModel(config).eval()
    >>> _ = torch.nn.init.constant_(model.encoder.layer[1].attention.self.value.bias, torch.inf)
    >>> with torch.no_grad(), watching(model, lambda site, call: measure(call, Need())[0]):
    ...     forward(model, {"input_ids": torch.tensor([[5, 6, 7]])}, ["essay.txt"].__getitem__)
    Traceback (most recent call last):
    ...
    attnscope.support.errors.AttnscopeError: essay.txt: layer 1 (encoder.layer.1.attention.self) gives NaN or infinity. Look...
    """
    check_ids(model, inputs, name)

    def real(kind: str) -> Tensor | None:
        return None if valid is None else valid(kind)

    def look(site: Site, output: Tensor) -> None:
        check_finite(f"layer {site.index} ({site.name})", output.transpose(1, 2), name, real(site.kind))

    with looking(look), same_random_numbers() if draws(model) else nullcontext():
        output = main_output((model if with_head else model.base_model)(**inputs))
    check_finite("the model's output", output, name, real("causal"))  # a decoder's, where there is one
    return output


_drawing: WeakSet[nn.Module] = WeakSet()


def note_drawing(model: nn.Module, *, draws: bool) -> None:
    """From now on `forward` lets this model draw the same random numbers in each pass: a scan can be repeated."""
    (_drawing.add if draws else _drawing.discard)(model)


def draws(model: nn.Module) -> bool:
    """Whether `verify` saw a model draw random numbers: it masks (ViT-MAE) or samples (Informer) in each pass."""
    return model in _drawing


def check_finite(where: str, states: Tensor, name: Name, valid: Tensor | None = None) -> None:
    """Refuse the first text of ``(batch, position, ...)`` that is not finite at a real token.

    Parameters
    ----------
    where
        Place in the model, for the error.
    states
        Numbers of a batch, ``(batch, position, ...)``.
    name
        Function that names a text of the batch by its number.
    valid
        True at real tokens, ``(batch, position)``; all are real where it is None.

    Raises
    ------
    AttnscopeError
        If a number at a real token is NaN or infinity: names the text, and what to do.

    Examples
    --------
    >>> states = torch.tensor([[[1.0], [torch.inf]]])
    >>> check_finite("layer 3", states, ["essay.txt"].__getitem__, torch.tensor([[True, False]]))
    >>> check_finite("layer 3", states, ["essay.txt"].__getitem__)
    Traceback (most recent call last):
    ...
    attnscope.support.errors.AttnscopeError: essay.txt: layer 3 gives NaN or infinity. Look at the weights of the model...
    """
    if bool(magnitude(states) < torch.inf):
        return
    strange = ~states.reshape(*states.shape[:2], -1).isfinite().all(-1)
    if valid is not None and valid.shape == strange.shape:
        strange &= valid.to(strange.device)
    if bool(strange.any()):
        raise not_finite(name(int(strange.any(1).nonzero()[0])), where, states.dtype)


def not_finite(text: str, where: str, dtype: torch.dtype) -> AttnscopeError:
    """The error that says which text a model overflows on, where, and what to do.

    Parameters
    ----------
    text
        Name of the text.
    where
        Place in the model.
    dtype
        Type of the model's numbers: half types are what overflows.

    Examples
    --------
    >>> print(not_finite("essay.txt", "layer 3", torch.float16))
    essay.txt: layer 3 gives NaN or infinity. The model runs in float16: try --dtype float32
    """
    advice = "Look at the weights of the model and at the tokens of this text"
    if dtype in _HALF:
        advice = f"The model runs in {_HALF[dtype]}: try --dtype float32"
    return AttnscopeError(f"{text}: {where} gives NaN or infinity. {advice}")


def check_ids(model: PreTrainedModel, inputs: dict[str, Any], name: Name) -> None:
    """Refuse token ids that the model has no embedding for.

    Parameters
    ----------
    model
        The model that will read them.
    inputs
        What it is given: ``input_ids`` and, of an encoder-decoder, ``decoder_input_ids``, ``(batch, token)``.
    name
        From the number of a text in the batch to what it is called.

    Raises
    ------
    AttnscopeError
        If an id lies beyond the embeddings: the tokenizer is another model's.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(vocab_size=9, hidden_size=8, num_attention_heads=2, num_hidden_layers=1)
    >>> check_ids(BertModel(config), {"input_ids": torch.tensor([[5, 9]])}, ["essay.txt"].__getitem__)
    Traceback (most recent call last):
    ...
    attnscope.support.errors.AttnscopeError: essay.txt holds token id 9, but BertModel knows 9 tokens (ids 0 to 8): ...
    """
    for side in ("input_ids", "decoder_input_ids"):
        ids = inputs.get(side)
        table = None if ids is None else _embedding(model, side)
        if ids is None or table is None or int(ids.max()) < table.num_embeddings:
            continue
        known = table.num_embeddings
        text = int((ids >= known).any(1).nonzero()[0])
        raise AttnscopeError(
            f"{name(text)} holds token id {int(ids[text].max())}, but {type(model).__name__} knows {known} tokens "
            f"(ids 0 to {known - 1}): tokenizer and model do not belong together"
        )


def _embedding(model: PreTrainedModel, side: str) -> nn.Embedding | None:
    reader: Any = model.get_decoder() if side.startswith("decoder") else model
    try:
        table = (reader if hasattr(reader, "get_input_embeddings") else model).get_input_embeddings()
    except NotImplementedError:  # several modalities, of which none is the main one
        return None
    return table if isinstance(table, nn.Embedding) else None


def decoder_start(model: PreTrainedModel) -> Callable[[Sequence[int]], int]:
    """How the model chooses the token that its decoder reads before all that it says.

    The model itself is asked, as in training: it is the config's ``decoder_start_token_id``, or where a family begins
    with the mark of the language (mBART), the last token that is to be said.

    Parameters
    ----------
    model
        An encoder-decoder.

    Returns
    -------
    callable
        From the token ids to be said to the id of the start token.

    Raises
    ------
    AttnscopeError
        If the model has no decoder beside an encoder; when called, if the model does not know its start token.

    Examples
    --------
    >>> from transformers import T5Config, T5ForConditionalGeneration
    >>> config = T5Config(d_model=8, d_kv=4, num_heads=2, num_layers=1, d_ff=8, vocab_size=9, decoder_start_token_id=0)
    >>> decoder_start(T5ForConditionalGeneration(config))([5, 6, 1])
    0
    """
    if not model.config.is_encoder_decoder:
        raise AttnscopeError(
            f"{type(model).__name__} has no decoder beside an encoder, so nothing in it reads a target: leave out "
            "targets (--target)"
        )
    shift: Any = getattr(model, "prepare_decoder_input_ids_from_labels", None)

    def start(said: Sequence[int]) -> int:
        if shift is not None:
            try:
                return int(shift(torch.tensor([list(said)]))[0, 0])
            except Exception as error:  # families raise what they like where a setting is missing
                raise _unknown(model, reason_of(error)) from error
        known = getattr(model.config, "decoder_start_token_id", None)
        if known is None:
            raise _unknown(model, "no decoder_start_token_id")
        return int(known)

    return start


def decoder_note(model: PreTrainedModel, *, with_target: bool) -> dict[str, str]:
    """The attribute of a result that says what the decoder beside an encoder read; none for other models.

    Parameters
    ----------
    model
        Any model; of an encoder-decoder it is said.
    with_target
        Whether the decoder was given a text of its own.

    Examples
    --------
    >>> from transformers import T5Config, T5Model
    >>> config = T5Config(d_model=8, d_kv=4, num_heads=2, num_layers=1, d_ff=8, vocab_size=9)
    >>> decoder_note(T5Model(config), with_target=False)
    {'decoder': 'The decoder read the same text as the encoder: no target was given.'}
    """
    if not model.config.is_encoder_decoder:
        return {}
    read = "the target text" if with_target else "the same text as the encoder: no target was given"
    return {"decoder": f"The decoder read {read}."}


def _unknown(model: PreTrainedModel, reason: str) -> AttnscopeError:
    return AttnscopeError(
        f"{type(model).__name__} does not say what its decoder reads first ({reason}): "
        "set decoder_start_token_id (and pad_token_id) in its config"
    )
