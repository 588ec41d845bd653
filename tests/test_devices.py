"""The same numbers on a GPU, or on simulated ones (`tests/simulated_gpu.py`), as on the CPU.

Where there is a GPU: ``ATTNSCOPE_TEST_DEVICE=cuda pytest -m device``, which `benchmarks/gpu.py` runs.
"""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr
from accelerate import dispatch_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import attnscope
import attnscope_circuits
from attnscope.bundled import MODEL, PAIRS
from attnscope.capture.load import load_model
from attnscope.capture.placement import device_of
from attnscope.kernels.bins import weights_at_offsets
from attnscope.kernels.blocks import block_weights
from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import measure
from attnscope.kernels.masks import OffsetBias, RowMask, extent_of
from attnscope.kernels.reference import causal_mask, padding_mask, window_mask
from attnscope.kernels.sampled import measure_by_level, measure_rows
from attnscope.kernels.sums import column_sums, weight_sums
from attnscope.measure.quantities import STATISTICS
from attnscope.measure.stored import SAMPLE
from attnscope.read.encoded import texts_of, windows_of
from attnscope.report.signature import Signature
from attnscope.store.runs import RunFolder
from attnscope_relations import relations
from tests.kernels.statistics_of_weights import attended, oracle

pytestmark = pytest.mark.device
DEVICE = os.environ.get("ATTNSCOPE_TEST_DEVICE", "")

N = 150
BINS = (5, 9, 17, 33)
TEXTS = [
    "The tide comes in twice a day, and twice a day it goes out again. Nobody has seen the keeper.",
    "The keeper left the lighthouse, and nobody has seen the keeper since.",
]


LINKED = [
    {"text": TEXTS[1], "document": str(number), "pairs": [{"name": "object", "from": [20, 30], "to": [11, 15]}]}
    for number in range(2)
]
COMPARED = [
    {
        "good": f"The {noun} near us is old.",
        "bad": f"The {noun} near us are old.",
        "verb": (len(noun) + 13, len(noun) + 15),
        "subject": (4, len(noun) + 4),
        "document": noun,
    }
    for noun in ("boat", "lamp", "house", "garden", "teacher", "river", "stone")
]
OF_HEADS = {"together": True, "ablate": True, "untrained": False}


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def calls():
    query, key, value = (draw(2, 4, N, 16, seed=seed) for seed in range(3))
    plain = AttentionCall(query, key[:, :2], value[:, :2], 0.25)
    real = torch.arange(N)[None] < torch.tensor([N, N - 40])[:, None]
    window = window_mask(N, N, left=20, right=3)[None, None]
    gaps = draw(2, 4, N, N, seed=4) > 0.5
    return {
        "causal, shared keys": replace(plain, causal=True),
        "padding": replace(plain, mask=padding_mask(real).expand(2, 1, N, N)),
        "padding, causal": replace(plain, mask=padding_mask(real) & causal_mask(N, N), causal=True),
        "window": replace(plain, mask=window.expand(2, 1, N, N)),
        "gaps and a bias": replace(plain, mask=gaps, bias=draw(1, 4, N, N, seed=5)),
        "bias by offset": replace(plain, bias=OffsetBias(draw(1, 4, 2 * N - 1, seed=5), N), causal=True),
        "soft cap and sinks": replace(plain, causal=True, softcap=3.0, sinks=draw(4, seed=6)),
        "float16": AttentionCall(query.half(), key.half(), value.half(), 0.25, causal=True),
        "float64": AttentionCall(query.double(), key.double(), value.double(), 0.25, causal=True),
    }


CALLS = calls()
each_call = pytest.mark.parametrize("name", CALLS)


def on(device, call):
    sides = ("query", "key", "value", "mask", "bias", "sinks")
    return replace(call, **{side: one.to(device) for side in sides if (one := getattr(call, side)) is not None})


def level_of(call):
    return measure(call, Need())[1].log_sum_exp


def near(found, expected, close=1e-5):
    assert found is not None
    torch.testing.assert_close(found.cpu().double(), expected.double(), atol=close, rtol=close)


@each_call
def test_rows_are_those_of_explicit_weights(device, name):
    call = CALLS[name]
    columns = (draw(2, N, 2, seed=7) > 1).float()
    output, rows = measure(on(device, call), Need.everything(4, columns.to(device), BINS))
    expected_output, expected, weights = oracle(call, 4, BINS)
    half = call.query.dtype == torch.float16
    near(output, expected_output, 2e-3 if half else 1e-5)
    close = {"mean_offset": 1e-4, "offset_variance": 1e-2} if call.query.dtype != torch.float64 else {}
    for measured, value in expected.items():
        near(getattr(rows, measured), value, close.get(measured, 3e-5 if half else 1e-5))
    near(rows.columns, weights @ columns.double()[:, None])


