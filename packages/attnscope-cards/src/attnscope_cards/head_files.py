"""Files of heads that other tools read: DuoAttention and kvpress, MInference, QRHead, Whisper, TransformerLens.

Layers have the numbers of the model's modules (or of the calls, if layers share a module), and key-value heads pool the
query heads that share them.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr

from attnscope.capture.borrow import LoadedModel
from attnscope.capture.notes import layer_coordinates
from attnscope.capture.outline import outlined
from attnscope.detection.role import ROLES
from attnscope.detection.roles import SHARED
from attnscope.report.reads import reads
from attnscope.report.signature import Signature
from attnscope.store.arrays import padded_heads
from attnscope.support.checks import check_whole
from attnscope.support.errors import AttnscopeError

STREAMS = 0.95  # kept share from which MInference's pattern limits a head, unless their number is given
_DENSE = ("vertical_and_slash", 1000, 6096)  # MInference's pattern of a head without one
_GATE, _RETRIEVES = 0.5, 0.1  # from which DuoAttention and Wu et al. list a head
#: Files for DuoAttention and kvpress, MInference, QRHead, Whisper in transformers, and TransformerLens.
FORMATS = ("duo", "minference", "qrhead", "alignment", "names")


def pooled(card: xr.Dataset, scores: np.ndarray, *, lowest: bool) -> np.ndarray:
    """Highest or lowest score ``(layer, key_head)`` of the query heads that share a key-value head."""
    rows = zip(scores.astype(float), card[SHARED].values, strict=True)
    groups = [row[np.isfinite(row)].reshape(-1, size) for row, size in rows]
    return padded_heads([group.min(1) if lowest else group.max(1) for group in groups])


def _numbers(card: xr.Dataset, to: str = "") -> dict[int, int]:
    """Row of each layer by its number in the model: cross-attention for alignment heads, else causal layers if any."""
    kinds = card.layer_kind.values.tolist()
    wanted = next((kind for kind in ("cross" if to == "alignment" else "causal", "causal") if kind in kinds), "self")
    rows = [row for row, kind in enumerate(kinds) if kind == wanted]
    parts = [re.search(r"\d+", str(card.layer_name.values[row])) for row in rows]
    numbers = [row if part is None else int(part[0]) for row, part in zip(rows, parts, strict=True)]
    if len({*numbers}) < len(rows):  # layers share a module (ALBERT), or the first number is not that of a layer (Swin)
        numbers = range(len(rows))
    return dict(zip(numbers, rows, strict=True))


class _Choice(NamedTuple):
    """The role or effect of a card that chooses heads."""

    role: str
    is_change: bool  # of the loss, in nats
    is_kept: bool
    scores: np.ndarray  # (layer, head)
    rows: dict[int, int]  # of layers, by their numbers
    sinks: int
    recent: int

    @classmethod
    def of(cls, card: xr.Dataset, to: str, role: str | None) -> _Choice:
        kept = [str(name) for name in card.role.values if str(name).startswith("kept_")]
        changes = card.ablation.values.tolist() if "effect" in card else []
        limits = [name for name in changes if name.startswith("limit_")]
        first = {"duo": [*limits, *kept], "minference": kept}
        role = role or next(iter(first.get(to, ["retrieval"])), "kept share")
        choices = [*map(str, card.role.values), *changes]
        if role not in choices:
            raise AttnscopeError(f"the card has no {role!r} (--variables); it has {', '.join(choices)}")
        recent, sinks = (int(size) for size in role.split("_")[1:]) if role in [*kept, *limits] else (256, 128)
        is_change = role in changes
        scores = (card.effect.sel(ablation=role) if is_change else card.score.sel(role=role)).values
        return cls(role, is_change, role in kept, scores, _numbers(card, to), sinks, recent)


class DuoTable(NamedTuple):
    """DuoAttention's table of key-value heads."""

    scores: np.ndarray  # (layer, key_head), from 0 to 1: heads with a high score need the whole context
    numbers: list[int]  # of the layers
    sinks: int
    recent: int
    mapping: str  # from what the card has


