"""Forward passes with checks for NaN and infinity, by text and layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attnscope.capture.families import body_of, main_output, without_cache
from attnscope.capture.watch import Site, current, looking, way_of
from attnscope.kernels.call import is_finite
from attnscope.support.errors import AttnscopeError, reason_of
from attnscope.support.state import same_random_numbers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    Name = Callable[[int], str]
    Valid = Callable[[str], Tensor | None]

_HALF = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


def forward(
    model: PreTrainedModel,
    inputs: dict[str, Any],
    name: Name,
    valid: Valid = lambda _: None,
    *,
    with_head: bool = True,
    result: Callable[[Any], Tensor] = main_output,
) -> Tensor:
    """Run a model within `watching`, and raise an error for a text on which it overflows.

    Without its head, the output is that of the body, and has no logits. Give `use_cache` for a cache of keys.
    """
    check_ids(model, inputs, name)
    inputs = without_cache(model) | inputs

    def look(site: Site, output: Tensor) -> None:
        if not is_finite(output):
            check_finite(f"layer {site.index} ({site.name})", output.transpose(1, 2), name, valid(site.kind))

    with looking(look), same_random_numbers() if way_of(model).draws else nullcontext():
        output = result(model(**inputs) if with_head else run_body(model, inputs))
    check_finite("the model's output", output, name, valid("causal"))  # a decoder's, where there is one
    return output


class _EndedError(Exception):
    """The end of a pass after its last attention call."""


def run_body(model: PreTrainedModel, inputs: dict[str, Any]) -> Any:
    """The output of a model's body, where a pass ends unless attention follows (by the number of verified calls).

    The pass begins at the model, which may prepare the inputs of its body.
    """
    body, watch, calls = body_of(model), current.get(), way_of(model).calls
    if watch is None or calls is None:
        return model(**inputs)

    def end(_: nn.Module, __: Any, output: Any) -> None:
        if watch.calls == calls:
            raise _EndedError(output)

    # logits of a large vocabulary can take more than the layers: without them the pass ends early
    with body.register_forward_hook(end):
        try:
            return model(**inputs)
        except _EndedError as ended:
            return ended.args[0]


def check_finite(where: str, states: Tensor, name: Name, valid: Tensor | None = None) -> None:
    """Raise an error for the first text of ``(batch, position, ...)`` with NaN or infinity at a real token."""
    if is_finite(states):
        return
    strange = ~states.reshape(*states.shape[:2], -1).isfinite().all(-1)
    if valid is not None and valid.shape == strange.shape:
        strange &= valid.to(strange.device)
    if bool(strange.any()):
        raise not_finite(name(int(strange.any(1).nonzero()[0])), where, states.dtype)


def not_finite(text: str, where: str, dtype: torch.dtype) -> AttnscopeError:
    """The error for a text on which a model overflows, with the layer and advice."""
    advice = "Check the weights of the model and the tokens of this text"
    if dtype in _HALF:
        advice = f"The model runs in {_HALF[dtype]}: try --dtype float32"
    return AttnscopeError(f"{text}: {where} gives NaN or infinity. {advice}")


def check_ids(model: PreTrainedModel, inputs: dict[str, Any], name: Name) -> None:
    """Raise an error for token ids without an embedding."""
    for side in ("input_ids", "decoder_input_ids"):
        ids = inputs.get(side)
        if ids is not None and not ids.numel():
            raise AttnscopeError(f"{name(0)} has no tokens: its {side} have the shape {tuple(ids.shape)}. Give some")
        table = None if ids is None else _embedding(model, side)
        if ids is None or table is None or int(ids.max()) < table.num_embeddings:
            continue
        size = table.num_embeddings
        text = int((ids >= size).any(1).nonzero()[0])
        raise AttnscopeError(
            f"{name(text)} contains token id {int(ids[text].max())}, but {type(model).__name__} has {size} tokens "
            f"(ids 0 to {size - 1}). Use the tokenizer of this model"
        )


def _embedding(model: PreTrainedModel, side: str) -> nn.Embedding | None:
    reader: Any = model.get_decoder() if side.startswith("decoder") else model
    try:
        table = (reader if hasattr(reader, "get_input_embeddings") else model).get_input_embeddings()
    except NotImplementedError:  # several modalities, of which none is the main one
        return None
    return table if isinstance(table, nn.Embedding) else None


def decoder_start(model: PreTrainedModel) -> Callable[[Sequence[int]], int]:
    """A function that returns the first token of the decoder for a target."""
    if not model.config.is_encoder_decoder:
        raise AttnscopeError(
            f"{type(model).__name__} is not an encoder-decoder, so it cannot read targets. Leave out targets (--target)"
        )
    shift: Any = getattr(model, "prepare_decoder_input_ids_from_labels", None)

    def start(target: Sequence[int]) -> int:
        if shift is not None:
            try:
                return int(shift(torch.tensor([list(target)]))[0, 0])
            except Exception as error:  # families raise what they like where a setting is missing
                raise _unknown(model, reason_of(error)) from error
        start_id = getattr(model.config, "decoder_start_token_id", None)
        if start_id is None:
            raise _unknown(model, "no decoder_start_token_id")
        return int(start_id)

    return start


def decoder_note(model: PreTrainedModel, *, with_target: bool) -> dict[str, str]:
    """The attribute of a result that records the input of the decoder; empty for other models."""
    if not model.config.is_encoder_decoder:
        return {}
    read = "the target text" if with_target else "the same text as the encoder, because there is no target"
    return {"decoder": f"The decoder read {read}."}


def _unknown(model: PreTrainedModel, reason: str) -> AttnscopeError:
    return AttnscopeError(
        f"the first token of the decoder of {type(model).__name__} is unknown ({reason}). "
        "Set decoder_start_token_id (and pad_token_id) in its config"
    )
