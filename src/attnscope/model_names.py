"""Several models as one argument: a list, names with commas between, a pattern, or a folder of checkpoints."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from glob import glob
from itertools import takewhile
from pathlib import Path
from typing import Any

from attnscope.support.errors import AttnscopeError

#: Of models in a folder: their own, and those of an adapter.
_CONFIGS = ("config.json", "adapter_config.json")
_STEP = re.compile(r"(?:(?:global[-_]?)?step|checkpoint|ckpt|update|epoch|iter(?:ation)?)?[-_]?(\d+)", re.IGNORECASE)


def models_of(value: Any) -> dict[str, Any] | None:
    """Several models by their names; None for one model."""
    if isinstance(value, Mapping):
        models: Any = value
        named = {str(name): model for name, model in models.items()}
    else:
        listed = _listed(str(value)) if isinstance(value, str | Path) else value
        if not isinstance(listed, list | tuple):
            return None
        several: Sequence[Any] = listed
        named = dict(zip(_names(several), several, strict=True))
    if not named:
        raise AttnscopeError("model is empty; expected a model, or several in a list")
    if any(model is None for model in named.values()):
        raise AttnscopeError("model is a list with None; expected a model, or several in a list")
    return named


def step_of(name: str) -> int | None:
    """The step in the name of a checkpoint, such as checkpoint-500 or pythia-70m@step1000; None for other names."""
    match = _STEP.fullmatch(name.rpartition("@")[2])
    return int(match[1]) if match else None


def _listed(text: str) -> list[str] | None:
    """The models that a text names, checkpoints in the order of their steps; None for one model."""
    path = Path(text)
    if "," in text and not path.exists():
        parts = [part.strip() for part in text.split(",") if part.strip()]
        return parts if len(parts) > 1 and not any(" " in part for part in parts) else None
    if "*" in text and not path.exists():
        matches = [match for match in glob(text) if _is_model(Path(match))]  # noqa: PTH207 of any folder
        if not matches:
            raise AttnscopeError(f"model is {text!r}, and no folder of that name has a model ({_CONFIGS[0]})")
        return sorted(matches, key=_order)
    if not path.is_dir() or _is_model(path):
        return None
    steps = [str(child) for child in path.iterdir() if step_of(child.name) is not None and _is_model(child)]
    return sorted(steps, key=_order) or None


def _is_model(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _CONFIGS)


def _order(path: str) -> tuple[int, str]:
    return step_of(Path(path).name) or 0, path


def _names(models: Sequence[Any]) -> list[str]:
    """A name for each model: that of its folder or repository, with the folders above where names are shared."""
    names = [_name(model) for model in models]
    if len({*names}) < len(names) and all(isinstance(model, str | Path) for model in models):
        parts = [Path(model).parts for model in models]
        shared = sum(1 for _ in takewhile(lambda level: len({*level}) == 1, zip(*parts, strict=False)))
        names = ["/".join(path[min(shared, len(path) - 1) :]) for path in parts]
    times, seen = Counter(names), Counter[str]()
    for at, name in enumerate(names):
        seen[name] += 1
        names[at] = name if times[name] == 1 else f"{name} {seen[name]}"
    return names


def _name(model: Any) -> str:
    if isinstance(model, str | Path):
        return Path(model).name
    saved = getattr(getattr(model, "config", None), "_name_or_path", "")
    return getattr(model, "name", "") or Path(saved).name or type(model).__name__
