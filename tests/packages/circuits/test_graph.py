"""A graph has the schema of circuit-tracer and Neuronpedia, and the numbers of edges or attributions."""

import json

import pytest

import attnscope
import attnscope_circuits
from attnscope import AttnscopeError
from attnscope_circuits.export import graph
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
    found = attnscope_circuits.edges(model, [pair], tokenizer=tokenizer, method="eap", sizes=[0.0, 1.0])
    links = checked(graph(found, top=10**6))
    assert sum(links.values()) == pytest.approx(float(found.score.sum()))
    query, key, value = (
        float(found.score.sel(sender="a0.h0", receiver=name)) for name in ("a1.h3<q>", "a1.h1<k>", "a1.h1<v>")
    )
    assert links["0_a0.h0_0", "1_a1.h3_0"] == pytest.approx(query + (key + value) / 2)  # two heads share keys
    few = checked(graph(found, top=5))
    assert sorted(map(abs, few.values())) == sorted(map(abs, links.values()))[-5:]


def test_a_graph_of_attribute_has_the_parts_of_the_logit(tmp_path):
    found = attnscope_circuits.attribute(limit=4, window=32, out=tmp_path / "run")
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
