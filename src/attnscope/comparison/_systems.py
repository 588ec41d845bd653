"""The systems of a comparison: settings to train by, or folders that are trained already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnscope.checks import check_kind, unexpected
from attnscope.corpus import shown
from attnscope.errors import AttnscopeError
from attnscope.store import OwnedFolder
from attnscope.training import PRESETS, check_model, finished_metrics
from attnscope.training.config import SETTINGS, TrainConfig, read_config

SYSTEMS = "systems"  # where a comparison trains what is not trained yet


@dataclass(frozen=True)
class System:
    """One system.

    Attributes
    ----------
    name
        By which the table, the page and the files call it.
    folder
        Where the model lies, or will.
    config
        Its settings; None where something else than `attnscope train` made the folder.
    given
        Whether the folder was given, to be taken as it is.
    """

    name: str
    folder: Path
    config: TrainConfig | None
    given: bool

    @property
    def trained(self) -> bool:
        """Whether there is nothing left to train."""
        return self.given or (self.config is not None and is_trained(self.config, self.folder))


def read_systems(
    systems: Sequence[str | Path] | Mapping[str, str | Path | TrainConfig] | None, out: Path
) -> list[System]:
    """Settings and folders, each under a name of its own.

    Parameters
    ----------
    systems
        YAML files of settings and folders of trained models, called by their names without the suffix; or a mapping
        from names. None takes those of `attnscope.training._presets`.
    out
        Folder of the comparison, in which what is not trained yet will lie.

    Raises
    ------
    AttnscopeError
        If there is none, a file or folder is not there, a folder holds no model, or settings are not of a translation
        model.

    Examples
    --------
    >>> [system.name for system in read_systems(None, Path("out"))]
    ['fixed vector', 'additive', 'Transformer']
    """
    if systems is None:
        systems = PRESETS
    if not isinstance(systems, list | tuple | Mapping):
        raise unexpected(
            "files of settings, trained folders, or a mapping from names to them", systems, "systems"
        )
    pairs = (
        systems.items()
        if isinstance(systems, Mapping)
        else ((_called(Path(system)), system) for system in systems)
    )
    named: list[tuple[str, str | Path | TrainConfig]] = list(pairs)
    if not named:
        raise AttnscopeError("there is no system to compare: give YAML files of settings, or trained folders")
    folders = [Path(given).resolve() for _, given in named if isinstance(given, str | Path)]
    twice = [folder for folder in folders if folders.count(folder) > 1]
    if twice:
        raise AttnscopeError(f"{twice[0].name} is given twice: each system once")
    named_systems: dict[str, System] = {}
    for name, given in named:
        own = _unique(name, list(named_systems))
        named_systems[own] = _read(own, given, out)
    return list(named_systems.values())


def check_untrained(systems: Sequence[System]) -> None:
    """Refuse settings that cannot be trained by, of every system, before hours of training of the first.

    Raises
    ------
    AttnscopeError
        With the name of the system: if its sizes do not go together, or a text is not there.

    Examples
    --------
    >>> config = TrainConfig(model="recurrent", attention="dot", encoder_width=64, decoder_width=64)
    >>> check_untrained([System("dot", Path("/nowhere"), config, given=False)])
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: dot: dot-product attention compares ...
    """
    for system in systems:
        config = system.config
        if system.trained or config is None:
            continue
        try:
            check_model(config, config.vocabulary)
        except AttnscopeError as error:
            raise AttnscopeError(f"{system.name}: {error}") from None
        texts = (config.source, config.target, config.valid_source, config.valid_target)
        for text in texts:
            if text is not None and not text.exists():
                raise AttnscopeError(
                    f"{system.name}: {shown(text)}: no such file: expected a text to train by"
                )


def is_trained(config: TrainConfig, folder: Path) -> bool:
    """Whether the folder holds the end of a training with these settings.

    Examples
    --------
    >>> is_trained(TrainConfig(), Path("/nowhere"))
    False
    """
    return finished_metrics(config, OwnedFolder(folder, "train").look()) is not None


def _read(name: str, given: str | Path | TrainConfig, out: Path) -> System:
    if Path(name).name != name or name.startswith(".") or not name.isprintable() or "\\" in name:
        raise AttnscopeError(
            f"a system cannot be called {name!r}, as files are named by it: rename the file or folder, or give a "
            "name in Python's mapping"
        )
    own = OwnedFolder(out, "compare").path_of(f"{SYSTEMS}/{name}")
    check_kind(
        "a file of settings, a trained folder or a TrainConfig", str, Path, TrainConfig, **{name: given}
    )
    if isinstance(given, TrainConfig):
        return System(name, own, _of_translation(given, name), given=False)
    path = Path(given)
    if not path.exists():
        raise AttnscopeError(
            f"{path}: no such file or folder: give YAML files of settings, or trained folders"
        )
    if not path.is_dir():
        return System(name, own, _of_translation(read_config(path), path), given=False)
    if not (path / "config.json").is_file():
        raise AttnscopeError(
            f"{path} holds no finished model (no config.json): give a YAML file of settings, or finish the training by "
            "`attnscope train`"
        )
    settings = path / SETTINGS
    config = _of_translation(read_config(settings), path) if settings.is_file() else None
    return System(name, path, config, given=True)


def _of_translation(config: TrainConfig, where: str | Path) -> TrainConfig:
    if config.model == "masked-lm":
        raise AttnscopeError(
            f"{where} is of a masked language model: expected settings of a translation model"
        )
    return config


def _called(path: Path) -> str:
    return path.resolve().name if path.is_dir() else path.stem


def _unique(name: str, taken: Sequence[str]) -> str:
    number, own = 1, name
    while own.casefold() in map(str.casefold, taken):  # some file systems take them for one
        number += 1
        own = f"{name}-{number}"
    return own
