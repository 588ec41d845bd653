"""Comparison of translation systems on one text."""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from scipy import special

from attnscope.capture.borrow import LoadedModel
from attnscope.capture.load import load_model
from attnscope.read.files import lines_of, shown
from attnscope.report.signature import Signature, package_versions, tokenizer_sha256
from attnscope.statistics.intervals import interval
from attnscope.statistics.units import LEAST
from attnscope.store.files import SUFFIX, explained, json_bytes
from attnscope.store.folder import OwnedFolder
from attnscope.support.checks import check_kind
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell
from attnscope.support.state import own_threads
from attnscope_lineage.alignment import attends, best_aligning_head
from attnscope_lineage.checkpoints import LOG, check_model, read_log
from attnscope_lineage.config import PRESETS, SCHEMES, SETTINGS, TrainConfig, config_bytes, read_config
from attnscope_lineage.data import HELD_OUT, collate, encode_pairs, training_pairs
from attnscope_lineage.links import Forcing
from attnscope_lineage.parallel_text import Lines, ParallelText, TaskText, generate_task, lines_of_text, read_parallel
from attnscope_lineage.scores import NO_ATTENTION
from attnscope_lineage.training import finished_metrics, threads_of_one
from attnscope_lineage.translation import translate_lines
from attnscope_lineage.verbs.train import train

_SHOWN_WORDS = 24  # of each side of the sentence pair in the picture
_NODES = ("scores", "curves", "alignment", "gradients")
_OF_ALIGNMENT = (  # of `AligningHead.rates`
    *("error_rate", "error_rate_lower", "error_rate_upper", "precision", "recall"),
    *("diagonal", "chance", "chance_level"),
)
_BUCKETS = 6  # of length, about as many as a curve needs
_TENTHS, _LONG = 10, 100  # parts of a source; number of sentences, the longest ones, whose gradients are measured
FORWARD = ", forward state only"  # after the name of a fixed vector

SEED = 12345  # of the bootstrap, as `attnscope_lineage.score` has it


def load_comparison(folder: OwnedFolder) -> xr.DataTree:
    """The tree that `compare` returned, from its folder."""
    tree = xr.DataTree.from_dict({name: folder.arrays(f"{name}{SUFFIX}") for name in _NODES})
    signature = Signature.from_json(folder.read("run.json").decode())
    tree.attrs = {"signature": signature.to_json(), "run": str(folder.path)}
    return tree


def length_limits(sources: Sequence[str], length_in: str = "words") -> list[int]:
    """Round limits of length that divide a text into about six buckets, the last one not empty."""
    lengths = [len(line.split()) if length_in == "words" else len("".join(line.split())) for line in sources]
    reach = float(np.quantile(lengths, 0.98))  # the very longest few do not make a bucket
    wide = next(step * 10**power for power in range(9) for step in (1, 2, 5) if reach <= _BUCKETS * step * 10**power)
    return [limit for limit in range(wide, wide * _BUCKETS, wide) if limit < reach] or [wide]


def shown_pair(text: ParallelText, line: int | None) -> int:
    if line is not None:
        if not 1 <= line <= len(text):
            raise AttnscopeError(f"there is no line {line}: the text has lines 1 to {len(text)}")
        return line - 1
    sizes = [max(len(a.split()), len(b.split())) for a, b in zip(text.source, text.target, strict=True)]
    short = [i for i, size in enumerate(sizes) if size <= _SHOWN_WORDS]
    return max(short, key=lambda i: sizes[i]) if short else int(np.argmin(sizes))


def by_system(systems: Sequence[System], outputs: dict[str, SystemOutput], text: ParallelText) -> xr.Dataset:
    """Properties of each system other than its scores."""
    records = [output.record for output in outputs.values()]
    efforts = [training_effort(system.folder) for system in systems]
    values: dict[str, list[float]] = {
        "parameters": [record["parameters"] for record in records],
        "sentences_cut": [record["cut"] for record in records],
        "sentences_per_second": [len(text) / record["seconds"] for record in records],
        **{name: [effort[name] for effort in efforts] for name in efforts[0]},
    }
    for name in _OF_ALIGNMENT if isinstance(text, TaskText) else ():
        values[f"alignment_{name}"] = [record["aligned"].get(name, np.nan) for record in records]
    return xr.Dataset({name: ("system", numbers) for name, numbers in values.items()}, {"system": list(outputs)})


