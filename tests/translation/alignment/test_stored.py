"""An alignment that was written comes back as it was, with what JSON has no number for."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

import attnscope
from attnscope.lineage.align import load_alignment, write_alignment
from attnscope.lineage.links import Gold
from attnscope.store.folder import OwnedFolder
from tests.translation.small_translators import Reordering, small_tokenizer

SOURCES, TARGETS = ["a b a b", "b a", "a", ""], ["b a b a", "a b", "b", ""]
SURE = [frozenset({(0, 3)}), frozenset({(0, 1), (7, 1)}), frozenset(), frozenset()]


def written_and_read(aligned, place):
    with OwnedFolder(place, "align") as folder:
        with folder.replacing("") as new:
            write_alignment(aligned, new)
        return load_alignment(folder)


@pytest.mark.parametrize(
    "options",
    [
        {"gold": Gold(SURE, SURE), "shown": 3, "end": "keep"},  # one column more than words
        {"gold": Gold(SURE[2:] * 2, SURE[2:] * 2), "rule": "threshold", "threshold": 1.0},
        {"shown": 2},
    ],
    ids=["judged", "without a sure link", "no gold"],
)
def test_what_was_written_comes_back(options, tmp_path):
    aligned = attnscope.align(Reordering(), SOURCES, TARGETS, tokenizer=small_tokenizer(), **options)
    if aligned.heads is not None:  # a head without links, on a text without sure ones
        aligned.heads["precision"][1, 1] = np.nan
    opened = written_and_read(aligned, tmp_path / "run")
    bare = {"heads": None, "pairs": [], "score": None, "baselines": None}
    assert replace(opened, **bare).__dict__ == replace(aligned, **bare).__dict__
    assert (opened.heads is None) == (aligned.heads is None)
    if aligned.heads is not None:
        xr.testing.assert_identical(opened.heads, aligned.heads)
        np.testing.assert_equal(vars(opened.score), vars(aligned.score))
        np.testing.assert_equal(vars(opened.baselines), vars(aligned.baselines))
    assert len(opened.pairs) == len(aligned.pairs)
    for pair, kept in zip(aligned.pairs, opened.pairs, strict=True):
        np.testing.assert_equal(vars(kept) | {"words": None}, vars(pair) | {"words": None})
        assert (kept.words.source, kept.words.target) == (pair.words.source, pair.words.target)
        np.testing.assert_array_equal(kept.words.weights, pair.words.weights)
