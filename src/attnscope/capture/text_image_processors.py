"""Processors: what puts images and videos into a text, with a processor of each and a tokenizer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import transformers
from transformers.utils.import_utils import is_torchvision_available

from attnscope.capture.borrow import quiet
from attnscope.capture.checkpoint import Repository, asking_trust
from attnscope.capture.encoders import load_image_processor
from attnscope.capture.processors import from_repository, load_tokenizer
from attnscope.support.errors import AttnscopeError, explaining

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CONFIGS = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
_PARTS = ("image_processor", "tokenizer")  # of a processor, that are asked; videos and sounds are not


def load_processor(
    repository: Repository, model: PreTrainedModel, *, trust_remote_code: bool, videos: bool = False
) -> Any:
    """The processor of a repository; without what it has for sounds, and for videos only where they are asked for."""
    source = repository.source
    if not any(repository.find(name) for name in _CONFIGS[:2]):
        raise AttnscopeError(
            f"{source} has no processor ({' or '.join(_CONFIGS[:2])}): save it there, or give its folder with "
            "--tokenizer"
        )
    advice = "Are its files whole, and is all installed that it needs?"
    configs = [repository.read(name) or {} for name in _CONFIGS]
    if any("audio_tokenizer" in config for config in configs):
        raise AttnscopeError(
            f"{_CONFIGS[0]} of {source} names another checkpoint to be read (audio_tokenizer): take that out"
        )
    makers = (getattr(transformers, str(config.get("processor_class")), None) for config in configs)
    usual: Any = transformers.models.auto.processing_auto.PROCESSOR_MAPPING.get(type(model.config), None)
    maker: Any = next((maker for maker in makers if maker is not None), usual)
    with explaining(f"the processor of {source} cannot be loaded", advice):
        known = hasattr(maker, "get_attributes")  # which says where a package is missing
    if not known or not issubclass(maker, transformers.ProcessorMixin):
        raise AttnscopeError(
            f"{source} names no processor that transformers has: is processor_config.json the right one?"
        )
    has: dict[str, Any] = {
        "image_processor": load_image_processor(repository, trust_remote_code=trust_remote_code),
        "tokenizer": load_tokenizer(replace(repository, taken={}), trust_remote_code=trust_remote_code),
    }
    if videos:
        # what reads videos, if the processor has a part for that
        if "video_processor" not in maker.get_attributes():
            raise AttnscopeError(f"{maker.__name__} reads no videos: give frames as images")
        has["video_processor"] = load_video_processor(
            repository, "frames as images", trust_remote_code=trust_remote_code
        )
    with quiet(), explaining(f"the processor of {source} cannot be loaded", advice), asking_trust(source):
        settings, more = maker.get_processor_dict(source, revision=repository.commit)
        lean: Any = type(maker.__name__, (maker,), {"check_argument_for_proper_class": _check_part})
        return lean.from_args_and_dict([has.get(part) for part in maker.get_attributes()], settings, **more)


def load_video_processor(repository: Repository, instead: str, *, trust_remote_code: bool) -> Any:
    """The video processor of a repository."""
    if not is_torchvision_available():
        raise AttnscopeError(
            f"videos are read by the model's own video processor, and that of {repository.source} needs torchvision: "
            f"pip install 'attnscope[video]', or give {instead}"
        )
    maker, advice = transformers.AutoVideoProcessor, "Are its files whole, and is torchvision the one for this PyTorch?"
    return from_repository(repository, maker, "video processor", advice=advice, trust_remote_code=trust_remote_code)


def _check_part(_: Any, name: str, part: Any) -> None:
    if part is None and name in _PARTS:
        raise AttnscopeError(f"the processor has no {name}")
