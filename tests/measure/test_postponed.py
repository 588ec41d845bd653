"""The sums of all layers are taken at once: the same numbers as layer by layer."""

import pytest
import torch

from attnscope.capture.verify import verify
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.kernels.call import AttentionCall
from attnscope.measure import passes
from attnscope.measure.passes import StatisticsObserver, WindowBatch
from attnscope.measure.quantities import DEFAULT
from attnscope.read.windows import Batch
from tests.tiny_models import inputs, tiny

NAMES = (*DEFAULT, "strongest")
FAMILIES = ("bert", "modernbert", "mistral", "gemma2", "gpt_oss", "t5", "bart", "whisper", "deberta", "vit")


class LayerByLayer(StatisticsObserver):
    _waits = False


def batch_of(valid, ids=None):
    special = torch.zeros_like(valid)
    special[:, 0] = True
    return Batch(torch.zeros_like(valid, dtype=torch.int64) if ids is None else ids, valid, special)


def compare(reading, run):
    """Numbers of each layer, measured in both ways."""
    both = []
    for kind in (LayerByLayer, StatisticsObserver):
        observer = kind(NAMES, 3, reading, 23)
        run(observer)
        both.append(observer.layers())
    assert len(both[0]) == len(both[1]) > 1
    for one, other in zip(*both, strict=True):
        assert set(one) == set(other)
        for name in one:
            torch.testing.assert_close(other[name], one[name], rtol=1e-12, atol=0, equal_nan=True, msg=name)


@pytest.mark.parametrize("wait", [0, 1 << 30])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_kind_of_layers(family, wait, monkeypatch):
    monkeypatch.setattr(passes, "_WAIT", wait)
    model = tiny(family)
    given, valid = inputs(family, padded=True)
    verify(model, given, valid)
    valid = torch.ones(2, 1, dtype=torch.bool) if valid is None else valid
    text = target = batch_of(valid)
    if (ids := given.get("decoder_input_ids")) is not None:
        target = batch_of(torch.ones_like(ids, dtype=torch.bool), ids)

    def run(observer):
        with torch.no_grad(), watching(model, observer):
            model(**given)

    compare(WindowBatch(text, target), run)


def test_layers_of_one_kind_that_see_different_keys():
    """A layer may see what one before it may not: by a mask, by a bias that forbids, or by the order."""
    query, key, value = (torch.randn(2, 2, 12, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    mask = torch.ones(2, 1, 12, 12, dtype=torch.bool).tril()
    near = mask.triu(-3)
    forbids = torch.zeros(1, 1, 12, 12).masked_fill(~near[:1], -torch.inf)
    sides = ({"bias": forbids}, {}, {"mask": near}, {"mask": mask}, {"causal": True}, {"mask": near})
    calls = [AttentionCall(query, key, value, 0.5, **one) for one in sides]

    def run(observer):
        for index, call in enumerate(calls):
            observer(Site(index, f"layer {index}", "self"), call)

    text = batch_of(torch.ones(2, 12, dtype=torch.bool))
    compare(WindowBatch(text, text), run)
