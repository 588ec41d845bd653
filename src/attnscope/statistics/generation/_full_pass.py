"""The same rows from one pass over the final text: what is measured while a model generates must be equal to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from attnscope.capture import device_of, watching
from attnscope.statistics.generation._observer import GenerationObserver
from attnscope.statistics.generation._rows import SPANS
from attnscope.statistics.generation._spans import Prompts
from attnscope.statistics.generation._texts import rows_of

if TYPE_CHECKING:
    from attnscope.statistics.generation._call import GenerationCall
    from attnscope.statistics.generation._texts import Written

_SHARES = (SPANS, "max_weight", "first_token")


@torch.no_grad()
def full_pass_difference(call: GenerationCall, text: Written) -> float:
    """Largest difference of a share of weight between a generated text and one pass over it, without a cache.

    Parameters
    ----------
    call
        That wrote it.
    text
        One of its sequences, of a prompt of token ids.
    """
    model = call.model
    device = device_of(model)
    is_pair = bool(model.config.is_encoder_decoder)
    read = torch.tensor([text.whole[:-1]], device=device)
    given = torch.tensor([text.source], device=device) if is_pair else read[:, : text.given]
    observer = GenerationObserver(call.sites, Prompts(given, None), is_pair=is_pair)
    observer.prompt = text.given
    inputs = {"input_ids": given, "decoder_input_ids": read} if is_pair else {"input_ids": read}
    with watching(model, observer, weights_suffice=True), observer.reading(model):
        model(**inputs, use_cache=False)
    rows = rows_of(observer)
    steps = len(text.new)
    whole = rows.picked(torch.zeros(steps, dtype=torch.int64))
    named = [text.spans[0].index(name) for name in observer.spans]
    away = [0.0]
    for name in _SHARES:
        own = text.measured[name][..., named] if name == SPANS else text.measured[name]
        away.append(float(np.nanmax(np.abs(own - whole[name]))))
    return max(away)
