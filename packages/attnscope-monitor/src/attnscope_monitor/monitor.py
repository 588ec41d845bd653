"""Attention heads while a model trains: `HeadMonitor`, for transformers' Trainer or a loop of one's own."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import xarray as xr
from torch import Tensor, distributed, nn
from transformers import PreTrainedModel, TrainerCallback

from attnscope.capture.borrow import COMPILED, LoadedModel, borrowed, implementations, inner_model
from attnscope.capture.families import result_of
from attnscope.capture.functional import PackedTexts, before_dropout, calls_inside
from attnscope.capture.notes import layer_coordinates
from attnscope.capture.outline import reject_absent
from attnscope.capture.placement import device_of, reject_tensor_parallel
from attnscope.capture.verify import verify
from attnscope.capture.watching import watching
from attnscope.head_names import checked_choice
from attnscope.intervention.metrics import Metric, metric_of
from attnscope.kernels.call import Need
from attnscope.kernels.engines import measure, output_of
from attnscope.measure.passes import WindowBatch, measure_call
from attnscope.measure.quantities import EQUAL, KNOWN, choose, wording
from attnscope.measure.reader import BAND
from attnscope.measure.rows import Marks
from attnscope.opened import window_length
from attnscope.options import Count, Heads, Names
from attnscope.options import Metric as OwnMetric
from attnscope.read.encoded import texts_of, windows_of
from attnscope.statistics.intervals import interval
from attnscope.store.arrays import padded_heads
from attnscope.support.checked import checked
from attnscope.support.errors import AttnscopeError
from attnscope.support.state import own_random_numbers, own_state, replaced

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from attnscope.capture.functional import CapturedCall
    from attnscope.capture.watch import Site
    from attnscope.kernels.call import AttentionCall
    from attnscope.read.encoded import Sources

    Log = Callable[[dict[str, float]], None]

_log = logging.getLogger("attnscope")
#: Numbers of a head: long name, unit, and which end over heads is logged.
_NUMBERS = {
    "logit": ("Largest score before the softmax", "nats", "max"),
    "entropy": ("Entropy of a row", "nats", "min"),
    "entropy_share": ("Entropy of a row, as a share of the uniform row's", "share", "min"),
    "sink": ("Weight on the first token", "share", "max"),
    "reach": ("Mean distance between query and key", "tokens", "min"),
}


_MEASURED = ("entropy", "first_token", "attention_distance")  # statistics of a scan that they are made of


def _is_main() -> bool:
    """Whether this is the process that reports."""
    return not distributed.is_available() or not distributed.is_initialized() or distributed.get_rank() == 0


def _is_out_of_reach(model: nn.Module) -> bool:
    """Whether attention of a training's own pass cannot be seen: it is compiled, or a library's (FlashAttention)."""
    if any(hasattr(part, "_orig_mod") or vars(part).get(COMPILED) is not None for part in model.modules()):
        return True
    names = [str(name) for _, name in implementations(model.modules())]
    return any(name.startswith("flash_attention") or "/" in name for name in names)


class HeadMonitor(TrainerCallback):
    """Measure every attention head while a model trains, whose losses stay the same to the last bit.

    Before the first step and every `every` steps, the main process reads a held batch in eval mode, without gradients
    and autocast. Without a held batch, every process measures its next batch of the training, and the numbers are those
    of all their texts: in the training's own pass, before dropout, which also works if parameters are spread over
    processes (FSDP); of models that are compiled or have FlashAttention, in a pass of its own before that.

    Parameters
    ----------
    batch
        Texts, in any form of `attnscope.scan` (8 windows of at most 128 tokens), or one batch as the model takes it.
        The decoder of an encoder-decoder reads its ``labels``; for texts, what the encoder reads. None: the training's.
    tokenizer
        Tokenizer of the texts.
    every
        Steps between measurements; docs/guides/training.md states the cost.
    statistics
        Names of further statistics of `attnscope.scan`, your own too, with one number a head, in ``dataset`` alone: the
        mean over texts, its 95% interval (``NAME_low``, ``NAME_high``, from 6 texts on), and the value under uniform
        attention (``equal_NAME``). They take another pass over the scores of each measurement.
    heads
        Measure only these heads, in any form of docs/guides/own-questions.md. None: all.
    metric
        Function of the logits and the inputs of the held batch that returns a number for each text, as in
        `attnscope.intervene`. Its mean is measured and logged, and with `heads` also its change without each of them.
    log
        Function that takes a dict of scalars. ``trainer.log`` sends them to TensorBoard, wandb or trackio:
        ``heads/logit_max``, ``entropy_min``, ``entropy_share_min``, ``sink_max`` and ``reach_min`` over all heads.
    table
        Function that takes the step and a data frame of it, a row for each head, such as
        ``lambda step, heads: wandb.log({"heads": wandb.Table(dataframe=heads)}, step)``.

    Raises
    ------
    AttnscopeError
        If the texts lack a tokenizer, or the attention of the model cannot be captured. If the Trainer compiles the
        model (``torch_compile``) and there is no held batch.

    Notes
    -----
    A line in the log names the first head whose entropy is below 1% of the uniform row's, whose largest score is above
    100, or whose scores are not finite. The first two prove no failure: a previous-token head has no entropy either,
    and the softmax does not change if all scores of a row grow alike. In a loop with several processes, all of them
    call `measure_next`.

    Examples
    --------
    In a loop of one's own, ``monitor(model, step)`` measures and returns the scalars; without a held batch,
    ``monitor.measure_next(model, step)`` does it in the model's next pass:

    >>> from attnscope_zoo.catalogue import build  # pip install packages/attnscope-zoo
    >>> planted = build("previous-decoder-2")
    >>> monitor = HeadMonitor({"input_ids": planted.ids[:4]})
    >>> scalars = monitor(planted.model, 0)
    >>> dict(monitor.dataset.entropy.sizes), scalars["heads/entropy_min"] == float(monitor.dataset.entropy.min())
    ({'step': 1, 'layer': 2, 'head': 4}, True)
    """

    @checked
    def __init__(
        self,
        batch: Sources = None,
        tokenizer: Any = None,
        *,
        every: Count = 100,
        statistics: Names | str | None = None,
        heads: Heads | None = None,
        metric: OwnMetric | None = None,
        log: Log | None = None,
        table: Callable[[int, pd.DataFrame], object] | None = None,
    ) -> None:
        """Read nothing yet: the batch is read with the model."""
        if batch is not None and not isinstance(batch, Mapping) and tokenizer is None:
            raise AttnscopeError("texts need a tokenizer: give it, or one batch as the model takes it")
        self.batch, self.tokenizer, self.every = batch, tokenizer, every
        self.log, self.table = log, table
        self.statistics = choose(statistics, default=())
        several = [name for name in self.statistics if KNOWN[name].along]
        if several:
            raise AttnscopeError(f"statistics has {several[0]}, with several numbers a head: leave it out")
        if metric is not None and batch is None:
            raise AttnscopeError("a metric needs a held batch: give the monitor one")
        self.heads = checked_choice(heads)
        self.metric = None if metric is None else metric_of(metric)
        self._inputs, self._sites = dict[str, Tensor](), list["Site"]()
        self._steps, self._reported, self._next = list[xr.Dataset](), set[str](), ExitStack()
        # by layer, at the last step: numbers ``(text, head)`` of each measure, and then ``(head,)`` of all texts
        self._of_texts: dict[int, dict[str, Tensor]] = {}
        self._found: dict[int, dict[str, np.ndarray]] = {}

    @property
    def dataset(self) -> xr.Dataset:
        """All measurements, over ``step, layer, head``.

        ``logit`` is the largest score after scale, cap, bias and mask. Means over queries, then texts: ``entropy``,
        ``entropy_share`` (entropy of the weights on tokens, without a learned sink, over that of uniform attention),
        ``sink`` (weight on the first token), ``reach``.
        """
        if not self._steps:
            raise AttnscopeError("the monitor has measured nothing yet: train a step, or call it with a model")
        return xr.concat(self._steps, "step")

    def __call__(self, model: nn.Module, step: int) -> dict[str, float]:
        """Measure the heads of a model on the held batch, and return the scalars for a log."""
        inner = inner_model(model)
        if not isinstance(inner, PreTrainedModel):
            raise AttnscopeError(f"the model is a {type(model).__name__}; expected a model of transformers")
        if self.batch is None:
            raise AttnscopeError("there is no held batch: give the monitor one, or call measure_next before a pass")
        broken = None if self._sites else next((n for n, p in inner.named_parameters() if not p.isfinite().all()), None)
        if broken is not None:
            _log.warning("step %d: the weights are not finite in %s, so no head is measured", step, broken)
            return {}
        self._inputs = self._inputs or self._read(inner)
        return self._recorded(step, self._pass(inner))

    def _pass(self, model: PreTrainedModel) -> dict[tuple[int, int] | None, float]:
        """Measure the heads in a pass over the inputs, and the metric of its logits if there is one."""
        autocast = vars(model).pop("forward") if "_original_forward" in vars(model) else None  # of accelerate
        try:
            with borrowed(model), own_random_numbers(), own_state(gradients=False), torch.no_grad():
                inputs = {name: value.to(device_of(model)) for name, value in self._inputs.items()}
                which = "the batch" if self.batch is None else "the held batch"
                self._sites = self._sites or verify(model, inputs, text=which)
                reject_absent(self.heads or (), self._sites, "heads")
                with watching(model, self._observe):
                    output = model(**inputs)
                return {} if self.metric is None else self._metric(self.metric, model, inputs, result_of(model, output))
        finally:
            vars(model).update({} if autocast is None else {"forward": autocast})

    def _metric(
        self, metric: Metric, model: PreTrainedModel, inputs: dict[str, Any], logits: Tensor
    ) -> dict[tuple[int, int] | None, float]:
        """The mean metric of the held batch, and its change without each of the chosen heads."""

        def without(removed: tuple[int, int]) -> Tensor:
            def observe(site: Site, call: AttentionCall) -> Tensor:
                output = output_of(call)
                if site.index == removed[0]:
                    output = output.clone()
                    output[:, removed[1]] = 0
                return output

            with watching(model, observe):
                return result_of(model, model(**inputs))

        def mean(logits: Tensor) -> float:
            return float(metric.of_texts(logits, inputs, len(logits)).mean())

        value = mean(logits)
        return {None: value} | {head: mean(without(head)) - value for head in self.heads or ()}

    def measure_next(self, model: nn.Module, step: int) -> None:
        """Measure the heads in the next forward pass with gradients, before dropout, and log the scalars at its end.

        If the model is compiled or has FlashAttention, in a pass of its own over the same batch, without dropout. In a
        training with several processes, each calls this, and the numbers are those of the texts of all.
        """
        self._next.close()
        reject_tensor_parallel(model)
        if _is_out_of_reach(model):
            self._measure_before(model, step)
            return
        model = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
        hooks, self._sites = self._next, []
        packed = PackedTexts()

        def see(site: Site, captured: CapturedCall) -> None:
            self._sites.append(site)
            packed.add(captured)
            if not self._chosen(site.index, captured.call.query.shape[1]):
                return
            with own_state(gradients=False), torch.no_grad():
                self._measure(site, captured.call, captured.queries, captured.keys)

        def done(calls: int) -> None:
            hooks.close()  # the passes that follow, also those that gradient checkpointing repeats, are not seen
            if not calls:
                raise AttnscopeError(
                    f"no attention of {type(model).__name__} was captured in the training's pass: use "
                    'set_attn_implementation("sdpa"), or give the monitor a held batch'
                )
            missing = [*inside.uncaptured({site.name for site in self._sites})]
            if missing and "missing" not in self._reported:
                self._reported.add("missing")
                _log.warning("no attention was captured in %s, which is not measured", ", ".join(missing[:3]))
            if "packed" not in self._reported and packed.count():
                self._reported.add("packed")
                _log.warning("rows pack several documents: sink is the weight on the first token of a row")
            reject_absent(self.heads or (), self._sites, "heads")
            self._log(self._recorded(step, {}))

        inside = hooks.enter_context(calls_inside(model, see, done, hooks.close))
        hooks.callback(before_dropout.reset, before_dropout.set(True))

    def _measure_before(self, model: nn.Module, step: int) -> None:
        """Measure the batch of the next pass with gradients before that pass, in which attention is out of reach."""
        inner = inner_model(model)
        if not isinstance(inner, PreTrainedModel):
            raise AttnscopeError(f"the model is a {type(model).__name__}; expected a model of transformers")
        compiled: Any = vars(model).get(COMPILED)

        def measured(_: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
            if not torch.is_grad_enabled():
                return
            self._next.close()
            named = inspect.signature(inner.forward).bind(*arguments, **options).arguments
            more = named.pop("kwargs", {})
            self._inputs = self._arguments(inner, {**named, **more})
            self._pass(inner)
            self._log(self._recorded(step, {}))

        def first_measured(*arguments: Any, **options: Any) -> Any:
            measured(model, arguments, options)
            return compiled(*arguments, **options)

        if compiled is None:
            self._next.callback(model.register_forward_pre_hook(measured, with_kwargs=True).remove)
        else:  # by `model.compile()`: hooks would be compiled too
            self._next.enter_context(replaced(vars(model), **{COMPILED: first_measured}))

    def _log(self, scalars: dict[str, float]) -> None:
        if self.log is not None and _is_main():
            self.log(scalars)

    def _of_all_processes(self) -> dict[int, dict[str, Tensor]]:
        """Numbers of the texts of every process, by layer."""
        mine = self._of_texts
        if self.batch is not None or not distributed.is_available() or not distributed.is_initialized():
            return mine
        every: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(every, mine)
        return {
            layer: {name: torch.cat([one[layer][name] for one in every]) for name in measured}
            for layer, measured in mine.items()
        }

    def _recorded(self, step: int, changes: dict[tuple[int, int] | None, float]) -> dict[str, float]:
        """Add what was found at a step, and return its scalars."""
        self._found = {layer: self._summary(layer, of) for layer, of in self._of_all_processes().items()}
        sites = [site for site in self._sites if site.index in self._found]
        recorded = xr.Dataset(coords={"step": step, **layer_coordinates(sites)})
        scalars: dict[str, float] = {}
        for name, (long_name, units, end) in _NUMBERS.items():
            rows = [self._found[site.index][name] for site in sites]
            recorded[name] = ("layer", "head"), padded_heads(rows), {"long_name": long_name, "units": units}
            chosen = [row[self._chosen(site.index, len(row))] for site, row in zip(sites, rows, strict=True)]
            scalars[f"heads/{name}_{end}"] = float(getattr(np, end)(np.concatenate(chosen)))
        further = self._found[sites[0].index].keys() - _NUMBERS.keys()
        for name in sorted(further):
            rows = [self._found[site.index][name] for site in sites]
            dims = ("layer",) if name.startswith(EQUAL) else ("layer", "head")
            recorded[name] = dims, np.stack(rows) if len(dims) == 1 else padded_heads(rows), wording(name).attributes
        if self.metric is not None:
            words, units = self.metric.name, {"units": self.metric.unit}
            recorded["metric"] = (), changes.pop(None), {"long_name": words, **units}
            scalars[f"metric/{words}"] = float(recorded["metric"])
            cells = {(site.index, head): (row, head) for row, site in enumerate(sites) for head in range(site.heads)}
            values = np.full(recorded.logit.shape, np.nan)
            for chosen, change in changes.items():
                assert chosen is not None  # noqa: S101 it was taken out
                values[cells[chosen]] = change
                scalars["metric/{}_without_{}.{}".format(words, *chosen)] = change
            about = {"long_name": f"Change of {words} without the head", **units}
            recorded["metric_change"] = ("layer", "head"), values, about
        recorded = recorded.assign_coords(head=np.arange(recorded.sizes["head"]))
        self._steps.append(recorded)
        self._of_texts = {}
        if _is_main():
            self._report(step)
            if self.table is not None:
                of_heads = [name for name, values in recorded.data_vars.items() if "head" in values.dims]
                rows = recorded[of_heads].to_dataframe().dropna(how="all", subset=of_heads)
                self.table(step, rows.reset_index().drop(columns="step"))
        return scalars

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Measure the first pass of every `every` steps, without a held batch, in every process."""
        if self.batch is not None or state.global_step % self.every:
            return
        if getattr(args, "torch_compile", False):
            raise AttnscopeError("the Trainer compiles the model (torch_compile): give the monitor a held batch")
        self.measure_next(kwargs["model"], state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Measure the held batch every `every` steps."""
        if self.batch is None or state.global_step % self.every or not state.is_world_process_zero:
            return
        scalars, logs = self(kwargs["model"], state.global_step), control.should_log
        if self.log is not None:
            self.log(scalars)
            control.should_log = logs  # which the Trainer's log resets: the loss of this step would be left out

    on_train_begin = on_step_end

    def _read(self, model: PreTrainedModel) -> dict[str, Any]:
        """Arguments of the model."""
        if not isinstance(self.batch, Mapping):
            longest = window_length(LoadedModel(model, self.tokenizer, "", {}), None)
            windows = windows_of(texts_of(self.batch), self.tokenizer, length=min(longest, 128), limit=8)
            return WindowBatch.of([*windows], 0).inputs(model)
        return self._arguments(model, cast("Mapping[str, Any]", self.batch))

    @staticmethod
    def _arguments(model: PreTrainedModel, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of a model, without labels, which the decoder of an encoder-decoder reads."""
        inputs = {name: torch.as_tensor(value) for name, value in batch.items() if value is not None}
        labels, decoder = inputs.pop("labels", None), cast("Any", model)
        if labels is not None and model.config.is_encoder_decoder and "decoder_input_ids" not in inputs:
            inputs["decoder_input_ids"] = decoder.prepare_decoder_input_ids_from_labels(labels)
            inputs["decoder_attention_mask"] = (labels >= 0).long()
        return inputs

    def _chosen(self, layer: int, heads: int) -> list[int]:
        """The heads of a layer that are measured."""
        return [head for head in range(heads) if self.heads is None or (layer, head) in self.heads]

    def _observe(self, site: Site, call: AttentionCall) -> Tensor:
        """Measure a call on the held batch."""
        if not self._chosen(site.index, call.query.shape[1]):
            return output_of(call)
        decoder = "decoder_" if any(name.startswith("decoder_") for name in self._inputs) else ""

        def real(side: str, states: Tensor) -> Tensor:
            mask, shape = self._inputs.get(f"{side}attention_mask"), (len(states), states.shape[2])
            return (torch.ones(shape) if mask is None or mask.shape != shape else mask).to(states.device) > 0

        queries = real("" if site.kind == "self" else decoder, call.query)
        return self._measure(site, call, queries, real(decoder if site.kind == "causal" else "", call.key))

    def _measure(self, site: Site, call: AttentionCall, queries: Tensor, keys: Tensor) -> Tensor:
        """Store the numbers of a call, ``(text, head)`` each; `queries` and `keys` are real tokens."""
        reach, marks = max(call.query.shape[2], call.key.shape[2]) - 1, Marks(queries, keys, torch.zeros_like(keys))
        of_texts = dict(measure_call(call, _MEASURED, 0, reach, marks)[1])
        of_texts["entropy_of_tokens"] = of_texts["entropy"]
        if call.sinks is not None:  # a head that gives its weight to a learned sink attends to no single token
            of_tokens = measure_call(replace(call, sinks=None), ("entropy",), 0, reach, marks)[1]
            of_texts["entropy_of_tokens"] = of_tokens["entropy"]
        output, rows = measure(call, Need(largest=True))
        hidden = ~queries[:, None] | (rows.mass == 0)  # NaN stays
        logit = (rows.log_sum_exp + cast("Tensor", rows.largest).log()).masked_fill(hidden, -torch.inf)
        of_texts["logit"] = logit.amax(2)
        if self.statistics:
            of_texts |= measure_call(call, self.statistics, min(BAND, reach), reach, marks)[1]
        self._of_texts[site.index] = {name: of.cpu() for name, of in of_texts.items()}
        return output

    def _summary(self, layer: int, of_texts: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
        """The numbers of a layer over all texts, ``(head,)`` each; NaN for heads that were not asked for."""
        mean = {name: of.nanmean(0).numpy() for name, of in of_texts.items()}
        numbers = {
            "logit": of_texts["logit"].amax(0).numpy(),
            "entropy": mean["entropy"],
            "entropy_share": mean["entropy_of_tokens"] / mean[f"{EQUAL}entropy"],
            "sink": mean["first_token"],
            "reach": mean["attention_distance"],
        }
        for name in self.statistics:
            numbers[name] = mean[name]
            numbers[f"{name}_low"], numbers[f"{name}_high"] = interval(
                of_texts[name].numpy(), range(len(of_texts[name]))
            )
        others = np.ones(len(numbers["logit"]), dtype=bool)
        others[self._chosen(layer, len(others))] = False
        numbers = {name: np.where(others, np.nan, of) for name, of in numbers.items()}
        equal = [f"{EQUAL}{name}" for name in self.statistics if f"{EQUAL}{name}" in mean]
        return numbers | {name: mean[name][0] for name in equal}

    def _report(self, step: int) -> None:
        """A line in the log for the first head of each kind."""
        for what, shows in (
            ("has scores that are not finite", lambda of: ~np.isfinite(of["logit"])),
            ("has a score above 100", lambda of: of["logit"] > 100),  # noqa: PLR2004
            ("has an entropy below 1% of the uniform row's", lambda of: of["entropy_share"] < 0.01),  # noqa: PLR2004
        ):
            heads = [
                f"{layer}.{head}"
                for layer, of in self._found.items()
                for head in self._chosen(layer, len(of["logit"]))
                if shows(of)[head]
            ]
            if heads and what not in self._reported:
                self._reported.add(what)
                _log.warning("step %d: head %s %s (%d such heads)", step, heads[0], what, len(heads))
