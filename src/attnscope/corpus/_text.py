"""One text of a corpus."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Text:
    r"""One text and the name by which results refer to it.

    Attributes
    ----------
    name : str
        File name, path inside the given folder, ``FILE.jsonl:LINE``, ``text 1`` for a string, or
        ``standard input``; with a number where a file before has the same name.
    content : str
        The characters of the text, unmodified except that a byte order mark is taken off; ``\r\n`` is kept.
    by : str
        The value of the field by which texts are held apart, where one is named.

    Examples
    --------
    >>> Text("text 1", "The tide is out.").content
    'The tide is out.'
    """

    name: str
    content: str
    by: str = ""