def alignment_of(text: ParallelText, shown: int, outputs: dict[str, SystemOutput]) -> xr.Dataset:
    source, target = text.source[shown].split(), text.target[shown].split()
    blank = np.full((len(target), len(source)), np.nan)
    weights = [blank if output.weights is None else output.weights for output in outputs.values()]
    dataset = xr.Dataset(
        {
            "weights": (("system", "target_word", "source_word"), np.stack(weights)),
            "read_from": ("system", [output.read_from for output in outputs.values()]),
            "translation": ("system", [output.lines[shown] for output in outputs.values()]),
            "source": ("source_word", source),
            "target": ("target_word", target),
        },
        coords={"system": list(outputs)},
        attrs={"line": shown + 1},
    )
    if isinstance(text, TaskText):
        gold = np.zeros(blank.shape, dtype=bool)
        for at, by in text.alignments[shown]:
            gold[by, at] = True
        dataset["gold"] = (("target_word", "source_word"), gold)
    return dataset


def gradient_shares(loaded: LoadedModel, text: ParallelText, *, forward_only: bool = False) -> np.ndarray:
    """Share of each tenth of a source in the gradient of its loss, ``(sentence, tenth)``.

    With `forward_only`, of a recurrent encoder the states that read backwards pass no gradient.
    """
    model: Any = loaded.model
    pairs = encode_pairs(loaded.tokenizer, text, longest=int(loaded.tokenizer.model_max_length))
    order = sorted(range(len(pairs.index)), key=lambda i: -len(pairs.source[i]))
    shares: list[np.ndarray] = []
    for i in [i for i in order if len(pairs.source[i]) > _TENTHS][:_LONG]:
        batch = {k: v.to(model.device) for k, v in collate([pairs.source[i]], [pairs.target[i]]).items()}
        embedded: list[torch.Tensor] = []

        def note(*arguments: Any, embedded: list[torch.Tensor] = embedded) -> None:
            if not embedded:  # the decoder calls it too
                embedded.append(arguments[2].requires_grad_())

        with ExitStack() as hooks, torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            hooks.callback(model.get_input_embeddings().register_forward_hook(note).remove)
            if forward_only:
                hooks.callback(model.get_encoder().register_forward_hook(_without_backward_states).remove)
            (gradient,) = torch.autograd.grad(model(**batch).loss, embedded)
        norms = gradient[0, :-1].norm(dim=-1).double().cpu().numpy()  # without </s>
        tenths = np.bincount(np.arange(len(norms)) * _TENTHS // len(norms), norms, _TENTHS)
        shares.append(tenths / (tenths.sum() or 1.0))
    return np.array(shares).reshape(-1, _TENTHS)


def _without_backward_states(*arguments: Any) -> Any:
    """A hook of a recurrent encoder: the second half of each annotation passes no gradient."""
    output = arguments[2]
    first, second = output.last_hidden_state.chunk(2, -1)
    output.last_hidden_state = torch.cat([first, second.detach()], -1)
    return output


def reach_of_mean(values: np.ndarray) -> np.ndarray:
    """Half of Student's 95% interval of the means of columns ``(unit, ...)``; NaN of one unit."""
    count = len(values)
    if count == 1:
        return np.full(values.shape[1:], np.nan)
    return special.stdtrit(count - 1, 0.975) * values.std(0, ddof=1) / math.sqrt(count)


def gradient_dataset(outputs: Mapping[str, SystemOutput]) -> xr.Dataset:
    """Mean shares with intervals over sentences."""
    rows = {name + end: of for name, output in outputs.items() for end, of in output.gradients.items()}
    share, low, high = (np.full((len(rows), _TENTHS), np.nan) for _ in range(3))
    for row, of in enumerate(rows.values()):
        if len(of) >= LEAST:
            share[row], (low[row], high[row]) = of.mean(0), interval(of, range(len(of)))
    by = ("system", "tenth")
    variables = {"share": (by, share), "lower": (by, low), "upper": (by, high)}
    coordinates = {"system": list(rows), "tenth": np.arange(1, _TENTHS + 1)}
    counts = ("system", np.array([len(of) for of in rows.values()]))
    return xr.Dataset({**variables, "sentences": counts}, coordinates)


_METRICS = ("bleu", "loss")
_SPENT = ("tokens", "seconds")


def learning_curves(folders: Mapping[str, Sequence[Path]]) -> xr.Dataset:
    """The progress of the trainings of each system, one for each seed, at each validation."""
    curves = [[_curve(read_log(folder)) for folder in several] for several in folders.values()]
    longest = max(len(curve["updates"]) for several in curves for curve in several)

    def padded(name: str) -> np.ndarray:
        empty = np.full(longest, np.nan)
        return np.array([[[*curve[name], *empty[len(curve[name]) :]] for curve in several] for several in curves])

    by, found = ("system", "validation"), dict[str, Any]()
    for name in (*_METRICS, "updates", *_SPENT):
        each = padded(name)
        found[name] = by, each.mean(1)
        if name in _METRICS:
            found |= _with_ends(name, by, each)
    losses = [[curve["loss"] for curve in several] for several in curves]
    means = np.array([[loss.mean() if len(loss) else np.nan for loss in several] for several in losses])
    for name, each in {"mean_loss": means, "difference": means - means[:1]}.items():
        found |= {name: (by[:1], each.mean(1))} | _with_ends(name, by[:1], each)
    found["loss_of_seed"] = ("system", "seed", "validation"), padded("loss")
    return xr.Dataset(found, coords={"system": list(folders)})


def _with_ends(name: str, by: tuple[str, ...], each: np.ndarray) -> dict[str, Any]:
    """Both ends of the interval over seeds, the second axis."""
    reach = reach_of_mean(np.moveaxis(each, 1, 0))
    return {f"{name}_lower": (by, each.mean(1) - reach), f"{name}_upper": (by, each.mean(1) + reach)}


def training_effort(folder: Path) -> dict[str, float]:
    """Cost of a training: median rate of the log, target tokens and seconds in total; NaN without a log."""
    lines = [line for line in read_log(folder) if "tokens_per_second" in line]
    rates, last = [line["tokens_per_second"] for line in lines], lines[-1] if lines else {}
    return {
        "training_tokens_per_second": float(np.median(rates)) if rates else np.nan,
        "training_tokens": float(last.get("tokens", np.nan)),
        "training_seconds": float(last.get("seconds", np.nan)),
    }


def _curve(log: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    validations = [line for line in log if "valid_loss" in line]
    steps = [{"update": 0, "tokens": 0, "seconds": 0.0}, *(line for line in log if "tokens" in line)]
    updates = np.array([line["update"] for line in validations], dtype=np.float64)
    at = [line["update"] for line in steps]
    spent = {name: np.interp(updates, at, [line[name] for line in steps]) for name in _SPENT}
    metrics = {
        name: np.array([line.get(f"valid_{name}", np.nan) for line in validations], dtype=np.float64)
        for name in _METRICS
    }
    return {"updates": updates, **spent, **metrics}


def train_at_once(systems: Sequence[System], tell: Tell) -> bool:
    """Train in processes of their own, twice as many at a time as there are threads for; false if for one only."""
    configs = [system.config for system in systems if system.config is not None]
    most = threads_of_one() // max((config.threads or threads_of_one() for config in configs), default=1)
    if most < 2 or len(systems) < 2:  # noqa: PLR2004 nothing to do at once
        return False
    memory = os.environ | dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), str(2**30))  # keep blocks
    waiting, running = list(zip(systems, configs, strict=True)), dict[str, subprocess.Popen[bytes]]()
    with tempfile.TemporaryDirectory() as place:
        try:
            while waiting or running:
                while waiting and len(running) < 2 * most:  # three on two processors: none waits for the last
                    system, config = waiting.pop(0)
                    folder = system.folder
                    file = Path(place) / f"{folder.name}.yaml"
                    file.write_bytes(config_bytes(config))
                    words = [sys.executable, "-m", "attnscope", "train", file, "--out", folder, "--device", "cpu"]
                    with file.with_suffix(".txt").open("wb") as told:
                        running[folder.name] = subprocess.Popen(  # noqa: S603
                            words, stdout=told, stderr=subprocess.STDOUT, env=memory
                        )
                time.sleep(0.2)
                for name in [name for name, process in running.items() if process.poll() is not None]:
                    if running.pop(name).returncode:
                        told = (Path(place) / f"{name}.txt").read_text(encoding="utf-8").split("\n")
                        why = " ".join(told[-3:]).strip().removeprefix("attnscope: ")
                        raise AttnscopeError(f"{name}: {why}")
                at = [_updates(folder.folder) / config.updates for folder, config in zip(systems, configs, strict=True)]
                tell(Progress(f"train {', '.join(running)}", TRAINING * sum(at) / len(at)))
        finally:
            for process in running.values():
                process.terminate()
                process.wait()
    return True


