"""Load a model and its tokenizer from a folder or the hub, and sign results."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from copy import copy
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast, runtime_checkable
from weakref import WeakKeyDictionary

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils.import_utils import is_peft_available

from attnscope.bundled import MODEL, MODELS
from attnscope.capture.borrow import Envoy, LoadedModel, inner_model, is_own_hook, quiet
from attnscope.capture.checkpoint import GGUF, Checkpoint, Repository, asking_trust, every_setting, out_of_reach
from attnscope.capture.families import is_computed, is_pooler
from attnscope.capture.placement import (
    INTEGERS,
    NF4,
    Loading,
    Placement,
    compute_as_loaded,
    device_of,
    in_memory,
    no_larger_than,
    packing_of,
    parameters_of,
    plain,
    quantised,
    reject_distributed,
)
from attnscope.capture.processors import Tokenizer, has_tokenizer, is_place, load_tokenizer, tokenizer_repository
from attnscope.capture.weights import embedding_within
from attnscope.catalogue import IN_PACKAGES, where_to_find
from attnscope.kernels.call import magnitude
from attnscope.read.sources import SUFFIXES, names_a_dataset
from attnscope.read.unnamed import UnnamedTokens
from attnscope.report.signature import Signature, package_versions, tokenizer_sha256
from attnscope.support.checks import check_kind
from attnscope.support.errors import AttnscopeError, explaining, nearest
from attnscope.support.state import own_random_numbers, own_state

Unwrapped = str | Path | PreTrainedModel

_COLUMNS = 1024  # of the table of a tensor's bits
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_PACKED = 32  # numbers that quantised weights store in one
_UNIMPORTANT = ("_name_or_path", "transformers_version", "architectures")  # where a config came from
_one_at_a_time = threading.Lock()  # while it loads, transformers changes PyTorch's default type for all threads


@own_state()
def load_model(
    source: Model | None = None,
    *,
    tokenizer: Tokenizer = None,
    revision: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    trust_remote_code: bool = False,
    placement: Placement | None = None,
    dry_run: bool = False,
    need_tokenizer: bool = True,
    first: Callable[[LoadedModel], object] | None = None,
) -> LoadedModel:
    """Load a model from a folder or the hub in the class of its config, or use a model object unchanged.

    Only safetensors files in the folder (or the hub's cache) are read, and no code from there is run.

    Parameters
    ----------
    source
        A folder (also of a peft adapter, whose base is loaded), a ``.gguf`` file (converted once to float32), a hub id
        such as ``roberta-base``, ``bundled`` (the default), or a model object; also inside ``torch.compile``, a
        TransformerLens bridge, nnsight's ``LanguageModel``, a ``PeftModel`` or a ``SentenceTransformer``. A
        `LoadedModel` is returned unchanged.
    tokenizer
        Its tokenizer or the tokenizer's folder; by default that of the model's folder, also for a model object.
    revision
        Branch, tag or commit on the hub.
    device, dtype
        ``cpu``, ``cuda``, ...; ``float32``, ``bfloat16``, ``float16``, ``float64``. By default CUDA if available, and
        the dtype of the checkpoint. ``int8`` and ``int4`` (by torchao, with a scale for each row) and ``nf4`` (by
        bitsandbytes) quantise the weights of linear layers, and leave everything else in the saved dtype. For a model
        object they must match it.
    trust_remote_code
        Run code from the checkpoint. Only for sources that you trust.
    placement
        Devices of the layers of a model that is larger than one device.
    dry_run
        Whether shapes suffice: a folder or a hub id becomes a model on the meta device, by its config alone.
    need_tokenizer
        Whether to look for a tokenizer.
    first
        A check of arguments by config and tokenizer alone. It is called with the model on the meta device before
        weights are loaded, which may take minutes; it may change that model.
    """
    if isinstance(source, LoadedModel):
        return source
    given = MODEL if source is None else source
    source = cast("Unwrapped", inner_model(given))
    _reject_other_kinds(source)
    source = MODELS.get(source, source) if isinstance(source, str) else source
    formats = (*DTYPES, *INTEGERS, NF4)
    if dtype is not None and dtype not in formats:
        raise AttnscopeError(f"found dtype {dtype!r}; expected one of {', '.join(formats)}")
    if isinstance(source, transformers.PreTrainedModel):
        model, repository = source, None
        if placement is not None:
            raise AttnscopeError(
                "found device_map (--device-map) and a model object, which stays where it is. Pass its folder, or "
                "place it by accelerate"
            )
        if dtype is not None and DTYPES.get(dtype) != model.dtype:
            raise AttnscopeError(
                f"found dtype {dtype}, and a {str(model.dtype).removeprefix('torch.')} model. Convert it, "
                "or pass its folder"
            )
        device_type = device_of(model).type
        if device is not None and usable_device(device).type != device_type:
            raise AttnscopeError(
                f"found device {device} and a model on {device_type}. Move the model (model.to), or leave device out"
            )
        reject_distributed(model)
        name = model.config.name_or_path or type(model).__name__
        identity = {"sha256": state_sha256(model)}
    else:
        repository = _repository(str(source), revision)
        name = Path(source).name if repository.commit is None else str(source)
        # the settings of an adapter of peft; None of a model
        adapter = None if repository.find("config.json") else repository.read("adapter_config.json")
        if adapter is not None and not isinstance(adapter.get("base_model_name_or_path"), str):
            raise AttnscopeError(f"adapter_config.json of {repository.source} has no base_model_name_or_path. Add it")
        beside = repository
        if adapter is not None:
            repository = _repository(str(adapter["base_model_name_or_path"]), adapter.get("revision"))
        loading, of_model = Loading(revision, device, dtype, trust_remote_code, placement), repository
        repository = beside if adapter is not None and has_tokenizer(beside) else repository
        outline = None if first is None else empty_model(of_model, loading) if dry_run else _outline(of_model, loading)
        if first is not None and outline is not None:
            if need_tokenizer:
                tokenizer = tokenizer_of(given, tokenizer, outline, repository, trust_remote_code=trust_remote_code)
            first(LoadedModel(outline, tokenizer, name, {}))
        if dry_run:
            model, identity = empty_model(of_model, loading), dict[str, str]()
        else:
            model, identity = _placed(of_model, name, loading)
            if adapter is not None:
                identity |= {"adapter": _adapted(model, beside)}
            _reject_broken_numbers(model)
            if dtype in INTEGERS:
                identity |= {"weights": quantised(model, dtype)}
            elif dtype == NF4:
                compute_as_loaded(model)
                identity |= {"weights": f"nf4, bitsandbytes {version('bitsandbytes')}"}
    if need_tokenizer:
        read = tokenizer_of(given, tokenizer, model, repository, trust_remote_code=trust_remote_code)
        return LoadedModel(model, read, name, identity)
    return LoadedModel(model, None, name, identity)


def tokenizer_of(
    given: object,
    tokenizer: Tokenizer,
    model: PreTrainedModel,
    repository: Repository | None = None,
    *,
    trust_remote_code: bool = False,
) -> Any:
    """The tokenizer of a model of texts, which was loaded from a repository, or is named in its config."""
    if tokenizer is not None and not callable(tokenizer):
        check_kind("a tokenizer, a folder or a hub id", str, Path, tokenizer=tokenizer)
    if hasattr(model, "text_model") and hasattr(model, "vision_model"):
        raise AttnscopeError(
            f"{type(model).__name__} compares texts with images. Use its .text_model for texts, or its "
            ".vision_model for images"
        )
    if model.main_input_name != "input_ids":
        other = what_is_read(model)
        raise AttnscopeError(
            f"{type(model).__name__} reads {model.main_input_name}, not text. "
            f"{f'Give it {other}, or use' if other else 'Use'} a model of texts"
        )
    given_one = getattr(given, "tokenizer", None) if tokenizer is None else tokenizer
    read: Any = _tokenizer(given_one, model, repository, trust_remote_code=trust_remote_code)
    if not hasattr(read, "convert_ids_to_tokens"):
        raise AttnscopeError(f"{type(read).__name__} is not a tokenizer; expected one from transformers")
    forced: Any = getattr(getattr(model, "generation_config", None), "forced_bos_token_id", None)
    if isinstance(forced, int) and getattr(read, "tgt_lang", "") is None:
        read = copy(read)  # do not change the caller's
        read.tgt_lang = str(read.convert_ids_to_tokens(forced)).strip("_")
    return read


def _reject_other_kinds(model: object) -> None:
    """Raise an error for other objects, with the function that measures them, if there is one."""
    if isinstance(model, nn.Module) and not isinstance(model, transformers.PreTrainedModel):
        raise AttnscopeError(
            f"{type(model).__name__} is not a model of transformers. Use attnscope.watch for other modules, or "
            "attnscope_lineage.walk for one module of attention"
        )
    entries = cast("list[Any] | tuple[Any, ...]", model) if isinstance(model, list | tuple) else [model]
    if any(isinstance(entry, Tensor | np.ndarray) for entry in entries):
        raise AttnscopeError(
            "found arrays; expected a model of transformers, a folder, or a hub id. Use attnscope.measure_weights for "
            "attention weights"
        )
    check_kind("a model of transformers, a folder, or a hub id", str, Path, transformers.PreTrainedModel, model=model)


def _tokenizer(
    given: Tokenizer, model: PreTrainedModel, repository: Repository | None, *, trust_remote_code: bool
) -> Any:
    """The given tokenizer, or that of its folder; else that of the model's folder, or the numbers of its tokens."""
    if given is not None and not isinstance(given, str | Path):
        return given
    if given is None and repository is None and not model.config.name_or_path:
        table: Any = embedding_within(model.get_input_embeddings())
        return UnnamedTokens(table.num_embeddings)
    place = repository if given is None else None
    place = place or tokenizer_repository(model, given, "tokenizer")
    return load_tokenizer(replace(place, taken={}), trust_remote_code=trust_remote_code)


def what_is_read(model: PreTrainedModel) -> str:
    """Kind of files that a model reads; empty if unknown."""
    input_kinds = {"pixel_values": "images (.png, .jpg, .webp)", "input_ids": "text"}
    return input_kinds.get(model.main_input_name, "sounds (.wav)" if "input_" in model.main_input_name else "")


def _repository(source: str, revision: str | None) -> Repository:
    if not source:
        raise AttnscopeError("found an empty name of a model; expected a folder, a hub id, or bundled")
    with explaining(f"{source[:200]} cannot be opened", "Is the name right?"):
        if not (Path(source).is_dir() or (source.endswith(GGUF) and Path(source).is_file())):
            _reject_what_is_no_model(source)
    return Repository.of(source, revision)


def _placed(repository: Repository, name: str, loading: Loading) -> tuple[PreTrainedModel, dict[str, str]]:
    """Load a checkpoint onto its device or devices."""
    placement = loading.placement
    if placement is not None and loading.device is not None:
        raise AttnscopeError("device_map (--device-map) cannot be used with device (--device). Leave out one of them")
    on = usable_device(loading.device)  # check before loading, which may take minutes
    with quiet(), _one_at_a_time, own_random_numbers():  # a missing head is random
        model, identity = from_checkpoint(repository, loading)
    if placement is None:
        with explaining(f"{name} cannot be put on {on}", "Try --device cpu, or --dtype bfloat16"):
            model = model.to(cast("Any", on))
    return model, identity


def _adapted(model: PreTrainedModel, repository: Repository) -> str:
    """Load an adapter into a model and return its hash."""
    source = repository.source
    repository.within("adapter_model.safetensors")  # others can run code when they are opened
    identity = repository.identity()
    if not is_peft_available():
        raise AttnscopeError(f"{source} is an adapter and needs peft: pip install peft")
    with quiet(), explaining(f"the adapter {source} cannot be loaded into {type(model).__name__}", "Is it complete?"):
        report: Any = model.load_adapter(source)
    repository.refuse_changed()
    for what, keys in (("lacks", report.missing_keys), ("holds more than the model:", report.unexpected_keys)):
        if keys:
            raise AttnscopeError(f"the adapter {source} {what} {min(keys)}: is it one of {type(model).__name__}?")
    return identity["sha256"]


def _reject_what_is_no_model(source: str) -> None:
    """Recognise a text or a mistyped folder before the hub is contacted."""
    if source == "-":
        raise _text_in_place_of_model("- is standard input.", source)
    if names_a_dataset(Path(source)):
        raise _text_in_place_of_model(f"{source} is a data set.", source)
    if Path(source).is_file():
        raise _text_in_place_of_model(f"{source} is a file.", source)
    if Path(source).exists():
        raise AttnscopeError(f"{source} is not a folder: expected one with config.json and model.safetensors")
    if source.lower().endswith(SUFFIXES):
        raise _text_in_place_of_model(f"{source} does not exist.", "TEXT")
    if " " in source:
        raise AttnscopeError(f"{source!r:.60} is not a model: pass a text as texts=..., after the model")
    near = nearest(source, MODELS)
    if near or source.startswith("bundled:"):
        raise AttnscopeError(
            f"there is no model {source!r}: the bundled models are {', '.join(map(repr, MODELS))}" + near
        )
    if is_place(source):
        raise AttnscopeError(f"{source} does not exist: expected a model folder, or a hub id such as gpt2")


def _text_in_place_of_model(what: str, text: str) -> AttnscopeError:
    return AttnscopeError(
        f"{what} The first argument is the model. To scan it with the bundled model: attnscope scan bundled {text}"
    )


def _reject_broken_numbers(model: PreTrainedModel) -> None:
    for name, parameter in parameters_of(model):
        if parameter.is_meta:
            raise AttnscopeError(f"{name} is on the meta device, which stores no numbers. Load the weights first")
        numbers = plain(parameter)
        is_surely_finite = numbers.is_floating_point() and bool(magnitude(numbers) < math.inf)
        if not is_surely_finite and not bool(torch.isfinite(numbers).all()):
            raise AttnscopeError(f"the weights contain NaN or infinity in {name}; expected finite numbers")


#: Hash of each model object, and the state that it is of.
_hashes: WeakKeyDictionary[nn.Module, tuple[Any, str]] = WeakKeyDictionary()


def state_sha256(model: PreTrainedModel) -> str:
    """SHA-256 over a model's config and the names and values of its parameters and saved buffers.

    A model is hashed, and its numbers are checked, again only if it has changed since.
    """
    state = _weights_of(model)
    hashed_state, digest = _hashes.get(model, (None, ""))
    if state is None or state != hashed_state:
        _reject_broken_numbers(model)
        digest = _digest(model)
        _hashes[model] = state, digest
    return digest


def state_of(model: PreTrainedModel) -> tuple[Any, ...] | None:
    """All that a forward pass depends on besides its input: settings, weights and hooks; None where it is not known."""
    weights = _weights_of(model)
    if weights is None:
        return None
    hooks = [hook for module in model.modules() for name in _HOOKS for hook in getattr(module, name).values()]
    return weights, tuple(hook for hook in hooks if not is_own_hook(hook))


def _weights_of(model: PreTrainedModel) -> tuple[Any, ...] | None:
    """Settings, and a check of each saved tensor; None where some are packed, or not in memory."""
    saved = model.state_dict()
    names = _saved_names(model)
    if any(type(saved[name]) not in {Tensor, nn.Parameter} or saved[name].is_meta for name in names):
        return None
    return _settings_text(model), tuple((name, _check_of(saved[name])) for name in names)


def _check_of(tensor: Tensor) -> tuple[Any, ...]:
    """Sums of a tensor's bits along the rows and along the columns of a table of them, which is faster than a hash.

    One changed number changes both, and two that are exchanged change one of them at least. PyTorch's own count of
    changes does not have those by ``.data`` or through shared memory.
    """
    data = tensor.detach().reshape(-1).contiguous().view(torch.uint8)
    words = data[: len(data) // 8 * 8].view(torch.int64)
    table = words[: len(words) // _COLUMNS * _COLUMNS].reshape(-1, _COLUMNS)
    digest = hashlib.sha256()
    for part in (table.sum(0), table.sum(1), data[table.nbytes :]):  # on the tensor's own device
        digest.update(part.cpu().numpy().tobytes())
    return tensor.dtype, tensor.shape, digest.digest()


def _settings_text(model: PreTrainedModel) -> str:
    settings = {name: value for name, value in model.config.to_dict().items() if name not in _UNIMPORTANT}
    return json.dumps(settings, sort_keys=True, default=str)


def _saved_names(model: PreTrainedModel) -> list[str]:
    saved = model.state_dict()
    return sorted(name for name, _ in chain(model.named_parameters(), model.named_buffers()) if name in saved)


def _digest(model: PreTrainedModel) -> str:
    digest = hashlib.sha256(_settings_text(model).encode())
    for name in _saved_names(model):
        path, _, key = name.rpartition(".")
        module = model.get_submodule(path)
        with in_memory(module):
            tensor = getattr(module, key)
            digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
            digest.update(plain(tensor).detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}


def _device(name: str | None) -> torch.device:
    try:
        return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name is None else name)
    except RuntimeError as error:  # PyTorch lists twenty, of which most need a build of their own
        raise ValueError("expected cpu, cuda, cuda:1, mps or another device of PyTorch") from error


def usable_device(name: str | None) -> torch.device:
    """The device of that name; by default a GPU if there is one, else the CPU."""
    advice = "Choose cpu, or cuda if there is a GPU"
    if name is not None and name.startswith("gpu"):
        raise AttnscopeError(f"device {name!r} cannot be used: a GPU is cuda, or mps if it is Apple's. {advice}")
    with explaining(f"device {name!r} cannot be used", advice, quoted=True):
        device = _device(name)
        torch.empty(0, device=device)
    if device.type == "meta" or (device.type == "cpu" and device.index):
        what = "it stores no numbers" if device.type == "meta" else "there is one cpu, number 0"
        raise AttnscopeError(f"device {name!r} cannot be used: {what}. {advice}")
    return device


#: A folder, a hub id or ``"bundled"``; a model of transformers, also inside ``torch.compile``, TransformerLens,
#: peft or sentence-transformers; a `LoadedModel`; nnsight's ``LanguageModel``.
Model = str | Path | nn.Module | LoadedModel | Envoy


_NUMBER = re.compile(r"\.(\d{1,9})(?=\.)")  # of a layer
_REAL = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
_ADVICE = "Does config.json belong to these weights, and are all files complete?"
_AUTO_CLASSES = ("AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModel")


def from_checkpoint(repository: Repository, loading: Loading) -> tuple[PreTrainedModel, dict[str, str]]:
    """Load a model from exactly the files that are hashed."""
    source = repository.source
    with explaining(f"{source} cannot be loaded", _ADVICE), asking_trust(source):
        checkpoint, config, maker = _described(repository, loading)
        identity = repository.identity()
        with checkpoint.tensors() as tensors, checkpoint.packed_by_torchao():
            packed = _is_packed(checkpoint)
            packing = packing_of(loading.dtype)
            if packed and packing:
                raise AttnscopeError(f"{source} is quantised already: leave out dtype (--dtype) {loading.dtype}")
            with _no_larger_than_weights(tensors, packed=packed):
                make = partial(
                    maker.from_pretrained,
                    None,
                    config=config,
                    state_dict=tensors,
                    dtype=DTYPES.get(loading.dtype or "") or _saved_type(config, tensors),
                    output_loading_info=True,
                    ignore_mismatched_sizes=True,  # so that the report lists them, for the check below
                    **packing,
                )
                model, report = make() if loading.placement is None else loading.placement.load(make)
            repository.refuse_changed()
            _reject_gaps(model, report, source)
            if not packed and not packing:  # a quantiser claims what it reads
                _reject_unread(model, report["unexpected_keys"], tensors, source)
        if model.can_generate():
            settings, saved = transformers.GenerationConfig, checkpoint.generation
            # older checkpoints have these settings in config.json
            chosen = settings.from_model_config(checkpoint.config) if saved is None else settings.from_dict(saved)
            model.generation_config = chosen
        model.config.name_or_path = source
    return model, identity


def _described(repository: Repository, loading: Loading) -> tuple[Checkpoint, Any, Any]:
    """The files of a model, its config and its class."""
    checkpoint, trust_remote_code = Checkpoint.of(repository, shapes=loading.dry_run), loading.trust_remote_code
    models = _models_beside(str(checkpoint.config.get("model_type")))
    if trust_remote_code and "auto_map" in checkpoint.config:
        for code in repository.folder.glob("*.py"):
            repository.take(code.name)
    config: Any = transformers.AutoConfig.from_pretrained(
        repository.source,
        revision=repository.commit,
        local_files_only=out_of_reach(),
        trust_remote_code=trust_remote_code,
    )
    maker = _class_of(config, models, repository, trust_remote_code=trust_remote_code)
    # ignore implementations named in the checkpoint: some are downloaded from the hub and run
    config._attn_implementation = None  # noqa: SLF001
    config._experts_implementation = None  # noqa: SLF001
    vars(config).pop("fusion_config", None)
    return checkpoint, config, maker


def _is_packed(checkpoint: Checkpoint) -> bool:
    return any(name == "quantization_config" and value for name, value in every_setting(checkpoint.config))


def _no_larger_than_weights(tensors: dict[str, Any], *, packed: bool) -> AbstractContextManager[None]:
    sizes = [math.prod(tensor.get_shape()) for tensor in tensors.values()]
    return no_larger_than(sizes, "config.json", _PACKED if packed else 1)


def _outline(repository: Repository, loading: Loading) -> PreTrainedModel | None:
    """The model on the meta device; None if its class cannot be built there."""
    source = repository.source
    with quiet(), _one_at_a_time, own_random_numbers():
        with explaining(f"{source} cannot be loaded", _ADVICE), asking_trust(source):
            checkpoint, config, maker = _described(repository, loading)
        with checkpoint.tensors() as tensors, suppress(Exception), torch.device("meta"):
            tight = _no_larger_than_weights(tensors, packed=_is_packed(checkpoint))
            with tight:
                return maker._from_config(config)  # noqa: SLF001
    return None


def empty_model(repository: Repository, loading: Loading) -> PreTrainedModel:
    """The model on the meta device, with shapes and without numbers, by its config alone."""
    source = repository.source
    with quiet(), _one_at_a_time, own_random_numbers(), explaining(f"{source} cannot be planned", _ADVICE):
        with asking_trust(source):
            _, config, maker = _described(repository, replace(loading, dry_run=True))
        with torch.device("meta"):
            model = maker._from_config(config)  # noqa: SLF001
        model.config.name_or_path = source
    if model.main_input_name != "input_ids":
        raise AttnscopeError(
            f"a dry run (--dry-run) plans runs over texts, and {type(model).__name__} reads {what_is_read(model)}: "
            "measure a few of them instead (--limit)"
        )
    with quiet():
        return model.to(DTYPES.get(loading.dtype or "") or config.dtype or torch.float32).eval()


def _models_beside(model_type: str) -> ModuleType:
    """Our models, or those of the package of this type; once imported, the Auto classes know them."""
    package = IN_PACKAGES.get(model_type, "attnscope").replace("-", "_")
    if find_spec(package) is None:
        raise AttnscopeError(where_to_find(model_type))
    return import_module(f"{package}.models")


def _class_of(config: Any, models: ModuleType, repository: Repository, *, trust_remote_code: bool) -> Any:
    """The class named in the config, so that no part is missing."""
    named: Any = config.architectures or []
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise AttnscopeError(
            f"config.json of {repository.source} has architectures {str(named)[:100]!r}; expected a list of names"
        )
    for name in named:
        for package in (transformers, models):
            maker = getattr(package, name, None)
            kind = getattr(maker, "config_class", None) or ()
            if isinstance(maker, type) and issubclass(maker, transformers.PreTrainedModel) and isinstance(config, kind):
                return maker
    code: Any = getattr(config, "auto_map", None) if trust_remote_code else None
    for auto in _AUTO_CLASSES:
        if code and auto in code:
            from transformers.dynamic_module_utils import get_class_from_dynamic_module

            maker = get_class_from_dynamic_module(code[auto], repository.source, revision=repository.commit)
            return transformers.models.auto.auto_factory.add_generation_mixin_to_remote_model(maker)
    base_models: Any = transformers.MODEL_MAPPING.get(type(config), None)
    if base_models is None:
        raise AttnscopeError(
            f"{repository.source} is a {type(config).model_type!r}, for which transformers has no base model. "
            "Add its class to config.json (architectures)"
        )
    return base_models[0] if isinstance(base_models, (list, tuple)) else base_models


def _saved_type(config: Any, tensors: dict[str, Any]) -> Any:
    """The dtype of the config, else that of the first floating-point tensor."""
    if config.dtype is not None:
        return config.dtype
    types = (_REAL.get(tensor.get_dtype()) for tensor in tensors.values())
    return next((kind for kind in types if kind is not None), torch.float32)


def _reject_gaps(model: PreTrainedModel, report: dict[str, Any], source: str) -> None:
    """Raise an error if weights of the model are missing or unused."""
    prefix = model.base_model_prefix + "."
    has_head = any(name.startswith(prefix) for name, _ in model.named_parameters())
    lacking = (key for key in sorted(report["missing_keys"]) if not is_pooler(key))
    missing = [key for key in lacking if key.startswith(prefix) or not has_head]
    mismatched = [str(entry[0]) for entry in report.get("mismatched_keys") or []]
    for what, keys in (("lacks", missing), ("has another shape for", mismatched)):
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            raise AttnscopeError(
                f"the checkpoint {source} {what} {keys[0]}{more}, which {type(model).__name__} needs. "
                "Is the file complete, and config.json the right one?"
            )
    lists = {name: len(module) for name, module in model.named_modules() if isinstance(module, torch.nn.ModuleList)}
    beyond = [
        key
        for key in sorted(report["unexpected_keys"])
        if any(int(match[1]) >= lists.get(key[: match.start()], sys.maxsize) for match in _NUMBER.finditer(key))
    ]
    if beyond:
        raise AttnscopeError(
            f"the checkpoint {source} contains {beyond[0]}, and config.json describes a smaller "
            f"{type(model).__name__}. Is it the right config.json?"
        )


def _reject_unread(model: PreTrainedModel, unexpected: Iterable[str], tensors: dict[str, Any], source: str) -> None:
    """Raise an error if weights are codes of a quantiser, or if layers of the model would have more weights."""
    parameters, modules = {name for name, _ in model.named_parameters()}, dict(model.named_modules())
    for key, tensor in tensors.items():
        if tensor.get_dtype().startswith(("I", "U")) and (key in parameters or key.endswith(".weight")):
            raise AttnscopeError(
                f"the checkpoint {source} stores {key} as whole numbers ({tensor.get_dtype()}), and config.json has no "
                "quantization_config that says how to read them. Add it, or convert the weights to float32"
            )
    for key in sorted(unexpected):
        parent, _, name = key.rpartition(".")
        module = modules.get(parent)
        direct = module is not None and any(True for _ in module.parameters(recurse=False))
        in_layer = any(key[: match.end()] in modules for match in _NUMBER.finditer(key))
        # what an attention module computes itself: the causal mask of GPT-2 is also called bias
        computed = is_computed(name) or (name == "bias" and module is not None and not direct)
        zero = name == "bias" and key in tensors and not bool(tensors[key][:].any())
        if (direct or in_layer) and not computed and not zero:
            raise AttnscopeError(
                f"the checkpoint {source} contains {key}, which {type(model).__name__} does not read with this "
                "config.json. Is it the right config.json?"
            )


@runtime_checkable
class Hashed(Protocol):
    """Input with a hash: texts, token ids, pairs."""

    def sha256(self) -> str:
        """SHA-256 of the whole input."""
        ...


def check_same_model(result: Any, loaded: LoadedModel, what: str) -> None:
    """Raise an error if a result of a verb is of another model."""
    signed = json.loads(result.attrs["signature"])["model"]
    if {name: signed.get(name) for name in loaded.identity} != loaded.identity:
        raise AttnscopeError(
            f"{what} is of {signed['name']}, with other weights than {loaded.name}; expected the same model"
        )


def signature_of(
    command: str,
    loaded: LoadedModel,
    corpus: Hashed | None,
    target: Hashed | None,
    settings: Mapping[str, Any],
    *,
    reader: Mapping[str, str] | None = None,
    packages: Sequence[str] = (),
) -> Signature:
    """Signature of a result: model, tokenizer, texts, settings, device, dtype and versions of packages."""
    where = {"device": device_of(loaded.model).type, "dtype": str(loaded.model.dtype).removeprefix("torch.")}
    if reader is None and loaded.tokenizer is not None:
        reader = {"sha256": tokenizer_sha256(loaded.tokenizer)}
    if settings.get("clusters") or settings.get("search"):
        packages = (*packages, "scikit-learn")
    return Signature(
        command,
        model={"name": loaded.name, "class": type(loaded.model).__name__, **loaded.identity},
        tokenizer=None if reader is None else dict(reader),
        corpus=None if corpus is None else {"sha256": corpus.sha256()},
        target=None if target is None else {"sha256": target.sha256()},
        settings={**settings, **where},
        versions=package_versions(*packages),
    )
