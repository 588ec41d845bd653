"""What a result depends on, in the manner of sacreBLEU's signature."""

from __future__ import annotations

import hashlib
import json
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("attnscope", "torch", "transformers", "tokenizers", "numpy", "numba", "scikit-learn")


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that the numbers come from.

    Examples
    --------
    >>> "torch" in package_versions()
    True
    """
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def short_hash(signature: Any) -> str:
    """Eight hexadecimal digits that stand for a signature.

    Examples
    --------
    >>> short_hash({"model": "m"}) == short_hash({"model": "m"})
    True
    """
    text = json.dumps(signature, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def tokenizer_sha256(tokenizer: Any) -> str:
    """SHA-256 of everything that a fast tokenizer does."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
