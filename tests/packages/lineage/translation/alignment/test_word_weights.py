"""Weights between words: exact merging, planted attention, and any encoder-decoder of transformers."""

import copy

import numpy as np
import pytest
import torch

from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import no_progress
from attnscope_lineage.links import Forcing, links, pharaoh, word_weights
from tests.packages.lineage.translation.small_translators import Blind, Reordering, small_model, small_tokenizer

SOURCES = ["der hund läuft.", "ab", "a b c d e f g", "x"]
TARGETS = ["the dog runs.", "the b", "a b", "b a a"]


@pytest.fixture(scope="module")
def tokenizer():
    return small_tokenizer()


def forced_alignment(
    model, tokenizer, *texts, layer=None, head=None, progress=no_progress, words="space", size=16, **how
):
    """Of each pair, the words of the source, those of the target, and the weights between them."""
    forcing = Forcing(model, tokenizer, *texts, words=words, batch_size=size)
    return (
        (pair.source.words, pair.target.words, pair.words(layer, head, **how))
        for pair in forcing.pairs(range(forcing.count), progress)
    )


# --- merging ---


def random_weights(n=6, m=7, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(m), size=n)


SOURCE_WORDS = np.array([0, 0, 1, 2, 2, 2, -1])
TARGET_WORDS = np.array([0, 1, 1, 2, 2, -1])


def test_sources_sum_and_targets_average():
    weights = random_weights()
    merged = word_weights(weights, SOURCE_WORDS, TARGET_WORDS, end="keep")
    by_hand = np.array(
        [
            [weights[rows][:, columns].sum(1).mean() for columns in ([0, 1], [2], [3, 4, 5], [6])]
            for rows in ([0], [1, 2], [3, 4])
        ]
    )
    np.testing.assert_allclose(merged, by_hand, rtol=1e-14)
    np.testing.assert_allclose(merged.sum(1), 1, rtol=1e-14)


def test_the_step_that_reads_a_token_is_the_next_row():
    weights = random_weights()
    later = word_weights(weights, SOURCE_WORDS, TARGET_WORDS, step="reads")
    moved = word_weights(np.roll(weights, -1, axis=0), SOURCE_WORDS, TARGET_WORDS)
    np.testing.assert_array_equal(later, moved)
    with pytest.raises(AttnscopeError, match="no step reads the last target token"):
        word_weights(weights[:5], SOURCE_WORDS, TARGET_WORDS[:5], step="reads")


# --- models ---


def test_a_planted_reordering_is_found_through_pieces(tokenizer):
    pairs = list(forced_alignment(Reordering(), tokenizer, ["ab ab b", "b"], ["b ab ab", "b"], layer=0, head=1))
    assert [pharaoh(links(weights)) for *_, weights in pairs] == ["0-2 1-1 2-0", "0-0"]
    assert pairs[0][0] == ["ab", "ab", "b"]


@pytest.mark.parametrize("kind", ["bart", "marian", "t5"])
def test_padding_and_batches_change_nothing(kind, tokenizer):
    model = small_model(kind)
    together = list(forced_alignment(model, tokenizer, SOURCES, TARGETS, size=4))
    alone = list(forced_alignment(model, tokenizer, SOURCES, TARGETS, size=1))
    for a, b, source, target in zip(together, alone, SOURCES, TARGETS, strict=True):
        *words, weights = a
        assert words == [source.split(), target.split()]
        assert weights.shape == (len(target.split()), len(source.split()))
        np.testing.assert_allclose(weights, b[-1], atol=100 * np.finfo(np.float32).eps)
        np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-12)


@pytest.mark.parametrize("kind", ["bart", "marian", "t5"])
def test_weights_are_those_that_the_model_gives(kind, tokenizer):
    model = small_model(kind).double()  # in float32 its weights are so sharp that rounding is 1e-5 of one
    ((*_, weights),) = forced_alignment(model, tokenizer, ["a b"], ["b a"], layer=1, head=0, end="keep")
    model.set_attn_implementation("eager")
    ids, labels = (tokenizer(["a b"], return_tensors="pt")["input_ids"], tokenizer(["b a"], return_tensors="pt"))
    with torch.no_grad():
        output = model(input_ids=ids, labels=labels["input_ids"], output_attentions=True)
    expected = output.cross_attentions[1][0, 0].double().numpy()[:2]  # every word is one piece; then </s>
    np.testing.assert_allclose(weights, expected, atol=10 * np.finfo(np.float32).eps)


def test_words_can_be_pieces_and_sentences_empty(tokenizer):
    ((source, _, weights),) = forced_alignment(
        Reordering(), tokenizer, ["彼は本"], ["th b"], words="piece", layer=0, head=1
    )
    assert source[-3:] == ["彼", "は", "本"]
    assert len(source) == weights.shape[1]
    pairs = list(forced_alignment(small_model("bart"), tokenizer, ["", "a b"], ["a", ""]))
    assert [weights.shape for *_, weights in pairs] == [(1, 0), (0, 2)]


def test_mistakes_are_reported(tokenizer):
    def run(model, sources=("a",), targets=("a",), **options):
        return list(forced_alignment(model, tokenizer, list(sources), list(targets), **options))

    bart = small_model("bart")
    with pytest.raises(AttnscopeError, match="found layer 3; expected a layer of the decoder from 0 to 2"):
        run(bart, layer=3)
    with pytest.raises(AttnscopeError, match="found head 2; expected"):
        run(bart, head=2)
    with pytest.raises(AttnscopeError, match="the source has 2 lines and the target has 1"):
        run(bart, ["a", "b"])
    with pytest.raises(AttnscopeError, match=r"from line 1 to 2; the longest is line 2 \(101 source"):
        run(bart, ["a", " ".join("a" * 100)], ["a", "a"])
    with pytest.raises(AttnscopeError, match="Blind has no attention"):
        run(Blind())
    bart.config.is_encoder_decoder = False
    with pytest.raises(AttnscopeError, match="is not an encoder-decoder"):
        run(bart)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_line_on_which_the_model_overflows_is_rejected(tokenizer, batch_size):
    model = small_model("bart")
    model.model.encoder.embed_tokens = copy.deepcopy(model.model.encoder.embed_tokens)  # not the logits' too
    with torch.no_grad():
        model.model.encoder.embed_tokens.weight[tokenizer("c").input_ids[-2]] = torch.inf  # only in line 3
    pairs = forced_alignment(model, tokenizer, SOURCES, TARGETS, size=batch_size)
    before = [next(pairs), next(pairs)]
    assert all(np.isfinite(weights).all() for *_, weights in before)
    refused = r"^line 3: layer 0 of the decoder's attention to the source gives NaN or infinity\. Check the weights"
    with pytest.raises(AttnscopeError, match=refused):
        next(pairs)
