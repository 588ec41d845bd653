"""Edges against runs patched by hand, the slope at close texts, and circuits that are known."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr
from transformers import GPT2Config, GPT2LMHeadModel

import attnscope
import attnscope_circuits
from attnscope.capture.borrow import LoadedModel
from attnscope.catalogue import function_of
from attnscope.intervention.gradients import embeddings_moved
from attnscope.intervention.pairs import EncodedPairs, Pair
from attnscope.intervention.patch_findings import NO_SHARE
from attnscope.models.common import IGNORED
from attnscope.results.reports import report_of
from attnscope.support.errors import AttnscopeError
from attnscope_circuits.edge_report import chosen_circuits
from attnscope_circuits.edge_scores import EdgeRuns, Graph, with_own_layers
from attnscope_circuits.figures.edges import graph_of
from attnscope_zoo.catalogue import build
from tests.cli.command import attnscope as attnscope_command
from tests.tiny_models import tiny

ADDITIVE = ["gpt2", "llama", "gpt_neox", "opt", "qwen3", "gpt_oss", "gemma2", "bert", "distilbert", "electra", "albert"]
TWO_STACKS = ["t5", "bart"]


def model_of(family):
    """A tiny model with weights that matter, in double precision where it can be."""
    model = with_own_layers(tiny(family).eval())
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    return model if family == "gpt_oss" else model.double()


def pairs_of(count=2, length=6):
    generator = torch.Generator().manual_seed(0)
    clean = torch.randint(3, 60, (count, length), generator=generator)
    corrupted = clean.clone()
    corrupted[:, 1:-1] = torch.randint(3, 60, (count, length - 2), generator=generator)
    ends = torch.full((count, 1), length - 1)
    return EncodedPairs(
        clean, corrupted, ends, torch.arange(5, 5 + count)[:, None], torch.arange(20, 20 + count)[:, None], (), ()
    )


def with_targets(pairs, length=4, *, exchanged=True):
    """What a decoder reads: the same in both runs, or other tokens after the first."""
    clean, other = torch.randint(3, 60, (2, len(pairs), length), generator=torch.Generator().manual_seed(1))
    other[:, : 1 if exchanged else None] = clean[:, : 1 if exchanged else None]
    return replace(pairs, positions=torch.full((len(pairs), 1), length - 1), targets=(clean, other))


@pytest.mark.parametrize(
    ("family", "targets"),
    [*((family, None) for family in ADDITIVE)]
    + [(family, how) for family in TWO_STACKS for how in ((4, True), (4, False), (1, False))],
)
def test_a_circuit_of_all_edges_is_the_clean_run_and_of_none_the_corrupted_one(family, targets):
    pairs = pairs_of() if targets is None else with_targets(pairs_of(), targets[0], exchanged=targets[1])
    graph = Graph(model_of(family), pairs)
    runs = EdgeRuns(graph, pairs)
    for kept, end in ((graph.exist, runs.clean[1]), (np.zeros_like(graph.exist), runs.corrupted[1])):
        np.testing.assert_allclose(runs.circuit(np.flatnonzero(kept)), end, atol=1e-5)
    assert abs(runs.clean[1] - runs.corrupted[1]).max() > 0.05


@pytest.mark.parametrize("family", [one for one in ADDITIVE if one != "gpt_oss"])
def test_of_pairs_that_hardly_differ_rounding_is_no_part_of_what_is_read(family):
    """In single precision, where the change of what a part reads is little more than the rounding of what it reads."""
    model, pairs = model_of(family).float(), pairs_of()
    words = model.get_input_embeddings().weight.data
    for clean, corrupted in zip(pairs.clean.flatten().tolist(), pairs.corrupted.flatten().tolist(), strict=True):
        words[corrupted] = words[clean]
    noise = torch.randn(words.shape, generator=torch.Generator().manual_seed(2))
    words += 1e-5 * noise
    graph = Graph(model, pairs)
    plain = Graph(model_of(family), pairs_of())
    assert [part.read for part in graph.parts] == [part.read for part in plain.parts]


def test_parallel_layers_do_not_read_each_other():
    graph = Graph(model_of("gpt_neox"), pairs_of())
    column = graph.exist[:, graph.receivers.index("m0")]
    assert [name for name, read in zip(graph.senders, column, strict=True) if read] == ["input"]


def through(norm, part, whole):
    """A part of what a norm reads, at the denominator of all of it."""
    if isinstance(norm, torch.nn.LayerNorm):
        deviation = (whole.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
        return norm.weight * (part - part.mean(-1, keepdim=True)) / deviation
    return (1 + norm.weight) * part / (whole.square().mean(-1, keepdim=True) + norm.eps).sqrt()


def by_hooks(model, pairs, dense, norms, entry, reader, columns):
    """What another output of head 2 changes, on its way from its output matrix into some columns of a layer alone."""
    kept, messages = {}, []

    def run(which, *hooks):
        handles = [module.register_forward_hook(hook) for module, hook in hooks]
        with torch.no_grad():
            logits = model(**pairs.inputs[which]).logits[range(len(pairs)), pairs.positions[:, 0]]
        for handle in handles:
            handle.remove()
        return (logits.gather(1, pairs.answers) - logits.gather(1, pairs.wrongs))[:, 0]

    def keep(module, given, _):
        kept[module] = given[0].clone()

    def put_in(_, __, made):
        made = made.clone()
        made[..., columns] = moved[..., columns]
        return made

    for which in (1, 0):
        clean = run(which, *((module, keep) for module in {dense, entry, *norms}))
        matrix = dense.weight.T if isinstance(dense, torch.nn.Linear) else dense.weight
        message = kept[dense][..., 16:24] @ matrix[16:24] + (0 if dense.bias is None else dense.bias / 4)
        for norm in norms:
            message = through(norm, message, kept[norm])
        messages.append(message)
    moved = kept[entry] + messages[0] - messages[1]
    moved = reader(moved if entry is reader else entry(moved)).detach()
    return run(0, (reader, put_in)) - clean


def check_edge(model, pairs, sender, receiver, expected, close=1e-10):
    graph = Graph(model, pairs)
    edges = graph.exist.copy()
    edges[graph.senders.index(sender), graph.receivers.index(receiver)] = False
    runs = EdgeRuns(graph, pairs)
    found = runs.circuit(np.flatnonzero(edges)) - runs.clean[1]
    np.testing.assert_allclose(found, expected.detach(), rtol=1e-6, atol=close)
    assert abs(expected).max() > 1e-4


@pytest.mark.parametrize(
    ("family", "side"), [("gpt2", "q"), ("gpt2", "v"), ("llama", "k"), ("llama", "q"), ("gemma2", "v"), ("gemma2", "q")]
)
def test_an_edge_is_patched_as_by_hooks(family, side):
    model, pairs = model_of(family), pairs_of()
    first, second = model.transformer.h if family == "gpt2" else model.model.layers
    after = [first.post_attention_layernorm] if family == "gemma2" else []  # the head adds its part of a normed sum
    for norm in after:
        torch.nn.init.normal_(norm.weight, 0.0, 0.5)
    if family == "gpt2":
        start = "qkv".index(side) * 32 + 8
        way = (first.attn.c_proj, after, second.ln_1, second.attn.c_attn, slice(start, start + 8))
    else:
        reader = getattr(second.self_attn, f"{side}_proj")
        way = (first.self_attn.o_proj, after, second.input_layernorm, reader, slice(8, 16))
    close = 1e-6 if after else 1e-10  # norms of Gemma 2 compute in single precision
    check_edge(model, pairs, "a0.h2", f"a1.h1<{side}>", by_hooks(model, pairs, *way), close)


@pytest.mark.parametrize("side", ["query", "value", "mlp"])
@pytest.mark.parametrize("family", ["bert", "albert"])
def test_an_edge_behind_norms_of_the_sum_is_patched_as_by_hooks(family, side):
    model, pairs = model_of(family), pairs_of()
    if family == "bert":
        first, second = model.bert.encoder.layer
        dense, norms = first.attention.output.dense, [first.attention.output.LayerNorm, first.output.LayerNorm]
        wide, reads = first.intermediate.dense, second.attention.self
    else:
        first, second = (group.albert_layers[0] for group in model.albert.encoder.albert_layer_groups)
        dense, norms = first.attention.dense, [first.attention.LayerNorm, first.full_layer_layer_norm]
        wide, reads = first.ffn, second.attention
    for norm in norms:
        torch.nn.init.normal_(norm.weight, 1.0, 0.5)
    if side == "mlp":
        norms, reader, columns, receiver = norms[:1], wide, slice(None), "m0"
    else:
        reader, columns, receiver = getattr(reads, side), slice(8, 16), f"a1.h1<{side[0]}>"
    check_edge(model, pairs, "a0.h2", receiver, by_hooks(model, pairs, dense, norms, reader, reader, columns))


@pytest.mark.parametrize("family", ["bart", "t5"])
@pytest.mark.parametrize("side", ["query", "key", "value"])
def test_an_edge_into_cross_attention_is_patched_as_by_hooks(family, side):
    model, pairs = model_of(family), with_targets(pairs_of())
    stack, sender = (model.get_decoder(), "a2.h2") if side == "query" else (model.get_encoder(), "a0.h2")
    if family == "t5":
        cross = model.decoder.block[0].layer[1]
        dense, norms, reader = stack.block[0].layer[0].SelfAttention.o, [], getattr(cross.EncDecAttention, side[0])
        entry = cross.layer_norm if side == "query" else model.encoder.final_layer_norm
    else:
        every = [norm for layer in stack.layers for norm in (layer.self_attn_layer_norm, layer.final_layer_norm)]
        dense, norms = stack.layers[0].self_attn.out_proj, every[:1] if side == "query" else every
        entry = reader = getattr(model.model.decoder.layers[0].encoder_attn, f"{side[0]}_proj")
    for norm in [*norms, *([entry] if family == "t5" else [])]:
        torch.nn.init.normal_(norm.weight, 1.0, 0.5)
    expected = by_hooks(model, pairs, dense, norms, entry, reader, slice(8, 16))
    check_edge(model, pairs, sender, f"a3.h1<{side[0]}>", expected, 1e-6 if family == "t5" else 1e-10)


def test_answers_of_several_tokens_follow_what_the_decoder_has_written():
    planted = build("copying-decoder-1")
    loaded = LoadedModel(model_of("t5"), planted.tokenizer, "t5", {})
    pair = Pair("t3 t4 t5", "t3 t6 t5", "t7 t8", "t9", target="t10 t11", corrupted_target="t12 t11")
    encoded = EncodedPairs.of([pair], loaded)
    runs = EdgeRuns(Graph(loaded.model, encoded), encoded)
    for ids, start, (_, found) in (([3, 4, 5], 10, runs.clean), ([3, 6, 5], 12, runs.corrupted)):
        logs = []
        for answer in ([7, 8], [9]):
            read = torch.tensor([[0, start, 11, *answer[:-1]]])
            logits = loaded.model(input_ids=torch.tensor([ids]), decoder_input_ids=read).logits[0].detach()
            each = logits.log_softmax(-1)[-len(answer) :]
            logs.append(sum(float(each[at, token]) for at, token in enumerate(answer)))
        np.testing.assert_allclose(found, logs[0] - logs[1], atol=1e-6)


def test_streams_do_not_read_each_other():
    graph = Graph(model_of("bart"), with_targets(pairs_of()))

    def read(receiver):
        column = graph.exist[:, graph.receivers.index(receiver)]
        return {name.split(".")[0] for name, there in zip(graph.senders, column, strict=True) if there}

    assert read("a3.h0<q>") == {"target", "a2"}
    assert read("a3.h0<k>") == read("a5.h0<v>") == {"input", "a0", "m0", "a1", "m1"}
    assert read("logits") == {"target", "a2", "a3", "m2", "a4", "a5", "m3"}


@pytest.mark.parametrize("family", [*TWO_STACKS, "gpt2"])
def test_embeddings_move_from_one_text_to_the_other(family):
    model, pairs = model_of(family), pairs_of()
    pairs = pairs if family == "gpt2" else with_targets(pairs)
    clean, corrupted = pairs.inputs
    for share, end in ((0.0, clean), (1.0, corrupted)):
        with torch.no_grad(), embeddings_moved(model, clean, corrupted, share):
            found = model(**clean).logits
        torch.testing.assert_close(found, model(**end).logits.detach())


@pytest.mark.parametrize(
    ("family", "steps"),
    [
        *((one, 0) for one in ("gpt2", "llama", "gpt_neox", "qwen3", "bert", "albert", *TWO_STACKS)),
        ("gpt2", 3),
        ("bart", 3),
    ],
)
def test_attribution_is_the_effect_of_a_small_change(family, steps):
    model = model_of(family)
    table = model.get_input_embeddings().weight
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():  # token n + 30 is almost token n
        table[30:60] = table[:30] + 1e-4 * torch.randn(30, table.shape[1], generator=generator, dtype=table.dtype)
    pairs = pairs_of()
    clean = pairs.clean % 27 + 3
    close = EncodedPairs(clean, clean.clone(), pairs.positions, pairs.answers, pairs.wrongs, (), ())
    close.corrupted[:, 1:4] += 30
    if family in TWO_STACKS:
        close = replace(close, targets=(clean, close.corrupted), positions=pairs.positions)
    runs = EdgeRuns(Graph(model, close), close)
    edges = np.flatnonzero(runs.graph.exist)
    some = edges[:: 17 if family in TWO_STACKS else 7]
    exact = np.stack([runs.circuit(edges[edges != edge]) - runs.clean[1] for edge in some], 1)
    found = runs.attributed(steps).reshape(len(close), -1)[:, some]
    np.testing.assert_allclose(found, exact, rtol=0.05, atol=0.01 * abs(exact).max())
    if family == "gpt2":
        np.testing.assert_array_equal(runs.exact().reshape(len(close), -1)[:, some], exact)


def test_eap_takes_two_forward_passes_and_one_backward_pass(monkeypatch):
    model, pairs = model_of("gpt2"), pairs_of()
    graph = Graph(model, pairs)
    passes = {"forward": 0, "backward": 0}
    hook = model.register_forward_hook(lambda *_: passes.update(forward=passes["forward"] + 1))
    whole = torch.autograd.grad

    def grad(wanted, *given, **named):
        passes["backward"] += wanted.ndim == 0
        return whole(wanted, *given, **named)

    monkeypatch.setattr(torch.autograd, "grad", grad)
    EdgeRuns(graph, pairs).attributed(0)
    hook.remove()
    assert passes == {"forward": 2, "backward": 1}


def planted_pairs(planted, count):
    """Texts that end in a query, with those of others that end in one at the same place and have another answer."""
    found = []
    labels = planted.labels.numpy()
    for row, label in enumerate(labels):
        for place in np.flatnonzero(label != IGNORED)[1:]:
            others = [at for at in range(len(labels)) if labels[at, place] not in {IGNORED, label[place]}]
            if others and len(found) < count:
                both = (row, others[0])
                stop = place + 1 if planted.target is None else None
                texts = [" ".join(f"t{word}" for word in planted.ids[at, :stop].tolist()) for at in both]
                answers = [f"t{labels[at, place]}" for at in both]
                found.append(dict(zip(("clean", "corrupted", "answer", "wrong"), (*texts, *answers), strict=True)))
                if planted.target is not None:  # without the start token
                    ids = [planted.target[at, 1 : place + 1].tolist() for at in both]
                    words = (" ".join(f"t{word}" for word in one) for one in ids)
                    found[-1] |= zip(("target", "corrupted_target"), words, strict=True)
                break
    return found


@pytest.mark.parametrize(
    ("name", "method"), [("relay-decoder-1", "eap_ig"), ("relay-decoder-2", "eap"), ("relay-encoder-decoder-1", "eap")]
)
def test_planted_circuits_come_out(name, method):
    planted = build(name)
    found = attnscope_circuits.edges(
        planted.model,
        planted_pairs(planted, 6),
        tokenizer=planted.tokenizer,
        method=method,
        sizes=[0.0, 0.05, 0.5, 1.0],
        draws=1,
    )
    planted_heads = {f"a{layer}.h{head}" for layer, head in np.argwhere(planted.heads.numpy()).tolist()}
    size = abs(found.score).fillna(0)
    through = {
        head: float(size.sel(sender=head).sum() + size.sel(receiver=[f"{head}<q>", f"{head}<k>", f"{head}<v>"]).sum())
        for head in found.sender.values.tolist()
        if head.startswith("a")
    }
    others = [value for head, value in through.items() if head not in planted_heads]
    assert min(through[head] for head in planted_heads) > max(others), (planted_heads, through)
    assert found.cpr.sel(order="raising") > found.cpr.sel(order="random")
    assert found.cmd.sel(order="changing") < found.cmd.sel(order="random")
    np.testing.assert_allclose(found.faithfulness.sel(size=[0, 1]), [[0, 1]] * 3, atol=1e-3)


def random_pairs(count):
    """A tiny model with random weights, on texts that have nothing in common."""
    model, words = model_of("gpt2"), np.random.default_rng(1).integers(3, 60, size=(count, 2, 6))
    texts = [
        {name: " ".join(f"t{word}" for word in side) for name, side in zip(("clean", "corrupted"), pair, strict=True)}
        for pair in words
    ]
    return model, [text | {"answer": "t5", "wrong": "t9"} for text in texts]


def test_circuits_are_chosen_on_the_other_half_of_the_pairs():
    planted = build("copying-decoder-1")
    model, pairs = random_pairs(8)
    how = {"tokenizer": planted.tokenizer, "method": "eap", "sizes": [0.05, 0.2], "draws": 1}
    found = attnscope_circuits.edges(model, pairs, **how)
    assert sorted(found.pair.values) == list(range(1, 9))
    assert np.bincount(found.half).tolist() == [4, 4]
    loaded = LoadedModel(model, planted.tokenizer, "tiny", {})
    encoded = {half: [pairs[at - 1] for at in found.pair.values[found.half == half]] for half in (0, 1)}
    graph = None
    runs, same = {}, []
    for half, own in encoded.items():
        both = EncodedPairs.of([Pair(**pair) for pair in own], loaded)
        graph = graph or Graph(model, both)
        runs[half] = EdgeRuns(graph, both)
    numbers = np.flatnonzero(graph.exist)
    best = {half: numbers[np.argsort(run.attributed(0).mean(0).flat[numbers])] for half, run in runs.items()}
    for half, run in runs.items():
        for size, own in zip(
            (0.05, 0.2), found.difference.sel(order="raising").values[found.half == half].T, strict=True
        ):
            count = round(size * numbers.size)
            np.testing.assert_allclose(run.circuit(best[1 - half][:count]), own, rtol=1e-5)
            same.append(run.circuit(best[half][:count]).mean() - own.mean())
    assert np.mean(same) > 0  # chosen on the same pairs, a circuit seems better than it is


@pytest.fixture(scope="module")
def relayed():
    """The edges of a planted relay over eight pairs."""
    planted = build("relay-decoder-1")
    return attnscope_circuits.edges(planted.model, planted_pairs(planted, 8), tokenizer=planted.tokenizer, draws=1)


@pytest.fixture(scope="module")
def copied():
    """The edges of a planted copier over eight pairs, at three sizes, and what progress was told."""
    planted, told = build("copying-decoder-1"), []
    how = {"tokenizer": planted.tokenizer, "draws": 1, "sizes": [0.1, 0.2, 1.0]}
    return attnscope_circuits.edges(planted.model, planted_pairs(planted, 8), progress=told.append, **how), told


def test_areas_and_intervals_follow_from_the_circuits(relayed):
    found = relayed
    gap = float((found.clean - found.corrupted).sum())
    curve = (found.difference - found.corrupted).sum("pair") / gap
    np.testing.assert_allclose(found.faithfulness, curve, rtol=1e-9)
    np.testing.assert_allclose(found.cpr, np.trapezoid(curve, found["size"]), rtol=1e-9)
    np.testing.assert_allclose(found.cmd, np.trapezoid(abs(1 - curve), found["size"]), rtol=1e-9)
    assert (found.cpr_low <= found.cpr).all()
    assert (found.cpr <= found.cpr_high).all()


def test_layers_that_share_weights_get_copies_of_their_own():
    model, ids = tiny("albert").eval(), pairs_of().clean
    own = with_own_layers(model)
    assert torch.equal(own(ids).logits, model(ids).logits)
    assert own.config.num_hidden_groups == own.config.num_hidden_layers > model.config.num_hidden_groups
    with pytest.raises(AttnscopeError, match="no edges"):
        Graph(model, pairs_of())


def test_the_command_prints_what_python_finds_and_stores_it(tmp_path):
    words = ["edges", "--method", "eap", "--size", "0.1", "--size", "0.5", "--draws", "2", "--out", "run", "--json"]
    done = attnscope_command(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = attnscope_circuits.edges(method="eap", sizes=[0.1, 0.5], draws=2)
    tables = json.loads(done.stdout)["tables"]
    first = abs(found.score).stack(edge=("sender", "receiver")).idxmax("edge").item()
    assert (tables["edges"][0]["sender"], tables["edges"][0]["receiver"]) == first
    assert len(tables["edges"]) == int(found.score.notnull().sum())
    np.testing.assert_allclose([row["raising"] for row in tables["circuits"]], found.faithfulness.sel(order="raising"))
    xr.testing.assert_allclose(attnscope.open_run(tmp_path / "run"), found)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Faithfulness of circuits" in page
    assert page.index('id="circuit"') < page.index('id="edges"')
    assert "edges. Each line leads" in page


def test_the_graph_is_the_circuit_of_the_finding_with_heads_named_as_everywhere(relayed):
    report = report_of("edges", relayed)
    graph, size = graph_of(report), max(size for size, _ in chosen_circuits(relayed).values())
    assert graph.number_of_edges() == min(40, round(size * len(report.rows)))
    assert f"{size:.1%}" in report.finding.sentences[0]
    scores = relayed.score.stack(edge=("sender", "receiver")).dropna("edge")
    for start, end, kind in graph.edges(keys=True):
        names = {"query": "<q>", "key": "<k>", "value": "<v>"}.get(kind, "")
        sender, receiver = (re.sub(r"^(\d+)\.(\d+)$", r"a\1.h\2", name) for name in (start, end))
        found = float(scores.sel(sender=sender, receiver=receiver + names))
        assert graph.edges[start, end, kind]["weight"] == abs(found)
        assert graph.nodes[start]["layer"] < graph.nodes[end]["layer"]
    rows = [row for row in report.rows if row["through"]]
    assert all(re.fullmatch(r"\d+\.\d+", row["to"]) for row in rows)


def test_a_finding_needs_six_pairs_for_a_test_and_names_random_edges(relayed):
    planted = build("relay-decoder-1")
    three = attnscope_circuits.edges(planted.model, planted_pairs(planted, 3), tokenizer=planted.tokenizer, draws=1)
    few, many = (report_of("edges", one) for one in (three, relayed))
    assert few.finding.certainty == (
        "not tested; circuits are chosen and tested on the same pairs, with fewer than 6 of them"
    )
    assert "they need 6 or more pairs" in " ".join(few.finding.sentences)
    assert few.finding.headline == "No test possible: circuits are tested with 6 or more pairs"
    tested, chosen, overshoot = many.finding.certainty.split("; ")
    assert overshoot.startswith("more than 100% is possible")
    assert tested == "95% interval over pairs"
    assert chosen == "edges, order and size of circuits are chosen on one half of the pairs and tested on the other"
    assert "as many random edges keep" in many.finding.sentences[0]
    shown = [row for row in many.rows if row["shown"]]
    assert shown
    assert all(row["score_low"] * row["score_high"] > 0 for row in shown)


def test_the_headline_names_the_ranking_with_the_smallest_circuit(copied):
    found, passed = copied
    gap = found.clean - found.corrupted

    def finding_of(raising, changing):
        """The finding if circuits keep these shares of the difference in every pair."""
        curves = xr.DataArray([raising, changing, [0, 0.1, 1]], {name: found[name] for name in ("order", "size")})
        difference = (found.corrupted + gap * curves).transpose(*found.difference.dims)
        return report_of("edges", found.assign(difference=difference)).finding

    first = finding_of([0.004, 0.79, 1], [0.3, 0.976, 1])
    assert first.headline.startswith("A circuit of ")
    assert "edges (20.0%) keeps on average 98% (" in first.headline
    assert "It is the smallest that keeps 80% to 120% of the difference" in first.sentences[1]
    assert first.sentences[1].endswith("those with the largest scores.")
    first = finding_of([0.85, 0.79, 1], [0.3, 0.976, 1])
    assert "edges (10.0%) keeps on average 85% (" in first.headline
    assert first.sentences[1].endswith("those that work most for the answer.")
    for kept in (0.5, 1.5):
        last = finding_of([0.1, 0.1, 1], [0.1, kept, 1])
        assert f"edges (20.0%) keeps on average {kept:.0%} (" in last.headline
        assert last.sentences[1].startswith("No circuit keeps 80% to 120% of it on other pairs")
        assert last.sentences[1].endswith("those with the largest scores.")
    whole = len(passed)  # 5 gradients, and 3 orders of 3 sizes, of every length in each half
    assert whole % (5 + 3 * 3) == 0
    assert [one.details["passes"] for one in passed] == [f"{at} of {whole}" for at in range(1, whole + 1)]
    assert passed[-1].share == 1


def test_size_and_order_of_a_circuit_are_chosen_on_the_other_half(copied):
    """By hand: each half keeps all of the difference at another size, so that neither keeps it at the other's."""
    found = copied[0].sel(size=[0.1, 0.2])
    gap = found.clean - found.corrupted
    kept = xr.where(found.half == 0, xr.DataArray([1.0, 0.3], dims="size"), xr.DataArray([0.4, 1.1], dims="size"))
    kept = kept.expand_dims(order=3)
    difference = (found.corrupted + gap * kept).transpose(*found.difference.dims)
    first, second = report_of("edges", found.assign(difference=difference)).finding.sentences[:2]
    share = float((gap * xr.where(found.half == 0, 0.3, 0.4)).sum() / gap.sum())
    assert first.startswith("Circuits of ")
    assert f"edges (10.0% and 20.0%), one from each half of the pairs, keep on average {share:.0%} (" in first
    assert second.startswith("No circuit keeps 80% to 120% of it on other pairs")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_untrained_model_has_no_circuit(seed):
    """The differences of pairs have no common sign. Patching gives no shares of them either."""
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2)).eval()
    words = np.random.default_rng(seed).integers(3, 60, size=(8, 2, 6))
    names = ("clean", "corrupted")
    texts = [dict(zip(names, (" ".join(f"t{word}" for word in side) for side in pair), strict=True)) for pair in words]
    pairs = [text | {"answer": f"t{3 + at}", "wrong": f"t{30 + at}"} for at, text in enumerate(texts)]
    how = {"tokenizer": build("copying-decoder-1").tokenizer}
    found = attnscope_circuits.edges(model, pairs, method="eap", sizes=[0.1, 0.5, 1.0], draws=1, **how)
    gaps = (found.clean - found.corrupted).values
    assert abs(gaps.mean()) < 2 * gaps.std(ddof=1) / np.sqrt(8)
    finding = report_of("edges", found).finding
    assert finding.headline == NO_SHARE
    assert not re.search(r"\d%", " ".join(finding.sentences))
    patched = report_of("patch", attnscope.patch(model, pairs, steps=0, **how))
    assert finding.headline in patched.finding.sentences
    assert not re.search(r"\d% of the difference", " ".join([patched.finding.headline, *patched.finding.sentences]))


