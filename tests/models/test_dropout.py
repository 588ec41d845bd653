"""Dropout by numbers of 16 bits, and keys that nobody sees."""

import pytest
import torch

from attnscope.models.configs import TransformerConfig
from attnscope.models.layers import Dropout
from attnscope.models.transformer import TransformerForConditionalGeneration


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_as_many_are_dropped_as_the_rate_says_and_the_mean_stays(rate, dtype):
    torch.manual_seed(0)
    drop, ones = Dropout(rate), torch.ones(999, 1001, dtype=dtype, requires_grad=True)
    made = drop(ones)
    made.sum().backward()
    share = float((made == 0).float().mean())
    error = (rate * (1 - rate) / made.numel()) ** 0.5
    assert abs(share - rate) < 4 * error + 2**-16
    assert float(made.detach().max()) == pytest.approx(1 / (1 - rate), rel=1e-2 if dtype == torch.bfloat16 else 1e-4)
    assert torch.equal(ones.grad, made.detach())
    rows = (made == 0).float()  # neighbours share a number, not their fate
    together = float((rows[:, 0:-1:4] * rows[:, 1::4]).mean())
    assert abs(together - rate**2) < 0.005
    assert drop.eval()(ones) is ones


@pytest.mark.parametrize("padded", [False, True])
def test_in_training_the_loss_and_its_gradients_are_those_of_eager_attention(padded):
    """Keys are filled up to a multiple of 16 there, which nothing may see."""
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=40, width=16, heads=2, feed_forward=32, dropout=0.0)
    model = TransformerForConditionalGeneration(config).train()
    source, labels = torch.randint(3, 40, (3, 7)), torch.randint(3, 40, (3, 9))
    seen = torch.ones_like(source)
    if padded:
        seen[1, 4:] = 0
        labels[2, 5:] = -100
    found = {}
    for attention in ("eager", "sdpa"):
        model.set_attn_implementation(attention)
        model.zero_grad()
        loss = model.summed_loss(source, seen, labels)
        loss.backward()
        found[attention] = [loss.detach(), *(one.grad.clone() for one in model.parameters() if one.grad is not None)]
    for ours, theirs in zip(found["sdpa"], found["eager"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
