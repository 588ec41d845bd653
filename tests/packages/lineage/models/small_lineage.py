"""Small models of the lineage and a batch with padding, for the tests."""

import torch

from attnscope.models.configs import POSITIONS, TransformerConfig
from attnscope_lineage.models.configs import ATTENTIONS, CELLS, RecurrentConfig
from attnscope_lineage.models.recurrent import RecurrentForConditionalGeneration
from attnscope_lineage.models.transformer import TransformerForConditionalGeneration

SOURCE = torch.tensor([[3, 4, 5, 6, 2], [7, 8, 2, 0, 0], [9, 2, 0, 0, 0]])
MASK = (SOURCE != 0).long()
LABELS = torch.tensor([[10, 11, 2, -100], [12, 13, 14, 2], [15, 2, -100, -100]])

RECURRENT = [(attention, cell) for attention in ATTENTIONS for cell in CELLS]
TRANSFORMERS = [(positions, "pre") for positions in POSITIONS]
TRANSFORMERS += [("sinusoidal", "post")]
ALL = [f"{a}-{b}" for a, b in RECURRENT + TRANSFORMERS]


def small(name, seed=0, **others):
    """A model by name, such as ``additive-gru`` or ``rope-pre``, in eval mode, sharp enough to tell tokens apart."""
    torch.manual_seed(seed)
    kind, detail = name.split("-")
    if detail in {"gru", "lstm"}:
        sizes = {"vocab_size": 20, "embedding_width": 8, "encoder_width": 6, "decoder_width": 12, "dropout": 0.0}
        config = RecurrentConfig(**sizes | {"attention": kind, "cell": detail} | others)
        model = RecurrentForConditionalGeneration(config)
    else:
        sizes = {"vocab_size": 20, "width": 16, "heads": 2, "feed_forward": 24, "dropout": 0.0}
        layers = {"encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 32}
        config = TransformerConfig(**sizes | layers | {"positions": kind, "norm": detail} | others)
        model = TransformerForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(1.5)
    return model.eval()
