"""`diff` on real scans: what was changed is found, and nothing else; what cannot be compared is refused."""

import itertools
import json
import shutil

import numpy as np
import pytest
import scipy
import torch
import xarray as xr
from rich.console import Console

import attnscope
from attnscope import AttnscopeError, open_run
from attnscope.bundled import MODEL, TEXT
from attnscope.capture.load import load_model
from attnscope.comparison.diff import _quantities, changes_of, value_headings
from attnscope.report.render import _rich_table
from attnscope.report.schema import Table
from attnscope.report.signature import Signature
from attnscope.results.reports import report_of, write_page
from attnscope.statistics.effects import changes_by_model
from attnscope.support.numbers import places, plain
from tests.cli.command import attnscope as command
from tests.image_models import SIDE, looking_vit

WIDTH = 32  # of a head
_SAMPLE = "".join(path.read_text(encoding="utf-8") for path in sorted(TEXT.iterdir()))
DOCUMENTS = [_SAMPLE[start : start + 150] for start in range(0, 80 * 150, 150)]


def sentences(verb, result):
    return report_of(verb, result).finding.sentences


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """The bundled model, and the same with other queries in head 1.1, on the sample."""
    place = tmp_path_factory.mktemp("diff")
    tuned = load_model(MODEL, device="cpu")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        weight = tuned.model.get_parameter("encoder.layers.1.self_attention.q_proj.weight")
        rows = weight[WIDTH : 2 * WIDTH]
        rows += 0.5 * weight.std() * torch.randn(rows.shape, generator=generator)
    shutil.copytree(MODEL, place / "tuned")
    tuned.model.save_pretrained(place / "tuned")
    for name, model in (("before", MODEL), ("after", place / "tuned")):
        attnscope.scan(model, DOCUMENTS, out=place / name, window=64, limit=80)
    return place


def test_the_head_that_was_changed_changed_most_and_those_below_it_not_at_all(scans):
    found = attnscope.diff(scans / "before", scans / "after")
    first = changes_of(found)[0]
    assert (first["layer"], first["head"], first["changed"]) == (1, 1, True)
    assert not found.changed.sel(layer=0).any()
    assert not found.changed.sel(layer=1, head=[0, 2, 3]).any()
    assert found.attrs["matching"] == "number"
    assert float(found.profile_distance.sel(layer=1, head=1)) > float(found.profile_distance.sel(layer=2).max())
    assert " heads changed significantly: " in sentences("diff", found)[0]


def test_means_are_those_of_the_scans(scans):
    before, after = (open_run(scans / name) for name in ("before", "after"))
    found = attnscope.diff(before, after, statistics=["entropy"])
    np.testing.assert_allclose(found.before[0], before.entropy.mean("window"))
    np.testing.assert_allclose(found.change[0], (after.entropy - before.entropy).mean("window"), atol=1e-12)


def test_a_model_does_not_differ_from_itself(scans):
    found = attnscope.diff(scans / "before", scans / "before")
    assert not found.changed.any()
    assert sentences("diff", found) == ["Nothing differs: both scans have the same numbers."]


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-4, 1e-6, 1e-9, 1e-30])
def test_no_value_and_no_star_is_cut_in_80_columns(scale):
    generator = np.random.default_rng(0)
    plain_row = {"layer": 11, "head": 15, "partner": 14, "units": "1", "before": -16.56, "p": 0.001, "changed": True}
    rows = [
        plain_row
        | {"statistic": name, "after": -16.56 + step, "change": step, "size": step}
        | {"low": step - scale / 9, "high": step + scale / 9}
        for name in ("offset_spread", "special_tokens", "weight_at_-1024")
        for step in scale * generator.normal(0, 3, 5)
    ]
    rows += [rows[0] | {"change": scale / 100, "low": -0.02, "high": 0.02, "changed": False}]
    attrs = {"matching": "profile", "similarity": "not shown"}
    printed = printed_table(_quantities(xr.Dataset(coords={"statistic": []}, attrs=attrs)), rows)
    lines = printed.splitlines()
    assert "…" not in printed
    assert max(map(len, lines)) <= 80
    assert printed.count("*") == len(rows) - 1
    for row in rows[:-1]:
        told = f"{plain(row['change'], places(row['change'], 3), '+')}*"
        (change,) = [word for line in lines for word in line.split() if word == told]
        assert float(change[:-1]) == pytest.approx(row["change"], rel=0.06, abs=6e-4 * (scale == 1.0))


