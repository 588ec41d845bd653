"""Windows hold the text's tokens, in order, each with the characters it stands for."""
# ruff: noqa: S105

import os
import random
from itertools import pairwise
from pathlib import Path
from unicodedata import category

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from attnscope.read import shown as _tokens
from attnscope.read.texts import Corpus
from attnscope.read.windows import Windows, collate
from attnscope.support.errors import AttnscopeError

MODELS = Path(os.environ.get("ATTNSCOPE_MODELS", Path(__file__).parents[2] / "../shared/models"))
SENTENCES = [
    "The harbour lay still, and the boats lay in the harbour.",
    "When the tide turned the boats turned with it.\nThe gulls cried over the harbour wall.",
]
WORDS = ["the", "harbour", "turned,", "still.", "it's", "12", "港", "語", "café", "e\u0301", "🌊", "👩\u200d👧"]
MIXED = "語 と 🌊 and 👩\u200d👩\u200d👧 cafe\u0301"


def byte_level(*, special=False, trim=False, prefix_space=False):
    """As in GPT-2 or, with special tokens and trimmed offsets, RoBERTa."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(SENTENCES, trainer)
    bpe.post_processor = processors.ByteLevel(trim_offsets=trim)
    if special:
        bpe.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), trim, prefix_space)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def word_piece():
    """As in BERT."""
    pieces = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    pieces.normalizer = normalizers.BertNormalizer()
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=80, special_tokens=special, show_progress=False)
    pieces.train_from_iterator(SENTENCES, trainer)
    pieces.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def unigram():
    """As in T5: a mark for each space, and an end token only."""
    pieces = Tokenizer(models.Unigram())
    pieces.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=60, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    pieces.train_from_iterator(SENTENCES, trainer)
    pieces.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=pieces, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def stored(name):
    if not (MODELS / name).is_dir():
        pytest.skip(f"no {name} in {MODELS}: set ATTNSCOPE_MODELS to the folder of models")
    return AutoTokenizer.from_pretrained(MODELS / name)


TOKENIZERS = {
    "byte-level": byte_level,
    "roberta": lambda: byte_level(special=True, trim=True),
    "prefix-space": lambda: byte_level(special=True, trim=True, prefix_space=True),
    "word-piece": word_piece,
    "unigram": unigram,
    "stories260K-llama": lambda: stored("stories260K-llama"),
    "rxnmapper-albert": lambda: stored("rxnmapper-albert"),
}
AROUND = {
    "byte-level": (0, 0),
    "roberta": (1, 1),
    "prefix-space": (1, 1),
    "word-piece": (1, 1),
    "unigram": (0, 1),
    "stories260K-llama": (1, 0),
    "rxnmapper-albert": (1, 1),
}


@pytest.fixture(params=TOKENIZERS, scope="module")
def named_tokenizer(request):
    return request.param, TOKENIZERS[request.param]()


@pytest.fixture
def tokenizer(named_tokenizer):
    return named_tokenizer[1]


def windows_of(tokenizer, *sources, length=10_000, **options):
    return list(Windows(Corpus.from_sources(sources), tokenizer, length=length, **options))


def some_text(seed, words=300):
    """Words of several scripts with every kind of white space between them."""
    pick = random.Random(seed)
    gaps = [" "] * 12 + ["  ", "\n", "\r\n", "\n\n", "\n    ", "\n\u3000", "\t", " \n", "\r", "\n\n\n \n"]
    return "".join(pick.choice(WORDS) + pick.choice(gaps) for _ in range(words))


def letters(count):
    """A text of `count` tokens for a tokenizer without merges over tildes."""
    return "~" * count


def test_one_window_is_what_the_tokenizer_returns(named_tokenizer):
    name, tokenizer = named_tokenizer
    text = some_text(0)
    encoded = tokenizer(text, return_offsets_mapping=True, verbose=False)
    [window] = windows_of(tokenizer, text)
    assert list(window.ids) == encoded["input_ids"]
    assert (window.source, window.start) == ("text 1", 0)
    if name == "byte-level":  # whose offsets need no correction
        assert list(window.spans) == encoded["offset_mapping"]


def test_the_special_tokens_around_a_window(named_tokenizer):
    name, tokenizer = named_tokenizer
    before, after = AROUND[name]
    for window in windows_of(tokenizer, some_text(1), length=12):
        content = len(window) - before - after
        assert window.special == (*[True] * before, *[False] * content, *[True] * after)
        ends = [i for i, special in enumerate(window.special) if special]
        assert all(window.spans[i] == (window.start, window.start) for i in ends)
        assert all(window.tokens[i] in {"<s>", "</s>", "[CLS]", "[SEP]"} for i in ends)


def test_windows_put_together_are_the_text(tokenizer):
    text = some_text(2)
    [whole] = windows_of(tokenizer, text)
    parts = list(Windows(Corpus.from_sources([text]), tokenizer, length=23))
    for what in ("ids", "spans", "tokens"):
        joined = [
            item
            for window in parts
            for item, special in zip(getattr(window, what), window.special, strict=True)
            if not special
        ]
        expected = [item for item, special in zip(getattr(whole, what), whole.special, strict=True) if not special]
        assert joined == expected[: len(joined)]
        assert len(expected) - len(joined) < 23 / 2  # what is no half of a window is left out
    assert all(len(window) == 23 for window in parts[:-1])


def test_spans_cover_the_text(named_tokenizer):
    name, tokenizer = named_tokenizer
    text = some_text(3)
    [window] = windows_of(tokenizer, text)
    covered = {place for start, end in window.spans for place in range(start, end)}
    left = {text[place] for place in range(len(text)) if place not in covered}
    if name in {"byte-level", "stories260K-llama", "unigram"}:
        assert not left
    else:  # WordPiece strips accents and joiners besides
        assert all(character.isspace() or category(character) in {"Mn", "Cf"} for character in left)
    starts = [start for (start, _), special in zip(window.spans, window.special, strict=True) if not special]
    assert all(a <= b for a, b in pairwise(starts))


@pytest.mark.parametrize(
    ("count", "length", "stride", "sizes"),
    [
        (1, 8, None, [1]),
        (8, 8, None, [8]),
        (11, 8, None, [8]),
        (12, 8, None, [8, 4]),
        (17, 8, None, [8, 8]),
        (10, 7, None, [7]),
        (17, 8, 4, [8, 8, 8, 5]),
        (9, 8, 8, [8]),
        (9, 8, 4, [8, 5]),
        (10, 8, 1, [8, 8, 8]),
        (3, 1, None, [1, 1, 1]),
    ],
)
@pytest.mark.parametrize("special", [False, True])
def test_how_many_windows(count, length, stride, sizes, special):
    added = 2 * special
    tokenizer = byte_level(special=special)
    windows = Windows(Corpus.from_sources([letters(count)]), tokenizer, length=length + added, stride=stride)
    found = list(windows)
    assert [len(window) - added for window in found] == sizes
    assert [window.start for window in found] == [i * (stride or length) for i in range(len(sizes))]
    assert list(windows) == found


def test_short_ends_are_left_out_of_each_text():
    windows = Windows(Corpus.from_sources([letters(9), letters(3), letters(18)]), byte_level(), length=8)
    assert [(len(window), window.source) for window in windows] == [
        (8, "text 1"),
        (3, "text 2"),
        (8, "text 3"),
        (8, "text 3"),
    ]


def test_limit_takes_the_first_windows_and_tokenizes_one_piece_of_a_long_text(monkeypatch):
    tokenizer = byte_level()
    sources = [letters(16), letters(20)]
    assert windows_of(tokenizer, *sources, length=8, limit=3) == windows_of(tokenizer, *sources, length=8)[:3]
    sizes = []
    one = _tokens._tokenize_piece
    monkeypatch.setattr(_tokens, "_tokenize_piece", lambda t, text, at: sizes.append(len(text)) or one(t, text, at))
    windows_of(tokenizer, "the harbour\n" * 30_000, length=64, limit=3)
    assert len(sizes) == 1
    assert 100_000 <= sizes[0] < 101_000


def test_parts_of_characters_are_numbered_also_over_a_window_bound():
    [window] = windows_of(byte_level(), "x語🌊")
    assert window.tokens == ("x", "語₁", "語₂", "語₃", "🌊₁", "🌊₂", "🌊₃", "🌊₄")
    assert window.spans == ((0, 1), *[(1, 2)] * 3, *[(2, 3)] * 4)
    windows = windows_of(byte_level(), "語語", length=2)
    assert [window.tokens for window in windows] == [("語₁", "語₂"), ("語₃", "語₁"), ("語₂", "語₃")]
    assert [window.start for window in windows] == [0, 0, 1]


def test_no_rubble_is_shown(tokenizer):
    [window] = windows_of(tokenizer, MIXED)
    shown = "".join(token for token, special in zip(window.tokens, window.special, strict=True) if not special)
    assert set(shown) <= set(MIXED) | set("◌₁₂₃₄₅₆₇₈₉")
    assert {character for character in MIXED if category(character) in {"Ll", "Lo", "So"}} <= set(shown)


def test_a_character_and_part_of_the_next_in_one_token():
    merged = Tokenizer(models.BPE(vocab={"Ġ": 0, "è": 1, "ª": 2, "ŀ": 3, "Ġè": 4}, merges=[("Ġ", "è")]))
    merged.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    merged.add_tokens(["a A 1"])  # which is asked for special tokens around it
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=merged, unk_token="è")
    [window] = windows_of(tokenizer, " 語")
    assert window.tokens == (" 語₁", "語₂", "語₃")


def test_spaces_that_the_tokenizer_puts_in_or_cuts_off_are_shown_as_spaces():
    prefixed = windows_of(TOKENIZERS["prefix-space"](), "語  x")[0]
    assert prefixed.tokens == ("<s>", " ", "語₁", "語₂", "語₃", " ", " ", "x", "</s>")
    llama = windows_of(stored("stories260K-llama"), "語 x")[0]
    assert llama.tokens == ("<s>", " ", "語₁", "語₂", "語₃", " ", "x")
    assert llama.spans[1] == (0, 0)
    assert llama.spans[2] == (0, 1)


def test_a_space_mark_that_is_in_the_text_is_text():
    [window] = windows_of(word_piece(), "▁ the")
    assert window.tokens == ("[CLS]", "▁", " the", "[SEP]")


def test_offsets_in_a_file_count_from_after_the_byte_order_mark(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfthe\r\nharbour")
    [window] = windows_of(word_piece(), tmp_path)
    assert window.tokens[1] == "the"
    assert window.spans[1] == (0, 3)
    assert window.spans[2][0] == 5
    assert window.source == "a.txt"


def test_special_tokens_written_in_the_text_are_special_and_unknown_ones_are_not():
    [window] = windows_of(word_piece(), "the [SEP] 語 [MASK]")
    assert window.tokens == ("[CLS]", "the", "[SEP]", " 語", "[MASK]", "[SEP]")
    assert window.special == (True, False, True, False, False, True)
    assert window.ids[3] == 1


def test_a_padding_token_that_is_the_unknown_token_is_not_special():
    tokenizer = word_piece()
    tokenizer.pad_token = "[UNK]"
    [window] = windows_of(tokenizer, "the 語")
    assert window.special == (True, False, False, True)


def test_texts_without_tokens_are_passed_over():
    windows = windows_of(word_piece(), " ", "\x07", "the", "\n")
    assert [window.source for window in windows] == ["text 3"]


def test_pieces_of_a_long_text_give_the_tokens_of_the_whole(tokenizer, monkeypatch):
    text = some_text(0)
    [whole] = windows_of(tokenizer, text)
    monkeypatch.setattr(_tokens, "PIECE", 50)
    monkeypatch.setattr(_tokens, "MARGIN", 64)
    assert windows_of(tokenizer, text) == [whole]


@pytest.mark.parametrize(
    "text",
    ["a text without line breaks " * 40, "the" * 400, "\n" * 500 + "the", "\n" * 300 + "thethe", "\n \n" * 99 + "the"],
)
@pytest.mark.parametrize(("piece", "longest", "margin"), [(10, _tokens.LONGEST, _tokens.MARGIN), (100, 300, 60)])
def test_pieces_of_long_lines_and_of_white_space_give_the_tokens_of_the_whole(
    text, piece, longest, margin, monkeypatch
):
    tokenizer = byte_level()
    [whole] = windows_of(tokenizer, text)
    for name, value in (("PIECE", piece), ("LONGEST", longest), ("MARGIN", margin)):
        monkeypatch.setattr(_tokens, name, value)
    sizes = []
    tokenize = _tokens._tokenize_piece
    monkeypatch.setattr(_tokens, "_tokenize_piece", lambda t, s, o: sizes.append(len(s)) or tokenize(t, s, o))
    assert windows_of(tokenizer, text) == [whole]
    assert max(sizes) <= longest + 2 * margin


def mute():
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))


def panicking():
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.FixedLength(0)
    return tokenizer


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: windows_of(word_piece(), "the", length=2), r"is 2; expected 3 or more, as .* adds 2 special"),
        (lambda: windows_of(word_piece(), "the", length=8, stride=0), "found stride 0; expected 1 to 6"),
        (lambda: windows_of(mute(), "the", length=8), 'returns no token for "a A 1"'),
        (lambda: windows_of(word_piece(), "\x07\x08"), "found no window: the tokenizer returns no token"),
        (lambda: next(_tokens.tokenize(panicking(), "the")), "chunk size must be non-zero"),
        (lambda: collate([], pad_id=0), "found no window"),
    ],
)
def test_what_gives_no_window_is_rejected(call, message):
    with pytest.raises(AttnscopeError, match=message):
        call()


def test_a_tokenizer_that_pads_and_truncates_by_itself_is_not_let():
    tokenizer = word_piece()
    tokenizer.backend_tokenizer.enable_truncation(3)
    tokenizer.backend_tokenizer.enable_padding(length=50)
    [window] = windows_of(tokenizer, "the harbour the harbour")
    assert window.tokens == ("[CLS]", "the", " harbour", " the", " harbour", "[SEP]")


def test_collate_pads_on_the_right():
    long, short = windows_of(word_piece(), "the harbour the", "the")
    batch = collate([long, short], pad_id=0)
    assert batch.input_ids.dtype == torch.int64
    assert batch.input_ids.tolist() == [list(long.ids), [*short.ids, 0, 0]]
    assert batch.valid.tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    assert batch.special.tolist() == [[True, False, False, False, True], [True, False, True, False, False]]
    assert torch.equal(batch.arguments(torch.float32)["attention_mask"], batch.valid.long())
