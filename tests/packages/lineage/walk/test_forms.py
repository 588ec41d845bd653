"""What efficient forms lose: identities between them and full attention, and scan's own numbers."""

import pytest
import torch
from numpy.testing import assert_allclose

import attnscope
from attnscope import AttnscopeError
from attnscope.bundled import MODEL, TEXT
from attnscope.capture.load import load_model
from attnscope.capture.watching import watching
from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import measure
from attnscope.kernels.reference import attend, causal_mask, window_mask
from attnscope.read.texts import Corpus
from attnscope.read.windows import Windows
from attnscope_lineage.forms import compare_call, compare_forms, usual_forms, weights_of_form

X = torch.randn(3, 2, 3, 40, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_a_window_moves_the_weight_beyond_it():
    """Renormalised after leaving keys out, a row differs from the full one by exactly the weight left out."""
    query, key, value = X
    found = compare_forms(query, key, value, usual_forms(reach=5)).sel(form="window of 5")
    _, weights = attend(query, key, value)
    beyond = (weights * ~window_mask(40, 40, left=5, right=5)).sum(-1).mean(-1)
    assert_allclose(found.weight_moved, beyond, rtol=1e-12)
    assert (found.profile.sel(offset=[-6, 6]) == 0).all()


def test_full_attention_loses_nothing_to_itself_and_causal_forms_only_look_back():
    found = compare_forms(*X, {"again": lambda q, k, v: attend(q, k, v)[0]})
    assert_allclose(found.sel(form="again").to_array(), found.sel(form="full").to_array(), atol=1e-12)
    assert float(found.output_error.max()) < 1e-14
    ahead = [compare_forms(*X, causal=causal).sel(offset=slice(1, 8)).profile.max("offset") for causal in (False, True)]
    assert (ahead[0] > 0).all()
    assert (ahead[1] == 0).all()


def test_beside_a_real_model_full_attention_has_the_numbers_of_scan(tmp_path):
    loaded = load_model(MODEL, device="cpu")
    (window,) = Windows(Corpus.from_sources([TEXT]), loaded.tokenizer, length=128, limit=1)
    found = []

    def observe(site, call):
        found.append(compare_call(call).sel(form="full"))
        return measure(call, Need())[0]

    with torch.no_grad(), watching(loaded.model, observe):
        loaded.model(torch.tensor([window.ids]))
    scanned = attnscope.scan(MODEL, [TEXT], limit=1, window=128, out=tmp_path / "run", device="cpu")
    for name in ("profile", "entropy", "first_token"):
        for layer, one in enumerate(found):
            assert_allclose(one[name], scanned[name].isel(layer=layer), atol=1e-5)


def test_grouped_queries_and_the_scale_of_the_call_are_respected():
    query, key, value = X[0], X[1, :, :1], X[2, :, :1]
    found = compare_call(AttentionCall(query, key, value, scale=2.0))
    expected = compare_forms(4 * query, key.expand(-1, 3, -1, -1), value.expand(-1, 3, -1, -1))
    assert_allclose(found.to_array(), expected.to_array(), rtol=1e-12)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"softcap": 5.0}, "the call has softcap"),
        ({"bias": torch.zeros(1, 1, 40, 40)}, "the call has bias"),
        ({"mask": window_mask(40, 40, left=3, right=3)[None, None]}, "found a mask beyond the causal one"),
    ],
)
def test_what_the_forms_do_not_know_is_rejected(extra, message):
    with pytest.raises(AttnscopeError, match=message):
        compare_call(AttentionCall(*X, scale=0.5, **extra))


@pytest.mark.parametrize("causal", [False, True])
def test_a_form_computes_as_many_weights_as_it_is_said_to(causal):
    query, key = torch.randn(2, 1, 1, 40, 4, dtype=torch.float64)
    same = torch.eye(40, dtype=torch.float64)[None, None]
    forms = {"full": lambda q, k, v: attend(q, k, v, causal_mask(40, 40, q.device) if causal else None)[0]}
    for name, form in (forms | usual_forms(causal=causal)).items():
        expected = 0 if name == "linear" else int((form(query, key, same) > 0).sum())
        assert weights_of_form(name, 40, causal=causal) == expected, name


def test_bad_forms():
    with pytest.raises(AttnscopeError, match="choose another name"):
        compare_forms(*X, {"full": lambda q, k, v: v})
    with pytest.raises(AttnscopeError, match="gives \\(2, 3, 39, 4\\)"):
        compare_forms(*X, {"short": lambda q, k, v: v[:, :, 1:]})
