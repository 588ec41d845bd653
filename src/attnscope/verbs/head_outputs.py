"""`attnscope.head_outputs`."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from attnscope.options import ModelOrBundled, SessionReading, Texts
from attnscope.verbs import verb

if TYPE_CHECKING:
    import xarray as xr


@verb(limit=100)
def head_outputs(
    model: ModelOrBundled = None,
    texts: Texts = None,
    *,
    on: Annotated[
        str,
        "Return ``output``, ``z``, ``weights``, ``scores``, ``query``, ``key`` or ``value``, as in "
        '`attnscope.edit`; or a layer by TransformerLens\' name of a hook (``"blocks.3.attn.hook_z"``).',
    ] = "output",
    layer: Annotated[int | None, "Return tensors of this layer, counted from 0. By default of all."] = None,
    head: Annotated[int | None, "Return tensors of this head, counted from 0. By default of all."] = None,
    kind: Annotated[
        Literal["self", "causal", "cross"] | None, "Return only layers of this kind, as in `attnscope.edit`."
    ] = None,
    **reading: Unpack[SessionReading],
) -> "xr.DataArray":
    """Tensors of every head over texts, as arrays.

    Returns
    -------
    xarray.DataArray
        ``(window, layer, head, position, width)``, or ``(window, layer, head, query, key)`` of weights and scores;
        float32, NaN beyond a window's tokens; without the dimensions of a chosen layer or head. Coordinates: ``source``
        and ``length`` (tokens) of each window, and ``position_token``, or ``query_token`` and ``key_token``. The
        outputs of all heads of a layer, plus the bias of its output matrix, sum to the output of the layer.

    Raises
    ------
    AttnscopeError
        If the layer or head does not exist, attention is not captured, the arrays need more than 1 GiB, or the layers
        read several texts (source and target).

    Examples
    --------
    >>> found = head_outputs("bundled", ["The tide comes in.", "It rained."], on="z", layer=0)
    >>> found.dims, found.length.values.tolist()
    (('window', 'head', 'position', 'width'), [9, 8])
    """
    from typing import cast, get_args

    from attnscope.capture.placement import device_of
    from attnscope.intervention.edit import (
        On,
        chosen_site,
        hook_point,
        labelled_tensors,
        layers_and_outputs,
        tensors_of_heads,
    )
    from attnscope.measure.passes import WindowBatch
    from attnscope.measure.texts import first_windows
    from attnscope.opened import Opened
    from attnscope.support.errors import AttnscopeError

    if "." not in on and on not in get_args(On):
        raise AttnscopeError(f"found on {on!r}; expected {', '.join(get_args(On))}, or the name of a hook")
    named: Any = {"heads": [(layer, head)], "kind": kind}
    session = Opened.open("head_outputs", model, reading, texts, reading["targets"], in_pairs=True, **named)
    loaded, length = session.model, session.length(reading["window"])
    windows = first_windows(loaded, session.corpus, session.target, length=length, limit=reading["limit"])
    longest = WindowBatch.of([max(windows, key=len)], 0, device_of(loaded.model))
    sites, outputs = layers_and_outputs(loaded.model, longest.inputs(loaded.model))
    if "." in on:
        site, what = hook_point(on, sites)
        layers, layer = [site], 0
    else:
        site, what = chosen_site(sites, layer or 0, kind), cast("On", on)
        layers = [one for one in sites if kind in {None, one.kind}] if layer is None else [site]
    if len({one.kind for one in layers}) > 1 and any(window.target for window in windows):
        raise AttnscopeError("layers of encoder and decoder read several texts: choose a kind, or one layer")
    if head is not None and not 0 <= head < min(one.heads for one in layers):
        raise AttnscopeError(f"there is no head {head} in every layer: choose from 0 to {layers[0].heads - 1}")
    values = tensors_of_heads(loaded, windows, layers, what, head, sites, outputs)
    tensors = labelled_tensors(values, windows, layers, what, head)
    return tensors.isel(({} if layer is None else {"layer": 0}) | ({} if head is None else {"head": 0}))
