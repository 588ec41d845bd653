"""Statistics from word to word, held against eager attention merged by hand."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import attnscope
from attnscope import AttnscopeError, measure_weights
from attnscope.bundled import MODEL
from attnscope.capture.forward import decoder_start
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.full import attend_in_full
from attnscope.measure.sample import merge_call
from attnscope.read.encoded import texts_of, windows_of
from attnscope.read.words import WordedWindows, in_words, word_rule_of
from attnscope.store.runs import RunFolder
from tests.measure.test_groups import CALLS, RIGHT, N
from tests.packages.lineage.translation.small_translators import small_model, small_tokenizer
from tests.tiny_models import tiny_reader

TEXTS = [
    "The unhurried tide comes in twice a day, disappearing beneath muddy flats.",
    "A lamplighter.",
    "Ships, 3 of them, wait!",
]
NAMES = ["entropy", "first_token", "special_tokens", "mean_offset", "offset_spread", "max_weight", "gini_simpson"]


def by_hand(weights, queries, keys):
    """Mean over the tokens of a word that look anywhere, sum over those of the other: ``(head, word, word)``."""
    weights = weights.double().numpy()
    found = np.zeros((len(weights), max(queries) + 1, max(keys) + 1))
    for head, i, j in np.ndindex(found.shape):
        block = weights[head][np.array(queries) == i]
        looking = block[block.sum(1) > 0]
        found[head, i, j] = looking[:, np.array(keys) == j].sum(1).mean() if len(looking) else 0.0
    return found


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_they_are_those_of_the_weights_under_every_mask(name, dtype):
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(2, 3, N, 4, generator=generator, dtype=dtype)
    key = torch.randn(2, 1, N, 4, generator=generator, dtype=dtype)  # one for three heads
    given = {k: v.to(dtype) if k in {"bias", "sinks"} else v for k, v in CALLS[name].items()}
    call = AttentionCall(query, key, key, scale=0.7, **given)
    real = RIGHT if "padding" in name else torch.ones_like(RIGHT)
    words = torch.randint(0, 2, (2, N), generator=generator).cumsum(1).where(real, -1)
    words -= words[:, :1]
    words = words.where(real, -1)
    merged = merge_call(call, words, words)
    weights = attend_in_full(call)[1]
    allowed = (weights > 0)[:, :1].double()
    equal = allowed / allowed.sum(-1, keepdim=True).clamp_min(1)
    shares = attend_in_full(merged.call)[1]
    of_equal = attend_in_full(merged.equal)[1]
    for text in range(2):
        numbers = words[text][real[text]].tolist()
        size = len(numbers)
        expected = by_hand(weights[text][:, :size, :size], numbers, numbers)
        found = (shares[text] * merged.mass[text][..., None])[:, : expected.shape[1], : expected.shape[2]]
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(merged.mass[text, :, : expected.shape[1]], expected.sum(-1), atol=1e-6)
        expected = by_hand(equal[text][:, :size, :size], numbers, numbers)
        np.testing.assert_allclose(
            of_equal[text][:, : expected.shape[1], : expected.shape[2]], expected, rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("family", ["llama", "bloom"])  # bloom: by eager weights
def test_a_scan_equals_eager_attention_merged_by_hand(family):
    model, tokenizer = tiny_reader(family)
    found = attnscope.scan(model, TEXTS, tokenizer=tokenizer, window=48, batch_size=3, band=2, words="unicode")
    assert found.length.attrs["units"] == "words"
    model.set_attn_implementation("eager")
    windows = windows_of(texts_of(TEXTS), tokenizer, length=48)
    for number, window in enumerate(WordedWindows(windows, word_rule_of("unicode"))):
        with torch.no_grad():
            layers = model(torch.tensor([window.ids]), output_attentions=True).attentions
        merged = [torch.from_numpy(by_hand(layer[0], window.words, window.words))[None] for layer in layers]
        special = [in_words(window).special]
        expected = measure_weights(merged, statistics=[*NAMES, "band_sum", "profile"], special=special, band=2)
        assert found.length.values[number] == merged[0].shape[-1]
        for name in expected.data_vars:
            if not name.startswith("equal") and name in found and "head" in found[name].dims:
                np.testing.assert_allclose(
                    found[name].values[number], expected[name].values[0], rtol=1e-3, atol=1e-5, err_msg=name
                )


def test_raw_weights_from_word_to_word():
    tokens = attnscope.weights("bundled", TEXTS[0], layer=1)
    words = attnscope.weights("bundled", TEXTS[0], layer=1, words="unicode")
    windows = windows_of(texts_of(TEXTS[0]), AutoTokenizer.from_pretrained(MODEL), length=128)
    [window] = WordedWindows(windows, word_rule_of("unicode"))
    assert words.query_token.values.tolist() == list(in_words(window).tokens)
    expected = by_hand(torch.from_numpy(tokens.values), window.words, window.words)
    np.testing.assert_allclose(words.values, expected, rtol=1e-4, atol=1e-6)


def test_words_of_one_token_change_nothing():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    texts = ["The tide comes in twice a day.", "A lamp."]  # no token is a space alone
    spans = {
        text: tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)["offset_mapping"] for text in texts
    }
    plain = attnscope.scan(texts=texts, band=2)
    words = attnscope.scan(texts=texts, band=2, words=lambda text: spans[text])
    for name, array in plain.data_vars.items():
        if array.dtype.kind == "f":
            np.testing.assert_allclose(words[name].values, array.values, rtol=1e-4, atol=1e-6, err_msg=name)
    assert (words.label == plain.label).all()


def test_a_head_of_equal_weights_on_tokens_has_the_entropy_of_equal_weights():
    """Not that of equal weights on words, of which some have more tokens than others."""
    model, tokenizer = tiny_reader("bert")
    for layer in model.bert.encoder.layer:
        torch.nn.init.zeros_(layer.attention.self.query.weight)
        torch.nn.init.zeros_(layer.attention.self.query.bias)
    found = attnscope.scan(model, TEXTS[:1], tokenizer=tokenizer, window=48, band=2, words="unicode")
    np.testing.assert_allclose(found.entropy, found.equal_entropy.values[..., None] * np.ones(4), rtol=1e-5)
    np.testing.assert_allclose(found.band_sum[0, 0, 0], found.equal_band_sum[0, 0], rtol=1e-5)
    assert (found.equal_entropy < np.log(found.length)).all()


def test_words_of_the_target_attend_to_words_of_the_source():
    model, tokenizer = small_model("bart"), small_tokenizer()
    text, target = "a bat, the hat", "ein hut"
    found = attnscope.scan(model, [text], targets=[target], tokenizer=tokenizer, window=40, band=1, words="space")
    assert found.layer_kind.values.tolist()[:4] == ["self", "self", "causal", "cross"]
    source, labels = tokenizer(text).input_ids, tokenizer(text_target=target).input_ids
    read = [decoder_start(model)(labels), *labels[:-1]]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        eager = model(input_ids=torch.tensor([source]), labels=torch.tensor([labels]), output_attentions=True)
    shown = tokenizer.convert_ids_to_tokens
    assert shown(source) == ["▁a", "▁b", "a", "t", ",", "▁", "th", "e", "▁", "h", "a", "t", "</s>"]
    assert shown(read)[1:] == ["▁", "e", "i", "n", "▁", "h", "u", "t"]
    keys, queries = [0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4], [0, 1, 1, 1, 1, 2, 2, 2, 2]
    weights = by_hand(eager.cross_attentions[0][0], queries, keys)
    assert [found.length.item(), found.target_length.item()] == [weights.shape[2], weights.shape[1]]
    entropy = -(weights * np.log(weights, where=weights > 0, out=np.zeros_like(weights))).sum(-1).mean(-1)
    np.testing.assert_allclose(found.entropy.values[0, 3], entropy, rtol=1e-4)


def test_groups_are_of_words():
    def by_length(words):
        return ["long" if len(word.strip()) > 4 else "short" for word in words]

    found = attnscope.scan(texts=TEXTS, words="unicode", groups=by_length, statistics="entropy")
    np.testing.assert_allclose(found.group_weight.sum("group_key", skipna=True)[0], 1, rtol=1e-5)
    [first, *_] = WordedWindows(
        windows_of(texts_of(TEXTS), AutoTokenizer.from_pretrained(MODEL), length=128), word_rule_of("unicode")
    )
    groups = by_length(in_words(first).tokens)
    share = found.equal_group_weight.sel(group_query="long", group_key="long")[0, 0].item()
    tokens = np.array([groups[word] == "long" for word in first.words])
    assert share == pytest.approx(tokens.mean())  # equal weights lie on tokens


def test_a_run_with_words_is_another_run_with_a_note(tmp_path):
    given = {"texts": TEXTS, "statistics": "entropy"}
    first = attnscope.scan(**given, words="unicode", out=tmp_path / "run", show=[])
    again = attnscope.scan(**given, words="unicode", out=tmp_path / "run", show=[])
    assert first.identical(again)
    settings = json.loads(first.attrs["signature"])["settings"]
    assert (settings["words"], settings["merging"]) == ("unicode", "queries averaged, keys summed")
    assert first.attrs["words"].startswith("Tokens are merged to words (unicode)")
    for other in ("space", lambda text: [(0, 3)]):
        with pytest.raises(AttnscopeError, match="holds another run"):
            attnscope.scan(**given, words=other, out=tmp_path / "run")
    rules = [lambda text, end=end: [(0, end)] for end in (3, 13)]  # functions are known by the words that they return
    assert len({attnscope.scan(texts=TEXTS[:1], words=rule).attrs["signature"] for rule in rules}) == 2
    with RunFolder(tmp_path / "run", json.loads(first.attrs["signature"])) as run:
        sample = run.load("sample")
    assert " unhurried" in sample.token.values[0].tolist()
    assert sample.tokens.values.tolist() == first.length.values[:3].tolist()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"texts": TEXTS, "words": "letters"}, "there is no rule of words 'letters'"),
        ({"texts": [[1, 9, 2]], "words": "space"}, "window 1 .*has no words"),
        ({"texts": TEXTS, "words": lambda text: [(0, 999)]}, "have the span 0 to 999"),
    ],
)
def test_what_are_no_words_is_rejected(given, message, tmp_path):
    with pytest.raises(AttnscopeError, match=message):
        attnscope.scan(**given, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
