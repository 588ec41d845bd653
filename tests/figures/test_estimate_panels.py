"""The figure of estimates beside effects says how well each ranks them, with its interval or without one."""

import numpy as np

from attnscope.figures.intervene import estimate_panels
from tests.report.planted_intervention import planted_intervention


def test_each_panel_has_its_rank_correlation_and_interval():
    tree = planted_intervention()
    agreement = tree["agreement"].to_dataset()
    places = {
        end: np.full_like(agreement.rank_correlation, at)
        for end, at in (("", 0.5), ("_low", -0.25), ("_high", 0.75))
    }
    told = {
        f"rank_correlation{end}": (agreement.rank_correlation.dims, values) for end, values in places.items()
    }
    for known, said in (
        (True, "rank correlation 0.50 (−0.25 to 0.75)"),
        (False, "rank correlation 0.50, no interval"),
    ):
        gone = {} if known else {"rank_correlation_low": agreement.rank_correlation * np.nan}
        tree["agreement"] = agreement.assign(told | gone)
        titles = [axes.get_title().split("\n")[1] for axes in estimate_panels(tree).axes]
        assert titles
        assert set(titles) == {said}
