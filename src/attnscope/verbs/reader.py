"""`attnscope.reader`."""

from collections.abc import Callable
from typing import Annotated, Any

from attnscope.verbs import verb


@verb()
def reader(
    ending: Annotated[str, "Read files of this ending, such as conllu, wherever a command takes texts."],
) -> "Callable[[Callable[..., Any]], Callable[..., Any]]":
    """Register a reader of your own: a function from a file to its rows, which commands read in place of the file.

    A row is a text, or a mapping with ``input_ids`` and, for each token, ``position_ids``, ``token_type_ids`` or an
    ``attention_mask``; for `attnscope.scan` also ``groups`` (names, as by its option) and ``words`` (numbers: tokens of
    one word are measured as one). ``name`` names its document. The same mappings are texts without a file.

    Returns
    -------
    Callable
        A decorator, which returns the function unchanged. The function gets the path of a file, and returns or yields
        its rows, all of one kind.

    Raises
    ------
    AttnscopeError
        If the ending has a reader. While reading, before anything is written: if the function fails, or a row does not
        fit.

    Notes
    -----
    The rows are in memory, and a signature has the hash of their contents: two readers that return the same rows are
    one input. So a run does not need the reader to be opened.

    See Also
    --------
    attnscope.scan, attnscope.statistic

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import attnscope
    >>> @attnscope.reader("rows")
    ... def rows_of(path):
    ...     for line in path.read_text().splitlines():
    ...         ids = [int(number) for number in line.split()]
    ...         yield {"input_ids": ids, "groups": ["even" if number % 2 == 0 else "odd" for number in ids]}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "corpus.rows"
    ...     _ = file.write_text("5 6 7 8 9 10 11 12")
    ...     scan = attnscope.scan(texts=file)
    >>> scan.group_weight.group_query.values.tolist(), scan.source.values.tolist()
    (['odd', 'even'], ['corpus.rows, row 1'])
    """
    from attnscope.read.readers import register_reader

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        register_reader(function, ending)
        return function

    return register
