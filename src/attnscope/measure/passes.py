"""One batch of windows through a watched model: every statistic of every head."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from attnscope.kernels.call import with_mass
from attnscope.kernels.engines import measure, output_of
from attnscope.measure.forms import equal_rows
from attnscope.measure.group_places import GroupPlaces
from attnscope.measure.maps import BlockSums
from attnscope.measure.observer import OBSERVATION, Asking, drop_fully_masked, plan, reduce_call
from attnscope.measure.pools import HostOffloader
from attnscope.measure.quantities import BY_GROUP, EQUAL, KNOWN, without_end
from attnscope.measure.row_samples import sampled_statistics
from attnscope.measure.rows import FIRST, GroupMarks, SecondPass, indicator_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from attnscope.capture.watch import Site
    from attnscope.kernels.call import AttentionCall, Need, RowMeasures
    from attnscope.measure.observer import WindowBatch
    from attnscope.measure.row_samples import RowSample
    from attnscope.measure.sample import WordBatch
    from attnscope.read.windows import Batch


@dataclass(eq=False)
class StatisticsObserver:
    """Measures each attention call as it happens; keeps ``(batch, head, ...)`` of each, in float64, on the host."""

    names: Sequence[str]  # which statistics, the largest offset of the band, and the largest that has a bin
    band: int
    # what the model reads: it tells real tokens from padding, and special tokens, on either side of a call
    reading: WindowBatch
    reach: int = 0  # which statistics, the largest offset of the band, and the largest that has a bin
    groups: int = 0  # how many groups the tokens are in; 0 for none
    words: WordBatch | None = None  # the same windows by words, where these are measured instead of tokens
    sample: RowSample | None = None  # which rows are measured, where some stand for all
    observation: int = OBSERVATION  # queries at the end of each text over which ``recent_...`` statistics are
    chosen: Sequence[int] = ()  # offsets at which ``weight_at`` is measured
    # by site index; under ``equal_...`` what equal weights over the visible tokens give, with one head
    measured: HostOffloader = field(default_factory=HostOffloader)

    def __call__(self, site: Site, call: AttentionCall) -> Tensor:
        words = self.words
        merged = None if words is None else words.merged(site.kind, call)
        if words is None or merged is None:
            output, numbers = self._measured(self.reading, site, call)
        else:
            output = output_of(call)
            _, numbers = self._measured(words.words, site, merged.call, merged.mass, merged.equal)
        self.measured[site.index] = numbers
        return output

    def _measured(
        self,
        reading: WindowBatch,
        site: Site,
        call: AttentionCall,
        mass: Tensor | None = None,
        equal: AttentionCall | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        queries, keys = reading.sides(site.kind)
        query_valid, _, query_groups = _marks(queries, call.query)
        key_valid, special, key_groups = _marks(keys, call.key)
        groups = GroupMarks(query_groups, key_groups, self.groups) if self.groups else None
        marks = Marks(query_valid, key_valid, special, groups)
        return measure_call(
            call, self.names, self.band, self.reach, marks, mass, equal, self.sample, self.observation, self.chosen
        )

    def stacked(self) -> dict[str, np.ndarray]:
        """``(batch, layer, head[, offset])`` each; see `stacked`."""
        return stacked([*self.measured.values()])


@dataclass(frozen=True, eq=False)
class Marks:
    """Which places of an attention call are real tokens, ``(batch, query)`` and ``(batch, key)``, and which special."""

    queries: Tensor
    keys: Tensor
    special: Tensor
    groups: GroupMarks | None = None


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
    columns = indicator_columns(marks.keys, marks.special, marks.groups)
    need = plan(names, band, columns, reach)
    asking = Asking.for_names(names, observation, reach, chosen)
    even_blocks: BlockSums | None = None
    if sample is None:
        output, rows = measure(call, need)
        # weights scaled to a mass are those of a larger log-sum-exp
        level = rows.log_sum_exp if mass is None else rows.log_sum_exp - mass.log()
        second = asking.of(call, level, marks.queries)
        if "blocks" in asking.needs:
            blocks, even_blocks = BlockSums.of(call, level, marks.queries, equal)
            second = replace(second, blocks=blocks)
        reduced = _of_all_rows(call, rows, need, names, marks, mass, second)
    else:
        valid = (marks.queries, marks.keys)
        output, reduced = sampled_statistics(call, need, names, valid, sample, asking)
    if nulls := [name for name in names if KNOWN[name].has_equal]:
        need = plan(nulls, band, columns, reach, equal=True)
        asking = Asking.for_names(nulls, observation, reach, chosen, equal=True)
        even = equal_rows(call, need) if equal is None else measure(equal, need)[1]
        of = asking.of_equal if equal is None else asking.of
        second = of(call if equal is None else equal, even.log_sum_exp, marks.queries)
        second = replace(second, blocks=even_blocks)
        of_equal = reduce_call(even, nulls, marks.queries, marks.keys, marks.groups, second, equal=True)
        reduced |= {f"{EQUAL}{name}": value for name, value in of_equal.items()}
    return output, drop_fully_masked(reduced)


def _of_all_rows(
    call: AttentionCall,
    rows: RowMeasures,
    need: Need,
    names: Sequence[str],
    marks: Marks,
    mass: Tensor | None,
    second: SecondPass,
) -> dict[str, Tensor]:
    rows = rows if mass is None else with_mass(rows, mass)
    groups = marks.groups
    if groups is not None and need.columns is not None and "place_group_weight" in names:
        first = need.columns[..., FIRST] > 0
        groups = replace(groups, places=GroupPlaces.of(call, need, first, groups.columns(groups.keys)))
    return reduce_call(rows, names, marks.queries, marks.keys, groups, second)


def stacked(measured: Sequence[dict[str, Tensor]]) -> dict[str, np.ndarray]:
    """``(batch, layer, head, ...)`` each; NaN where a layer has fewer heads than another."""
    heads = max(next(iter(layer.values())).shape[1] for layer in measured)
    arrays: dict[str, np.ndarray] = {}
    for name in measured[0]:
        layers = [layer[name].numpy() for layer in measured]
        if name.startswith(EQUAL):
            arrays[name] = np.concatenate(layers, axis=1)
            continue
        shape = (layers[0].shape[0], len(layers), heads, *layers[0].shape[2:])
        arrays[name] = np.full(shape, np.nan)
        for index, layer in enumerate(layers):
            arrays[name][:, index, : layer.shape[1]] = layer
    return arrays


def _marks(text: Batch, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Real and special tokens of one side, and groups; a side that is not of text (audio, patches) is all real."""
    shape = (states.shape[0], states.shape[2])
    nowhere = torch.full(shape, -1, device=states.device)
    if text.valid.shape == shape:
        marks = text.valid, text.special, nowhere if text.groups is None else text.groups
        valid, special, groups = (mark.to(states.device) for mark in marks)  # a model may be on several
        return valid, special, groups
    everywhere = torch.ones(shape, dtype=torch.bool, device=states.device)
    return everywhere, ~everywhere, nowhere


def dimensions(name: str) -> tuple[str, ...]:
    """Names of the dimensions of a statistic in a result."""
    own = without_end(name.removeprefix(EQUAL).removesuffix(BY_GROUP))
    along = KNOWN[own].along
    along += ("group_query",) if name.endswith(BY_GROUP) else ()
    of_head = () if name.startswith(EQUAL) else ("head",)
    return ("window", "layer", *of_head, *along)
