"""Contacts of proteins against NumPy written out, transformers' ESM, and a case that is planted."""

import numpy as np
import pytest
import torch
from transformers.models.esm.modeling_esm import average_product_correct, symmetrize

from attnscope_relations.contacts import contact_features


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_features_are_those_of_esm(kind):
    weights = np.random.default_rng(0).random((2, 3, 9, 9))
    expected = average_product_correct(symmetrize(torch.from_numpy(weights)))
    features = contact_features(kind(weights))
    assert type(features) is type(kind(weights))
    np.testing.assert_allclose(np.asarray(features), expected, atol=1e-12)
