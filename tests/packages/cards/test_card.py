"""Cards of heads: kept shares, stability, files of other tools, published lists, and the loss with limited keys."""

import io
import json
import os
import re

import numpy as np
import pytest
import torch
import xarray as xr
from benchmarks.compression import curves_of
from rich.console import Console
from scipy import stats
from transformers import AttentionInterface, GPT2ForSequenceClassification, GPT2Model

import attnscope
import attnscope_cards
from attnscope import AttnscopeError
from attnscope.capture.load import load_model
from attnscope.detection.probes import Answer
from attnscope.intervention.open_predictions import prediction_session
from attnscope.read.encoded import texts_of
from attnscope.report.render import print_report
from attnscope.results.export import export
from attnscope.results.reports import report_of
from attnscope.statistics.effects import by_document
from attnscope.statistics.intervals import LEVEL
from attnscope.statistics.lists import agreement
from attnscope_cards.head_files import duo_table, head_files, listing_of, pooled, read_heads
from attnscope_cards.limits import changes_by_limits, loss_by_size
from attnscope_cards.measure import answer_effects, stability
from attnscope_zoo.catalogue import build
from tests.cli.command import attnscope as command
from tests.tiny_models import tiny, tiny_reader


@pytest.fixture(scope="module")
def planted():
    """A decoder with a head on the previous token, its card and the effects of its heads."""
    model = build("previous-decoder-2")
    reading = {"texts": model.ids[:12].tolist(), "tokenizer": model.tokenizer}
    effects = attnscope.intervene(model.model, **reading, ablations=["mean"], steps=0, why=False)
    card = attnscope_cards.card(model.model, **reading, kept=[(2, 0), (4, 1)], effects=effects, controls="shuffled")
    score = card.score.sel(role="previous_token").values
    place = np.unravel_index(np.argmax(score), score.shape)
    return model, reading, card, effects, place


def test_a_cache_of_its_window_keeps_a_local_head_whole_and_uniform_heads_have_its_share(planted):
    _, _, card, _, place = planted
    kept = card.score.sel(role="kept_2_0")
    assert float(kept[place]) > 0.8
    assert float(kept[place]) > float(card.control_score.sel(role="kept_2_0").max()) + 0.5
    length = json.loads(card.attrs["notes"])["tokens"][0]
    np.testing.assert_allclose(card["equal"].sel(role="kept_2_0"), np.mean(2 / np.arange(3, length + 1)), rtol=1e-6)
    assert bool((card.score.sel(role="kept_4_1") >= kept - 1e-6).all())


def test_answers_lose_what_the_planted_circuit_copies():
    circuit = build("induction-decoder-2")
    hay = " ".join(f"t{token}" for token in (3, 4, 5, 6, 7, 8, 9, 10))
    reading = {"tokenizer": circuit.tokenizer, "window": circuit.ids.shape[1], "controls": "none"}
    needle = {"needle": "t15 t12 t17 t14", "prompt": "t15"}
    texts = {"texts": circuit.ids[:4].tolist(), "tokenizer": circuit.tokenizer}
    effects = attnscope.intervene(circuit.model, **texts, ablations=["zero"], steps=0, why=False)
    card = attnscope_cards.card(
        circuit.model, [f"t1 {hay}"], needles=[needle], answers=True, effects=effects, **reading
    )
    assert card.ablation.values.tolist() == ["answer", "prompt", "zero"]
    assert (card.effect.sel(ablation="zero").values == effects["heads"].effect.values).all()
    (answered,), (prompt,) = (card.effect.sel(ablation=[name]).values for name in ("answer", "prompt"))
    jobs = [(words, (layer, head)) for layer, call in enumerate(circuit.roles) for head, words in enumerate(call)]
    heads = {place for words, place in jobs if "previous-token head" in words or "induction head" in words}
    assert {tuple(map(int, cell)) for cell in np.argwhere(answered > 1)} == heads
    assert np.abs(prompt).max() < 0.5
    assert not card.tested.sel(ablation="answer").any()  # four prompts are too few
    row = report_of("card", card).tables[0].rows[-3]
    assert row["answer_mean"] == pytest.approx(answered[1, 1])


