"""The paper's claims, on a model in which they are planted and on one that knows nothing."""

import hashlib

import pytest
import torch
from transformers import RobertaForMaskedLM

from attnscope.explanation.study import Study
from attnscope_yamamoto2023 import claims as module
from attnscope_yamamoto2023.claims import AS_UNTRAINED, CLAIMS, LEAST_CHANCE, Measured, Verdict, _verdict, claims
from tests.explanation.planted_roberta import SMALL, config_of, planted_roberta, random_ids

COPIES = "untrained copies"


@pytest.fixture(scope="module", autouse=True)
def a_model_is_measured_once():
    """Untrained copies of two models of one config are the same models."""
    measure, results = module._measured, {}

    def measured(study, tested):
        weights = hashlib.sha256()
        for name, tensor in study.model.state_dict().items():
            weights.update(name.encode() + tensor.numpy().tobytes())
        key = weights.digest(), tuple(tested)
        if key not in results:
            results[key] = measure(study, tested)
        return results[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_measured", measured)
        yield


def found_in(model, copies):
    texts = random_ids(SMALL, 4)
    return {each.claim.name: each for each in claims(Study(model, texts), copies=copies)}


def test_planted_claims_hold_next_to_untrained_copies():
    found = found_in(planted_roberta(SMALL), copies=19)
    assert [*found] == [claim.name for claim in CLAIMS]
    for name in ("words", "columns", "fades", "cancel", "dimensions"):
        assert found[name].verdict == "holds", found[name]
    assert found["table"].verdict == AS_UNTRAINED  # noise has some peak there too, and a lower one
    assert "92.2%" in found["dimensions"].text
    # one head is right, and no other head's estimate could be worse: nothing is shown
    assert found["shift"].verdict == found["sum"].verdict == "as by chance"
    assert "in 1 of 1 directed heads" in found["sum"].text
    assert found["neighbours"].verdict == found["soft"].verdict == "does not hold"  # none is planted to the left
    for each in found.values():
        if each.verdict == "holds" and each.claim.null == COPIES:
            assert each.chance <= LEAST_CHANCE
            assert each.copies.endswith(" of 19")


def test_an_untrained_model_has_none_that_needs_copies():
    torch.manual_seed(5)
    found = found_in(RobertaForMaskedLM(config_of(SMALL)).eval(), copies=19)
    held = {name for name, each in found.items() if each.verdict == "holds" and each.claim.null == COPIES}
    assert len(held) <= 2  # each is there by chance in one of twenty models


def test_a_claim_without_enough_copies_does_not_hold():
    planted = found_in(planted_roberta(SMALL), copies=2)
    assert planted["table"].verdict == "as by chance"
    copies = [Measured(value, "", meets=True) for value in (2.0, 0.5, 1.0)]
    by_copies = next(claim for claim in CLAIMS if claim.null == COPIES)
    verdict = _verdict(by_copies, Measured(1.0, "", meets=True), copies)
    assert (verdict.verdict, verdict.chance, verdict.copies) == ("as by chance", 3 / 4, "3 of 3")
    assert _verdict(CLAIMS[0], "no head", []) == Verdict(CLAIMS[0], "not defined", "no head", None)


def test_a_criterion_that_untrained_copies_meet_too_shows_nothing():
    own = Measured(2.0, "a peak", meets=True)
    copies = [Measured(1.0, "", meets=number < 10) for number in range(19)]
    assert _verdict(CLAIMS[0], own, copies) == Verdict(CLAIMS[0], AS_UNTRAINED, "a peak", 0.05, "10 of 19")
    copies[9] = Measured(1.0, "", meets=False)
    assert _verdict(CLAIMS[0], own, copies).verdict == "holds"
    copies[0] = Measured(3.0, "", meets=True)
    assert _verdict(CLAIMS[0], own, copies).verdict == "as by chance"
