"""Random models of every kind that heads are taken out of, and what they read."""

import torch

from attnscope.models.configs import EncoderConfig
from attnscope.models.transformer import EncoderForMaskedLM
from tests.tiny_models import tiny

TEXTS = [
    "The tide comes in twice a day, and twice a day it goes out again.",
    "A lighthouse keeper writes down the weather every morning.",
    "The clockmaker opened the case and looked at the wheels.",
    "Bread needs flour, water, salt and time.",
    "She wrote a letter to her brother, who lived in the harbour town.",
    "It rained all day, and the streets were empty.",
]
MODELS = ("bert", "albert", "deberta_v2", "gpt2", "llama", "gemma2", "gpt_oss", "t5", "bart", "ours")


def build(name):
    """A model with weights large enough for heads to matter."""
    if name != "ours":
        return tiny(name)
    torch.manual_seed(0)
    model = EncoderForMaskedLM(EncoderConfig(vocab_size=60, width=16, heads=4, layers=3, feed_forward=32)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def inputs_of(model):
    """Two texts, the second padded."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 50, (2, 9), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.randint(3, 50, (2, 7), generator=generator)
    return inputs
