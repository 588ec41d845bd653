"""Names of a package whose modules are loaded when they are first asked for: PyTorch takes seconds."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def on_demand(package: str, **names: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package (PEP 562).

    Parameters
    ----------
    package
        Its ``__name__``.
    **names
        By the name of each module within it, the names that it has, with spaces between.

    Examples
    --------
    >>> on_demand("attnscope.statistics", _labels="direction name_profile")("direction").__module__
    'attnscope.statistics._labels'
    """
    module_of = {name: module for module, listed in names.items() for name in listed.split()}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)

    return load
