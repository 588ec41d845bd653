"""What the papers' figures show of single heads: maps, waves, phases and correlations of four heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope.attention import AttentionCall, output_of
from attnscope.capture import Site, watching
from attnscope.errors import AttnscopeError
from attnscope.mechanism.arrays import phase_map, query_key_waves
from attnscope.mechanism.evidence import ids_of, read, token_ids
from attnscope.reproduction.yamamoto2023._head_maps import head_maps
from attnscope.reproduction.yamamoto2023._models import GPT2, ROBERTA, is_shaped_like
from attnscope.reproduction.yamamoto2023._subject import PAPER_LENGTH, ShownHead, Subject
from attnscope.statistics import PEAK_SHARE

#: The heads of roberta-base that the papers show, (layer, head) from 1: the side they look to, and whether softly.
NAMED_HEADS = {(1, 1): (-1, True), (2, 3): (1, False), (7, 5): (1, True), (8, 9): (-1, False)}
FIGURE_6 = (25, 60)  # cycles per 512 tokens
GPT2_HEADS, SCORED = ((1, 4), (12, 1)), 300  # of EMNLP figure 14: heads from 1, tokens
COMPLETIONS = ("minimal", "lapack")
TOKENS = 15  # of the heat maps
COLUMNS = 6  # of queries and keys drawn as waves
CURVES = 20  # cross-correlations


def shown_heads(subject: Subject) -> list[ShownHead]:
    """The papers' four heads; in a model of another shape, its own heads that do most clearly what those do.

    Such a head looks to the same side, and puts either much of its weight on one offset or less than 0.3 on any. A
    place that no head can take (in a causal model nothing looks right) stays empty.
    """
    if is_shaped_like(subject.model, ROBERTA):
        return [ShownHead(f"{layer}.{head}", *subject.head(layer, head)) for layer, head in NAMED_HEADS]
    everyone = [(layer, head) for layer in subject.evidence.layers for head in range(layer.heads)]
    sums = np.concatenate([np.mean(layer.band_sums, 0) for layer in subject.evidence.layers]) / subject.length
    half = sums.shape[1] // 2
    sides = {-1: sums[:, :half], 1: sums[:, half + 1 :]}
    is_soft = np.maximum(sides[-1].max(1), sides[1].max(1)) < PEAK_SHARE
    heads: list[ShownHead] = []
    for (layer, head), (side, soft) in NAMED_HEADS.items():
        lean = sides[side].sum(1) - sides[-side].sum(1)
        score = np.where(is_soft, lean, 0.0) if soft else np.where(lean > 0, sides[side].max(1), 0.0)
        if score.max() > 0:
            heads.append(ShownHead(f"{layer}.{head}", *everyone[int(score.argmax())]))
    return heads


def stand_ins(subject: Subject, shown: Sequence[ShownHead]) -> str:
    """One line on which heads stand in for the papers' in a model of another shape than roberta-base; else nothing."""
    if is_shaped_like(subject.model, ROBERTA):
        return ""
    places = {head.name: "{}.{}".format(*head.place) for head in shown}
    told = ", ".join(f"{places.get(f'{a}.{b}', 'none')} for head({a},{b})" for a, b in NAMED_HEADS)
    return f"the model is not shaped like {ROBERTA}; heads of its own stand in (layer.head, from 0): {told}"


def maps(subject: Subject, shown: Sequence[ShownHead]) -> xr.Dataset:
    """Figure 2: weights among the first tokens of the first text."""
    first = subject.windows[0]
    ids = ids_of(first)
    tokens = getattr(first, "tokens", [str(id_) for id_ in ids])
    shown_maps = head_maps(subject.model, ids, tokens, [head.place for head in shown], rows=TOKENS)
    return shown_maps.assign_coords(named_head=("shown", _names(shown)))


