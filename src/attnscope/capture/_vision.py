"""Vision encoders: the part of a model that reads images, and its image processor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoImageProcessor, PreTrainedModel

from attnscope._caller import own_state
from attnscope.capture._beside import hash_of_settings, load_preprocessor, repository_beside
from attnscope.capture._heuristics import image_token_of
from attnscope.capture._inner import inner_model
from attnscope.capture._load import LoadedModel, load_model, what_is_read
from attnscope.capture._loading import AS_SAVED, Loading
from attnscope.capture._placement import device_of
from attnscope.capture._repository import Repository
from attnscope.capture._saved_config import main_inputs, saved_config
from attnscope.errors import AttnscopeError, explaining

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.capture._model import Model
    from attnscope.capture._tokenizer import Processor
    from attnscope.corpus import Image

_READS = "pixel_values"
_WHAT = "image processor"


@dataclass(frozen=True, eq=False)
class VisionModel:
    """A vision encoder ready to be watched.

    Attributes
    ----------
    loaded
        The whole model, as it was loaded.
    model
        What of it reads images: itself, or its vision tower.
    tower
        Name of that tower within; "" for the model itself.
    processor
        Its image processor; None where images are ``pixel_values`` already.

    Examples
    --------
    >>> from transformers import ViTConfig, ViTModel
    >>> from attnscope.corpus import images_of
    >>> config = ViTConfig(image_size=8, patch_size=4, hidden_size=8, num_attention_heads=2, num_hidden_layers=1)
    >>> vision = load_vision_model(ViTModel(config), need_processor=False)
    >>> (image,) = images_of(torch.zeros(1, 3, 8, 8))
    >>> vision.pixels(image).shape, vision.processing() is None  # no processor prepared it
    (torch.Size([1, 3, 8, 8]), True)
    """

    loaded: LoadedModel
    model: PreTrainedModel
    tower: str
    processor: Any

    def pixels(self, image: Image) -> Tensor:
        """What the model reads of an image, ``(1, channel, row, column)``, in its type and on its device."""
        if isinstance(image.pixels, torch.Tensor):
            values = image.pixels[None]
        else:
            with explaining(f"the image processor cannot take {image.name}", "Give an image of another size"):
                values = self.processor(
                    images=image.pixels,
                    input_data_format="channels_last",  # which is guessed, and wrongly of 1 or 3 rows
                    return_tensors="pt",
                )[_READS]
        return values.to(device_of(self.model), self.model.dtype)

    def processing(self) -> str | None:
        """Hash of all that the image processor does; None without one."""
        if self.processor is None:
            return None
        return hash_of_settings(self.processor.to_dict())


@own_state()
def load_vision_model(
    source: Model,
    *,
    processor: Processor = None,
    need_processor: bool = True,
    loading: Loading = AS_SAVED,
) -> VisionModel:
    """Load a vision encoder with the image processor beside it; of a model of images and text, its vision tower.

    Parameters
    ----------
    source, loading
        See `load_model`.
    processor
        Its image processor or the processor's folder; by default the one beside the model.
    need_processor
        Whether to look for one.

    Raises
    ------
    AttnscopeError
        As `load_model`; if no part of the model reads images, or it has no image processor.

    Examples
    --------
    >>> from transformers import ViTConfig, ViTModel
    >>> config = ViTConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    >>> load_vision_model(ViTModel(config), need_processor=False).tower
    ''
    """
    loaded = load_model(source, need_tokenizer=False, **vars(loading))
    reader = _reader(loaded.model)
    if reader is None:
        plain, pictured = what_is_read(loaded.model), image_token_of(loaded.model.config) is not None
        other = "texts with images (JSON Lines)" if pictured else plain
        raise AttnscopeError(
            f"{type(loaded.model).__name__} reads {loaded.model.main_input_name}, not images: "
            f"{f'give it {other}, or ' if other else ''}take a vision encoder (ViT, DINOv2, CLIP, SigLIP, ...)"
        )
    if need_processor and (processor is None or isinstance(processor, str | Path)):
        place = repository_beside(
            source, processor, _WHAT, revision=loading.revision, more=", or images as pixel_values"
        )
        processor = load_image_processor(place, trust_remote_code=loading.trust_remote_code)
    name, model = reader
    return VisionModel(loaded, model, name, processor if need_processor else None)


def reads_images(source: Model, revision: str | None = None) -> bool:
    """Whether a model, or a part of it, reads images, as its class or its config says.

    Parameters
    ----------
    source
        A folder, a hub id, or a loaded model.
    revision
        Revision of the model on the hub.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> reads_images(MODEL)
    False
    """
    inner: Any = inner_model(source)
    if isinstance(inner, PreTrainedModel):
        return _reader(inner) is not None
    config = saved_config(inner, revision)
    return "vision_config" in config or _READS in main_inputs(config)


def _reader(model: PreTrainedModel) -> tuple[str, PreTrainedModel] | None:
    """The outermost part of a model that reads images and nothing else, and its name."""
    for name, module in model.named_modules():
        if isinstance(module, PreTrainedModel) and module.main_input_name == _READS:
            return name, module
    return None


def load_image_processor(repository: Repository, *, trust_remote_code: bool = False) -> Any:
    """The image processor of a repository, in the form that needs Pillow alone.

    Raises
    ------
    AttnscopeError
        If there is none, or it cannot be loaded.
    """
    # the backend that is there with Pillow alone, so that numbers do not depend on what else is installed
    return load_preprocessor(
        repository, AutoImageProcessor, _WHAT, trust_remote_code=trust_remote_code, backend="pil"
    )
