"""`circuits`: what the weights of a model say alone: copying, preferred tokens and offsets, composition of heads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import nn
from transformers import PreTrainedModel

from attnscope.capture.notes import layer_coordinates
from attnscope.capture.placement import device_of
from attnscope.capture.verify import verify
from attnscope.capture.weights import affine_alone, in_single_precision
from attnscope.explanation.inputs import model_inputs, token_ids
from attnscope.explanation.profiles import bias_traces, pairs_at, visible_offsets
from attnscope.explanation.projections import Projections
from attnscope.explanation.stream import Fold, Layer, Point, fold_of, residual_stream
from attnscope.explanation.tables import embedding_projection, position_tables, word_embedding, word_table
from attnscope.kernels.positions import pair_columns
from attnscope.statistics.discovery import significant
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell, no_progress
from attnscope_circuits.composition import by_offset, composition, peak_chances, root_of, spectrum, turned_p

KINDS = ("query", "key", "value")
_BLOCK = 2048  # tokens of the vocabulary at a time
_POSITIONS = 512  # rows of a position table
_FLAT = 1e-9  # nats
_DIRECTIONS, _EXTREME = 4, 16  # directions of a head, and tokens at each end of them, among which pairs are searched


@dataclass(frozen=True, eq=False)
class _Heads:
    """The matrices of one layer's heads ``(head, width, r)``, norms of their input folded in; None if unknown."""

    query: np.ndarray | None
    key: np.ndarray | None
    value: np.ndarray | None
    output: np.ndarray | None  # ``(head, r, width)``, the norm of the output folded in

    @classmethod
    def of(cls, model: PreTrainedModel, layer: Layer) -> _Heads:
        matrices = layer.matrices

        def folded(role: str, matrix: np.ndarray | None, fold: Fold | None) -> np.ndarray | None:
            if matrix is None or (role != "value" and matrices.form not in {"bilinear", "rope", "normalised"}):
                return None
            if role in matrices.norms:
                matrix = matrix * gains_of(model.get_submodule(matrices.norms[role]), len(matrix), matrix.shape[2])
            matrix = matrix if fold is None else fold.columns(matrix)
            return matrix if role == "query" else matrix.repeat(matrices.group, 0)

        output = matrices.output
        return cls(
            folded("query", matrices.query, layer.query.fold),
            folded("key", matrices.key, layer.key.fold),
            folded("value", matrices.value, layer.key.fold),
            output if output is None or layer.written is None else layer.written.rows(output),
        )


def gains_of(norm: nn.Module, heads: int, width: int) -> Float[np.ndarray, "head 1 r"]:
    """The gain of a norm of queries or keys, of each head or of all together."""
    together = any(parameter.numel() == heads * width for parameter in norm.parameters())
    fold = fold_of(norm, heads * width if together else width)
    if fold is None or fold.centred:
        raise AttnscopeError(
            f"found {type(norm).__name__} between queries and scores; expected an RMSNorm. This model has no circuits"
        )
    return fold.gain.reshape(-1, 1, width)


#: Dimensions after ``layer, head`` of each variable; texts are without a number.
_NUMBERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("copying", "copying_sum", "copying_p", "same_token", "same_token_p"), ()),
    **dict.fromkeys(("peak_offset", "peak_offset_p"), ()),
    "offset_score": ("offset",),
    **dict.fromkeys(("copied_logit", "suppressed_logit", "pair_score"), ("rank",)),
}
_TOKENS = ("copied", "suppressed", "query_token", "key_token")


