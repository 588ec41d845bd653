"""Statistics of a caller's own: the same records as those of attnscope, in every place that shows those."""

import importlib
import itertools
import json
import sys
import types
from importlib import metadata

import numpy as np
import pytest
import torch

import attnscope
from attnscope import AttnscopeError
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.full import attend_in_full
from attnscope.measure.passes import Marks, measure_call
from attnscope.measure.quantities import STATISTICS, Statistic, Wording
from attnscope.report import registry
from attnscope.results.reports import report_of
from attnscope_monitor import HeadMonitor
from tests.command_processes import Started
from tests.image_models import vision_model, write_pictures
from tests.tiny_models import tiny

IDS = torch.randint(5, 50, (3, 24), generator=torch.Generator().manual_seed(0)).tolist()
#: Statistics that equal one of attnscope's to the last bit.
SAME = {
    "own_entropy": "entropy",
    "own_max_weight": "max_weight",
    "own_top_key": "top_key",
    "own_first_token": "first_token",
    "own_largest_first": "largest_first",
}
BOTH = [*SAME, *SAME.values()]
SHAPE = (2, 3, 40, 8)


@pytest.fixture(scope="module", autouse=True)
def own_records():
    """Registered when it is imported, as it is for a caller."""
    sys.modules.pop("tests.own_records", None)
    importlib.import_module("tests.own_records")


def draw(seed):
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))


def same(results, *, suffix=""):
    """Whether each of these statistics has the bits of its built-in one, also under uniform attention."""
    pairs = [(f"{own}{suffix}", f"{other}{suffix}") for own, other in SAME.items()]
    for own, other in pairs:
        np.testing.assert_array_equal(results[own].values, results[other].values)
    uniform = [(f"equal_{own}", f"equal_{other}") for own, other in pairs if f"equal_{other}" in results]
    assert len(uniform) >= 3
    for own, other in uniform:
        if "largest_first" not in own:  # which has its own null
            np.testing.assert_array_equal(results[own].values, results[other].values)


@pytest.mark.parametrize("family", ["bert", "gpt2", "mistral", "gpt_oss", "bart"])
def test_a_statistic_like_one_of_ours_has_its_bits(family):
    results = attnscope.scan(tiny(family), IDS, statistics=BOTH, batch_size=2)
    same(results)
    assert (results.equal_own_largest_first == 0.5).all()
    assert results.own_entropy.attrs == {"long_name": "Entropy of a row, ours", "units": "nats"}


def test_it_is_measured_by_group_in_pools_and_in_words():
    texts = ["The tide, that is out, comes in.", "It goes out again, and no one sees it."] * 4
    grouped = attnscope.scan(texts=texts, statistics=BOTH, groups="types", pool=2)
    same(grouped)
    with_rows = {name: other for name, other in SAME.items() if name != "own_top_key"}
    for own, other in with_rows.items():
        np.testing.assert_array_equal(grouped[f"{own}_by_group"].values, grouped[f"{other}_by_group"].values)
    same(attnscope.scan(texts=texts, statistics=BOTH, words="unicode"))


def test_it_is_estimated_from_some_rows_as_ours_are():
    chosen = {"statistics": ["own_entropy", "entropy"], "rows": 16, "window": 64, "limit": 3}
    results = attnscope.scan(**chosen)
    for end in ("", "_error", "_freedom", "_skewness", "_effective_rows"):
        np.testing.assert_array_equal(results[f"own_entropy{end}"].values, results[f"entropy{end}"].values)
    with pytest.raises(AttnscopeError, match="own_weights needs all rows: leave out rows"):
        attnscope.scan(**chosen | {"statistics": ["own_weights"]})


def test_it_is_measured_in_images(tmp_path):
    model, processor = vision_model("vit")
    names = [name for name in SAME if name in {"own_entropy", "own_max_weight"}]
    pictures = write_pictures(tmp_path / "pictures")
    results = attnscope.scan(model, pictures, tokenizer=processor, statistics=["default", *names, "own_weights"])
    for name in names:
        np.testing.assert_array_equal(results[name].values, results[SAME[name]].values)
    np.testing.assert_allclose(results.own_weights, results.max_weight, rtol=1e-5)
    with pytest.raises(AttnscopeError, match="there is no statistic 'own_largest_first' of images"):
        attnscope.scan(model, pictures, tokenizer=processor, statistics=["own_largest_first"])


