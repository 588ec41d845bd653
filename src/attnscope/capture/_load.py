"""A model and its tokenizer from a folder or the hub, whole or refused."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from huggingface_hub.errors import HFValidationError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel

from attnscope import models
from attnscope.bundled import MODEL
from attnscope.capture._quiet import quiet
from attnscope.corpus.texts import SUFFIXES
from attnscope.errors import AttnscopeError

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model ready to be watched.

    Attributes
    ----------
    model
        In eval mode, on its device.
    tokenizer
        A fast tokenizer (with character offsets), or None where none was asked for.
    name
        The folder's or repository's name.
    identity
        What the weights are: their SHA-256, or the hub's commit.
    """

    model: PreTrainedModel
    tokenizer: Any
    name: str
    identity: dict[str, str]


def load_model(
    source: str | Path | PreTrainedModel,
    *,
    tokenizer: Any = None,
    revision: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    trust_remote_code: bool = False,
    need_tokenizer: bool = True,
) -> LoadedModel:
    """Load a model from a folder or the hub in the class that its config names, or take one as it is.

    Parameters
    ----------
    source
        A folder, a hub id such as ``roberta-base``, ``bundled``, or a model that is already loaded.
    tokenizer
        Its tokenizer or the tokenizer's folder; by default the one beside the model.
    revision
        Branch, tag or commit on the hub.
    device, dtype
        ``cpu``, ``cuda``, ...; ``float32``, ``bfloat16``, ``float16``, ``float64``. By default CUDA where there is
        one, and the type that the checkpoint was saved in.
    trust_remote_code
        Run code that came with the checkpoint. Only for sources that you trust.
    need_tokenizer
        Whether to look for a tokenizer.

    Raises
    ------
    AttnscopeError
        If there is no such model, its weights are pickled, corrupt, not finite or lack a tensor of the
        trunk, it wants to run code of its own, or there is no (fast) tokenizer.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> loaded = load_model(MODEL, device="cpu")
    >>> type(loaded.model).__name__
    'EncoderForMaskedLM'
    """
    source = MODEL if source == "bundled" else source
    if dtype is not None and dtype not in DTYPES:
        raise AttnscopeError(f"dtype {dtype!r} is not known: choose one of {', '.join(DTYPES)}")
    if isinstance(source, PreTrainedModel):
        model = source
        name = model.config.name_or_path or type(model).__name__
        identity = {"sha256": state_sha256(model)}
    else:
        with quiet():
            model, identity = _from_pretrained(
                str(source), revision, dtype, trust_remote_code=trust_remote_code
            )
        name = Path(source).name if Path(source).exists() else str(source)
        model = model.to(cast("Any", usable_device(device)))
    _refuse_broken_numbers(model)
    if need_tokenizer:
        place = tokenizer if isinstance(tokenizer, (str, Path)) else source
        if tokenizer is None or isinstance(tokenizer, (str, Path)):
            tokenizer = _tokenizer(place, revision, trust_remote_code=trust_remote_code)
        if not getattr(tokenizer, "is_fast", False):
            raise AttnscopeError(
                f"the tokenizer of {name} gives no character offsets: a fast tokenizer (tokenizer.json) is needed"
            )
    return LoadedModel(model.eval(), tokenizer if need_tokenizer else None, name, identity)


def usable_device(name: str | None) -> torch.device:
    """The device of that name; without one a GPU if there is one, else the processor.

    Raises
    ------
    AttnscopeError
        If there is no such device, or it cannot be used here.

    Examples
    --------
    >>> usable_device("gpu0")
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: device 'gpu0' cannot be used: ...
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise AttnscopeError(f"device {name!r} cannot be used: {_first_line(error)}") from error
    return device


def _from_pretrained(
    source: str, revision: str | None, dtype: str | None, *, trust_remote_code: bool
) -> tuple[PreTrainedModel, dict[str, str]]:
    folder = Path(source)
    if folder.is_dir():
        _check_folder(folder)
    else:
        _refuse_what_is_no_model(source)
    options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    try:
        config = AutoConfig.from_pretrained(source, **options)
    except (OSError, ValueError, HFValidationError) as error:
        raise AttnscopeError(_explain(source, error)) from error
    maker = _class_of(config, trust_remote_code=trust_remote_code)
    try:
        model, report = maker.from_pretrained(
            source,
            config=config,
            use_safetensors=True,
            dtype=DTYPES[dtype] if dtype else "auto",
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # so that the report names them, and we refuse
            **options,
        )
    except SafetensorError as error:
        raise AttnscopeError(f"the weights of {source} are corrupt: {error}. Fetch the file again") from error
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        raise AttnscopeError(_explain(source, error)) from error
    _refuse_gaps(model, report, source)
    if folder.is_dir():
        return model, {"sha256": folder_sha256(folder)}
    return model, {"revision": str(getattr(model.config, "_commit_hash", None) or revision or "main")}


def _refuse_what_is_no_model(source: str) -> None:
    """Tell a text or a mistyped folder from a hub's id, before the hub is asked for it again and again."""
    first = "the first argument is the model. For the bundled model on a text, say: bundled"
    if source == "-":
        raise AttnscopeError(f"- is standard input, and {first} -")
    if Path(source).is_file():
        raise AttnscopeError(f"{source} is a file, and {first} {source}")
    if Path(source).exists():
        raise AttnscopeError(f"{source} is no folder: expected one with config.json and model.safetensors")
    if source.lower().endswith(SUFFIXES):
        raise AttnscopeError(f"{source} does not exist; and {first} TEXT")
    if _is_place(source):
        raise AttnscopeError(f"{source} does not exist: expected a model folder, or a hub id such as gpt2")


