"""What heads, feed-forward layers and embeddings add to points of the residual stream, from one pass over texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from attnscope.capture.families import result_of
from attnscope.capture.forward import forward
from attnscope.capture.verify import TOLERANCE, stored_positions
from attnscope.capture.watching import attached
from attnscope.capture.weights import embeddings_of
from attnscope.explanation.inputs import watching_inputs
from attnscope.explanation.stream import SMALL, Fold, Layer, Point, Stream, components, position_part
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
    states = states if at is None else states.to(at[0].device)
    whole = states.reshape(-1, shape[1], states.shape[-1]).expand(shape[0], -1, -1)
    return (whole if at is None else whole[at][:, None]).double()


class StreamParts:
    """All writers to the stream before some points, and the norms on the way."""

    def __init__(self, model: PreTrainedModel, stream: Stream, points: Sequence[Point]) -> None:
        self.model = model
        self.before = {
            point.stream: [layer for layer in stream.layers if layer.query.stream == point.stream][: point.order]
            for point in points
        }
        self.layers = [layer for layer in stream.layers if any(layer in before for before in self.before.values())]
        runs = [run for layer in self.layers for run in (layer.query.norm, layer.branch, layer.after)]
        runs += [run for layer in self.layers for _, run, _ in layer.added]
        self.ahead = {name: stream.ahead.get(name, []) for name in self.before}
        runs += [run for added in self.ahead.values() for _, run, _ in added]
        self.run_of: dict[Any, int] = {}  # of a module that layers share
        for run in dict.fromkeys([*runs, *(point.norm for point in points)]):
            if run is not None:
                self.run_of[run] = sum(earlier.name == run.name for earlier in self.run_of)
        names = {id(module): name for name, module in model.named_modules()}
        tables = embeddings_of(model)
        self.words = [names.get(id(table), "") for table in (tables[0], tables[-1])]
        self.tables = [table.name for table in stored_positions(model) if table.name in names.values()]
        embeddings = [name for name, module in model.named_modules() if isinstance(module, nn.Embedding)]
        self.types = [name for name in embeddings if name not in {*self.words, *self.tables}]
        kinds_ahead = [kind for added in self.ahead.values() for kind, *_ in added]
        self.sources, self.names = components(self.layers, kinds_ahead)
        # largest difference of a sum of parts, as a share of their sizes
        roundings = (SEVERAL * layer.matrices.rounding for layer in self.layers)
        self.rounding = max(TOLERANCE[model.dtype], SMALL, *roundings)

    def run(
        self, inputs: dict[str, Tensor], name: Callable[[int], str], also: Iterable[str] = (), *, with_head: bool
    ) -> Tensor:
        """One pass, in which inputs and outputs of modules are recorded."""
        self.runs, self.calls = defaultdict[str, Any](list), dict[int, Any]()

        def record(name: str, _: nn.Module, arguments: tuple[Any, ...], returned: Any) -> None:
            tensors = (*arguments[:1], returned[0] if isinstance(returned, tuple) else returned)
            # copies, because blocks may add in place (Falcon)
            self.runs[name].append(tuple(one.clone() if isinstance(one, Tensor) else one for one in tensors))

        def observe(site: Site, call: AttentionCall, states: Tensor, _: Tensor) -> Tensor:
            output = output_of(call)
            self.calls[site.index] = call, output, states
            return output

        recorded = {*(run.name for run in self.run_of), *filter(None, self.words), *self.tables, *self.types, *also}
        recorded |= {layer.matrices.names["output"] for layer in self.layers if layer.matrices.gated is not None}
        hooks = (self.model.get_submodule(one).register_forward_hook(partial(record, one)) for one in recorded)
        with attached(hooks), watching_inputs(self.model, observe):
            result = partial(result_of, self.model)
            return forward(self.model, inputs, name, with_head=with_head, result=result)

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
        before = self.before[point.stream]
        path = _Path(matrix, torch.ones_like(bias[..., :1]), bias)
        device = matrix.device  # that of the reader: other layers may be on others
        at = None if at is None else (at[0].to(device), at[1].to(device))

        def rows(states: Tensor) -> Tensor:
            return rows_of(states.to(device), shape, at)

        def through_norm(path: _Path, norm: Any, fold: Fold | None) -> None:
            if norm is not None:
                path.through_norm(norm, fold, *map(rows, self.ran(norm)))

        def add(added: Sequence[tuple[str, Any, float]], index: int) -> None:
            for kind, run, factor in added:
                part = factor * path.read(rows(self.ran(run)[1]))
                parts[kind, index, -1] = parts.get((kind, index, -1), 0) + part

        parts: dict[tuple[str, int, int], Tensor] = {}
        vectors: dict[int, Tensor] = {}
        first = before[0].query if before else point
        through_norm(path, point.norm, point.fold)
        for layer in reversed(before):
            index = layer.matrices.site.index
            add(layer.added, index)
            if layer.after is not point.norm:
                through_norm(path, layer.after, layer.after_fold)
            # a norm of the output of the heads alone: the stream does not pass it
            branch = replace(path)
            through_norm(branch, layer.branch, layer.written)
            weight = layer.factor * branch.scale
            output = self._heads_of(layer).to(device)
            reads = torch.einsum("hrd,...dk->...hrk", branch.tensor(layer.output), branch.matrix)
            if at is not None:
                output = output[at[0], :, at[1]][:, :, None]
                vectors[index] = (weight[:, None] * reads)[..., 0]
            of_heads = weight[:, None] * (output.double() @ reads)
            parts |= {("head", index, head): part for head, part in enumerate(of_heads.unbind(1))}
            path.bias = branch.bias + weight * (branch.tensor(layer.matrices.output_bias)[None] @ branch.matrix)
            point = layer.query
            if layer.after is not None:
                through_norm(path, point.norm, point.fold)
        # what is left of the stream is its start: what blocks ahead of the first layer add, words and positions
        start = rows(self.read_by(first, before[0].matrices.site.index if before else number))
        ahead = self.ahead[first.stream]
        add(ahead, -1)
        for _, run, factor in ahead:
            start = start - factor * rows(self.ran(run)[1])
        position = self._position_part(start, rows, shape, decodes=first.stream == "decoder")
        parts["bias", -1, -1] = path.bias
        parts["embedding", -1, -1] = path.read(start - position)
        parts["position", -1, -1] = path.read(position)
        return torch.stack([parts.get(source, bias * 0) for source in self.sources]), vectors

    def _heads_of(self, layer: Layer) -> Tensor:
        """Input of the output matrix of a layer, ``(text, head, position, r)``: behind its gate, if it has one."""
        output = self.calls[layer.matrices.site.index][1]
        if layer.matrices.gated is None:
            return output
        gated = self.runs[layer.matrices.names["output"]][-1][0]
        return gated.reshape(output.transpose(1, 2).shape).transpose(1, 2)

    def _position_part(
        self, start: Tensor, rows: Callable[[Tensor], Tensor], shape: tuple[int, int], *, decodes: bool
    ) -> Tensor:
        """The position part of a stream at its start; encoder and decoder may share the modules of their tables."""
        run = {name: self.runs[name] for name in (*self.words, *self.tables, *self.types) if name in self.runs}
        outputs = {name: tables[-decodes][-1] for name, tables in run.items()}  # the decoder's run is the last one
        size = shape[1], start.shape[-1]
        fitting = {name: rows(output) for name, output in outputs.items() if output.shape[-2:] == size}
        tables, types = ([fitting[name] for name in names if name in fitting] for names in (self.tables, self.types))
        return position_part(start, fitting.get(self.words[decodes], start), tables, types, self.model.dtype)


@dataclass(eq=False)
class _Path:
    """The linear map from the stream to its reader, at the point that is reached on the way back."""

    matrix: Tensor  # ``(width, r)``
    scale: Tensor  # factor of each row, from the denominators of norms
    bias: Tensor  # read so far off the biases on the way

    def tensor(self, array: np.ndarray | None) -> Tensor:
        """An array like the matrix."""
        return torch.from_numpy(cast("np.ndarray", array)).to(self.matrix)

    def through_norm(self, norm: Any, fold: Fold | None, received: Tensor, returned: Tensor) -> None:
        """Step back over a norm, with its actual denominators."""
        if fold is None:
            raise AttnscopeError(f"{norm.name} is neither a LayerNorm nor an RMSNorm, so scores have no known parts")
        size, shift = fold.frozen(norm.module, received, returned)
        self.bias = self.bias + self.scale * (shift[None].to(self.matrix) @ self.matrix)
        self.scale = self.scale * size
        matrix = self.matrix * self.tensor(fold.gain)[:, None]
        self.matrix = matrix - matrix.mean(-2, keepdim=True) if fold.centred else matrix

    def read(self, states: Tensor) -> Tensor:
        """The part of the reader that some states make."""
        return self.scale * (states @ self.matrix)
