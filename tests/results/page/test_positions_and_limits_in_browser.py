"""The lessons on positions and limits: each drawing's number next to NumPy or PyTorch, and what their files hold."""

import base64
import json

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from attnscope.explanation.arrays.decomposition import reparametrize
from attnscope.explanation.study import study
from attnscope.explanation.tables import position_table
from attnscope_lineage.efficient import block_sparse_mask
from attnscope_lineage.lessons import HERE
from attnscope_lineage.lessons.limits import numbers as limits
from attnscope_lineage.lessons.limits.pronoun import BOUND, moved, pronoun_model, read
from attnscope_lineage.lessons.positions import numbers as positions
from attnscope_lineage.lessons.write import write
from attnscope_yamamoto2023.claims import AS_UNTRAINED, BY_CHANCE, CLAIMS, FAILS, HOLDS, NOT_DEFINED
from attnscope_yamamoto2023.models import Subject

FIGURES = json.loads((HERE / "positions" / "shown.json").read_text(encoding="utf-8"))
SHOWN = FIGURES["models"]
MEASURED = json.loads((HERE / "positions" / "figures.json").read_text(encoding="utf-8"))
HEADS = [(model, head) for model, shown in SHOWN.items() for head in shown["heads"]]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lessons")
    return {name: write(name, folder / f"{name}.html") for name in ("positions", "limits")}


def move(page, name, value):
    """Set a slider, and choose a radio button of the name."""
    page.locator(f'input[name="{name}"]').first.evaluate(
        """(input, value) => {
            const isRadio = input.type === "radio", same = `input[name="${input.name}"][value="${value}"]`;
            const chosen = isRadio ? document.querySelector(same) : input;
            if (isRadio) chosen.checked = true; else chosen.value = value;
            chosen.dispatchEvent(new Event(isRadio ? "change" : "input"));
        }""",
        value,
    )


def number(page, name, kind="value"):
    return float(page.locator(f'[data-says="{name}"]').get_attribute(f"data-{kind}"))


def sinusoids(length, width):
    angle = np.arange(length)[:, None] * 10000 ** (-np.arange(0, width, 2) / width)
    return np.stack([np.sin(angle), np.cos(angle)], -1).reshape(length, width)


def test_order_counts_as_soon_as_positions_are_added(written, visit):
    page = visit(written["positions"])
    vectors, back = torch.tensor(positions.VECTORS, dtype=torch.float64), [2, 1, 0]
    for strength in (0.0, 0.35, 1.0):
        move(page, "strength", strength)
        table = strength * torch.from_numpy(sinusoids(3, 4))
        outputs = [
            torch.nn.functional.scaled_dot_product_attention(x, x, x) for x in (vectors + table, vectors[back] + table)
        ]
        expected = float((outputs[0] - outputs[1][back]).abs().max())
        assert number(page, "order") == pytest.approx(expected, abs=1e-12)
        assert (expected < 1e-9) == (strength == 0)


def test_a_step_is_a_rotation(written, visit):
    page, table = visit(written["positions"]), sinusoids(80, positions.WIDTH)
    for position, offset in ((3, 2), (40, -20), (0, 7)):
        move(page, "position", position)
        move(page, "offset", offset)
        expected = np.sum(np.cos(offset * 10000 ** (-np.arange(0, positions.WIDTH, 2) / positions.WIDTH)))
        assert number(page, "rotation") == pytest.approx(expected, abs=1e-10)
        if offset > 0:
            assert expected == pytest.approx(table[position] @ table[position + offset])


def test_the_spectrum_of_a_column_is_the_fourier_transform(written, visit):
    page = visit(written["positions"])
    for model, column, frequency in (("rxnmapper-albert", 2, 48), ("bundled", 5, 22)):
        move(page, "table", model)
        move(page, "column", column)
        move(page, "frequency", frequency)
        expected = np.abs(np.fft.rfft(SHOWN[model]["columns"][column]))[frequency]
        assert number(page, "learned") == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("model", "head"), HEADS, ids=lambda one: one if isinstance(one, str) else one["name"])
