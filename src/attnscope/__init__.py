"""attnscope: where every attention head of a model looks and why, and the attention lineage to build and train."""

from typing import Any

import lazy_loader

__version__ = "0.1.0"

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # what `__init__.pyi` names


def __getattr__(name: str) -> Any:
    loaded = _load(name)
    if name in __all__:
        from attnscope.results import notebook  # noqa: F401 from here on, results show themselves  # pyright: ignore[reportUnusedImport]
    return loaded
