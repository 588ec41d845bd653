"""What tests of tasks and of Ray share: the verbs whose work is done in units, on small inputs and in small units."""

from functools import cache

import pytest

from attnscope.catalogue import function_of
from attnscope.explanation import evidence, explain
from attnscope.explanation.catalogue import known_analyses
from attnscope_lineage import alignment
from tests.packages.lineage.translation.small_translators import small_model, small_tokenizer
from tests.store.tasks.verbs_in_units import LINES, OPTIONS


@pytest.fixture(scope="module", autouse=True)
def small_units():
    """In this process; a process of Ray's has the usual ones. Of the analyses, some that take all that is summed."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(evidence, "UNIT", 1)
        patched.setattr("attnscope.explanation.inputs.TOKENS_AT_ONCE", 24)
        patched.setattr(alignment, "UNIT", 2)
        patched.setattr(
            explain, "ANALYSES", [known_analyses()[name] for name in ("forms", "verdict", "cross_spectrum")]
        )
        yield


@pytest.fixture(scope="session")
def call(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translator")
    small_model("bart").save_pretrained(folder)
    small_tokenizer().save_pretrained(folder)

    def called(verb, out, **more):
        model = folder if verb == "align" else "bundled"
        return function_of(verb)(model, LINES if verb == "align" else None, out=out, **OPTIONS[verb] | more)

    return called


@pytest.fixture(scope="session")
def whole(call, tmp_path_factory):
    """The run of one process, by verb."""
    return cache(lambda verb: call(verb, tmp_path_factory.mktemp(verb) / "run"))
