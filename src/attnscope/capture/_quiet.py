"""Keeping transformers' progress bars and reports out of the way: what matters becomes an error."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

from transformers.utils import logging as transformers_logging


@contextmanager
def quiet() -> Generator[None]:
    """Neither bars nor reports while a model is loaded or saved.

    Examples
    --------
    >>> with quiet():
    ...     transformers_logging.is_progress_bar_enabled()
    False
    """
    level, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