def series(subject: Subject, shown: Sequence[ShownHead]) -> xr.Dataset:
    """Figure 4: the most important columns of a head along the first text, as in the papers without biases.

    The head is head(1,1), or else that whose columns hold most waves.
    """
    chosen = _bilinear(shown)[0]
    if not is_shaped_like(subject.model, ROBERTA):
        counts = subject.waves.periodic_columns
        chosen = max(
            _bilinear(shown), key=lambda shown: int(counts.sel(layer=shown.layer.site.index, head=shown.head))
        )
    query, key = chosen.layer.matrices(chosen.head, affine=False)
    waves = query_key_waves(chosen.layer.sample, query, key, curves=COLUMNS, permutations=0)
    layer, head = chosen.place
    return waves.expand_dims(layer=[layer], head=[head]).assign_coords(named_head=chosen.name)


def phases(subject: Subject, shown: Sequence[ShownHead]) -> xr.Dataset:
    """Figure 6: phase maps on the first text and without biases, by ``completion`` (``lapack`` is the papers' own)."""
    low, high = (max(1, round(edge * subject.length / PAPER_LENGTH)) for edge in FIGURE_6)

    def of_head(shown: ShownHead) -> xr.Dataset:
        query, key = shown.layer.matrices(shown.head, affine=False)
        by_completion = [
            phase_map(shown.layer.sample, query, key, completion=name, band=(low, high), seed=subject.seed)
            for name in COMPLETIONS
        ]
        names = xr.Variable("completion", list(COMPLETIONS))
        return xr.concat(by_completion, names, combine_attrs="drop_conflicts")

    return _stacked(shown, of_head)


def correlations(subject: Subject, shown: Sequence[ShownHead]) -> xr.Dataset:
    """Figure 7: cross-correlations of the leading columns and their weighted sum, in the papers' form."""

    def of_head(shown: ShownHead) -> xr.Dataset:
        correlation = subject.correlation(shown.layer, shown.head).isel(column=slice(CURVES))
        return correlation.assign_coords(column=np.arange(correlation.sizes["column"]))

    return _stacked(shown, of_head)


@torch.no_grad()
def scores(subject: Subject, shown: Sequence[ShownHead]) -> xr.Dataset:
    """EMNLP figure 14: scores before mask and softmax of causal heads, over the first tokens of the first text."""
    named = (
        [ShownHead("", *subject.head(*name)) for name in GPT2_HEADS]
        if is_shaped_like(subject.model, GPT2)
        else shown
    )
    places = [head.place for head in named if head.layer.site.kind == "causal"]
    by_head: dict[tuple[int, int], np.ndarray] = {}

    def observe(site: Site, call: AttentionCall) -> Tensor:
        for layer, head in places:
            if layer == site.index:
                query = call.query[0, head, :SCORED].double()
                key = call.key[0, head // call.group, :SCORED].double()
                by_head[layer, head] = (call.scale * query @ key.T).float().cpu().numpy()
        return output_of(call)

    with watching(subject.model, observe):
        read(subject.model, token_ids(subject.windows[:1]))
    return xr.Dataset(
        {"score": (("shown", "query", "key"), np.stack([by_head[place] for place in places]))},
        coords={
            "layer": ("shown", [layer for layer, _ in places]),
            "head": ("shown", [head for _, head in places]),
        },
    )


def _bilinear(shown: Sequence[ShownHead]) -> list[ShownHead]:
    bilinear = [head for head in shown if head.layer.projections.form == "bilinear"]
    if not bilinear:
        raise AttnscopeError("no head that the figures show has scores that are bilinear in X")
    return bilinear


def _stacked(shown: Sequence[ShownHead], of_head: Callable[[ShownHead], xr.Dataset]) -> xr.Dataset:
    """Heads one after the other along ``shown``."""
    there = _bilinear(shown)
    stacked = xr.concat(
        [of_head(head) for head in there],
        "shown",
        join="outer",
        combine_attrs="drop_conflicts",
        data_vars="all",
        coords="different",
        compat="equals",
    )
    layers, heads = zip(*[head.place for head in there], strict=True)
    return stacked.assign_coords(
        layer=("shown", list(layers)), head=("shown", list(heads)), named_head=("shown", _names(there))
    )


def _names(shown: Sequence[ShownHead]) -> np.ndarray:
    return np.array([head.name for head in shown], dtype=object)
