"""Checkpoints as models: one, the mean of the last, and ensembles, against probabilities averaged by hand."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import attnscope_lineage
from attnscope import AttnscopeError
from attnscope_lineage.checkpoints import WEIGHTS
from attnscope_lineage.translation import translate_lines
from tests.packages.lineage.training.small_trainings import small_train
from tests.packages.lineage.translation.small_translators import small_model, small_recurrent, small_tokenizer

LINES = ["abba", "the dog sat.", "a"]


def ensemble(kind):
    """Three models of one kind with other weights, the first of which has its own opinion."""
    models = []
    for seed in range(3):
        model = small_recurrent("additive") if kind == "recurrent" else small_model(kind)
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)
        models.append(model)
    return models


def mean_by_hand(models, source, target):
    """Probabilities of the next token: each model's own, from a whole forward pass, then their mean."""
    ids, tokens = torch.tensor([source]), torch.tensor([target])
    each = [model(input_ids=ids, decoder_input_ids=tokens).logits[0, -1].double().softmax(-1) for model in models]
    return sum(each) / len(each)


@torch.no_grad()
def greedy_by_hand(models, source, most):
    """The most probable token at each step, and the sum of the logarithms of its probabilities."""
    target, total = [models[0].config.decoder_start_token_id], 0.0
    while len(target) <= most:
        probabilities = mean_by_hand(models, source, target)
        if len(target) == most and models[0].generation_config.forced_eos_token_id is not None:
            break  # the last token is forced
        target.append(int(probabilities.argmax()))
        total += math.log(probabilities[target[-1]])
        if target[-1] == models[0].config.eos_token_id:
            break
    return target[1:], total


@pytest.mark.parametrize("kind", ["recurrent", "bart", "t5"])
def test_an_ensemble_takes_the_mean_of_probabilities_at_each_step(kind):
    models, tokenizer = ensemble(kind), small_tokenizer()
    tokenizer.model_max_length = 64
    found = translate_lines(models[0], tokenizer, LINES, beams=1, scores=True, length_penalty=0.0, others=models[1:])
    alone = translate_lines(models[0], tokenizer, LINES, beams=1)
    for line, (translation,) in zip(LINES, found, strict=True):
        tokens, total = greedy_by_hand(models, tokenizer(line).input_ids, 20)
        decoded = tokenizer.decode(tokens, skip_special_tokens=True)
        assert translation.text.startswith(decoded[:20])
        if tokens[-1] == 2:
            assert translation.text == decoded
            assert translation.score == pytest.approx(total, abs=1e-4)
    assert found.texts != alone.texts


def test_beams_of_an_ensemble_are_scored_by_the_mean():
    models, tokenizer = ensemble("recurrent"), small_tokenizer()
    tokenizer.model_max_length = 64
    with torch.no_grad():
        for model in models:
            model.embedding.weight[2] *= 3  # ends soon
    found = translate_lines(
        models[0], tokenizer, LINES, beams=4, n_best=3, scores=True, length_penalty=0.0, others=models[1:]
    )
    compared = 0
    for line, several in zip(LINES, found, strict=True):
        source = tokenizer(line).input_ids
        for translation in several:
            tokens = [*tokenizer(translation.text).input_ids]
            if tokenizer.decode(tokens, skip_special_tokens=True) != translation.text or 3 in tokens:
                continue  # other tokens of the same text
            target, total = [1], 0.0
            for token in tokens:
                with torch.no_grad():
                    total += math.log(mean_by_hand(models, source, target)[token])
                target.append(token)
            compared += translation.score == pytest.approx(total, abs=1e-4)
    assert compared >= 3


def test_an_ensemble_of_one_model_is_the_model():
    (model, *_), tokenizer = ensemble("bart"), small_tokenizer()
    tokenizer.model_max_length = 64
    one = translate_lines(model, tokenizer, LINES, beams=3, scores=True)
    twice = translate_lines(model, tokenizer, LINES, beams=3, scores=True, others=[model])
    assert one.texts == twice.texts
    assert [best.score for (best,) in one] == pytest.approx([best.score for (best,) in twice], abs=1e-5)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    small_train(folder, updates=4, keep=3, average=1, learning_rate=0.05)
    return folder


def test_the_mean_of_the_last_checkpoints_is_that_of_their_weights(trained):
    means = {}
    for update in (2, 3, 4):
        for name, values in load_file(trained / "checkpoints" / f"{update:08d}" / WEIGHTS).items():
            means[name] = means.get(name, 0) + values / 3
    model = attnscope_lineage.translate(trained, ["a b c"], average=3, beams=1, scores=True)
    other = attnscope_lineage.translate(trained, ["a b c"], beams=1, scores=True)
    by_hand = AutoModelForSeq2SeqLM.from_pretrained(trained).eval()
    with torch.no_grad():
        for name, parameter in by_hand.named_parameters():
            parameter.copy_(means[name])
    tokenizer = AutoTokenizer.from_pretrained(trained)
    tokenizer.model_max_length = 128
    expected = translate_lines(by_hand, tokenizer, ["a b c"], beams=1, scores=True)
    assert model.texts == expected.texts
    assert model[0][0].score == pytest.approx(expected[0][0].score, abs=1e-6)
    assert model[0][0].score != pytest.approx(other[0][0].score, abs=1e-6)


def test_checkpoints_of_a_training_translate_together_and_align(trained):
    early, late = (trained / "checkpoints" / f"{update:08d}" for update in (2, 4))
    alone = [attnscope_lineage.translate(one, ["a b c"], beams=1, scores=True)[0][0].score for one in (early, late)]
    both = attnscope_lineage.translate(early, ["a b c"], ensemble=[late], beams=1, scores=True)
    assert len({*alone, both[0][0].score}) == 3
    assert '"ensemble"' in both.signature


def test_align_reads_a_checkpoint_and_the_mean_of_several(trained):
    """Each has weights of its own, which its signature names."""
    pair = ["a b c"], ["A B C"]
    found = [
        attnscope_lineage.align(trained / "checkpoints" / "00000002", *pair),
        attnscope_lineage.align(trained, *pair, average=3),
        attnscope_lineage.align(trained, *pair),
    ]
    models = {str(json.loads(tree.attrs["signature"])["model"]) for tree in found}
    assert len(models) == 3
    assert all(tree["pairs"].sizes["pair"] == 1 for tree in found)


def test_what_cannot_be_averaged_is_named(trained, tmp_path):
    with pytest.raises(AttnscopeError, match=r"has 3 checkpoints; found average 9"):
        attnscope_lineage.translate(trained, ["a"], average=9)
    small_model("bart").save_pretrained(tmp_path / "other")
    small_tokenizer().save_pretrained(tmp_path / "other")
    with pytest.raises(AttnscopeError, match=r"average \(--average\) needs the folder of a training"):
        attnscope_lineage.translate(tmp_path / "other", ["a"], average=2)
    with pytest.raises(AttnscopeError, match="has another tokenizer than"):
        attnscope_lineage.translate(trained, ["a"], ensemble=[tmp_path / "other"])
