"""A model read whole from a checkpoint: what is hashed is what is loaded, in the class that its config names."""

from __future__ import annotations

import re
import sys
from functools import partial
from typing import Any

import torch
import transformers
from transformers import AutoConfig, GenerationConfig, PreTrainedModel
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.models.auto.auto_factory import add_generation_mixin_to_remote_model
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from attnscope import models
from attnscope.capture._checkpoint import Checkpoint
from attnscope.capture._heuristics import is_pooler
from attnscope.capture._hub import out_of_reach
from attnscope.capture._loading import DTYPES, Loading
from attnscope.capture._repository import Repository, asking_trust
from attnscope.capture._size import no_larger_than
from attnscope.errors import AttnscopeError, explaining

_NUMBER = re.compile(r"\.(\d{1,9})(?=\.)")  # of a layer
_REAL = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
_ADVICE = "Is config.json the one of these weights, and are all files whole?"
_AUTO_CLASSES = ("AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModel")


def from_checkpoint(repository: Repository, loading: Loading) -> tuple[PreTrainedModel, dict[str, str]]:
    """Read a model whole: what is hashed is what is loaded, and no other file is opened.

    Raises
    ------
    AttnscopeError
        The checkpoint is broken, lacks a tensor, is another model's, or wants to run code of its own.
    """
    source, trust_remote_code = repository.source, loading.trust_remote_code
    with explaining(f"{source} cannot be loaded", _ADVICE), asking_trust(source):
        checkpoint = Checkpoint.of(repository)
        if trust_remote_code and "auto_map" in checkpoint.config:
            for code in repository.folder.glob("*.py"):
                repository.take(code.name)
        config = AutoConfig.from_pretrained(
            source,
            revision=repository.commit,
            local_files_only=out_of_reach(),
            trust_remote_code=trust_remote_code,
        )
        maker = _class_of(config, repository, trust_remote_code=trust_remote_code)
        identity = repository.identity()
        with checkpoint.tensors() as tensors:
            _forget_choices_of_code(config)
            with no_larger_than(tensors, checkpoint.config):
                make = partial(
                    maker.from_pretrained,
                    None,
                    config=config,
                    state_dict=tensors,
                    dtype=DTYPES.get(loading.dtype or "") or _saved_type(config, tensors),
                    output_loading_info=True,
                    ignore_mismatched_sizes=True,  # so that the report names them, and we refuse
                )
                if loading.tp_plan is not None:
                    make = partial(make, distributed_config=DistributedConfig(tp_plan="auto"))
                model, report = make() if loading.placement is None else loading.placement.load(make)
        repository.refuse_changed()
        _refuse_gaps(model, report, source)
        if model.can_generate():
            model.generation_config = _generation(checkpoint)
        model.config.name_or_path = source
    return model, identity


def _class_of(config: Any, repository: Repository, *, trust_remote_code: bool) -> Any:
    """The class that the config names, so that nothing is missing that need not be."""
    named: Any = config.architectures or []
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise AttnscopeError(
            f"config.json of {repository.source} says architectures {str(named)[:100]!r}: expected a list of names"
        )
    for name in named:
        for place in (transformers, models):  # whoever imports models also registers its configurations
            maker = getattr(place, name, None)
            if isinstance(maker, type) and issubclass(maker, PreTrainedModel) and _takes(maker, config):
                return maker
    code: Any = getattr(config, "auto_map", None) if trust_remote_code else None
    for auto in _AUTO_CLASSES:
        if code and auto in code:
            maker = get_class_from_dynamic_module(code[auto], repository.source, revision=repository.commit)
            return add_generation_mixin_to_remote_model(maker)
    known: Any = MODEL_MAPPING.get(type(config), None)
    if known is None:
        raise AttnscopeError(
            f"{repository.source} is a {type(config).model_type!r}, of which transformers has no plain model: "
            "name its class in config.json (architectures)"
        )
    return known[0] if isinstance(known, (list, tuple)) else known


def _takes(maker: type[PreTrainedModel], config: Any) -> bool:
    """Whether a class is of the config's own kind of model."""
    return maker.config_class is not None and isinstance(config, maker.config_class)


def _forget_choices_of_code(config: Any) -> None:
    """Which implementation computes is not the checkpoint's choice: some are fetched from the hub and run."""
    config._attn_implementation = None  # noqa: SLF001
    config._experts_implementation = None  # noqa: SLF001
    vars(config).pop("fusion_config", None)


def _saved_type(config: Any, tensors: dict[str, Any]) -> Any:
    """The type that the config says, else that of the first tensor of real numbers."""
    if config.dtype is not None:
        return config.dtype
    types = (_REAL.get(tensor.get_dtype()) for tensor in tensors.values())
    return next((kind for kind in types if kind is not None), torch.float32)


def _generation(checkpoint: Checkpoint) -> GenerationConfig:
    """How the checkpoint wants to generate; older ones say so in config.json."""
    if checkpoint.generation is None:
        return GenerationConfig.from_model_config(checkpoint.config)
    return GenerationConfig.from_dict(checkpoint.generation)


def _refuse_gaps(model: PreTrainedModel, report: dict[str, Any], source: str) -> None:
    """A trunk with random numbers in it, or cut short, would give numbers that mean nothing.

    A missing head or pooler is no fault.
    """
    prefix = model.base_model_prefix + "."
    has_head = any(name.startswith(prefix) for name, _ in model.named_parameters())
    missing = [
        key
        for key in sorted(report["missing_keys"])
        if not is_pooler(key) and (key.startswith(prefix) or not has_head)
    ]
    mismatched = [str(entry[0]) for entry in report.get("mismatched_keys") or []]
    for what, keys in (("lacks", missing), ("has another shape for", mismatched)):
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            raise AttnscopeError(
                f"the checkpoint {source} {what} {keys[0]}{more}, which {type(model).__name__} needs: "
                "it would be filled with random numbers. Is the file whole, and config.json the right one?"
            )
    lists = {
        name: len(module) for name, module in model.named_modules() if isinstance(module, torch.nn.ModuleList)
    }
    beyond = [
        key
        for key in sorted(report["unexpected_keys"])
        if any(
            int(place[1]) >= lists.get(key[: place.start()], sys.maxsize) for place in _NUMBER.finditer(key)
        )
    ]
    if beyond:
        raise AttnscopeError(
            f"the checkpoint {source} holds {beyond[0]}, and config.json asks for a smaller {type(model).__name__}: "
            "is it the right config.json?"
        )
