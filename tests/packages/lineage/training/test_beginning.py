"""What a training begins with: tokenizers of others, words, weights of another training."""

import hashlib
import json

import pytest
import sentencepiece
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from attnscope import AttnscopeError
from attnscope.store.folder import OwnedFolder
from attnscope_lineage import translate
from attnscope_lineage.config import read_config
from attnscope_lineage.data import encode_lines, read_tokenizer, train_words
from tests.packages.lineage.training.small_trainings import small_train, small_training

LINES = [
    "the cat sat on the mat .",
    "the dogs don't run, they walk",
    "a man in a red shirt 3.5",
    "Zwei Männer  laufen über das Feld",
    "wow ☃ snow",
]


def sentencepiece_model(folder, kind, **options):
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(LINES * 20))
    sizes = {"vocab_size": 90 + 256 * bool(options), "model_prefix": str(folder / kind), "model_type": kind}
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), minloglevel=2, hard_vocab_limit=False, **sizes, **options
    )
    return folder / f"{kind}.model"


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("options", [{}, {"byte_fallback": True}], ids=["unknown", "bytes"])
def test_pieces_of_sentencepiece_are_its_own(kind, options, tmp_path):
    path = sentencepiece_model(tmp_path, kind, **options)
    own = sentencepiece.SentencePieceProcessor(model_file=str(path))
    tokenizer = read_tokenizer(path)
    texts = [*LINES, "a cat in the field, 5 ☂ dogs", " spaces   at the ends "]
    assert encode_lines(tokenizer, texts) == [[*own.encode(text), tokenizer.eos_token_id] for text in texts]
    decoded = tokenizer.batch_decode([own.encode(text) for text in LINES[:3]], skip_special_tokens=True)
    assert decoded == LINES[:3]
    assert tokenizer.eos_token_id == own.eos_id()
    assert len({tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}) == 4


def tokenizers_file(folder):
    raw = Tokenizer(models.BPE(unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=80, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False)
    raw.train_from_iterator(LINES * 5, trainer)
    raw.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_a_file_of_tokenizers_keeps_its_tokens_and_gets_those_that_it_lacks(tmp_path):
    path = tokenizers_file(tmp_path)
    raw, tokenizer = Tokenizer.from_file(str(path)), read_tokenizer(path)
    for line in LINES:
        assert tokenizer(line).input_ids == [*raw.encode(line).ids, raw.token_to_id("[SEP]")]
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("[CLS]", "[SEP]", "<pad>")
    assert tokenizer.pad_token_id == raw.get_vocab_size()
    read_tokenizer(path).save_pretrained(tmp_path / "folder")
    again = read_tokenizer(tmp_path / "folder")
    assert again.get_vocab() == tokenizer.get_vocab()
    assert again(LINES[0]).input_ids == tokenizer(LINES[0]).input_ids


@pytest.mark.parametrize("model", ["recurrent", "transformer"])
@pytest.mark.parametrize("kind", ["unigram", "json"])
def test_a_training_with_another_tokenizer_resumes_bit_by_bit_and_translates(model, kind, tmp_path):
    path = tokenizers_file(tmp_path) if kind == "json" else sentencepiece_model(tmp_path, kind)
    settings = {"model": model, "tokenizer": path, "updates": 3, "average": 1}
    small_train(tmp_path / "whole", **settings)
    small_train(tmp_path / "parts", stop=2, **settings)
    small_train(tmp_path / "parts", **settings)
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    tokenizer = read_tokenizer(path)
    names = ("pad_token_id", "eos_token_id", "bos_token_id")
    assert [config[name] for name in names] == [getattr(tokenizer, name) for name in names]
    assert config["vocab_size"] == len(tokenizer)
    assert len(translate(tmp_path / "whole", ["a b"], beams=2)) == 1


def test_words_are_tokens(tmp_path):
    tokenizer = train_words(LINES, 300)
    assert tokenizer.tokenize("the cat don't sat, 3.5") == ["▁the", "▁cat", "▁don't", "▁sat", ",", "▁3.5"]
    assert tokenizer("unseen cat").input_ids[0] == tokenizer.unk_token_id
    text = "the dogs don't run, they walk"
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text
    assert len(train_words(LINES, 10)) == 10  # the most frequent
    assert "▁the" in train_words(LINES, 10).get_vocab()
    with small_training(tmp_path / "run", tokens="words") as training:
        assert set(training.data.tokenizer.get_vocab()) >= {"▁a", "▁A"}


def test_settings_of_learned_tokens_are_rejected_with_a_tokenizer(tmp_path):
    for wrong in ({"lowercase": True}, {"tokens": "words"}, {"bpe_dropout": 0.1}):
        with pytest.raises(AttnscopeError, match="leave"):
            read_config(source=tmp_path, target=tmp_path, tokenizer=tmp_path / "x.model", **wrong)
    with pytest.raises(AttnscopeError, match=r"cannot read the tokenizer .*none.model"):
        read_tokenizer(tmp_path / "none.model")


def test_init_begins_with_the_weights_and_tokens_of_another_training(tmp_path):
    first = tmp_path / "first"
    small_train(first, updates=2, average=1)
    weights = load_file(first / "model.safetensors")
    with small_training(tmp_path / "second", init=first) as training:
        named = dict(training.model.named_parameters())
        assert all(torch.equal(named[name].cpu(), weights[name]) for name in weights)
        assert training.data.tokenizer.get_vocab() == read_tokenizer(first).get_vocab()
    checkpoint = first / "checkpoints" / "00000001"
    with small_training(tmp_path / "third", init=checkpoint) as training:
        expected = load_file(checkpoint / "model.safetensors")
        assert torch.equal(
            dict(training.model.named_parameters())["embedding.weight"].cpu(), expected["embedding.weight"]
        )


def test_a_training_with_init_resumes_bit_by_bit_and_names_its_beginning(tmp_path):
    first = tmp_path / "first"
    small_train(first, updates=2, average=1)
    settings = {"init": first, "updates": 3, "average": 1}
    small_train(tmp_path / "whole", **settings)
    small_train(tmp_path / "parts", stop=2, **settings)
    small_train(tmp_path / "parts", **settings)
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    begun = hashlib.sha256((first / "model.safetensors").read_bytes()).hexdigest()
    for name in ("whole", "parts"):
        signature = OwnedFolder(tmp_path / name, "train").look().state["signature"]
        assert signature["model"]["init_sha256"] == begun


def test_weights_of_other_sizes_are_named(tmp_path):
    small_train(tmp_path / "first", updates=1)
    with (
        pytest.raises(AttnscopeError, match=r"does not fit the model: .* is \(.*\) there and \(.*\) here"),
        small_training(tmp_path / "second", init=tmp_path / "first", width=16),
    ):
        pass
    with (
        pytest.raises(AttnscopeError, match=r"has no model.safetensors; expected the folder"),
        small_training(tmp_path / "third", init=tmp_path, tokenizer=tmp_path / "first"),
    ):
        pass
