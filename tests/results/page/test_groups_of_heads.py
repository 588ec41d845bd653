"""What a page says of heads that the finding does not count, and the colours of small numbers."""

import re

import numpy as np
import pytest
import xarray as xr

from attnscope.report.schema import Finding, Quantity, Report, Table
from attnscope.results.figures import intervene
from attnscope.results.figures.style import Figure
from attnscope.results.page.heads import of_report
from attnscope.results.reports import write_page


def test_an_untested_head_is_not_called_insignificant():
    quantities = (
        Quantity("layer", unit="count"),
        Quantity("head", unit="head"),
        Quantity("effect", unit="nats", significant="shown"),
    )
    rows = [{"layer": 0, "head": head, "effect": 0.1, "shown": shown} for head, shown in enumerate((True, False, None))]
    finding = Finding(["One."], "5%", {"rises": [(0, 0)]})
    labels = of_report(Report("", "", finding, [Table("heads", "", quantities, rows)], None))["labels"]
    assert labels["names"] == ["rises", "not significant"]
    assert labels["shares"] == [[1, 0], [0, 1], [None, None]]


@pytest.mark.browser
@pytest.mark.parametrize(("unit", "small", "large"), [("deviations", 0.06, 2.0), ("nats", 0.0006, 0.1)])
def test_a_small_number_is_pale_on_the_map(unit, small, large, visit, tmp_path):
    """Both colours of the scale of 0.06 standard deviations differ little from the middle; those of 2 are full."""
    quantities = (
        Quantity("layer", unit="count"),
        Quantity("head", unit="head"),
        Quantity("effect", unit=unit, significant="shown"),
    )

    def strongest(size):
        rows = [
            {"layer": 0, "head": head, "effect": value, "shown": True} for head, value in enumerate((-size, 0, size))
        ]
        report = Report(
            "", "", Finding(["One."], "5%"), [Table("heads", "", quantities, rows)], None, command="examples"
        )
        page = visit(write_page(report, tmp_path / f"{size}" / "page.html"))
        fills = page.eval_on_selector_all(
            "[data-head][role=gridcell]", "all => all.map(cell => getComputedStyle(cell).backgroundColor)"
        )
        colours = np.array([[int(part) for part in fill[4:-1].split(",")] for fill in fills[:3]])
        return np.abs(colours - colours[1]).sum(1).max()

    assert strongest(small) < 0.2 * strongest(large)


def test_a_small_effect_is_pale_in_the_figure(monkeypatch):
    drawn = []
    monkeypatch.setattr(intervene, "head_maps", lambda maps, *_, **__: drawn.extend(maps) or Figure(figsize=(1, 1)))
    dims = ("ablation", "layer", "head")
    heads = xr.Dataset(
        {name: (dims, [[values]]) for name, values in (("effect", [0.0006, -0.0002]), ("shown", [False] * 2))}
        | {"tested": (dims, [[[True, True]]])},
        {"ablation": ["zero"], "layer": [0]},
    )
    result = xr.DataTree.from_dict({"heads": heads})
    intervene.grid(Report("", "", Finding(["One."], "5%"), [], result))
    assert drawn[0].ends == (-0.01, 0.01)


@pytest.mark.browser
def test_an_effect_that_is_not_significant_has_its_colour_as_a_frame_alone(visit, tmp_path):
    """Groups that say only the sign of a number leave the colours to the number; others keep theirs."""
    quantities = (
        Quantity("layer", unit="count"),
        Quantity("head", unit="head"),
        Quantity("effect", unit="deviations", significant="shown"),
    )
    values, shown = (0.94, 0.83, -0.9, -0.5), (False, True, True, None)
    rows = [
        {"layer": 0, "head": head, "effect": value, "shown": mark}
        for head, (value, mark) in enumerate(zip(values, shown, strict=True))
    ]

    def opened(heads):
        finding = Finding(["One."], "5%", heads)
        table = Table("heads", "", quantities, rows)
        return Report("", "", finding, [table], None, command="examples", colour="effect")

    report = opened({"more": [(0, 1)], "less": [(0, 2)]})
    assert not of_report(report)["opens"]["labels"]
    assert of_report(opened({"one": [(0, 1)], "another": [(0, 0)]}))["opens"]["labels"]
    page = visit(write_page(report, tmp_path / "page.html"))
    cells = page.eval_on_selector_all(
        "[role=gridcell]",
        "all => all.map(cell => [getComputedStyle(cell).backgroundColor, "
        "getComputedStyle(cell, '::before').borderTopColor, cell.style.getPropertyValue('--frame')])",
    )
    colours = [[[int(part) for part in re.findall(r"\d+", text)[-3:]] for text in cell] for cell in cells]
    (paper, frame, value), *filled = colours
    assert paper == [255] * 3
    assert frame == value
    assert all(background == colour for background, _, colour in filled)
    frames = [np.array(cell[2]) for cell in colours]
    distances = [np.abs(frame - 241).sum() for frame in frames]  # from the middle of the scale
    assert distances[0] > distances[1]  # 0.94 and 0.83
    assert distances[2] > distances[3]
    assert page.eval_on_selector_all("[role=gridcell] .dot", "all => all.map(dot => dot.parentNode.dataset.head)") == [
        "1",
        "2",
    ]
    assert page.locator("#key li").all_text_contents() == [
        "more (1)",
        "less (1)",
        "not significant (1)",
        "not tested (1)",
    ]
    tops = [page.locator(name).bounding_box()["y"] for name in ("#meaning", "#scale", "#key", "#grid")]
    assert tops == sorted(tops)
