"""Processors: what puts images into a text, with an image processor and a tokenizer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import transformers
from transformers import ProcessorMixin
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

from attnscope.capture._quiet import quiet
from attnscope.capture._repository import Repository, asking_trust
from attnscope.capture._tokenizer import load_tokenizer
from attnscope.capture._vision import load_image_processor
from attnscope.errors import AttnscopeError, explaining

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CONFIGS = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
_PARTS = ("image_processor", "tokenizer")  # of a processor, that are asked; videos and sounds are not


def load_processor(repository: Repository, model: PreTrainedModel, *, trust_remote_code: bool) -> Any:
    """The processor of a repository; without what it has for videos and sounds, which needs more packages.

    Raises
    ------
    AttnscopeError
        If there is none, transformers does not have it, or it needs what is not installed.
    """
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
    usual: Any = PROCESSOR_MAPPING.get(type(model.config), None)
    maker: Any = next((maker for maker in makers if maker is not None), usual)
    with explaining(f"the processor of {source} cannot be loaded", advice):
        known = hasattr(maker, "get_attributes")  # which says where a package is missing
    if not known or not issubclass(maker, ProcessorMixin):
        raise AttnscopeError(
            f"{source} names no processor that transformers has: is processor_config.json the right one?"
        )
    has: dict[str, Any] = {
        "image_processor": load_image_processor(repository, trust_remote_code=trust_remote_code),
        "tokenizer": load_tokenizer(replace(repository, taken={}), trust_remote_code=trust_remote_code),
    }
    with quiet(), explaining(f"the processor of {source} cannot be loaded", advice), asking_trust(source):
        settings, more = maker.get_processor_dict(source, revision=repository.commit)
        lean: Any = type(maker.__name__, (maker,), {"check_argument_for_proper_class": _check_part})
        return lean.from_args_and_dict([has.get(part) for part in maker.get_attributes()], settings, **more)


def _check_part(_: Any, name: str, part: Any) -> None:
    if part is None and name in _PARTS:
        raise AttnscopeError(f"the processor has no {name}")
