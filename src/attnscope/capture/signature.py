"""What the numbers of a command that reads texts with a model depend on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from attnscope.capture.placement import device_of
from attnscope.store.signature import Signature, package_versions, tokenizer_sha256

if TYPE_CHECKING:
    from attnscope.capture.loaded import LoadedModel


@runtime_checkable
class Hashed(Protocol):
    """What is read: texts, token ids, pairs."""

    def sha256(self) -> str:
        """SHA-256 of all of it."""
        ...


def signature_of(
    command: str,
    loaded: LoadedModel,
    corpus: Hashed,
    target: Hashed | None,
    settings: Mapping[str, Any],
    *,
    reader: Mapping[str, str] | None = None,
    packages: Sequence[str] = (),
) -> Signature:
    """Model, tokenizer, texts, settings, device and type, and the versions of packages."""
    where = {"device": device_of(loaded.model).type, "dtype": str(loaded.model.dtype).removeprefix("torch.")}
    if reader is None and loaded.tokenizer is not None:
        reader = {"sha256": tokenizer_sha256(loaded.tokenizer)}
    return Signature(
        command,
        model={"name": loaded.name, "class": type(loaded.model).__name__, **loaded.identity},
        tokenizer=None if reader is None else dict(reader),
        corpus={"sha256": corpus.sha256()},
        target=None if target is None else {"sha256": target.sha256()},
        settings={**settings, **where},
        versions=package_versions(*packages),
    )