def test_weights_of_modules_and_existing_ones_have_it_too():
    weights = [torch.randn(2, 4, 9, 9).softmax(-1)]
    same(attnscope.measure_weights(weights, statistics=BOTH))
    model = tiny("bert")
    with attnscope.watch(model, statistics=BOTH) as seen, torch.no_grad():
        model(torch.tensor(IDS))
    same(seen.result())


def test_a_monitor_has_it_with_interval_and_uniform_value():
    monitor = HeadMonitor({"input_ids": torch.tensor(IDS * 3)}, statistics=BOTH)
    monitor(tiny("gpt2"), 0)
    same(monitor.dataset)
    for end in ("", "_low", "_high"):
        np.testing.assert_array_equal(monitor.dataset[f"own_entropy{end}"], monitor.dataset[f"entropy{end}"])
    found = monitor.dataset
    assert bool(((found.own_top_key_low <= found.own_top_key) & (found.own_top_key <= found.own_top_key_high)).all())
    with pytest.raises(AttnscopeError, match="statistics has profile, with several numbers a head"):
        HeadMonitor({}, statistics="profile")


def test_differences_of_models_have_it():
    models = [tiny("bert"), tiny("bert")]
    with torch.no_grad():
        models[1].bert.encoder.layer[0].attention.self.query.weight.mul_(2)
    scans = [attnscope.scan(model, IDS * 3, statistics=BOTH) for model in models]
    own, other = (attnscope.diff(*scans, statistics=[name]) for name in ("own_max_weight", "max_weight"))
    for name in ("before", "after", "change", "change_low", "change_high", "p"):
        np.testing.assert_array_equal(own[name].values, other[name].values)


def test_tables_and_the_page_show_it(tmp_path):
    results = attnscope.scan(statistics="default,own_top_key,top_key", limit=4)
    (table,) = [table for table in report_of("scan", results).tables if table.name == "requested"]
    rows = {row["statistic"]: row for row in table.rows}
    assert {**rows["own_top_key"], "statistic": ""} == {**rows["top_key"], "statistic": ""}
    (heads,) = [table for table in report_of("scan", results).tables if table.name == "heads"]
    assert [row["own_top_key"] for row in heads.rows] == [row["top_key"] for row in heads.rows]


@pytest.mark.parametrize("name", ["own_weights", "own_distance", "own_tiles"])
@pytest.mark.parametrize("kind", ["causal", "gaps"])
def test_statistics_of_every_weight_are_those_of_the_matrix(name, kind, monkeypatch):
    monkeypatch.setattr("attnscope.measure.rows._WEIGHTS_AT_ONCE", 700)  # blocks of two rows
    mask = None if kind == "causal" else draw(4)[:, :1, :, :1] + draw(5)[:, :1, :, :1].mT > -1
    call = AttentionCall(draw(0), draw(1), draw(2), 0.5, causal=kind == "causal", mask=mask)
    real = torch.ones(2, 40, dtype=torch.bool)
    _, found = measure_call(call, [name], 3, 39, Marks(real, real, ~real))
    _, uniform = measure_call(
        AttentionCall(*(torch.zeros_like(call.query) for _ in range(3)), 0.5, causal=call.causal, mask=mask),
        [name], 3, 39, Marks(real, real, ~real),
    )  # fmt: skip
    weights = attend_in_full(call)[1].double()
    places = torch.arange(40)
    rows = weights.amax(-1) if name != "own_distance" else (weights * (places - places[:, None])).sum(-1)
    seen = weights.sum(-1) > 0
    expected = rows.where(seen, 0.0).sum(-1) / seen.sum(-1)
    torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[f"equal_{name}"], uniform[name][:, :1], rtol=1e-6, atol=1e-6)


