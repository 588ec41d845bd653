"""Small random translators to walk through."""

import torch

from attnscope_lineage import walk
from tests.packages.lineage.models.small_lineage import small
from tests.packages.lineage.translation.small_translators import small_model, small_tokenizer

SENTENCE, TARGET = "a man reads", "er liest das buch"


def translator(kind):
    """A random model with weights large enough that no head is uniform."""
    model = small(kind, vocab_size=64) if "-" in kind else small_model(kind)
    torch.manual_seed(2)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def walk_translator(kind, **arguments):
    return walk(translator(kind), SENTENCE, tokenizer=small_tokenizer(), device="cpu", **arguments)