def test_offsets_and_shifts_are_those_of_numpy(model, head, written, visit):
    page, length = visit(written["positions"]), SHOWN[model]["length"]
    weights, q, k, s = (np.array(head[name]) for name in ("weights", "q", "k", "s"))
    for name in ("map", "head", "turning"):
        move(page, name, f"{model} {head['name']}")
    scores = (q.T * s) @ k
    for offset in (-3, 0, 8):
        move(page, "diagonal", offset)
        assert number(page, "offsets") == pytest.approx(np.trace(weights, offset), abs=1e-9)
        move(page, "count", len(s))
        move(page, "wave", 4)
        move(page, "move", offset)
        assert number(page, "shift") == pytest.approx(np.trace(scores, offset), rel=1e-9)  # equation 15
        covariance = np.correlate(k[4], q[4], "full")
        norm = np.linalg.norm(q[4]) * np.linalg.norm(k[4])
        expected = (covariance[offset + length - 1] - covariance.mean()) / norm
        assert number(page, "shift", "correlation") == pytest.approx(expected, abs=1e-9)
        move(page, "count", 3)
        assert number(page, "shift") == pytest.approx(np.trace((q[:3].T * s[:3]) @ k[:3], offset), rel=1e-9)


@pytest.mark.parametrize(("model", "head"), HEADS, ids=lambda one: one if isinstance(one, str) else one["name"])
def test_the_line_of_a_shift_has_the_energy_that_numpy_adds_up(model, head, written, visit):
    page, energy, length = visit(written["positions"]), np.array(head["energy"]), SHOWN[model]["length"]
    move(page, "turning", f"{model} {head['name']}")
    angle = (np.arange(energy.shape[1]) + 0.5) / energy.shape[1] * 2 * np.pi - np.pi
    token = 2 * np.pi * np.arange(len(energy))[:, None] / length
    shares = {}
    for shift in np.arange(-5, 5.1, 0.25):
        apart = np.abs(np.angle(np.exp(1j * (angle - token * shift))))
        shares[shift] = energy[3:][(apart <= token + 1e-9)[3:]].sum() / energy[3:].sum()
    for shift in (-2, 0.75):
        move(page, "delta", shift)
        assert number(page, "angle") == pytest.approx(shares[shift], abs=1e-9)
    assert abs(-head["line"] - (np.argmax(head["sums"]) - 10)) < 0.7  # attention is at minus the shift
    best = max(shares, key=shares.get)
    assert abs(best - head["line"]) < 0.7


def test_four_kinds_of_head_are_what_their_names_say(written, visit):
    page = visit(written["positions"])
    for model, heads in FIGURES["four"].items():
        move(page, "four", model)
        assert [head["kind"] for head in heads] == ["sharp left", "sharp right", "soft left", "soft right"]
        sharp_left, sharp_right, soft_left, soft_right = (np.array(head["profile"]) for head in heads)
        assert sharp_left.argmax() == 9
        assert sharp_right.argmax() == 11
        assert min(sharp_left.max(), sharp_right.max()) > 0.5
        assert max(soft_left.max(), soft_right.max()) < 0.3
        assert soft_left[:10].sum() > 5 * soft_left[11:].sum()
        assert soft_right[11:].sum() > 5 * soft_right[:10].sum()
        assert number(page, "four") == pytest.approx(soft_left[:10].sum())
        cells = page.locator("[data-draw=four] td[data-value]").evaluate_all(
            "(cells) => cells.map((cell) => Number(cell.dataset.value))"
        )
        np.testing.assert_allclose(cells, np.ravel([head["weights"] for head in heads]))


