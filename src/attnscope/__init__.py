"""attnscope: where every attention head of a model looks and why, and the attention lineage to build and train."""

import importlib
import sys
from typing import Any

import lazy_loader

__version__ = "0.1.0"

_load, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules={"figures", "kernels", "lineage", "results", "testing"},
    submod_attrs={
        "comparison.contrasts": ["contrasts"],
        "comparison.diff": ["diff"],
        "detection.examples": ["examples"],
        "detection.find": ["find"],
        "detection.roles": ["roles"],
        "explanation.explain": ["explain"],
        "intervention.intervene": ["intervene"],
        "intervention.patch": ["patch"],
        "lineage.align": ["align"],
        "lineage.compare": ["compare"],
        "lineage.score": ["score"],
        "lineage.train": ["train"],
        "lineage.translate": ["translate"],
        "lineage.walk": ["walk"],
        "measure.generation": ["generate"],
        "measure.raw": ["received", "weights"],
        "measure.scan": ["scan"],
        "measure.watched": ["measure_weights", "watch"],
        "results.open": ["open_run", "runs"],
        "results.view": ["view"],
        "session": ["Session"],
        "support.errors": ["AttnscopeError"],
        "testing.expect": ["expect"],
    },
)


def __getattr__(name: str) -> Any:
    loaded = _load(name)
    if name in __all__:
        from attnscope.results import notebook  # noqa: F401 from here on, results show themselves  # pyright: ignore[reportUnusedImport]
    return loaded


class _Torchvision:
    """One that cannot be imported counts as none when transformers looks for it, which needs it for images alone."""

    @classmethod
    def find_spec(cls, name: str, *_: Any) -> None:
        if name == "transformers":
            try:
                importlib.import_module("torchvision")
            except ModuleNotFoundError:
                pass
            except Exception:  # noqa: BLE001 what it raises depends on what does not fit
                sys.modules["torchvision"] = None  # pyright: ignore[reportArgumentType]


sys.meta_path.insert(0, _Torchvision)
