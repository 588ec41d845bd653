"""What holds for every encoder-decoder: losses, padding, caches, beams, saving; against steps written out."""

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import AutoModelForSeq2SeqLM

from attnscope import AttnscopeError
from attnscope.capture.load import load_model
from attnscope_lineage.loss import summed_loss
from attnscope_lineage.models.recurrent import RecurrentForConditionalGeneration
from tests.packages.lineage.models.small_lineage import ALL, LABELS, MASK, SOURCE, small


def log_probability(model, source, tokens):
    """Of target tokens given a source, token by token, each from a forward pass of its own."""
    total = 0.0
    read = [model.config.decoder_start_token_id]
    for token in tokens:
        logits = model(source[None], decoder_input_ids=torch.tensor([read])).logits[0, -1]
        total += float(logits.log_softmax(-1)[token])
        read.append(token)
    return total


def words(row, padding):
    """Up to the end of the text, without padding (which untrained models would say too if it were not suppressed)."""
    tokens = [token for token in row.tolist() if token != padding]
    return tokens[: tokens.index(2) + 1] if 2 in tokens else tokens  # after it, beams are filled up with it


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_the_loss_is_that_of_single_steps(name):
    model = small(name)
    pairs = [(source[source != 0], words(labels, -100)) for source, labels in zip(SOURCE, LABELS, strict=True)]
    count = sum(len(target) for _, target in pairs)
    expected = -sum(log_probability(model, source, target) for source, target in pairs)
    assert float(model(SOURCE, MASK, labels=LABELS).loss) == pytest.approx(expected / count, abs=1e-5)
    assert float(summed_loss(model, SOURCE, MASK, LABELS)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", ["additive-gru", "sinusoidal-pre"])
@torch.no_grad()
def test_arguments_that_would_be_passed_over_are_rejected(name):
    model = small(name)
    expected = model(SOURCE, MASK, labels=LABELS).logits
    idle = {"use_cache": True, "return_dict": True, "output_hidden_states": False, "inputs_embeds": None}
    padded = (LABELS >= 0).long()  # at the end, where no token before it looks
    found = model(SOURCE, MASK, labels=LABELS, decoder_attention_mask=padded, **idle).logits
    assert torch.equal(found, expected)
    for wrong, says in [
        ({"output_hidden_states": True}, "found argument 'output_hidden_states', which this model does not use"),
        ({"label_smoothing": 0.1}, "found argument 'label_smoothing'"),
        ({"decoder_attention_mask": padded.flip(1)}, "decoder_attention_mask has padding before a token"),
    ]:
        with pytest.raises(AttnscopeError, match=says):
            model(SOURCE, MASK, labels=LABELS, **wrong)
    with pytest.raises(AttnscopeError, match="found argument 'output_hidden_states'"):
        model.generate(SOURCE, attention_mask=MASK, max_new_tokens=2, output_hidden_states=True)


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_generating_is_teacher_forcing_with_what_was_said(name):
    model = small(name)
    said = model.generate(SOURCE, attention_mask=MASK, max_new_tokens=7, suppress_tokens=[0], do_sample=False)
    for row, source in enumerate(SOURCE):
        tokens = words(said[row, 1:], 0)
        forced = model(source[source != 0][None], decoder_input_ids=torch.tensor([[1, *tokens[:-1]]]))
        assert (forced.logits[0, :, 1:].argmax(-1) + 1).tolist() == tokens
    uncached = model.generate(
        SOURCE, attention_mask=MASK, max_new_tokens=7, suppress_tokens=[0], do_sample=False, use_cache=False
    )
    assert torch.equal(said, uncached)
    one_beam = model.generate(
        SOURCE, attention_mask=MASK, max_new_tokens=7, suppress_tokens=[0], num_beams=1, do_sample=False
    )
    assert torch.equal(said, one_beam)


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_scores_of_beams_are_log_probabilities(name):
    model = small(name)
    found = model.generate(
        SOURCE, attention_mask=MASK, max_new_tokens=6, num_beams=4, num_return_sequences=4,
        suppress_tokens=[0], length_penalty=0.0, return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    for row, score in enumerate(found.sequences_scores.tolist()):
        source = SOURCE[row // 4]
        tokens = words(found.sequences[row, 1:], 0)
        expected = log_probability(model, source[source != 0], tokens)
        assert score == pytest.approx(expected, abs=1e-4)
    uncached = model.generate(
        SOURCE, attention_mask=MASK, max_new_tokens=6, num_beams=4, num_return_sequences=4,
        suppress_tokens=[0], length_penalty=0.0, use_cache=False,
    )  # fmt: skip
    assert torch.equal(found.sequences, uncached)


@pytest.mark.parametrize("name", ALL)
def test_gradients_are_those_of_plain_cross_entropy_with_smoothing(name):
    model = small(name)
    loss = summed_loss(model, SOURCE, MASK, LABELS, 0.1)
    loss.backward()
    ours = {key: one.grad.clone() for key, one in model.named_parameters() if one.grad is not None}
    model.zero_grad()
    logits = model(SOURCE, MASK, labels=LABELS).logits
    theirs = F.cross_entropy(
        logits.flatten(0, 1), LABELS.flatten(), reduction="sum", label_smoothing=0.1, ignore_index=-100
    )
    assert_close(loss, theirs, atol=1e-4, rtol=1e-5)
    theirs.backward()
    for key, one in model.named_parameters():
        if one.grad is not None:
            assert_close(ours[key], one.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_saved_and_loaded_by_the_auto_class(name, tmp_path):
    model = small(name)
    model.save_pretrained(tmp_path)
    assert [file.suffix for file in tmp_path.iterdir() if file.suffix != ".json"] == [".safetensors"]
    again, told = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(told.values())
    assert_close(again.eval()(SOURCE, MASK, labels=LABELS).logits, model(SOURCE, MASK, labels=LABELS).logits)


def test_without_the_package_of_its_class_a_folder_says_what_to_install(tmp_path, monkeypatch):
    small("additive-gru").save_pretrained(tmp_path)
    assert isinstance(load_model(tmp_path, need_tokenizer=False).model, RecurrentForConditionalGeneration)
    monkeypatch.setattr("attnscope.capture.load.find_spec", lambda _: None)
    with pytest.raises(AttnscopeError, match=r"^attnscope-recurrent is in attnscope-lineage: in a copy"):
        load_model(tmp_path, need_tokenizer=False)
