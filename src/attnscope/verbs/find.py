"""`attnscope.find`."""

from typing import TYPE_CHECKING, Annotated, Unpack

from attnscope.options import SCALE, Count, Flag, ModelsOrBundled, StudyReading, Texts, Typed, Words
from attnscope.verbs import verb

if TYPE_CHECKING:
    import xarray as xr


@verb(
    examples=(
        ('attnscope find bundled:pronoun "The cat left it, as it was shy." --from it --to cat', "one sentence"),
        ("attnscope find gpt2 corpus.txt --from it --to animal", "the sentences of a file that have both words"),
        ("attnscope find gpt2 corpus.txt --from /[Ii]t/ --to '/dogs?|cats?/'", "several words at once"),
    )
)
def find(
    model: ModelsOrBundled = None,
    texts: Texts = None,
    *,
    query: Annotated[
        str,
        Flag("from"),
        Typed(metavar="WORD"),
        'Find heads that attend from this word, or /pattern/. Adjacent words that spell one (``"名前"``, ``"New '
        'York"``) count as one; a pattern is between slashes (``"/[Ii]t/"``). Texts without both words are skipped.',
    ],
    key: Annotated[str, Flag("to"), Typed(metavar="WORD"), "Find heads that attend to this word, or /pattern/."],
    words: Annotated[
        Words, "Merge tokens to these words: unicode, space, or a file of spans. See `attnscope.scan`."
    ] = "unicode",
    batch_size: Annotated[
        Count | None, SCALE, "Measure this many windows at a time. By default about 2,048 tokens' worth."
    ] = None,
    **reading: Unpack[StudyReading],
) -> "xr.Dataset":
    """Find the heads that attend from one word to another, next to uniform attention and the other words.

    Tokens are merged to words: queries are averaged and keys summed. If a word occurs several times, so are its
    occurrences. Every head is compared with uniform attention, with the same offset from other words of the text, and
    with the other words of the text.

    Returns
    -------
    xarray.Dataset
        Over ``(layer, head)``: ``weight``, the mean over windows with both words, with its interval over documents
        (``weight_low``, ``weight_high``); ``uniform``, the same under uniform attention; ``same_offset``, the mean
        weight at the same offset from the other words; ``above``, ``weight`` less the larger of both, with its
        interval and ``shown``, whether it is significantly above 0, corrected for all heads; ``first_of``, the share of
        windows in which no other word gets more; in the first window with both words, ``rank`` of the word, and
        ``strongest``, the word that gets the most. Intervals need 6 windows with both words. ``window_weight`` and
        others are the values of each window, NaN without both words.

    Raises
    ------
    AttnscopeError
        If no text has both words, or an argument, the model or a text cannot be used.

    Examples
    --------
    >>> import attnscope
    >>> sentence = "The animal didn't cross the street because it was too tired."
    >>> found = attnscope.find("bundled:pronoun", sentence, query="it", key="animal")
    >>> float(found.weight.max()) > 0.7, found.strongest.values.flat[found.weight.values.argmax()]
    (True, 'animal')
    """
    from attnscope.detection.find import WordReader
    from attnscope.measure.reader import scan_settings
    from attnscope.store.units import task_for

    task = task_for(find, locals(), in_memory=True)
    settings = scan_settings(reading, statistics="entropy", words=words, batch_size=batch_size)
    return WordReader(model, texts, settings, query, key).scan(task)
