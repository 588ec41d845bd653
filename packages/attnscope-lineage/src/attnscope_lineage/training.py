"""Training: the same settings give the same weights, even if training was interrupted.

This is not the Trainer of transformers. A checkpoint is complete or absent, even after kill -9 or on a full disk. An
update has the same pairs for any number of processes. Randomness depends only on the seed and the update, so that only
weights and moments need to be restored.
"""

from __future__ import annotations

import logging
import math
import os
import tempfile
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, distributed, nn
from torch.optim import AdamW, Muon, Optimizer
from transformers import AutoTokenizer

from attnscope.capture.borrow import quiet
from attnscope.capture.load import usable_device
from attnscope.models.common import IGNORED
from attnscope.report.schema import Finding, Report
from attnscope.report.signature import Signature, package_versions, tokenizer_sha256
from attnscope.statistics.intervals import interval
from attnscope.statistics.units import LEAST
from attnscope.store.files import explained
from attnscope.store.folder import OwnedFolder
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell, no_progress
from attnscope_lineage.alignment import best_aligning_head
from attnscope_lineage.checkpoints import (
    LOG,
    METRICS,
    Checkpoints,
    Log,
    begin_with,
    build_model,
    check_model,
    special_ids_of,
)
from attnscope_lineage.config import SETTINGS, TrainConfig, config_bytes
from attnscope_lineage.data import Batch, Pairs, TrainingData, read_data
from attnscope_lineage.loss import losses_of_texts, summed_loss
from attnscope_lineage.parallel_text import TaskText
from attnscope_lineage.translation import translate_lines

_MAY_CHANGE = {"updates", "cooldown", "patience", "log_every", "threads", "device", "tensorboard", "average", "keep"}
_SAMPLES = 4  # translations that a validation shows
_LARGEST_LOSS = 50.0  # beyond it, a perplexity is only a large number
_LINE = 150  # characters of a translation that is shown
_METRIC_NAMES = {"bleu": "BLEU", "loss": "loss"}
_RISEN = 2  # validations in a row
NO_MATTER = dict.fromkeys(("threads", "device", "log_every", "tensorboard", "keep"))  # no effect on the weights
_MODEL = ("model", "config.json", "generation_config.json")  # prefixes of the model's files
_log = logging.getLogger("attnscope")


def finished_metrics(config: TrainConfig, folder: OwnedFolder) -> dict[str, float] | None:
    """The result of a finished, undamaged training with these settings; else None."""
    if not folder.state.get("complete") or folder.damaged():
        return None
    before = TrainConfig(**folder.state["config"]).settings()
    same = {**before, **NO_MATTER} == {**config.settings(), **NO_MATTER}
    return folder.state["metrics"] if same else None


@dataclass
class _State:
    """The resume point of a training, stored in each checkpoint with the weights."""

    update: int = 0
    epoch: int = 0
    batch: int = 0  # of the epoch, the next one
    best: float | None = None
    best_update: int = 0
    waiting: int = 0  # validations since the best
    seconds: float = 0.0
    tokens: int = 0
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    texts: str = ""  # their hash
    since_log: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("loss", "tokens", "seconds"), 0.0))
    since_validation: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("loss", "tokens"), 0.0))
    init: str = ""  # hash of the weights that it began with
    lowest: dict[str, Any] = field(default_factory=dict[str, Any])  # the validation of the lowest loss
    risen: int = 0  # validations in a row whose loss was above it, while the training loss fell


