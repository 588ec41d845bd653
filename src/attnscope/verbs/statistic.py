"""`attnscope.statistic`."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from attnscope.support.checked import Kind
from attnscope.verbs import verb


@verb()
def statistic(
    *,
    name: Annotated[str | None, "Request it by this name, in ``statistics``. By default that of the function."] = None,
    needs: Annotated[
        Sequence[str | Annotated[Any, Kind(lambda value: hasattr(value, "of_tile"), "a RowMeasure", "RowMeasures")]],
        "Measure these for its function: ``entropy``, ``largest``, ``largest_key``, ``collision`` (sum of squares), "
        "``offsets``, ``variance`` (of offsets), ``band``, ``columns`` (weight on the first and on special tokens); "
        "``received``, ``recent`` and ``offset_sum``, each by a second pass over the scores; ``weights``, every weight "
        "in blocks, by one more computation of the scores; or an `attnscope.measure.quantities.RowMeasure`, a number "
        "of each row from its weights tile by tile.",
    ] = (),
    null: Annotated[
        bool | Callable[..., Any],
        "Measure it under uniform attention too, as ``equal_NAME``; or by this other function of the uniform rows.",
    ] = True,
    units: Annotated[str, "Call its unit so, such as nats, tokens, or share (between 0 and 1)."] = "",
    signed: Annotated[bool, "Draw it on a scale with 0 in the middle."] = False,
) -> "Callable[[Callable[..., Any]], Callable[..., Any]]":
    """Register a statistic of your own: a function of the rows of an attention call, to a number of each head.

    It is then the same record that the statistics of `attnscope.scan` are, requested by its name in ``statistics``,
    also on the command line (docs/reference/your-own.md). Tables, pages, JSON,
    `attnscope.diff`, `attnscope.contrasts` and a `HeadMonitor` have it, with its intervals and its
    value under uniform attention. The first paragraph of the function's docstring is its name in tables, the rest its
    reading.

    Returns
    -------
    Callable
        A decorator, which returns the function unchanged. The function gets `attnscope.measure.rows.Rows`:
        ``rows.measures`` has what `needs` names, ``(batch, head, query)`` each; ``rows.mean(values)`` is the mean over
        the queries that count, as every statistic has it; ``rows.summed("received")`` a sum over queries,
        ``rows.of_weights(function)`` a number of each row from its weights.

    Raises
    ------
    AttnscopeError
        If the name or a need is unknown or taken. While measuring, before anything is written: if the function fails,
        or returns another shape than ``(batch, head)``, numbers that are not finite, or others when called again.

    Notes
    -----
    A run records the function's qualified name and a hash of its code and of the values that it uses, so the finished
    run of another function never answers. Where a run is resumed, the function must be registered.

    See Also
    --------
    attnscope.scan

    Examples
    --------
    >>> import attnscope
    >>> @attnscope.statistic(needs=["entropy"], units="share")
    ... def sharp(rows):
    ...     '''Queries with less than half a nat of entropy.'''
    ...     return rows.mean(rows.measures.entropy < 0.5)
    >>> found = attnscope.scan(limit=4, statistics="default,sharp")
    >>> found.sharp.dims, found.equal_sharp.dims, found.sharp.attrs["long_name"]
    (('window', 'layer', 'head'), ('window', 'layer'), 'Queries with less than half a nat of entropy')
    """
    from inspect import getdoc

    from attnscope.measure.quantities import Wording, register_statistic

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        called = name or getattr(function, "__name__", "")
        first, _, rest = (getdoc(function) or called.replace("_", " ")).partition("\n\n")
        words = Wording(" ".join(first.split()).rstrip("."), units, " ".join(rest.split()), signed)
        register_statistic(function, called, tuple(needs), null, words)
        return function

    return register
