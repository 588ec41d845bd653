"""A rule of where heads may not look, as a part of `intervene`: what it forbids, and what the predictions lose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import xarray as xr

from attnscope._arguments import typed
from attnscope._documents import units_of
from attnscope.checks import check_whole, shortly
from attnscope.errors import AttnscopeError
from attnscope.faithfulness._knockout import Forbidden, knock_out
from attnscope.faithfulness.arrays import by_document
from attnscope.faithfulness.passes import one_token
from attnscope.progress import Tell

if TYPE_CHECKING:
    from attnscope.corpus import Window
    from attnscope.faithfulness._inquiry import Inquiry

HARDLY = 0.01  # share of a head's weight below which a rule can hardly change what it gives


def rule_of(
    offsets: Sequence[int], tokens: Sequence[str], tokenizer: Any, *, first: bool
) -> Forbidden | None:
    """The rule that a caller's words stand for; None where nothing is forbidden.

    Raises
    ------
    AttnscopeError
        If an offset is no whole number, or a text is not one token.

    Examples
    --------
    >>> rule_of([-1], [], None, first=True)
    Forbidden(offsets=(-1,), first=True, tokens=())
    """
    for offset in offsets:
        check_whole(-(10**6), 10**6, forbid_offset=offset)
    if isinstance(tokens, str):
        raise AttnscopeError(f"forbid_tokens is {shortly(tokens)}; expected a list of strings")
    ids = tuple(
        dict.fromkeys(one_token(tokenizer, text, "the forbidden token (--forbid-token)") for text in tokens)
    )
    rule = Forbidden(tuple(dict.fromkeys(offsets)), first, ids)
    return rule if rule.offsets or rule.first or rule.tokens else None


def said_rule(offsets: Sequence[int], tokens: Sequence[str], *, first: bool) -> list[str]:
    """What is forbidden, in words.

    Examples
    --------
    >>> said_rule([-1], ["."], first=True)
    ['offset -1', 'the first token', "token '.'"]
    """
    return [
        *(f"offset {offset:+d}" if offset else "offset 0" for offset in offsets),
        *(["the first token"] if first else []),
        *(f"token {text!r}" for text in tokens),
    ]


def check_rule(rule: Forbidden, windows: Sequence[Window]) -> None:
    """Refuse a rule that forbids nothing in these windows.

    Raises
    ------
    AttnscopeError
        If no offset fits into a window, and no forbidden token is in one.
    """
    longest = max(max(len(window), len(window.target or ())) for window in windows)
    ids = {
        token
        for window in windows
        for side in (window, window.target)
        if side is not None
        for token in side.ids
    }
    if rule.first or any(abs(offset) < longest for offset in rule.offsets) or ids & {*rule.tokens}:
        return
    raise AttnscopeError(
        f"nothing is forbidden by --forbid-offset and --forbid-token in these windows of up to {longest} tokens: no "
        "such offset or token is in them"
    )


@typed
def without_forbidden(
    inquiry: Inquiry,
    rule: Forbidden,
    said: Sequence[str],
    *,
    renormalise: bool,
    seed: int,
    progress: Tell | None = None,
) -> xr.Dataset:
    """What the predictions lose when each head alone may not look where a rule says; see `knock_out`.

    Parameters
    ----------
    inquiry
        Checked.
    rule
        Offsets and tokens at which no head may look.
    said
        The rule in words, as results hold it.
    renormalise
        Whether the weights that are left are scaled to the sum of before.
    seed
        Seed of the bootstrap.
    progress
        Called with a `Progress` as in `knock_out`.

    Returns
    -------
    xarray.Dataset
        ``loss_change`` (nats) and ``weight`` (share of all weight that was forbidden) of each text ``(text, layer,
        head)``; their means ``effect`` and ``forbidden_weight`` ``(layer, head)``, with ``effect_low`` and
        ``effect_high``, the 95% interval over documents (or windows), ``shown`` and ``tested``, as in `heads_of`.

    Examples
    --------
    >>> from attnscope.capture import load_model
    >>> from attnscope.corpus import texts_of
    >>> from attnscope.faithfulness import inquiry
    >>> texts = texts_of(["The tide comes in twice a day.", "The boats lie on the sand."])
    >>> asked = inquiry(load_model("bundled", device="cpu"), texts, window=16, limit=2)
    >>> asked.check()
    >>> rule, said = rule_of([-1], [], None, first=False), said_rule([-1], [], first=False)
    >>> lost = without_forbidden(asked, rule, said, renormalise=True, seed=0)
    >>> lost.attrs["forbid"], lost.forbidden_weight.sel(layer=0).values.round(2).tolist()
    (['offset -1'], [0.05, 0.0, 0.0, 0.87])
    """
    knocked = knock_out(inquiry, rule, renormalise=renormalise, progress=progress)
    documents = knocked.source.values.tolist()
    units, called = units_of(documents)
    mean, low, high, shown, tested = by_document(knocked.loss_change.values, units, seed=seed)
    dims, nats = ("layer", "head"), {"units": "nats"}
    words = "Change of the loss where the head may not look there"
    weight = knocked.weight.mean("text", skipna=False).assign_attrs(
        long_name="Share of all weight that is forbidden", units="share"
    )
    return knocked.assign(
        effect=(dims, mean, {"long_name": words, **nats}),
        effect_low=(dims, low, {"long_name": "Lower end of its 95% interval", **nats}),
        effect_high=(dims, high, {"long_name": "Upper end of its 95% interval", **nats}),
        shown=(dims, shown, {"long_name": "Effect told from 0, all heads together", "units": "1"}),
        tested=(dims, tested, {"long_name": "Whether that was tested", "units": "1"}),
        forbidden_weight=weight,
    ).assign_attrs(intervals_over=called, forbid=list(said))
