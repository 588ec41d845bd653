"""attnscope: where every attention head of a model looks and why, and the attention lineage to build and train."""

from typing import Any

import lazy_loader

from attnscope.verbs import VERBS

__version__ = "0.1.0"

_names = {"session": ["Session"], "support.errors": ["AttnscopeError"]}
for _name, _verb in VERBS.items():
    _names.setdefault(_verb.module, []).append(_name)
_load, __dir__, __all__ = lazy_loader.attach(
    __name__, submodules={"callbacks", "figures", "kernels", "lineage", "results", "testing"}, submod_attrs=_names
)


def __getattr__(name: str) -> Any:
    loaded = _load(name)
    if name in __all__:
        from attnscope.results import notebook  # noqa: F401 from here on, results show themselves  # pyright: ignore[reportUnusedImport]
    return loaded
