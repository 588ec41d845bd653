"""Stand-ins for packages that some families ask for where nothing attends: resampling, a picture's backbone.

And for a check of transformers 5.23 that refuses every configuration of two families, as all of their layers read keys
and values that another model has made.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import torch
from transformers import Gemma4TextConfig, Gemma4UnifiedTextConfig
from transformers.utils import import_utils


def stand_in(family):
    """Put what a family needs in its place, in this process, if it is not there."""
    if family in _SHARED:
        _let_all_be_shared(_SHARED[family])
    if family not in _PACKAGES:
        return
    package, make = _PACKAGES[family]
    available = getattr(import_utils, f"is_{package}_available")
    if available():
        return
    for name, contents in make().items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        vars(module).update(contents)
        sys.modules[name] = module
        above, _, own = name.rpartition(".")
        if above:
            setattr(sys.modules[above], own, module)
    available.cache_clear()


def _let_all_be_shared(text_config):
    checked = text_config.kv_sharing_modes.fget

    def modes(self):
        if self.num_kv_shared_layers == self.num_hidden_layers:
            return ["reuse"] * self.num_hidden_layers
        return checked(self)

    text_config.kv_sharing_modes = property(modes)


class _Backbone(torch.nn.Module):
    """One convolution in place of a network of many."""

    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 256, 4, stride=4)

    def forward(self, pictures):
        return {"p2": self.convolution(pictures)}

    def output_shape(self):
        return {"p2": SimpleNamespace(channels=256, stride=4)}


class _Settings(SimpleNamespace):
    """Settings that hold others under any name."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, _Settings())
        return getattr(self, name)


def _detectron2():
    class FrozenBatchNorm2d(torch.nn.Module):
        pass

    def settings():
        made = _Settings()
        made.MODEL.PIXEL_MEAN = [103.5, 116.3, 123.7]
        return made

    models = SimpleNamespace(get=lambda _: lambda _: SimpleNamespace(backbone=_Backbone()))
    return {
        "detectron2": {},
        "detectron2.config": {"get_cfg": settings},
        "detectron2.layers": {"FrozenBatchNorm2d": FrozenBatchNorm2d},
        "detectron2.layers.batch_norm": {"FrozenBatchNorm2d": FrozenBatchNorm2d},
        "detectron2.modeling": {"META_ARCH_REGISTRY": models},
        "detectron2.modeling.backbone": {"FPN": _Backbone},
    }


_PACKAGES = {
    "higgs_audio_v2_tokenizer": ("torchaudio", lambda: {"torchaudio": {}}),
    "layoutlmv2": ("detectron2", _detectron2),
}
_SHARED = {"gemma4_assistant": Gemma4TextConfig, "gemma4_unified_assistant": Gemma4UnifiedTextConfig}