def test_queries_keep_the_wave_that_the_states_lose(written, visit):
    page, layers = visit(written["positions"]), FIGURES["layers"]["rxnmapper-albert"]
    near = (np.arange(129) * 2 >= 40) & (np.arange(129) * 2 <= 60)
    peak = np.array(layers["ratio"])[:, :, near].max(-1)
    assert layers["sides"] == ["X", "query", "key"]
    assert (peak[5:, 0] < 1).all()  # from layer 5 on, as the prose says
    assert (peak[5:, 1:] > 1.5).all()
    for layer in (0, 5, 11):
        move(page, "layer", layer)
        assert number(page, "layers") == pytest.approx(peak[layer, 1])
    assert layers["position"][0] > 2 * layers["position"][-1]
    assert np.array(FIGURES["layers"]["all-MiniLM-L6-v2"]["ratio"])[:, :, near].max() < 1  # has no such peak


def test_tables_of_six_models_and_their_dimensions(written, visit):
    page, tables = visit(written["positions"]), FIGURES["tables"]
    rows = position_table(study("bundled", limit=1).model).rows
    values = np.linalg.svd(rows - rows.mean(0), compute_uv=False) ** 2
    np.testing.assert_allclose(tables["bundled"]["share"], (values.cumsum() / values.sum())[:24], atol=1e-4)
    power = np.abs(np.fft.rfft(rows, axis=0)).mean(1)
    drawn = np.array(tables["bundled"]["spectrum"])
    np.testing.assert_allclose(drawn[1:] / drawn[1], power[1:] / power[1], rtol=0.01)
    for name in ("whisper-tiny.en", "whisper-base"):
        assert tables[name]["kind"] == "decoder"
        assert np.argmax(tables[name]["spectrum"][1:]) < 3  # the lowest frequencies lead
    move(page, "dimensions", 12)
    assert number(page, "components") == pytest.approx(tables["bundled"]["share"][11])
    assert page.locator("[data-draw=tables] svg").count() == 6
    for name, table in tables.items():
        spectrum, period = np.array(table["spectrum"]), table["rows"] / np.arange(1, len(table["spectrum"]) - 1)
        inner = spectrum[1:-1]
        is_peak = (inner >= spectrum[:-2]) & (inner >= spectrum[2:]) & (period < 51)
        drawn_peak = page.locator(f"[data-draw=compared] tr[data-model='{name}']").get_attribute("data-peak")
        assert float(drawn_peak) == inner[is_peak].max()
    assert page.locator("[data-draw=components] circle").count() == 2  # the published numbers are points


@pytest.mark.parametrize("model", MEASURED["profiles"])
def test_clusters_of_heads_are_those_of_scikit_learn(model, written, visit):
    cluster = pytest.importorskip("sklearn.cluster")
    page, data = visit(written["positions"]), MEASURED["profiles"][model]
    vectors = np.frombuffer(base64.b64decode(data["block"]), "<u2").reshape(-1, 21) / 65535
    texts, depth, heads, _ = data["shape"]
    move(page, "kinds-model", model)
    fitted = cluster.KMeans(6, n_init=20, random_state=0).fit(vectors)
    assert number(page, "kinds") <= fitted.inertia_ * (1 + 1e-5)  # no worse a partition
    labels = fitted.labels_.reshape(texts, depth * heads)
    most = [np.bincount(labels[:, head]).max() / texts for head in range(depth * heads)]
    assert abs(number(page, "kinds", "steady") - np.sum(np.array(most) >= 0.9)) <= 1
    assert number(page, "kinds", "steady") >= 0.9 * depth * heads  # as the paper says of most heads
    assert "random, 0 do" in page.locator("[data-says=kinds]").inner_text()


