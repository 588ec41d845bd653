"""Graphs for circuit-tracer and Neuronpedia, from edges and attributions."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from attnscope.options import Count
from attnscope.report.signature import Signature
from attnscope.support.checked import checked
from attnscope.support.errors import AttnscopeError

_HEAD = re.compile(r"a(\d+)\.h(\d+)")
_KINDS = {"a": "attention head", "m": "mlp", "E": "embedding", "L": "logit"}


@checked
def graph(found: xr.Dataset | xr.DataTree, *, top: Count = 500) -> dict[str, Any]:
    """Return the graph JSON of circuit-tracer and Neuronpedia, from a result of `edges` or `attribute`.

    Parameters
    ----------
    found
        Result of `attnscope_circuits.edges`, or of `attnscope_circuits.attribute` without ``head``.
    top
        Number of links, those with the largest weights.

    Returns
    -------
    dict
        ``metadata``, ``qParams``, ``nodes`` and ``links``, as in the schema of Neuronpedia. ``metadata.info`` says what
        the graph lacks: it is a mean over texts and positions, so that all nodes are at one position; nodes are heads,
        MLPs and other components in place of features; a head's queries, keys and values are one node, whose links
        are summed, and the links of a key-value head are shared evenly by its query heads.

    Raises
    ------
    AttnscopeError
        If the result is of another verb, of an encoder-decoder, or of the scores of one head.

    References
    ----------
    Ameisen et al. (2025), Circuit Tracing: Revealing Computational Graphs in Language Models.
    """
    command = Signature.from_json(found.attrs.get("signature", "{}")).command
    if isinstance(found, xr.DataTree) and command == "attribute" and "head" not in found.attrs:
        weights = _parts(found["parts"].to_dataset())
    elif isinstance(found, xr.Dataset) and command == "edges" and "sender_stack" not in found.coords:
        weights = _edges(found)
    else:
        raise AttnscopeError(
            "expected a result of edges, or of attribute without head (--head), of a model of one stack"
        )
    links = sorted(weights.items(), key=lambda link: -abs(link[1]))[:top]
    layers = [int(number) for pair, _ in links for name in pair for number in re.findall(r"^[am](\d+)", name)]
    names = dict.fromkeys(name for pair, _ in links for name in pair)
    of_name = {name: _node(name, max(layers, default=0) + 1) for name in names}
    signature = Signature.from_json(found.attrs["signature"])
    return {
        "metadata": {
            "slug": f"attnscope-{command}-{signature.short}",
            "scan": str(found.attrs["model"]),
            "transcoder_list": [],
            "prompt_tokens": ["(all positions)"],
            "prompt": f"mean over {_read(found)}",
            "schema_version": 1,
            "info": {
                "description": "Means over texts and positions; nodes are heads and MLPs, not features. Links into a "
                "head are sums over its queries, keys and values; those of a key-value head are shared evenly by its "
                f"query heads. The {len(links)} largest of {len(weights)} links. {signature.format()}",
                "generator": {"name": "attnscope", "version": (signature.versions or {}).get("attnscope", "")},
            },
        },
        "qParams": {"pinnedIds": [], "supernodes": [], "linkType": "both", "clickedId": "", "sg_pos": ""},
        "nodes": [*of_name.values()],
        "links": [
            {"source": of_name[source]["node_id"], "target": of_name[target]["node_id"], "weight": weight}
            for (source, target), weight in links
        ],
    }


def _read(found: xr.Dataset | xr.DataTree) -> str:
    return f"{found.attrs['pairs']} pairs" if "pairs" in found.attrs else f"{found['parts'].attrs['windows']} windows"


def _parts(parts: xr.Dataset) -> dict[tuple[str, str], float]:
    """Mean part of each component in the logit."""
    letters = {"head": "a{}.h{}", "mlp": "m{}"}
    names = [
        letters[kind].format(int(layer), int(head)) if kind in letters else str(component)
        for component, kind, layer, head in zip(
            parts.component.values,
            parts.kind.values,
            np.nan_to_num(parts.layer),
            np.nan_to_num(parts["head"]),
            strict=True,
        )
    ]
    return {(name, "logits"): float(part) for name, part in zip(names, parts.part.values, strict=True) if part}


def _edges(found: xr.Dataset) -> dict[tuple[str, str], float]:
    """Scores between components; those of queries, keys and values are summed."""
    heads = [name for name in map(str, found.sender.values) if _HEAD.fullmatch(name)]
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for row, sender in zip(found.score.transpose("sender", "receiver").values, found.sender.values, strict=True):
        for receiver, score in zip(map(str, found.receiver.values), row.tolist(), strict=True):
            if np.isfinite(score):
                readers = _readers(receiver, heads, found.receiver.values)
                for reader in readers:
                    sums[str(sender), reader] += score / len(readers)
    return dict(sums)


def _readers(receiver: str, heads: list[str], receivers: np.ndarray) -> list[str]:
    """The components that read a receiver: of keys and values, the query heads that share them."""
    name, _, end = receiver.partition("<")
    if end in {"", "q>"}:
        return [name]
    layer, number = name.split(".h")
    of_layer = [head for head in heads if head.startswith(f"{layer}.")]
    shared = len(of_layer) // sum(str(one).startswith(f"{layer}.") and str(one).endswith("<k>") for one in receivers)
    return of_layer[int(number) * shared : (int(number) + 1) * shared]


def _node(name: str, above: int) -> dict[str, Any]:
    kind = "L" if name == "logits" else name[0] if re.match(r"[am]\d", name) else "E"
    numbers = [*map(int, re.findall(r"\d+", name))] if kind in "am" else []
    layer = {"L": str(above), "E": "E"}.get(kind) or str(numbers[0])
    # pages read the probability of an output from its label
    labels = {"a": "head " + ".".join(map(str, numbers)), "L": f'Output "{name}" (p=nan)'}
    return {
        "node_id": f"{layer}_{name}_0",
        "feature": numbers[1] if kind == "a" else -1,
        "layer": layer,
        "ctx_idx": 0,
        "feature_type": _KINDS[kind],
        "jsNodeId": f"{layer}_{name}-0",
        "clerp": labels.get(kind, name),
        "is_target_logit": kind == "L",
        "token_prob": 0.0,
        "influence": None,
        "activation": None,
    }


def files(
    found: xr.Dataset | xr.DataTree,
    to: str,  # noqa: ARG001 a graph
    top: int | None = None,
    variables: Sequence[str] | None = None,  # noqa: ARG001 of a card
) -> Mapping[str, str | bytes]:
    """Names and contents of the files of a format; see `attnscope.results.export.export`."""
    circuit = graph(found, **({} if top is None else {"top": top}))
    listed = {"graphs": [circuit["metadata"]]}
    return {f"{circuit['metadata']['slug']}.json": json.dumps(circuit), "graph-metadata.json": json.dumps(listed)}
