"""A tiny random model of any family."""

from importlib import import_module

import torch
from transformers import CONFIG_MAPPING
from transformers.models.auto import modeling_auto

from tests.capture.every_family.shrink import tiny_config

MOST = 100_000_000  # parameters
_FIRST = (
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING",
    "MODEL_FOR_MASKED_LM_MAPPING",
    "MODEL_FOR_CAUSAL_LM_MAPPING",
    "MODEL_MAPPING",
)
_OTHERS = sorted(one for one in dir(modeling_auto) if one.startswith("MODEL_FOR") and one.endswith("_MAPPING"))


class NoModelError(Exception):
    """A configuration is of a part of other families."""


def model_class(config_class):
    """The class that says most of a family: a language model, or else the body; None if it has none of its own."""
    for name in (*_FIRST, *_OTHERS):
        mapping = getattr(modeling_auto, name)
        found = _named(mapping, config_class)
        found = found[0] if isinstance(found, (tuple, list)) else found
        if found is None or found.config_class not in {None, config_class}:
            continue
        if found.forward is not torch.nn.Module.forward:
            return found
    return None


def _named(mapping, config_class):
    """The class of a mapping; of one that its module does not export, from where it is defined."""
    try:
        return mapping.get(config_class, None)
    except ValueError:
        name = mapping._model_mapping[config_class.model_type]
        return getattr(import_module(config_class.__module__.replace("configuration_", "modeling_")), name)


def tiny_model(family):
    """A random model of a family, in eval mode; it is not made where it would be large.

    Raises
    ------
    NoModelError
        If the family has no model of its own.
    MemoryError
        If it has too many parameters.
    """
    maker = model_class(CONFIG_MAPPING[family])
    if maker is None:
        raise NoModelError("it is a part of other families")
    config = tiny_config(family)
    with torch.device("meta"):
        size = sum(one.numel() for one in maker(config).parameters())
    if size > MOST:
        raise MemoryError(f"its smallest model here has {size:,} parameters")
    torch.manual_seed(0)
    return maker(tiny_config(family)).eval()