def _updates(folder: Path) -> int:
    """Updates of a training so far, by its log, whose last line may be unfinished."""
    lines = (folder / LOG).read_bytes().split(b"\n")[:-1] if (folder / LOG).exists() else []
    return max((json.loads(line)["update"] for line in lines), default=0)


TRAINING, _TRANSLATING = 0.85, 0.1  # shares of a system's work, about; the rest is aligning
MAKE_ROOM = "Free some disk space and repeat the command"
_log = logging.getLogger("attnscope")


@dataclass(frozen=True, eq=False)
class SystemOutput:
    """The output of one system."""

    lines: list[str]  # its translations
    # ``signature`` (model, text, settings and versions), ``parameters`` (how many were learned), ``seconds`` of
    # translating, ``cut`` (sentences longer than the model was trained for); ``aligned`` against gold alignments:
    # ``layer``, ``head`` and rates, empty where there are none or the system has no attention
    record: dict[str, Any]
    weights: np.ndarray | None  # ``(target word, source word)`` on the shown pair; None without attention
    read_from: str  # the heads that they are of, in words
    gradients: dict[str, np.ndarray]  # ``(sentence, tenth)``: see `gradient_shares`; by the end of a name


@dataclass(frozen=True)
class Work:
    """One system after the other on one text; ``translations/NAME.txt`` and ``.json`` have its lines and its record."""

    folder: OwnedFolder
    text: ParallelText  # to translate
    shown: int  # number of the pair whose alignment is kept
    beams: int  # as in `attnscope_lineage.compare`
    threads: int | None
    device: str | None
    tell: Tell

    def train(self, system: System) -> None:
        """Train the system, or find it trained."""
        if not system.trained and system.config is not None:
            changed = {"threads": self.threads, "device": self.device}
            train(
                system.config,
                system.folder,
                progress=lambda at: self.tell(Progress(f"train {system.name}", TRAINING * at.share, at.details)),
                **{name: value for name, value in changed.items() if value is not None},
            )

    def output_of(self, system: System) -> SystemOutput:
        """Translate and align with a trained system, skipping finished steps."""
        usual = threads_of_one() if system.config is None else system.config.threads
        with own_threads(self.threads or usual or threads_of_one()):
            loaded = load_model(system.folder, device=self.device)
            if not loaded.model.config.is_encoder_decoder:
                raise AttnscopeError(
                    f"{system.folder} contains a {type(loaded.model).__name__}; expected a translation model"
                )
            lines, record = self._stored(system, loaded) or self._translate(system, loaded)
            shares = {"": gradient_shares(loaded, self.text)}
            if not attends(loaded.model):
                shares[FORWARD] = gradient_shares(loaded, self.text, forward_only=True)
            return SystemOutput(lines, record, *self._weights(loaded, record["aligned"]), shares)

    def _signature(self, loaded: LoadedModel) -> dict[str, Any]:
        return Signature(
            model=loaded.identity,
            tokenizer=tokenizer_sha256(loaded.tokenizer),
            text={"pairs": len(self.text), "sha256": self.text.sha256()},
            settings={"beams": self.beams, "device": loaded.model.device.type},
            versions=package_versions(),
        ).to_dict()

    def _stored(self, system: System, loaded: LoadedModel) -> tuple[list[str], dict[str, Any]] | None:
        """The output of an earlier run with the same model, text and settings."""
        file, record = system.files
        if self.folder.damaged([file, record] if {file, record} <= self.folder.files.keys() else []):
            _log.warning("the translations of %s are damaged and will be recomputed", system.name)
            self.folder.forget([file, record])
        if not {file, record} <= self.folder.files.keys():
            return None
        stored = json.loads(self.folder.read(record))
        if stored["signature"] != self._signature(loaded):
            return None
        return lines_of(self.folder.read(file).decode()), stored

    def _translate(self, system: System, loaded: LoadedModel) -> tuple[list[str], dict[str, Any]]:
        """Translate the text and store the result; on the generated task, evaluate the alignments."""
        name = f"translate {system.name}"
        self.tell(Progress(name, TRAINING))
        before = time.perf_counter()
        translations = translate_lines(
            loaded.model,
            loaded.tokenizer,
            self.text.source,
            beams=self.beams,
            overlong="cut",
            progress=lambda at: self.tell(Progress(name, TRAINING + _TRANSLATING * at.share, at.details)),
        )
        seconds = time.perf_counter() - before
        best = None
        if isinstance(self.text, TaskText) and attends(loaded.model):
            self.tell(Progress(f"align {system.name}", TRAINING + _TRANSLATING))
            best = best_aligning_head(loaded.model, loaded.tokenizer, self.text)
        record: dict[str, Any] = {
            "signature": self._signature(loaded),
            "parameters": sum(parameter.numel() for parameter in loaded.model.parameters()),
            "seconds": seconds,
            "cut": sum(left_out > 0 for left_out in translations.left_out),
            "threads": torch.get_num_threads(),
            "aligned": {} if best is None else {"layer": best.layer, "head": best.head, **best.rates()},
        }
        with explained(f"write to {self.folder.path}", MAKE_ROOM):
            self.folder.write(dict(zip(system.files, (as_lines(translations.texts), json_bytes(record)), strict=True)))
        return translations.texts, record

    def _weights(self, loaded: LoadedModel, aligned: dict[str, Any]) -> tuple[np.ndarray | None, str]:
        """Attention on the shown pair, and its heads: the evaluated one, else the mean of all."""
        if not attends(loaded.model):
            return None, NO_ATTENTION
        layer, head = aligned.get("layer"), aligned.get("head")
        pair = [self.text.source[self.shown]], [self.text.target[self.shown]]
        (forced,) = Forcing(loaded.model, loaded.tokenizer, *pair).pairs(range(1))
        return forced.words(layer, head), "mean of all heads" if layer is None else f"layer {layer}, head {head}"