def test_uniform_rows_have_every_measure_without_a_pass():
    """By arithmetic under a mask without gaps, as a pass over equal scores has them."""
    equal = [torch.zeros(SHAPE) for _ in range(3)]
    real = torch.ones(2, 40, dtype=torch.bool)
    for causal in (True, False):
        marks = Marks(real, real, ~real)
        _, found = measure_call(AttentionCall(*equal, 0.5, causal=causal), ["own_sum"], 3, 39, marks)
        torch.testing.assert_close(found["equal_own_sum"], found["own_sum"][:, :1], rtol=1e-5, atol=1e-5)


def bad(function, **how):
    names = (f"bad_{number}" for number in itertools.count())
    name = next(name for name in names if name not in STATISTICS)
    attnscope.statistic(name=name, needs=["entropy"], **how)(function)
    return name


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda rows: rows.measures.entropy, r"returns shape \(1, 12, 128\); expected a tensor of shape \(1, 12\)"),
        (lambda rows: 3.0, "returns a float; expected a tensor"),
        (lambda rows: rows.count * torch.nan, "returns NaN or an infinite number for a head with rows"),
        (lambda rows: torch.rand_like(rows.count), "returns other numbers for the same rows: remove random numbers"),
        (lambda rows: rows.mean(rows.measures.largest), "failed: .* Correct its function, or add what it uses to its"),
        (lambda rows: rows.summed("received").sum(-1), "found no such measure of the rows: a statistic names"),
    ],
)
def test_a_bad_function_is_an_error_before_anything_is_written(function, says, tmp_path):
    with pytest.raises(AttnscopeError, match=says) as error:
        attnscope.scan(statistics=[bad(function)], limit=1, out=tmp_path / "run")
    assert len(str(error.value).splitlines()) <= 2
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"name": "entropy"}, "the statistic 'entropy' is one of attnscope: choose another name"),
        ({"name": "Mine!"}, "needs a name of small letters, digits and _"),
        ({"name": "mine_error"}, "has an ending or a beginning with a meaning"),
        ({"name": "window"}, "the statistic 'window' is one of attnscope"),
        ({"name": "mine", "needs": ["entropies"]}, "the statistic mine needs 'entropies'; expected entropy, largest"),
    ],
)
def test_a_name_or_a_need_that_cannot_be_is_an_error(how, says):
    with pytest.raises(AttnscopeError, match=says):
        attnscope.statistic(**how)(lambda rows: rows.count)
    assert how["name"] == "entropy" or how["name"] not in STATISTICS


def test_another_module_does_not_replace_it():
    space = {"__name__": "elsewhere"}
    exec("def own_entropy(rows):\n    return rows.count", space)  # noqa: S102 a function of another module
    with pytest.raises(AttnscopeError, match=r"the statistic 'own_entropy' is one of tests.own_records: choose"):
        attnscope.statistic(needs=["entropy"])(space["own_entropy"])


def scaled(factor):
    return lambda rows: rows.mean_of("entropy") * factor


def test_a_finished_run_of_another_function_never_answers(tmp_path):
    run = {"statistics": ["scaled"], "limit": 1, "out": tmp_path / "run", "show": False}
    for factor in (2, 3):
        attnscope.statistic(name="scaled", needs=["entropy"])(scaled(factor))
        if factor == 2:
            first = attnscope.scan(**run)
            assert attnscope.scan(**run).identical(first)  # from its folder
    with pytest.raises(AttnscopeError, match=r"holds another run: its settings.code.statistic scaled.sha256 is"):
        attnscope.scan(**run)
    attnscope.statistic(name="scaled", needs=["entropy"])(scaled(2))
    assert attnscope.scan(**run).identical(first)
    record = json.loads(first.attrs["signature"])["settings"]["code"]["statistic scaled"]
    assert record["name"] == f"{__name__}.scaled.<locals>.<lambda>"


