"""Tokenizers that are written in Python, and give no character offsets: their texts are measured all the same."""

import json

import numpy as np
import pytest
import sentencepiece
import torch
import transformers
from transformers import AutoTokenizer

import attnscope
import attnscope_lineage
from attnscope import AttnscopeError
from attnscope.read.shown import tokenize
from attnscope.read.texts import Corpus
from attnscope.read.windows import LinePairs, Windows
from attnscope.report.signature import tokenizer_sha256

TEXTS = ["The tide comes in twice a day.", "Bread rises because yeast breathes out."]


def subwords(folder, size=40):
    """A SentencePiece model of the texts, and its vocabulary."""
    prefix = str(folder / "spm")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_prefix=prefix, vocab_size=size, hard_vocab_limit=False, minloglevel=9
    )
    model = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
    return f"{prefix}.model", [model.id_to_piece(number) for number in range(len(model))]


def vocabulary(folder, words):
    path = folder / "vocab.json"
    path.write_text(json.dumps({word: number for number, word in enumerate(dict.fromkeys(words))}))
    return path


def marian(folder):
    model, names = subwords(folder)
    vocab = vocabulary(folder, ["</s>", "<unk>", *names, "<pad>"])
    return transformers.MarianTokenizer(source_spm=model, target_spm=model, vocab=str(vocab), model_max_length=64)


def m2m_100(folder):
    model, names = subwords(folder)
    vocab = vocabulary(folder, ["<s>", "<pad>", "</s>", "<unk>", *names])
    return transformers.M2M100Tokenizer(str(vocab), model, src_lang="en", tgt_lang="de")


def esm(folder):
    (folder / "vocab.txt").write_text(
        "\n".join(["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWC", "<mask>"])
    )
    return transformers.EsmTokenizer(folder / "vocab.txt")


def biogpt(folder):
    letters = sorted({letter for text in TEXTS for letter in text if not letter.isspace()})
    words = [f"{letter}{end}" for letter in letters for end in ("", "</w>")]
    vocab = vocabulary(folder, ["<s>", "<pad>", "</s>", "<unk>", *words, "th", "the</w>"])
    (folder / "merges.txt").write_text("#version: 0.2\nt h 1\nth e</w> 1\n")
    return transformers.BioGptTokenizer(str(vocab), str(folder / "merges.txt"))


def bert_japanese(folder):
    letters = sorted({letter for text in TEXTS for letter in text.lower() if not letter.isspace()})
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    (folder / "vocab.txt").write_text("\n".join([*words, "tide", "##mes"]))
    return transformers.BertJapaneseTokenizer(
        str(folder / "vocab.txt"), word_tokenizer_type="basic", subword_tokenizer_type="wordpiece", do_lower_case=True
    )


class Letters(transformers.PreTrainedTokenizer):
    """A user's own class, without files."""

    def __init__(self, letters="abcdefghijklmnopqrstuvwxyz.", **settings):
        self.letters = ["<pad>", "<unk>", *letters]
        super().__init__(pad_token="<pad>", unk_token="<unk>", **settings)

    @property
    def vocab_size(self):
        return len(self.letters)

    def get_vocab(self):
        return {letter: number for number, letter in enumerate(self.letters)} | self.added_tokens_encoder

    def _tokenize(self, text):
        return list(text.lower().replace(" ", ""))

    def _convert_token_to_id(self, token):
        return self.letters.index(token) if token in self.letters else 1

    def _convert_id_to_token(self, index):
        return self.letters[index]


BUILD = {
    "byt5": lambda _: transformers.ByT5Tokenizer(),
    "canine": lambda _: transformers.CanineTokenizer(),
    "esm": esm,
    "marian": marian,
    "m2m_100": m2m_100,
    "biogpt": biogpt,
    "bert-japanese": bert_japanese,
}  # fmt: skip


@pytest.fixture(params=BUILD)
def tokenizer(request, tmp_path):
    built = BUILD[request.param](tmp_path)
    assert not built.is_fast
    return built


def test_tokens_are_those_of_the_tokenizer_and_cover_the_text(tokenizer):
    text = "MKT AYI" if isinstance(tokenizer, transformers.EsmTokenizer) else " ".join(TEXTS)
    (tokens,) = tokenize(tokenizer, text)
    assert tokens.ids == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokens.is_aligned
    pieces = [text[start:end] for start, end in dict.fromkeys(tokens.spans)]
    assert "".join(pieces).replace(" ", "") == text.replace(" ", "")
    assert all(piece.rstrip() in {"", piece} for piece in pieces)  # no token takes the space behind it
    (window,) = Windows(Corpus.from_sources([text]), tokenizer, length=400)
    assert list(window.ids) == tokenizer(text)["input_ids"]
    assert sum(window.special) == len(window) - len(tokens)


@pytest.mark.parametrize("name", [*(name for name in BUILD if name != "canine"), "own"])  # which has a million tokens
def test_a_tokenizer_is_signed_by_what_decides_its_output(name, tmp_path):
    build = (lambda _: Letters()) if name == "own" else BUILD[name]
    first, again = build(tmp_path), build(tmp_path)
    assert tokenizer_sha256(first) == tokenizer_sha256(again)
    again.add_tokens(["tide"])
    assert tokenizer_sha256(first) != tokenizer_sha256(again)
    if name == "own":
        assert tokenizer_sha256(first) != tokenizer_sha256(Letters("zyx"))
    if name in {"own", "esm"}:
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        model = transformers.BertModel(transformers.BertConfig(vocab_size=len(first), **sizes)).eval()
        model.set_attn_implementation("eager")
        ids = torch.tensor([first("MKT AYI").input_ids])
        weights = model(ids, output_attentions=True).attentions[0].detach()
        found = attnscope.scan(model, ["MKT AYI"], tokenizer=first).entropy
        np.testing.assert_allclose(found[0], torch.special.entr(weights).sum(-1).mean(-1), atol=1e-5)


