"""A user's own module of one head is followed, and its numbers are the module's own."""

import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn
from torch.nn import functional as F

import attnscope
from attnscope import AttnscopeError
from attnscope.kernels.heads import MultiHeadAttention, SelfAttention


class Lesson(nn.Module):
    """As tutorials write it; made to be changed."""

    def __init__(self, width=8, *, causal=False, root=True, returns_weights=True):
        super().__init__()
        self.W_v, self.W_k, self.W_q = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.causal, self.root, self.returns_weights = causal, root, returns_weights

    def forward(self, x):
        K, Q, V = self.W_k(x), self.W_q(x), self.W_v(x)
        scores = Q @ K.transpose(-2, -1) / (x.shape[-1] ** 0.5 if self.root else 1)
        if self.causal:
            scores = scores.masked_fill(torch.ones(x.shape[-2], x.shape[-2]).triu(1).bool(), -torch.inf)
        weights = F.softmax(scores, -1)
        return (weights @ V, weights) if self.returns_weights else weights @ V


@pytest.fixture
def x():
    return torch.rand(2, 4, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "module",
    [SelfAttention(8), Lesson(), Lesson(causal=True), Lesson(root=False), Lesson(returns_weights=False)],
    ids=["ours", "a lesson's", "causal", "without division", "without weights"],
)
def test_a_module_of_one_head_multiplies_out(module, x):
    walked = attnscope.walk(module, x)
    returned = module(x)
    output = returned[0] if isinstance(returned, tuple) else returned
    assert_allclose(walked["head_output"], output[0].detach(), atol=1e-6)
    assert_allclose(walked["weights"] @ walked["V"], walked["head_output"], atol=1e-12)
    if isinstance(returned, tuple):
        assert_allclose(walked["weights"], returned[1][0].detach(), atol=1e-6)
    assert max(walked.errors.values()) < 1e-5


@pytest.mark.parametrize("name", ["Q", "K", "V"])
def test_its_layers_are_told_apart_by_its_numbers(name, x):
    module = Lesson()
    walked = attnscope.walk(module, x)
    made_of = module.get_submodule(f"W_{name.lower()}").weight.T
    assert_allclose(walked[f"W_{name}"], made_of.detach(), atol=0)


@pytest.mark.parametrize(
    ("module", "given", "said"),
    [
        (MultiHeadAttention(8, 2), torch.ones(1, 4, 8), "computes something else.*measure_weights"),
        (nn.Linear(8, 8), torch.ones(1, 4, 8), "calls 1 linear layer on X; expected three"),
        (Lesson(), torch.ones(1, 4, 7), "does not take X of shape"),
        (Lesson(), torch.ones(8), "expected real numbers"),
        (Lesson(), "A sentence.", "give X, a tensor"),
        ("bundled", torch.ones(1, 4, 8), "a model reads a sentence"),
    ],
)
def test_others_are_rejected_with_what_to_do(module, given, said):
    with pytest.raises(AttnscopeError, match=said):
        attnscope.walk(module, given)
