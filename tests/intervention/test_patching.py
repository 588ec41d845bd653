"""Patching against runs patched by hand; pairs, batches, and what few pairs allow to be said."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from transformers import LlamaConfig, LlamaForCausalLM

from attnscope import edit, patch
from attnscope.bundled import MODEL
from attnscope.capture.load import load_model
from attnscope.capture.watching import watching
from attnscope.intervention.components import components_of
from attnscope.intervention.pair_sources import pairs_of_input
from attnscope.intervention.pairs import EncodedPairs, Pair
from attnscope.intervention.patch import check_pairs_differ, patched_of
from attnscope.intervention.patch_findings import patched_positions
from attnscope.intervention.stack import stacked_passes
from attnscope.kernels.full import attend_in_full
from attnscope.results.figures.patch import captions
from attnscope.results.reports import report_of
from attnscope.support.errors import AttnscopeError
from attnscope_circuits import edges
from attnscope_circuits.edge_scores import EdgeRuns, Graph
from tests.tiny_models import tiny_reader

# --- against runs patched by hand ---


EXAMPLES = Path(__file__).parents[2] / "examples"
WORDS = [("part", "due"), ("one", "back"), ("rest", "led"), ("side", "up"), ("top", "due"), ("end", "back")]
PAIRS = [Pair(f"It was {a}<mask> the game.", f"It was {b}<mask> the game.", " of", " to") for a, b in WORDS]
LONGER = Pair("It was part<mask> the game in the city.", "It was due<mask> the game in the city.", " of", " to")


@pytest.fixture(scope="module")
def loaded():
    return load_model("bundled", device="cpu")


def run(loaded, text, change=lambda number, output: output):
    """Answer minus wrong answer of a text, and every call's output, where `change` may put in others."""
    ids = loaded.tokenizer(text, return_tensors="pt")["input_ids"]
    outputs = []

    def observe(_, call):
        outputs.append(change(len(outputs), attend_in_full(call)[0].clone()))
        return outputs[-1]

    loaded.model.eval()
    with torch.no_grad(), watching(loaded.model, observe):
        logits = loaded.model(ids).logits[0, ids[0].tolist().index(loaded.tokenizer.mask_token_id)]
    of, to = (loaded.tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in (" of", " to"))
    return float(logits[of] - logits[to]), outputs


@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_a_head_is_patched_as_by_hand(loaded, direction):
    found = patch(loaded, PAIRS[:1], direction=direction, steps=0)["pairs"].isel(pair=0)
    texts = [PAIRS[0].clean, PAIRS[0].corrupted]
    texts = texts if direction == "denoising" else texts[::-1]
    _, donors = run(loaded, texts[0])

    def put_in(number, output):
        if number == 0:
            output[:, 3] = donors[0][:, 3]
        return output

    base, _ = run(loaded, texts[1])
    expected, _ = run(loaded, texts[1], put_in)
    np.testing.assert_allclose(found.difference.sel(layer=0, head=3), expected, rtol=1e-4)
    assert abs(expected - base) > 0.5
    of_base = found.corrupted if direction == "denoising" else found.clean
    np.testing.assert_allclose(of_base, base, rtol=1e-4)


def test_the_last_state_at_the_mask_brings_all_of_it_back(loaded):
    found = patch(loaded, PAIRS[:1], what="residual")["patched"].recovered
    place = found.token.values.tolist().index("<mask>")
    np.testing.assert_allclose(found.isel(block=-1, position=place), 1, rtol=1e-4)
    np.testing.assert_allclose(np.delete(found.isel(block=-1).values, place), 0, atol=1e-4)


def test_a_path_is_patched_as_by_hand(loaded):
    tree = patch(loaded, PAIRS[:1], receiver=(2, 1))
    found = tree["pairs"].isel(pair=0)
    _, donors = run(loaded, PAIRS[0].corrupted)
    clean, own = run(loaded, PAIRS[0].clean)

    def send(number, output):
        if number == 0:
            output[:, 0] = donors[0][:, 0]
        return own[1] if number == 1 else output

    _, received = run(loaded, PAIRS[0].clean, send)

    def put_in(number, output):
        if number == 2:
            output[:, 1] = received[2][:, 1]
        return output

    expected, _ = run(loaded, PAIRS[0].clean, put_in)
    np.testing.assert_allclose(found.difference.sel(layer=0, head=0), expected, rtol=1e-4)
    assert abs(expected - clean) > 1e-3
    assert tree["patched"].recovered.sel(layer=2).isnull().all()


