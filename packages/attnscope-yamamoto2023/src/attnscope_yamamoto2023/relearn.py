"""Positions relearned under frozen weights: do the waves return at the new distance? (EMNLP, appendix E)."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope.bundled import MODEL
from attnscope.capture.borrow import LoadedModel, borrowed_arguments, quiet
from attnscope.capture.load import load_model
from attnscope.capture.processors import Tokenizer
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.explanation.arrays.checks import NotDefinedError, labelled
from attnscope.explanation.inputs import Windows, ids_of, read, read_all, token_ids
from attnscope.explanation.profiles import Collected, stacked_profiles
from attnscope.explanation.study import Analysis, Picture, Section, TextTable
from attnscope.explanation.tables import PositionTable, position_table
from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import measure, output_of
from attnscope.measure.maps import weight_rows
from attnscope.opened import window_length
from attnscope.read.encoded import Sources, Texts, texts_of, windows_of
from attnscope.read.windows import Window
from attnscope.store.files import explained
from attnscope.support.checked import checked
from attnscope.support.checks import check_whole
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell, no_progress
from attnscope.support.state import own_random_numbers, own_state
from attnscope_yamamoto2023.arrays.spectrum import amplitude_spectrum

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnscope.capture.load import Model
    from attnscope.explanation.study import Study

FEWEST_TOKENS = 4  # real tokens of a window, the special ones among them
LOGGED = 50  # points of the loss curve, at most
COMPARED = 32  # texts of the profiles before and after
MAPS, WORDS_SHOWN = 4, 6  # heads, and tokens between spacers, of the maps

Sample = dict[str, list[int]]


@checked
def relearn_positions(
    model: Model | None = None,
    texts: Sources = None,
    *,
    tokenizer: Tokenizer = None,
    device: str | None = None,
    band: int = 10,
    progress: Tell = no_progress,
    **settings: Any,
) -> tuple[PreTrainedModel, xr.Dataset]:
    """Reset a masked language model's position table and train it alone, on texts with unknown tokens between."""
    with own_state(), borrowed_arguments("relearn_positions", {"model": model}):
        loaded = load_model(MODEL if model is None else model, tokenizer=tokenizer, device=device)
        return Relearning(loaded, texts_of(texts), **settings).run(band=band, progress=progress)


