"""Attention heads while a model trains: `HeadMonitor`, for transformers' Trainer or a loop of one's own."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainerCallback

from attnscope.capture.borrow import LoadedModel, borrowed, inner_model
from attnscope.capture.families import main_output
from attnscope.capture.functional import PackedTexts, before_dropout, calls_inside
from attnscope.capture.notes import layer_coordinates
from attnscope.capture.outline import reject_absent
from attnscope.capture.placement import device_of
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
from attnscope.support.state import own_random_numbers, own_state

if TYPE_CHECKING:
    from collections.abc import Callable

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


class HeadMonitor(TrainerCallback):
    """Measure every attention head while a model trains, whose losses stay the same to the last bit.

    Before the first step and every `every` steps, the main process reads a held batch in eval mode, without gradients
    and autocast. Without a held batch, it measures its next batch of the training in the training's own pass, before
    dropout, which also works if parameters are spread over processes (FSDP).

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
        ``heads/logit_max``, ``entropy_min``, ``entropy_share_min``, ``sink_max`` and ``reach_min`` over all heads, and
        by layer (``heads/logit_max/layer_3``).

    Raises
    ------
    AttnscopeError
        If the texts lack a tokenizer, or the attention of the model cannot be captured: in the training's own pass,
        that of PyTorch's functions (``sdpa``, ``eager``, ...), without ``torch.compile``.

    Notes
    -----
    A line in the log names the first head whose entropy is below 1% of the uniform row's, whose largest score is above
    100, or whose scores are not finite. The first two prove no failure: a previous-token head has no entropy either,
    and the softmax does not change if all scores of a row grow alike.

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
    ) -> None:
        """Read nothing yet: the batch is read with the model."""
        if batch is not None and not isinstance(batch, Mapping) and tokenizer is None:
            raise AttnscopeError("texts need a tokenizer: give it, or one batch as the model takes it")
        self.batch, self.tokenizer, self.every, self.log = batch, tokenizer, every, log
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
        self._found: dict[int, dict[str, np.ndarray]] = {}  # by layer, at the last step

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
        autocast = vars(inner).pop("forward") if "_original_forward" in vars(inner) else None  # of accelerate
        try:
            with borrowed(inner), own_random_numbers(), own_state(gradients=False), torch.no_grad():
                self._inputs = self._inputs or self._read(inner)
                inputs = {name: value.to(device_of(inner)) for name, value in self._inputs.items()}
                self._sites = self._sites or verify(inner, inputs, text="the held batch")
                reject_absent(self.heads or (), self._sites, "heads")
                with watching(inner, self._observe):
                    output = inner(**inputs)
                changes = {} if self.metric is None else self._metric(self.metric, inner, inputs, main_output(output))
        finally:
            vars(inner).update({} if autocast is None else {"forward": autocast})
        return self._recorded(step, changes)

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
                return main_output(model(**inputs))

        def mean(logits: Tensor) -> float:
            return float(metric.of_texts(logits, inputs, len(logits)).mean())

        value = mean(logits)
        return {None: value} | {head: mean(without(head)) - value for head in self.heads or ()}

    def measure_next(self, model: nn.Module, step: int) -> None:
        """Measure the heads in the next forward pass with gradients, before dropout, and log the scalars at its end."""
        self._next.close()
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
            scalars = self._recorded(step, {})
            if self.log is not None:
                self.log(scalars)

        inside = hooks.enter_context(calls_inside(model, see, done, hooks.close))
        hooks.callback(before_dropout.reset, before_dropout.set(True))

    def _recorded(self, step: int, changes: dict[tuple[int, int] | None, float]) -> dict[str, float]:
        """Add what was found at a step, and return its scalars."""
        sites = [site for site in self._sites if site.index in self._found]
        recorded = xr.Dataset(coords={"step": step, **layer_coordinates(sites)})
        scalars: dict[str, float] = {}
        for name, (long_name, units, end) in _NUMBERS.items():
            rows = [self._found[site.index][name] for site in sites]
            recorded[name] = ("layer", "head"), padded_heads(rows), {"long_name": long_name, "units": units}
            layers = {
                f"/layer_{site.index}": float(getattr(row[self._chosen(site.index, len(row))], end)())
                for site, row in zip(sites, rows, strict=True)
            }
            layers[""] = float(getattr(np, end)([*layers.values()]))
            scalars |= {f"heads/{name}_{end}{of}": value for of, value in layers.items()}
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
        self._steps.append(recorded.assign_coords(head=np.arange(recorded.sizes["head"])))
        self._report(step)
        return scalars

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Measure the first pass of every `every` steps, without a held batch."""
        if self.batch is None and not state.global_step % self.every and state.is_world_process_zero:
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
        inputs = {name: torch.as_tensor(value) for name, value in cast("Mapping[str, Any]", self.batch).items()}
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
        """Store the numbers of a call, ``(head,)`` each; `queries` and `keys` are real tokens."""
        names = ("entropy", "first_token", "attention_distance")
        reach, marks = max(call.query.shape[2], call.key.shape[2]) - 1, Marks(queries, keys, torch.zeros_like(keys))
        means = {name: of.nanmean(0) for name, of in measure_call(call, names, 0, reach, marks)[1].items()}
        # a head that gives its weight to a learned sink attends to no single token
        entropy = means["entropy"]
        if call.sinks is not None:
            of_tokens = measure_call(replace(call, sinks=None), names[:1], 0, reach, marks)[1]
            entropy = of_tokens["entropy"].nanmean(0)
        output, rows = measure(call, Need(largest=True))
        hidden = ~queries[:, None] | (rows.mass == 0)  # NaN stays
        logit = (rows.log_sum_exp + cast("Tensor", rows.largest).log()).masked_fill(hidden, -torch.inf).amax((0, 2))
        values = (logit, means["entropy"], entropy / means[f"{EQUAL}entropy"], *(means[n] for n in names[1:]))
        self._found[site.index] = {name: of.cpu().numpy() for name, of in zip(_NUMBERS, values, strict=True)}
        if self.statistics:
            further = measure_call(call, self.statistics, min(BAND, reach), reach, marks)[1]
            for name, of in further.items():
                mean = of.nanmean(0).cpu().numpy()
                self._found[site.index][name] = mean[0] if name.startswith(EQUAL) else mean
                if not name.startswith(EQUAL):
                    low, high = interval(of.cpu().numpy(), range(len(of)))
                    self._found[site.index] |= {f"{name}_low": low, f"{name}_high": high}
        others = np.ones(call.query.shape[1], dtype=bool)
        others[self._chosen(site.index, len(others))] = False
        self._found[site.index] = {
            name: np.where(others, np.nan, of) if of.ndim else of for name, of in self._found[site.index].items()
        }
        return output

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