def printed_table(quantities, rows):
    """A table in 80 columns."""
    said, table = Console(width=80), Table("changes", "", quantities, rows)
    with said.capture() as printed:
        said.print(_rich_table(table, table.shown("table")))
    return printed.get()


def test_each_chosen_offset_and_each_share_of_blocks_is_compared():
    asked = {"texts": ["The tide comes in twice a day."] * 3, "statistics": "entropy,block_recall"}
    before, after = (attnscope.scan(**asked, offsets=offsets) for offsets in ([-2, -1], [-1, 3]))
    found = attnscope.diff(before, after)
    blocks = [f"block_recall_{kept}" for kept in before.kept.values]
    once = json.loads(found.attrs["repeated"])  # a text of one block: each share keeps it
    assert {*found.statistic.values, *once} == {"entropy", "weight_at_-1", *blocks}
    one = found.sel(statistic="weight_at_-1")
    np.testing.assert_allclose(one.before, before.weight_at.sel(chosen_offset=-1).mean("window"))
    assert (one.long_name, one.units) == ("Share of the weight at offset -1", "share")
    assert attnscope.diff(before, after, statistics=["weight_at_-1"]).statistic.values.tolist() == ["weight_at_-1"]


def test_the_command_writes_a_run_that_opens_again(scans):
    said = command("diff", "before", "after", "--out", "run", cwd=scans)
    assert said.returncode == 0, said.stderr
    assert "1.1" in said.stdout
    page = (scans / "run" / "report.html").read_text(encoding="utf-8")
    assert 'id="change-maps"' in page
    assert 'id="before-after"' in page
    assert bool(open_run(scans / "run").changed.sel(layer=1, head=1).any())
    rows = command("diff", "before", "after", "--out", "run", "--csv", cwd=scans).stdout.splitlines()
    assert len(rows) == 1 + 12 * len(open_run(scans / "run").statistic)
    signature = Signature.from_json(open_run(scans / "run").attrs["signature"]).short
    assert [row.rpartition(",")[2] for row in rows] == ["signature", *[signature] * (len(rows) - 1)]
    given = json.loads(command("diff", "before", "after", "--out", "run", "--json", cwd=scans).stdout)
    assert given["tables"]["matching"] == [{"matching": "number", "similarity": "shown"}]
    assert given["tables"]["repeated"] == []


@pytest.mark.usefixtures("no_types")
def test_what_cannot_be_compared_is_rejected(scans, tmp_path):
    other = attnscope.scan(texts=["The tide is out."] * 8)
    shorter = attnscope.scan(texts=DOCUMENTS, window=64, limit=6)
    first = open_run(scans / "before")
    for given, says in (
        (other, "different texts"),
        (shorter, "differ in --limit: 80 and 6"),
        (tmp_path, "no run of attnscope"),
        (first[["entropy"]].drop_attrs(), "not a scan"),
    ):
        with pytest.raises(AttnscopeError, match=says):
            attnscope.diff(first, given)
    for options, says in (
        ({"statistics": ["entrop"]}, "no common statistic 'entrop'"),
        ({"heads": "name"}, "expected 'auto' or 'number' or 'profile'"),
        ({"level": 1.5}, "level"),
    ):
        with pytest.raises(AttnscopeError, match=says):
            attnscope.diff(first, first, **options)


