"""What every public function takes as its model."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedModel

from attnscope.capture._inner import Bridge, Envoy
from attnscope.capture._loaded import LoadedModel

#: A folder, a hub id or ``"bundled"``; a model of transformers, also inside ``torch.compile``; a `LoadedModel`; a
#: TransformerLens bridge; nnsight's ``LanguageModel``. `load_model` makes a `LoadedModel` of each.
Model = str | Path | PreTrainedModel | LoadedModel | Bridge | Envoy
