"""What one system does on the text of a comparison: trained, timed, written down, and not done twice."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from attnscope._caller import own_threads
from attnscope.capture import LoadedModel, load_model
from attnscope.comparison._systems import System
from attnscope.corpus.files import lines_of
from attnscope.errors import AttnscopeError
from attnscope.progress import Progress, Tell
from attnscope.store import OwnedFolder, Signature, explained, json_bytes, package_versions, tokenizer_sha256
from attnscope.training import attends, best_aligning_head, threads_of_one, train
from attnscope.translation import ParallelText, TaskText, translate_lines
from attnscope.translation.alignment import forced_alignment

NO_ATTENTION = "no attention"  # where a system's alignment would be read from
_TRAINING, _TRANSLATING = 0.85, 0.1  # shares of a system's work, about; the rest is aligning
_log = logging.getLogger("attnscope")


@dataclass(frozen=True, eq=False)
class SystemOutput:
    """What one system made of the text.

    Attributes
    ----------
    lines
        Its translations.
    parameters
        How many numbers were learned.
    seconds
        Seconds of translating.
    cut
        How many sentences were longer than the model was trained for, and cut.
    aligned
        Against gold alignments: ``layer``, ``head``, ``error_rate``, ``precision``, ``recall``; empty where there are
        none or the system has no attention.
    weights
        ``(target word, source word)`` on the shown pair; None without attention.
    read_from
        The heads that they are of, in words.
    signature
        Model, text, settings and versions.
    """

    lines: list[str]
    parameters: int
    seconds: float
    cut: int
    aligned: dict[str, Any]
    weights: np.ndarray | None
    read_from: str
    signature: dict[str, Any]


@dataclass(frozen=True)
class SystemOutputs:
    """All systems on one text, in one folder.

    Attributes
    ----------
    folder
        Where each system's translations lie as ``translations/NAME.txt`` beside a record of what was found.
    text
        To translate.
    shown
        Number of the pair whose alignment is kept.
    beams, threads, device
        As in `attnscope.compare`.
    progress
        Called while it works.
    """

    folder: OwnedFolder
    text: ParallelText
    shown: int
    beams: int
    threads: int | None
    device: str | None
    progress: Tell

    def write_text(self) -> None:
        """Write both sides beside the translations, line by line."""
        sides = {"text/source.txt": self.text.source, "text/reference.txt": self.text.target}
        with explained(f"write to {self.folder.path}", "Choose another folder with --out"):
            self.folder.write({name: _lines(lines) for name, lines in sides.items()})

    def all(self, systems: Sequence[System]) -> dict[str, SystemOutput]:
        """Every system by name, one after the other.

        Raises
        ------
        AttnscopeError
            As `of`.
        """
        return {
            system.name: replace(self, progress=_part(self.progress, number, len(systems))).of(system)
            for number, system in enumerate(systems)
        }

    def of(self, system: System) -> SystemOutput:
        """Train, translate and align, as far as that is not done.

        Raises
        ------
        AttnscopeError
            If the folder holds no translation model, or the training, the translation or the disk fails.
        """
        self._train(system)
        with own_threads(self.threads or threads_of_one()):
            return self._output_of(system)

    def _output_of(self, system: System) -> SystemOutput:
        loaded = load_model(system.folder, device=self.device)
        if not loaded.model.config.is_encoder_decoder:
            raise AttnscopeError(f"{system.folder} holds no translation model: {type(loaded.model).__name__}")
        lines, record = self._kept(system, loaded) or self._translate(system, loaded)
        weights, read_from = self._weights(loaded, record["aligned"])
        measured = {name: record[name] for name in ("parameters", "seconds", "cut", "aligned", "signature")}
        return SystemOutput(lines, weights=weights, read_from=read_from, **measured)

    def _train(self, system: System) -> None:
        if system.trained or system.config is None:
            return
        changed = {"threads": self.threads, "device": self.device}
        train(
            system.config,
            system.folder,
            progress=lambda at: self.progress(
                Progress(f"train {system.name}", _TRAINING * at.share, at.told)
            ),
            **{name: value for name, value in changed.items() if value is not None},
        )

    def _signature(self, loaded: LoadedModel) -> dict[str, Any]:
        return Signature(
            model=loaded.identity,
            tokenizer=tokenizer_sha256(loaded.tokenizer),
            text={"pairs": len(self.text), "sha256": self.text.sha256()},
            settings={"beams": self.beams, "device": loaded.model.device.type},
            versions=package_versions(),
        ).to_dict()

    def _kept(self, system: System, loaded: LoadedModel) -> tuple[list[str], dict[str, Any]] | None:
        """What an earlier run found with the same model, text and settings."""
        file, record = _names(system)
        if self.folder.damaged([file, record] if {file, record} <= self.folder.files.keys() else []):
            _log.warning("the translations of %s are damaged, and are made anew", system.name)
            self.folder.forget([file, record])
        if not {file, record} <= self.folder.files.keys():
            return None
        kept = json.loads(self.folder.read(record))
        if kept["signature"] != self._signature(loaded):
            return None
        return lines_of(self.folder.read(file).decode()), kept

    def _translate(self, system: System, loaded: LoadedModel) -> tuple[list[str], dict[str, Any]]:
        """Translate the text and write it down; on the generated task, judge the alignments."""
        name = f"translate {system.name}"
        self.progress(Progress(name, _TRAINING))
        before = time.perf_counter()
        translations = translate_lines(
            loaded.model,
            loaded.tokenizer,
            self.text.source,
            beams=self.beams,
            overlong="cut",
            progress=lambda at: self.progress(Progress(name, _TRAINING + _TRANSLATING * at.share, at.told)),
        )
        seconds = time.perf_counter() - before
        lines = translations.texts
        best = None
        if isinstance(self.text, TaskText) and attends(loaded.model):
            self.progress(Progress(f"align {system.name}", _TRAINING + _TRANSLATING))
            best = best_aligning_head(loaded.model, loaded.tokenizer, self.text)
        record: dict[str, Any] = {
            "signature": self._signature(loaded),
            "parameters": sum(parameter.numel() for parameter in loaded.model.parameters()),
            "seconds": seconds,
            "cut": sum(left_out > 0 for left_out in translations.left_out),
            "threads": torch.get_num_threads(),
            "aligned": {} if best is None else {"layer": best.layer, "head": best.head, **best.rates()},
        }
        file, described = _names(system)
        with explained(f"write to {self.folder.path}", "Free some room and give the same command again"):
            self.folder.write({file: _lines(lines), described: json_bytes(record)})
        return lines, record

    def _weights(self, loaded: LoadedModel, aligned: dict[str, Any]) -> tuple[np.ndarray | None, str]:
        """Attention on the shown pair, and which heads it is of: the judged one, else the mean of all."""
        if not attends(loaded.model):
            return None, NO_ATTENTION
        layer, head = aligned.get("layer"), aligned.get("head")
        pair = [self.text.source[self.shown]], [self.text.target[self.shown]]
        (words,) = forced_alignment(loaded.model, loaded.tokenizer, *pair, layer=layer, head=head)
        return words.weights, "mean of all heads" if layer is None else f"layer {layer}, head {head}"


def _part(tell: Tell, number: int, count: int) -> Tell:
    """Tells of one of several equal parts of the work."""
    return lambda at: tell(replace(at, share=0.99 * (number + at.share) / count))


def _names(system: System) -> tuple[str, str]:
    """The files of a system's translations and of what was found with them."""
    return f"translations/{system.name}.txt", f"translations/{system.name}.json"


def _lines(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode(errors="backslashreplace")