def test_a_folder_of_marian_is_scanned_as_eager_attention_has_it(tmp_path):
    tokenizer = marian(tmp_path)
    torch.manual_seed(0)
    size = len(tokenizer)
    config = transformers.MarianConfig(
        vocab_size=size, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=64,
        pad_token_id=size - 1, decoder_start_token_id=size - 1, eos_token_id=0, forced_eos_token_id=0,
    )  # fmt: skip
    model = transformers.MarianMTModel(config).eval()
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    text, target = TEXTS
    read, said = tokenizer(text, return_tensors="pt"), tokenizer(text_target=target, return_tensors="pt").input_ids
    model.set_attn_implementation("eager")
    start = torch.full((1, 1), size - 1)
    eager = model(**read, decoder_input_ids=torch.cat([start, said[:, :-1]], 1), output_attentions=True)
    own = [*eager.encoder_attentions, *eager.decoder_attentions, *eager.cross_attentions]
    for layer, weights in enumerate(own):
        found = attnscope.weights(folder, text, targets=target, layer=layer, device="cpu")
        np.testing.assert_allclose(found, weights[0].detach(), atol=1e-6)
    assert AutoTokenizer.from_pretrained(folder).is_fast is False
    by_words = attnscope.scan(folder, TEXTS, words="space", device="cpu")
    assert by_words.length.values.tolist() == [len(text.split()) + 1 for text in TEXTS]


def test_words_are_rejected_where_no_character_is_known(tmp_path):
    tokenizer = biogpt(tmp_path)
    text = "The tide & the day."  # Moses writes the sign as an entity, which is cut into letters
    assert not any(tokens.is_aligned for tokens in tokenize(tokenizer, text))
    config = transformers.BioGptConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    model = transformers.BioGptModel(config)
    found = attnscope.scan(model, [text], tokenizer=tokenizer)
    as_ids = attnscope.scan(model, [tokenizer(text)["input_ids"]], tokenizer=tokenizer)
    np.testing.assert_array_equal(found.band_sum, as_ids.band_sum)
    with pytest.raises(AttnscopeError, match="characters of its tokens are unknown"):
        attnscope.scan(model, [text], tokenizer=tokenizer, words="space")


def small_m2m_100():
    torch.manual_seed(0)
    config = transformers.M2M100Config(
        vocab_size=200, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, pad_token_id=1, decoder_start_token_id=2,
    )  # fmt: skip
    return transformers.M2M100ForConditionalGeneration(config).eval()


def test_a_translation_is_into_the_language_that_is_named(tmp_path):
    tokenizer, model = m2m_100(tmp_path), small_m2m_100()
    made = attnscope_lineage.translate(model, TEXTS[:1], tokenizer=tokenizer, beams=1, target_language="fr")
    ids = tokenizer(TEXTS[0], return_tensors="pt").input_ids
    forced = model.generate(ids, max_new_tokens=2 * ids.shape[1] + 20, forced_bos_token_id=tokenizer.get_lang_id("fr"))
    assert made.texts == [" ".join(tokenizer.decode(forced[0], skip_special_tokens=True).split("\n")).strip()]
    assert json.loads(made.signature)["settings"]["target_language"] == "fr"
    with pytest.raises(AttnscopeError, match="cannot translate into 'klingon'"):
        attnscope_lineage.translate(model, TEXTS[:1], tokenizer=tokenizer, target_language="klingon")


@pytest.mark.parametrize("given", ["dict", "tokenizer", "forced"])
def test_a_target_begins_with_its_language(tmp_path, given):
    tokenizer = m2m_100(tmp_path)
    model = small_m2m_100()
    text, target = TEXTS
    targets = {"fr": target} if given == "dict" else target
    tokenizer.tgt_lang = "fr" if given == "tokenizer" else None if given == "forced" else "de"
    model.generation_config.forced_bos_token_id = tokenizer.get_lang_id("fr") if given == "forced" else None
    found = attnscope.weights(model, text, targets=targets, layer=1, tokenizer=tokenizer)
    said = tokenizer(text, return_tensors="pt")
    read = torch.tensor([[2, tokenizer.get_lang_id("fr"), *tokenizer(target, add_special_tokens=False).input_ids]])
    model.set_attn_implementation("eager")
    eager = model(**said, decoder_input_ids=read, output_attentions=True).decoder_attentions[0]
    np.testing.assert_allclose(found, eager[0].detach(), atol=1e-6)


def test_a_language_that_is_not_known_is_named(tmp_path):
    tokenizer = m2m_100(tmp_path)
    tokenizer.tgt_lang = None
    texts = Corpus.from_sources(TEXTS)
    with pytest.raises(AttnscopeError, match="needs the language of translations: use targets="):
        list(LinePairs(texts, texts, tokenizer, lambda _: 2, length=64))
    texts.language = "klingon"
    with pytest.raises(AttnscopeError, match="cannot translate into 'klingon'"):
        list(LinePairs(texts, texts, tokenizer, lambda _: 2, length=64))
    with pytest.raises(AttnscopeError, match="has no languages"):
        list(LinePairs(texts, texts, transformers.ByT5Tokenizer(), lambda _: 2, length=64))
