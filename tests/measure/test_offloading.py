"""Statistics leave the device without a wait, and are not read before they have arrived."""

from functools import partial

import pytest
import torch

import attnscope
from attnscope import AttnscopeError
from attnscope.bundled import MODEL
from attnscope.capture.forward import forward
from attnscope.capture.load import load_model
from attnscope.capture.watching import watching
from attnscope.kernels import plain
from attnscope.kernels.call import checked_at_the_end, without_flat_curves
from attnscope.measure.passes import HostOffloader, StatisticsObserver, WindowBatch
from attnscope.measure.quantities import DEFAULT
from attnscope.read.encoded import texts_of, windows_of
from tests.planted_models import overflowing_bert
from tests.simulated_gpu import gpu

TEXT = "The tide comes in twice a day, and twice a day it goes out again."


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU may be so fast that all has arrived")
def test_they_are_there_once_they_have_arrived_and_not_before(monkeypatch):
    first, second = torch.rand(2, 3), torch.rand(2, 3)
    leaving = HostOffloader()
    with gpu(monkeypatch):
        for layer, values in ((1, first), (0, second)):
            leaving.add(layer, {"entropy": values.to("cuda")})
        assert not leaving[1]["entropy"].equal(first)
        assert [each["entropy"].equal(values) for each, values in zip(leaving.layers(), (second, first), strict=True)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="waits are counted where the GPU is made believe")
def test_no_statistic_of_a_layer_waits_for_the_device(monkeypatch):
    """The host would tell a GPU of the next layer when the last number of this one has come."""
    with gpu(monkeypatch) as waits:
        loaded = load_model(MODEL, device="cuda")
        windows = [*windows_of(texts_of([TEXT]), loaded.tokenizer, length=128)]
        reading = WindowBatch.of(windows, loaded.tokenizer.pad_token_id, "cuda")
        observer = StatisticsObserver(DEFAULT, 5, reading, 127)
        waits.clear()
        with torch.no_grad(), watching(loaded.model, observer):
            forward(loaded.model, reading.inputs(loaded.model), str)
        assert {line.partition(":")[0] for line in waits} == {
            "kernels/call.py",  # of each call: whether all numbers are finite
            "kernels/plain.py",  # which tiles a mask allows: PyTorch's pass alone, not the kernel
            "capture/forward.py",  # of each layer's output: whether it is finite
        }

        def run():
            again = StatisticsObserver(DEFAULT, 5, reading, 127)
            with torch.no_grad(), watching(loaded.model, again):
                forward(loaded.model, reading.inputs(loaded.model), str)
            return again

        # nothing but a score of -inf may make an output infinite, as in the kernel: no scores are bounded beforehand
        monkeypatch.setattr(plain, "without_flat_curves", partial(without_flat_curves, shows_scores=True))
        waits.clear()
        assert checked_at_the_end(run) is not None
        of_checks = {line: number for line, number in waits.items() if line.startswith("kernels/call.py")}
        assert [*of_checks.values()] == [1]  # of all layers and the output, at the end
        waits.clear()
        observer.layers()
        assert {line.partition(":")[0] for line in waits} == {"measure/passes.py"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="the model is broken on a GPU that is made believe")
def test_a_text_that_overflows_is_still_named_with_its_layer(monkeypatch):
    with gpu(monkeypatch):
        model = overflowing_bert(7).to("cuda")
        with pytest.raises(AttnscopeError, match=r"^window 2 .*: layer 0 .* gives NaN"):
            attnscope.scan(model, [[5, 6, 8], [5, 6, 7]], batch_size=2)
