"""Signatures of results, like sacreBLEU's: model, text, settings and versions."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from importlib import metadata
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attnscope.support.errors import AttnscopeError

PACKAGES = ("attnscope", "torch", "transformers", "tokenizers", "numpy", "numba")
version = cache(metadata.version)  # which reads a file each time
_SOFTWARE = """@software{{attnscope,
  author  = {{{{The attnscope developers}}}},
  title   = {{attnscope: where every attention head of a model attends, why, and whether it matters}},
  version = {{{version}}},
  year    = {{2026}}
}}
"""
_FEW = 3  # entries of a list that the short line names one by one


@dataclass(frozen=True)
class Signature:
    """All that a result depends on: equal signatures, equal numbers.

    >>> first = Signature("scan", model={"name": "small"}, settings={"window": 64}, versions={"attnscope": "0.1.0"})
    >>> first.format()
    'scan|model:small|sha:30268734|window:64|version:0.1.0'
    >>> Signature.from_json(first.to_json()) == first
    True
    >>> first.differences(Signature("scan", model={"name": "small"}, settings={"window": 32}, versions=first.versions))
    ['settings.window is 64, not 32']
    """

    command: str = ""  # ``scan``, ``explain``, ...; empty for a part of another signature
    model: Mapping[str, Any] | str | None = None  # ``name``, ``class``, and ``sha256`` of its files or the hub's commit
    tokenizer: Mapping[str, Any] | str | None = None  # its ``sha256``
    corpus: Mapping[str, Any] | None = None  # texts: ``sha256`` of each side
    target: Mapping[str, Any] | None = None
    text: Mapping[str, Any] | None = None  # parallel text: ``pairs`` and hashes
    systems: Mapping[str, Any] | None = None  # of a comparison: the signature of each one's translations
    scores: Mapping[str, Any] | None = None  # of a comparison: sacreBLEU's signature of each metric
    settings: Mapping[str, Any] | None = None  # arguments that change numbers
    versions: Mapping[str, Any] | None = None  # of Python and the packages that compute

    def __post_init__(self) -> None:
        for field in fields(self):  # a copy, equal to the same read from JSON
            object.__setattr__(self, field.name, json.loads(json.dumps(getattr(self, field.name))))

    @classmethod
    def of(cls, parts: Signature | Mapping[str, Any]) -> Signature:
        """A signature from its parts, as `to_dict` returns them; a signature is returned unchanged."""
        if isinstance(parts, Signature):
            return parts
        named = ("model", "tokenizer")  # what may be a name alone
        for name, part in parts.items():
            kinds = (str,) if name == "command" else (str, Mapping) if name in named else (Mapping,)
            if part is not None and not isinstance(part, kinds):
                raise AttnscopeError(
                    f"{name} of a signature is {str(part)[:40]!r}: was it written by another version of attnscope?"
                )
        unknown = parts.keys() - {field.name for field in fields(cls)}
        if unknown:
            raise AttnscopeError(
                f"unknown part {min(unknown)!r} in a signature: was it written by another version of attnscope?"
            )
        return cls(**{name: part for name, part in parts.items() if part is not None})

    @classmethod
    def from_json(cls, text: str) -> Signature:
        """A signature from what `to_json` wrote: a result's attribute ``signature``, or ``run.json``."""
        return cls.of(json.loads(text))

    def to_dict(self) -> dict[str, Any]:
        """Its parts by name, without empty ones."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: part for name, part in parts.items() if part not in (None, "")}

    def to_json(self) -> str:
        """JSON on one line, the same for equal signatures."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @property
    def short(self) -> str:
        """Eight hexadecimal digits of its hash, which end the name of the run's folder."""
        return short_hash(self.to_dict())

    def format(self) -> str:
        """One line to cite, as sacreBLEU's: ``key:value`` with bars between; long lists are counted."""
        entries: dict[str, Any] = {"model": self.name, "systems": "+".join(self.systems or {}), "sha": self.short}
        entries |= dict(sorted((self.settings or {}).items())) | {"version": (self.versions or {}).get("attnscope")}
        line = [f"{name}:{_written(value)}" for name, value in entries.items() if value is not None]
        return "|".join(part.replace("|", "/") for part in (self.command, *line) if not part.endswith(":"))

    @property
    def bibtex(self) -> str:
        """attnscope, in this version, as BibTeX."""
        return _SOFTWARE.format(version=(self.versions or {}).get("attnscope", ""))

    @property
    def name(self) -> str:
        """The model's name; empty where there is none."""
        return str(self.model.get("name", "")) if isinstance(self.model, Mapping) else self.model or ""

    def differences(self, other: Signature) -> list[str]:
        """The differences from another signature, in words."""
        return _differences(self.to_dict(), other.to_dict())


def package_versions(*more: str) -> dict[str, str]:
    """Versions of Python and of the packages that the numbers come from, and of `more`."""
    versions = {"python": platform.python_version()}
    for name in (*PACKAGES, *more):
        try:
            versions[name] = version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def short_hash(value: Any) -> str:
    """Eight hexadecimal digits of the hash of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:8]


def tokenizer_sha256(tokenizer: Any) -> str:
    """SHA-256 of all that decides a tokenizer's output; for one in Python, of its class, settings and files."""
    if getattr(tokenizer, "is_fast", False):
        return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
    places = {"name_or_path", "vocab", *tokenizer.vocab_files_names}  # files, hashed below by what is in them
    settings = {name: value for name, value in tokenizer.init_kwargs.items() if name not in places}
    digest = hashlib.sha256(f"{type(tokenizer).__name__} {sorted(settings.items())}".encode())
    digest.update(json.dumps(tokenizer.get_added_vocab(), sort_keys=True).encode())
    with TemporaryDirectory() as folder:
        takes_prefix = "filename_prefix" in signature(tokenizer.save_vocabulary).parameters
        prefix = {"filename_prefix": None} if takes_prefix else {}  # ESM's requires one
        with suppress(NotImplementedError):
            tokenizer.save_vocabulary(folder, **prefix)
        files = sorted(Path(folder).iterdir())
        for file in files:
            digest.update(file.name.encode() + file.read_bytes())
    if not files:  # a class that needs none, such as one of the caller's
        digest.update(json.dumps(tokenizer.get_vocab(), sort_keys=True).encode())
    return digest.hexdigest()


def _written(value: Any) -> str:
    value = [*value] if isinstance(value, dict) else value
    if isinstance(value, list):
        between = "," if any("+" in str(one) for one in value) else "+"  # of sets of heads
        return str(len(value)) if len(value) > _FEW else between.join(map(str, value))
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _differences(first: Any, other: Any, at: str = "") -> list[str]:
    """The differences of two signatures, in words."""
    if isinstance(first, dict) and isinstance(other, dict):
        keys = sorted({*first, *other})  # pyright: ignore[reportUnknownArgumentType]
        return [
            text
            for key in keys
            for text in _differences(first.get(key), other.get(key), f"{at}.{key}" if at else str(key))  # pyright: ignore[reportUnknownMemberType]
        ]
    return [] if first == other else [f"{at} is {_cut(first)}, not {_cut(other)}"]


def _cut(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004