class Training:
    """One training in one folder."""

    def __init__(
        self, config: TrainConfig, folder: OwnedFolder, group: Processes, progress: Tell | None = None
    ) -> None:
        self.config, self.folder, self.group = config, folder, group
        self.progress = (progress if group.first else None) or no_progress
        self.device = usable_device(config.device)
        self.checkpoints = Checkpoints(folder)
        self.data = self._prepare()
        torch.manual_seed(config.seed)
        check_model(config, len(self.data.tokenizer))
        tokenizer = self.data.tokenizer
        self.model = build_model(config, len(tokenizer), **special_ids_of(tokenizer)).to(self.device)
        self.optimizers = Optimizers(self.model, config)
        self._logged: dict[str, float | int] = {}
        self._losses: list[float] = []  # of each text, at the last validation
        self._samples: list[tuple[str, str, str]] = []  # source, reference and translation, at the last validation
        texts = self.data.sha256()
        text_hash = torch.tensor(int(texts[:12], 16), device=self.device)
        if int(group.sum(text_hash.clone())) != group.world * int(text_hash):
            raise AttnscopeError("the texts changed during reading: repeat the command")
        done = self.checkpoints.updates()
        self.state = _State(texts=texts)
        if config.init is not None and not done:
            self.state.init = begin_with(self.model, config.init)
        if done:
            self.state = _State(**self.checkpoints.load(done[-1], self.model, self.optimizers.state))
        if self.state.texts != texts:
            raise AttnscopeError(
                f"the texts differ from those of the training in {folder.path}: use the same texts, or another folder"
            )
        self.log = Log(folder, self.state.update, tensorboard=config.tensorboard) if group.first else None
        left_out = self.data.left_out
        if group.first:
            self._describe()
        if self.log is not None and left_out:
            _log.warning("dropped pairs: %s", ", ".join(f"{count:,} {reason}" for reason, count in left_out.items()))
            if not done:
                self.log.write(0, left_out=left_out)

    def _describe(self) -> None:
        """Report sizes of data and model."""
        _log.info("%s", self.data.description)
        if not self.data.left_out:
            _log.info("dropped pairs: none")
        tokens, config = f"{len(self.data.tokenizer):,}", self.config
        if config.tokenizer is None and config.init is None:
            _log.info("vocabulary: %s tokens (%s learned from the text)", tokens, config.tokens)
        else:
            _log.info("vocabulary: %s tokens of %s", tokens, config.tokenizer or config.init)
        _log.info("parameters: %s", f"{sum(parameter.numel() for parameter in self.model.parameters()):,}")

    def _prepare(self) -> TrainingData:
        """The folder, its settings and the texts, read once; the first process writes what the others read."""
        data = None
        if self.group.first:
            with explained(f"write to {self.folder.path}", "Choose another folder with --out, or free some disk space"):
                data = self._prepare_folder()
        self.group.wait()
        if not self.group.first:
            self.folder.look()
        tokenizer = AutoTokenizer.from_pretrained(self.folder.path)
        if data is None:
            return read_data(self.config, tokenizer)
        tokenizer.model_max_length = self.config.longest
        data.tokenizer = tokenizer
        return data

    def _prepare_folder(self) -> TrainingData | None:
        """Drop damaged files, reject a different training, and write missing files."""
        damaged = self.folder.damaged()
        self.checkpoints.drop_damaged(damaged)
        others = [name for name in damaged if name in self.folder.files]
        for name in others:
            _log.warning("%s is damaged and will be recomputed", self.folder.path / name)
        done = updates_done(self.config, self.folder)
        files, data = {SETTINGS: config_bytes(self.config)}, None
        if not done or any(name.startswith("tokenizer") for name in others):
            data = read_data(self.config)  # the same texts give the same tokenizer
            with tempfile.TemporaryDirectory() as scratch:
                data.tokenizer.save_pretrained(scratch)
                files |= {path.name: path.read_bytes() for path in Path(scratch).iterdir()}
        gone = [name for name in others if name not in files]
        config = self.config.model_dump(mode="json")
        self.folder.write(files, remove=gone, config=config, complete=None, metrics=None, signature=None)
        return data

    def run(self) -> None:
        """Train to the end, average, and write the model and the metrics of the last validation."""
        try:
            while self.state.update < self.config.updates and not self._is_done():
                self._epoch()
            self._report_stop()
            self._finish()
        finally:
            if self.log is not None:
                self.log.close()

    def _report_stop(self) -> None:
        """Report why a training ended before its last update."""
        if not self._is_done() or not self.group.first:
            return
        metric, _ = self._metric(self.state.metrics)
        _log.info(
            "stopped: no better %s in %s validations than %s, at update %s",
            _METRIC_NAMES[metric], self.config.patience,
            f"{self.state.best:.2f}", f"{self.state.best_update:,}",
        )  # fmt: skip

    def _epoch(self) -> None:
        state, config = self.state, self.config
        for members in self.data.epoch(state.epoch)[state.batch :]:
            before = time.monotonic()
            loss, tokens = self._update(members)
            seconds = time.monotonic() - before  # training only, without validations
            for name, value in {"loss": loss, "tokens": tokens, "seconds": seconds}.items():
                state.since_log[name] += value
            state.since_validation["loss"] += loss
            state.since_validation["tokens"] += tokens
            state.update, state.batch = state.update + 1, state.batch + 1
            state.tokens, state.seconds = state.tokens + tokens, state.seconds + seconds
            last = state.update == config.updates
            if state.update % config.log_every == 0 or last:
                self._write_log()
            if state.update % config.validate_every == 0 or last:
                self._validate_and_save()
                if last or self._is_done():
                    return
        state.epoch, state.batch = state.epoch + 1, 0

    def _update(self, members: Any) -> tuple[float, int]:
        """One step of the optimizer; loss summed over all target tokens, and their number."""
        config, step = self.config, self.state.update + 1
        seed = config.seed * 1_000_003 + step
        self.model.train()
        parts = self.data.parts(members, self.group.world * config.accumulate, seed)
        count = sum(target_tokens(part) for part in parts if part is not None)
        total = torch.zeros((), dtype=torch.float32, device=self.device)
        first = self.group.rank * config.accumulate
        for number, part in enumerate(parts[first : first + config.accumulate], first):
            torch.manual_seed(seed * 1009 + number)  # randomness does not depend on earlier updates
            if part is None:
                continue
            with self._precision():
                loss = summed_loss(
                    self.model, **self._to_device(part), smoothing=config.label_smoothing, r_drop=config.r_drop
                )
            (loss / count).backward()
            total += loss.detach().float()
        for parameter in self.model.parameters() if self.group.world > 1 else ():
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            distributed.all_reduce(parameter.grad)
        nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
        self.optimizers.step(learning_rate(config, step))
        summed = float(self.group.sum(total))
        self._check_finite(f"the loss of update {step}", summed)
        return summed, count

    def _check_finite(self, name: str, loss: float) -> None:
        if not math.isfinite(loss):
            raise AttnscopeError(
                f"{name} is {loss}: reduce learning_rate (now {self.config.learning_rate:g}), increase warmup, or use "
                "float32"
            )

    def _precision(self) -> AbstractContextManager[Any]:
        chosen, kind = self.config.precision, self.device.type
        low = chosen == "bfloat16" or (chosen == "auto" and multiplies_bfloat16(kind))
        return torch.autocast(kind, torch.bfloat16) if low else nullcontext()

    def _to_device(self, batch: Batch) -> Batch:
        return {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}

    def _write_log(self) -> None:
        state, since = self.state, self.state.since_log
        loss, rate = since["loss"] / since["tokens"], since["tokens"] / since["seconds"]
        self._logged = {"update": state.update, "loss": loss, "tokens/s": rate}
        state.since_log = dict.fromkeys(since, 0.0)
        if self.log is not None:
            counts = {"epoch": state.epoch, "tokens": state.tokens, "seconds": state.seconds}
            rates = {"tokens_per_second": rate, "learning_rate": learning_rate(self.config, state.update)}
            self.log.write(state.update, loss=loss, **rates, **counts)
        self._report(state.update / self.config.updates, state.metrics)

    def _report(self, share: float, metrics: dict[str, float]) -> None:
        named = {f"validation {name}": value for name, value in metrics.items()}
        self.progress(Progress("train", share, {**self._logged, **named}))

    def _validate_and_save(self) -> None:
        state = self.state
        state.metrics = self.validate()
        training_loss = state.since_validation["loss"] / (state.since_validation["tokens"] or 1)
        state.since_validation = dict.fromkeys(state.since_validation, 0.0)
        if self.log is not None:
            self._report_validation(training_loss)
        self._look_for_overfitting(training_loss)
        metric, sign = self._metric(state.metrics)
        value = state.metrics[metric]
        if state.best is None or sign * value > sign * state.best:
            state.best, state.best_update, state.waiting = value, state.update, 0
            if self.group.first:
                _log.info("  best %s so far", _METRIC_NAMES[metric])
        else:
            state.waiting += 1
        if self.log is not None:
            samples = {"samples": self._samples} if self._samples else {}
            self.log.write(state.update, **{f"valid_{name}": value for name, value in state.metrics.items()}, **samples)
            before = max(self.config.keep, self.config.average) - 1
            keep = {state.best_update, *self.checkpoints.updates()[::-1][:before]}
            self.checkpoints.save(state.update, self.model, self.optimizers.state, vars(state), keep)
        self.group.wait()

    def _report_validation(self, training_loss: float) -> None:
        """Report the metrics and some translations."""
        metrics = self.state.metrics
        bleu = f", BLEU {metrics['bleu']:.1f}" if "bleu" in metrics else ""
        perplexity = math.exp(min(metrics["loss"], _LARGEST_LOSS))
        values = f"{self.state.update:,}", f"{metrics['loss']:.3f}", f"{perplexity:.1f}{bleu}", f"{training_loss:.3f}"
        _log.info("update %s: validation loss %s, perplexity %s, training loss %s", *values)
        for source, reference, hypothesis in self._samples:
            _log.info("  source: %s", _quoted(source))
            _log.info("  reference: %s", _quoted(reference))
            _log.info("  hypothesis: %s", _quoted(hypothesis))

    def _look_for_overfitting(self, training_loss: float) -> None:
        """Name it where the validation loss is above its lowest twice in a row, beyond chance, and training falls."""
        state, losses = self.state, np.array(self._losses)
        loss, lowest = state.metrics["loss"], state.lowest
        if not lowest or loss < lowest["loss"]:
            state.lowest = {"loss": loss, "update": state.update, "training": training_loss, "losses": self._losses}
            state.risen = 0
            return
        rise = losses - np.array(lowest["losses"]) if len(losses) == len(lowest["losses"]) else np.zeros(0)
        # the interval over texts is above 0: chance alone would rarely raise the loss of so many
        risen = len(rise) >= LEAST and interval(rise, range(len(rise)))[0] > 0
        state.risen = state.risen + 1 if risen and training_loss < lowest["training"] else 0
        if state.risen == _RISEN and self.log is not None:
            values = lowest["loss"], loss, lowest["training"], training_loss
            _log.warning(
                "overfitting: since update %s the validation loss has risen from %s to %s while the training loss "
                "fell from %s to %s. More data, --dropout, --label-smoothing or a smaller model helps",
                f"{lowest['update']:,}",
                *(f"{value:.3f}" for value in values),
            )
            self.log.write(state.update, overfitting=lowest["update"])

    def _metric(self, metrics: dict[str, float]) -> tuple[str, int]:
        """The metric that stops the training and chooses its weights, with 1 if larger is better, else -1."""
        metric = self.config.metric if self.config.metric in metrics else "loss"
        return metric, 1 if metric == "bleu" else -1

    def _is_done(self) -> bool:
        return bool(self.config.patience) and self.state.waiting >= self.config.patience

    @torch.inference_mode()
    def validate(self) -> dict[str, float]:
        """Loss in nats per token on the held-out text, and BLEU of greedy translations."""
        self.model.eval()
        self._losses, count = [], 0
        for batch in self.data.validation():
            with self._precision():
                self._losses += losses_of_texts(self.model, **self._to_device(batch)).tolist()
            count += target_tokens(batch)
        total = math.fsum(self._losses)
        # here too: which update overflows first depends on the processor's arithmetic
        self._check_finite(f"the validation loss of update {self.state.update}", total)
        metrics = {"loss": total / count}
        if isinstance(self.data, Pairs):
            from sacrebleu.metrics.bleu import BLEU

            valid = self.data.valid
            with self._precision():
                translations = translate_lines(self.model, self.data.tokenizer, valid.source, beams=1, overlong="cut")
            # force: the generated task is tokenised, which sacreBLEU would warn of
            bleu = BLEU(tokenize=self.config.bleu_tokenizer, lowercase=self.config.lowercase, force=True)
            metrics["bleu"] = bleu.corpus_score(translations.texts, [valid.target]).score
            texts = list(zip(valid.source, valid.target, translations.texts, strict=True))
            self._samples = texts[:: max(1, len(texts) // _SAMPLES)][:_SAMPLES]
        return metrics

    def _finish(self) -> None:
        """Write the mean of the last checkpoints or the best one, whichever is better by the metric."""
        last = self.checkpoints.updates()[-self.config.average :]
        candidates = {"mean of the last checkpoints": last, "best checkpoint": [self.state.best_update]}
        metrics_of: dict[str, dict[str, float]] = {}
        for name, updates in candidates.items():
            self._set_weights(updates)
            metrics_of[name] = self.validate()
        metric, sign = self._metric(metrics_of["best checkpoint"])
        chosen = max(metrics_of, key=lambda name: sign * metrics_of[name][metric])
        self._set_weights(candidates[chosen])
        metrics = metrics_of[chosen] | self._alignment_error()
        self._report(1.0, metrics)
        if self.log is not None:
            self.log.write(self.state.update, chosen=chosen, **{f"final_{k}": v for k, v in metrics.items()})
            safe = "The checkpoints are complete: free some disk space and repeat the command"
            ended = {"metrics": metrics, "signature": self._signature().to_dict()}
            with (
                explained(f"write the model to {self.folder.path}", safe),
                self.folder.replacing(*_MODEL, growing=[LOG], complete=True, **ended) as new,
                quiet(),
            ):
                self.model.eval().save_pretrained(new)
        self.group.wait()

    def _signature(self) -> Signature:
        """Everything that the weights depend on."""
        return Signature(
            "train",
            model={"name": self.config.model, "class": type(self.model).__name__}
            | ({"init_sha256": self.state.init} if self.state.init else {}),
            tokenizer={"sha256": tokenizer_sha256(self.data.tokenizer)},
            corpus={"sha256": self.state.texts},
            settings=self.config.model_dump(mode="json", include=self.config.settings().keys() - NO_MATTER.keys()),
            versions=package_versions(),
        )

    def _alignment_error(self) -> dict[str, float]:
        """Alignment error rate of a model with attention on the generated task, and the controls."""
        data = self.data
        if not isinstance(data, Pairs) or not isinstance(data.valid, TaskText):
            return {}
        best = best_aligning_head(self.model, data.tokenizer, data.valid)
        rates = {} if best is None else best.rates()
        return {f"alignment_{name}": rate for name, rate in rates.items() if f"alignment_{name}" in METRICS}

    def _set_weights(self, updates: list[int]) -> None:
        named = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, mean in self.checkpoints.mean_weights(updates).items():
                named[name].copy_(mean)


def updates_done(config: TrainConfig, folder: OwnedFolder) -> int:
    """Number of finished updates of the training in a folder; 0 without a training."""
    done = max(Checkpoints(folder).updates(), default=0)
    if done:
        _same_training(config, TrainConfig(**folder.state["config"]), folder.path, done)
    return done


def _same_training(config: TrainConfig, old: TrainConfig, folder: Path, done: int) -> None:
    """Reject settings that differ from the training in the folder, which has `done` updates."""
    before, now = old.model_dump(), config.settings()
    changed = [name for name in now if now[name] != before[name] and name not in _MAY_CHANGE]
    if changed:
        name = changed[0]
        raise AttnscopeError(
            f"{folder} contains a training with {name} = {before[name]}; found {now[name]}: use another folder, "
            "or the same settings"
        )
    if config.updates < done:
        raise AttnscopeError(
            f"{folder} contains a training of {done} updates; found updates = {config.updates}: use another folder, "
            "or at least as many updates"
        )
    steps = range(1, done + 1)
    other = next((step for step in steps if learning_rate(config, step) != learning_rate(old, step)), None)
    if other is not None:
        raise AttnscopeError(
            f"{folder} contains a training of {done} updates with updates = {old.updates} and cooldown = "
            f"{old.cooldown}; {config.updates} and {config.cooldown} change the learning rate of update {other}: use "
            "another folder, or the same settings"
        )


class Optimizers:
    """The optimizers of a model, each with parameters of its own, as one."""

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
        parameters = list(model.parameters())
        matrix = [config.optimizer == "muon" and each.ndim > 1 and id(each) not in tables for each in parameters]
        muon = [each for each, is_matrix in zip(parameters, matrix, strict=True) if is_matrix]
        rest = [each for each, is_matrix in zip(parameters, matrix, strict=True) if not is_matrix]
        groups: list[dict[str, Any]] = [  # matrices and tables decay, biases and LayerNorms do not
            {"params": [each for each in rest if each.ndim > 1], "weight_decay": config.weight_decay},
            {"params": [each for each in rest if each.ndim <= 1], "weight_decay": 0.0},
        ]
        rate, decay = config.learning_rate, config.weight_decay
        self._each: list[Optimizer] = [AdamW(groups, lr=rate, betas=(0.9, config.adam_beta2), fused=True)]
        self.state = self._each[0].state
        if muon:
            self._each.append(Muon(muon, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
            # all moments together, as checkpoints store them: each optimizer uses those of its own parameters
            self._each[1].state = self.state

    def step(self, rate: float) -> None:
        """Update all parameters at a learning rate, and clear the gradients."""
        for optimizer in self._each:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def _quoted(text: str) -> str:
    """A sentence in quotes, on one or two lines of a terminal."""
    return f"“{text if len(text) <= _LINE else text[: _LINE - 1] + '…'}”"


def target_tokens(batch: Batch) -> int:
    return int((batch["labels"] != IGNORED).sum())


def multiplies_bfloat16(device: str) -> bool:
    """Whether the processor multiplies bfloat16 natively, so that it is faster than float32."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported()
    cpu: Any = torch.cpu
    return device == "cpu" and (cpu._is_avx512_bf16_supported() or cpu._is_amx_tile_supported())  # noqa: SLF001


def learning_rate(config: TrainConfig, step: int) -> float:
    r"""Rate of an update, from 1; ``noam`` is equation 3 of Vaswani et al. (2017), times `learning_rate`."""
    peak, warmup, last = config.learning_rate, config.warmup, config.updates
    cooling = min(1.0, (last + 1 - step) / config.cooldown) if config.cooldown else 1.0
    if config.schedule == "noam":
        width = config.decoder_width if config.model == "recurrent" else config.width
        return cooling * (peak * width**-0.5 * min(step**-0.5, step * max(1, warmup) ** -1.5))
    if step < warmup:
        return cooling * (peak * step / warmup)
    match config.schedule:
        case "inverse_sqrt":
            return cooling * (peak * math.sqrt(max(1, warmup) / step))
        case "cosine":
            done = (step - warmup) / max(1, last - warmup)
            return cooling * (peak * (1 + math.cos(math.pi * min(1.0, done))) / 2)
        case _:
            return cooling * peak


@dataclass(frozen=True)
class Processes:
    """The rank of this process, and the number of processes."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        if self.world > 1:
            distributed.all_reduce(values)
        return values

    def wait(self) -> None:
        if self.world > 1:
            distributed.barrier()


def is_first() -> bool:
    """Whether this process prints, from torchrun's variables, before the process group exists."""
    return os.environ.get("RANK", "0") == "0"


def threads_of_one() -> int:
    """Processors for this process, shared with the other processes of torchrun on this machine."""
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


@contextmanager
def processes(device: str) -> Generator[Processes]:
    """The process group of torchrun, or this process only."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Processes()
        return
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield Processes(distributed.get_rank(), world)
    finally:
        distributed.destroy_process_group()


def report(results: xr.Dataset) -> Report:
    """The metrics on the validation text at the end."""
    labels = {"loss": "loss", "bleu": "BLEU"}
    metrics = [f"{name} {float(results[key]):.2f}" for key, name in labels.items() if key in results]
    sentences = [f"Validation: {', '.join(metrics)}."] if metrics else []
    return Report("Training", "", Finding(sentences, ""), [], results)
