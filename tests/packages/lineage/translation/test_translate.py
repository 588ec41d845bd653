"""Translations: scores against those of transformers' beam search, order, over-long lines, the command."""

import re
from copy import deepcopy

import pytest
import torch

import attnscope_lineage
from attnscope import AttnscopeError
from attnscope_lineage.data import encode_lines, train_subwords
from attnscope_lineage.models.configs import RecurrentConfig
from attnscope_lineage.models.recurrent import RecurrentForConditionalGeneration
from attnscope_lineage.translation import Translation, Translations, translate_lines

LINES = ["a dog runs over the green field", "", "two men", "a b c d e f g h i j", "  "]


@pytest.fixture(scope="module")
def tokenizer():
    made = train_subwords([*LINES, "ein Hund läuft über das grüne Feld", "zwei Männer"], 300)
    made.model_max_length = 64
    return made


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.manual_seed(0)
    config = RecurrentConfig(
        vocab_size=len(tokenizer), embedding_width=8, encoder_width=6, decoder_width=12, dropout=0.0
    )
    made = RecurrentForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(2)
    return made.eval()


@pytest.fixture(scope="module")
def folder(model, tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_a_translation_is_one_line_of_text(model, tokenizer, monkeypatch):
    """Whatever bytes are generated: a file of them can be read again."""
    monkeypatch.setattr(type(tokenizer), "batch_decode", lambda _, rows, **__: ["a\0b\r\nc\0"] * len(rows))
    assert [one.text for (one,) in translate_lines(model, tokenizer, LINES[2:4], beams=1)] == ["a b c"] * 2


@pytest.fixture(scope="module")
def ending(model):
    """The same with a longer row of </s>, so that its beams end after a few tokens."""
    made = deepcopy(model)
    with torch.no_grad():
        made.embedding.weight[2] *= 9
    return made


@pytest.mark.parametrize("penalty", [0.0, 1.0, 0.6])
def test_scores_are_those_of_beam_search(ending, tokenizer, penalty):
    found = translate_lines(
        ending, tokenizer, LINES, beams=4, n_best=4, length_penalty=penalty, scores=True, batch_tokens=60
    )
    for line in (0, 2, 3):
        (ids,) = encode_lines(tokenizer, [LINES[line]])
        alone = ending.generate(
            torch.tensor([ids]), num_beams=4, num_return_sequences=4, length_penalty=penalty,
            max_new_tokens=2 * len(ids) + 20, return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        assert all(2 in row[1:] for row in alone.sequences.tolist())  # others have another limit in a batch
        texts = tokenizer.batch_decode(alone.sequences, skip_special_tokens=True)
        assert [one.text for one in found[line]] == [text.strip() for text in texts]
        assert [one.score for one in found[line]] == pytest.approx(alone.sequences_scores.tolist(), abs=1e-4)


def test_order_is_stored_whatever_the_batches(model, tokenizer):
    alone = [text for line in LINES for text in translate_lines(model, tokenizer, [line], beams=1).texts]
    for budget in (1, 20, 4096):
        found = translate_lines(model, tokenizer, LINES, beams=1, batch_tokens=budget)
        limit = min(map(len, alone[:1] + alone[2:4])) // 2  # in a batch with longer ones a line may go on longer
        assert [one[0].text[:limit] for one in found] == [text[:limit] for text in alone]
    found = translate_lines(model, tokenizer, LINES, beams=3, n_best=3)
    assert [len(one) for one in found] == [3, 1, 3, 3, 1]


def test_over_long_lines(model, tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "model_max_length", 8)
    with pytest.raises(AttnscopeError, match=r"line 4 has \d+ tokens; the model was trained for at most 8"):
        translate_lines(model, tokenizer, ["a", "", "b", LINES[3]], beams=1)
    read, real = [], model.generate

    def generate(ids, **options):
        read.extend([token for token in row if token] for row in ids.tolist())
        return real(ids, **options)

    monkeypatch.setattr(model, "generate", generate)
    (ids,) = encode_lines(tokenizer, [LINES[3]])
    shorter, cut = translate_lines(model, tokenizer, ["a", LINES[3]], beams=1, overlong="cut")
    assert (shorter[0].left_out, cut[0].left_out) == (0, len(ids) - 8)
    read.clear()
    translate_lines(model, tokenizer, [LINES[3]], beams=1, overlong="cut")
    assert read == [[*ids[:7], 2]]
    read.clear()
    (found,) = translate_lines(model, tokenizer, [LINES[3]], beams=1, overlong="split", batch_tokens=1)
    assert len(read) > 1
    assert all(len(piece) <= 8 and piece[-1] == 2 for piece in read)
    assert sorted(token for piece in read for token in piece[:-1]) == sorted(ids[:-1])
    assert len(found) == 1


def test_a_tokenizer_of_another_model_is_rejected(model):
    other = train_subwords(["many other words", *LINES, *map(chr, range(0x4E00, 0x4E00 + 300))], 900)
    with pytest.raises(AttnscopeError, match=r"line 2 contains token id \d+, but \w+ has \d+ tokens"):
        translate_lines(model, other, ["", "".join(map(chr, range(0x4E00, 0x4E00 + 300)))])


def test_settings_that_do_not_go_together(model, tokenizer):
    with pytest.raises(AttnscopeError, match="found n_best 3 with 2 beams"):
        translate_lines(model, tokenizer, LINES, beams=2, n_best=3)
    for alone, says in (
        ({"temperature": 0.5}, "temperature applies to sampling"),
        ({"seed": 4}, "the seed .--seed. applies to sampling"),
        ({"sample": True, "beams": 4}, "beams .--beams. do not apply to sampling"),
        ({"sample": True, "length_penalty": 0.5}, "length_penalty .--length-penalty. applies to several beams"),
        ({"beams": 1, "length_penalty": 0.5}, "length_penalty .--length-penalty. applies to several beams"),
    ):
        with pytest.raises(AttnscopeError, match=says):
            translate_lines(model, tokenizer, LINES, **alone)
    with pytest.raises(AttnscopeError, match=r"overlong is 'drop'.*; expected 'reject' or 'split' or 'cut'"):
        attnscope_lineage.translate(model, LINES, tokenizer=tokenizer, overlong="drop")


def test_a_file_and_a_folder(folder, tmp_path):
    text = tmp_path / "text"
    text.write_bytes("\ufeffa dog\r\n\r\ntwo men\r\n".encode())
    found = attnscope_lineage.translate(str(folder), text, beams=2, device="cpu")
    assert found.texts == attnscope_lineage.translate(folder, ["a dog", "", "two men"], beams=2).texts
    assert found.sources == ("a dog", "", "two men")
    assert found[1][0].text == ""


def test_a_generation_config_without_a_start_is_an_error_of_one_line(model, tokenizer):
    model = deepcopy(model)
    model.generation_config.decoder_start_token_id = model.generation_config.bos_token_id = None
    with pytest.raises(AttnscopeError, match=r"cannot generate.*Check its generation_config\.json"):
        translate_lines(model, tokenizer, ["two men"])


def test_what_is_shown_of_a_text_is_a_line_and_not_long():
    sources = ("", "one\n\ntwo", "word " * 100)
    made = Translations(sources, ((Translation(""),), (Translation("a\tb", -0.5),), (Translation("c " * 100, -2.0),)))
    first, *lines = repr(made).splitlines()
    assert first == "3 sentences translated"
    assert lines[:2] == ["→ (–)", "one two → a b (-0.50)"]
    assert len(lines) == 3
    assert re.fullmatch(r"(word )+word… → (c )+c… \(-2\.00\)", lines[2])
    assert len(lines[2]) < 140
    assert lines[2].partition(" → ")[2] in made._repr_html_()
    without = Translations(sources[:2], ((Translation(""),), (Translation("a"),)))
    assert repr(without).splitlines()[1:] == ["→", "one two → a"]
