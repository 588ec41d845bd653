"""Functions that read what a verb returned refuse what is something else, and tell what to pass."""

import json

import pytest
import xarray as xr

from attnscope import AttnscopeError, detection, difference, faithfulness, mechanism, report, statistics
from attnscope.figures.explain import explain_figures
from attnscope.mechanism import words
from attnscope.statistics import images


def of(verb, result):
    result.attrs["signature"] = json.dumps({"command": verb})
    return result


GRID = {"prefers": (("layer", "head"), [[True]])}
EXPLAINED = of("explain", xr.DataTree.from_dict({"verdict": xr.Dataset(GRID)}))
READERS = {
    "explain": (
        mechanism.rank_explanations,
        mechanism.best_heads,
        mechanism.analyses_of,
        words.headline,
        words.cause,
        words.mask_note,
        words.skipped_by_reason,
        explain_figures,
        lambda tree: report.write_explain_report(tree, "page.html", []),
    ),
    "intervene": (
        faithfulness.verdicts,
        faithfulness.headline,
        lambda tree: report.write_intervention_report(tree, "page.html"),
    ),
    "patch": (faithfulness.patched_places, faithfulness.patch_headline),
    "roles": (detection.counts_of, detection.headline),
    "diff": (difference.changes_of, difference.headline),
    "contrasts": (difference.contrast_rows, difference.contrasts_said),
    "scan": (
        statistics.rank_heads,
        statistics.heads_apart,
        statistics.peaks,
        statistics.over_documents,
        images.rank_patch_heads,
        lambda result: report.write_report(result, None, "page.html"),
    ),
}
WRONG = {
    "a node": EXPLAINED["verdict"],
    "the dataset of a node": EXPLAINED["verdict"].to_dataset(),
    "another tree": of("compare", xr.DataTree.from_dict({"scores": xr.Dataset()})),
    "another dataset": of("train", xr.Dataset({"loss": 1.0})),
    "something else": "attnscope-runs/explain",
}


@pytest.mark.parametrize("given", WRONG)
@pytest.mark.parametrize("verb", READERS)
def test_what_a_verb_did_not_return_is_refused(verb, given):
    for reader in READERS[verb]:
        with pytest.raises(AttnscopeError, match=rf"; expected all that attnscope\.{verb} returns$"):
            reader(WRONG[given])


def test_the_words_say_what_was_found():
    for given, found in (
        ("a node", "the node 'verdict' alone"),
        ("another tree", "what attnscope.compare returns"),
        ("the dataset of a node", "a Dataset"),
        ("something else", "of type str"),
    ):
        with pytest.raises(AttnscopeError, match=f"^tree is {found}; "):
            mechanism.rank_explanations(WRONG[given])


def test_a_tree_without_a_verdict_is_read():
    assert mechanism.rank_explanations(of("explain", xr.DataTree())) == []