@dataclass(eq=False)
class Relearning:
    """The settings of `relearn_positions`, checked before training, and its inputs."""

    loaded: LoadedModel
    corpus: Texts
    _: KW_ONLY
    spacers: int = 3  # unknown tokens after each token
    window: int | None = None
    limit: int | None = None
    steps: int = 1000
    batch_size: int = 16
    learning_rate: float = 3e-3
    masked: float = 0.15  # share of the tokens that are masked
    deviation: float = 0.02  # of the drawn table
    seed: int = 0

    def __post_init__(self) -> None:
        _check(self.spacers, self.steps, self.batch_size, self.learning_rate, self.masked, self.deviation)
        self.table = _learned_table(self.loaded)
        self.unknown = _token(self.loaded, "unk")
        _token(self.loaded, "mask")
        self.windows = _windows(
            self.corpus, self.loaded, window_length(self.loaded, self.window), self.spacers, self.limit
        )

    def run(self, *, band: int = 10, progress: Tell = no_progress) -> tuple[PreTrainedModel, xr.Dataset]:
        """Train, and compare the heads before and after: see `relearn_positions`."""
        samples = [_sample(window, self.spacers, self.unknown) for window in self.windows]
        changed = self._with_drawn_table()
        loss = self._train(changed, samples, progress)
        changed.requires_grad_(True).eval()
        used = len(samples[0]["input_ids"])
        learned = _dataset(self.table.rows[:used], position_table(changed).rows[:used], loss)
        profiles = self._profiles(changed, band)
        maps = self._maps(changed, profiles)
        return changed, learned.merge(profiles, combine_attrs="override").merge(maps).assign_attrs(
            model=self.loaded.name, spacers=self.spacers, steps=self.steps, samples=len(samples), seed=self.seed
        )

    def _train(self, model: PreTrainedModel, samples: list[Sample], tell: Tell) -> dict[int, float]:
        """Train the position table; the loss by step."""
        from transformers import (
            DataCollatorForLanguageModeling,
            PrinterCallback,
            Trainer,
            TrainerCallback,
            TrainingArguments,
        )

        steps = self.steps

        class Reporting(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
                done = state.global_step
                tell(Progress("relearning positions", done / steps, {"steps": done}))

        with own_random_numbers(), tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                output_dir=folder,
                max_steps=steps,
                per_device_train_batch_size=self.batch_size,
                learning_rate=self.learning_rate,
                weight_decay=0.0,  # rows that no input reads stay as they are
                seed=self.seed,
                data_seed=self.seed,
                save_strategy="no",
                logging_strategy="steps",
                logging_steps=max(1, steps // LOGGED),
                report_to="none",
                disable_tqdm=True,
                use_cpu=model.device.type == "cpu",
                dataloader_pin_memory=False,
            )
            collate = DataCollatorForLanguageModeling(
                self.loaded.tokenizer, mlm_probability=self.masked, seed=self.seed
            )
            trainer = Trainer(
                model=model,
                args=arguments,
                train_dataset=cast("Any", samples),
                data_collator=collate,
                callbacks=[Reporting()],
            )
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        return {int(entry["step"]): float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry}

    def save(self, model: PreTrainedModel, folder: Path) -> None:
        """Keep the model and its tokenizer in a folder, as transformers loads them."""
        with quiet():
            model.save_pretrained(folder)
            self.loaded.tokenizer.save_pretrained(folder)

    def _with_drawn_table(self) -> PreTrainedModel:
        """A copy of the model with new rows, the only parameters that take a gradient."""
        changed = copy.deepcopy(self.loaded.model)
        weight = _parameter(changed, self.table.name)
        generator = torch.Generator().manual_seed(self.seed)
        drawn = self.deviation * torch.randn(
            weight[self.table.reserved :].shape, generator=generator, dtype=torch.float32
        )
        with torch.no_grad():
            weight[self.table.reserved :] = drawn.to(weight)
        changed.requires_grad_(False)
        weight.requires_grad_(True)
        return changed

    def spaced(self) -> list[list[int]]:
        """The texts of the comparison, with unknown tokens between."""
        return space_out(self.windows[:COMPARED], self.spacers, self.unknown)

    def _profiles(self, changed: PreTrainedModel, band: int) -> xr.Dataset:
        """Profiles on some of the texts: as they are, spaced, and spaced with the new table."""
        plain, spaced = [list(window.ids) for window in self.windows[:COMPARED]], self.spaced()
        before = self.loaded.model
        step = self.spacers + 1
        inputs = {"plain": (before, plain, 1), "spaced": (before, spaced, step), "relearned": (changed, spaced, step)}
        seen = Collected()
        for name, (model, texts, every) in inputs.items():
            collect_profiles(seen, name, model, texts, band, every=every)
        return stacked_profiles(seen, band, seed=self.seed)

    def _maps(self, changed: PreTrainedModel, profiles: xr.Dataset) -> xr.Dataset:
        """Weights of the heads that were sharpest on plain text, on a spaced text with the new table."""
        plain = profiles.profile.sel(variant="plain").where(profiles.offset != 0).max("offset").fillna(-1.0)
        order = np.argsort(-plain.values, axis=None, kind="stable")[:MAPS]
        rows, columns = np.unravel_index(order, plain.shape)
        heads = [(int(profiles["layer"][row]), int(head)) for row, head in zip(rows, columns, strict=True)]
        first = self.windows[0]
        ids = space_out([first.ids], self.spacers, self.unknown)[0]
        names = [name for token in first.tokens for name in (token, *["·"] * self.spacers)]
        maps = head_maps(changed, ids, names, heads, rows=(self.spacers + 1) * WORDS_SHOWN)
        return maps.rename(layer="shown_layer", head="shown_head")


def space_out(windows: Windows, spacers: int, spacer: int) -> list[list[int]]:
    """Put unknown tokens after each token: the inputs that `relearn_positions` trains on."""
    return [[id_ for token in ids_of(window) for id_ in (token, *[spacer] * spacers)] for window in windows]


def _check(spacers: int, steps: int, batch_size: int, learning_rate: float, masked: float, deviation: float) -> None:
    if spacers < 0 or steps < 1 or batch_size < 1:
        raise AttnscopeError(
            f"spacers is {spacers}, steps {steps} and batch_size {batch_size}; expected at least 0, 1 and 1"
        )
    if not (learning_rate > 0 and 0 < masked <= 1 and deviation >= 0):
        raise AttnscopeError(
            f"learning_rate is {learning_rate}, masked {masked} and deviation {deviation}; expected a rate above 0, "
            "a share in (0, 1] and a deviation of 0 or more"
        )


def _learned_table(loaded: LoadedModel) -> PositionTable:
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

    kind, config = type(loaded.model), loaded.model.config
    masked: Any = MODEL_FOR_MASKED_LM_MAPPING.get(type(config), None)
    if kind is not masked or config.is_encoder_decoder:
        raise AttnscopeError(
            f"{loaded.name} is a {kind.__name__}; relearning needs a masked language model with one position "
            "table, such as BertForMaskedLM"
        )
    table = position_table(loaded.model)
    if not isinstance(_parameter(loaded.model, table.name), torch.nn.Parameter) or table.scheme != "learned":
        raise AttnscopeError(
            f"the position table {table.name} of {loaded.name} is {table.scheme}; relearning needs a learned table"
        )
    return table


def _parameter(model: PreTrainedModel, name: str) -> torch.Tensor:
    """The tensor of the table of that name, whether an embedding's or a parameter of its own."""
    holder: Any = model.get_submodule(name.rpartition(".")[0])
    holder = getattr(holder, name.rpartition(".")[2])
    return holder if isinstance(holder, torch.Tensor) else holder.weight


def _token(loaded: LoadedModel, kind: str) -> int:
    token = getattr(loaded.tokenizer, f"{kind}_token_id", None)
    if token is None:
        raise AttnscopeError(f"the tokenizer of {loaded.name} has no {kind} token, which relearning needs")
    return int(token)


def _windows(corpus: Texts, loaded: LoadedModel, length: int, spacers: int, limit: int | None) -> list[Window]:
    """Full windows of as many tokens as there is room for with spacers between."""
    tokens = length // (spacers + 1)
    if tokens < FEWEST_TOKENS:
        raise AttnscopeError(
            f"{spacers} spacers leave {tokens} of {length} positions for tokens; expected {FEWEST_TOKENS} or more: "
            "choose fewer spacers or a longer window"
        )
    windows = [
        window for window in windows_of(corpus, loaded.tokenizer, length=tokens, limit=limit) if len(window) == tokens
    ]
    if not windows:
        raise AttnscopeError(f"no text holds a full window of {tokens} tokens: give longer texts")
    return windows


def _sample(window: Window, spacers: int, unknown: int) -> Sample:
    """Token ids with spacers, and which of them are never masked."""
    return {
        "input_ids": space_out([window], spacers, unknown)[0],
        "special_tokens_mask": space_out([list(map(int, window.special))], spacers, 1)[0],
    }


def _dataset(before: np.ndarray, after: np.ndarray, loss: dict[int, float]) -> xr.Dataset:
    spectra: Iterable[xr.Dataset] = (amplitude_spectrum(rows) for rows in (before, after))
    tables = xr.concat(
        list(spectra), "table", combine_attrs="override", data_vars="all", coords="minimal", compat="override"
    )
    tables = tables.assign_coords(table=["before", "after"], step=("step", list(loss)))
    return tables.assign(
        rows=labelled("table position column", np.stack([before, after]), "position table"),
        loss=labelled("step", np.array(list(loss.values())), "masked-language-model loss", "nats per masked token"),
    )


@torch.no_grad()
def collect_profiles(
    collected: Collected, name: str, model: PreTrainedModel, windows: Windows, band: int, *, every: int = 1
) -> None:
    """Profiles of all calls but cross-attention, of every `every`-th row."""

    def observe(site: Site, call: AttentionCall) -> Tensor:
        output, rows = measure(call, Need(band=band))
        if site.kind != "cross" and rows.band is not None:
            chosen = np.arange(0, call.query.shape[2], every)
            key = chosen[:, None] + np.arange(-band, band + 1)
            pairs = ((key >= 0) & (key < call.key.shape[2])).sum(0)
            sums = rows.band[:, :, ::every].double().sum(2).cpu().numpy()
            collected.add(name, site, np.where(pairs > 0, sums / np.maximum(pairs, 1), np.nan))
        return output

    read_all(model, token_ids(windows), observe)


@torch.no_grad()
def head_maps(
    model: PreTrainedModel, ids: Sequence[int], tokens: Sequence[str], heads: Sequence[tuple[int, int]], *, rows: int
) -> xr.Dataset:
    """All weights in the first rows of each head (call, head), over ``shown``: what `weight_maps` draws."""
    rows = min(rows, len(ids))
    weights: dict[tuple[int, int], np.ndarray] = {}

    def observe(site: Site, call: AttentionCall) -> Tensor:
        for layer, head in heads:
            if layer == site.index:
                weights[layer, head] = torch.cat(list(weight_rows(call, head, rows))).cpu().numpy()
        return output_of(call)

    with watching(model, observe):
        read(model, token_ids([ids]))
    weight = np.stack([weights[head] for head in heads])
    dims = ("shown", "query", "rank")
    return xr.Dataset(
        {"key": (dims, np.broadcast_to(np.arange(weight.shape[-1]), weight.shape)), "weight": (dims, weight)},
        coords={
            "token": ("query", np.array(tokens[:rows], dtype=object)),
            "layer": ("shown", [layer for layer, _ in heads]),
            "head": ("shown", [head for _, head in heads]),
        },
    )


def relearned(steps: int | str) -> Analysis:
    """The analysis that relearns positions for `steps` steps, for ``attnscope.explain(analyses=...)``."""
    if isinstance(steps, str):
        if not steps.isdecimal():
            raise AttnscopeError(f"--analyses is relearned={steps}; expected a number of steps, as in relearned=2500")
        steps = int(steps)
    check_whole(1, relearn=steps)
    return replace(
        RELEARNED,
        compute=partial(_relearn, steps=steps),
        check=partial(_relearning, steps=steps),
        settings={"relearn": steps},
    )


def _relearning(study: Study, steps: int) -> Relearning:
    """The checked training of this study, made once."""
    made = study.shared.get("relearning")
    if not isinstance(made, Relearning):
        if study.loaded is None or study.corpus is None:
            raise NotDefinedError("relearning needs a tokenizer and texts: call attnscope.explain")
        made = Relearning(study.loaded, study.corpus, steps=steps, seed=study.seed)
        study.shared["relearning"] = made
    return made


def _relearn(study: Study, steps: int) -> xr.Dataset:
    def tell(at: Progress) -> None:
        study.tell(replace(at, share=study.share))

    relearning, run = _relearning(study, steps), study.folder
    model, relearned = relearning.run(band=study.band, progress=tell)
    if run is not None:
        advice = "Free some disk space and repeat the command"
        with explained("write the relearned model", advice), run.replacing("relearned/") as new:
            relearning.save(model, new / "relearned")
    return relearned


def loss_lines(relearned: xr.Dataset) -> list[tuple[str, ...]]:
    """The loss of the first and the last steps."""
    ends = ((int(relearned["step"][at]), float(relearned["loss"][at])) for at in (0, -1))
    return [(str(step), f"loss {loss:.3f}") for step, loss in ends]


RELEARNED = Analysis(
    "relearned",
    "Relearned positions",
    "The papers' numbers",
    partial(_relearn, steps=1000),
    section=Section(
        "relearned",
        "Relearned positions",
        "Unknown tokens follow every token; the position table is reset and trained alone. A head that finds its "
        "neighbour by position then attends at the new distance. This takes many steps: the loss shows the progress.",
    ),
    pictures=(
        Picture(
            "relearned-table",
            "The table before and after",
            "Training has made waves where the blue line is above the dashed one. A peak at the spacing means that "
            "rows for tokens differ from rows for unknown tokens: only the former predict words.",
            draw="attnscope_yamamoto2023.drawing:relearned_table",
        ),
        Picture(
            "relearned-profiles",
            "Where the sharpest heads attend",
            "Black: plain text. With unknown tokens between, the head still attends at the old distance, to an unknown "
            "token. With relearned positions, the peak should be at the neighbour's new offset. Means over tokens, "
            "without unknown ones.",
            draw="attnscope_yamamoto2023.drawing:relearned_profiles",
        ),
        Picture(
            "relearned-maps",
            "Weights with relearned positions",
            "A spaced text; dots are unknown tokens, ␣ is a space. Stripes off the diagonal go from token to token.",
            draw="attnscope_yamamoto2023.drawing:relearned_maps",
            with_tokens=True,
        ),
    ),
    table=TextTable(
        "Loss while learning",
        "Mean nats per masked token. The model is in the run's folder, relearned/.",
        ("step", "loss"),
        loss_lines,
    ),
    units="nats",
    configured=relearned,
)
ANALYSES = (RELEARNED,)
