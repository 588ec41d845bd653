"""Analyses of models reject settings that are out of range, or empty, before a model reads anything."""

import numpy as np
import pytest
from transformers import LlamaConfig, LlamaModel

from attnscope import AttnscopeError, explain
from attnscope.explanation.analyses.interventions import interventions
from attnscope.explanation.analyses.position_content import position_content
from attnscope.explanation.analyses.position_scheme import bias_effect, rotation_effect, scheme_kernel
from attnscope.explanation.analyses.repeated_tokens import repeated_tokens
from attnscope.explanation.analyses.shift import cross_correlation, cross_spectrum
from attnscope.explanation.study import Study, study

pytestmark = pytest.mark.usefixtures("no_types")
STUDY = study("bundled", limit=2)
_CONFIG = LlamaConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8, vocab_size=9)
ROTARY = Study(LlamaModel(_CONFIG).eval(), [[5, 6, 7, 8], [8, 5, 6, 5]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cross_spectrum("bundled", limit=0), "limit (--limit) is 0; expected a whole number of 1 or more"),
        (lambda: cross_spectrum("bundled", window=0), "window (--window) is 0; expected a whole number of 1 or more"),
        (lambda: cross_spectrum(STUDY, limit=0), "limit (--limit) is 0; expected"),
        (lambda: explain("bundled", limit=1), "limit (--limit) is 1; expected 2 windows or more"),
        (lambda: position_content(STUDY, band=0), "band (--band) is 0; expected a whole number of 1 or more"),
        (lambda: scheme_kernel(ROTARY, band=0), "band (--band) is 0; expected a whole number of 1 or more"),
        (lambda: bias_effect.alone(ROTARY, band=0), "band (--band) is 0; expected a whole number of 1 or more"),
        (lambda: position_content(STUDY, layers=[]), "layers is []; expected one or more layers, or None for all"),
        (lambda: interventions(STUDY, changes=[]), "changes is []; expected one or more of words-zero, "),
        (lambda: interventions(STUDY, frequencies=(5, 2)), "frequencies are 5 to 2; expected two between 0 and 64"),
        (lambda: rotation_effect(ROTARY, periods={}), "periods is {}; expected one or more names of variants"),
        (lambda: repeated_tokens(STUDY, tokens=1), "tokens is 1; expected a whole number of 2 or more"),
        (
            lambda: repeated_tokens("bundled", window=4, limit=2),
            "windows of 4 tokens have room for 3 after the special ones; expected 4 or more",
        ),
        (lambda: cross_correlation(STUDY, columns=-1), "columns is -1; expected a whole number of 1"),
        (
            lambda: position_content(STUDY, target_offset=np.full((3, 4), 50)),
            "target_offset has shape (3, 4) up to 50 (int64); expected whole numbers",
        ),
    ],
)
def test_what_is_out_of_range_or_empty_is_named(call, message):
    with pytest.raises(AttnscopeError) as error:
        call()
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) <= 2


def test_a_band_wider_than_the_windows_ends_where_they_do():
    """Where no pair of tokens is so far apart there is no weight, which is no overflow."""
    wide = Study(STUDY.model, [window.ids[:8] for window in STUDY.windows], band=10)
    narrow = Study(STUDY.model, [window.ids[:8] for window in STUDY.windows], band=7)
    assert cross_correlation(wide).equals(cross_correlation(narrow))