@pytest.mark.parametrize(("last", "others"), [(14, [1, 3, 5]), (7, [2, 4])])  # 7 is not of the needle
def test_the_loss_of_an_answer_is_that_of_the_model_with_the_head_replaced(last, others):
    circuit = build("induction-decoder-2")
    loaded = load_model(circuit.model, tokenizer=circuit.tokenizer)
    ids = (1, 3, 15, 12, 17, 14, 5, 6, 15, 12, 17)
    answer = Answer(ids, (2, 3, 4, 5), (12, 17, last), "a needle")
    effect = answer_effects(loaded, [answer] * 6, seed=0)["effect"][1]
    assert effect.shape == (2, *card_shape(circuit))

    def losses():
        with torch.no_grad():
            predicted = circuit.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        count = len(others)  # evenly over the eight before the answer
        own = (
            -predicted[[8, 9, 10][:count], list(answer.tokens[:count])].mean(),
            -predicted[others, [ids[at + 1] for at in others]].mean(),
        )
        return np.array([float(own[0]), float(own[1])])

    before = losses()
    for layer, head in ((0, 3), (1, 1)):
        with attnscope.edit(circuit.model, {(layer, head): lambda z: z.mean(1, keepdim=True).expand_as(z)}, on="z"):
            np.testing.assert_allclose(effect[:, layer, head], losses() - before, atol=1e-4)


def card_shape(circuit):
    config = circuit.model.config
    return config.num_hidden_layers, config.num_attention_heads


def test_the_card_has_effects_stability_and_a_row_for_each_head(planted):
    _, _, card, effects, place = planted
    assert (card.effect.values == effects["heads"].effect.values).all()
    report = report_of("card", card)
    rows = report.tables[0].rows
    assert len(rows) == card.layer.size * card["head"].size
    row = next(row for row in rows if (row["layer"], row["head"]) == place)
    assert "previous token" in row["roles"]
    assert row["mean_low"] <= row["mean_mean"] <= row["mean_high"]
    assert {row["key_head"] for row in rows} == set(range(4))
    assert float(card.stability.sel(role="previous_token")) > 0.5
    assert "A cache of the latest 2 tokens keeps 95%" in " ".join(report.finding.sentences)
    read_by = report.read.split(", ")[0]
    assert report.finding.certainty == f"heads by their mean over {read_by}; each share has a 95% interval"
    assert report.tables[0].best == rows  # 8 heads fit
    keeps, needs_more = report.finding.heads.values()
    assert all(row["kept_2_0"] >= 0.95 for row in rows if (row["layer"], row["head"]) in keeps)
    assert all(row["kept_2_0"] < 0.95 for row in rows if (row["layer"], row["head"]) in needs_more)
    assert len(keeps) + len(needs_more) == len(rows)
    assert report.finding.leading[0] == (keeps or needs_more)[0]  # the page opens on a head that the title counts
    few = report_of("card", card.assign(low=card.low * np.nan, high=card.high * np.nan))
    assert few.finding.certainty == f"heads by their mean over {read_by}, without intervals"


def test_the_page_of_a_card_opens_on_a_kept_head_that_is_no_sink(planted):
    """Any cache with the first tokens keeps a sink: it shows nothing."""
    card = planted[2].copy(deep=True)
    card.score.loc[{"role": "kept_2_0"}] = 0.5
    for head, role in ((0, "first_token"), (1, "previous_token")):
        card.score.loc[{"role": "kept_2_0", "layer": 1, "head": head}] = 1.0 - head / 100
        card.score.loc[{"role": role, "layer": 1, "head": head}] = 0.99
    assert report_of("card", card).finding.leading[:2] == [(1, 1), (1, 0)]


def test_the_example_of_a_head_is_its_largest_weight_between_ordinary_tokens():
    text = "The tide comes in twice a day, and twice a day it goes out again."
    ordinary = {"query": slice(1, -1), "key": slice(1, -1)}  # without <s> and </s>
    check_examples("bundled", text, ordinary)


def test_the_example_of_a_causal_head_sees_some_keys_and_is_not_its_first_token():
    check_examples(
        tiny("gpt2"), [3 + 5 * number % 31 for number in range(24)], {"query": slice(7, None), "key": slice(1, None)}
    )