def _is_place(source: str) -> bool:
    """Whether a name can only be a place on this machine, as a hub id has at most one slash within."""
    return source.startswith((".", "/", "~")) or source.endswith("/") or source.count("/") > 1


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise AttnscopeError(f"{folder} holds no config.json: is it a model folder?")
    try:
        json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise AttnscopeError(f"{folder / 'config.json'} is not JSON: {error}") from error
    if not list(folder.glob("*.safetensors")):
        pickled = [path.name for path in [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]]
        if pickled:
            raise AttnscopeError(
                f"{folder} has pickled weights only ({pickled[0]}), which can run code when they are opened. "
                "Convert them to model.safetensors first"
            )
        raise AttnscopeError(f"{folder} holds no weights: expected model.safetensors")


def _class_of(config: Any, *, trust_remote_code: bool) -> Any:
    """The class that the config names, so that nothing is missing that need not be."""
    for name in config.architectures or []:
        for place in (transformers, models):  # whoever imports models also registers its configurations
            if hasattr(place, name):
                return getattr(place, name)
    if trust_remote_code and getattr(config, "auto_map", None):
        for auto in ("AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModelForSeq2SeqLM"):
            if auto in config.auto_map:
                return getattr(transformers, auto)
    return AutoModel


def _refuse_gaps(model: PreTrainedModel, report: dict[str, Any], source: str) -> None:
    """A trunk with random numbers in it would give numbers that mean nothing. A missing head or pooler is no fault."""
    prefix = model.base_model_prefix + "."
    has_head = any(name.startswith(prefix) for name, _ in model.named_parameters())
    missing = [
        key
        for key in sorted(report["missing_keys"])
        if "pooler" not in key and (key.startswith(prefix) or not has_head)
    ]
    mismatched = [str(entry[0]) for entry in report.get("mismatched_keys") or []]
    for what, keys in (("lacks", missing), ("has another shape for", mismatched)):
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            raise AttnscopeError(
                f"the checkpoint {source} {what} {keys[0]}{more}, which {type(model).__name__} needs: "
                "it would be filled with random numbers. Is the file whole, and config.json the right one?"
            )


def _refuse_broken_numbers(model: PreTrainedModel) -> None:
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise AttnscopeError(
                f"the weights hold NaN or infinity in {name}: nothing can be measured with them"
            )


def _tokenizer(source: Any, revision: str | None, *, trust_remote_code: bool) -> Any:
    if isinstance(source, PreTrainedModel):
        raise AttnscopeError(
            "a model object was given without its tokenizer: pass tokenizer=..., or the model's folder"
        )
    folder = Path(source)
    if not folder.exists() and _is_place(str(source)):
        raise AttnscopeError(f"{source} does not exist: expected a folder with tokenizer.json, or a hub id")
    files = (
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
        "vocab.json",
        "spiece.model",
        "tokenizer.model",
    )
    if folder.is_dir() and not any((folder / name).exists() for name in files):
        raise AttnscopeError(
            f"{folder} has no tokenizer (no tokenizer.json): save it there, or give its folder with --tokenizer"
        )
    try:
        with quiet():
            return AutoTokenizer.from_pretrained(
                str(source), revision=revision, trust_remote_code=trust_remote_code
            )
    except Exception as error:  # transformers and tokenizers raise bare exceptions here
        raise AttnscopeError(f"the tokenizer of {source} cannot be loaded: {_first_line(error)}") from error


def _explain(source: str, error: Exception) -> str:
    text = str(error)
    if "trust_remote_code" in text:
        return (
            f"{source} brings code of its own, which would run on this machine. "
            "If you trust it, say --trust-remote-code"
        )
    if not Path(source).exists():
        return f"there is no folder {source}, and the hub gave no model of that name: {_first_line(error)}"
    return f"{source} cannot be loaded: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def folder_sha256(folder: Path) -> str:
    """SHA-256 over config.json and the weight files of a model folder, in the order of their names."""
    digest = hashlib.sha256()
    for path in sorted([folder / "config.json", *folder.glob("*.safetensors")]):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
    return digest.hexdigest()


def state_sha256(model: PreTrainedModel) -> str:
    """SHA-256 over the names and values of a model's parameters."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(f"{name}{tuple(parameter.shape)}{parameter.dtype}".encode())
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
