"""Mathematics of interventions on bare arrays, against definitions and planted effects."""

import numpy as np

from attnscope.intervention.arrays import permuted_weights, random_sets, sparse_effects

# --- weights in random order ---


CAUSAL = np.tril(np.ones((7, 7), dtype=bool))


def random_weights(allowed=CAUSAL, seed=0):
    raw = np.random.default_rng(seed).exponential(size=allowed.shape) * allowed
    return raw / raw.sum(1, keepdims=True)


def test_a_permutation_keeps_what_a_row_holds_and_what_it_may_not_see():
    weights = random_weights()
    shuffled = permuted_weights(weights, np.random.default_rng(1), CAUSAL)
    np.testing.assert_array_equal(np.sort(shuffled, 1), np.sort(weights, 1))
    assert not shuffled[~CAUSAL].any()
    assert (shuffled != weights).any()


def test_all_permutations_are_equally_likely():
    found = permuted_weights(np.tile([0.5, 0.3, 0.2], (6000, 1)), np.random.default_rng(0))
    counts = np.unique(found, axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert ((counts - 1000) ** 2 / 1000).sum() < 20.5  # chi-squared of 5 degrees of freedom, 0.001


# --- heads that matter, found from random sets: on planted additive effects ---


def test_eight_of_144_are_found_by_a_quarter_of_the_passes():
    heads, matter, passes, texts, models = 144, 8, 36, 20, 5
    recalls = []
    for model in range(models):
        generator = np.random.default_rng(model)
        effects = np.zeros(heads)
        chosen = generator.choice(heads, matter, replace=False)
        effects[chosen] = generator.uniform(0.2, 2.0, matter) * generator.choice([-1, 1], matter)
        sets = random_sets((passes * texts,), heads, 14, generator)
        documents = np.repeat(np.arange(texts), passes)
        of_text = effects * generator.uniform(0.5, 1.5, (texts, heads))  # a head is not worth the same in every text
        changes = (sets * of_text[documents]).sum(1) + 0.1 * generator.normal(size=len(sets))
        found = np.argsort(-np.abs(sparse_effects(sets, changes, documents.tolist())))[:matter]
        recalls.append(len(set(found) & set(chosen)) / matter)
    assert np.mean(recalls) >= 0.99


def test_sets_hold_each_head_as_often():
    sets = random_sets((7, 5), 12, 3, np.random.default_rng(1))
    assert sets.shape == (7, 5, 12)
    assert (sets.sum(-1) == 3).all()
    counts = sets.reshape(-1, 12).sum(0)
    assert counts.max() - counts.min() <= 1
