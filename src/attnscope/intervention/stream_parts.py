"""What heads, feed-forward layers and embeddings add to points of the residual stream, from one pass over texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from attnscope.capture.eager import without_cache
from attnscope.capture.forward import forward
from attnscope.capture.verify import TOLERANCE, stored_positions
from attnscope.capture.watching import attached
from attnscope.explanation.inputs import watching_inputs
from attnscope.explanation.stream import SMALL, Point, Stream, components, position_part
from attnscope.intervention.gradients import embeddings_of
from attnscope.kernels.engines import output_of
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

    from attnscope.capture.watch import Site
    from attnscope.kernels.call import AttentionCall


SEVERAL = 10  # products whose errors add up, where layers round their input (int8, fp8)


def rows_of(states: Tensor, shape: tuple[int, int], at: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """States that texts may share, ``(text, position, width)``; with `at`, some rows of them ``(row, 1, width)``."""
    whole = states.reshape(-1, shape[1], states.shape[-1]).expand(shape[0], -1, -1)
    return (whole if at is None else whole[at][:, None]).double()


class StreamParts:
    """All writers to the stream before some points, and the norms on the way."""

    def __init__(self, model: PreTrainedModel, stream: Stream, points: Sequence[Point]) -> None:
        self.model = model
        self.before = {
            point.stream: [one for one in stream.layers if one.query.stream == point.stream][: point.order]
            for point in points
        }
        self.layers = [one for one in stream.layers if any(one in before for before in self.before.values())]
        events = [event for one in self.layers for event in (one.query.norm, one.branch, one.after)]
        events += [event for one in self.layers for _, event, _ in one.added]
        self.run_of: dict[Any, int] = {}  # of a module that layers share
        for event in dict.fromkeys([*events, *(point.norm for point in points)]):
            if event is not None:
                self.run_of[event] = sum(one.name == event.name for one in self.run_of)
        names = {id(module): name for name, module in model.named_modules()}
        tables = embeddings_of(model)
        self.words = [names[id(table)] for table in (tables[0], tables[-1])]
        self.tables = [one.name for one in stored_positions(model) if one.name in names.values()]
        known = [name for name, module in model.named_modules() if isinstance(module, nn.Embedding)]
        self.types = [name for name in known if name not in {*self.words, *self.tables}]
        self.sources, self.names = components(self.layers)
        # largest difference of a sum of parts, as a share of their sizes
        self.rounding = max(TOLERANCE[model.dtype], SMALL, *(SEVERAL * one.matrices.rounding for one in self.layers))

    def run(
        self, inputs: dict[str, Tensor], name: Callable[[int], str], also: Iterable[str] = (), *, with_head: bool
    ) -> Tensor:
        """One pass, in which inputs and outputs of modules are kept."""
        self.runs, self.calls = defaultdict[str, Any](list), dict[int, Any]()

        def note(name: str, _: nn.Module, given: tuple[Any, ...], made: Any) -> None:
            both = (*given[:1], made[0] if isinstance(made, tuple) else made)
            own = tuple(one.clone() if isinstance(one, Tensor) else one for one in both)
            self.runs[name].append(own)  # a copy, because blocks may add in place (Falcon)

        def observe(site: Site, call: AttentionCall, states: Tensor, _: Tensor) -> Tensor:
            self.calls[site.index] = call, output_of(call), states
            return self.calls[site.index][1]

        noted = {*(event.name for event in self.run_of), *self.words, *self.tables, *self.types, *also}
        noted |= {one.matrices.names["output"] for one in self.layers if one.matrices.gated is not None}
        hooks = (self.model.get_submodule(one).register_forward_hook(partial(note, one)) for one in noted)
        with attached(hooks), watching_inputs(self.model, observe):
            return forward(self.model, {**without_cache(self.model), **inputs}, name, with_head=with_head)

    def ran(self, event: Any) -> tuple[Tensor, Tensor]:
        """Input and output of a norm or module in the last pass."""
        *received, returned = self.runs[event.name][self.run_of[event]]
        return (received[0] if received else returned), returned

    def read_by(self, point: Point, number: int) -> Tensor:
        """The stream in front of a point that layer `number` reads."""
        return self.calls[number][2] if point.norm is None else self.ran(point.norm)[0]

    def split(
        self,
        point: Point,
        matrix: Tensor,
        bias: Tensor,
        number: int,
        shape: tuple[int, int],
        at: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Parts by source of what a matrix ``(width, r)`` reads at a point, ``(source, text, position, r)``.

        `bias` is a constant ``(text, position, r)``, layer `number` the reader, and `shape` the number of texts and of
        their positions. With `at`, texts and positions of some rows, each row ``(source, row, 1, 1)`` has a matrix of
        its own, ``(row, width, 1)``; then also the vector that reads the output of each head, by layer.
        """
        before, decodes, made = self.before[point.stream], point.stream == "decoder", dict[Any, Tensor]()
        first, scale = before[0].query if before else point, torch.ones_like(bias[..., :1])
        made["bias", -1, -1] = bias

        rows = partial(rows_of, shape=shape, at=at)

        def tensor(array: np.ndarray | None) -> Tensor:
            return torch.from_numpy(cast("np.ndarray", array)).to(matrix)

        def back(event: Any, fold: Any) -> None:
            nonlocal matrix, scale
            if event is not None and fold is None:
                raise AttnscopeError(
                    f"{event.name} is neither a LayerNorm nor an RMSNorm, so scores have no known parts"
                )
            if event is not None:
                size, shift = fold.frozen(event.module, *map(rows, self.ran(event)))
                made["bias", -1, -1] = made["bias", -1, -1] + scale * (shift[None].to(matrix) @ matrix)
                matrix, scale = matrix * tensor(fold.gain)[:, None], scale * size
                matrix = matrix - matrix.mean(-2, keepdim=True) if fold.centred else matrix

        def read(states: Tensor) -> Tensor:
            return scale * (states @ matrix)

        back(point.norm, point.fold)
        vectors: dict[int, Tensor] = {}
        for layer in reversed(before):
            index = layer.matrices.site.index
            for kind, event, factor in layer.added:
                made[kind, index, -1] = made.get((kind, index, -1), 0) + factor * read(rows(self.ran(event)[1]))
            if layer.after is not point.norm:
                back(layer.after, layer.after_fold)
            kept = matrix, scale
            back(layer.branch, layer.written)
            output, through = self.calls[index][1], layer.factor * scale
            if layer.matrices.gated is not None:  # what the output matrix reads
                gated = self.runs[layer.matrices.names["output"]][-1][0]
                output = gated.reshape(output.transpose(1, 2).shape).transpose(1, 2)
            reads = torch.einsum("hrd,...dk->...hrk", tensor(layer.output), matrix)
            if at is not None:
                output, vectors[index] = output[at[0], :, at[1]][:, :, None], (through[:, None] * reads)[..., 0]
            parts = through[:, None] * (output.double() @ reads)
            made |= {("head", index, head): own for head, own in enumerate(parts.unbind(1))}
            shift = tensor(layer.matrices.output_bias)[None] @ matrix
            made["bias", -1, -1] = made["bias", -1, -1] + through * shift
            (matrix, scale), point = kept, layer.query
            if layer.after is not None:
                back(point.norm, point.fold)
        start = rows(self.read_by(first, before[0].matrices.site.index if before else number))
        ran = {name for name in (*self.words, *self.tables, *self.types) if name in self.runs}
        last = {name: self.runs[name][-decodes][-1] for name in ran}
        fitting = {name: rows(own) for name, own in last.items() if own.shape[-2:] == (shape[1], start.shape[-1])}
        tables, types = ([fitting[name] for name in own if name in fitting] for own in (self.tables, self.types))
        position = position_part(start, fitting.get(self.words[decodes], start), tables, types, self.model.dtype)
        made["embedding", -1, -1], made["position", -1, -1] = read(start - position), read(position)
        return torch.stack([made.get(source, bias * 0) for source in self.sources]), vectors
