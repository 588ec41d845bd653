"""One batch of windows through a watched model: every statistic of every head, labelled."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope.capture.notes import layer_coordinates
from attnscope.capture.placement import device_of
from attnscope.kernels.bins import bin_ranges, far_starts
from attnscope.kernels.call import AttentionCall, Need, RowMeasures, with_mass
from attnscope.kernels.engines import measure, output_of
from attnscope.kernels.masks import RowMask
from attnscope.measure.maps import KEPT, BlockSums
from attnscope.measure.quantities import (
    CHOSEN,
    EQUAL,
    EVERY_WEIGHT,
    KNOWN,
    OF_SUMS,
    SECOND_PASS,
    STRONGEST,
    RowMeasure,
    attributes_of,
    dimensions,
    needs_of,
    of_rows,
)
from attnscope.measure.row_samples import sampled_statistics
from attnscope.measure.rows import (
    FIRST,
    Eligible,
    GroupMarks,
    GroupPlaces,
    Marks,
    PackedSums,
    Rows,
    SecondPass,
    equal_rows,
    evenly,
    reduce_call,
    second_pass,
)
from attnscope.options import OBSERVATION
from attnscope.read.windows import Batch, collate

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from transformers import PreTrainedModel

    from attnscope.capture.watch import Site
    from attnscope.measure.row_samples import RowSample
    from attnscope.measure.sample import WordBatch
    from attnscope.read.windows import Window


@dataclass(frozen=True, eq=False)
class WindowBatch:
    """A batch of windows."""

    text: Batch  # input of the encoder, or of a model's only stack
    target: Batch  # input of a decoder with an encoder
    arguments: Mapping[str, Any] | None = None  # of the forward pass, if not the tokens
    keys: Batch | None = None  # the encoder's tokens as keys, if not those of its queries

    @classmethod
    def with_arguments(
        cls, arguments: Mapping[str, Any], windows: Sequence[Window], device: torch.device | str = "cpu"
    ) -> WindowBatch:
        """Windows with other arguments for the model than token ids."""
        text = collate(windows, 0, device)
        return cls(text, text, arguments)

    @classmethod
    def of(cls, windows: Sequence[Window], pad_id: int, device: torch.device | str = "cpu") -> WindowBatch:
        """A batch of windows and their targets."""
        text = collate(windows, pad_id, device)
        if all(window.target is None for window in windows):
            return cls(text, text)
        return cls(text, collate([window.target or window for window in windows], pad_id, device))

    def sides(self, kind: str, device: torch.device | None = None) -> tuple[Batch, Batch]:
        """Inputs of queries and keys by type of attention, on a device: a decoder is causal or has cross-attention."""
        keys = self.text if self.keys is None else self.keys
        queries, keys = self.text if kind == "self" else self.target, self.target if kind == "causal" else keys
        return (queries, keys) if device is None else (queries.on(device), keys.on(device))

    def on_host(self) -> WindowBatch | None:
        """The same on the host, unless it would have to be copied there."""
        sides = [None if side is None else side.on_host() for side in (self.text, self.target, self.keys)]
        text, target, keys = sides
        if text is None or target is None or (keys is None and self.keys is not None):
            return None
        return replace(self, text=text, target=target, keys=keys)

    def inputs(self, model: PreTrainedModel) -> dict[str, Any]:
        """Arguments of the forward pass."""
        if self.arguments is not None:
            return dict(self.arguments)
        arguments = self.text.arguments(model.dtype)
        if model.config.is_encoder_decoder:
            arguments |= {f"decoder_{name}": value for name, value in self.target.arguments(model.dtype).items()}
        return arguments


def plan(names: Sequence[str], band: int, columns: Tensor, reach: int = 0, *, equal: bool = False) -> Need:
    """Combine the needs of the statistics into one request for one pass."""
    wanted = needs_of(names, equal=equal)
    need = _planned(wanted, band, reach)
    return replace(need, columns=columns) if "columns" in wanted else need


def planned_need(names: Sequence[str], band: int, reach: int) -> Need:
    """The measures of each row, for the plan of a run, with columns of the first and the special tokens."""
    return plan(names, band, torch.zeros(1, 2, 2), reach)


def waiting_bytes(model: torch.nn.Module) -> int:
    """Bytes of rows that wait on the device of a model."""
    return _WAIT if device_of(model).type == "cuda" else _WAIT >> 4


@lru_cache(maxsize=32)
def _planned(wanted: frozenset[str | RowMeasure], band: int, reach: int) -> Need:
    flags: dict[str, Any] = {
        name: name in wanted for name in ("entropy", "offsets", "variance", "largest", "largest_key", "collision")
    }
    bins = far_starts(band, reach) if "bins" in wanted else ()
    return Need(band if "band" in wanted else None, bins=bins, **flags)


def settings_of(names: Sequence[str], observation: int) -> dict[str, int]:
    """The observation window in a signature; empty if no statistic uses it."""
    return {"observation": observation} if "recent" in needs_of(names) else {}


WEIGHT_AT = "weight_at"


def drop_fully_masked(numbers: dict[str, Tensor]) -> dict[str, Tensor]:
    """Statistics of a call, with NaN for the weight at offsets that the mask hides."""
    names = (WEIGHT_AT, f"{EQUAL}{WEIGHT_AT}")
    measured, equal = ((numbers[name] > 0).any(1, keepdim=True) for name in names)
    somewhere = measured | equal
    return numbers | {name: numbers[name].where(somewhere, float("nan")) for name in names}


class HostOffloader(dict[int, dict[str, Tensor]]):
    """Tensors of each layer: on CUDA copied to the host asynchronously, and waited for by `layers`."""

    def __init__(self) -> None:
        super().__init__()
        self._events: list[torch.cuda.Event] = []  # after which all copies are complete

    def add(self, layer: int, tensors: Mapping[str, Tensor]) -> None:
        """Start copying the tensors of a layer."""
        self[layer] = self.copied(tensors)

    def copied(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors that are on the host once they were waited for."""
        device = next((tensor.device for tensor in tensors.values() if tensor.is_cuda), None)
        with nullcontext() if device is None else torch.cuda.device(device):  # whose stream copies and event are in
            # the copy runs on the stream behind the kernels of its layer; the host waits for the event before it reads
            copies = {name: tensor.to("cpu", non_blocking=device is not None) for name, tensor in tensors.items()}
            if device is not None:
                self._events.append(torch.cuda.Event())
                self._events[-1].record()
        return copies

    def wait(self) -> None:
        """Wait until all copies are complete."""
        for event in self._events:
            event.synchronize()

    def layers(self) -> list[dict[str, Tensor]]:
        """The tensors of all layers, in their order."""
        self.wait()
        return [self[layer] for layer in sorted(self)]