@pytest.mark.parametrize(("model", "head"), HEADS, ids=lambda one: one if isinstance(one, str) else one["name"])
def test_columns_add_up_at_the_offset_and_cancel_far_away(model, head, written, visit):
    page = visit(written["positions"])
    q, k, s = (np.array(head[name]) for name in "qks")
    length = q.shape[1]
    covariance = np.array([np.correlate(of_k, of_q, "full") for of_q, of_k in zip(q, k, strict=True)])
    parts = s[:, None] * (covariance - covariance.mean(1, keepdims=True))
    left = np.abs(parts.sum(0)) / np.abs(parts).sum(0)
    move(page, "columns-head", f"{model} {head['name']}")
    for offset in (-30, -2, 7):
        move(page, "columns-offset", offset)
        assert number(page, "columns") == pytest.approx(left[offset + length - 1], abs=1e-9)
    offsets = np.arange(-40, 41)
    far = left[offsets + length - 1][np.abs(np.abs(offsets) - 30) <= 4].mean()
    assert number(page, "columns", "far") == pytest.approx(far, abs=1e-9)
    assert left[parts.sum(0).argmax()] > far + 0.3
    scaled = (covariance - covariance.mean(1, keepdims=True))[:20, offsets + length - 1]
    best = scaled.argmax(1)
    near = np.abs(np.arange(81) - best[:, None]) <= 3
    assert number(page, "columns", "single") == (np.where(near, 0, np.abs(scaled)).max(1) / scaled.max(1)).argmin()


def test_uses_of_words_are_told_as_numpy_tells_them(written, visit):
    page, probes = (
        visit(written["positions"]),
        json.loads((HERE / "positions" / "probes.json").read_text(encoding="utf-8")),
    )
    shares = {}
    for kind in ("syntax", "meaning"):
        words, uses = np.array(probes[kind]["words"]), np.array(probes[kind]["uses"])
        block = np.frombuffer(base64.b64decode(probes[kind]["states"]["block"]), "<f4").astype(float)
        shares[kind] = [told(layer, words, uses) for layer in block.reshape(7, len(words), -1)]
    for layer in range(7):
        move(page, "probe-layer", layer)
        for kind in shares:
            assert number(page, "probes", kind) == pytest.approx(shares[kind][layer], abs=1e-9)
    assert np.argmax(shares["syntax"]) < np.argmax(shares["meaning"]) == 6  # as the prose says
    assert shares["syntax"][6] < max(shares["syntax"])
    assert max(max(probes[kind]["null"]) for kind in shares) < 0.6
    assert number(page, "probes", "lost") == pytest.approx(binomtest(0, 11).pvalue)
    assert number(page, "probes", "won") == pytest.approx(binomtest(2, 15).pvalue)
    said = page.locator("[data-says=probes]").inner_text()
    assert "syntax loses 11 of 144 sentences and gains 0 (p = 0.001)" in said
    assert "meaning loses 2 of 100 and gains 13 (p = 0.007)" in said
    assert "syntax falls in 7 of 12 and rises in 0 (p = 0.016)" in said
    assert "meaning falls in 2 of 10 and rises in 4 (p = 0.688)" in said


def told(states, words, uses):
    """The share of uses that are nearer to the mean of the word's other sentences of the use."""
    right = 0
    for i, state in enumerate(states):
        others = (words == words[i]) & (np.arange(len(words)) != i)
        apart = [np.linalg.norm(state - states[others & (uses == use)].mean(0)) for use in (0, 1)]
        right += apart[uses[i]] < apart[1 - uses[i]]
    return right / len(states)


def test_a_dozen_dimensions_are_enough_for_a_head(written, visit):
    page = visit(written["positions"])
    rows = position_table(study("bundled", limit=1).model).rows
    left, values, directions = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    column = np.argsort(-rows.var(0))[0]
    for count in (0, 4, 12, 24):
        move(page, "kept", count)
        made = (left[:, :count] * values[:count]) @ directions[:count, column]
        real = rows[:, column] - rows[:, column].mean()
        expected = 1 - np.sum((real - made) ** 2) / np.sum(real**2)
        assert number(page, "fewer") == pytest.approx(expected, abs=1e-3)
    for found in MEASURED["reduced"].values():  # as the prose says
        weight = dict(zip(found["dimensions"], found["weight"], strict=True))
        assert weight[4] < 0.35
        assert 0.93 < weight[12] / found["weight"][-1] < 1


