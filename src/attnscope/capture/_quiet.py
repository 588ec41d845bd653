"""Keeping transformers' progress bars and reports out of the way: what matters becomes an error."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager

from transformers.utils import logging as transformers_logging


class _Silence:
    """One setting for all threads: the first that comes in turns it on, the last that leaves turns it off."""

    def __init__(self) -> None:
        self.lock, self.inside = threading.Lock(), 0
        self.level, self.bars, self.accelerate = 0, True, 0

    def enter(self) -> None:
        with self.lock:
            if self.inside == 0:
                self.level = transformers_logging.get_verbosity()
                self.bars = transformers_logging.is_progress_bar_enabled()
                self.accelerate = logging.getLogger("accelerate").level
                if self.level != logging.CRITICAL:  # each setting walks through all loggers, some thousand
                    transformers_logging.set_verbosity(logging.CRITICAL)
                if self.accelerate != logging.CRITICAL:
                    logging.getLogger("accelerate").setLevel(logging.CRITICAL)
                transformers_logging.disable_progress_bar()
            self.inside += 1

    def leave(self) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                if self.level != logging.CRITICAL:
                    transformers_logging.set_verbosity(self.level)
                if self.accelerate != logging.CRITICAL:
                    logging.getLogger("accelerate").setLevel(self.accelerate)
                if self.bars:
                    transformers_logging.enable_progress_bar()


_silence = _Silence()


@contextmanager
def quiet() -> Generator[None]:
    """Neither bars nor reports while a model is loaded or saved, in whatever thread.

    Examples
    --------
    >>> with quiet():
    ...     transformers_logging.is_progress_bar_enabled()
    False
    """
    _silence.enter()
    try:
        yield
    finally:
        _silence.leave()