@dataclass(eq=False)
class StatisticsObserver:
    """Measures each attention call as it happens; stores ``(batch, head, ...)`` of each, in float64, on the host."""

    names: Sequence[str]  # names of statistics, the largest offset of the band, and the largest with a bin
    band: int
    # the model's input, which marks padding and special tokens on either side of a call
    reading: WindowBatch
    reach: int = 0  # the largest offset with a bin
    groups: int = 0  # number of groups of tokens; 0 for none
    words: WordBatch | None = None  # the same windows by words, if these are measured instead of tokens
    sample: RowSample | None = None  # the measured rows, if sampled
    observation: int = OBSERVATION  # queries at the end of each text for ``recent_...`` statistics
    chosen: Sequence[int] = ()  # offsets of ``weight_at``
    # of each site; ``equal_...`` is uniform attention over the visible tokens, with one head
    measured: HostOffloader = field(default_factory=HostOffloader)
    _waiting: dict[Any, _Waiting] = field(default_factory=dict[Any, "_Waiting"])

    def __call__(self, site: Site, call: AttentionCall) -> Tensor:
        merged = None if self.words is None else self.words.merged(site.kind, call)
        reading, read, mass, equal = self.reading, call, None, None
        if self.words is not None and merged is not None:
            reading, read, mass, equal = self.words.words, merged.call, merged.mass, merged.equal
        if merged is None and self._waits:
            return self._postponed(site, call)
        marks = self._marks(reading, site, read)
        output, measured = measure_call(
            read, self.names, self.band, self.reach, marks, mass, equal, self.sample, self.observation, self.chosen
        )
        self.measured.add(site.index, measured)
        return output if merged is None else output_of(call)

    def _marks(self, reading: WindowBatch, site: Site, call: AttentionCall) -> Marks:
        queries, keys = reading.sides(site.kind)
        query_valid, query_special, query_groups = _marks(queries, call.query)
        key_valid, special, key_groups = _marks(keys, call.key)
        groups = GroupMarks(query_groups, key_groups, self.groups) if self.groups else None
        ids = queries.input_ids.to(query_valid.device), keys.input_ids.to(key_valid.device)
        is_text = self.words is None and reading.arguments is None
        is_text = is_text and ids[0].shape == query_valid.shape and ids[1].shape == key_valid.shape
        with_first = site.kind == "cross"
        return Marks(query_valid, key_valid, special, groups, query_special, with_first, ids if is_text else None)

    @cached_property
    def _waits(self) -> bool:
        """Whether all statistics are sums over the rows of one pass."""
        needs = needs_of(self.names) | needs_of(_nulls(self.names), equal=True)
        by_pass = not needs & {*SECOND_PASS, CHOSEN, EVERY_WEIGHT, "blocks"} and not of_rows(needs)
        return by_pass and self.sample is None and not self.groups

    def _postponed(self, site: Site, call: AttentionCall) -> Tensor:
        """Measure the rows of a call, and leave their sums until those of other layers are taken.

        The hundreds of small sums of a layer take less time than to launch them, on a GPU or from Python.
        """
        mask = call.mask
        # layers whose masks share memory and shape see the same keys: their null is computed once
        memory = id(mask) if mask is None or isinstance(mask, RowMask) else (mask.data_ptr(), mask.stride(), mask.shape)
        seen = call.causal, memory, None if call.bias is None else site.index
        kind = site.kind, call.query.shape[2], call.key.shape[2], call.query.device, seen
        if kind not in self._waiting:
            self._waiting[kind] = self._alike(site, call)
        waiting = self._waiting[kind]
        output, rows = measure(call, plan(self.names, self.band, waiting.columns, self.reach))
        waiting.rows[site.index] = rows
        sizes = [part.nbytes for part in vars(rows).values() if part is not None]
        if len(waiting.rows) * sum(sizes) > (_WAIT if call.query.is_cuda else _WAIT >> 4):
            self._settle()
        return output

    def _alike(self, site: Site, call: AttentionCall) -> _Waiting:
        """All that a call shares with those of other layers in which each query may see the same keys."""
        measured, mask, device, reading = call, call.mask, call.query.device, self.reading
        if mask is None and call.bias is None and call.positions is None and (host := reading.on_host()) is not None:
            call, reading = _on_host(call), host  # what follows launches nothing
        marks = self._marks(reading, site, call)
        # a transposed copy: the keys of one column are adjacent in memory
        columns = marks.columns().mT.contiguous().mT  # as the kernel of CUDA reads them
        need = plan(_nulls(self.names), self.band, columns, self.reach, equal=True)
        eligible = marks.eligible(call).on(device) if STRONGEST in self.names else None
        return _Waiting(
            self.names,
            mask,
            marks,
            columns.to(device),
            marks.queries.to(device),
            equal_rows(call, need),
            None if OF_SUMS.issuperset(self.names) else self._marks(self.reading, site, measured),
            eligible,
        )

    def _settle(self) -> None:
        """Reduce the rows that wait: the heads of all layers as those of one."""
        for waiting in self._waiting.values():
            if waiting.rows:
                waiting.settle(self.measured)

    def layers(self) -> list[dict[str, Tensor]]:
        """The tensors of all layers, in their order."""
        self._settle()
        self.measured.wait()
        for waiting in self._waiting.values():
            waiting.arrive(self.measured)
        return self.measured.layers()


