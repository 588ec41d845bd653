"""Write four heads of one layer of a trained language model, for the lesson on heads: order, syntax and meaning.

    python scripts/real_models.py . all-MiniLM-L6-v2
    python scripts/lesson_views.py all-MiniLM-L6-v2

The file has queries and keys of the heads on a few sentences, from which the page computes the weights, and what
`attnscope relations` measures of them: right links, links at the best fixed offset, and those of untrained copies.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import torch
import xarray as xr

import attnscope
from attnscope.capture.load import load_model
from attnscope.detection.roles import control
from attnscope_lineage.lessons import HERE
from attnscope_lineage.lessons.weights import packed
from attnscope_relations import relations

DATA = Path(__file__).parents[1] / "tests/data/relations"
LAYER = 2
#: Heads of the layer, with the relation that each is named after.
HEADS = {11: "order", 8: "case", 0: "obj", 4: "coreference"}
SENTENCES = (
    "The teacher praised Omar for a drawing, and the boy kept the picture.",
    "The violin hung on the wall, and nobody dared to sell the old instrument.",
    "A doctor in the village opened the window because she heard a noise.",
    "The dog found a bone under the table, and it hid the bone in the garden.",
)


def measured(model: str) -> dict[str, Any]:
    """Of each view: the share of right links of the head, of the best fixed offset, and of an untrained copy."""
    trees = relations(model, DATA / "english.conllu", only=["case", "obj"])
    pairs = relations(model, DATA / "coreference.jsonl")
    scores: dict[str, Any] = {}
    for head, name in HEADS.items():
        if name == "order":
            continue
        one = (pairs if name == "coreference" else trees).sel(relation=name)
        scores[name] = {
            "score": float(one.score.sel(layer=LAYER, head=head)),
            "offset": float(one.offset_score),
            "untrained": float(one.untrained.max()),
            "links": int(one.queries),
        }
    return scores


def previous_of(model: Any) -> xr.DataArray:
    """The weight of each head on the word before."""
    return attnscope.scan(model, limit=8, window=128).profile.mean("window").sel(offset=-1)


@torch.no_grad()
def shown(model: str) -> list[dict[str, Any]]:
    """Queries and keys of the heads on each sentence."""
    loaded = load_model(model)
    loaded.model.set_attn_implementation("eager")
    attention = loaded.model.encoder.layer[LAYER].attention.self
    width = attention.attention_head_size
    written: list[dict[str, Any]] = []
    for sentence in SENTENCES:
        projected: dict[str, torch.Tensor] = {}
        hooks = [
            getattr(attention, name).register_forward_hook(
                lambda _, __, output, name=name, to=projected: to.__setitem__(name, output[0])
            )
            for name in ("query", "key")
        ]
        encoded = loaded.tokenizer(sentence, return_tensors="pt")
        output = loaded.model(**encoded, output_attentions=True)
        for hook in hooks:
            hook.remove()
        arrays: dict[str, torch.Tensor] = {}
        for head in HEADS:
            query, key = (projected[name][:, head * width : (head + 1) * width] for name in ("query", "key"))
            apart = (query @ key.T / width**0.5).softmax(-1) - output.attentions[LAYER][0, head]
            print(f"head {LAYER}.{head}: largest difference from eager attention {apart.abs().max():.1e}")
            arrays |= {f"q{head}": query, f"k{head}": key}
        tokens = loaded.tokenizer.convert_ids_to_tokens(encoded["input_ids"][0])
        written.append({"tokens": tokens, "arrays": packed(arrays)})
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    model = parser.parse_args().model
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    previous = previous_of(model)
    loaded = load_model(model)
    with control(loaded.model, "initialised", 0):
        fresh = previous_of(loaded)
    views = measured(model)
    score, untrained = float(previous.sel(layer=LAYER, head=11)), float(fresh.max())
    views["order"] = {"score": score, "offset": None, "untrained": untrained, "links": None}
    written = {"model": Path(model).name, "layer": LAYER, "heads": {name: head for head, name in HEADS.items()}}
    written |= {"measured": views, "sentences": shown(model)}
    (HERE / "heads" / "views.json").write_text(json.dumps(written, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
