"""Shares by offset as `--json` has them, held against eager attention of each window alone."""

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import attnscope
from attnscope.bundled import MODEL
from attnscope.read.encoded import texts_of, windows_of
from attnscope.report.render import as_json
from attnscope.results import scan_report
from tests.tiny_models import tiny

TEXTS = ["The tide comes in twice a day, and twice a day it goes out again. " * 2, "Nobody has seen the keeper."]
BAND = 2


def offsets_of(results):
    """The shares as JSON has them, by profile: those of all heads together."""
    rows = as_json(scan_report.report(results, data=True), "")["tables"].get("offsets", [])
    told = {}
    for of in dict.fromkeys(row["of"] for row in rows):
        parts = [row for row in rows if row["of"] == of]
        shape = (results.sizes["layer"], results.sizes["head"], -1)
        told[of] = (
            parts[0]
            if "left_out" in parts[0]
            else parts[0]
            | {
                "share": np.reshape(np.array([row["share"] for row in parts], float), shape),
                "equal": np.reshape(np.array([row["equal"] for row in parts], float), shape)[:, 0],
            }
        )
    return told


def in_range(weights, first, last):
    """Mean over queries of the weight between two offsets: ``(layer, head)``."""
    offset = np.subtract.outer(np.arange(weights.shape[-1]), np.arange(weights.shape[-2])).T
    return (weights * ((offset >= first) & (offset <= last))).sum((-2, -1)) / weights.shape[-2]


def check(told, matrices, equal, nowhere):
    """Each share that is told, against matrices of each window; `nowhere` is told where no query may look."""
    first, last = told["first"], told["last"]
    for bin_, ends in enumerate(zip(first, last, strict=True)):
        own = np.mean([in_range(weights, *ends) for weights in matrices], 0)
        even = np.mean([in_range(weights, *ends) for weights in equal], 0)
        if nowhere is None and even == 0:
            own, even = own * np.nan, np.nan
        share, equal_share = (np.array(told[name], float)[..., bin_] for name in ("share", "equal"))
        np.testing.assert_allclose(share, own, atol=2e-6)
        np.testing.assert_allclose(equal_share, np.full(own.shape[0], even), atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_json_has_what_eager_attention_gives(family, tmp_path):
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = tiny(family)
    model.resize_token_embeddings(len(tokenizer))
    names = "bin_sum,offset_sum,band_sum"
    given = {"tokenizer": tokenizer, "window": 32, "band": BAND, "out": tmp_path, "offsets": [-9, -1, 3]}
    found = attnscope.scan(model, TEXTS, statistics=names, **given)
    told = offsets_of(found)
    model.set_attn_implementation("eager")
    matrices, equal = [], []
    windows = windows_of(texts_of(TEXTS), tokenizer, length=32)
    for window in windows:
        with torch.no_grad():
            layers = model(torch.tensor([window.ids]), output_attentions=True).attentions
        matrices.append(torch.stack(layers)[:, 0].double().numpy())
        seen = np.ones(matrices[-1].shape[-2:])
        seen = np.tril(seen) if family == "gpt2" else seen
        equal.append(seen / seen.sum(-1, keepdims=True))
    assert len({len(weights[0, 0]) for weights in matrices}) > 1  # windows of several lengths
    for name, part in told.items():
        check(part, matrices, equal, nowhere=None if name == "chosen" else 0)
    longest = max(len(weights[0, 0]) for weights in matrices)
    right = 0 if family == "gpt2" else longest - 1
    assert told["every"]["first"] == [*range(1 - longest, right + 1)]
    assert told["band"]["first"] == [*range(-BAND, min(right, BAND) + 1)]
    np.testing.assert_allclose(np.sum(told["bins"]["share"], -1), 1, atol=1e-5)
    none = found.drop_vars(["bin_sum", "band_sum", "offset_sum", "weight_at"])
    assert offsets_of(none) == {}