_WAIT = 1 << 30  # bytes of rows on a GPU; on the CPU a 16th of it


@dataclass(eq=False)
class _Waiting:
    """Rows of calls in which each query may see the same keys, by layer."""

    names: Sequence[str]  # of statistics
    mask: Tensor | None  # of these calls, kept alive: its address tells them from others
    marks: Marks  # on the host for calls without a mask or a bias
    columns: Tensor  # on the device of these calls, as all below but `equal`
    valid: Tensor
    equal: RowMeasures  # of uniform attention, where `marks` are
    marks_there: Marks | None  # for statistics that need the rows
    eligible: Eligible | None
    rows: dict[int, RowMeasures] = field(default_factory=dict[int, RowMeasures])
    # on their way to the host: the heads of each layer, the form of the sums, and tensors
    leaving: list[tuple[dict[int, int], PackedSums, dict[str, Tensor]]] = field(default_factory=list[Any])

    @cached_property
    def of_equal(self) -> dict[str, Tensor]:
        """The statistics of uniform attention, which all these calls share."""
        nulls, marks = _nulls(self.names), self.marks
        of_equal = reduce_call(self.equal, nulls, marks.queries, marks.keys, equal=True, ids=marks.ids)
        return {f"{EQUAL}{name}": of_equal[name] for name in nulls}

    def settle(self, measured: HostOffloader) -> None:
        """Sum the rows, the heads of all layers as those of one, and start copying the sums to the host."""
        several, marks = [*self.rows.values()], self.marks
        sums = PackedSums.of(several, self.valid)
        tensors = {"sums": sums.packed, "queries": marks.queries.sum(1), "keys": marks.keys.sum(1)}
        if self.marks_there is not None:
            marks, names = self.marks_there, [name for name in self.names if name not in OF_SUMS]
            rows, eligible = _side_by_side(several, needs_of(names)), self.eligible
            tensors |= reduce_call(rows, names, marks.queries, marks.keys, eligible=eligible, ids=marks.ids)
        heads = {layer: len(rows.mass[0]) for layer, rows in self.rows.items()}
        self.leaving.append((heads, sums, measured.copied(tensors | self.of_equal)))
        self.rows.clear()

    def arrive(self, measured: HostOffloader) -> None:
        """Compute the statistics of the layers from what arrived."""
        for heads, sums, tensors in self.leaving:
            rows = Rows.of_sums(sums.unpacked(tensors["sums"]), tensors["queries"], tensors["keys"])
            reduced = {name: KNOWN[name].reduce(rows) if name in OF_SUMS else tensors[name] for name in self.names}
            parts = {name: values.split([*heads.values()], 1) for name, values in reduced.items()}
            of_equal = {name: tensors[name] for name in self.of_equal}
            measured |= {layer: {name: parts[name][at] for name in parts} | of_equal for at, layer in enumerate(heads)}
        self.leaving.clear()


