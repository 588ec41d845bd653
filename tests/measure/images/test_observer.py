"""Layers that do not attend over the patches, within a model of which others do."""

import torch

from attnscope.capture.watch import Site
from attnscope.kernels.call import AttentionCall
from attnscope.measure.geometry import Grid
from attnscope.measure.images import PatchObserver

NAMES = ("patch_profile", "same_row", "entropy")


def call_of(texts, tokens):
    x = torch.randn(texts, 2, tokens, 4, generator=torch.Generator().manual_seed(tokens))
    return AttentionCall(x, x, x, 0.5)


def test_windows_and_pooled_layers_have_entropies_and_no_places():
    observer = PatchObserver(NAMES, 1, Grid(4, 4, 0, 16, None), images=2)
    for index, (texts, tokens) in enumerate([(2, 16), (8, 4), (2, 4)]):
        observer(Site(index, f"layers.{index}", "self"), call_of(texts, tokens))
    assert observer.elsewhere == [1, 2]
    assert {name: tuple(one.shape) for name, one in observer.measured[1].items()} == {
        "patch_profile": (2, 2, 3, 3),
        "equal_patch_profile": (2, 1, 3, 3),
        "same_row": (2, 2),
        "equal_same_row": (2, 1),
        "entropy": (2, 2),
        "equal_entropy": (2, 1),
    }
    assert bool(observer.measured[1]["patch_profile"].isnan().all())
    weights = torch.softmax(call_of(8, 4).query @ call_of(8, 4).query.mT * 0.5, -1)
    entropy = torch.special.entr(weights).sum(-1).mean(-1).unflatten(0, (2, 4)).mean(1)
    torch.testing.assert_close(observer.measured[1]["entropy"], entropy.double(), rtol=1e-5, atol=1e-6)
