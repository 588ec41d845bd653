"""The GPU that is made believe refuses what a GPU refuses, and counts what a GPU waits for."""

import numpy as np
import pytest
import torch
from torch import nn

from attnscope.capture.forward import check_finite
from attnscope.kernels.call import magnitude
from tests.simulated_gpu import gpu

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.fixture
def waits(monkeypatch):
    with gpu(monkeypatch) as waits:
        yield waits


def test_operands_on_two_devices_are_rejected(waits):
    here, there = torch.ones(3), torch.ones(3, device="cuda")
    for work in (torch.add, torch.dot, lambda x, y: torch.cat([x, y]), lambda x, y: torch.where(y > 0, x, y)):
        with pytest.raises(RuntimeError, match="all tensors to be on the same device, found cuda:0 and cpu"):
            work(here, there)
    assert (there + torch.tensor(2.0)).device == there.device  # a single number goes with either
    assert there[torch.tensor([0, 2])].shape == (2,)  # and so does an index, as with CUDA


def test_numpy_is_rejected(waits):
    for read in (lambda x: x.numpy(), np.asarray):
        with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
            read(torch.ones(3, device="cuda"))


def test_a_module_goes_there_and_back_with_its_gradients(waits):
    torch.manual_seed(0)
    module, states = nn.Linear(3, 2), torch.rand(4, 3)
    expected = module(states)
    expected.sum().backward()
    slope = module.weight.grad
    module.zero_grad()
    module = module.to("cuda")
    assert next(module.parameters()).is_cuda
    output = module(states.to("cuda"))
    output.sum().backward()
    torch.testing.assert_close(output.cpu(), expected)
    torch.testing.assert_close(module.weight.grad.cpu(), slope)
    torch.testing.assert_close(module.to("cpu")(states), expected)


def test_a_wait_of_the_package_is_counted_by_its_line(waits):
    there = torch.arange(4.0, device="cuda")
    assert magnitude(there).item() == pytest.approx(14**0.5)  # asked for here, and not by the package
    assert not waits
    states = there[None, :, None]
    check_finite("a layer", states, str)
    check_finite("a layer", states, str)  # known
    assert [*waits.values()] == [1]
    (line,) = waits
    assert line.startswith("kernels/call.py:is_finite:")
    states.add_(1)
    check_finite("a layer", states, str)
    assert [*waits.values()] == [2]