def _on_host(call: AttentionCall) -> AttentionCall:
    """A call of the same positions without its numbers, on the host."""
    # one number seen as the whole: uniform attention needs positions alone
    query, key, value = (torch.zeros(1).expand(*side.shape[:3], 1) for side in (call.query, call.key, call.value))
    return AttentionCall(query, key, value, call.scale, call.causal)


def _nulls(names: Sequence[str]) -> list[str]:
    return [name for name in names if KNOWN[name].has_equal]


def _side_by_side(several: Sequence[RowMeasures], needs: Collection[str | RowMeasure]) -> RowMeasures:
    """The rows of several calls as those of one with all their heads, as far as statistics need them."""
    named = {"offsets": "mean_offset", "variance": "offset_variance"}
    fields = {"log_sum_exp", "mass", *(named.get(need, need) for need in needs if isinstance(need, str))}
    measured = [name for name, part in vars(several[0]).items() if part is not None and name in fields]
    return RowMeasures(**{name: torch.cat([*map(attrgetter(name), several)], 1) for name in measured})


def measure_call(
    call: AttentionCall,
    names: Sequence[str],
    band: int,
    reach: int,
    marks: Marks,
    mass: Tensor | None = None,
    equal: AttentionCall | None = None,
    sample: RowSample | None = None,
    observation: int = OBSERVATION,
    chosen: Sequence[int] = (),
) -> tuple[Tensor, dict[str, Tensor]]:
    """Output and statistics of one attention call, ``(batch, head, ...)`` each, on its device."""
    columns = marks.columns()
    need, needs = plan(names, band, columns, reach), needs_of(names)
    sums = partial(second_pass, valid=marks.queries, observation=observation, reach=reach, chosen=chosen)
    even_blocks: BlockSums | None = None
    if sample is None:
        output, rows = measure(call, need)
        # weights scaled to a mass are those of a larger log-sum-exp
        level = rows.log_sum_exp if mass is None else rows.log_sum_exp - mass.log()
        second, groups = sums(call, level, needs=needs), marks.groups
        if "blocks" in needs:
            blocks, even_blocks = BlockSums.of(call, level, marks.queries, equal)
            second = replace(second, blocks=blocks)
        if groups is not None and "position_group_weight" in names:
            places = GroupPlaces.of(call, need, columns[..., FIRST] > 0, groups.columns(groups.keys))
            groups = replace(groups, places=places)
        rows = rows if mass is None else with_mass(rows, mass)
        eligible = marks.eligible(call) if STRONGEST in names else None
        reduced = reduce_call(rows, names, marks.queries, marks.keys, groups, second, eligible, ids=marks.ids)
    else:
        valid = (marks.queries, marks.keys)
        output, reduced = sampled_statistics(call, need, names, valid, sample, partial(sums, needs=needs))
    reduced |= of_uniform(call, names, band, reach, marks, sums, equal, even_blocks)
    return output, drop_fully_masked(reduced) if WEIGHT_AT in reduced else reduced