@reads("card")
def duo_table(card: xr.Dataset, role: str | None = None) -> DuoTable:
    """The table of DuoAttention, from a kept share, another role or an effect of a card."""
    one = _Choice.of(card, "duo", role)
    full = pooled(card, one.scores, lowest=one.is_kept)[[*one.rows.values()]]
    mapping = f"1 - {one.role}" if one.is_kept else one.role
    if one.is_change:  # DuoAttention clips its table to 0 to 1, where changes in nats would be ties
        low, high = float(np.nanmin(full)), float(np.nanmax(full))
        full = (full - low) / max(high - low, np.finfo(float).tiny)
        mapping = f"({one.role} - {low:.6g}) / {high - low:.6g}, with {one.role} in nats"
    return DuoTable(1 - full if one.is_kept else full, [*one.rows], one.sinks, one.recent, mapping)


def files(
    card: xr.Dataset, to: str, top: int | None = None, variables: Sequence[str] | None = None
) -> Mapping[str, str | bytes]:
    """Names and contents of the files of a format; see `attnscope.results.export.export`."""
    return head_files(card, to, None if variables is None else variables[0], top)


@reads("card")
def head_files(card: xr.Dataset, to: str, role: str | None = None, top: int | None = None) -> dict[str, str]:
    """Names and texts of the files of a format, from a role or an effect; see `attnscope.results.export.export`."""
    if to == "alignment" and "cross" not in card.layer_kind.values:
        raise AttnscopeError(
            f"alignment heads are of cross-attention, which {card.attrs['model']} lacks: use --to names or --to qrhead"
        )
    role, is_change, is_kept, scores, rows, sinks, recent = _Choice.of(card, to, role)
    check_whole(1, int(np.isfinite(scores[[*rows.values()]]).sum()), top=1 if top is None else top)
    threshold = None if is_change else ROLES[role].threshold
    if to == "duo":
        duo, table = duo_table(card, role), io.StringIO()
        np.savetxt(table, duo.scores, delimiter="\t")
        signature = Signature.from_json(card.attrs["signature"]).format()
        config = {"model_name": card.attrs["model"], "sink_size": sinks, "recent_size": recent}
        config |= {"scores": duo.mapping, "signature": signature}
        return {"full_attention_heads.tsv": table.getvalue(), "config.json": json.dumps(config)}
    if to == "minference":
        if not is_kept:
            raise AttnscopeError("minference needs a kept share, such as kept_64_4 (--variables)")
        least = STREAMS if top is None else np.sort(scores[[*rows.values()]], axis=None)[-top]
        patterns = [
            {
                str(head): [*(("stream_llm", sinks, recent) if score >= least else _DENSE), round(float(score), 4)]
                for head, score in enumerate(scores[row])
            }
            for row in rows.values()
        ]
        return {"best_pattern.json": json.dumps(patterns)}
    least = -np.inf if top is not None else np.inf if threshold is None else threshold
    cells = [(float(score), layer, head) for layer, row in rows.items() for head, score in enumerate(scores[row])]
    cells = [cell for cell in cells if np.isfinite(cell[0]) and cell[0] >= least]
    chosen = [(layer, head) for _, layer, head in sorted(cells, key=lambda cell: -cell[0])[:top]]
    if not chosen:
        raise AttnscopeError(
            f"no head is to be listed by {role!r}: give their number (--top), or another (--variables)"
        )
    if to == "qrhead":
        heads = ",".join(f"{layer}-{head}" for layer, head in chosen)
        name = json.dumps(card.attrs["model"])
        return {"heads.yaml": f'attn_head_set: "{heads}"\nmodel_base_class: {name}\nmodel_name_or_path: {name}\n'}
    if to == "alignment":
        return {"generation_config.json": json.dumps({"alignment_heads": [[*head] for head in chosen]})}
    return {"heads.txt": "".join(f"L{layer}H{head}\n" for layer, head in chosen)}


def listing_of(path: Path) -> tuple[Path, str]:
    """The file, and its text, at a path, or in a folder that `attnscope.results.export.export` wrote."""
    file = next(iter(sorted(path.glob("*"), key=lambda one: one.suffix != ".tsv")), path) if path.is_dir() else path
    if file.exists() and not file.is_file():  # to read a pipe can take for ever
        raise AttnscopeError(f"cannot read the published heads in {file}: it is not a regular file")
    try:
        return file, file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise AttnscopeError(f"cannot read the published heads in {file}: {reason}") from error


