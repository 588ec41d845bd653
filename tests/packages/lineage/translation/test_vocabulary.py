"""Subwords: nothing is unknown, nothing is lost, and the same texts give the same file."""

import pytest
from transformers import AutoTokenizer

from attnscope.support.errors import AttnscopeError
from attnscope_lineage.data import encode_lines, train_subwords

TEXTS = [
    "A man in a blue shirt is standing on a ladder cleaning a window.",
    "Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster.",
    "青いシャツの男が梯子の上で窓を拭いている。",
    "青いシャツの女が窓の前で本を読んでいる。",
] * 5

HARD = [
    "A man.",
    "don't (T-shirt)  two   spaces, 3.5% and 1,000...",
    "🦊 été naïve \t tab",
    "窓を拭いている？",
    "<s> </s> <unk> <pad> <0x41> a<mask>b",
    "e\u0301 \u200d \ufffd \x00",
    "trailing ",
    "",
    "Ω≈ç√∫",
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_subwords(TEXTS, 400)


def test_special_tokens_have_fixed_ids(tokenizer):
    assert tokenizer.convert_ids_to_tokens(range(5)) == ["<pad>", "<s>", "</s>", "<unk>", "<0x00>"]
    masked = train_subwords(TEXTS, 400, masked=True)
    assert masked.convert_ids_to_tokens(range(6)) == ["<pad>", "<s>", "</s>", "<unk>", "<mask>", "<0x00>"]
    assert len(tokenizer) == len(masked) == 400


@pytest.mark.parametrize("text", HARD)
def test_text_is_given_back_and_nothing_is_unknown(tokenizer, text):
    ids = encode_lines(tokenizer, [text])[0]
    assert ids[-1] == tokenizer.eos_token_id
    assert not {0, 1, 2, 3} & set(ids[:-1])
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("don't.", ["▁don't", "."]),
        ("a T-shirt,", ["▁a", "▁T-shirt", ","]),
        ("3.5% of 1,000 .", ["▁3.5", "%", "▁of", "▁1,000", "▁."]),
        ("犬(猫)。", ["▁犬", "(", "猫", ")", "。"]),
        ("i 'm", ["▁i", "▁'", "m"]),
    ],
)
def test_pieces_end_at_spaces_and_punctuation(text, pieces):
    assert train_subwords([text] * 50, 400, coverage=1.0).tokenize(text) == pieces


def test_saved_and_loaded_it_is_the_same(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert encode_lines(loaded, HARD) == encode_lines(tokenizer, HARD)
    assert (loaded.pad_token_id, loaded.bos_token_id, loaded.eos_token_id) == (0, 1, 2)
    assert loaded.model_input_names == ["input_ids", "attention_mask"]
    for text in HARD:
        assert loaded.decode(loaded(text)["input_ids"], skip_special_tokens=True) == text


@pytest.mark.parametrize(
    ("texts", "size", "options", "message"),
    [
        ([], 500, {}, "no characters to learn"),
        ([" ", ""], 500, {}, "no characters to learn"),
        (["abc"], 263, {}, "263 tokens for 4 characters; expected at least 264"),
    ],
)
def test_errors_name_what_is_wrong(texts, size, options, message):
    with pytest.raises(AttnscopeError, match=message):
        train_subwords(texts, size, **options)
