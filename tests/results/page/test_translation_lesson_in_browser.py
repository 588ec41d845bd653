"""The lesson on translation in a browser: its four translators next to PyTorch, and what moves them."""

import json
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from attnscope_lineage.lessons.translation.numbers import ADDITIVE, ANNOTATIONS, BILINEAR, KINDS, MODELS
from attnscope_lineage.lessons.write import write
from attnscope_lineage.models.recurrent import RecurrentForConditionalGeneration
from attnscope_lineage.parallel_text import generate_task

RUN = """([sentence, kind]) => {
    take(sentence);
    const { words, reads, right, sources, teacher, own } = chosen, steps = teacher[kind];
    return { ids: [...words.map((word) => KNOWN[word]), STOP], reads, right, h: sources[kind].h, c: sources[kind].c,
        p: steps.map(({ p }) => p), alpha: steps.map(({ alpha }) => alpha), context: steps.map(({ c }) => c),
        own: own[kind].map(({ word }) => word) };
}"""

CELLS = """([drawing, line, cell, name]) => [...document.querySelectorAll(`[data-draw=${drawing}] ${line}`)]
    .map((line) => [...line.querySelectorAll(cell)].map((cell) => Number(cell.dataset[name])))"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write("translation", tmp_path_factory.mktemp("translation") / "translation.html")


@pytest.fixture(scope="module")
def text():
    """New sentences of the task, up to 38 words."""
    return generate_task(40, seed=3, longest=12).joined(3, seed=3)


def model_of(kind):
    """A translator in PyTorch, in double precision."""
    return RecurrentForConditionalGeneration.from_pretrained(MODELS / kind).double().eval()


@pytest.mark.parametrize("kind", KINDS)
def test_the_translators_of_the_page_are_those_of_pytorch(kind, path, text, visit):
    page, model = visit(path), model_of(kind)
    for sentence in text.source[:5]:
        computed = page.evaluate(RUN, [sentence, kind])
        ids = torch.tensor([computed["ids"]])
        contexts = []
        keep = model.decoder.readout.register_forward_pre_hook(lambda _, inputs, to=contexts: to.append(inputs[0]))
        with torch.no_grad():
            output = model(input_ids=ids, decoder_input_ids=torch.tensor([computed["reads"]]))
        keep.remove()
        np.testing.assert_allclose(computed["h"], output.encoder_last_hidden_state[0], atol=1e-6)
        np.testing.assert_allclose(computed["p"], output.logits[0].softmax(-1), atol=1e-6)
        np.testing.assert_allclose(computed["context"], contexts[0][0, :, 64:128], atol=1e-6)
        if kind != "fixed":
            np.testing.assert_allclose(computed["alpha"], output.cross_attentions[0][0, 0], atol=1e-6)
        own = model.generate(ids, max_new_tokens=2 * len(sentence.split()) + 10, num_beams=1, do_sample=False)
        assert own[0, 1:].tolist() == computed["own"]


def test_the_page_knows_the_right_translation(path, text, visit):
    page = visit(path)
    orders = page.evaluate("(lines) => lines.map((line) => orderOf(line.split(' '), TASK))", text.source)
    assert orders == [[source for source, _ in links] for links in text.alignments]
    right = page.evaluate("(lines) => lines.map((line) => { take(line); return chosen.right.join(' '); })", text.source)
    assert right == text.target
    assert page.evaluate(
        "['monday', 'one , , two', 'and', 'may one'].every((line) => orderOf(line.split(' '), TASK) === null)"
    )


def test_the_sentence_is_lengthened_and_typed(path, visit):
    page = visit(path)
    says, length = page.locator("[data-says=bottleneck]"), page.locator("input[name=length]")
    wrong = []
    for position in (0, int(length.get_attribute("max"))):
        length.fill(str(position))
        lines = page.locator(".translation[data-kind]")
        wrong.append(lines.evaluate_all("(lines) => lines.map((line) => Number(line.dataset.wrong))"))
        assert f"fixed vector gets {wrong[-1][0]} wrong and attention {wrong[-1][1]}." in says.inner_text()
        assert page.locator(".token-out.off").count() <= sum(wrong[-1])
    fixed, attention = wrong[-1]
    assert attention < fixed
    box, status = page.get_by_role("textbox", name="Sentence"), page.locator("[data-draw=bottleneck] [role=status]")
    box.fill("twenty zebras")
    assert status.inner_text().startswith("The models do not know “zebras”.")
    box.fill("one , " * 30)
    assert status.inner_text() == "The sentence has 60 words; this page reads at most 40."
    box.fill("one two")
    assert "no right translation is known" in page.locator("[data-draw=bottleneck]").inner_text()
    assert page.locator("[data-says=forcing]").inner_text().startswith("Of this sentence no right translation")
    box.fill("Monday may sixteen nineteen ninety three")
    assert not status.inner_text()
    assert page.locator(".translation").first.inner_text().split()[1:] == [
        "Montag",
        "sechzehn",
        "Mai",
        "neunzehn",
        "drei",
        "neunzig",
    ]


def test_attention_translates_a_long_sentence_and_the_fixed_vector_a_short_one(path, visit):
    page = visit(path)
    wrong = "(kind) => chosen.own[kind].filter(({ word }, k) => NAMES[word] !== (chosen.right[k] ?? '</s>')).length"
    assert page.evaluate("chosen.words.length") >= 16
    assert page.evaluate(wrong, "dot") == 0
    assert page.evaluate(wrong, "fixed") > 0
    page.get_by_role("button", name="A short sentence").click()
    assert page.evaluate("chosen.words.length") == 6
    assert page.evaluate(wrong, "fixed") == page.evaluate(wrong, "dot") == 0


@pytest.mark.parametrize("kind", ["dot", "bilinear", "additive"])
def test_attention_has_learned_weekdays(kind, path, visit):
    found = visit(path).evaluate(
        """(kind) => SENTENCES.flatMap((line) => {
            take(line);
            return chosen.right.flatMap((word, k) => TASK.days.includes(chosen.words[chosen.order[k]])
                ? [chosen.teacher[kind][k].p[WRITTEN[word]]] : []);
        })""",
        kind,
    )
    assert len(found) > 10
    assert np.mean(found) > 0.95  # a guess has 1 / 7


@torch.no_grad()
def test_weights_part_during_the_training(path, visit):
    page, training = visit(path), json.loads((MODELS / "training.json").read_text(encoding="utf-8"))
    names = json.loads((MODELS / "vocabulary.json").read_text(encoding="utf-8"))
    ids = torch.tensor([[*(names.index(word) for word in training["source"]), 2]])
    reads = torch.tensor([[1, *(names.index(word) for word in training["target"])]])
    last = model_of("dot")(input_ids=ids, decoder_input_ids=reads).cross_attentions[0][0, 0, :-1]
    steps = training["steps"]
    np.testing.assert_allclose(torch.tensor(steps[-1]["scores"]).softmax(-1), last, atol=1e-4)  # the model of the page
    for at in (0, 4, len(steps) - 1):
        page.locator("input[name=growing]").fill(str(at))
        weights = torch.tensor(steps[at]["scores"], dtype=torch.float64).softmax(-1)
        expected = torch.distributions.Categorical(weights).entropy().mean()
        assert float(page.locator("[data-says=growing]").get_attribute("data-value")) == pytest.approx(
            float(expected), abs=1e-9
        )
    assert [step["on_word"] for step in (steps[0], steps[-1])] == [
        pytest.approx(0.12, abs=0.01),
        pytest.approx(1, abs=0.01),
    ]
    assert steps[-1]["entropy"] < steps[0]["entropy"] / 5


def test_words_ask_words_with_the_same_formula(path, visit):
    page = visit(path)
    h = torch.tensor(page.evaluate("chosen.sources.dot.h"), dtype=torch.float64)
    drawn = np.array(page.evaluate(CELLS, ["bridge", "tbody tr", "td", "value"]))
    np.testing.assert_allclose(drawn, (h @ h.T / 64**0.5).softmax(-1), atol=1e-9)
    page.locator("[data-draw=bridge] label", has_text="the decoder's states").click()
    drawn = np.array(page.evaluate(CELLS, ["bridge", "tbody tr", "td", "value"]))
    np.testing.assert_allclose(drawn, page.evaluate("chosen.teacher.dot.slice(0, -1).map(({ alpha }) => alpha)"))
    says = page.locator("[data-says=bridge]").inner_text()
    assert f"{drawn.size} scores" in says
    assert f"needs {drawn.shape[1]} steps" in says


def test_rows_of_the_alignment_are_those_of_the_model(path, visit):
    page = visit(path)
    rows = page.locator("svg.alignment [role=button]")
    drawn = np.array(page.evaluate(CELLS, ["alignment", "[role=button]", "[data-weight]", "weight"]))
    np.testing.assert_allclose(drawn.sum(1), 1, atol=1e-9)
    np.testing.assert_allclose(drawn, page.evaluate("chosen.teacher.dot.slice(0, -1).map(({ alpha }) => alpha)"))
    rows.nth(2).press("Enter")
    assert page.locator("input[name=step-context]").input_value() == "3"
    correct = page.evaluate("chosen.order.filter((at, k) => ranked(chosen.teacher.dot[k].alpha)[0] === at).length")
    assert f"In {correct} of {len(drawn)} steps" in page.locator("[data-says=alignment]").inner_text()
    page.locator("[data-draw=alignment] label", has_text="bilinear").click()
    assert page.evaluate("chosen.kind") == "bilinear"
    assert page.locator("[data-draw=output] input[value=bilinear]").is_checked()


def test_three_scores_of_the_same_numbers(path, visit):
    page = visit(path)
    page.locator("input[name=s1]").fill("-1.3")
    page.locator("input[name=s2]").fill("0.4")
    h, s = torch.tensor(ANNOTATIONS, dtype=torch.float64), torch.tensor([-1.3, 0.4], dtype=torch.float64)
    query, key, bias, direction = (
        torch.tensor(ADDITIVE[name], dtype=torch.float64) for name in ("query", "key", "bias", "direction")
    )
    bilinear = functional.bilinear(s.expand(3, 2).contiguous(), h, torch.tensor([BILINEAR], dtype=torch.float64))[:, 0]
    e = torch.stack([h @ s, bilinear, torch.tanh(query @ s + h @ key.T + bias) @ direction], 1)
    tables = np.array(page.evaluate(CELLS, ["scores", "tbody tr", "td", "value"])).reshape(2, 3, 3)
    np.testing.assert_allclose(tables[0], e, atol=1e-9)
    np.testing.assert_allclose(tables[1], e.softmax(0), atol=1e-9)
    page.locator("[data-draw=scores] label", has_text="h₂").click()
    worked = page.locator("[data-says=worked] p").all_inner_texts()
    assert [line.split(" = ")[-1].replace("−", "-") for line in worked] == [f"{value:.2f}" for value in e[1].tolist()]


def test_the_output_layer_without_its_parts(path, visit):
    page, model = visit(path), model_of("dot")
    step = page.evaluate("(({ s, c, y }) => ({ s, c, y }))(shownSteps()[0])")
    for missing in "cys":
        page.locator(f"input[name=use-{missing}]").uncheck()
        parts = [torch.zeros(len(step[name])) if name == missing else torch.tensor(step[name]) for name in "scy"]
        with torch.no_grad():
            p = model.lm_head(torch.tanh(model.decoder.readout(torch.cat(parts).double()))).softmax(-1)
        drawn = page.locator("[data-draw=output] td.number").evaluate_all(
            "(cells) => cells.map((cell) => Number(cell.dataset.value))"
        )
        np.testing.assert_allclose(drawn, p.topk(5).values, atol=1e-6)
        page.locator(f"input[name=use-{missing}]").check()


def test_teacher_forcing_sums_the_losses(path, visit):
    page, model = visit(path), model_of("dot")
    ids, reads = page.evaluate("[[...chosen.words.map((word) => KNOWN[word]), STOP], chosen.reads]")
    with torch.no_grad():
        loss = model(input_ids=torch.tensor([ids]), labels=torch.tensor([[*reads[1:], 2]])).loss * len(reads)
    says = page.locator("[data-says=forcing]")
    assert f"= {loss:.3f} nats" in says.inner_text()
    wrong = reads.copy()
    wrong[2] = page.evaluate("WRITTEN['siebzehn']")
    page.locator("input[name=error]").fill("3")
    with torch.no_grad():
        p = model(input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([wrong])).logits[0].log_softmax(-1)
    misled = -p.gather(1, torch.tensor([[*reads[1:], 2]]).T).sum()
    assert f"With one wrong word it is {misled:.3f} nats." in says.inner_text()
    page.locator("input[name=error]").fill("0")
    assert "wrong word" not in says.inner_text()


def test_what_was_measured_supports_the_prose(path, visit):
    measured = json.loads((MODELS / "measured.json").read_text(encoding="utf-8"))
    bleu, ends, gradients = measured["bleu"], measured["bleu_ends"], measured["gradients"]
    for attention in ("dot", "bilinear", "additive"):
        assert ends[attention][-1][0] > ends["fixed"][-1][1]  # intervals of long sentences are apart
        assert bleu["fixed"][0] - bleu["fixed"][-1] > bleu[attention][0] - bleu[attention][-1]
    fixed, forward, dot = (np.array(gradients[name]) for name in ("fixed", "fixed, forward state only", "dot"))
    assert (fixed[:, 0].argmax(), fixed[:, 0].argmin(), forward[:, 0].argmin()) == (0, 9, 0)
    assert fixed[0, 1] > fixed[-1, 2]
    assert forward[0, 2] < forward[1:9, 1].max()
    slopes = [np.polyfit(range(10), rows[:, 0], 1)[0] for rows in (fixed, dot)]
    assert abs(slopes[1]) < abs(slopes[0]) / 5
    page = visit(path)
    assert page.locator("[data-draw=gradient] path[data-name]").count() == 4
    says = page.locator("[data-says=gradient]").inner_text()
    assert f"attention {100 * dot[0, 0]:.1f}%" in says or f"attention {100 * dot[0, 0]:.0f}%" in says
    assert math.isclose(dot[:, 0].sum(), 1, abs_tol=1e-3)
