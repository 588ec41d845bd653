"""What is kept out of the way while a model is loaded comes back as it was."""

import logging

import pytest
from transformers.utils import logging as transformers_logging

from attnscope.capture.borrow import quiet


@pytest.mark.parametrize("level", [logging.INFO, logging.CRITICAL])
def test_the_callers_levels_and_bars_come_back(level):
    before, accelerate = transformers_logging.get_verbosity(), logging.getLogger("accelerate")
    accelerate_before = accelerate.level
    try:
        transformers_logging.set_verbosity(level)
        accelerate.setLevel(level)
        with quiet():
            with quiet():
                pass
            assert transformers_logging.get_verbosity() == accelerate.level == logging.CRITICAL
            assert not transformers_logging.is_progress_bar_enabled()
        assert transformers_logging.get_verbosity() == accelerate.level == level
        assert transformers_logging.is_progress_bar_enabled()
    finally:
        transformers_logging.set_verbosity(before)
        accelerate.setLevel(accelerate_before)
