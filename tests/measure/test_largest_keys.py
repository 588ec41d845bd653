"""Where the largest weight of each query lies, held against the weights that eager attention writes out."""

import numpy as np
import pytest
import torch

import attnscope
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.full import attend_in_full
from attnscope.kernels.reference import causal_mask, padding_mask
from attnscope.measure.passes import Marks, measure_call
from attnscope.measure.sample import merge_call
from tests.measure.test_groups import CALLS, RIGHT, N

NAMES = ("largest_distance", "largest_first", "largest_previous", "largest_next")
LEFT = torch.arange(N)[None] >= torch.tensor([0, 7])[:, None]
MASKS = CALLS | {"left padding, causal": {"mask": padding_mask(LEFT) & causal_mask(N, N)}}


def real_tokens(name):
    return LEFT if "left" in name else RIGHT if "padding" in name else torch.ones_like(RIGHT)


def by_hand(weights, real):
    """Of explicit weights, the key of each query by `argmax`; of equal ones, the mean over the keys that are seen."""
    found = {name: np.full(weights.shape[:2], np.nan) for name in NAMES}
    even = {name: np.full(weights.shape[0], np.nan) for name in NAMES}
    away = np.arange(weights.shape[3]) - np.arange(weights.shape[2])[:, None]
    for text in range(len(weights)):
        first = int(np.flatnonzero(real[text])[0])
        measures = {
            "largest_distance": np.abs(away),
            "largest_first": np.arange(weights.shape[3])[None].repeat(len(away), 0) == first,
            "largest_previous": away == -1,
            "largest_next": away == 1,
        }
        for name, measure in measures.items():
            for head, matrix in enumerate(weights[text]):
                rows = np.flatnonzero(np.asarray(real[text]) & (matrix.sum(1) > 0))
                found[name][text, head] = np.mean([measure[i, matrix[i].argmax()] for i in rows])
            seen = weights[text, 0] > 0
            even[name][text] = np.mean([measure[i, seen[i]].mean() for i in rows])
    return found, even


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # compiled tiles and plain ones
def test_they_are_those_of_the_weights_under_every_mask(name, dtype):
    generator = torch.Generator().manual_seed(1)
    query, key = (torch.randn(2, 3, N, 4, generator=generator, dtype=dtype) for _ in range(2))
    given = {k: v.to(dtype) if k in {"bias", "sinks"} else v for k, v in MASKS[name].items()}
    call = AttentionCall(query, key, key, scale=0.7, **given)
    real = real_tokens(name)
    _, found = measure_call(call, NAMES, 2, N - 1, Marks(real, real, torch.zeros_like(real)))
    expected, even = by_hand(attend_in_full(call)[1].double().numpy(), real.numpy())
    for statistic in NAMES:
        np.testing.assert_allclose(found[statistic], expected[statistic], atol=1e-12, err_msg=statistic)
        np.testing.assert_allclose(found[f"equal_{statistic}"][:, 0], even[statistic], rtol=1e-5, err_msg=statistic)


def test_the_first_of_several_largest_weights_counts():
    weights = torch.tensor(
        [[[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.2, 0.4, 0.4, 0], [0.25, 0.25, 0.25, 0.25]]], dtype=torch.float64
    )
    found = attnscope.measure_weights(weights[None, None], statistics=NAMES, band=1)
    assert found.layer_kind.item() == "causal"
    own = {name: float(found[name].item()) for name in NAMES}
    # keys 0, 0, 1, 0
    assert own == {
        "largest_distance": (0 + 1 + 1 + 3) / 4,
        "largest_first": 3 / 4,
        "largest_previous": 2 / 4,
        "largest_next": 0.0,
    }
    equal = {name: float(found[f"equal_{name}"].item()) for name in NAMES}
    assert equal == pytest.approx(
        {
            "largest_distance": (0 + 1 / 2 + 3 / 3 + 6 / 4) / 4,
            "largest_first": (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4,
            "largest_previous": (0 + 1 / 2 + 1 / 3 + 1 / 4) / 4,
            "largest_next": 0.0,
        }
    )


def test_from_word_to_word():
    """The null is that of equal weights on tokens, of which some words have more."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(2, 3, N, 4, generator=generator)
    call = AttentionCall(x, x.flip(1), x, scale=0.7)
    words = torch.randint(0, 2, (2, N), generator=generator).cumsum(1)
    words -= words[:, :1]
    merged = merge_call(call, words, words)
    count = words.amax(1) + 1
    real = torch.arange(merged.call.query.shape[2]) < count[:, None]
    _, found = measure_call(
        merged.call, NAMES, 2, int(count.max()) - 1, Marks(real, real, ~real), merged.mass, merged.equal
    )
    shares, even = (attend_in_full(each)[1].double().numpy() for each in (merged.call, merged.equal))
    expected, _ = by_hand(shares, real.numpy())
    for name in NAMES:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-12, err_msg=name)
    for text, size in enumerate(count.tolist()):
        matrix = even[text, 0, :size, :size]
        away = np.arange(size) - np.arange(size)[:, None]
        nulls = {
            "largest_distance": (matrix * np.abs(away)).sum(1).mean(),
            "largest_first": matrix[:, 0].mean(),
            "largest_previous": np.trace(matrix, -1) / size,
            "largest_next": np.trace(matrix, 1) / size,
        }
        for name, null in nulls.items():
            np.testing.assert_allclose(found[f"equal_{name}"][text, 0], null, rtol=1e-5, err_msg=name)
