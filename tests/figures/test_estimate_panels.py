"""The figure of estimates beside effects says how well each ranks them, and how often a random order would."""

import numpy as np

from attnscope.results.figures.intervene import estimates_of_effects
from tests.report.planted_intervention import planted_intervention


def test_each_panel_has_its_rank_correlation_and_its_chance():
    tree = planted_intervention()
    agreement = tree["agreement"].to_dataset()
    tree["agreement"] = agreement.assign(
        rank_correlation=agreement.rank_correlation * 0 - 0.25, chance=agreement.chance * 0 + 0.16
    )
    titles = [axes.get_title().split("\n", 1)[1] for axes in estimates_of_effects(tree).axes]
    assert len(titles) == 4
    assert set(titles) == {"rank correlation −0.25\nas high in 16% of random orders"}
    assert np.isfinite(agreement.chance).any()
