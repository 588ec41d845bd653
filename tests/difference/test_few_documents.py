"""`diff` over few documents: windows of one document are alike, and say nothing of other documents."""

import numpy as np

from attnscope.difference._changes import changes_by_document


def test_below_6_documents_nothing_is_tested_and_there_are_no_intervals():
    """Nothing changed, but the windows of a document are alike: over windows there is a change in every such scan."""
    by_document = np.random.default_rng(0).normal(size=(5, 1, 20))
    windows = (by_document + np.zeros((5, 30, 20))).reshape(-1, 20)
    found = changes_by_document(windows, np.repeat(np.arange(5), 30).tolist())
    assert not found.changed.any()
    assert np.isnan(found.p).all()
    assert np.isnan(found.low).all()
