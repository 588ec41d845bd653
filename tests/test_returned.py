"""Functions that read what a verb returned refuse what is something else, and tell what to pass."""

import json

import pytest
import xarray as xr

from attnscope import AttnscopeError
from attnscope.catalogue import address_of
from attnscope.comparison.contrasts import contrast_rows, describe_contrasts
from attnscope.comparison.diff import changes_of
from attnscope.explanation.catalogue import analyses_of
from attnscope.explanation.report import rank_explanations
from attnscope.intervention.patch_findings import patched_positions
from attnscope.intervention.verdicts import verdicts
from attnscope.measure.pools import over_documents
from attnscope.measure.ranking import heads_far_from_uniform, peaks, rank_heads
from attnscope.results.figures.explain import explain_figures
from attnscope.results.reports import report_of


def of(verb, result):
    result.attrs["signature"] = json.dumps({"command": verb})
    return result


GRID = {"prefers": (("layer", "head"), [[True]])}
EXPLAINED = of("explain", xr.DataTree.from_dict({"verdict": xr.Dataset(GRID)}))
READERS = {
    "explain": (rank_explanations, analyses_of, lambda tree: report_of("explain", tree), explain_figures),
    "intervene": (verdicts, lambda tree: report_of("intervene", tree)),
    "patch": (patched_positions, lambda tree: report_of("patch", tree)),
    "roles": (lambda result: report_of("roles", result),),
    "diff": (changes_of, lambda result: report_of("diff", result)),
    "contrasts": (contrast_rows, describe_contrasts),
    "scan": (rank_heads, heads_far_from_uniform, peaks, over_documents),
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
def test_what_a_verb_did_not_return_is_rejected(verb, given):
    for reader in READERS[verb]:
        with pytest.raises(AttnscopeError, match=rf"; expected all that {address_of(verb)} returns$"):
            reader(WRONG[given])


def test_the_words_say_what_was_found():
    for given, found in (
        ("a node", "the node 'verdict' alone"),
        ("another tree", "what attnscope_lineage.compare returns"),
        ("the dataset of a node", "a Dataset"),
        ("something else", "of type str"),
    ):
        with pytest.raises(AttnscopeError, match=f"^tree is {found}; "):
            rank_explanations(WRONG[given])


def test_a_tree_without_a_verdict_is_read():
    assert rank_explanations(of("explain", xr.DataTree())) == []