def test_the_objective_decides_which_waves_a_table_has(written, visit):
    page, trained = visit(written["positions"]), MEASURED["objectives"]
    peaks = {}
    again = {f"{name}, again": trained["again"][name] for name in ("masked token", "next token")}
    for name in ("masked token", "next token", *again):
        spectrum = np.array((trained | again)[name]["spectrum"])
        period = trained["rows"] / np.arange(1, len(spectrum) - 1)
        high = (spectrum[1:-1] > 1) & (spectrum[1:-1] >= spectrum[:-2]) & (spectrum[1:-1] >= spectrum[2:])
        peaks[name] = int((high & (period <= 51.2)).sum())
    assert number(page, "objectives") == peaks["masked token"] >= 5
    assert peaks["next token"] == peaks["next token, again"] == 0
    assert peaks["masked token, again"] == 7  # as the prose says
    assert trained["next token"]["slow"] > trained["masked token"]["slow"] + 0.2


def test_rope_finds_an_offset_sooner_and_no_translation(written, visit):
    page, copying = visit(written["positions"]), MEASURED["copying"]
    move(page, "updates", 200)
    assert number(page, "rope") == pytest.approx(copying["rope"]["weight"]["mean"][copying["updates"].index(200)])
    sooner = sum(
        one < other for one, other in zip(copying["rope"]["reached"], copying["learned"]["reached"], strict=True)
    )
    assert f"RoPE is sooner in {sooner} of {copying['seeds']}" in page.locator("[data-says=rope]").inner_text()
    assert sooner >= 10
    assert copying["learned"]["loss"]["mean"][-1] < copying["rope"]["loss"]["mean"][-1]
    assert MEASURED["rope"]["difference"][2] < 0  # the table's loss is lower over the whole of the second task


def test_late_rows_are_trained_as_often_as_long_texts_come(written, visit):
    page = visit(written["positions"])
    assert number(page, "training") == pytest.approx(0.1)
    move(page, "short", 0.75)
    assert number(page, "training") == pytest.approx(0.25)
    move(page, "short-length", 512)
    assert number(page, "training") == 1


def test_the_arrays_are_those_of_the_bundled_model():
    shown = SHOWN["bundled"]
    np.testing.assert_allclose(
        np.abs(np.fft.rfft(position_table(study("bundled", limit=2).model).rows, axis=0)).mean(1),
        shown["spectrum"]["table"],
        rtol=1e-4,
    )
    subject = Subject(study("bundled", limit=2))
    for head in shown["heads"]:
        layer, number_ = map(int, head["name"].split("."))
        parts = reparametrize(*subject.evidence.layer(layer).matrices(number_, affine=False))
        np.testing.assert_allclose(parts.values, head["s"], rtol=1e-4)


def test_the_table_has_every_claim_with_its_null(written, visit):
    found = json.loads((HERE / "positions" / "claims.json").read_text(encoding="utf-8"))
    assert [claim["statement"] for claim in found["claims"]] == [claim.statement for claim in CLAIMS]
    assert len(found["models"]) == 4
    for model in found["models"].values():
        for row in model["claims"]:
            assert row["verdict"] in {HOLDS, AS_UNTRAINED, BY_CHANCE, FAILS, NOT_DEFINED}
            assert not row["verdict"].startswith(HOLDS) or row["p"] is None or row["p"] <= 0.05
    page = visit(written["positions"])
    rows = page.locator("table.claims tbody tr")
    assert rows.count() == len(CLAIMS)
    page.get_by_role("button", name=CLAIMS[9].statement).click()
    detail = page.locator(".claim").inner_text()
    for name, model in found["models"].items():
        assert f"{name}: {model['claims'][9]['verdict']}" in detail
        assert model["claims"][9]["text"] in detail
    page.get_by_role("button", name=CLAIMS[3].statement).click()
    detail = page.locator(".claim").inner_text()
    assert "bundled: holds, as in untrained models" in detail
    assert "18 of 19 untrained models meet the criterion too: meeting it shows nothing" in detail
    assert rows.nth(3).locator(".verdict-holds").count() == 0
    assert rows.nth(0).locator(".verdict-holds").count() == 3


