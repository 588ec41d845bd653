"""Learning rates against numbers worked out from the papers' formulas, and against transformers' schedules."""

import pytest
import torch
from transformers import get_constant_schedule_with_warmup, get_cosine_schedule_with_warmup, get_inverse_sqrt_schedule

from attnscope.lineage.config import TrainConfig
from attnscope.lineage.train import learning_rate

PEERS = {
    "constant": lambda optimizer, warmup, last: get_constant_schedule_with_warmup(optimizer, warmup),
    "cosine": get_cosine_schedule_with_warmup,
    "inverse_sqrt": lambda optimizer, warmup, last: get_inverse_sqrt_schedule(optimizer, warmup),
}


@pytest.mark.parametrize(
    ("width", "warmup", "rates"),
    [
        (64, 16, {1: 1 / 512, 4: 1 / 128, 16: 1 / 32, 64: 1 / 64, 256: 1 / 128}),
        (512, 4_000, {1: 1.746928e-7, 4_000: 6.987712e-4, 100_000: 1.397542e-4}),  # the paper's base model
    ],
)
def test_noam_is_equation_3_of_vaswani(width, warmup, rates):
    config = TrainConfig(schedule="noam", learning_rate=2.0, warmup=warmup, updates=100_000, width=width)
    found = {step: learning_rate(config, step) for step in rates}
    assert found == pytest.approx({step: 2 * rate for step, rate in rates.items()}, rel=1e-6)


@pytest.mark.parametrize("schedule", PEERS)
def test_rates_are_those_of_transformers(schedule):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    (peer,) = PEERS[schedule](optimizer, 7, 50).lr_lambdas
    config = TrainConfig(schedule=schedule, learning_rate=1.0, warmup=7, updates=50)
    for step in range(1, 51):
        assert learning_rate(config, step) == pytest.approx(peer(step))


def test_noam_goes_by_the_width_of_the_model():
    for kind, width in ({"model": "recurrent", "decoder_width": 64}, 64), ({"width": 16}, 16):
        config = TrainConfig(schedule="noam", warmup=4, learning_rate=1.0, **kind)
        assert learning_rate(config, 4) == pytest.approx(width**-0.5 * 4**-0.5)


def test_a_rate_cools_down_to_nothing():
    config = TrainConfig(schedule="constant", warmup=0, learning_rate=1.0, cooldown=4, updates=12)
    rates = [learning_rate(config, step) for step in range(7, 13)]
    assert rates == pytest.approx([1.0, 1.0, 1.0, 0.75, 0.5, 0.25])
