"""The lesson on heads in a browser: its model next to PyTorch, and what moves it."""

import base64
import json
import re

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from attnscope.bundled import NOUNS, SENTENCES
from attnscope.models.transformer import EncoderForMaskedLM
from attnscope_lineage.lessons import HERE
from attnscope_lineage.lessons.heads.numbers import FOLDERS, numbers
from attnscope_lineage.lessons.write import write

TIRED = "The animal didn't cross the street because it was too tired."
WIDE = TIRED.replace("tired", "wide")
RUN = """([heads, sentence, options]) => {
    const { ids, unknown } = tokenise(sentence, KNOWN), run = encode(MODELS[heads], ids, options);
    const weights = run.layers.map(({ each }) => each.map(({ weights }) => weights));
    return { ids, unknown, weights, probabilities: run.probabilities };
}"""

CELLS = """(drawing) => [...document.querySelectorAll(`[data-draw=${drawing}] tbody tr`)]
    .map((line) => [...line.querySelectorAll("td")].map((cell) => Number(cell.dataset.value)))"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write("heads", tmp_path_factory.mktemp("heads") / "heads.html")


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDERS[1])


def model_of(heads):
    """The model in PyTorch, in double precision."""
    return EncoderForMaskedLM.from_pretrained(FOLDERS[heads], attn_implementation="eager").double().eval()


@pytest.mark.parametrize("heads", FOLDERS)
def test_the_model_of_the_page_is_that_of_pytorch(heads, path, tokenizer, visit):
    page, model = visit(path), model_of(heads)
    others = "it was", "tired because The because, because street street the", " ".join(["The street"] * 15)
    for sentence in (TIRED, WIDE, *others, *SENTENCES.read_text(encoding="utf-8").splitlines()[::25]):
        computed = page.evaluate(RUN, [str(heads), sentence, {}])
        assert (computed["ids"], computed["unknown"]) == (tokenizer(sentence).input_ids, [])
        with torch.no_grad():
            output = model(torch.tensor([computed["ids"]]))
        weights = torch.stack(output.attentions)[:, 0].numpy()
        np.testing.assert_allclose(computed["weights"], weights, atol=1e-6)
        np.testing.assert_allclose(computed["probabilities"], output.logits[0].softmax(-1), atol=1e-6)


def test_a_removed_head_and_a_window_are_those_of_pytorch(path, tokenizer, visit):
    page, model = visit(path), model_of(4)
    ids = torch.tensor([tokenizer(TIRED).input_ids])
    attention = model.encoder.layers[0].self_attention
    width = attention.value_width

    def without_head_0(module, inputs):
        return (torch.cat([torch.zeros_like(inputs[0][..., :width]), inputs[0][..., width:]], -1), *inputs[1:])

    with torch.no_grad(), attention.out_proj.register_forward_pre_hook(without_head_0):
        expected = model(ids).logits[0].softmax(-1)
    computed = page.evaluate(RUN, ["4", TIRED, {"removed": {"0": [0]}}])
    np.testing.assert_allclose(computed["probabilities"], expected, atol=1e-6)
    assert tokenizer.decode(expected[8].argmax()) == "street"

    def in_window(module, arguments, keywords):
        position = torch.arange(ids.shape[1])
        return arguments, keywords | {
            "mask": torch.where((position[:, None] - position).abs() <= 2, 0.0, -torch.inf).double()[None, None]
        }

    hooks = [
        layer.self_attention.register_forward_pre_hook(in_window, with_kwargs=True) for layer in model.encoder.layers
    ]
    with torch.no_grad():
        expected = model(ids).logits[0].softmax(-1)
    for hook in hooks:
        hook.remove()
    computed = page.evaluate(RUN, ["4", TIRED, {"window": 2}])
    np.testing.assert_allclose(computed["probabilities"], expected, atol=1e-6)


def test_the_answer_follows_the_sentence(path, visit):
    page = visit(path)
    says, box = page.locator("[data-says=it]"), page.get_by_role("textbox", name="Sentence")
    assert re.match(r"“it” attends to “animal” with the weight 0\.\d+ .* as “animal”", says.inner_text())
    box.fill(WIDE)
    assert re.match(r"“it” attends to “street” .* as “street”", says.inner_text())
    drawn = page.locator("[data-draw=it] .arc").evaluate_all("(arcs) => arcs.map((arc) => Number(arc.dataset.weight))")
    assert sum(drawn) == pytest.approx(1, abs=1e-9)
    box.fill("The zebra didn't cross the street because it was too wide.")
    status = page.locator("[data-draw=it] [role=status]")
    assert status.inner_text().startswith("The model does not know “zebra”.")
    assert page.locator(".vocabulary").inner_text().count("animal") == 1
    assert "street" in says.inner_text()  # of the last sentence of known words
    box.fill("The street " * 16)
    assert status.inner_text() == "The sentence has 32 words; the model reads at most 30."
    page.get_by_role("button", name="animal, street: because it was too tired").click()
    assert not status.inner_text()
    page.get_by_role("button", name="Query tired, word 11").press("Enter")
    assert says.inner_text().startswith("“tired” attends to")


def test_all_noun_sentences_are_answered(path, visit):
    lines = [file.read_text(encoding="utf-8").splitlines()[:60] for file in (SENTENCES, NOUNS)]
    restored = visit(path).evaluate(
        """(sentences) => sentences.map((sentence) => {
            const { names, ids } = tokenise(sentence, KNOWN), { probabilities } = encode(MODELS[4], ids);
            return lesson.numbers.names[ranked(probabilities[names.indexOf("it")])[0]];
        })""",
        lines[0],
    )
    words = [[re.findall(r"[\w']+", line) for line in side] for side in lines]
    nouns = [noun[it.index("it")] for it, noun in zip(*words, strict=True)]
    assert restored == nouns


def test_heads_are_chosen_removed_and_joined(path, visit):
    page = visit(path)
    says = page.locator("[data-says=every]")
    assert says.inner_text().startswith("With all heads the model reads “it” as “animal”")
    page.locator("input[name='off-0.0']").check()
    assert says.inner_text().startswith("Without this head the model reads “it” as “street”")
    page.get_by_role("button", name="All heads on").click()
    for head in range(4):  # the prose says so
        page.locator(f"input[name='off-1.{head}']").check()
        assert "as “animal”" in says.inner_text()
        page.locator(f"input[name='off-1.{head}']").uncheck()
    page.get_by_role("button", name="trophy, suitcase: because it was too small").click()
    page.locator("input[name='off-0.0']").check()
    assert "as “suitcase”" in says.inner_text()
    page.get_by_role("button", name="All heads on").click()
    page.get_by_role("button", name="Head 0.2").click()
    assert page.locator("[data-draw=it] figcaption").first.inner_text().startswith("Head 0.2")
    assert page.locator("[data-says=concat]").inner_text().endswith("the largest difference is 0.")
    page.locator("[data-draw=every] label", has_text="lines").click()
    assert page.locator("svg.links").count() == 8
    page.locator("[data-draw=concat] label", has_text="1").first.click()
    assert page.locator("[data-draw=every] .card-head").count() == 2


def test_the_first_word_reaches_the_last_in_one_layer(path, visit):
    page = visit(path)
    says, window = page.locator("[data-says=step]"), page.locator("input[name=window]")
    assert "notices it in layer 0. A recurrent network needs 12 steps" in says.inner_text()
    assert np.array(page.evaluate(CELLS, "step"))[:, 1].all()
    window.fill("3")
    assert "needs 4 layers" in says.inner_text()
    reached = np.array(page.evaluate(CELLS, "step")) > 0
    assert reached.sum(0).tolist() == [1, 5, 8]  # <s> too, and three more words in each layer
    window.fill("6")
    assert "notices it in layer 1" in says.inner_text()


def test_one_removed_head_is_one_and_an_empty_sentence_is_said_to_be_empty(path, visit):
    page, says = visit(path), "[data-says=every]"
    page.get_by_role("checkbox", name="remove").first.check()
    assert page.locator(says).inner_text().startswith("Without this head the model")
    page.get_by_role("checkbox", name="remove").nth(1).check()
    assert page.locator(says).inner_text().startswith("Without these heads the model")
    page.get_by_role("textbox", name="Sentence").fill(" ")
    assert page.locator("[data-draw=it] .status").inner_text().startswith("The sentence has no words.")


def test_one_head_has_no_matrix_that_joins_heads(path, visit):
    page = visit(path)
    count = 3 * sum(one.numel() for one in torch.nn.Linear(8, 8).parameters())
    assert page.locator("[data-says=shapes]").inner_text().endswith(f"no W_O and {count} parameters.")
    assert "W_o" not in page.locator("pre.shapes").inner_text()


def test_the_shapes_are_those_of_pytorch(path, visit):
    page = visit(path)
    code = page.locator("pre.shapes")
    assert "output = attn_weights @ V" in code.inner_text()
    assert code.inner_text().splitlines()[-1].endswith("# (2, 4, 8)")
    for name, value in {"B": 3, "T": 5, "D": 16, "H": 2}.items():
        page.locator(f"input[name={name}]").fill(str(value))
    attention = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    output, weights = attention(*[torch.rand(3, 5, 16)] * 3, average_attn_weights=False)
    lines = code.inner_text().splitlines()
    assert lines[-1].endswith(f"# {tuple(output.shape)}")
    assert next(line for line in lines if "softmax" in line).endswith(f"# {tuple(weights.shape)}")
    parameters = sum(one.numel() for one in attention.parameters())
    assert f"the layer has {parameters} parameters" in page.locator("[data-says=shapes]").inner_text()
    page.locator("[data-draw=shapes] label", has_text="dim=-2").click()
    values = np.array(page.evaluate(CELLS, "shapes"))
    np.testing.assert_allclose(values[:, :-1].sum(0), 1, atol=1e-9)
    assert np.abs(values[:, -1] - 1).max() > 0.05


@torch.no_grad()
def test_pictures_are_read_as_pytorch_reads_them(path, visit):
    folder = HERE / "heads" / "digits"
    names = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
    model = EncoderForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    page = visit(path)
    for digit, picture in enumerate(json.loads((folder / "pictures.json").read_text(encoding="utf-8"))):
        page.locator("[data-draw=picture]").get_by_role("button", name=str(digit), exact=True).click()
        squares = np.array(picture).reshape(4, 2, 4, 2).transpose(0, 2, 1, 3).reshape(16, 4) @ [8, 4, 2, 1]
        ids = [1, names.index("digit"), *(names.index(f"p{number}") for number in squares), 2]
        output = model(input_ids=torch.tensor([ids]), output_attentions=True)
        words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
        p = output.logits[0, 1].softmax(-1)[[names.index(word) for word in words]]
        assert float(page.locator("[data-says=picture]").get_attribute("data-value")) == pytest.approx(
            float(p.max()), abs=1e-5
        )
        drawn = page.locator("[data-draw=picture] [data-weights]").evaluate_all(
            "(maps) => maps.map((map) => map.dataset.weights.split(' ').map(Number))"
        )
        np.testing.assert_allclose(drawn, output.attentions[1][0, :, 1, 2:18], atol=1e-5)
    page.locator("[data-draw=picture] rect[role=button]").nth(20).press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") in {"true", "false"}


@torch.no_grad()
def test_views_are_means_over_held_out_sentences(path, visit):
    model = EncoderForMaskedLM.from_pretrained(FOLDERS[4], attn_implementation="eager").eval()
    data = numbers()
    ids = data["vocabulary"]
    found = {"meaning": [], "syntax": [], "order": []}
    for view in data["views"]:
        words = re.findall(r"[\w']+|[.,]", view["sentence"])
        assert (words[view["it"] - 1], words[view["reason"] - 2]) == ("it", "too")
        output = model(input_ids=torch.tensor([[1, *(ids[word] for word in words), 2]]), output_attentions=True)
        weights = torch.cat([layer[0] for layer in output.attentions])  # (head, query, key)
        found["meaning"].append(weights[:, view["it"], view["noun"]])
        found["syntax"].append(weights[:, view["it"], view["reason"]])
        found["order"].append(weights.diagonal(-1, 1, 2).mean(-1))
    page = visit(path)
    for kind, values in found.items():
        page.locator(f'[data-draw=views] input[value="{kind}"]').evaluate("(input) => input.click()")
        drawn = page.locator("[data-draw=views] td.number").evaluate_all(
            "(cells) => cells.map((cell) => Number(cell.dataset.value))"
        )
        np.testing.assert_allclose(drawn[:8], torch.stack(values).mean(0), atol=1e-5)
    means = {kind: torch.stack(values).mean(0) for kind, values in found.items()}
    assert means["meaning"][4:].min() > 0.5  # as the prose says: layer 1
    assert means["syntax"].argmax() == 0
    assert means["syntax"][0] > 0.5
    assert means["order"].max() < 0.1
    assert data["order"]["share"] > 0.9


def unpacked(block):
    """The arrays of a `packed` block, in double precision."""
    numbers_, arrays = np.frombuffer(base64.b64decode(block["block"]), "<f4").astype(float), {}
    for name, shape in block["shapes"]:
        arrays[name], numbers_ = numbers_[: np.prod(shape)].reshape(shape), numbers_[np.prod(shape) :]
    return arrays


def test_four_heads_of_a_model_of_english_have_their_views(path, visit):
    page, english = visit(path), numbers()["english"]
    pairs = {  # sentence, word that asks, head, word that it turns to
        ("instrument", 2, "coreference", "violin"),
        ("picture", 1, "coreference", "drawing"),
        ("instrument", 2, "obj", "sell"),
        ("in", 3, "case", "village"),
        ("in", 3, "order", "doctor"),
    }
    for word, sentence, kind, to in pairs:
        tokens, arrays = (
            english["sentences"][sentence - 1]["tokens"],
            unpacked(english["sentences"][sentence - 1]["arrays"]),
        )
        head = english["heads"][kind]
        scores = arrays[f"q{head}"] @ arrays[f"k{head}"].T / 32**0.5
        weights = torch.from_numpy(scores).softmax(-1).numpy()[len(tokens) - 1 - tokens[::-1].index(word)]
        for slider, value in (("sentence", sentence), ("word", len(tokens) - 1 - tokens[::-1].index(word))):
            page.locator(f"input[name=english-{slider}]").fill(str(value))
        card = page.locator(f"[data-draw=english] [data-kind={kind}]")
        assert float(card.get_attribute("data-weight")) == pytest.approx(weights[tokens.index(to)], abs=1e-5)
        assert f"{word} → {to}" in card.inner_text()
    for measured in (english["measured"][kind] for kind in ("case", "obj", "coreference")):
        assert measured["score"] > max(measured["offset"], measured["untrained"]) + 0.2  # as the bars show
    order = english["measured"]["order"]
    assert order["score"] > 3 * order["untrained"] > 0


def test_a_head_of_a_model_of_speech_finds_the_time_of_the_word(path, visit):
    page, sound = visit(path), numbers()["sound"]
    arrays = unpacked(sound["heads"][0]["arrays"])
    scores = np.c_[arrays["q"] @ arrays["k"].T / 64**0.5, arrays["rest"]]
    weights = torch.from_numpy(scores).softmax(-1).numpy()[:, :-1]
    time = (np.arange(weights.shape[1]) + 0.5) / 50
    words = [sound["words"][token["word"]] for token in sound["tokens"]]
    near = [
        row[(time >= word["begin"] - 0.1) & (time <= word["end"] + 0.1)].sum()
        for row, word in zip(weights, words, strict=True)
    ]
    for at in (0, 5, len(words) - 1):
        page.locator("input[name=sound-word]").fill(str(at))
        assert float(page.locator("[data-says=sound]").get_attribute("data-value")) == pytest.approx(near[at], abs=1e-5)
    assert np.mean(near) > 0.8
    page.locator("[data-draw=sound] label", has_text="0.0").click()
    assert float(page.locator("[data-says=sound]").get_attribute("data-value")) < 0.5
