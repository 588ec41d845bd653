"""Find and load tokenizers and processors of a model."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import transformers
from transformers import (
    BaseImageProcessor,
    FeatureExtractionMixin,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
)
from transformers.utils.import_utils import is_torchvision_available

from attnscope.bundled import MODELS
from attnscope.capture.borrow import inner_model, quiet
from attnscope.capture.checkpoint import Repository, asking_trust, check_settings, out_of_reach
from attnscope.report.signature import short_hash
from attnscope.support.errors import AttnscopeError, explaining

if TYPE_CHECKING:
    from attnscope.capture.load import Model


PREPROCESSORS = ("preprocessor_config.json", "processor_config.json")


def is_place(source: str) -> bool:
    """Whether a name can only be a local path, as a hub id is ASCII with at most one slash and no space."""
    local = source.startswith((".", "/", "~")) or source.endswith("/") or source.count("/") > 1
    return local or " " in source or not source.isascii()


def tokenizer_repository(
    source: Model, requested: str | Path | None, what: str, *, revision: str | None = None, more: str = ""
) -> Repository:
    """Repository of a tokenizer or processor; by default the model's."""
    if requested is not None:
        if is_place(str(requested)) and not Path(requested).exists():
            raise AttnscopeError(f"{requested} does not exist; expected a folder with the {what}, or a hub id")
        return Repository.of(str(MODELS.get(str(requested), requested)))
    inner: Any = inner_model(source)
    if isinstance(inner, str | Path):
        return Repository.of(str(inner), revision)
    advice = f"pass tokenizer=..., or the model's folder{more}"
    origin = str(inner.config.name_or_path or "")
    if not origin or (is_place(origin) and not Path(origin).is_dir()):
        raise AttnscopeError(f"found a model object without its {what}: {advice}")
    try:
        return Repository.of(origin, getattr(inner.config, "_commit_hash", None))
    except AttnscopeError as error:
        raise AttnscopeError(f"found no {what} in {origin}, the source of the model: {advice}") from error


def load_preprocessor(repository: Repository, maker: Any, what: str, *, trust_remote_code: bool, **options: Any) -> Any:
    """Load a preprocessor of images or sounds with one of transformers' Auto classes."""
    source = repository.source
    if not any(repository.find(name) for name in PREPROCESSORS):
        raise AttnscopeError(
            f"{source} has no {what} ({PREPROCESSORS[0]}). Save it there, or pass its folder with --tokenizer"
        )
    return from_repository(repository, maker, what, trust_remote_code=trust_remote_code, **options)


def from_repository(
    repository: Repository,
    maker: Any,
    what: str,
    *,
    advice: str = "Are its files complete and correct?",
    trust_remote_code: bool,
    **options: Any,
) -> Any:
    """Load an object from a repository with one of transformers' Auto classes."""
    options |= {"revision": repository.commit, "local_files_only": out_of_reach()}
    source = repository.source
    with quiet(), explaining(f"the {what} of {source} cannot be loaded", advice), asking_trust(source):
        return maker.from_pretrained(source, trust_remote_code=trust_remote_code, **options)


def load_image_processor(repository: Repository, *, trust_remote_code: bool = False) -> Any:
    """The image processor of a repository, with the Pillow backend."""
    # always Pillow, so that numbers do not depend on installed packages
    maker, trust = transformers.AutoImageProcessor, trust_remote_code
    return load_preprocessor(repository, maker, "image processor", trust_remote_code=trust, backend="pil")


def hash_of_settings(*settings: Any) -> str:
    """Short hash of the settings of a preprocessor."""
    return short_hash(json.loads(json.dumps(settings, default=str, sort_keys=True)))


def reader_of(processor: Any) -> dict[str, str] | None:
    """A processor in a signature, by the hash of its settings; None without one."""
    return None if processor is None else {"sha256": hash_of_settings(processor.to_dict())}


#: A tokenizer, a processor of images or sounds, or its folder. A string, so that image processors are imported lazily.
Processor: TypeAlias = "Tokenizer | ProcessorMixin | BaseImageProcessor | FeatureExtractionMixin"

#: A tokenizer, or its folder or hub id; None for that of the model's folder.
Tokenizer: TypeAlias = "str | Path | PreTrainedTokenizerBase | None"

_LONGEST = 1000  # times as long as it was, at most, that a normalizer makes a text

_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model")


def has_tokenizer(repository: Repository) -> bool:
    """Whether a folder has any file of a tokenizer; always True for a repository on the hub."""
    return repository.commit is not None or any((repository.folder / name).exists() for name in _FILES)


def load_tokenizer(repository: Repository, *, trust_remote_code: bool = False) -> Any:
    """Load the tokenizer of a repository."""
    source = repository.source
    if not has_tokenizer(repository):
        raise AttnscopeError(
            f"{source} has no tokenizer (no tokenizer.json). Save it there, or pass its folder with --tokenizer"
        )
    _check(repository)
    advice = "Are its files complete and correct?"
    with quiet(), explaining(f"the tokenizer of {source} cannot be loaded", advice), asking_trust(source):
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            source, revision=repository.commit, local_files_only=out_of_reach(), trust_remote_code=trust_remote_code
        )
        tokenizer("", return_offsets_mapping=getattr(tokenizer, "is_fast", False))  # a broken tokenizer fails here
    return tokenizer


def tokenizer_of(given: Tokenizer) -> Any:
    """A tokenizer as it is, or that of a folder or a hub id."""
    if given is None or not isinstance(given, str | Path):
        return given
    return load_tokenizer(tokenizer_repository("", given, "tokenizer"))


