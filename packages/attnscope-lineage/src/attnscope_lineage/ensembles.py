"""Checkpoints of a training as models: one, the mean of several, or several that translate together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer, LogitsProcessor
from transformers.modeling_outputs import BaseModelOutput

from attnscope.opened import Opened
from attnscope.options import Model
from attnscope.store.folder import OwnedFolder
from attnscope.support.errors import AttnscopeError
from attnscope_lineage.checkpoints import WEIGHTS, Checkpoints, build_model, special_ids_of
from attnscope_lineage.config import SETTINGS, read_config
from attnscope_lineage.data import run_of


def open_translator(model: Model, reading: Mapping[str, Any]) -> tuple[Opened, dict[str, Any]]:
    """A session of a translator with its options; also of a checkpoint, or of the mean of the last ones."""
    average, options = reading["average"], dict(reading)
    is_folder = isinstance(model, str | Path) and Path(model).is_dir()
    if average is not None and not (is_folder and (Path(str(model)) / SETTINGS).is_file()):
        raise AttnscopeError(f"average (--average) needs the folder of a training, with its {SETTINGS}; found {model}")
    if not is_folder:
        return Opened.of(model), options
    folder = Path(str(model))
    if average is None and folder == run_of(folder):
        return Opened.of(model), options
    run = run_of(folder)
    checkpoints = Checkpoints(OwnedFolder(run, "train").look())
    if average is None:
        weights = load_file(folder / WEIGHTS)
    else:
        updates = checkpoints.updates()
        if average > len(updates):
            raise AttnscopeError(
                f"{run} has {len(updates)} checkpoints; found average {average}: use at most that, or train with "
                "--keep and --average of at least as many"
            )
        weights = checkpoints.mean_weights(updates[-average:])
    tokenizer = AutoTokenizer.from_pretrained(run)
    config = read_config(run / SETTINGS)
    tokenizer.model_max_length = config.longest
    built = build_model(config, len(tokenizer), **special_ids_of(tokenizer)).eval()
    parameters = dict(built.named_parameters())
    with torch.no_grad():
        for name, values in weights.items():
            parameters[name].copy_(values)
    built.config.name_or_path = str(folder)
    options["tokenizer"] = options["tokenizer"] or tokenizer
    return Opened.of(built), options


def mean_log_probabilities(log_probabilities: Sequence[Float[Tensor, "*row token"]]) -> Float[Tensor, "*row token"]:
    """Logarithm of the mean of the probabilities of several models."""
    return torch.stack(list(log_probabilities)).logsumexp(0) - math.log(len(log_probabilities))


class Together(LogitsProcessor):
    """At each step of `generate`, the mean of the probabilities of its model and of others."""

    def __init__(self, others: Sequence[Any], ids: Int[Tensor, "row source"], mask: Int[Tensor, "row source"]) -> None:
        self.others, self.mask = others, mask
        self.states = [
            model.get_encoder()(input_ids=ids.to(model.device), attention_mask=mask.to(model.device))[0]
            for model in others
        ]

    def __call__(
        self, input_ids: Int[Tensor, "candidate target"], scores: Float[Tensor, "candidate token"]
    ) -> Float[Tensor, "candidate token"]:
        times = len(input_ids) // len(self.mask)  # beams or samples of each row
        several = [scores.float().log_softmax(-1)]
        for model, states in zip(self.others, self.states, strict=True):
            output = model(
                encoder_outputs=BaseModelOutput(last_hidden_state=states.repeat_interleave(times, 0)),
                attention_mask=self.mask.repeat_interleave(times, 0).to(model.device),
                decoder_input_ids=input_ids.to(model.device),
            )
            several.append(output.logits[:, -1].float().log_softmax(-1).to(scores.device))
        return mean_log_probabilities(several)