@each_call
def test_sums_of_weights_are_those_of_their_matrix(device, name):
    call, (_, weights) = on(device, CALLS[name]), attended(CALLS[name])
    level = level_of(call)
    counted = torch.arange(N)[None] < torch.tensor([N, N - 40])[:, None]
    of_real = weights * counted[:, None, :, None]
    sums = weight_sums(call, level, counted.to(device), received=True, offsets=True)
    near(sums.received, of_real.sum(2), 1e-4)
    diagonals = [of_real.diagonal(offset, -2, -1).sum(-1) for offset in range(1 - N, N)]
    near(sums.offsets, torch.stack(diagonals, -1), 1e-4)
    near(column_sums(call, level, last=9), weights[:, :, -9:].sum(2), 1e-4)
    blocks = block_weights(call, level, size=50)
    cells = weights.unflatten(-1, (-1, 50)).unflatten(-3, (-1, 50))
    near(blocks.total, cells.sum((-3, -1)), 1e-4)
    near(blocks.largest, cells.amax((-3, -1)))
    far = weights_at_offsets(call, level, (-70, 3))
    near(far[:, :, 70:, 0], weights.diagonal(-70, -2, -1))
    near(far[:, :, : N - 3, 1], weights.diagonal(3, -2, -1))


@pytest.mark.parametrize("name", ["causal, shared keys", "padding", "window", "soft cap and sinks"])
def test_some_rows_are_those_of_all(device, name):
    call, (output, weights) = on(device, CALLS[name]), attended(CALLS[name])
    columns = (draw(2, N, 2, seed=7) > 1).float()
    found, every = measure_by_level(call, Need(band=2, columns=columns.to(device)))
    near(found, output)
    near(every.band, oracle(CALLS[name], 2)[1]["band"])
    near(every.columns, weights @ columns.double()[:, None])
    queries = torch.tensor([[[3, 140], [9, 70]], [[0, 100], [1, 2]]])
    rows = measure_rows(call, Need(entropy=True, largest=True), queries.to(device))
    picked = weights.gather(2, queries.repeat_interleave(2, 1)[..., None].expand(-1, -1, -1, N))
    near(rows.largest, picked.amax(-1))
    near(rows.entropy, -torch.xlogy(picked, picked).sum(-1))


def test_a_mask_that_is_known_by_its_rows_is_the_whole_one(device):
    call = CALLS["padding, causal"]
    start, stop, _ = extent_of(call.mask)
    mask = RowMask(start.to(device), stop.to(device), N)
    output, rows = measure(replace(on(device, call), mask=mask), Need.everything(4, bins=BINS))
    expected_output, expected, _ = oracle(call, 4, BINS)
    near(output, expected_output)
    near(rows.band, expected["band"])
    near(rows.bins, expected["bins"])
    near(mask[:, :, 7:9, 5:], call.mask[:, :, 7:9, 5:])  # written out


def check(found, expected, close=1e-4):
    """All numbers of a scan, but what tells how far estimates may be off, which is chaotic."""
    for name, values in expected.data_vars.items():
        if "part" in values.dims:  # of rows with nearly the same weight either can be the largest
            values = values.isel(part=0)  # noqa: PLW2901
        if values.dtype.kind == "f" and not name.endswith(("_freedom", "_skewness", "_effective_rows")):
            own = found[name].isel(part=0, missing_dims="ignore")
            np.testing.assert_allclose(own, values, rtol=10 * close, atol=close, err_msg=name)


@pytest.mark.parametrize("device", [DEVICE] if DEVICE else ["cpu", "cuda"], indirect=True)
def test_every_statistic_of_a_scan_is_that_of_eager_attention(device, no_types):
    names = list(STATISTICS)
    found = attnscope.scan(MODEL, TEXTS, device=device, statistics=names, band=3, batch_size=2)
    reference = load_model(MODEL, device="cpu")
    reference.model.set_attn_implementation("eager")
    windows = [*windows_of(texts_of(TEXTS), reference.tokenizer, length=128)]
    assert len({len(window) for window in windows}) == 2
    for text, window in enumerate(windows):
        with torch.no_grad():
            weights = reference.model(torch.tensor([window.ids]), output_attentions=True).attentions
        special = [list(window.special)]
        expected = attnscope.measure_weights(list(weights), statistics=names, band=3, special=special)
        sides = {dim: expected[dim] for dim in ("every_offset", "offset_bin")}
        of_text = [name for name, values in expected.data_vars.items() if "window" in values.dims]
        check(found.isel(window=[text]).sel(sides), expected[of_text])


def edited(model):
    """Logits without two heads of different layers."""
    ids = torch.tensor([[5, 6, 7, 8, 9]]).to(device_of(model))
    none = dict.fromkeys([(0, 1), (2, 3)], torch.zeros_like)
    with attnscope.edit(model, none), torch.no_grad():
        return xr.Dataset({"logits": (("text", "position", "id"), model(input_ids=ids).logits.cpu().numpy())})


