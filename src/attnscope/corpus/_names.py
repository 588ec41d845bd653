"""Names of files that were given: two of one name in two folders are told apart."""

from collections import Counter

from attnscope.corpus._opening import shown


class Names:
    """Gives each file a name of its own, by which results refer to it and intervals tell documents apart.

    Names do not hold the place of a folder, so that the same files have the same names wherever they lie.

    Examples
    --------
    >>> names = Names()
    >>> [names.new(name) for name in ("a.png", "b.png", "a.png", "a.png")]
    ['a.png', 'b.png', 'a.png (2)', 'a.png (3)']
    """

    def __init__(self) -> None:
        self._count = Counter[str]()

    def new(self, name: str) -> str:
        """The name, as it can be shown; with a number where it was there before."""
        name = shown(name)
        self._count[name] += 1
        return name if self._count[name] == 1 else f"{name} ({self._count[name]})"