def open_and_resume(folder):
    """In a process that has not imported the module of these statistics."""
    run = {"statistics": "own_entropy", "limit": 3, "out": folder, "show": False}
    opened = attnscope.open_run(folder)
    try:
        attnscope.scan(**run)
    except AttnscopeError as error:
        print(error)
    importlib.import_module("tests.own_records")
    print(opened.identical(attnscope.scan(**run)))


def test_another_process_opens_it_and_resumes_it_where_it_is_registered(tmp_path):
    attnscope.scan(statistics="own_entropy", limit=3, out=tmp_path / "run", show=False)
    found, wrong = Started(tmp_path / "run", cwd=tmp_path, instead=open_and_resume).communicate()
    assert found, wrong
    resumed, both = found.splitlines()
    assert resumed.startswith("the statistic 'own_entropy' is known from a run alone: first import the module")
    assert both == "True"


def test_a_package_registers_it_by_an_entry_point(monkeypatch):
    space = types.ModuleType("installed_package")
    source = "import attnscope\n@attnscope.statistic(needs=['entropy'])\ndef installed(rows):\n    return rows.count\n"

    class Entry:
        value = "installed_package"

        def load(self):
            exec(compile(source, "installed_package.py", "exec"), vars(space))  # noqa: S102 as an import does

    monkeypatch.setattr(metadata, "entry_points", lambda group: [Entry()] * (group == registry.GROUP))
    registry.load_records.cache_clear()
    assert "installed" in attnscope.scan(limit=1, statistics="installed")
    entry = metadata.EntryPoint("mine", "absent_package", registry.GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [entry] * (group == registry.GROUP))
    registry.load_records.cache_clear()
    with pytest.raises(AttnscopeError, match="absent_package, which adds statistics or other records, cannot be"):
        attnscope.scan(limit=1, statistics="absent")


@pytest.mark.parametrize("family", ["bert", "gpt2", "mistral", "bart"])
def test_rows_have_the_tokens_of_queries_and_keys_in_batches_with_padding(family):
    def equal_tokens(rows, weights, queries):
        return (weights * (rows.key_ids[:, :, None] == rows.query_ids[..., queries][..., None])).sum(-1)

    @attnscope.statistic(name="on_equal_tokens", needs=["weights"], null=False)
    def on_equal_tokens(rows):
        return rows.mean(rows.of_weights(lambda weights, queries: equal_tokens(rows, weights, queries)))

    model, ids = tiny(family), [row[: 24 - 4 * number] for number, row in enumerate(IDS)]
    ids = [[token % 5 + 5 for token in row] for row in ids]  # of five tokens, so that some are equal
    found = attnscope.scan(model, ids, statistics=["on_equal_tokens", "entropy"], batch_size=3)
    alone = [attnscope.scan(model, [row], statistics=["on_equal_tokens"]) for row in ids]
    for number, row in enumerate(ids):
        np.testing.assert_allclose(found.on_equal_tokens[number], alone[number].on_equal_tokens[0], atol=1e-6)
        weights = attnscope.weights(model, row).values
        same = np.equal.outer(row, row)
        expected = np.nansum(weights * same, -1).mean(-1)
        np.testing.assert_allclose(found.on_equal_tokens[number], expected, atol=1e-5)
    registry.forget({("statistic", "on_equal_tokens")})


def test_tokens_of_some_rows_are_not_known():
    @attnscope.statistic(name="of_token_5", needs=["entropy"])
    def of_token_5(rows):
        """Entropy of rows of one token."""
        return rows.mean(rows.measures.entropy * (rows.query_ids == 5))

    model = tiny("gpt2")
    assert (attnscope.scan(model, IDS, statistics=["of_token_5"]).of_token_5 > 0).any()
    with pytest.raises(AttnscopeError, match="tokens of rows are known in scans of texts only"):
        attnscope.scan(model, IDS, statistics=["of_token_5"], rows=16)
    registry.forget({("statistic", "of_token_5")})


def test_a_misspelled_need_of_a_record_of_ours_is_named():
    with pytest.raises(AttnscopeError, match="'Share' needs 'entrpy'; expected band, "):
        Statistic(Wording("Share"), lambda rows: rows.count, ("entrpy",))
