"""Distances of distributions: bounds (mathematics.md, Are weights an explanation?), and cases by hand."""

import numpy as np
from scipy.spatial.distance import jensenshannon

from attnscope.intervention.arrays import jensen_shannon, total_variation


def test_i8_each_bounds_the_other():
    rng = np.random.default_rng(0)
    p, q = (rng.dirichlet(np.full(12, 0.2), 2000) for _ in range(2))
    tvd, jsd = total_variation(p, q), jensen_shannon(p, q)
    assert (jsd >= 0).all()
    assert (jsd <= np.log(2) + 1e-12).all()
    assert (tvd**2 / 2 <= jsd + 1e-12).all()
    assert (jsd <= tvd * np.log(2) + 1e-12).all()


def test_they_are_what_scipy_and_the_definition_say():
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.ones(6), (2, 5)), rng.dirichlet(np.ones(6), (2, 5))
    np.testing.assert_allclose(jensen_shannon(p, q), jensenshannon(p, q, axis=-1) ** 2, rtol=1e-9)
    events = np.array(np.meshgrid(*[[0, 1]] * 6)).reshape(6, -1)  # TVD is the largest difference of any event
    np.testing.assert_allclose(total_variation(p, q), np.abs((p - q) @ events).max(-1), rtol=1e-12)