def test_pairs_are_those_of_masks(written, visit):
    page = visit(written["limits"])
    for n, w in ((64, 3), (128, 10)):
        offset = np.subtract.outer(np.arange(n), np.arange(n))
        near = np.abs(offset) <= w
        masks = {
            "full": np.ones_like(near),
            "causal": offset >= 0,
            "window": near,
            "blocks": block_sparse_mask(n, block=w, neighbours=0, global_tokens=()).numpy(),
            "global": near | (np.arange(n) == 0) | (np.arange(n)[:, None] == 0),
        }
        move(page, "tokens", int(np.log2(n)))
        move(page, "width", w)
        for form, mask in masks.items():
            move(page, "form", form)
            assert number(page, "forms") == mask.sum()


def test_weights_move_and_the_output_does_not(written, visit):
    page = visit(written["limits"])
    for part in (0, 0.3, 1):
        move(page, "free", part)
        assert number(page, "same") < 1e-12
    assert number(page, "same", "moved") > 0.1  # at an end of the slider


def test_the_end_of_the_pronoun_model_is_the_model():
    model, tokenizer = pronoun_model()
    for sentence in limits.SENTENCES:
        end = read([sentence])
        logits = model(**tokenizer([sentence], return_tensors="pt")).logits[0, end.it[0]]
        torch.testing.assert_close(end.log_probabilities(end.weights)[0], logits.log_softmax(-1), atol=1e-5, rtol=0)


@torch.no_grad()
def test_other_weights_predict_what_pytorch_predicts(written, visit):
    page, model = visit(written["limits"]), limits.model()
    for which, sentence in enumerate(limits.SENTENCES):
        end = read([sentence])
        others = {
            "uniform": torch.full_like(end.weights, 1 / end.weights.shape[1]),
            "adversarial": torch.tensor([model["sentences"][which]["adversarial"]]),
        }
        move(page, "sentence", which)
        for kind, other in others.items():
            move(page, "kind", kind)
            for part in (0.4, 1):
                move(page, "part", part)
                expected = float(moved(end, end.weights + part * (other - end.weights))[0])
                assert number(page, "pronoun") == pytest.approx(expected, abs=1e-5)
        assert bool(moved(end, others["uniform"])[1]) == ("deer" in sentence)  # as the prose says
        distance, other_answer = moved(end, others["adversarial"])
        assert float(distance) <= BOUND
        assert not other_answer
    tokens, weights = (model["sentences"][0][name] for name in ("tokens", "adversarial"))
    assert weights[tokens.index("animal")] == pytest.approx(0.12, abs=0.005)  # as the prose says


def test_one_product_is_faster_than_its_rows_and_recurrence_is_linear(written, visit):
    costs = json.loads((HERE / "limits" / "costs.json").read_text(encoding="utf-8"))
    times = {name: cost["seconds"] for name, cost in costs["costs"].items()}
    lengths = costs["lengths"][: len(times["queries"])]
    page = visit(written["limits"])
    for at in (0, lengths.index(1024)):
        move(page, "parallel-length", at)
        assert number(page, "parallel") == pytest.approx(times["queries"][at] / times["matrix"][at])
        assert number(page, "parallel") > 2
    assert max(costs["costs"]["queries"]["error"]) < 1e-4  # the same output
    slope = np.polyfit(np.log(lengths), np.log(times["recurrent"]), 1)[0]
    assert slope == pytest.approx(1, abs=0.15)  # n steps
    bars = page.locator("[data-draw=cost] table.bars tr")
    assert bars.count() == 6  # forms that are computed step by step have a drawing of their own


def test_costs_are_of_the_same_output():
    found = json.loads((HERE / "limits" / "costs.json").read_text(encoding="utf-8"))
    assert found["lengths"] == [2**power for power in range(6, 15)]
    for name in ("fused", "exact"):
        assert max(found["costs"][name]["error"]) < 1e-4
    last = {name: cost["bytes"][-1] / cost["bytes"][-3] for name, cost in found["costs"].items()}
    assert last["matrix"] == pytest.approx(16, rel=0.05)  # four times as long
    assert last["window"] == pytest.approx(4, rel=0.05)