def check_examples(model, text, ordinary):
    card = attnscope_cards.card(model, [text], controls="none", kept=[(4, 1)])
    weights = attnscope.weights(model, text).isel(ordinary)
    for layer, head in np.ndindex(card.example.shape):
        example, matrix = json.loads(card.example.values[layer, head]), weights.isel(layer=layer, head=head)
        assert example["weight"] == pytest.approx(float(matrix.max()), abs=1e-6)
        query, key = np.unravel_index(int(np.argmax(matrix.values)), matrix.shape)
        marked = {mark: piece for piece, mark in example["pieces"] if mark}
        assert marked["query"] == str(matrix.query_token.values[query]).strip()
        assert marked.get("key", marked["query"]) == str(matrix.key_token.values[key]).strip()


def test_effects_are_of_the_same_model(planted):
    _, reading, _, effects, _ = planted
    with pytest.raises(AttnscopeError, match="expected the same model"):
        attnscope_cards.card(build("previous-decoder-1").model, **reading, effects=effects, controls="none")


def test_a_terminal_shows_the_highest_heads_of_every_role_by_layer(planted):
    (layer, head), card = map(int, planted[4]), planted[2]
    wide = card.isel(layer=[layer] * 12).assign_coords(layer=range(12)).copy(deep=True)
    others = [one for one in range(4) if one != head]
    wide.score[:] = wide.score.where(wide.role == "previous_token", 0.0)
    wide.score.loc["previous_token", :, others] = 0.1
    wide.score.loc["current_token", 11, others[0]] = 0.9  # a role without a threshold
    table = report_of("card", wide).tables[0]
    places = [(row["layer"], row["head"]) for row in table.best]
    assert len(table.best) == 20 < len(table.rows)
    assert places == sorted(places)
    assert {(one, head) for one in range(12)} | {(11, others[0])} <= {*places}
    text = io.StringIO()
    print_report(report_of("card", wide), Console(file=text, width=120))
    assert "and 28 more that stand out less: --csv lists all" in text.getvalue()
    assert f" 11.{head} " in text.getvalue()


@pytest.fixture
def grouped():
    """A card of a Llama whose two key-value heads are shared by two heads each."""
    generator = np.random.default_rng(0)
    score = generator.random((2, 3, 4))
    roles = ["kept_64_4", "retrieval"]
    return xr.Dataset(
        {"score": (("role", "layer", "head"), score), "query_heads": ("layer", [2, 2, 2])},
        {
            "role": roles,
            "head": range(4),
            "layer_kind": ("layer", ["causal"] * 3),
            "layer_name": ("layer", [f"model.layers.{layer}.self_attn" for layer in (0, 2, 4)]),
        },
        {"model": "small", "signature": json.dumps({"command": "card", "model": {"name": "small"}})},
    ).assign({"half_score": (("half", "role", "layer", "head"), np.stack([score, score]))})


def test_every_format_is_read_back_as_it_was_written(grouped, tmp_path):
    retrieval, kept = grouped.score.sel(role="retrieval").values, grouped.score.sel(role="kept_64_4").values
    best = np.sort(retrieval, axis=None)[-3]
    crossing = grouped.assign_coords(layer_kind=("layer", ["cross"] * 3))
    for to, card in (("qrhead", grouped), ("alignment", crossing), ("names", grouped)):
        folder = tmp_path / to
        folder.mkdir()
        for name, text in head_files(card, to, top=3).items():
            (folder / name).write_text(text)
        np.testing.assert_array_equal(read_heads(listing_of(folder), card) > 0, retrieval >= best)
    with pytest.raises(AttnscopeError, match="cross-attention, which small lacks"):
        head_files(grouped, "alignment", top=3)
    assert 'attn_head_set: "' in head_files(grouped, "qrhead", top=3)["heads.yaml"]
    files = head_files(grouped, "duo")
    table = np.loadtxt(files["full_attention_heads.tsv"].splitlines(), delimiter="\t")
    np.testing.assert_allclose(table, 1 - kept.reshape(3, 2, 2).min(-1))  # all that share it stay in the cache
    assert {name: json.loads(files["config.json"])[name] for name in ("sink_size", "recent_size")} == {
        "sink_size": 4,
        "recent_size": 64,
    }
    (tmp_path / "gates.tsv").write_text(files["full_attention_heads.tsv"])
    listed = read_heads(listing_of(tmp_path / "gates.tsv"), grouped)
    np.testing.assert_array_equal(listed[:, ::2] > 0, table >= 0.5)
    patterns = json.loads(head_files(grouped, "minference", top=5)["best_pattern.json"])
    limited = [[row[str(head)][0] == "stream_llm" for head in range(4)] for row in patterns]
    np.testing.assert_array_equal(limited, kept >= np.sort(kept, axis=None)[-5])
    assert {tuple(one[1:3]) for row in patterns for one in row.values() if one[0] == "stream_llm"} == {(4, 64)}
    assert pooled(grouped, retrieval, lowest=False).shape == (3, 2)
    for to in ("minference", "names"):
        with pytest.raises(AttnscopeError, match="is 13; expected a whole number from 1 to 12"):
            head_files(grouped, to, top=13)


