"""What all texts come to, head by head: against the formula over all at once, F of SciPy, and planted variances."""

import numpy as np
import pytest
import xarray as xr
from scipy import stats

import attnscope
from attnscope import open_run
from attnscope.measure.pools import DocumentSums, over_documents
from attnscope.statistics.intervals import mean_by_document
from attnscope.store.runs import RunFolder

HEADS = 1000


def documents_of(random, count, most):
    return [f"d{number}" for number in range(count) for _ in range(random.integers(1, most + 1))]


def dataset(values, documents):
    return xr.Dataset(
        {"entropy": (("window", "layer", "head"), values[:, None], {"long_name": "Entropy", "units": "nats"})},
        {"source": ("window", documents)},
    )


@pytest.mark.parametrize(("columns", "mean"), [(7, 1e6), (3000, 0.0)])
def test_pieces_cut_anywhere_give_the_same_to_the_bit_and_the_error_of_all_at_once(columns, mean):
    """Pieces are cut by the clock and by tasks: sums over all texts must not depend on them."""
    random = np.random.default_rng(columns)
    documents = documents_of(random, 30, 9)
    values = mean + random.random((len(documents), columns))
    if not mean:
        values[random.random(values.shape) < 0.1] = np.nan
    found = []
    for pieces in (1, 2, 13, len(documents)):
        sums = DocumentSums()
        for some in np.array_split(np.arange(len(documents)), pieces):
            sums.add(values[some], [documents[i] for i in some])
        found.append({"mean": sums.mean(), "error": sums.error()} | sums.components())
    for other in found[1:]:
        for name, numbers in found[0].items():
            np.testing.assert_array_equal(other[name], numbers)
    if mean:
        expected, error, count = mean_by_document(values, documents)
        np.testing.assert_allclose(found[0]["mean"], expected, rtol=1e-14)
        np.testing.assert_allclose(found[0]["error"], error, rtol=1e-6)
        assert sums.documents == count


def test_the_ratio_of_the_mean_squares_is_that_of_scipy():
    random = np.random.default_rng(0)
    documents = documents_of(random, 9, 5)
    values = random.random((len(documents), 3))
    found = over_documents(dataset(values, documents))
    groups = [values[[name == other for other in documents]] for name in dict.fromkeys(documents)]
    sizes = np.array([len(group) for group in groups])
    size = (sizes.sum() - (sizes**2).sum() / sizes.sum()) / (len(sizes) - 1)
    ratio = 1 + size * found.entropy_between / found.entropy_within
    np.testing.assert_allclose(ratio.values[0], stats.f_oneway(*groups).statistic, rtol=1e-10)
    missing = over_documents(dataset(np.array([[1.0, np.nan], [2.0, np.nan], [3.0, np.nan]]), ["a", "b", "c"]))
    np.testing.assert_array_equal(missing.entropy.values[0], [2, np.nan])  # a head that this layer lacks
    assert np.isnan(missing.entropy_within).all()  # texts of a window each


def test_planted_variances_are_found():
    random = np.random.default_rng(1)
    documents = documents_of(random, 40, 7)
    numbers = np.unique(documents, return_inverse=True)[1]
    values = 2 * random.normal(size=(40, HEADS))[numbers] + random.normal(size=(len(documents), HEADS))
    found = over_documents(dataset(values, documents))
    for name, planted in (("entropy_between", 4), ("entropy_within", 1)):
        means = found[name].values[0]
        assert abs(means.mean() - planted) < 4 * means.std() / HEADS**0.5
    assert (found.entropy_intraclass > found.entropy_intraclass_by_chance).mean() > 0.99


def test_permuted_documents_exceed_what_chance_gives_in_one_of_twenty():
    random = np.random.default_rng(2)
    documents = documents_of(random, 30, 9)
    numbers = np.unique(documents, return_inverse=True)[1]
    values = random.beta(0.5, 3, (30, HEADS))[numbers] + random.beta(0.5, 3, (len(documents), HEADS))  # skewed
    permuted = over_documents(dataset(random.permuted(values, axis=0), documents))
    rate = float((permuted.entropy_intraclass > permuted.entropy_intraclass_by_chance).mean())
    assert 0.03 < rate < 0.07


def test_of_pools_it_is_read_without_them(tmp_path, monkeypatch):
    words = ["the", "tide", "comes", "in", "and", "the", "tide", "goes", "out", "again", "while", "boats", "wait"]
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(words, random.integers(20, 90))) for _ in range(30)]
    given = {"window": 24, "batch_size": 8, "device": "cpu"}
    windows = attnscope.scan("bundled", texts, **given)
    pools = attnscope.scan("bundled", texts, out=tmp_path / "run", pool=16, show=False, **given)
    monkeypatch.setattr(RunFolder, "piece", lambda *_: 1 / 0)
    found = open_run(tmp_path / "run", part="heads")
    expected = over_documents(windows)
    for name in ("entropy", "first_token"):
        np.testing.assert_allclose(found[name], pools[name].mean("window"), rtol=1e-12)
        for end in ("_between", "_within", "_intraclass", "_intraclass_by_chance"):
            np.testing.assert_allclose(found[name + end], expected[name + end], rtol=2e-4, atol=1e-8)
    np.testing.assert_allclose(found.profile, pools.profile.mean("window"), rtol=1e-9, atol=1e-12)
    assert found.attrs["windows"] == windows.sizes["window"]
    assert found.attrs["documents"] == len(set(pools.source.values))
    assert set(found.label_share.dims) == {"layer", "head", "cluster"}
    assert found.entropy_within.units == "nats²"
