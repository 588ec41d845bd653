"""`attnscope.ablation`."""

from collections.abc import Callable
from typing import Annotated, Any

from attnscope.verbs import verb


@verb()
def ablation(
    *, name: Annotated[str | None, "Request it by this name, in ``ablations``. By default that of the function."] = None
) -> "Callable[[Callable[..., Any]], Callable[..., Any]]":
    """Register an ablation of your own: a function from the output of a head to the one that replaces it.

    It is then the same record that the ablations of `attnscope.intervene` are, requested by its name in ``ablations``:
    effects with intervals, corrected for all heads and ablations, sets of heads against random sets, and estimates from
    gradients. The function's docstring says in tables what it does.

    Returns
    -------
    Callable
        A decorator, which returns the function unchanged. The function gets the output of one head on one text, weights
        times values, ``(1, query, value_width)``, without padding, and returns another of the same shape. So
        `attnscope.edit` takes it too, with ``on="z"``.

    Raises
    ------
    AttnscopeError
        If the name is taken. While measuring: if the function fails, or returns another shape, numbers that are not
        finite, or others when called again.

    Notes
    -----
    A run records an identity of the function as for `attnscope.statistic`.

    See Also
    --------
    attnscope.intervene, attnscope.edit, attnscope.statistic

    Examples
    --------
    >>> import attnscope
    >>> @attnscope.ablation()
    ... def halved(output):
    ...     '''Half of the head is left.'''
    ...     return output / 2
    >>> tree = attnscope.intervene(limit=8, window=32, ablations=["zero", "halved"], steps=0, why=False)
    >>> change = tree["heads"].effect.sel(layer=0, head=3)
    >>> bool(change.sel(ablation="zero") > change.sel(ablation="halved"))
    True
    """
    from attnscope.intervention.replacements import register_ablation

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        register_ablation(function, name or getattr(function, "__name__", ""))
        return function

    return register
