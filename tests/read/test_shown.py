"""What is shown of tokens: where words begin, and which characters are split."""

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from attnscope.bundled import MODEL
from attnscope.read.shown import IdNames, split_character
from attnscope.read.texts import Corpus
from attnscope.read.windows import Windows
from attnscope.results.figures.style import drawable
from attnscope_lineage.steps import visible
from tests.read.test_windows import TOKENIZERS, byte_level, stored, unigram, word_piece

SENTENCE = "How attention turned the boats: 猫が好き 🌊 at the harbour."


def byte_fallback():
    """As in Llama 2: a space before the text and after every special token, bytes for what is not in the vocabulary."""
    pieces = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    pieces.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(special_tokens=special, vocab_size=300, show_progress=False)
    # words alone, so that no token reaches over a space
    pieces.train_from_iterator(["the harbour", "the boats", "turned"], trainer)
    pieces.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=pieces, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def sentence_piece():
    """Byte pairs with a mark for each space, and no bytes."""
    pieces = Tokenizer(models.BPE(unk_token="<unk>"))
    pieces.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=["<unk>", "<s>"], show_progress=False)
    pieces.train_from_iterator(["How the boats turned", "the harbour at the boats"], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=pieces, unk_token="<unk>", bos_token="<s>")


MAKERS = {
    "byte-level": byte_level,
    "roberta": TOKENIZERS["roberta"],
    "prefix-space": TOKENIZERS["prefix-space"],
    "word-piece": word_piece,
    "unigram": unigram,
    "sentence-piece": sentence_piece,
    "byte-fallback": byte_fallback,
    "bundled": lambda: AutoTokenizer.from_pretrained(MODEL),
}


@pytest.fixture(params=MAKERS)
def tokenizer(request):
    return MAKERS[request.param]()


def shown(tokenizer, text):
    """What is shown of a text, special tokens around it left out."""
    [window] = Windows(Corpus.from_sources([text]), tokenizer, length=1000)
    around = zip(window.tokens, window.special, window.spans, strict=True)
    return [token for token, special, (start, end) in around if not (special and start == end)]


def without_numbers(tokens):
    """The tokens put together again, each split character once."""
    text = "".join(token for token in tokens if token[-1:] not in set("₂₃₄"))
    return text.replace("₁", "")


def test_the_tokens_of_a_text_read_as_the_text(tokenizer):
    """With every tokenizer spaces stand where words begin, and nowhere else; one may be put before the first."""
    assert without_numbers(shown(tokenizer, SENTENCE)).removeprefix(" ") == SENTENCE


@pytest.mark.parametrize(
    "text",
    [
        " the harbour turned",
        "  the harbour",
        "the <unk> harbour, <unk> 猫 at <unk>",
        "the <s> harbour",
        "<unk> the harbour",
        "line\n the harbour",
    ],
)
def test_a_space_is_no_split_character(tokenizer, text):
    """A tokenizer that puts a space before a text that begins with one, or behind a special token, splits nothing."""
    tokens = shown(tokenizer, text)
    assert not [token for token in tokens if set(token) & set("₁₂₃₄") and "猫" not in token]
    assert "".join(without_numbers(tokens).split()) == "".join(text.split())


DECODERS = {
    "unigram": decoders.Metaspace(),
    "sentence-piece": decoders.Metaspace(),
    "byte-fallback": decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ),
}


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "word-piece"])
def test_token_ids_are_shown_as_their_text_is(name):
    """All but unknown tokens, which have no text of their own."""
    tokenizer = MAKERS[name]()
    if name in DECODERS:
        tokenizer.backend_tokenizer.decoder = DECODERS[name]
    [window] = Windows(Corpus.from_sources([SENTENCE]), tokenizer, length=1000)
    found = IdNames(tokenizer).of(window.ids)
    known = [i for i, token in enumerate(window.ids) if token != tokenizer.unk_token_id]
    assert [found[i] for i in known] == [window.tokens[i] for i in known]


def test_token_ids_of_word_pieces_are_shown_with_their_marks():
    tokenizer = word_piece()
    ids = tokenizer("the tide 猫")["input_ids"]
    assert IdNames(tokenizer).of(ids) == ("[CLS]", "the", "ti", "##de", "[UNK]", "[SEP]")


def test_a_character_that_ids_leave_unfinished_is_shown_by_its_byte():
    tokenizer = byte_level()
    ids = tokenizer("猫")["input_ids"][:2]
    names = IdNames(tokenizer).of(ids)
    assert "".join(names).strip() == "".join(f"<0x{byte:02X}>" for byte in "猫".encode())[: 6 * len(ids)]


@pytest.mark.parametrize(
    ("tokens", "pieces"),
    [
        (["a", "猫₁", "猫₂", "猫₃", "が₁"], ("猫₁", "猫₂", "猫₃")),
        ([" 猫₁", "猫₂"], ("猫₁", "猫₂")),
        (["a 猫₁", "猫₂"], ("猫₁", "猫₂")),
        (["猫₃", "が₁", "が₂"], ("が₁", "が₂")),
        (["H₂O", "x₁", "y₂"], ()),
        (["x₁"], ()),
        ([], ()),
    ],
)
def test_which_character_is_split(tokens, pieces):
    assert split_character(tokens) == pieces


@pytest.mark.parametrize("show", [drawable, visible])
def test_spaces_are_marked_wherever_tokens_are_shown(show):
    assert [show(token) for token in (" the", "the ", " ", "      ", "a b", "the")] == [
        *("␣the", "the␣", "␣", "␣␣␣␣", "a b", "the")
    ]
    assert show("\u3000") == "U+3000"


def test_a_piece_of_a_character_before_a_special_token_is_a_token_of_its_own():
    tokenizer = stored("stories260K-llama")
    ids = tokenizer.convert_tokens_to_ids(["<0xE3>", "</s>", "t", "<0xE3>", "<0x82>", "<0xA2>", "<0xE3>"])
    assert IdNames(tokenizer).of(ids) == ("<0xE3>", "</s>", "t", "ア₁", "ア₂", "ア₃", "<0xE3>")


def test_a_token_that_only_the_model_has_is_shown_by_its_number(tokenizer):
    """Qwen2's model has 271 tokens more than its tokenizer, and an untrained one generates them."""
    last = len(tokenizer) - 1
    assert IdNames(tokenizer).of([last + 5, last + 6]) == (f"<{last + 5}>", f"<{last + 6}>")