def test_wrong_sizes_are_named():
    planted = build("copying-decoder-1")
    with pytest.raises(AttnscopeError, match="shares of the edges from 0 to 1"):
        attnscope_circuits.edges(
            planted.model, planted_pairs(planted, 1), tokenizer=planted.tokenizer, sizes=[0.5, 0.1]
        )


def test_the_largest_significant_edge_is_named_even_below_a_larger_score(copied):
    found = copied[0].copy(deep=True)
    order = abs(found.score).stack(edge=("sender", "receiver")).fillna(0).argsort().values
    places = np.unravel_index(order[[-1, -2]], found.score.shape)
    found.tested[:], found.shown[:] = True, False
    assert "None of" in report_of("edges", found).finding.sentences[2]
    found.shown.values[places[0][1], places[1][1]] = True
    told, beyond = report_of("edges", found).finding.sentences[2:4]
    written = {r"a(\d+)\.h(\d+)": r"\1.\2", "<q>": " query", "<k>": " key", "<v>": " value"}
    names = [*found.sender.values[places[0]], *found.receiver.values[places[1]]]
    for coded, name in written.items():
        names = [re.sub(coded, name, part) for part in names]
    assert re.match(r"1 of \d+ edges has a significant score", told)
    assert f"the largest of these {names[1]} → {names[3]} (" in told
    assert beyond.startswith(f"The largest score of all, {names[0]} → {names[2]} (")
    assert beyond.endswith("is not significant.")


