"""A tiny random model of any family."""

import torch
import transformers
from transformers import AutoModel
from transformers.models.auto import modeling_auto

from tests.every_family.shrink import tiny_config

_ORDER = (
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING",
    "MODEL_FOR_MASKED_LM_MAPPING",
    "MODEL_FOR_CAUSAL_LM_MAPPING",
    "MODEL_MAPPING",
)


def model_class(config):
    names = [*_ORDER, *sorted(n for n in dir(modeling_auto) if n.startswith("MODEL_FOR") and n.endswith("_MAPPING"))]
    for name in names:
        mapping = getattr(modeling_auto, name)
        if type(config) in mapping:
            found = mapping[type(config)]
            found = found[0] if isinstance(found, (tuple, list)) else found
            if found.config_class in (None, type(config)) and found.forward is not torch.nn.Module.forward:
                return found
    return None


MOST = 200_000_000


def tiny_model(family):
    config = tiny_config(family)
    maker = model_class(config)
    if maker is None:
        raise LookupError(f"no model class")
    with torch.device("meta"):
        size = sum(p.numel() for p in maker(config).parameters())
        if size > MOST:
            big = sorted(((p.numel(), n, tuple(p.shape)) for n, p in maker(config).named_parameters()), reverse=True)[:4]
            raise MemoryError(f"{size:,} parameters: {big}")
    torch.manual_seed(0)
    return maker(tiny_config(family)).eval()
