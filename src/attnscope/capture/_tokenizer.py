"""A model's tokenizer from a folder or the hub, or an error that says what is wrong with it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import transformers
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from attnscope.capture._hub import out_of_reach
from attnscope.capture._quiet import quiet
from attnscope.capture._repository import Repository, asking_trust
from attnscope.capture._settings import check_settings
from attnscope.errors import AttnscopeError, explaining

if TYPE_CHECKING:
    from transformers import BaseImageProcessor, FeatureExtractionMixin, ProcessorMixin

#: What reads for a model: a tokenizer, or what makes its input of images and sounds; or its folder. Text, as those that
#: read images are imported only where there are any.
Processor: TypeAlias = "Tokenizer | ProcessorMixin | BaseImageProcessor | FeatureExtractionMixin"

#: A tokenizer, or its folder or hub id; None stands for the one beside the model.
Tokenizer = str | Path | PreTrainedTokenizerBase | None

_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "tokenizer.model",
)


def load_tokenizer(repository: Repository, *, trust_remote_code: bool = False) -> Any:
    """Load the tokenizer of a repository.

    Raises
    ------
    AttnscopeError
        If there is none, its files are broken or name what is no tokenizer or lies elsewhere, or it wants to run code
        of its own.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> load_tokenizer(Repository.of(str(MODEL))).is_fast
    True
    """
    source = repository.source
    if repository.commit is None and not any((repository.folder / name).exists() for name in _FILES):
        raise AttnscopeError(
            f"{source} has no tokenizer (no tokenizer.json): save it there, or give its folder with --tokenizer"
        )
    _check(repository)
    advice = "Are its files whole, and the right ones?"
    with quiet(), explaining(f"the tokenizer of {source} cannot be loaded", advice), asking_trust(source):
        tokenizer = AutoTokenizer.from_pretrained(
            source,
            revision=repository.commit,
            local_files_only=out_of_reach(),
            trust_remote_code=trust_remote_code,
        )
        tokenizer(
            "", return_offsets_mapping=getattr(tokenizer, "is_fast", False)
        )  # half broken, it fails here
    return tokenizer


def refuse_slow(tokenizer: Any, name: str) -> None:
    """Refuse a tokenizer that does not say which characters its tokens are.

    Raises
    ------
    AttnscopeError
        Names the model.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise AttnscopeError(
            f"the tokenizer of {name} gives no character offsets: a fast tokenizer (tokenizer.json) is needed"
        )


def _check(repository: Repository) -> None:
    """Refuse settings by which transformers would read or run what is no tokenizer of this repository."""
    config = repository.read("config.json") or {}
    check_settings(config, repository.source)
    settings = repository.read("tokenizer_config.json") or {}
    for name, file in (("tokenizer_config.json", settings), ("config.json", config)):
        kind = file.get("tokenizer_class")
        if not _is_tokenizer(kind):
            raise AttnscopeError(
                f"{name} of {repository.source} says tokenizer_class {str(kind)[:100]!r}, which is not a tokenizer: "
                "is it the right file?"
            )
    files = settings.get("fast_tokenizer_files", [])
    plain = isinstance(files, list) and not any("/" in str(file) or "\\" in str(file) for file in files)
    if not plain or settings.get("gguf_file") is not None:
        raise AttnscopeError(
            f"tokenizer_config.json of {repository.source} names other files to be read (fast_tokenizer_files or "
            "gguf_file): take that out, and put what they hold into tokenizer.json"
        )
    limit = settings.get("model_max_length")
    number = type(limit) is int or (isinstance(limit, float) and math.isfinite(limit))
    if limit is not None and (not number or limit < 1):
        raise AttnscopeError(
            f"tokenizer_config.json of {repository.source} says model_max_length {str(limit)[:100]!r}: expected a "
            "number of tokens"
        )


def _is_tokenizer(name: Any) -> bool:
    """Whether a name is that of a tokenizer, or of nothing that transformers could load in a tokenizer's place."""
    if name is None:
        return True
    if not isinstance(name, str):
        return False
    kinds = [getattr(transformers, f"{name.removesuffix('Fast')}{end}", None) for end in ("", "Fast")]
    return all(
        kind is None
        or hasattr(kind, "_backends")  # stands for one whose package is not installed, and says so
        or (isinstance(kind, type) and issubclass(kind, PreTrainedTokenizerBase))
        for kind in kinds
    )
