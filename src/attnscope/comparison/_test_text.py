"""The text on which systems are compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attnscope.comparison._systems import System
from attnscope.errors import AttnscopeError
from attnscope.training import HELD_OUT, training_pairs
from attnscope.training.config import TrainConfig
from attnscope.translation import Lines, ParallelText, generate_task, lines_of_text, read_parallel

TASK_SEED = (
    1_000_003  # of the sentences that are translated: other ones than those the weights were chosen on
)


def read_test_text(
    systems: Sequence[System],
    texts: Lines | None = None,
    targets: Lines | None = None,
    *,
    join: int | None = None,
) -> ParallelText:
    """Read the text that was asked for; else sentences of the generated task; else the systems' validation text.

    Parameters
    ----------
    systems
        Which tell by their settings what they were trained on.
    texts, targets
        Sentences and their translations, or paths as `read_parallel` reads them.
    join
        Neighbouring pairs joined into one, at most. By default texts that are given stay as they are, and the systems'
        own is joined by the most that any of them was trained with.

    Returns
    -------
    ParallelText
        With alignments (`TaskText`) where it is the generated task, whose longest sentence is the longest that any of
        the systems was trained on. A tenth of its sentences is never trained on; these are of that tenth.

    Raises
    ------
    AttnscopeError
        If only one side is given, a file cannot be read, or the systems have no text in common.

    Examples
    --------
    >>> from attnscope.training.config import read_config
    >>> text = read_test_text([System("small", Path("small"), read_config(task_longest=5), given=True)])
    >>> len(text), max(len(line.split()) for line in text.source)
    (500, 5)
    """
    if (texts is None) != (targets is None):
        raise AttnscopeError("found only one of texts and targets (--text, --target): give both or neither")
    configs = {system.name: system.config for system in systems}
    if join is None:
        joined = [config.join for config in configs.values() if config is not None]
        join = max(joined, default=1) if texts is None else 1
    if join < 1:
        raise AttnscopeError(f"join is {join}: expected 1, which joins nothing, or more")
    text = _shared(configs, join) if texts is None or targets is None else _given(texts, targets)
    return text.joined(join, seed=0)


def _given(texts: Lines, targets: Lines) -> ParallelText:
    if isinstance(texts, Path) and isinstance(targets, Path):
        return read_parallel(texts, targets)
    return ParallelText(lines_of_text(texts, "the text"), lines_of_text(targets, "the target"))


def _shared(configs: dict[str, TrainConfig | None], join: int) -> ParallelText:
    """The text that all settings name, not joined yet."""
    settings = {name: config for name, config in configs.items() if config is not None}
    without = [name for name in configs if name not in settings]
    if without:
        raise AttnscopeError(
            f"{without[0]} has no config.yaml that names a text: give one to translate (--text, --target)"
        )
    if all(config.source is None for config in settings.values()):
        longest = max(config.task_longest for config in settings.values())
        pairs = HELD_OUT * (join + 1) // 2  # so that about as many are left when they are joined
        return generate_task(pairs, TASK_SEED, longest, held_out=True)
    texts = {name: _validation(config) for name, config in settings.items()}
    (first, text), *others = texts.items()
    for name, other in others:
        if other.sha256() != text.sha256():
            raise AttnscopeError(
                f"{first} and {name} were not validated on the same text ({len(text)} pairs that begin "
                f"{text.source[0][:30]!r}, {len(other)} that begin {other.source[0][:30]!r}):\n"
                "give one to translate (--text, --target)"
            )
    return text


def _validation(config: TrainConfig) -> ParallelText:
    return training_pairs(config)[1]
