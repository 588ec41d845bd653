"""What a system that has learned the generated task does: a few sentences, where it looks, and BLEU by length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnscope.capture import LoadedModel, load_model
from attnscope.comparison._compare import length_limits
from attnscope.comparison._systems import System
from attnscope.comparison._test_text import read_test_text
from attnscope.training import attends, best_aligning_head
from attnscope.training.config import read_config
from attnscope.translation import TaskText, encode_lines, translate_lines
from attnscope.translation.alignment import align
from attnscope.translation.evaluation import score

_WORDS = (6, 14)  # of the sentences that are shown


@dataclass(frozen=True)
class ShownTranslation:
    """A sentence of the generated task.

    Attributes
    ----------
    source, translation, right
        The sentence, what the system makes of it (greedy), and what it should be.
    attended
        For each word of the translation that has a link: itself and the source word it looks at most, by the head
        that `best_aligning_head` chose; empty for a system without attention, and for a translation longer than the
        model was trained for.
    """

    source: str
    translation: str
    right: str
    attended: list[tuple[str, str]]


@dataclass(frozen=True)
class Samples:
    """Some sentences, and BLEU of all of them by words of the source: bucket, sentences, BLEU, 95% interval."""

    shown: list[ShownTranslation]
    by_length: list[tuple[str, int, float, float, float]]


def sample_translations(folder: Path) -> Samples | None:
    """Translate sentences of the generated task that no training has seen; None where another text was learned.

    Parameters
    ----------
    folder
        Folder of a finished training of `attnscope train`.

    Raises
    ------
    AttnscopeError
        If the folder holds no such training.

    Examples
    --------
    >>> sample_translations(Path("/nowhere"))
    Traceback (most recent call last):
    attnscope.errors.AttnscopeError: /nowhere/config.yaml: no such file or folder: check the path
    """
    config = read_config(folder / "config.yaml")
    if config.model == "masked-lm" or config.source is not None:
        return None
    text = read_test_text([System("trained", folder, config, given=True)])
    if not isinstance(text, TaskText):
        return None
    loaded = load_model(folder, device=config.device)
    translations = translate_lines(loaded.model, loaded.tokenizer, text.source, beams=1, overlong="cut")
    lines = translations.texts
    scores = score(
        {"trained": lines},
        text.target,
        texts=text.source,
        by_length=length_limits(text.source),
    )
    at = scores.sel(system="trained", metric="BLEU")
    columns = ("bucket", "sentences", "score_by_length", "lower_by_length", "upper_by_length")
    rows = zip(*(at[name].values for name in columns), strict=True)
    lengths = [len(source.split()) for source in text.source]
    whole = [i for i, left_out in enumerate(translations.left_out) if not left_out]
    chosen = [min(whole, key=lambda i: abs(lengths[i] - words)) for words in _WORDS] if whole else []
    attended = _attended(loaded, text, [lines[i] for i in chosen], chosen)
    return Samples(
        [
            ShownTranslation(text.source[i], lines[i], text.target[i], links)
            for i, links in zip(chosen, attended, strict=True)
        ],
        [
            (str(bucket), int(count), float(bleu), float(lower), float(upper))
            for bucket, count, bleu, lower, upper in rows
            if count
        ],
    )


def _attended(
    loaded: LoadedModel, text: TaskText, made: Sequence[str], chosen: Sequence[int]
) -> list[list[tuple[str, str]]]:
    attended: list[list[tuple[str, str]]] = [[] for _ in chosen]
    best = best_aligning_head(loaded.model, loaded.tokenizer, text) if attends(loaded.model) else None
    if best is None:
        return attended
    lengths = map(len, encode_lines(loaded.tokenizer, made))
    fit = [at for at, tokens in enumerate(lengths) if tokens <= loaded.tokenizer.model_max_length]
    if fit:
        pairs = [text.source[chosen[at]] for at in fit], [made[at] for at in fit]
        aligned = align(loaded.model, *pairs, tokenizer=loaded.tokenizer, layer=best.layer, head=best.head)
        for at, left, right, links in zip(fit, *pairs, aligned.links, strict=True):
            in_order = sorted(links, key=lambda link: link[1])
            attended[at] = [(right.split()[j], left.split()[i]) for i, j in in_order]
    return attended