# --- many pairs, and what few pairs allow to be said ---


def sentences(verb, result):
    return report_of(verb, result).finding.sentences


def causal():
    """A Llama of random weights with 4 heads on 2 key heads, that knows the bundled model's tokens."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 640}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


CAUSAL = [Pair("It was part", "It was due", " of", " to"), Pair("He was one", "He was back", " of", " to")]


def differences(model, tokenizer, pair, heads=None, on="z"):
    """Answer minus wrong answer of both texts of a pair, where heads are edited."""
    ids = [tokenizer(text, return_tensors="pt").input_ids[:, :-1] for text in (pair.clean, pair.corrupted)]
    right, wrong = (tokenizer(word, add_special_tokens=False).input_ids[0] for word in (pair.answer, pair.wrong))
    with torch.no_grad(), edit(model, heads or {(0, 0): lambda kept: kept}, on=on) as edited:
        return [float(logits[right] - logits[wrong]) for logits in (edited(one).logits[0, -1] for one in ids)]


@pytest.mark.parametrize("what", ["heads", "query", "key", "value", "weights"])
@pytest.mark.parametrize("position", [None, 2])
def test_a_tensor_of_a_head_is_patched_as_by_an_edit(loaded, what, position):
    model, on = causal().eval(), "z" if what == "heads" else what
    tree = patch(model, CAUSAL[:1], tokenizer=loaded.tokenizer, what=what, by_position=position is not None, steps=0)
    found = tree["pairs"].difference.isel(pair=0)
    kept = []
    both = differences(model, loaded.tokenizer, CAUSAL[0], {(1, 1): lambda own: kept.append(own.clone()) or own}, on)

    def put_in(own):
        at = slice(None) if position is None else slice(position, position + 1)
        own = own.clone()
        own[:, at] = kept[0][:, at]
        return own

    _, patched = differences(model, loaded.tokenizer, CAUSAL[0], {(1, 1): put_in}, on)
    found = found if position is None else found.sel(position=position)
    np.testing.assert_allclose(found.sel(layer=1, head=1), patched, rtol=1e-4, atol=1e-5)
    assert position is not None or abs(patched - both[1]) > 1e-4
    assert sentences("patch", tree)


@pytest.fixture(scope="module")
def tree(loaded, tmp_path_factory):
    return patch(loaded, PAIRS, out=tmp_path_factory.mktemp("runs") / "run", batch_size=4)


def test_batches_of_pairs_give_what_each_pair_gives_alone(loaded, tree):
    alone = np.concatenate([patch(loaded, [pair], steps=0)["pairs"].difference for pair in PAIRS])
    np.testing.assert_allclose(tree["pairs"].difference, alone, atol=2e-5)


def test_pairs_of_other_lengths_go_in_batches_of_their_own_and_come_back_in_order(loaded):
    found = patch(loaded, [LONGER, *PAIRS[:2]], steps=0)["pairs"]
    assert found.clean_text.values.tolist() == [LONGER.clean, *(pair.clean for pair in PAIRS[:2])]
    np.testing.assert_allclose(found.difference[0], patch(loaded, [LONGER], steps=0)["pairs"].difference[0], atol=2e-5)


@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_an_estimate_is_the_slope_of_a_small_step_towards_the_other_run(direction):
    loaded = load_model("bundled", device="cpu", dtype="float64")
    found = patch(loaded, PAIRS[:2], direction=direction, steps=1)["pairs"].sel(estimator="attribution")
    encoded = EncodedPairs.of(PAIRS[:2], loaded)
    turned = encoded if direction == "denoising" else encoded.turned()
    loaded.model.eval()
    with stacked_passes(loaded.model) as passes, torch.no_grad():
        passes.plain({"input_ids": turned.clean}, encoded.positions)
        donor = passes.outputs[1]
        passes.plain({"input_ids": turned.corrupted}, encoded.positions)

        def step(_, output):
            output = output.clone()
            for variant, size in enumerate((1e-4, -1e-4)):
                output[variant, :, 3] = torch.lerp(output[variant, :, 3], donor[:, 3], size)
            return output

        ahead, behind = encoded.difference(passes.run({1: step}, 2))
    np.testing.assert_allclose(found.estimate.sel(layer=1, head=3), (ahead - behind) / 2e-4, rtol=1e-5)


def test_one_pair_says_nothing_of_others(loaded):
    found = patch(loaded, PAIRS[:1])
    assert np.isnan(found["patched"].recovered_low).all()
    assert not found["patched"].shown.any()
    assert not found["patched"].tested.any()
    assert {row["shown"] for row in patched_positions(found)} == {None}
    readings = captions(report_of("patch", found))
    assert all("significant" not in reading for _, reading in readings.values())
    assert "need 6 or more pairs" in readings["recovered-map"][1]
    assert any("There are no intervals" in sentence for sentence in sentences("patch", found))


def planted_pairs(difference, clean, rounding=1e-4):
    """Pairs of these differences for each head, where the corrupted text has a difference of 0."""
    difference, clean = np.asarray(difference), np.asarray(clean)
    values = {"difference": (("pair", "head"), difference), "clean": ("pair", clean), "corrupted": ("pair", 0 * clean)}
    return xr.Dataset(values, attrs={"direction": "denoising", "rounding": rounding})


def test_of_pairs_without_effects_at_most_one_in_twenty_shows_one():
    generator = np.random.default_rng(1)
    told = sum(
        bool(patched_of(planted_pairs(generator.normal(0, 1, (8, 12)), np.full(8, 3.0))).shown.any())
        for _ in range(200)
    )
    assert told <= 18  # 10 expected; more than 18 has a chance below 1%


def test_what_is_within_rounding_is_no_effect():
    found = patched_of(planted_pairs(np.full((6, 2), [1e-6, 1.0]), [3.0] * 6))
    assert found.shown.values.tolist() == [False, True]


def test_a_share_of_gaps_that_change_sign_has_no_interval():
    found = patched_of(planted_pairs(np.ones((6, 1)), [3.0, -3.0, 3.0, -2.0, 1.0, 0.0]))
    assert np.isnan(found.recovered_low).all()
    assert np.isfinite(found.effect_low).all()


def test_a_significant_effect_has_intervals_without_0():
    generator, shown = np.random.default_rng(0), 0
    for _ in range(40):
        changes, gaps = generator.gamma(5, 1, (8, 6)) - 0.2, generator.exponential(2, 8) + 0.05
        found = patched_of(planted_pairs(changes, gaps, rounding=0.0))
        for name in ("effect", "recovered"):
            assert (found[f"{name}_low"] * found[f"{name}_high"]).where(found.shown, 1.0).min() > 0
        shown += int(found.shown.sum())
    assert shown > 0


def test_words_follow_the_direction(loaded):
    moved = {"denoising": "recovered", "noising": "removed"}
    for direction, word in moved.items():
        report = report_of("patch", patch(loaded, direction=direction, together=["0.3,0.0"], steps=0))
        headings = [one.title for table in report.tables for one in table.quantities]
        assert headings.count(word) == 2  # of each alone and of the set
        assert report.finding.headline.endswith(f"% of the difference {word}")
        (other,) = {*moved.values()} - {word}
        assert other not in " ".join([*headings, *report.finding.sentences])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"what": "outputs"}, "expected .*'residual'"),
        ({"direction": "up"}, "expected 'noising' or 'denoising'"),
        ({"receiver": "3"}, "expected layer.head"),
        ({"receiver": "0.1"}, "found 0.1; .*layers 1 and up"),
        ({"receiver": "2.9"}, "found 2.9; expected a head of layers 0 to 2"),
        ({"receiver": "9.0"}, "found 9.0"),
        ({"receiver": "m9,2.1"}, "found m9"),
        ({"receiver": "2.1.z"}, "expected layer.head"),
        ({"receiver": "logits,2.1"}, "expected layer.head"),
        ({"together": ["2.1"], "receiver": "1.1"}, "by_position and together"),
        ({"together": ["2.1,3.0"]}, "found 3.0"),
        ({"receiver": "2.1", "what": "residual"}, "paths between heads"),
        ({"by_position": True, "what": "residual"}, "always patched by position"),
        ({"pairs": "pairs.jsonl"}, "expected a pathlib.Path"),
        ({"pairs": [1]}, "pair 1 is of type int"),
        ({"pairs": []}, "found no pair"),
        ({"pairs": [{"clean": "a", "corrupted": "b", "wrong": "c"}]}, "no field 'answer'"),
        ({"pairs": [*PAIRS, LONGER], "by_position": True}, "needs equal lengths"),
        ({"pairs": [Pair(PAIRS[0].clean, PAIRS[0].corrupted, " of", " of")]}, "the same tokens"),
        ({"pairs": [PAIRS[0], LONGER, Pair("a<mask>", "a b<mask>", " of", " to")]}, "pair 3: the clean text has"),
        ({"pairs": [Pair("It was part of it.", "It was due to it.", " of", " to")]}, "masks; expected one <mask>"),
    ],
)
def test_what_cannot_be_patched_is_rejected_in_a_line(loaded, options, says, no_types):
    with pytest.raises(AttnscopeError, match=says) as refused:
        patch(loaded, **({"pairs": PAIRS} | options))
    assert len(str(refused.value).splitlines()) <= 2


def test_a_model_without_pairs_of_its_own_is_rejected():
    with pytest.raises(AttnscopeError, match="only the bundled model has bundled pairs"):
        patch(causal(), tokenizer=MODEL)


def test_runs_that_answer_alike_on_average_are_rejected():
    with pytest.raises(AttnscopeError, match="same difference of answers"):
        check_pairs_differ(planted_pairs(np.ones((2, 1)), [2.0, -2.0]))


def test_one_head_of_a_story_teller_carries_girl_and_boy(models):
    found = patch(models / "stories260K-llama", EXAMPLES / "girl-and-boy.jsonl", steps=0)
    recovered = found["patched"].recovered
    assert {name: int(place) for name, place in recovered.argmax(...).items()} == {"layer": 4, "head": 2}
    best = found["patched"].sel(layer=4, head=2)
    assert 0.7 < float(best.recovered_low) < float(best.recovered_high) < 0.8
    assert bool(best.shown)
    assert len({len(text.split()) for text in found["pairs"].clean_text.values}) > 1


# --- answers for all pairs: used for those without, an error where each has its own ---


WHOLE = {"clean": "a b", "corrupted": "c b", "answer": " a", "wrong": " c"}
BARE = {"clean": "b b", "corrupted": "d b"}


def test_an_answer_is_used_where_one_pair_has_none():
    pairs = pairs_of_input([WHOLE, BARE], answer=" x", wrong=" y")
    assert [(pair.answer, pair.wrong) for pair in pairs] == [(" a", " c"), (" x", " y")]
    with pytest.raises(AttnscopeError, match=r"no pair uses wrong \(--wrong\), .* Leave it out"):
        pairs_of_input([WHOLE, BARE | {"wrong": " d"}], answer=" x", wrong=" y")
    with pytest.raises(AttnscopeError, match="no pair uses answer"):
        patch(answer="foo", steps=0)  # the bundled pairs have theirs


def test_estimates_of_positions_add_up(loaded):
    whole = patch(loaded, PAIRS[:2], steps=1)["pairs"].estimate
    by_position = patch(loaded, PAIRS[:2], steps=1, by_position=True)["pairs"].estimate
    np.testing.assert_allclose(by_position.sum("position"), whole, atol=1e-4)


def test_answers_that_the_model_does_not_know_are_reported(tree):
    assert not any("no better than guessing" in sentence for sentence in sentences("patch", tree))
    pairs = tree["pairs"].to_dataset()
    pairs["clean"] = pairs.clean * np.where(np.arange(pairs.sizes["pair"]) % 2, 1, -1)
    changed = tree.copy()
    changed["pairs"] = pairs
    (said,) = [sentence for sentence in sentences("patch", changed) if "no better than guessing" in sentence]
    assert "the model may not know these answers" in said


# --- answers of several tokens ---

SEVERAL = [
    Pair("It was part", "It was due", " of the game", " to"),
    Pair("He was one", "He was back", " of us", " to him"),
]


def reader_of_words(family):
    """A random model with the bundled tokenizer, to which each of its words differs from the others."""
    model, tokenizer = tiny_reader(family)
    torch.nn.init.normal_(model.get_input_embeddings().weight, std=0.3)
    torch.nn.init.normal_(model.get_output_embeddings().weight, std=0.3)
    return model, tokenizer


def summed(model, tokenizer, pair, side, heads=None):
    """Sum of log probabilities of the answer less that of the wrong one, token by token, where heads are edited."""
    sums = []
    for word in (pair.answer, pair.wrong):
        ids, total = tokenizer(side, return_tensors="pt").input_ids[:, :-1], 0.0
        for token in tokenizer(word, add_special_tokens=False).input_ids:
            with torch.no_grad(), edit(model, (heads or {}) | {(0, 0): lambda own: own}) as edited:
                total += float(edited(ids).logits[0, -1].log_softmax(-1)[token])
            ids = torch.cat([ids, torch.tensor([[token]])], 1)
        sums.append(total)
    return sums[0] - sums[1]


def test_answers_of_several_tokens_are_sums_of_log_probabilities():
    model, tokenizer = reader_of_words("gpt2")
    found = patch(model, SEVERAL, tokenizer=tokenizer, direction="noising", steps=1)["pairs"]
    for name in ("clean", "corrupted"):
        expected = [summed(model, tokenizer, pair, getattr(pair, name)) for pair in SEVERAL]
        np.testing.assert_allclose(found[name], expected, rtol=1e-4)
    alone = np.concatenate(
        [
            patch(model, [pair], tokenizer=tokenizer, direction="noising", steps=0)["pairs"].difference
            for pair in SEVERAL
        ]
    )
    np.testing.assert_allclose(found.difference, alone, atol=2e-5)
    tree = patch(model, SEVERAL, tokenizer=tokenizer, what="residual")
    report = report_of("patch", tree)
    assert " nats in clean runs" in report.finding.sentences[0]
    assert not any("logits" in one.unit + one.meaning for table in report.tables for one in table.quantities)
    assert {tree["pairs"].difference.units, tree["patched"].effect.units} == {"nats"}
    both = tree["patched"].recovered
    np.testing.assert_allclose(both.isel(block=-1, position=-1), 1, rtol=1e-3)
    encoded = EncodedPairs.of(SEVERAL, load_model(model, tokenizer=tokenizer))
    graph = Graph(model, encoded)
    runs, sender = EdgeRuns(graph, encoded), graph.senders.index("a0.h1")
    others = graph.exist.copy()
    others[sender] = False
    np.testing.assert_allclose(
        runs.circuit(np.flatnonzero(others)), found.difference.sel(layer=0, head=1), rtol=1e-3, atol=1e-4
    )
    estimate = found.estimate.sel(estimator="attribution", layer=0, head=1)
    np.testing.assert_allclose(runs.attributed(0)[:, sender].sum(1), estimate, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("by_position", [False, True])
def test_a_head_is_patched_where_the_answer_is_read_too(loaded, by_position):
    model, pair, kept = causal().eval(), SEVERAL[0], []
    tree = patch(model, [pair], tokenizer=loaded.tokenizer, by_position=by_position, steps=0)
    found = tree["pairs"].difference.isel(pair=0).sel(layer=1, head=2)
    text, other = (loaded.tokenizer(one, return_tensors="pt").input_ids[:, :-1] for one in (pair.clean, pair.corrupted))
    first, sums = text.shape[1] - 1, []

    def put_in(own):
        own = own.clone()
        own[:, first if by_position else 0 :] = kept[-1][:, first if by_position else 0 :]
        return own

    for word in (pair.answer, pair.wrong):
        ids = torch.tensor([loaded.tokenizer(word, add_special_tokens=False).input_ids])
        with torch.no_grad():
            with edit(model, {(1, 2): lambda own: kept.append(own) or own}, on="z"):
                model(torch.cat([text, ids], 1))
            with edit(model, {(1, 2): put_in}, on="z"):
                logits = model(torch.cat([other, ids], 1)).logits[0, first:-1]
        sums.append(float(logits.log_softmax(-1).gather(1, ids.T).sum()))
    found = found.isel(position=-1) if by_position else found
    np.testing.assert_allclose(found, sums[0] - sums[1], rtol=1e-4, atol=1e-5)


def test_a_story_teller_tells_phrases_apart(models):
    pairs = [json.loads(line) for line in (EXAMPLES / "girl-and-boy.jsonl").read_text().splitlines()]
    one, more = (
        patch(models / "stories260K-llama", [pair | words for pair in pairs], steps=0)["patched"].recovered
        for words in ({}, {"answer": " She was very happy", "wrong": " He was very happy"})
    )
    assert one.argmax(...) == more.argmax(...)


@pytest.mark.parametrize(("answer", "says"), [(" to him", "one begins with the other"), ("", "same tokens")])
def test_an_answer_that_begins_with_the_other_is_rejected(loaded, answer, says):
    with pytest.raises(AttnscopeError, match=says):
        patch(causal(), [Pair("It was part", "It was due", answer, " to")], tokenizer=loaded.tokenizer)


# --- receivers, and sets of components ---


class Hooked:
    """A Llama of two layers and 4 heads on 2 key heads whose heads and MLPs are kept and replaced by hooks."""

    def __init__(self, tokenizer, pair):
        self.model, self.pair, self.tokenizer = causal().eval(), pair, tokenizer
        self.ids = [tokenizer(text, return_tensors="pt").input_ids[:, :-1] for text in (pair.clean, pair.corrupted)]

    def run(self, side, **changes):
        """Answer minus wrong answer of a text, and all tensors; `changes` by name and layer, as in ``z0``."""
        kept, handles = {}, []

        def hook(name, tensor):
            tensor = changes[name](tensor.clone()) if name in changes else tensor
            kept[name] = tensor.clone()
            return tensor

        for number, layer in enumerate(self.model.model.layers):
            attention = layer.self_attn
            before = attention.o_proj.register_forward_pre_hook(
                lambda _, given, number=number: (hook(f"z{number}", given[0]),)
            )
            after = [("q", attention.q_proj), ("k", attention.k_proj), ("m", layer.mlp)]
            handles += [before] + [
                module.register_forward_hook(lambda _, __, made, name=f"{name}{number}": hook(name, made))
                for name, module in after
            ]
        with torch.no_grad():
            logits = self.model(self.ids[side]).logits[0, -1]
        for handle in handles:
            handle.remove()
        of, to = (
            self.tokenizer(word, add_special_tokens=False).input_ids[0] for word in (self.pair.answer, self.pair.wrong)
        )
        return float(logits[of] - logits[to]), kept


def columns(*heads):
    """Replace the columns of some heads, 4 numbers each, by those of another tensor."""

    def put(other):
        def change(own):
            for head in heads:
                own[..., 4 * head : 4 * head + 4] = other[..., 4 * head : 4 * head + 4]
            return own

        return change

    return put


RECEIVERS = {
    "1.2.q": {"q1": columns(2)},
    "1.0.k,1.1.k,m1": {"k1": columns(0), "m1": lambda other: lambda own: other},
    "m0": {"m0": lambda other: lambda own: other},
    "1.3": {"z1": columns(3)},
}


@pytest.mark.parametrize("direction", ["noising", "denoising"])
@pytest.mark.parametrize("receiver", [*RECEIVERS, "logits"])
def test_receivers_get_what_hooks_send(loaded, receiver, direction):
    own = Hooked(loaded.tokenizer, CAUSAL[0])
    tree = patch(own.model, CAUSAL[:1], tokenizer=loaded.tokenizer, receiver=receiver, direction=direction)
    source, base = (1, 0) if direction == "noising" else (0, 1)
    donor, (before, frozen) = own.run(source)[1], own.run(base)
    send = {"z0": columns(1)(donor["z0"])}
    if receiver == "logits":
        expected = own.run(base, **send, z1=lambda _: frozen["z1"])[0]
    else:
        received = own.run(base, **send, **({} if receiver == "1.3" else {"z1": lambda _: frozen["z1"]}))[1]
        expected = own.run(base, **{name: put(received[name]) for name, put in RECEIVERS[receiver].items()})[0]
    np.testing.assert_allclose(tree["pairs"].difference.sel(layer=0, head=1)[0], expected, rtol=1e-4, atol=1e-5)
    assert abs(expected - before) > 1e-4
    names = ["logits"] if receiver == "logits" else receiver.split(",")
    assert tree["pairs"].attrs["receiver"] == ", ".join(names)
    assert bool(tree["patched"].effect.sel(layer=1).isnull().all()) == (receiver != "logits" and "m1" not in names)


@pytest.mark.parametrize("direction", ["noising", "denoising"])
def test_a_set_is_patched_at_once_by_hooks_too(loaded, direction):
    own = Hooked(loaded.tokenizer, CAUSAL[0])
    given = {"tokenizer": loaded.tokenizer, "direction": direction, "steps": 0}
    tree = patch(own.model, CAUSAL, together=["0.1,1.2,m0", [(0, 0), (1, 3)]], **given)
    source, base = (1, 0) if direction == "noising" else (0, 1)
    donor, before = own.run(source)[1], own.run(base)[0]
    changes = {"z0": columns(1)(donor["z0"]), "z1": columns(2)(donor["z1"]), "m0": lambda _: donor["m0"]}
    each = [own.run(base, **{name: change})[0] for name, change in changes.items()]
    pair = tree["pairs"].isel(pair=0)
    np.testing.assert_allclose(pair.together[0], own.run(base, **changes)[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(pair.single.sel(component=["0.1", "1.2", "m0"]), each, rtol=1e-4, atol=1e-5)
    assert abs(sum(each) - 3 * before) > 1e-3
    heads = tree["patched"].effect
    alone = heads.sel(layer=0, head=0) + heads.sel(layer=1, head=3)
    np.testing.assert_allclose(tree["together"].alone[1], alone, rtol=1e-3, atol=1e-5)
    row = next(table for table in report_of("patch", tree).tables if table.name == "together").rows[1]
    np.testing.assert_allclose(row["effect"] - row["alone"], row["between"], atol=1e-6)
    assert row["heads"] == "0.0, 1.3"


@pytest.mark.parametrize("what", ["query", "key", "value", "weights"])
def test_a_set_of_tensors_is_patched_as_by_an_edit(loaded, what):
    model, kept = causal().eval(), []
    tree = patch(model, CAUSAL[:1], tokenizer=loaded.tokenizer, what=what, together=["1.1,1.3"])
    keep = {(1, head): lambda own: kept.append(own.clone()) or own for head in (1, 3)}
    differences(model, loaded.tokenizer, CAUSAL[0], keep, what)
    put = {(1, head): lambda _, other=other: other for head, other in zip((1, 3), kept[:2], strict=True)}
    expected = differences(model, loaded.tokenizer, CAUSAL[0], put, what)[1]
    np.testing.assert_allclose(tree["pairs"].together[0, 0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("by_position", [False, True])
def test_only_the_chosen_heads_are_patched(by_position):
    every = patch(steps=0, by_position=by_position)["pairs"].difference
    tree = patch(heads=[(0, 3), (2, 1)], by_position=by_position)
    found = tree["pairs"].difference
    np.testing.assert_allclose(found.sel(layer=0, head=3), every.sel(layer=0, head=3), atol=1e-5)
    np.testing.assert_allclose(found.sel(layer=2, head=1), every.sel(layer=2, head=1), atol=1e-5)
    measured = found.isel(pair=0) if not by_position else found.isel(pair=0, position=0)
    assert int(measured.notnull().sum()) == 2
    assert "estimate" not in tree["pairs"]
    with pytest.raises(AttnscopeError, match=r"no head 7.0 \(heads, --heads\)"):
        patch(heads=[(7, 0)])


@pytest.mark.parametrize("verb", [patch, edges])
def test_few_pairs_whose_differences_have_both_signs_have_no_shares(verb):
    """Without an interval nothing says that the mean difference is not 0."""
    turned = Pair(PAIRS[1].corrupted, PAIRS[1].clean, PAIRS[1].answer, PAIRS[1].wrong)
    settings = {"steps": 0} if verb is patch else {"draws": 1, "method": "eap"}
    for pairs, has_shares in ((PAIRS[:2], True), ([PAIRS[0], turned], False)):
        report = report_of(verb.__name__, verb(pairs=pairs, **settings))
        said = " ".join(report.finding.sentences)
        assert ("so there are no shares of it" in said) is not has_shares
        assert ("% of the difference" in said) is has_shares


def test_an_mlp_may_be_typed_as_it_is_shown():
    assert components_of("MLP 1, 1.3.q", "together") == components_of("m1,1.3.q", "together")
