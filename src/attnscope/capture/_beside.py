"""What reads for a model and lies beside it (tokenizer, processors): where it is looked for, and how it is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.bundled import MODEL
from attnscope.capture._hub import out_of_reach
from attnscope.capture._inner import inner_model
from attnscope.capture._quiet import quiet
from attnscope.capture._repository import Repository, asking_trust
from attnscope.errors import AttnscopeError, explaining
from attnscope.store import short_hash

if TYPE_CHECKING:
    from attnscope.capture._model import Model

PREPROCESSORS = ("preprocessor_config.json", "processor_config.json")


def is_place(source: str) -> bool:
    """Whether a name can only be a place on this machine, as a hub id has at most one slash within.

    Examples
    --------
    >>> is_place("./gpt2"), is_place("openai-community/gpt2")
    (True, False)
    """
    return source.startswith((".", "/", "~")) or source.endswith("/") or source.count("/") > 1


def repository_beside(
    source: Model,
    given: str | Path | None,
    what: str,
    *,
    revision: str | None = None,
    more: str = "",
) -> Repository:
    """Where a tokenizer or a processor lies: where it was said to, else beside the model.

    Parameters
    ----------
    source
        The model; of an object, where it was loaded from.
    given
        Its own folder or hub id, if one was named; ``"bundled"`` is that of the bundled model.
    what
        Its name, for messages.
    revision
        Revision of the model on the hub.
    more
        Another way out, for a model object that comes from nowhere.

    Raises
    ------
    AttnscopeError
        If that place is not there, or nobody knows where the model object comes from.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> places = repository_beside(MODEL, None, "tokenizer"), repository_beside("gpt2", "bundled", "tokenizer")
    >>> [place.folder == MODEL for place in places]
    [True, True]
    """
    if given is not None:
        if is_place(str(given)) and not Path(given).exists():
            raise AttnscopeError(f"{given} does not exist: expected a folder with the {what}, or a hub id")
        return Repository.of(str(MODEL if given == "bundled" else given))
    inner: Any = inner_model(source)
    if isinstance(inner, str | Path):
        return Repository.of(str(inner), revision)
    advice = f"pass tokenizer=..., or the model's folder{more}"
    origin = str(inner.config.name_or_path or "")
    if not origin or (is_place(origin) and not Path(origin).is_dir()):
        raise AttnscopeError(f"a model object was given without its {what}: {advice}")
    try:
        return Repository.of(origin, getattr(inner.config, "_commit_hash", None))
    except AttnscopeError as error:
        raise AttnscopeError(
            f"no {what} was found beside {origin}, where the model is from: {advice}"
        ) from error


def load_preprocessor(
    repository: Repository, maker: Any, what: str, *, trust_remote_code: bool, **options: Any
) -> Any:
    """What turns images or sounds into a model's input, by one of transformers' Auto classes.

    Raises
    ------
    AttnscopeError
        If there is none, or it cannot be loaded.
    """
    source = repository.source
    if not any(repository.find(name) for name in PREPROCESSORS):
        raise AttnscopeError(
            f"{source} has no {what} ({PREPROCESSORS[0]}): save it there, or give its folder with --tokenizer"
        )
    advice = "Are its files whole, and the right ones?"
    with quiet(), explaining(f"the {what} of {source} cannot be loaded", advice), asking_trust(source):
        return maker.from_pretrained(
            source,
            revision=repository.commit,
            local_files_only=out_of_reach(),
            trust_remote_code=trust_remote_code,
            **options,
        )


def hash_of_settings(*settings: Any) -> str:
    """Short hash of all that a preprocessor is set to.

    Examples
    --------
    >>> hash_of_settings({"size": 8, "mean": 0.5}) == hash_of_settings({"mean": 0.5, "size": 8})
    True
    """
    return short_hash(json.loads(json.dumps(settings, default=str, sort_keys=True)))