def part_of_work(tell: Tell, number: int, count: int, began: float) -> Tell:
    """Report the progress of one of several equal parts of the work, of which a share is done."""
    return lambda at: tell(replace(at, share=began + (0.99 - began) * (number + at.share) / count))


def as_lines(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode(errors="backslashreplace")


SYSTEMS = "systems"  # where a comparison trains its systems


@dataclass(frozen=True)
class System:
    """One system."""

    name: str  # in the table, the page and the file names
    folder: Path  # of the model
    config: TrainConfig | None  # its settings; None if `attnscope train` did not make the folder
    as_it_is: bool = False  # whether it is a trained folder

    @property
    def trained(self) -> bool:
        """Whether there is nothing left to train."""
        return self.as_it_is or is_trained(self.config, self.folder)

    @property
    def files(self) -> tuple[str, str]:
        return f"translations/{self.name}.txt", f"translations/{self.name}.json"


def read_systems(
    systems: Sequence[str | Path] | Mapping[str, str | Path | TrainConfig] | None, out: Path
) -> list[System]:
    """Settings and folders, each under a name of its own."""
    systems = PRESETS if systems is None else systems
    if isinstance(systems, Mapping):
        named: list[tuple[str, str | Path | TrainConfig]] = list(systems.items())
    else:
        paths = [Path(system) for system in systems]
        named = [(path.resolve().name if path.is_dir() else path.stem, path) for path in paths]
    if not named:
        raise AttnscopeError("found no system to compare: pass YAML files of settings, or trained folders")
    folders = [Path(system).resolve() for _, system in named if isinstance(system, str | Path)]
    twice = [folder for folder in folders if folders.count(folder) > 1]
    if twice:
        raise AttnscopeError(f"{twice[0].name} is listed twice: list each system once")
    found: dict[str, System] = {}
    for name, system in named:
        own, number = name, 1
        while own.casefold() in map(str.casefold, found):  # some file systems ignore case
            number += 1
            own = f"{name}-{number}"
        found[own] = _read(own, system, out)
    return list(found.values())


def trainings_of(system: System, seeds: int) -> list[System]:
    """The system, and the same with the seeds that follow."""
    if seeds > 1 and (system.as_it_is or system.config is None):
        raise AttnscopeError(f"{system.name} is trained already; --seeds needs settings: pass its config.yaml")
    others = (
        [
            replace(system, folder=system.folder.with_name(f"{system.name}, seed {seed}"), config=config)
            for seed in range(system.config.seed + 1, system.config.seed + seeds)
            for config in [system.config.model_copy(update={"seed": seed})]
        ]
        if system.config
        else []
    )
    return [system, *others]


def check_untrained(systems: Sequence[System]) -> None:
    """Reject invalid settings of any system before hours of training of the first."""
    for system in systems:
        config = system.config
        if system.trained or config is None:
            continue
        try:
            check_model(config, config.vocabulary)
        except AttnscopeError as error:
            raise AttnscopeError(f"{system.name}: {error}") from None
        for text in (config.source, config.target, config.valid_source, config.valid_target):
            if text is not None and not text.exists():
                raise AttnscopeError(f"{system.name}: {shown(text)}: no such file; expected a training text")


def is_trained(config: TrainConfig | None, folder: Path) -> bool:
    """Whether the folder holds the end of a training with these settings."""
    return config is not None and finished_metrics(config, OwnedFolder(folder, "train").look()) is not None


def _read(name: str, system: str | Path | TrainConfig, out: Path) -> System:
    if Path(name).name != name or name.startswith(".") or not name.isprintable() or "\\" in name:
        raise AttnscopeError(
            f"{name!r} cannot be part of a file name: rename the file or folder, or pass a mapping from names in Python"
        )
    own = OwnedFolder(out, "compare").path_of(f"{SYSTEMS}/{name}")
    check_kind("a file of settings, a trained folder or a TrainConfig", str, Path, TrainConfig, **{name: system})
    if isinstance(system, TrainConfig):
        return System(name, own, _of_translation(system, name))
    path = Path(system)
    if not path.exists() and (scheme := SCHEMES.get(str(system))):
        return System(name, own, scheme)
    if not path.exists():
        raise AttnscopeError(
            f"{path}: no such file or folder; expected YAML files of settings, trained folders, or "
            f"a position scheme ({', '.join(SCHEMES)})"
        )
    if not path.is_dir():
        return System(name, own, _of_translation(read_config(path), path))
    if not (path / "config.json").is_file():
        raise AttnscopeError(
            f"{path} contains no finished model (no config.json): pass a YAML file of settings, or finish the "
            "training with `attnscope train`"
        )
    settings = path / SETTINGS
    config = _of_translation(read_config(settings), path) if settings.is_file() else None
    return System(name, path, config, as_it_is=True)


def _of_translation(config: TrainConfig, where: str | Path) -> TrainConfig:
    if config.model == "masked-lm":
        raise AttnscopeError(f"{where} describes a masked language model; expected a translation model")
    return config


TASK_SEED = 1_000_003  # of the test sentences, which differ from the validation sentences


def read_test_text(
    systems: Sequence[System], texts: Lines | None = None, targets: Lines | None = None, *, join: int | None = None
) -> ParallelText:
    """Read the requested text; else sentences of the generated task; else the systems' validation text."""
    if (texts is None) != (targets is None):
        raise AttnscopeError("found only one of texts and targets (--text, --target): pass both or neither")
    configs = {system.name: system.config for system in systems}
    if join is None:
        joined = [config.join for config in configs.values() if config is not None]
        join = max(joined, default=1) if texts is None else 1
    if texts is None or targets is None:
        text = _shared(configs, join)
    elif isinstance(texts, Path) and isinstance(targets, Path):
        text = read_parallel(texts, targets)
    else:
        text = ParallelText(lines_of_text(texts, "the text"), lines_of_text(targets, "the target"))
    return text.joined(join, seed=0)


def _shared(configs: dict[str, TrainConfig | None], join: int) -> ParallelText:
    """The text that all settings name, not joined yet."""
    settings = {name: config for name, config in configs.items() if config is not None}
    without = [name for name in configs if name not in settings]
    if without:
        raise AttnscopeError(f"{without[0]} has no config.yaml with a text: pass one to translate (--text, --target)")
    if all(config.source is None for config in settings.values()):
        longest = max(config.task_longest for config in settings.values())
        pairs = HELD_OUT * (join + 1) // 2  # about as many remain after joining
        return generate_task(pairs, TASK_SEED, longest, held_out=True)
    (first, text), *others = ((name, training_pairs(config)[1]) for name, config in settings.items())
    for name, other in others:
        if other.sha256() != text.sha256():
            raise AttnscopeError(
                f"{first} and {name} were not validated on the same text ({len(text)} pairs that begin "
                f"{text.source[0][:30]!r}, {len(other)} that begin {other.source[0][:30]!r}):\n"
                "pass a text to translate (--text, --target)"
            )
    return text