def of_uniform(
    call: AttentionCall,
    names: Sequence[str],
    band: int,
    reach: int,
    marks: Marks,
    sums: Callable[..., SecondPass],
    equal: AttentionCall | None = None,
    blocks: BlockSums | None = None,
) -> dict[str, Tensor]:
    """Statistics of uniform attention over the keys that a call may see, or of the call `equal`."""
    nulls = _nulls(names)
    if not nulls:
        return {}
    need = plan(nulls, band, marks.columns(), reach, equal=True)
    needs = needs_of(nulls, equal=True)
    even, flat = equal_rows(call, need) if equal is None else measure(equal, need)[1], equal
    if flat is None:
        needs |= {"offset_sum"} if "distance" in needs else set()  # there is no mean offset to tell it by
        flat = evenly(call) if needs & {*SECOND_PASS, CHOSEN, EVERY_WEIGHT} or of_rows(needs) else call
    second = replace(sums(flat, even.log_sum_exp, needs=needs), blocks=blocks)
    reduced = reduce_call(even, nulls, marks.queries, marks.keys, marks.groups, second, equal=True, ids=marks.ids)
    return {f"{EQUAL}{name}": value for name, value in reduced.items()}


def stacked(measured: Sequence[dict[str, Tensor]]) -> dict[str, np.ndarray]:
    """``(batch, layer, head, ...)`` each; NaN for heads that a layer lacks."""
    heads = max(next(iter(layer.values())).shape[1] for layer in measured)
    arrays: dict[str, np.ndarray] = {}
    for name in measured[0]:
        layers = [layer[name].numpy() for layer in measured]
        if name.startswith(EQUAL):
            arrays[name] = np.concatenate(layers, axis=1)
            continue
        # layers may have fewer heads than others (pruned models)
        arrays[name] = np.full((layers[0].shape[0], len(layers), heads, *layers[0].shape[2:]), np.nan)
        for index, layer in enumerate(layers):
            arrays[name][:, index, : layer.shape[1]] = layer
    return arrays


def _marks(text: Batch, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Real and special tokens of one side, and groups; a side that is not of text (audio, patches) is all real."""
    shape = (states.shape[0], states.shape[2])
    device = states.device  # a model may be on several
    ungrouped = torch.full(shape, -1, device=device)
    if text.valid.shape != shape:
        real = torch.ones(shape, dtype=torch.bool, device=device)
        return real, ~real, ungrouped
    return text.valid.to(device), text.special.to(device), ungrouped if text.groups is None else text.groups.to(device)


def labelled(
    arrays: Mapping[str, np.ndarray],
    sites: Sequence[Site],
    band: int,
    reach: int,
    lengths: Mapping[str, np.ndarray],
    sources: Sequence[tuple[str, int]],
    first: int = 0,
    groups: Sequence[str] = (),
    unit: str = "tokens",
    by: Sequence[str] | None = None,
    chosen: Sequence[int] = (),
) -> xr.Dataset:
    """Name the dimensions of arrays, with coordinates."""
    dims = {name: dimensions(name) for name in arrays}
    heads = next(arrays[name].shape[2] for name in arrays if "head" in dims[name])
    tokens = {"long_name": unit, "units": unit}
    offsets = np.array(chosen, np.int64), {"long_name": "Chosen offset, key minus query", "units": unit}
    return xr.Dataset(
        {name: (dims[name], array, attributes_of(name, unit)) for name, array in arrays.items()}
        | {name: ("window", counts, tokens) for name, counts in lengths.items()}
        | {
            "source": ("window", np.array([source for source, _ in sources], dtype=object)),
            "start": ("window", np.array([start for _, start in sources], dtype=np.int64)),
        },
        coords={
            "window": np.arange(first, first + len(sources)),
            **({} if by is None else {"by": ("window", np.array(by, dtype=object))}),
            **layer_coordinates(sites),
            "head": np.arange(heads),
            "offset": np.arange(-band, band + 1),
            **({"kept": list(KEPT)} if "kept" in itertools.chain(*dims.values()) else {}),
            **({} if "bin_sum" not in arrays else bin_coordinates(band, reach)),
            **({} if WEIGHT_AT not in arrays else {"chosen_offset": ("chosen_offset", *offsets)}),
            **({} if "offset_sum" not in arrays else {"every_offset": np.arange(-reach, reach + 1)}),
            **({} if STRONGEST not in arrays else {"part": ["weight", "query", "key"]}),
            **{side: np.array(groups, dtype=object) for side in ("group_query", "group_key") if groups},
        },
    ).set_coords(["source", "start"])


def bin_coordinates(band: int, reach: int) -> dict[str, Any]:
    """Coordinates of the bins of offsets: the offset nearest to 0 as name, and the first and last offset."""
    ranges = np.array(bin_ranges(band, reach))
    return {
        "offset_bin": np.where(ranges[:, 0] < 0, ranges[:, 1], ranges[:, 0]),
        "bin_first": ("offset_bin", ranges[:, 0]),
        "bin_last": ("offset_bin", ranges[:, 1]),
    }
