"""The loss of a part of a text, and several answers, against logits that own hooks change."""

import json

import numpy as np
import pytest
import torch

import attnscope
import attnscope_circuits
from attnscope import AttnscopeError
from attnscope.capture.load import load_model
from attnscope.results.reports import report_of
from tests.tiny_models import tiny_reader

TEXTS = ["The car near the rivers is old.", "The horses behind the school are old."]
ROWS = [
    {"text": TEXTS[0], "spans": {"verb": [24, 26], "noun": [[4, 7], [0, 3]]}},
    {"text": TEXTS[1], "spans": {"verb": [29, 32], "noun": [[4, 10], [0, 3]]}},
]
HEAD = (1, 3)
HOW = {"ablations": ["zero"], "steps": 0, "why": False, "heads": [HEAD]}


@pytest.fixture(scope="module")
def loaded():
    return load_model("bundled:tasks", device="cpu")


def logits_of(loaded, text):
    """Token ids, and the logits of the model as it is and without a head."""
    ids = loaded.tokenizer(text, return_tensors="pt").input_ids
    plain = loaded.model(ids).logits[0]
    with attnscope.edit(loaded.model, {HEAD: torch.zeros_like}, on="z") as edited:
        return ids[0], plain, edited(ids).logits[0]


def part_by_hand(loaded, text, part):
    words = [loaded.tokenizer.decode(one) for one in loaded.tokenizer(text).input_ids]
    special = [one in loaded.tokenizer.all_special_tokens for one in words]
    if part == "second-half":
        real = np.flatnonzero(~np.array(special))
        return real[len(real) // 2 :]
    wanted = {"after:The ": words[2:], "verb": [" is", " are"], "noun": [" car", " horses"]}[part]
    return [at for at, word in enumerate(words) if word in wanted and not special[at]]


@pytest.mark.parametrize("part", ["second-half", "verb", "noun", "after:The "])
@torch.no_grad()
def test_the_loss_of_a_part_is_that_of_its_tokens(loaded, part):
    effects = attnscope.intervene(loaded, ROWS, part=part, **HOW)
    for number, text in enumerate(TEXTS):
        ids, *both = logits_of(loaded, text)
        at = torch.tensor(part_by_hand(loaded, text, part))
        at = at[at > 0]
        loss, changed = (torch.nn.functional.cross_entropy(one[at - 1], ids[at]) for one in both)
        found = effects["effects"].isel(window=number)
        np.testing.assert_allclose(found.loss, float(loss), atol=1e-5)
        np.testing.assert_allclose(found.loss_change.sel(layer=1, head=3), float(changed - loss), atol=1e-5)
        assert int(found.questions) == len(at)
    assert f"Only tokens in the part {part} are predicted." in report_of("intervene", effects).notes


def test_the_logits_of_a_part_are_split(loaded):
    whole, of_verb = (
        attnscope_circuits.attribute(loaded, ROWS, **more)["predictions"] for more in ({}, {"part": "verb"})
    )
    names = [name for name in of_verb.token.to_numpy().ravel().tolist() if name]
    assert [name.strip() for name in names] == ["is", "are"]
    at = whole.token.to_numpy().tolist()[0].index(names[0])
    lens = of_verb.lens_logit.isel(window=0, depth=-1).dropna("position")
    np.testing.assert_allclose(lens, whole.lens_logit.isel(window=0, depth=-1, position=[at]), rtol=1e-5)


def test_a_masked_model_hides_words_of_the_part_alone(tmp_path):
    file = tmp_path / "pairs.jsonl"
    text = "The tide comes in twice a day."
    file.write_text(json.dumps({"clean": text, "corrupted": text, "spans": {"noun": [[4, 8], [0, 3]]}}) + "\n")
    for field, losses in (("clean", 1), ("corrupted", 1)):
        found = attnscope.intervene("bundled", file, field=field, part="noun", **HOW)["effects"]
        assert int(found.questions.sum()) == losses
    masked = load_model("bundled", device="cpu")
    tokenizer = masked.tokenizer
    ids = tokenizer(text).input_ids
    hidden = [tokenizer.mask_token_id if tokenizer.decode(one) == "The" else one for one in ids]
    logits = masked.model(torch.tensor([hidden])).logits[0].detach()
    at = hidden.index(tokenizer.mask_token_id)
    np.testing.assert_allclose(found.loss, -float(logits[at].log_softmax(-1)[ids[at]]), atol=1e-5)


@torch.no_grad()
def test_several_answers_count_by_their_summed_probability(loaded):
    texts = ["The car near the rivers", "The horses behind the school"]
    answers = [([" is", " old"], " are"), (" are", [" is", " old"])]
    effects = attnscope.intervene(loaded, texts, metric=answers, **HOW)
    for number, (text, both) in enumerate(zip(texts, answers, strict=True)):
        sides = [[side] if isinstance(side, str) else side for side in both]
        ids = [[loaded.tokenizer(word, add_special_tokens=False).input_ids[-1] for word in side] for side in sides]
        _, plain, changed = (one[-1] for one in logits_of(loaded, text))
        metric, after = (float(one[ids[0]].logsumexp(0) - one[ids[1]].logsumexp(0)) for one in (plain, changed))
        found = effects["effects"].isel(window=number)
        np.testing.assert_allclose(found.metric, metric, atol=1e-5)
        np.testing.assert_allclose(found.metric_change.sel(layer=1, head=3), after - metric, atol=1e-5)
        np.testing.assert_allclose(found.loss, float(plain.logsumexp(0) - plain[ids[0]].logsumexp(0)), atol=1e-5)
        assert int(found.accuracy) == int(int(plain.argmax()) in ids[0])


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (ROWS, {"part": "subject"}, "text 1 has no span 'subject' .--part.; its spans are: verb, noun. Parts are also"),
        (TEXTS, {"part": "verb"}, "text 1 is a string without a field 'spans' .--part."),
        (None, {"part": "verb"}, "part .--part. is 'verb', a span of the texts by name"),
        (TEXTS, {"part": "after:=>"}, "text 1 has no '=>', after which its part .--part. begins"),
        (["The"], {"part": "first-half"}, "nothing to predict in the part 'first-half'"),
        (TEXTS, {"part": "second-half", "metric": [(" is", " are")]}, "answers .metric. are predicted at one position"),
    ],
)
def test_parts_that_cannot_be_predicted_are_named(loaded, texts, options, message):
    with pytest.raises(AttnscopeError, match=message):
        attnscope.intervene(loaded, texts, **HOW, **options)