def read_heads(listing: tuple[Path, str], card: xr.Dataset) -> np.ndarray:
    """Which heads a file lists, ``(layer, head)``, 1 or 0; NaN in other layers."""
    file, text = listing
    try:
        pairs = _table(text, card) if file.suffix == ".tsv" else _pairs(text, card)
    except (ValueError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise AttnscopeError(f"{file} lists no heads ({error}); expected one of {', '.join(FORMATS)}") from error
    rows = _numbers(card, "alignment" if "alignment_heads" in text else "")
    exists = card.score.notnull().any("role").values
    listed = np.where(exists & np.isin(np.arange(len(exists)), [*rows.values()])[:, None], 0.0, np.nan)
    for layer, head in pairs:
        if layer not in rows or not 0 <= head < exists.shape[1] or not exists[rows[layer], head]:
            raise AttnscopeError(
                f"{file} lists head {layer}.{head}, which {card.attrs.get('model', 'the model')} lacks"
            )
        listed[rows[layer], head] = 1.0
    if np.nanmin(listed) == np.nanmax(listed):
        raise AttnscopeError(f"{file} lists {'all' if pairs else 'none'} of the heads; expected some of them")
    return listed


def check_listing(listing: tuple[Path, str], outline: LoadedModel) -> None:
    """Reject a file before weights are loaded, if it lists heads that the model lacks."""
    sites = outlined(outline.model)
    if len({site.kind for site in sites}) != 1:  # which layers a list counts is known later
        return
    scores = padded_heads([np.zeros(site.heads) for site in sites])[None]
    groups = [site.group for site in sites]
    card = xr.Dataset({"score": (("role", "layer", "head"), scores), SHARED: ("layer", groups)})
    read_heads(listing, card.assign_coords(layer_coordinates(sites)).assign_attrs(model=outline.name))


def _table(text: str, card: xr.Dataset) -> list[tuple[int, int]]:
    """Heads of a table of gates, layers by key-value heads, from 0.5 on."""
    gates, numbers = np.loadtxt(io.StringIO(text), delimiter="\t", ndmin=2), _numbers(card)
    sizes = [(int(card[SHARED].values[row]), int(card.score[0, row].size)) for row in numbers.values()]
    shape = len(numbers), sizes[0][1] // sizes[0][0]
    if gates.shape != shape:
        raise ValueError(f"a table of {gates.shape[0]} x {gates.shape[1]}, and the model has {shape[0]} x {shape[1]}")
    if not np.isfinite(gates).all():
        raise ValueError("a gate is NaN or infinite")
    pairs: list[tuple[int, int]] = []
    for layer, row, (size, _) in zip(numbers, gates, sizes, strict=True):
        pairs += [(layer, head) for head in np.flatnonzero(row.repeat(size) >= _GATE).tolist()]
    return pairs


def _pairs(text: str, card: xr.Dataset) -> list[tuple[int, int]]:
    """Heads of the other formats, as layer and head."""
    if text.lstrip().startswith("["):
        patterns, numbers = json.loads(text), _numbers(card)
        if len(patterns) != len(numbers):
            raise ValueError(f"patterns of {len(patterns)} layers, and the model has {len(numbers)}")
        pairs = [(layer, *item) for layer, row in zip(numbers, patterns, strict=True) for item in row.items()]
        return [(layer, int(head)) for layer, head, pattern in pairs if pattern[0] == "stream_llm"]
    if text.lstrip().startswith("{"):
        lists = json.loads(text)
        if "alignment_heads" in lists:
            pairs = lists["alignment_heads"]
            for number in chain.from_iterable(pairs):
                if type(number) is not int:
                    raise ValueError(f"{number} as a layer or head")
            return [(layer, head) for layer, head in pairs]
        text = " ".join(name for name, scores in lists.items() if np.mean(scores) >= _RETRIEVES)
    listed = re.search(r"attn_head_set:([^#\n]*)", text)  # the line of QRHead's YAML
    text = text if listed is None else listed[1]
    return [(int(layer), int(head)) for layer, head in re.findall(r"\b[La]?(\d+)\s*[-.H]\s*[hH]?(\d+)\b", text)]