def test_layers_that_share_a_module_are_numbered_by_their_calls(grouped, tmp_path):
    retrieval = grouped.score.sel(role="retrieval").values
    for names in (["groups.0.layers.0.attention"] * 3, [f"stages.{at // 2}.blocks.{at % 2}" for at in range(3)]):
        shared = grouped.assign_coords(layer_name=("layer", names))
        listed = head_files(shared, "names", "retrieval", 12)["heads.txt"].split()
        order = np.argsort(-retrieval, axis=None)
        assert listed == [f"L{at // 4}H{at % 4}" for at in order]
        (tmp_path / "heads.txt").write_text("\n".join(listed[:3]))
        published = read_heads(listing_of(tmp_path / "heads.txt"), shared)
        np.testing.assert_array_equal(np.flatnonzero(published), np.sort(order[:3]))


@pytest.mark.parametrize("heads", [4, 2, 1])
def test_the_pattern_of_kvpress_keeps_its_dimensions(heads, grouped, tmp_path):
    """As `DuoAttentionPress` uses it: the lowest half of the heads streams."""
    card = grouped.assign(query_heads=("layer", [4 // heads] * 3))
    for name, text in head_files(card, "duo").items():
        (tmp_path / name).write_text(text)
    scores, _, sinks, recent, _ = duo_table(card)
    assert (sinks, recent, scores.shape) == (4, 64, (3, heads))
    streaming = torch.zeros(scores.shape, dtype=torch.bool)
    streaming[np.unravel_index(np.argsort(scores, axis=None)[: scores.size // 2], scores.shape)] = True
    for layer, row in enumerate(streaming):
        masked = torch.zeros(1, heads, 100, dtype=torch.bool)
        masked[:, streaming[layer], sinks:-recent] = True
        assert masked.sum() == 32 * row.sum()
    listed = read_heads(listing_of(tmp_path), card)
    np.testing.assert_array_equal(listed > 0, scores.repeat(4 // heads, 1) >= 0.5)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("heads.txt", "L1H0", "lists head 1.0, which small lacks"),  # the model's layers are 0, 2 and 4
        ("heads.txt", "none", "lists none of the heads"),
        ("heads.json", "[1", "lists no heads"),
        ("heads.tsv", "0.1\t0.2", "3 x 2"),
        ("heads.tsv", "0.1\t0.2\n0.1\tnan\n1\t1", "a gate is NaN"),
        ("heads.json", "[" * 100_000, "lists no heads"),
        ("heads.json", '[{"0": ["stream_llm", 1, 1]}]', "patterns of 1 layers, and the model has 3"),
        ("heads.json", '{"alignment_heads": [[0, 1.5]]}', "1.5 as a layer or head"),
        ("heads.json", '{"alignment_heads": [[true, 0]]}', "True as a layer or head"),
        ("heads.json", '{"alignment_heads": [[0, -1]]}', "lists head 0.-1, which small lacks"),
    ],
)
def test_a_file_that_does_not_fit_is_explained(name, text, message, grouped, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(AttnscopeError, match=message):
        read_heads(listing_of(tmp_path / name), grouped)


def test_a_pipe_is_no_published_list(tmp_path):
    os.mkfifo(tmp_path / "heads.tsv")
    with pytest.raises(AttnscopeError, match=r"published heads in .*heads\.tsv: it is not a regular file"):
        listing_of(tmp_path / "heads.tsv")


def test_scores_of_other_authors_list_the_heads_at_their_threshold(grouped, tmp_path):
    (tmp_path / "retrieval.json").write_text('{"0-3": [0.2, 0.1], "2-1": [0.0, 0.1], "4-0": [0.9]}')
    listed = read_heads(listing_of(tmp_path / "retrieval.json"), grouped)
    assert np.argwhere(listed > 0).tolist() == [[0, 3], [2, 0]]


def test_areas_are_those_of_the_rank_test_and_their_intervals_cover():
    generator = np.random.default_rng(0)
    truth, listed, layers = stats.norm.cdf(1 / np.sqrt(2)), np.arange(72) % 9 == 0, np.arange(72) // 12
    hits, alarms = [], []
    for seed in range(200):
        scores = generator.standard_normal((2, 72))
        scores[0] += listed
        found = agreement(listed, scores, layers, seed=seed)
        hits.append(found.low[0] <= truth <= found.high[0])
        alarms.append(found.p[1] < 0.05)
    statistic = stats.mannwhitneyu(scores[0, listed], scores[0, ~listed]).statistic
    assert found.auroc[0] == pytest.approx(statistic / (8 * 64))
    assert np.mean(hits) > LEVEL - 0.04
    assert np.mean(alarms) < 0.05 + 0.04
    whole = agreement(listed, listed[None].astype(float), layers)
    assert whole.auroc[0] == whole.high[0] == 1
    assert 0.7 < whole.low[0] < 1
    assert whole.p[0] < 0.01


def test_lists_of_one_layer_are_not_news():
    """With heads of all layers exchanged, 0.47 of these lists differ significantly."""
    generator, layers = np.random.default_rng(0), np.arange(72) // 12
    roles = generator.normal(size=(40, 1, 6))[..., layers] + generator.normal(size=(40, 1, 72))
    half = (layers == 2) & (np.arange(72) % 2 == 0)
    assert sum(agreement(half, scores, layers).p[0] <= 0.05 for scores in roles) <= 6
    assert agreement(layers == 2, roles[0], layers).p[0] == 1


def test_prompts_of_one_needle_are_no_test():
    hidden = [f"needle {number % 3}" for number in range(15)]
    assert not by_document(np.ones((15, 2)), hidden).tested.any()


@pytest.mark.parametrize("noise", [0.5, 0.01])  # with little, nearly all samples have a correlation of 1
def test_intervals_of_stability_cover_its_expected_value(noise):
    generator = np.random.default_rng(0)
    truth = generator.random((1, 40))

    def drawn(texts=12):
        scores = truth + noise * generator.standard_normal((texts, 1, 40))
        return stability(scores, [f"document {number}" for number in range(texts)])

    found = np.array([drawn()[1:] for _ in range(80)])
    expected, intervals = found[:, 0].mean(), found[:, 1:]
    assert np.mean((intervals[:, 0] <= expected) & (expected <= intervals[:, 1])) >= LEVEL - 0.04
    assert np.diff(intervals).max() < (0.2 if noise < 0.1 else 1)
    assert np.diff([drawn(48)[2:] for _ in range(5)]).mean() < np.diff(intervals).mean()
    assert stability(truth[None], ["one"])[1:] == pytest.approx((np.nan,) * 3, nan_ok=True)


def test_limited_keys_are_those_of_a_model_with_a_sliding_window():
    whole, sliding = tiny("mistral"), tiny("mistral")
    whole.config.sliding_window = None
    tokenizer = build("previous-decoder-2").tokenizer
    texts = texts_of(torch.randint(3, 19, (4, 24)).tolist(), field=None, by_line=False)
    sessions = [
        prediction_session(load_model(model, tokenizer=tokenizer), texts, window=24, limit=4)
        for model in (whole, sliding)
    ]
    sets = np.arange(8) < np.array([[0], [8], [2]])
    changes = changes_by_limits(sessions[0], sets, 8, 0)
    losses = []
    for session in sessions:
        with session.passes(slice(0, 4)) as batch:
            losses.append(batch.loss[0].numpy())
    assert np.abs(changes[:, 0]).max() < 1e-6
    np.testing.assert_allclose(changes[:, 1], losses[1] - losses[0], atol=1e-5)
    assert np.abs(changes[:, 1]).min() > 1e-3
    assert (np.abs(changes[:, 2] - changes[:, 1]) > 1e-4).all()


def test_limits_of_a_card_are_the_loss_of_a_model_with_one_key_value_head_limited():
    model, ids = tiny("mistral"), torch.randint(3, 19, (12, 24), generator=torch.Generator().manual_seed(0))
    model.config.sliding_window = None
    limited = None  # layer and key-value head

    def by_hand(module, query, key, value, _, scaling, **__):
        group, place = query.shape[1] // key.shape[1], torch.arange(24)
        seen = (place <= place[:, None]).expand(query.shape[1], -1, -1).clone()
        if limited is not None and limited[0] == module.layer_idx:
            own = slice(limited[1] * group, (limited[1] + 1) * group)
            seen[own] &= (place > place[:, None] - 4) | (place < 2)
        scores = scaling * query @ key.repeat_interleave(group, 1).mT
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return (weights @ value.repeat_interleave(group, 1)).transpose(1, 2), None

    AttentionInterface.register("by_hand", by_hand)
    reading = {"texts": ids.tolist(), "tokenizer": build("previous-decoder-2").tokenizer, "window": 24}
    card = attnscope_cards.card(model, **reading, kept=[(4, 2), (64, 4)], controls="none", limits=True)
    assert card.ablation.values.tolist() == ["limit_4_2"]  # no window exceeds the other cache
    assert card.query_heads.values.tolist() == [2, 2]
    model.set_attn_implementation("by_hand")

    def loss():
        with torch.no_grad():
            return float(model(input_ids=ids, labels=ids).loss)

    plain, alone = loss(), np.empty((2, 4))
    for limited in np.ndindex(2, 2):
        alone[limited[0], 2 * limited[1] : 2 * limited[1] + 2] = loss() - plain
    np.testing.assert_allclose(card.effect[0], alone, atol=4e-6)  # some units in the last place of two losses
    assert abs(alone).min() > 1e-5
    table = np.loadtxt(head_files(card, "duo")["full_attention_heads.tsv"].splitlines(), delimiter="\t")
    own = alone[:, ::2]  # DuoAttention clips to 0 to 1, where rises and falls in nats would be ties
    np.testing.assert_allclose(table, (own - own.min()) / (own.max() - own.min()), atol=1e-2)
    np.testing.assert_array_equal(table.clip(0, 1), table)
    low, spread = re.search(r"\(limit_4_2 - (.*)\) / (.*), with limit_4_2 in nats", duo_table(card).mapping).groups()
    np.testing.assert_allclose(table * float(spread) + float(low), card.effect[0, :, ::2], atol=1e-6)
    costliest = [divmod(int(at), 4) for at in np.argsort(-alone, axis=None, kind="stable")[:2]]
    listed = "".join(f"L{layer}H{head}\n" for layer, head in costliest)
    assert head_files(card, "names", "limit_4_2", top=2)["heads.txt"] == listed


def test_limits_are_of_causal_heads_alone():
    ids, tokenizer = torch.randint(3, 19, (4, 20)).tolist(), build("previous-decoder-2").tokenizer
    card = attnscope_cards.card(tiny("bart"), ids, tokenizer=tokenizer, kept=[(4, 1)], controls="none", limits=True)
    known = (card.layer_kind == "causal") & card.score.notnull().any("role")
    assert set(card.layer_kind.values) == {"self", "causal", "cross"}
    np.testing.assert_array_equal(card.effect.sel(ablation="limit_4_1").notnull().values, known.values)


def test_heads_are_limited_in_the_order_of_their_measured_limits():
    circuit = build("induction-decoder-2")
    reading = {"texts": circuit.ids[:12].tolist(), "tokenizer": circuit.tokenizer}
    card = attnscope_cards.card(circuit.model, **reading, kept=[(2, 0)], controls="none", limits=True)
    texts = texts_of(reading["texts"], field=None, by_line=False)
    session = prediction_session(load_model(circuit.model, tokenizer=circuit.tokenizer), texts, window=512, limit=100)
    result = curves_of(session, card).isel(cache=0)
    assert np.unravel_index(card.effect[0].values.argmax(), (2, 4)) == (1, 1)
    assert abs(result.effect.sel(order="effects")[:3]).max() < 0.5 < float(card.effect.max()) / 2
    np.testing.assert_allclose(result.predicted[:, -1], card.effect.sum())


def test_the_order_of_the_card_loses_less_than_random_orders(planted):
    model, reading, card, _, _ = planted
    texts = texts_of(reading["texts"], field=None, by_line=False)
    session = prediction_session(load_model(model.model, tokenizer=model.tokenizer), texts, window=512, limit=100)
    result = curves_of(session, card).sel(cache=["2+0"])
    assert result.limited.values.tolist() == [2, 4, 6, 8]
    every = result.effect.isel(point=-1)
    assert float(every[0, 0]) == pytest.approx(float(every[0, 1]))  # in any order all heads are limited at last
    assert bool((result.effect_low <= result.effect).all())
    first = float(result.predicted[0, 0, 0])
    lost = 1 - card.score.sel(role="kept_2_0").values
    two = np.argsort(lost, axis=None)[:2]
    assert first == pytest.approx(float((lost * card.effect[0].values).flat[two].sum()))
    apart = result.predicted - result.predicted.sel(order="effects")
    assert bool((apart > -1e-9).all()), "no other order has a lower prediction at any size"
    assert float(apart.max()) > 0


def test_a_check_limits_heads_in_the_order_of_the_other_half(planted):
    model, reading, _, _, _ = planted
    card = attnscope_cards.card(model.model, **reading, kept=[(2, 0)], controls="none", check=True)
    texts = texts_of(reading["texts"], field=None, by_line=False)
    session = prediction_session(load_model(model.model, tokenizer=model.tokenizer), texts, window=512, limit=100)
    half, kept = np.arange(12) % 2, card.half_score.sel(role="kept_2_0").values
    changes = np.empty((12, 3))
    for side in (0, 1):
        order = np.argsort(1 - kept[side], axis=None, kind="stable")
        sets = np.array([np.isin(np.arange(8), order[:count]) for count in (2, 4, 6)])
        changes[half != side] = changes_by_limits(session, sets, 2, 0)[half != side]
    found = card.isel(cache=0)
    np.testing.assert_allclose(found.check_effect.sel(order="card")[:3], changes.mean(0), atol=1e-6)
    assert found.check_limited.values.tolist() == [2, 4, 6, 8]
    assert float(found.check_difference[-1]) == pytest.approx(0, abs=1e-6)
    assert float(found.check_p) * 20 == pytest.approx(round(float(found.check_p) * 20))
    report = report_of("card", card)
    rows = next(table for table in report.tables if table.name == "check").rows
    assert [row["limited"] for row in rows] == [2, 4, 6]
    assert "With 4 key-value heads limited to 2+0 tokens, the loss changes by" in " ".join(report.finding.sentences)
    with pytest.raises(AttnscopeError, match="needs two or more windows, all longer than a cache"):
        attnscope_cards.card(
            model.model, [reading["texts"][0]], tokenizer=model.tokenizer, kept=[(2, 0)], controls="none", check=True
        )


def test_an_order_that_says_nothing_passes_its_check_as_often_as_stated(planted, monkeypatch):
    model, reading, card, _, _ = planted
    texts = texts_of(reading["texts"], field=None, by_line=False)
    session = prediction_session(load_model(model.model, tokenizer=model.tokenizer), texts, window=512, limit=4)
    worth = np.random.default_rng(0).exponential(size=8)
    monkeypatch.setattr("attnscope_cards.limits.changes_by_limits",
                        lambda _, sets, *__, **___: np.tile(sets @ worth, (len(session.windows), 1)))  # fmt: skip
    shared, causal = card.query_heads.values, card.layer_kind.values == "causal"

    def p_of(seed):
        costs = np.random.default_rng([1, seed]).random((2, 4))
        return loss_by_size(session, shared, causal, [(2, 0)], lambda _: {"card": [costs]}, seed=seed).p.item()

    assert np.mean([p_of(seed) <= 0.1 for seed in range(200)]) == pytest.approx(0.1, abs=0.05)
    ranked = loss_by_size(session, shared, causal, [(2, 0)], lambda _: {"card": [worth.reshape(2, 4)]})
    assert ranked.p.item() == 1 / 20


def test_the_commands_make_a_card_a_list_and_a_comparison(tmp_path):
    model, texts = build("previous-decoder-2"), tmp_path / "texts.txt"
    model.model.save_pretrained(tmp_path / "model")
    model.tokenizer.save_pretrained(tmp_path / "model")
    texts.write_text("\n\n".join(" ".join(f"t{token}" for token in row) for row in model.ids[:8].tolist()))
    common = ("card", "model", texts, "--kept", "2+0", "--controls", "none", "--window", model.ids.shape[1])
    done = command(*common, "--out", "first", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    tables = json.loads(done.stdout)["tables"]
    assert {"heads", "scores", "stability"} <= set(tables)
    export(tmp_path / "first", "names", out=tmp_path / "names", variables=["previous_token"])
    done = command(*common, "--out", "second", "--published", "names", cwd=tmp_path)
    assert "previous token: AUROC 1.00" in done.stdout.replace("\n", " "), done.stderr + done.stdout


@pytest.mark.parametrize("head", [GPT2Model, GPT2ForSequenceClassification])
@pytest.mark.parametrize("measured", ["limits", "check"])
def test_a_model_that_predicts_no_tokens_has_no_loss_with_limited_keys(head, measured):
    reader, tokenizer = tiny_reader("gpt2")
    model = head(reader.config).eval()
    model.config.pad_token_id = 0
    how = {"tokenizer": tokenizer, "kept": [(4, 1)], "controls": "none"}
    with pytest.raises(AttnscopeError, match=f"found {head.__name__}, which predicts none: leave them out"):
        attnscope_cards.card(model, TEXTS, **how, **{measured: True})
    assert "effect" not in attnscope_cards.card(model, TEXTS, **how)


TEXTS = ["The tide comes in twice a day, and goes out again.", "The boats lie dry on the sand until it is back."] * 2


def test_all_of_a_needle_is_in_the_signature():
    """Else a corrected needle would be answered by the finished run of the one before."""
    reader, tokenizer = tiny_reader("gpt2")
    needle = {"needle": "it is", "prompt": "it"}
    others = [needle | {"prompt": "is"}, needle | {"real_needle": "is"}, needle | {"needle": "it in"}]
    cards = [
        attnscope_cards.card(reader, TEXTS, tokenizer=tokenizer, kept=[(8, 4)], controls="none", needles=[one])
        for one in (needle, *others)
    ]
    assert len({card.attrs["signature"] for card in cards}) == len(cards)


@pytest.mark.parametrize(
    ("family", "kept", "says"),
    [("bert", (8, 4), "measure the loss of next tokens"), ("gpt2", (200, 4), "the smallest cache 204: give longer")],
)
def test_a_check_that_no_cache_allows_is_rejected_before_a_run_begins(family, kept, says, tmp_path):
    reader, tokenizer = tiny_reader(family)
    for asked in ("check", "limits"):
        how = {"kept": [kept], "controls": "none", "out": tmp_path / "card", asked: True}
        with pytest.raises(AttnscopeError, match=says):
            attnscope_cards.card(reader, TEXTS, tokenizer=tokenizer, **how)
        assert not (tmp_path / "card").exists()


def test_a_card_without_caches_has_no_limits():
    reader, tokenizer = tiny_reader("gpt2")
    card = attnscope_cards.card(reader, TEXTS, tokenizer=tokenizer, kept=[], controls="none")
    assert not [role for role in card.role.values if role.startswith("kept_")]
    for asked in ("check", "limits"):
        with pytest.raises(AttnscopeError, match="need a cache: give one"):
            attnscope_cards.card(reader, TEXTS, tokenizer=tokenizer, kept=[], controls="none", **{asked: True})


def test_a_card_counts_key_value_heads_by_the_query_head_that_needs_most():
    reader, tokenizer = tiny_reader("llama")  # four query heads, two key-value heads a layer
    card = attnscope_cards.card(reader, TEXTS, tokenizer=tokenizer, kept=[(8, 4)], controls="none")
    # of the first two query heads one needs more, of the last two of the first layer none
    card.score.loc[{"role": "kept_8_4"}] = [[0.99, 0.5, 0.96, 0.97], [0.5, 0.5, 0.99, 0.94]]
    sentence = "The cache 8+4 does so for all query heads of 1 of 4 key-value heads, which share their keys."
    assert sentence in report_of("card", card).finding.sentences
    reader, tokenizer = tiny_reader("gpt2")
    card = attnscope_cards.card(reader, TEXTS, tokenizer=tokenizer, kept=[(8, 4)], controls="none")
    assert not any("key-value" in sentence for sentence in report_of("card", card).finding.sentences)
