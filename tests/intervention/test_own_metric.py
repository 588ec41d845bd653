"""A metric of one's own in `intervene`, against the loss and against edited runs."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import attnscope
from attnscope.capture.load import load_model
from attnscope.intervention.verdicts import report, verdicts
from attnscope.support.errors import AttnscopeError
from tests.intervention.test_patching import causal, reader_of_words

TEXTS = ["The tide comes in twice a day.", "It rained all day long, and the streets were empty.", "Bread needs salt."]
BRIEF = {"steps": 0, "why": False}


def test_the_loss_as_a_function_is_the_loss():
    tokenizer = load_model("bundled").tokenizer

    def loss(logits, inputs):
        ids, valid = inputs["input_ids"], inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
        each = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none") * (valid[:, 1:] > 0)
        return each.sum(1) / (valid[:, 1:] > 0).sum(1)

    found = attnscope.intervene(causal(), TEXTS, tokenizer=tokenizer, metric=loss, **BRIEF)
    effects = found["effects"]
    np.testing.assert_allclose(effects.metric_change, effects.loss_change, atol=1e-4)
    np.testing.assert_allclose(effects.metric, effects.loss, rtol=1e-4)
    np.testing.assert_allclose(found["heads"].metric_change, found["heads"].effect, atol=1e-4)


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_answers_of_one_prompt_are_those_of_an_edited_run(kind):
    loaded = load_model("bundled", device="cpu")
    model = loaded.model if kind == "masked" else causal().eval()
    text = "It was part<mask> the game." if kind == "masked" else "It was part"
    found = attnscope.intervene(model, [text], tokenizer=loaded.tokenizer, metric=[(" of", " to")], **BRIEF)
    assert found["effects"].ablation.values.tolist() == ["zero", "mean"]
    ids = loaded.tokenizer(text, return_tensors="pt").input_ids
    special = torch.tensor(loaded.tokenizer.get_special_tokens_mask(ids[0].tolist(), already_has_special_tokens=True))
    place = (
        ids[0].tolist().index(loaded.tokenizer.mask_token_id) if kind == "masked" else int((1 - special).nonzero()[-1])
    )
    of, to = (loaded.tokenizer(word, add_special_tokens=False).input_ids[0] for word in (" of", " to"))

    def difference():
        with torch.no_grad():
            logits = model(ids).logits[0, place]
        return float(logits[of] - logits[to])

    before = difference()
    with attnscope.edit(model, {(1, 2): torch.zeros_like}, on="z"):
        after = difference()
    effects = found["effects"].isel(window=0)
    np.testing.assert_allclose(effects.metric, before, rtol=1e-4)
    np.testing.assert_allclose(effects.metric_change.sel(ablation="zero", layer=1, head=2), after - before, atol=1e-4)
    row = next(row for row in verdicts(found) if (row["layer"], row["head"]) == (1, 2))
    np.testing.assert_allclose(row["metric_zero_mean"], after - before, atol=1e-4)
    assert row["metric_zero_low"] is None
    assert any("resample" in note for note in report(found).notes)


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        ([(" of", " to")] * 2, "found 2 answers .* and 3 windows"),
        ([(" of the", " to")], "has 2 tokens"),
        (lambda logits, _: logits.sum(), "metric returned"),
        (lambda *_: 3.0, "metric returned float"),
    ],
)
def test_wrong_metrics_are_named(metric, reason):
    with pytest.raises(AttnscopeError, match=reason):
        attnscope.intervene("bundled", [f"{text}<mask>" for text in TEXTS], metric=metric, **BRIEF)


def test_a_function_has_no_run_folder(tmp_path):
    with pytest.raises(AttnscopeError, match="cannot name a metric"):
        attnscope.intervene("bundled", TEXTS, metric=lambda logits, _: logits[:, 0, 0], out=tmp_path / "run", **BRIEF)


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_answers_of_several_tokens_are_those_of_edited_runs(family):
    model, tokenizer = reader_of_words(family)
    texts, targets = ["It was part of it", "He was one"], ["It was all of us", "They came"]
    encodes = family in {"bart", "t5"}
    given = {"targets": targets} if encodes else {}
    found = attnscope.intervene(
        model,
        texts,
        tokenizer=tokenizer,
        metric=[(" of the game", " to")],
        search=True,
        **given,
        **(BRIEF | {"steps": 1}),
    )

    def difference(number):
        sums = []
        for word in (" of the game", " to"):
            ids = tokenizer(word, add_special_tokens=False).input_ids
            text = tokenizer((targets if encodes else texts)[number]).input_ids[:-1]
            text = [model.config.decoder_start_token_id, *text] if encodes else text
            inputs = {"input_ids": torch.tensor([text + ids])}
            if encodes:
                inputs = {
                    "decoder_input_ids": inputs["input_ids"],
                    "input_ids": torch.tensor([tokenizer(texts[number]).input_ids]),
                }
            with torch.no_grad():
                logs = model(**inputs).logits[0, len(text) - 1 : -1].log_softmax(-1)
            sums.append(logs.gather(1, torch.tensor(ids)[:, None]))
        return float(sums[0].sum() - sums[1].sum()), -float(sums[0].mean())

    effects = found["effects"]
    for number in (0, 1):
        before, loss = difference(number)
        with attnscope.edit(model, {(1, 0): torch.zeros_like}, on="z"):
            after, worse = difference(number)
        one = effects.isel(window=number)
        np.testing.assert_allclose([one.metric, one.loss], [before, loss], rtol=1e-4)
        changed = one.sel(ablation="zero", layer=1, head=0)
        np.testing.assert_allclose(
            [changed.metric_change, changed.loss_change], [after - before, worse - loss], atol=1e-4
        )
    assert effects.questions.values.tolist() == [4, 4]
    assert np.isfinite(effects.loss_change.sel(ablation="resample")).any()