@dataclass(eq=False)
class Weights:
    """All heads of a model, and sums over its vocabulary."""

    model: PreTrainedModel
    tokenizer: Any
    length: int  # of the text that shows how heads read and write
    band: int
    count: int
    seed: int
    tell: Tell = no_progress

    def __post_init__(self) -> None:
        self.words, self.table = word_embedding(self.model)
        self._written: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}
        rng = np.random.default_rng(self.seed)  # no number depends on these tokens
        ids = rng.integers(self.table.num_embeddings, size=self.length).tolist()
        inputs = model_inputs(self.model, token_ids([ids]))
        verify(self.model, inputs, text="random tokens")
        self.stream = residual_stream(self.model, inputs)
        self.heads = [_Heads.of(self.model, layer) for layer in self.stream.layers]
        self.counts = [call.query.shape[1] for call in self.stream.calls.values()]
        first = self.stream.layers[0].query
        self.width = first.states.shape[1]
        self.norm = self.stream.embedded or first.fold  # of each token, whose denominator is computed
        linear = embedding_projection(self.model, self.table.embedding_dim)
        self.projection: np.ndarray | None = None
        if linear is not None and self.table.embedding_dim != self.width:
            self.projection = linear.matrix.detach().double().cpu().numpy()
        self.end = self.stream.ends.get("decoder") if self.stream.is_linear else None
        if self.end is None:
            rows = word_table(self.model)
            rows = rows if self.projection is None else rows @ self.projection
        else:
            module: Any = self.model.get_output_embeddings()
            rows = affine_alone(self.model, module, self.width).matrix.T.detach().double().cpu().numpy()
        self.unembedding = rows if rows.shape[1] == self.width else None
        self.size = min(self.table.num_embeddings, len(rows))

    def embedded(self, ids: np.ndarray) -> np.ndarray:
        """Embeddings of tokens."""
        with torch.no_grad():
            return self.words(torch.from_numpy(ids).to(device_of(self.model))).double().cpu().numpy()

    def normed(self, rows: np.ndarray, size: float | None = None) -> np.ndarray:
        """Rows over their own denominator of the first norm, or over another."""
        if self.norm is None:
            return rows
        rows = rows - rows.mean(-1, keepdims=True) if self.norm.centred else rows
        denominator = np.sqrt((rows**2).mean(-1, keepdims=True)) if size is None else size
        return rows / np.where(denominator > 0, denominator, 1.0)

    @cached_property
    def rows(self) -> np.ndarray:
        """Every token over its denominator, float32."""
        blocks = [self.normed(self.embedded(block)).astype(np.float32) for block in self._blocks()]
        return np.concatenate(blocks)

    def _blocks(self) -> list[np.ndarray]:
        return np.split(np.arange(self.size), range(_BLOCK, self.size, _BLOCK))

    @cached_property
    def sums(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """``U^T E``; second moment and mean of `rows`."""
        width = self.table.embedding_dim
        both, second, mean = np.zeros((self.width, width)), np.zeros((width, width)), np.zeros(width)
        for block in self._blocks():
            raw = self.embedded(block)
            if self.unembedding is not None:
                both += self.unembedding[block].T @ raw
            rows = self.normed(raw)
            second += rows.T @ rows / self.size
            mean += rows.sum(0) / self.size
        return both, second, mean

    def direct(self, point: Point, matrix: np.ndarray) -> np.ndarray:
        """A matrix that reads a point of the stream, as one that reads embeddings."""
        for fold in reversed(self.stream.between(point.stream, -1, point)):
            matrix = fold.columns(matrix)
        matrix = matrix if self.projection is None else self.projection @ matrix
        return matrix if self.stream.embedded is None else self.stream.embedded.columns(matrix)

    def written(self, number: int, output: np.ndarray, point: Point | None) -> np.ndarray:
        """The output matrices of a layer as they reach a point, whose own norm only centres here."""
        if point is None:
            return output
        for fold in self.stream.between(point.stream, self.stream.layers[number].query.order, point):
            output = fold.rows(output)
        return output - output.mean(-1, keepdims=True) if point.fold is not None and point.fold.centred else output

    def dataset(self) -> xr.Dataset:
        with in_single_precision(self.words):  # some multiply their rows
            return self._dataset()

    def _dataset(self) -> xr.Dataset:
        layers, heads = len(self.heads), max(self.counts)
        sizes = {"offset": 2 * self.band + 1, "rank": self.count}
        measured = {
            name: np.full((layers, heads, *(sizes[dim] for dim in dims)), np.nan) for name, dims in _NUMBERS.items()
        }
        measured |= {name: np.full((layers, heads, self.count), "", dtype=object) for name in _TOKENS}
        reasons: dict[str, str] = {}
        for number, layer in enumerate(self.stream.layers):
            self.tell(Progress("heads", 0.8 * number / layers))
            for name, values in self._layer(number).items():
                measured[name][(number, *map(slice, values.shape))] = values
            if any(matrix is None for matrix in vars(self.heads[number]).values()):
                reason = layer.matrices.reason or "no linear layer from the layer's input gives its values"
                reasons[f"layer {layer.matrices.site.index}"] = reason
        self.tell(Progress("composition", 0.8))
        sites = [layer.matrices.site for layer in self.stream.layers]
        variables: dict[str, Any] = {
            name: (("layer", "head", *_NUMBERS.get(name, ("rank",))), values) for name, values in measured.items()
        }
        for name in ("copying", "same_token", "peak_offset"):
            variables[f"{name}_shown"] = (("layer", "head"), significant(measured[f"{name}_p"]))
        return xr.Dataset(
            variables | self.composition(),
            coords=layer_coordinates(sites)
            | {
                "head": np.arange(heads),
                "offset": np.arange(-self.band, self.band + 1),
                "rank": np.arange(1, self.count + 1),
                "kind": list(KINDS),
                "from_layer": [site.index for site in sites],
                "from_head": np.arange(heads),
            },
            attrs={
                "skipped": json.dumps(reasons),
                "unverified": json.dumps(self.stream.unverified),
                "unembedding": "embeddings" if self.end is None else "linear",
                "norms": int(any(layer.query.fold is not None for layer in self.stream.layers)),
                "vocabulary": self.size,
                "width": self.width,
            },
        )

    def _layer(self, number: int) -> dict[str, np.ndarray]:
        """Numbers and tokens of one layer's heads."""
        heads, layer, measured = self.heads[number], self.stream.layers[number], dict[str, np.ndarray]()
        both, second, mean = self.sums
        if (
            self.unembedding is not None
            and heads.value is not None
            and heads.output is not None
            and layer.query.stream == "decoder"
        ):
            value, output = self.direct(layer.key, heads.value), self.written(number, heads.output, self.end)
            output = output if self.end is None or self.end.fold is None else output * self.end.fold.gain
            # W_E W_V W_O W_U, a matrix over the vocabulary, has the same eigenvalues besides 0 as this product, r x r;
            # positive ones copy (Elhage et al. 2021, A Mathematical Framework for Transformer Circuits)
            products = output @ (both @ value)
            roots = np.linalg.eigvals(products)
            size = np.abs(roots).sum(-1)
            size = np.where(size > 0, size, np.nan)
            measured["copying"] = np.where(np.isnan(size), np.nan, (roots.real > 0).mean(-1))
            measured["copying_sum"], measured["copying_p"] = roots.sum(-1).real / size, turned_p(products)
            measured |= self._own_logits(value, output)
        if heads.query is not None and heads.key is not None:
            query, key = self.direct(layer.query, heads.query), self.direct(layer.key, heads.key)
            centred, turned = second - np.outer(mean, mean), key.swapaxes(1, 2)
            # the mean score of a token with itself, and the standard deviation of the score of two random tokens
            products = turned @ centred @ query
            spread = np.einsum("hij,hji->h", turned @ centred @ key, query.swapaxes(1, 2) @ second @ query)
            measured["same_token"] = np.trace(products, axis1=1, axis2=2) / np.sqrt(
                np.where(spread > 0, spread, np.nan)
            )
            measured["same_token_p"] = turned_p(products)
            measured |= self._pairs(query, key, layer.matrices.scale)
        return measured | (self._offsets(number) if layer.key is layer.query else {})

    def _names(self, tokens: np.ndarray) -> np.ndarray:
        name = str if self.tokenizer is None else self.tokenizer.decode
        return np.vectorize(lambda token: name(int(token)), otypes=[object])(tokens)

    def _own_logits(self, value: np.ndarray, output: np.ndarray) -> dict[str, np.ndarray]:
        """The most extreme logits of tokens for themselves, less the mean logit, and the tokens, ``(head, rank)``."""
        assert self.unembedding is not None  # noqa: S101 checked by the caller
        reads = torch.from_numpy(value.swapaxes(0, 1).reshape(value.shape[1], -1)).float()
        writes = torch.from_numpy(output.reshape(-1, output.shape[2]).T.copy()).float()
        mean, of_blocks = self.unembedding[: self.size].mean(0), list[torch.Tensor]()
        for block in self._blocks():
            logits = torch.from_numpy(self.unembedding[block] - mean).float() @ writes
            product = (torch.from_numpy(self.rows[block]) @ reads) * logits
            of_blocks.append(product.reshape(len(block), len(value), -1).sum(-1))
        extremes, scores = dict[str, np.ndarray](), torch.cat(of_blocks)
        for name, largest in (("copied", True), ("suppressed", False)):
            top = scores.topk(min(self.count, self.size), 0, largest=largest)
            extremes |= {f"{name}_logit": top.values.T.double().numpy(), name: self._names(top.indices.T.numpy())}
        return extremes

    def _pairs(self, query: np.ndarray, key: np.ndarray, scale: float) -> dict[str, np.ndarray]:
        """The highest scores of pairs, keys about their mean, among tokens at the ends of a few directions."""
        roots = root_of(query), root_of(key)
        turned, _, back = np.linalg.svd(roots[0] @ roots[1].swapaxes(1, 2))
        sides = query @ np.linalg.pinv(roots[0]) @ turned, key @ np.linalg.pinv(roots[1]) @ back.swapaxes(1, 2)
        directions = np.stack([side[:, :, :_DIRECTIONS] for side in sides])  # (side, head, width, direction)
        along = self.rows @ np.moveaxis(directions, 2, 0).reshape(self.rows.shape[1], -1).astype(np.float32)
        most, scores, tokens = min(_EXTREME, self.size // 2), list[np.ndarray](), list[list[np.ndarray]]()
        order = np.argpartition(along, (most, self.size - most), 0)
        ends = np.concatenate([order[:most], order[-most:]]).reshape(2 * most, 2, len(query), -1)
        for head in range(len(query)):
            chosen = [np.unique(ends[:, side, head]) for side in (0, 1)]
            queries, keys = (self.normed(self.embedded(side)) for side in chosen)
            products = scale * (queries @ query[head]) @ ((keys - self.sums[2]) @ key[head]).T
            at = np.unravel_index(np.argsort(-products, axis=None)[: self.count], products.shape)
            scores.append(products[at])
            tokens.append([side[index] for side, index in zip(chosen, at, strict=True)])
        names = {name: self._names(np.stack([one[side] for one in tokens])) for side, name in enumerate(_TOKENS[2:])}
        return names | {"pair_score": np.stack(scores)}

    def _offsets(self, number: int) -> dict[str, np.ndarray]:
        """Scores by offset from positions alone, where they peak, and the p-value of the peak."""
        heads, matrices, call = self.heads[number], self.stream.layers[number].matrices, self.stream.calls[number]
        point = self.stream.layers[number].query
        offsets, visible = np.arange(-self.band, self.band + 1), visible_offsets(call, self.band)
        curve, p = np.zeros((self.counts[number], len(offsets))), np.full(self.counts[number], np.nan)
        if heads.query is not None and heads.key is not None:
            query, key = self.direct(point, heads.query), self.direct(point, heads.key)
            if matrices.rotation is not None:
                sides = [self.sums[2] @ query, self.sums[2] @ key]
                if matrices.query_bias is not None and matrices.key_bias is not None and not matrices.norms:
                    sides = [sides[0] + matrices.query_bias, sides[1] + matrices.key_bias.repeat(matrices.group, 0)]
                curve, p = self._turning(matrices, sides, offsets, visible)
            elif (rows := self._positions(point.stream)) is not None:
                both = zip(rows @ query * matrices.scale, rows @ key, strict=True)
                curve, p = map(np.stack, zip(*(by_offset(*sides, offsets, visible) for sides in both), strict=True))
        if call.bias is not None:
            pairs = pairs_at(call.query.shape[2], call.key.shape[2], self.band)
            curve, p = curve + bias_traces(call, self.band)[0].numpy() / pairs, p * np.nan
        curve = np.where(visible, curve, np.nan)
        flat = np.nanmax(curve, 1) - np.nanmin(curve, 1) <= _FLAT
        peak = np.where(flat, np.nan, offsets[np.nanargmax(curve, 1)])
        curve[flat] = np.nan
        return {"offset_score": curve, "peak_offset": peak, "peak_offset_p": np.where(flat, np.nan, p)}

    def _turning(
        self, matrices: Projections, sides: list[np.ndarray], offsets: np.ndarray, visible: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """RoPE between the mean tokens, next to random phases."""
        assert matrices.rotation is not None  # noqa: S101 checked by the caller
        rates = matrices.rotation.rates.cpu().numpy()
        first, second = pair_columns(matrices.rotation.layout, len(rates))
        query, key = (side[:, first] + 1j * side[:, second] for side in sides)
        square = (matrices.rotation.cos**2 + matrices.rotation.sin**2)[0].double().cpu().numpy()
        product, waves = matrices.scale * square * query.conj() * key, np.exp(1j * rates[:, None] * offsets)
        curve = (product @ waves).real
        return curve, peak_chances(np.abs(product), waves[:, visible], curve[:, visible].max(1), self.seed)

    def _positions(self, stream: str) -> np.ndarray | None:
        """Rows of the position table over the mean denominator of tokens with positions; None without a table."""
        tables = position_tables(self.model)
        table = next((one for one in tables if stream in one.name), tables[0] if tables else None)
        if table is None or table.rows.shape[1] != self.table.embedding_dim:
            return None
        sides = [table.rows[:_POSITIONS], self.embedded(self._blocks()[0])]
        if self.norm is not None and self.norm.centred:
            sides = [side - side.mean(-1, keepdims=True) for side in sides]
        return self.normed(sides[0], float(np.sqrt(sum((side**2).mean() for side in sides))))

    def composition(self) -> dict[str, Any]:
        """Every pair of heads, through factors of the width of a head."""
        layers, heads = len(self.heads), max(self.counts)
        values = np.full((2, len(KINDS), layers, heads, layers, heads), np.nan)
        for later, reader in enumerate(self.heads):
            layer, output = self.stream.layers[later], reader.output
            if output is not None and any(fold and fold.centred for fold in (layer.query.fold, layer.after_fold)):
                output = output - output.mean(-1, keepdims=True)  # the rest is never read
            writes = None if output is None else output.swapaxes(1, 2)
            for kind, (reads, other, point) in enumerate(
                (
                    (reader.query, reader.key, layer.query),
                    (reader.key, reader.query, layer.key),
                    (reader.value, writes, layer.key),
                )
            ):
                if reads is None or other is None:
                    continue
                right = reads @ root_of(other).swapaxes(1, 2)  # (head, width, r)
                values_right = spectrum(right.swapaxes(1, 2))
                for earlier, before in enumerate(self.heads[:later]):
                    writer = self.stream.layers[earlier].query
                    if before.value is None or before.output is None or writer.stream != point.stream:
                        continue
                    left, values_left = self.written_by(earlier, point)
                    dimensions = self.width - bool(point.fold is not None and point.fold.centred)
                    pairs = np.stack(composition(left, right, values_left, values_right, dimensions))
                    values[:, kind, earlier, : pairs.shape[1], later, : pairs.shape[2]] = pairs
        dims = ("kind", "from_layer", "from_head", "layer", "head")
        return {
            "composition": (dims, values[0]),
            "composition_p": (dims, values[1]),
            "composition_shown": (dims, significant(values[1])),
            "composition_random": ((), self.width**-0.5),
        }

    def written_by(self, number: int, point: Point) -> tuple[np.ndarray, np.ndarray]:
        """A factor of the value-output matrices as they reach a point, and its singular values."""
        folds = self.stream.between(point.stream, self.stream.layers[number].query.order, point)
        key = (number, bool(point.fold is not None and point.fold.centred), *map(id, folds))
        if key not in self._written:
            value, output = self.heads[number].value, self.heads[number].output
            assert value is not None  # noqa: S101 checked by the caller
            assert output is not None  # noqa: S101
            left = root_of(value) @ self.written(number, output, point)
            self._written[key] = left, spectrum(left)
        return self._written[key]
