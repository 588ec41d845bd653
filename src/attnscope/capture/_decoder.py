"""What the decoder of an encoder-decoder reads first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from attnscope.errors import AttnscopeError, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import PreTrainedModel


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
