"""What intervals are over: documents, whose windows are not independent, or windows where there are too few."""

from collections.abc import Hashable, Sequence

LEAST = 6  # of fewer, no mean can be told from 0: all have one sign in more than 5% of cases


def units_of(documents: Sequence[Hashable]) -> tuple[Sequence[Hashable], str]:
    """What the bootstrap draws: documents; windows where there are fewer than 6 documents.

    An interval over windows is about more windows of these documents, and says nothing of others.

    Examples
    --------
    >>> units_of(["a", "a", "b"]), units_of(list("abcdef"))[1]
    ((range(0, 3), 'windows'), 'documents')
    """
    if len(set(documents)) >= LEAST:
        return documents, "documents"
    return range(len(documents)), "windows"