BY = {"tokenizer": load_model(MODEL, device="cpu").tokenizer}
VERBS = {
    "scan, chosen offsets": lambda model: attnscope.scan(model, TEXTS, offsets=[-9, -1], **BY),
    "scan, words": lambda model: attnscope.scan(model, TEXTS, words="unicode", **BY),
    "scan, groups": lambda model: attnscope.scan(model, TEXTS, groups="types", **BY),
    "scan, some rows": lambda model: attnscope.scan(model, TEXTS, rows=16, **BY),
    "scan, pools": lambda model: attnscope.scan(model, TEXTS, pool=2, **BY),
    "received": lambda model: attnscope.received(model, TEXTS[0], layer=2, head=1, **BY).to_dataset(name="r"),
    "weights": lambda model: attnscope.weights(model, TEXTS[0], layer=2, head=1, **BY).to_dataset(name="w"),
    "roles": lambda model: attnscope.roles(model, TEXTS, controls="none", window=16, **BY),
    "intervene": lambda model: attnscope.intervene(model, TEXTS, forbid_offsets=[-1], steps=1, **BY),
    "attribute": lambda model: attnscope_circuits.attribute(model, TEXTS, window=16, **BY),
    "circuits": lambda model: attnscope_circuits.circuits(model, **BY),
    "edges": lambda model: attnscope_circuits.edges(
        model, few_pairs(), method="eap", sizes=[0.0, 0.5, 1.0], draws=1, **BY
    ),
    "edit": edited,
    "patch": lambda model: attnscope.patch(model, few_pairs(), **BY),
    "patch, residual": lambda model: attnscope.patch(model, few_pairs(), what="residual", **BY),
    "explain": lambda model: attnscope.explain(model, limit=2, window=16, **BY),
    "relations": lambda model: relations(model, LINKED, untrained=False, **BY),
    "relations, together, ablated": lambda model: relations(model, COMPARED, **OF_HEADS, **BY),
}


def few_pairs():
    return [json.loads(line) for line in PAIRS.read_text().splitlines()[:8]]


def placed(model, device):
    """On a device; of simulated ones, the first layer is on one and the others are on another."""
    if torch.cuda.is_available() or device == "cpu":
        return model.to(device)
    every = [name for name, _ in model.named_modules(remove_duplicate=False)]
    first = ["encoder.layers.0", *(name for name in every if name not in "encoder.layers" and ".layers." not in name)]
    where = dict.fromkeys(first, "cuda:0") | dict.fromkeys(["encoder.layers.1", "encoder.layers.2"], "cuda:1")
    return dispatch_model(model, where, main_device="cuda:0", force_hooks=True)


@pytest.mark.filterwarnings("ignore:The following device_map keys")  # of the embedding, which the encoder shares
@pytest.mark.parametrize("device", [DEVICE or "cuda"], indirect=True)
@pytest.mark.parametrize("name", VERBS)
def test_each_verb_says_what_it_says_on_the_cpu(device, name):
    here, there = (load_model(MODEL, device="cpu").model for _ in range(2))
    there = placed(there, device)
    found, expected = VERBS[name](there), VERBS[name](here)
    if isinstance(expected, xr.Dataset):
        check(found, expected)
        return
    for node in expected.subtree:  # of tests and rankings a number may tip over
        of_node = found[node.path]
        for variable, values in node.data_vars.items():
            if values.dtype.kind == "f":
                same = np.isclose(of_node[variable], values, rtol=1e-2, atol=1e-3, equal_nan=True)
            else:
                same = of_node[variable].values == values.values
            assert np.mean(same) > 0.95, f"{node.path}/{variable}"


def test_a_run_folder_holds_what_was_measured(device, tmp_path):
    found = attnscope.scan(MODEL, TEXTS, device=device, out=tmp_path / "run", show=[(0, 3)])
    check(attnscope.open_run(tmp_path / "run"), found, 0)
    with RunFolder(tmp_path / "run", Signature.from_json(found.attrs["signature"])) as run:
        sample = run.load(SAMPLE)
    check(found, attnscope.scan(MODEL, TEXTS, device="cpu"))
    assert float(sample.received.sel(layer=0, head=3).isel(window=0).sum()) == pytest.approx(
        float(found.length[0]), rel=1e-4
    )


def test_a_module_that_is_watched(device):
    torch.manual_seed(0)
    module = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    states, results = draw(3, 20, 8), []
    for place in ("cpu", device):
        with attnscope.watch(module.to(place), band=2) as seen, torch.no_grad():
            module(states.to(place))
        results.append(seen.result())
    check(results[1], results[0])


def test_a_text_that_is_written_while_it_is_watched(device):
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, num_attention_heads=4, **shape)).eval()
    ids, results = torch.tensor([[5, 6, 7, 8, 9], [4, 3, 2, 1, 6]]), []
    for place in ("cpu", device):
        given = {"input_ids": ids.to(place), "attention_mask": torch.ones_like(ids).to(place)}
        with attnscope.watch(model.to(place), spans={"two": (1, 3)}) as seen:
            model.generate(**given, max_new_tokens=4, do_sample=False)
        results.append(seen.result())
    check(results[1], results[0])