def _check(repository: Repository) -> None:
    """Raise an error for settings by which transformers would load another tokenizer."""
    config = repository.read("config.json") or {}
    check_settings(config, repository.source)
    settings = repository.read("tokenizer_config.json") or {}
    for name, file in (("tokenizer_config.json", settings), ("config.json", config)):
        kind = file.get("tokenizer_class")
        if not _is_tokenizer(kind):
            raise AttnscopeError(
                f"{name} of {repository.source} has tokenizer_class {str(kind)[:100]!r}, which is not a tokenizer. "
                "Is it the right file?"
            )
    files = settings.get("fast_tokenizer_files", [])
    plain = isinstance(files, list) and not any("/" in str(file) or "\\" in str(file) for file in files)
    if not plain or settings.get("gguf_file") is not None:
        raise AttnscopeError(
            f"tokenizer_config.json of {repository.source} refers to other files (fast_tokenizer_files or gguf_file). "
            "Remove the entry, and put their content into tokenizer.json"
        )
    rules = replace(repository, taken={}).read("tokenizer.json") or {}
    growth = _growth(rules.get("normalizer"))
    if growth > _LONGEST:
        raise AttnscopeError(
            f"the normalizer in tokenizer.json of {repository.source} replaces characters until a text is {growth:.0e} "
            f"times as long; expected at most {_LONGEST} times. Is it the right file?"
        )
    limit = settings.get("model_max_length")
    number = type(limit) is int or (isinstance(limit, float) and math.isfinite(limit))
    if limit is not None and (not number or limit < 1):
        raise AttnscopeError(
            f"tokenizer_config.json of {repository.source} has model_max_length {str(limit)[:100]!r}; expected a "
            "number of tokens"
        )


def _growth(normalizer: Any) -> float:
    """How many times as long the replacements of a normalizer can make a text, one after another."""
    if not isinstance(normalizer, dict):
        return 1.0
    parts = normalizer.get("normalizers")
    if isinstance(parts, list):
        return math.prod(map(_growth, parts))
    pattern, content = normalizer.get("pattern"), normalizer.get("content")
    replaced = pattern.get("String") if isinstance(pattern, dict) else None
    shortest = max(1, len(replaced)) if isinstance(replaced, str) else 1  # a regular expression can match a character
    return max(1.0, len(content) / shortest) if isinstance(content, str) else 1.0


def _is_tokenizer(name: Any) -> bool:
    """Whether a name is that of a tokenizer, or unknown to transformers."""
    if name is None:
        return True
    if not isinstance(name, str):
        return False
    kinds = [getattr(transformers, f"{name.removesuffix('Fast')}{end}", None) for end in ("", "Fast")]
    return all(
        kind is None
        or hasattr(kind, "_backends")  # a placeholder for a package that is not installed
        or (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedTokenizerBase))
        for kind in kinds
    )


_CONFIGS = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
_PARTS = ("image_processor", "tokenizer")  # required parts of a processor


def load_processor(
    repository: Repository, model: PreTrainedModel, *, trust_remote_code: bool, videos: bool = False
) -> Any:
    """The processor of a repository without its parts for sounds, and for videos only on request."""
    source = repository.source
    if not any(repository.find(name) for name in _CONFIGS[:2]):
        raise AttnscopeError(
            f"{source} has no processor ({' or '.join(_CONFIGS[:2])}). Save it there, or pass its folder with "
            "--tokenizer"
        )
    advice = "Are its files complete, and its packages installed?"
    configs = [repository.read(name) or {} for name in _CONFIGS]
    if any("audio_tokenizer" in config for config in configs):
        raise AttnscopeError(
            f"{_CONFIGS[0]} of {source} refers to another checkpoint (audio_tokenizer). Remove the entry"
        )
    makers = (getattr(transformers, str(config.get("processor_class")), None) for config in configs)
    usual: Any = transformers.models.auto.processing_auto.PROCESSOR_MAPPING.get(type(model.config), None)
    maker: Any = next((maker for maker in makers if maker is not None), usual)
    with explaining(f"the processor of {source} cannot be loaded", advice):
        has_parts = hasattr(maker, "get_attributes")  # fails if a package is missing
    if not has_parts or not issubclass(maker, transformers.ProcessorMixin):
        raise AttnscopeError(
            f"{source} refers to no processor of transformers. Is processor_config.json the right one?"
        )
    has: dict[str, Any] = {
        "image_processor": load_image_processor(repository, trust_remote_code=trust_remote_code),
        "tokenizer": load_tokenizer(replace(repository, taken={}), trust_remote_code=trust_remote_code),
    }
    if videos:
        if "video_processor" not in maker.get_attributes():
            raise AttnscopeError(f"{maker.__name__} reads no videos. Pass frames as images")
        instead = "frames as images"
        has["video_processor"] = load_video_processor(repository, instead, trust_remote_code=trust_remote_code)
    with quiet(), explaining(f"the processor of {source} cannot be loaded", advice), asking_trust(source):
        settings, more = maker.get_processor_dict(source, revision=repository.commit)
        lean: Any = type(maker.__name__, (maker,), {"check_argument_for_proper_class": _check_part})
        return lean.from_args_and_dict([has.get(part) for part in maker.get_attributes()], settings, **more)


def load_video_processor(repository: Repository, instead: str, *, trust_remote_code: bool) -> Any:
    """The video processor of a repository."""
    if not is_torchvision_available():
        raise AttnscopeError(
            f"the video processor of {repository.source} needs torchvision: pip install 'attnscope[video]', or pass "
            f"{instead}"
        )
    maker, advice = transformers.AutoVideoProcessor, "Are its files complete, and does torchvision match PyTorch?"
    return from_repository(repository, maker, "video processor", advice=advice, trust_remote_code=trust_remote_code)


def _check_part(_: Any, name: str, part: Any) -> None:
    if part is None and name in _PARTS:
        raise AttnscopeError(f"the processor has no {name}")