@pytest.mark.parametrize("family", ["t5", "bart"])
@torch.no_grad()
def test_the_part_of_a_translation_is_one_of_the_target(family):
    model, tokenizer = tiny_reader(family)
    sources, targets = ["The tide comes in.", "Nobody had told."], ["It was part of it.", "He was one of them all."]
    how = {"targets": targets, "tokenizer": tokenizer, "part": "after:was"}
    effects = attnscope.intervene(model, sources, **how, **{**HOW, "heads": [(2, 1)]})["effects"]
    split = attnscope_circuits.attribute(model, sources, **how)["predictions"]
    for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
        ids = tokenizer(target).input_ids
        text = {"input_ids": torch.tensor([tokenizer(source).input_ids])}
        text["decoder_input_ids"] = torch.tensor([[model.config.decoder_start_token_id, *ids[:-1]]])
        after = [tokenizer.decode(ids[: at + 1]).endswith("was") for at in range(len(ids))].index(True) + 1
        at = torch.arange(after, len(ids) - 1)  # the end of the text is no word of it
        plain = model.eval()(**text).logits[0, at]
        with attnscope.edit(model, {(2, 1): torch.zeros_like}, on="z") as edited:
            changed = edited(**text).logits[0, at]
        wanted = torch.tensor(ids)[at]
        loss, other = (float(torch.nn.functional.cross_entropy(one, wanted)) for one in (plain, changed))
        np.testing.assert_allclose(effects.loss[number], loss, atol=1e-5)
        np.testing.assert_allclose(effects.loss_change.sel(layer=2, head=1)[number], [other - loss], atol=1e-5)
        np.testing.assert_allclose(split.total[number], plain.gather(1, wanted[:, None]).mean(), atol=1e-5)
