"""Other tools take what is exported: a press limits the heads of its card, a graph has the schema of Neuronpedia."""

import json
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import attnscope
from attnscope import AttnscopeError
from attnscope.detection.head_files import head_files
from attnscope.export import graph, kvpress
from attnscope_zoo.catalogue import build
from tests.cli.command import attnscope as command
from tests.tiny_models import tiny

TEXTS = {"type": "array", "items": {"type": "string"}}
NODE = {"node_id": "string", "feature": "integer", "layer": "string", "ctx_idx": "integer", "feature_type": "string"}
LINK = {"source": "string", "target": "string", "weight": "number"}


def object_of(types):
    kinds = {name: {"type": kind} if isinstance(kind, str) else kind for name, kind in types.items()}
    return {"type": "object", "properties": kinds, "required": [*kinds]}


METADATA = {**dict.fromkeys(("slug", "scan", "prompt"), "string"), "prompt_tokens": TEXTS, "transcoder_list": TEXTS}
STATE = {**dict.fromkeys(("linkType", "clickedId", "sg_pos"), "string"), "pinnedIds": TEXTS, "supernodes": "array"}
#: What both circuit-tracer (its records) and Neuronpedia (its schema) require.
SCHEMA = object_of(
    {
        "metadata": object_of(METADATA),
        "qParams": object_of(STATE),
        "nodes": {"type": "array", "items": object_of(NODE | {"jsNodeId": "string", "clerp": "string"})},
        "links": {"type": "array", "items": object_of(LINK)},
    }
)


def checked(made):
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(json.loads(json.dumps(made)), SCHEMA)
    nodes = {node["node_id"] for node in made["nodes"]}
    assert len(nodes) == len(made["nodes"])
    assert {link[end] for link in made["links"] for end in ("source", "target")} == nodes
    assert max(node["ctx_idx"] for node in made["nodes"]) < len(made["metadata"]["prompt_tokens"])
    return {(link["source"], link["target"]): link["weight"] for link in made["links"]}


def test_a_graph_of_edges_has_their_scores_and_keys_go_to_the_heads_that_share_them():
    model, tokenizer = tiny("llama"), build("previous-decoder-2").tokenizer
    pair = {"clean": "t3 t4 t5 t6", "corrupted": "t7 t4 t5 t6", "answer": "t8", "wrong": "t9"}
    found = attnscope.edges(model, [pair], tokenizer=tokenizer, method="eap", sizes=[0.0, 1.0])
    links = checked(graph(found, top=10**6))
    assert sum(links.values()) == pytest.approx(float(found.score.sum()))
    query, key, value = (
        float(found.score.sel(sender="a0.h0", receiver=name)) for name in ("a1.h3<q>", "a1.h1<k>", "a1.h1<v>")
    )
    assert links["0_a0.h0_0", "1_a1.h3_0"] == pytest.approx(query + (key + value) / 2)  # two heads share keys
    few = checked(graph(found, top=5))
    assert sorted(map(abs, few.values())) == sorted(map(abs, links.values()))[-5:]


def test_a_graph_of_attribute_has_the_parts_of_the_logit(tmp_path):
    found = attnscope.attribute(limit=4, window=32, out=tmp_path / "run")
    links = checked(graph(found))
    parts = found["parts"].to_dataset()
    head = parts.part.values[(parts.kind == "head") & (parts.layer == 0) & (parts["head"] == 3)]
    assert links["0_a0.h3_0", "3_logits_0"] == pytest.approx(float(head[0]))
    assert sum(links.values()) == pytest.approx(float(found["predictions"].total.mean()), abs=1e-3)
    done = command("runs", "export", "run", "--to", "graph", "--out", "graph", cwd=tmp_path)
    assert not done.stderr
    (file,) = (tmp_path / "graph").glob("attnscope-attribute-*.json")
    made = json.loads(file.read_text())
    assert made["links"] == graph(found)["links"]
    assert json.loads((tmp_path / "graph" / "graph-metadata.json").read_text()) == {"graphs": [made["metadata"]]}


def test_a_graph_is_of_edges_or_attribute(tmp_path):
    scan = attnscope.scan(limit=2, window=32, out=tmp_path / "run")
    with pytest.raises(AttnscopeError, match="expected a result of edges, or of attribute"):
        graph(scan)
    done = command("runs", "export", "run", "--to", "graph", cwd=tmp_path)
    assert "takes a run of edges or a run of attribute" in done.stderr


@pytest.fixture
def card():
    ids, tokenizer = torch.randint(3, 19, (4, 20)).tolist(), build("previous-decoder-2").tokenizer
    return attnscope.card(tiny("llama"), ids, tokenizer=tokenizer, kept=[(4, 2)], controls="none")


def test_the_press_has_the_table_of_the_card(card, monkeypatch):
    @dataclass
    class Press:
        head_compression_ratio: float = 0.0

        def forward_hook(self, module, _, kwargs, output):
            return kwargs["cache_position"][-1] + 1

    monkeypatch.setitem(sys.modules, "kvpress", SimpleNamespace(DuoAttentionPress=Press))
    press = kvpress(card, limited=0.25)
    assert press.head_compression_ratio == 0.25
    sinks, recent, scores = press.load_attention_pattern(tiny("llama"))
    table = np.loadtxt(head_files(card, "duo")["full_attention_heads.tsv"].splitlines(), delimiter="\t")
    assert (sinks, recent) == (2, 4)
    np.testing.assert_array_equal(scores, table)
    cache = SimpleNamespace(get_seq_length=lambda layer: 7 + layer)
    assert press.forward_hook(SimpleNamespace(layer_idx=1), None, {"past_key_values": cache}, None) == 8
    with pytest.raises(AttnscopeError, match=r"the model has 3 x 4 key-value heads, and the card 2 x 2"):
        press.load_attention_pattern(SimpleNamespace(config=SimpleNamespace(
            get_text_config=lambda: SimpleNamespace(num_hidden_layers=3, num_key_value_heads=4))))  # fmt: skip


def test_without_kvpress_its_press_is_rejected(card, monkeypatch):
    monkeypatch.setattr("attnscope.export.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "kvpress", raising=False)
    with pytest.raises(AttnscopeError, match="kvpress is not installed: install it as help"):
        kvpress(card)


def test_the_press_runs_and_limits_the_heads_that_need_the_cache_least(card):
    pytest.importorskip("kvpress")
    model, ids = tiny("llama").eval(), torch.randint(3, 19, (1, 21))

    def after(share):
        with torch.no_grad(), kvpress(card, limited=share)(model):
            cache = model(ids[:, :20]).past_key_values
            return model(ids[:, 20:], past_key_values=cache).logits[0, -1]

    with torch.no_grad():
        plain = model(ids).logits[0, -1]
    torch.testing.assert_close(after(0.0), plain, atol=1e-5, rtol=0)
    assert (after(0.5) - plain).abs().max() > 1e-4
