"""attnscope: measure where every attention head of a transformer attends, why, and whether it matters."""

from collections.abc import Callable
from typing import Any

import lazy_loader

__version__ = "0.1.0"


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package: what its stub names is loaded when it is used."""
    load, names, public = lazy_loader.attach_stub(package, file)

    def attribute(name: str) -> Any:
        try:
            loaded = load(name)
        except AttributeError as error:
            from difflib import get_close_matches

            from attnscope.catalogue import where_to_find

            nearest = "".join(f": did you mean {near}?" for near in get_close_matches(name, public, 1))
            raise AttributeError(where_to_find(name) or f"{error}{nearest}") from None
        if name in public:
            from attnscope.results import notebook  # noqa: F401 from here on, results show themselves  # pyright: ignore[reportUnusedImport]
        return loaded

    return attribute, names, public


__getattr__, __dir__, __all__ = attach(__name__, __file__)
