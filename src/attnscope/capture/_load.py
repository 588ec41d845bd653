"""A model and its tokenizer from a folder or the hub, whole or refused."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from attnscope._caller import own_random_numbers, own_state
from attnscope.bundled import MODEL
from attnscope.capture._beside import is_place, repository_beside
from attnscope.capture._from_checkpoint import from_checkpoint
from attnscope.capture._inner import inner_model
from attnscope.capture._loaded import LoadedModel
from attnscope.capture._loading import DTYPES, Loading, usable_device
from attnscope.capture._placement import Placement, parameters_of
from attnscope.capture._quantised import INTEGERS, plain, quantised
from attnscope.capture._quiet import quiet
from attnscope.capture._repository import Repository
from attnscope.capture._team import check_shares, refuse_team
from attnscope.capture._tokenizer import Tokenizer, load_tokenizer, refuse_slow
from attnscope.checks import check_kind
from attnscope.corpus.file_names import SUFFIXES
from attnscope.errors import AttnscopeError, explaining

if TYPE_CHECKING:
    from attnscope.capture._model import Model

_UNIMPORTANT = ("_name_or_path", "transformers_version", "architectures")  # where a config came from
_one_at_a_time = (
    threading.Lock()
)  # while it loads, transformers changes PyTorch's default type for all threads


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
    tp_plan: str | None = None,
    need_tokenizer: bool = True,
    in_parts: bool = False,
) -> LoadedModel:
    """Load a model from a folder or the hub in the class that its config names, or take one as it is.

    Only safetensors files that lie in the folder (or the hub's cache) are read, and nothing is run that came with
    them.

    Parameters
    ----------
    source
        A folder, a hub id such as ``roberta-base``, ``bundled`` (the default), or a model that is already loaded; also
        inside ``torch.compile``, a TransformerLens bridge or nnsight's ``LanguageModel``: see `Model`. A `LoadedModel`
        is returned as it is.
    tokenizer
        Its tokenizer or the tokenizer's folder; by default the one beside the model. Of a model object too, where it
        was loaded from.
    revision
        Branch, tag or commit on the hub.
    device, dtype
        ``cpu``, ``cuda``, ...; ``float32``, ``bfloat16``, ``float16``, ``float64``. By default CUDA where there is
        one, and the type that the checkpoint was saved in. ``int8`` and ``int4``: the weights of linear layers are
        rounded to whole numbers (by torchao) with a scale for each row, all else stays in the saved type. A model that
        is loaded already must be there, and of that type.
    trust_remote_code
        Run code that came with the checkpoint. Only for sources that you trust.
    placement
        Where the layers go, of a model that is larger than one device.
    tp_plan
        ``auto`` shares the heads of each layer out among the processes that torchrun started.
    need_tokenizer
        Whether to look for a tokenizer.
    in_parts
        Whether a model will do of which this process has some heads only.

    Raises
    ------
    AttnscopeError
        If there is no such model, its weights are pickled, lie outside the folder, change meanwhile, are corrupt, not
        finite or lack a tensor of the trunk, its config is broken or another model's, it wants to run code of its own,
        there is no (fast) tokenizer, or a model that was given lies elsewhere or is of another type.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> loaded = load_model(MODEL, device="cpu")
    >>> type(loaded.model).__name__
    'EncoderForMaskedLM'
    """
    if isinstance(source, LoadedModel):
        return source
    given = MODEL if source is None else source
    source = cast("str | Path | PreTrainedModel", inner_model(given))
    _refuse_other_kinds(source)
    source = MODEL if isinstance(source, str) and source == "bundled" else source
    if dtype is not None and dtype not in (*DTYPES, *INTEGERS):
        raise AttnscopeError(f"dtype {dtype!r} is not known: choose one of {', '.join((*DTYPES, *INTEGERS))}")
    if isinstance(source, PreTrainedModel):
        model, repository = source, None
        _refuse_broken_numbers(model)
        _refuse_other(model, device, dtype)
        if not in_parts:
            refuse_team(model)
        name = model.config.name_or_path or type(model).__name__
        identity = {"sha256": state_sha256(model)}
    else:
        repository = _repository(str(source), revision)
        name = Path(source).name if repository.commit is None else str(source)
        model, identity = _placed(
            repository, name, Loading(revision, device, dtype, trust_remote_code, placement, tp_plan)
        )
        _refuse_broken_numbers(model)
        if dtype in INTEGERS:
            identity |= {"weights": quantised(model, dtype)}
    if need_tokenizer:
        if tokenizer is not None and not callable(tokenizer):
            check_kind("a tokenizer, a folder or a hub id", str, Path, tokenizer=tokenizer)
        _refuse_what_reads_no_text(model)
        given_one = getattr(given, "tokenizer", None) if tokenizer is None else tokenizer
        tokenizer = _tokenizer(given_one, model, repository, trust_remote_code=trust_remote_code)
        refuse_slow(tokenizer, name)
    return LoadedModel(model, tokenizer if need_tokenizer else None, name, identity)


def _refuse_other_kinds(model: object) -> None:
    """Refuse what is not a model, and say what measures it where something does."""
    if isinstance(model, nn.Module) and not isinstance(model, PreTrainedModel):
        raise AttnscopeError(
            f"{type(model).__name__} is not a model of transformers: attnscope.watch measures what any other module "
            "computes, and attnscope.walk follows a module of one head"
        )
    entries = cast("list[Any] | tuple[Any, ...]", model) if isinstance(model, list | tuple) else [model]
    if any(isinstance(entry, Tensor | np.ndarray) for entry in entries):
        raise AttnscopeError(
            "the model is arrays; expected a model of transformers, a folder, or a hub id. Attention weights are "
            "measured by attnscope.measure_weights"
        )
    check_kind("a model of transformers, a folder, or a hub id", str, Path, PreTrainedModel, model=model)


def _tokenizer(
    given: Tokenizer, model: PreTrainedModel, repository: Repository | None, *, trust_remote_code: bool
) -> Any:
    """The tokenizer that was given, or that of its folder; else the one beside the model."""
    if given is not None and not isinstance(given, str | Path):
        return given
    place = repository if given is None else None
    place = place or repository_beside(model, given, "tokenizer")
    return load_tokenizer(replace(place, taken={}), trust_remote_code=trust_remote_code)


def _refuse_what_reads_no_text(model: PreTrainedModel) -> None:
    if model.main_input_name != "input_ids":
        other = what_is_read(model)
        raise AttnscopeError(
            f"{type(model).__name__} reads {model.main_input_name}, not text: give "
            f"{f'it {other}, or ' if other else ''}a model that reads input_ids"
        )


def _refuse_other(model: PreTrainedModel, device: str | None, dtype: str | None) -> None:
    """A model object stays as it is: what it would have to become is not passed over without a word."""
    if dtype is not None and DTYPES.get(dtype) != model.dtype:
        raise AttnscopeError(
            f"dtype is {dtype}, and the model that was given is {str(model.dtype).removeprefix('torch.')}: convert it "
            "yourself, or give its folder"
        )
    if device is not None and usable_device(device).type != model.device.type:
        raise AttnscopeError(
            f"device is {device}, and the model that was given lies on {model.device.type}: move it (model.to), or "
            "leave device out"
        )


def what_is_read(model: PreTrainedModel) -> str:
    """In which files a model's input lies, in words; empty where that is not known.

    Examples
    --------
    >>> from transformers import ViTConfig, ViTModel
    >>> what_is_read(ViTModel(ViTConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1)))
    'images (.png, .jpg, .webp)'
    """
    known = {"pixel_values": "images (.png, .jpg, .webp)", "input_ids": "text"}
    return known.get(model.main_input_name, "sounds (.wav)" if "input_" in model.main_input_name else "")


def _repository(source: str, revision: str | None) -> Repository:
    if not source:
        raise AttnscopeError("the model's name is empty: expected a folder, a hub id, or bundled")
    with explaining(f"{source[:200]} cannot be opened", "Is the name right?"):
        if not Path(source).is_dir():
            _refuse_what_is_no_model(source)
    return Repository.of(source, revision)


def _placed(repository: Repository, name: str, loading: Loading) -> tuple[PreTrainedModel, dict[str, str]]:
    """A model of a checkpoint, on its device or devices."""
    placement = loading.placement
    loading.check()
    on = usable_device(loading.device)  # before minutes are spent on reading
    with quiet(), _one_at_a_time, own_random_numbers():  # a missing head is drawn
        model, identity = from_checkpoint(repository, loading)
    if loading.tp_plan is not None:
        check_shares(model)
    if placement is None and loading.tp_plan is None:
        with explaining(f"{name} cannot be put on {on}", "Try --device cpu, or --dtype bfloat16"):
            model = model.to(cast("Any", on))
    return model, identity


def _refuse_what_is_no_model(source: str) -> None:
    """Tell a text or a mistyped folder from a hub's id, before the hub is asked for it again and again."""
    first = "the first argument is the model. For the bundled model on a text, say: bundled"
    if source == "-":
        raise AttnscopeError(f"- is standard input, and {first} -")
    if Path(source).is_file():
        raise AttnscopeError(f"{source} is a file, and {first} {source}")
    if Path(source).exists():
        raise AttnscopeError(f"{source} is not a folder: expected one with config.json and model.safetensors")
    if source.lower().endswith(SUFFIXES):
        raise AttnscopeError(f"{source} does not exist; and {first} TEXT")
    if is_place(source):
        raise AttnscopeError(f"{source} does not exist: expected a model folder, or a hub id such as gpt2")


def _refuse_broken_numbers(model: PreTrainedModel) -> None:
    for name, parameter in parameters_of(model):
        if parameter.is_meta:
            raise AttnscopeError(
                f"{name} lies on the meta device, which holds no numbers: load the weights before"
            )
        if not bool(torch.isfinite(plain(parameter)).all()):
            raise AttnscopeError(
                f"the weights hold NaN or infinity in {name}: nothing can be measured with them"
            )


def state_sha256(model: PreTrainedModel) -> str:
    """SHA-256 over a model's config and the names and values of its parameters and saved buffers."""
    settings = {name: value for name, value in model.config.to_dict().items() if name not in _UNIMPORTANT}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    saved = model.state_dict().keys()
    for name, tensor in sorted(
        chain(model.named_parameters(), model.named_buffers()), key=lambda item: item[0]
    ):
        if name not in saved:
            continue
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(
            plain(tensor).detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()
