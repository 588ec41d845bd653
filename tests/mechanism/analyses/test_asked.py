"""What the functions of `mechanism` refuse before a model reads anything: settings that are out of range, or empty."""

import inspect

import numpy as np
import pytest
from transformers import LlamaConfig, LlamaModel

from attnscope import AttnscopeError
from attnscope.explanation.analyses.interventions import interventions
from attnscope.explanation.analyses.position_content import position_content
from attnscope.explanation.analyses.position_scheme import bias_effect, rotation_effect
from attnscope.explanation.analyses.position_table import position_spectrum
from attnscope.explanation.analyses.repeated_tokens import repeated_tokens
from attnscope.explanation.analyses.shift import cross_correlation, cross_spectrum, shift_controls
from attnscope.explanation.analyses.wave_removal import wave_removal
from attnscope.explanation.analyses.waves import query_key_waves
from attnscope.explanation.explain import explain
from attnscope.explanation.study import Analysis, Study, study

OF_TEXTS = {
    name: function
    for name, function in dict(globals()).items()
    if isinstance(function, Analysis) or name in {"explain", "study"}
}
OF_WIDTH = {
    name: function
    for name, function in OF_TEXTS.items()
    if str(inspect.signature(getattr(function, "alone", function)).parameters.get("band")).startswith("band: 'Count")
}
STUDY = study("bundled", limit=2)
pytestmark = pytest.mark.usefixtures("no_types")


def said(call):
    with pytest.raises(AttnscopeError) as error:
        call()
    assert len(str(error.value).splitlines()) <= 2
    return str(error.value)


@pytest.mark.parametrize("what", ["limit", "window"])
@pytest.mark.parametrize("name", OF_TEXTS)
def test_no_window_and_no_token_of_one_is_refused_as_scan_does(name, what):
    message = f"{what} (--{what}) is 0; expected a whole number of 1 or more"
    assert said(lambda: OF_TEXTS[name]("bundled", **{what: 0})) == message


@pytest.mark.parametrize("name", sorted({*OF_TEXTS} - {"explain", "study"}))
def test_no_window_of_a_study_is_refused_alike(name):
    assert said(lambda: OF_TEXTS[name](STUDY, limit=0)).startswith("limit (--limit) is 0; expected")


@pytest.mark.parametrize("name", OF_WIDTH)
def test_a_band_without_an_offset_is_refused(name):
    model = "bundled"
    if name in {"bias_effect", "rotation_effect", "scheme_kernel"}:
        model = Study(llama(), [[5, 6, 7, 8], [8, 5, 6, 5]])
    if name == "bias_effect":  # of which no small model is at hand
        message = said(lambda: bias_effect.alone(model, band=0))
    else:
        message = said(lambda: OF_WIDTH[name](model, limit=2, band=0))
    assert message == "band (--band) is 0; expected a whole number of 1 or more"


def llama():
    config = LlamaConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8, vocab_size=9)
    return LlamaModel(config).eval()


def test_one_window_is_no_fault_of_the_text():
    for function in (cross_spectrum, interventions, explain):
        assert said(lambda function=function: function("bundled", limit=1)).startswith(
            "limit (--limit) is 1; expected 2 windows or more"
        )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: position_content(STUDY, layers=[]), "layers is []; expected one or more layers, or None for all"),
        (lambda: interventions(STUDY, changes=[]), "changes is []; expected one or more of words-zero, "),
        (lambda: shift_controls(STUDY, heads=[]), "heads is []; expected one or more pairs (layer, head)"),
        (
            lambda: rotation_effect(Study(llama(), [[5, 6], [7, 8]]), periods={}),
            "periods is {}; expected one or more names of variants",
        ),
        (lambda: shift_controls(STUDY, draws=-1), "draws is -1; expected a whole number from 0"),
        (lambda: shift_controls(STUDY, seed=-1), "seed (--seed) is -1; expected"),
        (lambda: wave_removal(STUDY, draws=0), "draws is 0; expected a whole number from 1"),
        (lambda: repeated_tokens(STUDY, tokens=1), "tokens is 1; expected a whole number of 2 or more"),
        (
            lambda: repeated_tokens("bundled", window=4, limit=2),
            "windows of 4 tokens have room for 3 after the special ones; expected 4 or more",
        ),
        (lambda: cross_correlation(STUDY, columns=-1), "columns is -1; expected a whole number of 1"),
        (lambda: query_key_waves(STUDY, permutations=-1), "permutations is -1; expected a whole"),
        *(
            (lambda of=of: of(STUDY, frequencies=(5, 2)), "frequencies are 5 to 2; expected two between 0 and 64")
            for of in (interventions, wave_removal)
        ),
        *(
            (
                lambda of=of, target=target: of(STUDY, target_offset=target),
                f"target_offset has shape (3, 4) up to {target.max()} ({target.dtype}); expected whole numbers",
            )
            for of in (position_content, interventions)
            for target in (np.full((3, 4), 50), np.zeros((3, 4)))
        ),
        (lambda: position_spectrum(factor=np.nan), "factor nan; expected"),
    ],
)
def test_what_is_out_of_range_or_empty_is_named(call, message):
    assert message in said(call)


def test_a_change_named_twice_is_made_once():
    found = interventions(STUDY, changes=["words-zero", "words-zero"], draws=2)
    assert found.change.values.tolist() == ["words-zero"]


def test_a_band_wider_than_the_windows_ends_where_they_do():
    """Where no pair of tokens is so far apart there is no weight, which was taken for an overflow."""
    wide = Study(STUDY.model, [window.ids[:8] for window in STUDY.windows], band=10)
    narrow = Study(STUDY.model, [window.ids[:8] for window in STUDY.windows], band=7)
    assert cross_correlation(wide).equals(cross_correlation(narrow))
