"""The sums of all layers are taken at once: the same numbers as layer by layer."""

from collections import Counter
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertConfig, BertForMaskedLM

from attnscope.capture.forward import forward
from attnscope.capture.verify import verify
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.kernels import engines, plain
from attnscope.kernels.call import AttentionCall, checked_at_the_end, without_flat_curves
from attnscope.measure import passes
from attnscope.measure.passes import StatisticsObserver, WindowBatch
from attnscope.measure.quantities import DEFAULT
from attnscope.read.windows import Batch, Window
from tests.simulated_gpu import Gpu, gpu
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
    blind = mask.clone()
    blind[:, :, 5] = False  # a query that sees no key does not count
    sides = ({"bias": forbids}, {}, {"mask": near}, {"mask": mask}, {"causal": True}, {"mask": near}, {"mask": blind})
    calls = [AttentionCall(query, key, value, 0.5, **one) for one in sides]

    def run(observer):
        for index, call in enumerate(calls):
            observer(Site(index, f"layer {index}", "self"), call)

    text = batch_of(torch.ones(2, 12, dtype=torch.bool))
    compare(WindowBatch(text, text), run)


class Operators(TorchDispatchMode):
    """Counts operators that launch a kernel on a GPU, copies between it and the host included."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.__name__.partition(".")[0]
        if not (function.is_view or name in {"empty", "empty_like", "_unsafe_view", "detach"}):
            self.names[name] += 1
        return function(*args, **(kwargs or {}))


def operators_of(layers, monkeypatch, names=DEFAULT):
    """Operators of the scan of a batch beyond those of the model's body, which attends by one itself."""
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
    model = BertForMaskedLM(BertConfig(num_hidden_layers=layers, **sizes)).eval()
    ids = torch.arange(24).reshape(2, 12) % 20
    verify(model, {"input_ids": ids})

    @contextmanager
    def counted():
        counting = Operators()
        with monkeypatch.context() as patch:
            patch.setattr(Gpu, "launching", counting)
            yield counting.names

    def kernel(call, need):
        with monkeypatch.context() as patch:  # the one launch of the kernel that is not there
            patch.setattr(Gpu, "launching", nullcontext())
            return plain.batched_tiles(call, need)

    # as the kernel, which bounds no scores beforehand
    monkeypatch.setitem(
        engines._ENGINES, "plain", lambda call, need: without_flat_curves(kernel, call, need, shows_scores=True)
    )
    with gpu(monkeypatch), torch.no_grad():
        model.to("cuda")
        windows = [Window(tuple(row), (False,) * 12, (), "a text", 0, ()) for row in ids.tolist()]
        reading = WindowBatch.of(windows, 0, "cuda")

        def scanned():
            observer = StatisticsObserver(names, 10, reading, 11)
            with watching(model, observer):
                forward(model, reading.inputs(model), str, with_head=False)
            return observer.layers()

        checked_at_the_end(scanned)  # constants are made
        with counted() as ours:
            checked_at_the_end(scanned)
        with counted() as own:
            model.base_model(reading.text.input_ids)
    return ours - own


def test_a_further_layer_launches_its_kernel_one_norm_and_one_copy(monkeypatch):
    few, many = (operators_of(layers, monkeypatch) for layers in (3, 7))
    # whether its output is finite, and its output with the heads last
    assert dict(many - few) == {"linalg_vector_norm": 4, "clone": 4}
    assert many.total() <= 2 * 7 + 28, many  # of a batch, whatever the number of layers
    with_examples = operators_of(7, monkeypatch, NAMES)  # as scans of texts measure by default
    assert with_examples.total() <= 2 * 7 + 55, with_examples