@pytest.mark.parametrize("verb", ["edges", "patch"])
def test_equal_pairs_count_once(verb):
    """Eight copies of a pair say no more than one, also about whether the model knows its answer."""
    planted = build("copying-decoder-1")
    model, pairs = random_pairs(8)
    how = {"method": "eap", "sizes": [0.2, 1.0], "draws": 1} if verb == "edges" else {}
    again, twice, once = (
        function_of(verb)(model, given, tokenizer=planted.tokenizer, **how)
        for given in (pairs[:1] * 8, pairs * 2, pairs)
    )
    few = report_of(verb, again)
    assert few.notes[0] == "7 of 8 pairs repeat an earlier one: intervals and tests count them once."
    assert few.finding.headline.startswith("No test possible")
    assert "6 or more pairs of one kind, and there is 1." in " ".join(few.finding.sentences)
    one, both = ((found if verb == "edges" else found["patched"]) for found in (once, twice))
    score = "score" if verb == "edges" else "effect"
    for name in (score, f"{score}_low", f"{score}_high", "shown"):
        np.testing.assert_allclose(one[name], both[name], atol=1e-6)
    doubts = [
        [line for line in report_of(verb, found).finding.sentences if "guessing" in line] for found in (once, twice)
    ]
    assert doubts[0] == doubts[1] != []
    if verb == "edges":
        halves = dict(zip(twice.clean_text.values.tolist(), twice.half.values.tolist(), strict=True))
        assert len(halves) == 8
        assert [halves[text] for text in twice.clean_text.values] == twice.half.values.tolist()
        assert once.half.values.tolist() == [halves[text] for text in once.clean_text.values]
