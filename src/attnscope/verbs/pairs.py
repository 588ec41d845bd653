"""`attnscope.pairs`."""

from typing import TYPE_CHECKING, Annotated, Any

from attnscope.options import Count, Seed, Tokenizer
from attnscope.verbs import verb

if TYPE_CHECKING:
    import pandas as pd


@verb()
def pairs(
    template: Annotated[
        str,
        "Make pairs for this task, or from this text, which names its gaps in braces (``{noun}``). The tasks are: "
        "``agreement`` of subject and verb (Linzen et al. 2016), ``greater-than`` (Hanna et al. 2023), "
        "``indirect-objects`` (Wang et al. 2023), ``induction`` (Olsson et al. 2022), ``pronouns`` of names (Vig et "
        "al. 2020), ``brackets`` that close (Ebrahimi et al. 2020) and ``docstrings`` (Heimersheim and Janiak 2023), "
        "each with words of attnscope's own.",
    ],
    corrupted: Annotated[
        str | None, "Make the corrupted text from this template. By default from the same, with the second words."
    ] = None,
    *,
    answer: Annotated[
        str | None, "Expect this answer of the clean text, with gaps or without: what follows, with its space."
    ] = None,
    wrong: Annotated[
        str | None,
        "Expect this answer of the corrupted text, with the words of the clean one. By default `answer` with its own.",
    ] = None,
    item: Annotated[
        str | None, "Keep the words of this gap within one half of the pairs. By default that of the first two words."
    ] = None,
    tokenizer: Annotated[
        Tokenizer,
        "Keep only pairs that can be patched with this tokenizer: as many tokens on both sides, and answers that "
        "differ. If it has a mask, texts of a task end in one. By default all pairs.",
    ] = None,
    count: Annotated[Count, "Make this many pairs, or as many as there are."] = 50,
    turns: Annotated[
        bool,
        "Exchange clean and corrupted text, and the answers, in every second pair, so that no answer is always right.",
    ] = True,
    seed: Annotated[Seed, "Draw words by this number."] = 0,
    **words: Any,
) -> "pd.DataFrame":
    """Make pairs of a clean and a corrupted text for `attnscope.patch`, from a template or for a known task.

    Each further argument has the words for the gap of its name: strings, or two strings each, of which the second is
    for the corrupted text. No word is used twice in a pair, and no pair is made twice. A task has words of its own.

    Returns
    -------
    pandas.DataFrame
        A row a pair: ``clean``, ``corrupted``, ``answer`` and ``wrong`` (strings; of ``greater-than`` several, whose
        probabilities are summed), ``item``, and ``half``, 0 or 1: no item is in both halves, so a circuit that is found
        on one half can be tested on the other. ``spans`` has the characters of each gap in both texts, by its name
        (of a second gap of a name, ``NAME.2``), for `positions` of `attnscope.patch`. If pairs did not fit the
        tokenizer and fewer than `count` are left, ``attrs["left_out"]`` and a warning say how many, and why.

    Raises
    ------
    AttnscopeError
        If a gap has no words, both texts of a pair would be the same, or no pair fits the tokenizer.

    See Also
    --------
    attnscope.patch

    Examples
    --------
    >>> words = {"noun": [("key", "keys"), ("lamp", "lamps")], "other": ["door"]}
    >>> found = pairs("The {noun} near the {other}", answer=" is", wrong=" are", turns=False, **words)
    >>> sorted(zip(found.clean, found.corrupted, found.half))[0]
    ('The key near the door', 'The keys near the door', 0)
    >>> found.spans[0]["other"]
    ((17, 21), (18, 22))
    >>> pairs("agreement", count=2).answer.tolist()
    [' is', ' are']
    """
    import logging

    from attnscope.capture.processors import tokenizer_of
    from attnscope.intervention.templates import TASKS, pairs_from, template_of

    fields: Any = {"corrupted": corrupted, "answer": answer, "wrong": wrong, "item": item}
    chosen = template_of(template, words, **fields, turns=turns)
    read = tokenizer_of(tokenizer)
    mask = getattr(read, "mask_token", None) if template in TASKS else None
    frame = pairs_from(chosen, count, seed, tokenizer=read, mask=mask)
    if "left_out" in frame.attrs:
        logging.getLogger("attnscope").warning(frame.attrs["left_out"])
    return frame
