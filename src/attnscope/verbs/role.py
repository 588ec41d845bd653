"""`attnscope.role`."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from attnscope.options import Share
from attnscope.support.checked import Bounds
from attnscope.verbs import verb


@verb()
def role(
    *,
    threshold: Annotated[Share, "Give the role to heads whose score reaches this, between 0 and 1."],
    texts: Annotated[
        Sequence[str] | Sequence[Sequence[int]] | None,
        "Score it on these texts, or token ids, a window each. By default on the windows of the corpus.",
    ] = None,
    name: Annotated[str | None, "Request it by this name, in ``only``. By default that of the function."] = None,
    layers: Annotated[
        Sequence[str], "Score it in these kinds of layers: self (both sides), causal, cross (another text)."
    ] = ("self", "causal"),
    more: Annotated[float, Bounds(0.0), "Require this many times the score of uniform attention too."] = 0.0,
) -> "Callable[[Callable[..., Any]], Callable[..., Any]]":
    """Register a role of your own: a function from the tokens of a text to the keys that are expected of its queries.

    It is then the same record that the roles of `attnscope.roles` are, requested by its name in ``only``: with an
    interval, uniform attention, and both untrained controls. Its score is the mean, over the queries of which a key is
    expected, of the weight on what is expected. The function's docstring is its definition.

    Returns
    -------
    Callable
        A decorator, which returns the function unchanged. The function gets the tokens of a text, strings (of token
        ids, these), and returns ``(query, key)``, from 0 to 1: how much the weight of a query on a key counts.

    Raises
    ------
    AttnscopeError
        If the name is taken. While measuring: if the function fails, or returns another shape, numbers that are not
        between 0 and 1, or others when called again; if nothing is expected in any text.

    Notes
    -----
    A run records an identity of the function as for `attnscope.statistic`, and its texts.

    See Also
    --------
    attnscope.roles, attnscope.statistic

    Examples
    --------
    >>> import attnscope
    >>> import numpy as np
    >>> @attnscope.role(threshold=0.5)
    ... def second_last(tokens):
    ...     '''Weight on the token two before.'''
    ...     return np.eye(len(tokens), k=-2)
    >>> found = attnscope.roles(limit=4, only="second_last").sel(role="second_last")
    >>> np.argwhere(found.score.values >= 0.5).tolist(), float(found.control_score.max()) < 0.1
    ([[0, 0]], True)
    """
    from attnscope.detection.role import ANY, register_role
    from attnscope.support.errors import AttnscopeError

    unknown = [kind for kind in layers if kind not in ANY]
    if unknown:
        raise AttnscopeError(f"layers has {unknown[0]!r:.40}; expected {', '.join(ANY)}")

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        register_role(function, name or getattr(function, "__name__", ""), texts, threshold, tuple(layers), more)
        return function

    return register
