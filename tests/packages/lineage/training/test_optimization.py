"""What the optimizers do to each kind of parameter, and learning rates against papers and transformers."""

import pytest
import torch
from transformers import get_constant_schedule_with_warmup, get_cosine_schedule_with_warmup, get_inverse_sqrt_schedule

from attnscope_lineage.checkpoints import build_model
from attnscope_lineage.config import TrainConfig
from attnscope_lineage.training import Optimizers, learning_rate

SMALL = {
    "transformer": {"width": 16, "heads": 2, "feed_forward": 24, "layers": 1, "positions": "learned"},
    "recurrent": {"embedding_width": 4, "encoder_width": 6, "decoder_width": 8},
    "masked-lm": {"width": 16, "heads": 2, "feed_forward": 24, "layers": 1, "positions": "learned"},
}
RATE = 0.01


def stepped(optimizer, kind, weight_decay=0.0):
    """Names, weights before and after one step with drawn gradients, and these."""
    torch.manual_seed(0)
    config = TrainConfig(optimizer=optimizer, model=kind, weight_decay=weight_decay, **SMALL[kind])
    model = build_model(config, 30)
    tables = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    optimizers, moved = Optimizers(model, config), {}
    for name, parameter in model.named_parameters():
        parameter.grad = torch.randn_like(parameter)
        matrix = parameter.ndim == 2 and id(parameter) not in tables
        moved[name] = (matrix, parameter.detach().clone(), parameter.grad.clone(), parameter)
    optimizers.step(RATE)
    assert all(parameter.grad is None for *_, parameter in moved.values())
    return {name: (matrix, grad, after.detach() - before) for name, (matrix, before, grad, after) in moved.items()}


def newton_schulz(values):
    """What five steps of the quintic iteration make of singular values, by Jordan et al. 2024."""
    values = values / values.norm()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return values


@pytest.mark.parametrize("kind", SMALL)
def test_muon_turns_the_gradient_of_a_matrix_into_a_nearly_orthogonal_one(kind):
    """The step has the gradient's singular vectors, and singular values as the iteration leaves them."""
    furthest = {}
    for optimizer in ("muon", "adamw"):
        changes = {name: parts[1:] for name, parts in stepped(optimizer, kind).items() if parts[0]}
        assert changes
        for name, (gradient, change) in changes.items():
            left, values, right = torch.linalg.svd(gradient, full_matrices=False)
            along = -(left.T @ change @ right.T) / (RATE * 0.2 * max(change.shape) ** 0.5)
            furthest[optimizer, name] = (along - newton_schulz(values).diag()).abs().max()
    for name in changes:
        # the iteration is in bfloat16, and enlarges small values 500 times
        assert furthest["muon", name] < 0.15
        assert furthest["adamw", name] > 0.5


@pytest.mark.parametrize("kind", SMALL)
def test_with_muon_tables_and_vectors_move_as_with_adamw(kind):
    muon, adamw = stepped("muon", kind, 0.1), stepped("adamw", kind, 0.1)
    others = [name for name, (matrix, *_) in muon.items() if not matrix]
    assert any("embedding" in name for name in others)
    assert any(muon[name][1].ndim == 1 for name in others)
    for name in others:
        torch.testing.assert_close(muon[name][2], adamw[name][2], atol=0, rtol=0)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_weight_decay_takes_its_share_of_matrices_and_tables_alone(optimizer):
    plain, decayed = stepped(optimizer, "transformer"), stepped(optimizer, "transformer", 0.5)
    torch.manual_seed(0)
    weights = dict(build_model(TrainConfig(**SMALL["transformer"]), 30).named_parameters())
    for name, (_, _, change) in decayed.items():
        taken = 0.5 * RATE * weights[name].detach() if weights[name].ndim > 1 else 0.0
        torch.testing.assert_close(change, plain[name][2] - taken, atol=1e-6, rtol=0)


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


def test_a_rate_cools_down_to_nothing():
    config = TrainConfig(schedule="constant", warmup=0, learning_rate=1.0, cooldown=4, updates=12)
    rates = [learning_rate(config, step) for step in range(7, 13)]
    assert rates == pytest.approx([1.0, 1.0, 1.0, 0.75, 0.5, 0.25])