def test_heads_of_vision_encoders_are_matched_by_patches():
    shifts = ((0, -1), (-1, 0), (1, 1), (0, 1))
    pixels = torch.rand(6, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    first, other = (
        attnscope.scan(looking_vit(order, sharpness=sharp), pixels, device="cpu")
        for order, sharp in ((shifts, 60.0), (shifts[::-1], 12.0))
    )
    found = attnscope.diff(first, other, heads="profile")
    assert found.partner.values.tolist() == [[3, 2, 1, 0]]
    assert bool(found.changed.sel(statistic="entropy").all())
    assert "over 6 images" in sentences("diff", found)[0]


def test_what_was_not_tested_is_not_called_unchanged(tmp_path):
    few = attnscope.scan(limit=4, window=32, statistics=["entropy"])
    other = few.assign(entropy=few.entropy + 0.5)
    found = attnscope.diff(few, other)
    assert not found.tested.any()
    assert {row["changed"] for row in changes_of(found)} == {None}
    page = write_page(report_of("diff", found), tmp_path / "page.html").read_text(encoding="utf-8")
    assert 'class="number open"' not in page
    assert "significant" not in page.partition("<body>")[2].partition("<script")[0]
    assert page.count("Nothing is tested: tests need 6 or more documents, and there is 1.") == 1


def test_heads_that_are_not_shown_to_be_the_same_are_only_paired(tmp_path):
    found = attnscope.diff(untrained(0), untrained(1), out=tmp_path / "run")
    assert found.attrs["similarity"] == "not shown"
    *others, last = sentences("diff", found)
    assert "because heads of one number are not significantly similar" in last
    assert last.endswith("so they may be different heads.")
    assert "asked" not in last
    assert "pairs of heads differ" in others[0]
    printed = printed_table(_quantities(found), changes_of(found)[:3])
    assert "matched" in printed  # with, in a narrow terminal below it
    page = write_page(report_of("diff", found), tmp_path / "page.html").read_text(encoding="utf-8")
    for text in (*others, last, printed, page):
        assert "is now" not in text.lower()
        assert "changed" not in text
    assert all(word in printed and f">{word.capitalize()}<" in page for word in value_headings(found))
    assert "What differs between" in page


def test_the_finding_reports_how_heads_were_matched(scans):
    tuned = {rule: attnscope.diff(scans / "before", scans / "after", heads=rule) for rule in ("auto", "profile")}
    assert sentences("diff", tuned["auto"])[-1].endswith("by number. These pairs are more similar than chance.")
    assert "profiles, as requested (" in sentences("diff", tuned["profile"])[-1]
    for similarity in ("shown", "not shown"):  # no head is promised the one that is most like it
        said = sentences("diff", tuned["profile"].assign_attrs(similarity=similarity))[-1]
        assert "matched one to one by their offset profiles" in said
    assert value_headings(tuned["profile"])[2] == "difference"
    strangers = attnscope.diff(untrained(0), untrained(1), heads="number")
    assert "by number, as requested. These pairs are not more similar" in sentences("diff", strangers)[-1]
    runs = [run.drop_vars("profile") for run in (untrained(0), untrained(1))]
    assert "Without offset profiles" in sentences("diff", attnscope.diff(*runs))[-1]


def untrained(seed):
    """Statistics of a model that has nothing to do with those of other seeds."""
    draws, run = np.random.default_rng(seed), attnscope.scan(limit=8, window=32).copy(deep=True)
    run = run.assign_coords(source=("window", list("abcdefgh")))  # documents
    places = (*run.profile.shape[1:3], run.sizes["offset"])
    run["profile"] = (run.profile.dims, np.broadcast_to(draws.dirichlet(np.ones(places[2]), places[:2]), (8, *places)))
    run["entropy"] = (run.entropy.dims, draws.normal(2, 0.1, places[:2]) + draws.normal(0, 0.01, run.entropy.shape))
    return run


def of_models(values, before):
    """Scans of models with these entropies, ``(model, layer, head)``, on 8 texts."""
    scan = attnscope.scan(texts=[f"The tide comes in at {hour}." for hour in range(8)], statistics="entropy,profile")
    scans = [
        scan.assign(entropy=scan.entropy.copy(data=np.broadcast_to(one[None], scan.entropy.shape).copy()))
        for one in values
    ]
    return scans[:before], scans[before:]


def test_the_headline_names_the_largest_change_that_is_significant():
    values = np.random.default_rng(0).normal(size=(6, 3, 4))
    values[3:, 1, 2] += 400
    values[3:, 0, 0] += [0, 1500, 3000]  # larger, but of one model
    before, after = of_models(values, 3)
    found = attnscope.diff(before, after, statistics=["entropy"])
    assert np.argwhere(found.changed[0].values).tolist() == [[1, 2]]
    assert abs(found["size"]).argmax(...)["head"] == 0
    headline = report_of("diff", found).finding.headline
    assert headline.startswith(
        "1 of 12 heads changed significantly; the largest significant change is that of head 1.2"
    )


def test_groups_of_models_are_compared_by_the_spread_between_models():
    values = np.random.default_rng(0).normal(size=(6, 3, 4))
    values[3:, 1, 2] += 400
    before, after = of_models(values, 3)
    found = attnscope.diff(before, after, statistics=["entropy"])
    expected = scipy.stats.ttest_ind(values[3:], values[:3], equal_var=False)
    np.testing.assert_allclose(found.p[0], expected.pvalue)
    interval = expected.confidence_interval()
    np.testing.assert_allclose([found.change_low[0], found.change_high[0]], [interval.low, interval.high])
    assert np.argwhere(found.changed[0].values).tolist() == [[1, 2]]
    assert found.attrs["least_p"] == found.attrs["p_of_groupings"] == 0.1  # 2 of 20 groupings
    told = " ".join(sentences("diff", found))
    assert "1 of 12 heads changed significantly: 1 of 12 changes (false discovery rate 5%, over 3 and 3 models)" in told
    assert "this exact test cannot give less than 0.1 with so few models" in told
    one = attnscope.diff(before[0], after[0], statistics=["entropy"])
    assert one.changed.all()  # over texts, one seed differs from another in every head


def test_the_exact_test_of_groups_tries_every_grouping():
    generator = np.random.default_rng(1)
    values = generator.normal(size=(7, 5))
    _, chance, least = changes_by_model(values[:3], values[3:])
    largest = []
    for chosen in itertools.combinations(range(7), 3):
        rest = [at for at in range(7) if at not in chosen]
        largest.append(np.abs(scipy.stats.ttest_ind(values[rest], values[[*chosen]], equal_var=False).statistic).max())
    assert chance == np.mean(np.array(largest) >= largest[0] * (1 - 1e-9))
    assert least == 1 / 35


def test_groups_that_do_not_differ_rarely_have_a_change():
    generator, any_change = np.random.default_rng(0), []
    for _ in range(200):
        values = generator.standard_normal((6, 60)) + generator.standard_normal((6, 1))
        changes, chance, _ = changes_by_model(values[:3], values[3:])
        any_change.append([changes.changed.any(), chance <= 0.1])
    assert np.mean(any_change, 0)[0] <= 0.05 + 0.04
    assert np.mean(any_change, 0)[1] == pytest.approx(0.1, abs=0.06)


def test_the_command_compares_groups_with_commas_between(scans):
    said = command("diff", "before,before", "after,after", "--out", "groups", "--no-report", cwd=scans)
    assert said.returncode == 0, said.stderr
    assert "over 2 and 2 models" in " ".join(said.stdout.split())
    alone = command("diff", "before,before", "after", cwd=scans)
    assert "found 2 and 1 scans; expected one and one, or groups of two or more each" in alone.stderr
    signature = Signature.from_json(open_run(scans / "groups").attrs["signature"])
    assert [*signature.systems] == ["after 3", "after 4", "before 1", "before 2"]
