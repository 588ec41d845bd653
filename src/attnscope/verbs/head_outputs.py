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
        "Return ``output``, ``z``, ``weights``, ``scores``, ``query``, ``key`` or ``value`` of heads, or another "
        'activation, as in `attnscope.edit`: ``"resid_mid"`` of all blocks, ``"3.resid_mid"`` of one, ``"embed"``, '
        '``"logits"``; or by TransformerLens\' name of a hook (``"blocks.3.attn.hook_z"``).',
    ] = "output",
    layer: Annotated[
        int | None, "Return tensors of this layer, or of this block, counted from 0. By default of all."
    ] = None,
    head: Annotated[int | None, "Return tensors of this head, counted from 0. By default of all."] = None,
    kind: Annotated[
        Literal["self", "causal", "cross"] | None,
        "Return only layers of this kind, as in `attnscope.edit`. Of other activations, ``self`` means the encoder.",
    ] = None,
    **reading: Unpack[SessionReading],
) -> "xr.DataArray":
    """Tensors of every head, or other activations, over texts, as arrays.

    Returns
    -------
    xarray.DataArray
        ``(window, layer, head, position, width)``, or ``(window, layer, head, query, key)`` of weights and scores;
        of activations ``(window, block, position, width)``, or ``(window, position, width)`` outside blocks. They are
        float32, NaN beyond a window's tokens; without the dimensions of a chosen layer, block or head. Coordinates:
        ``source`` and ``length`` (tokens) of each window, and ``position_token``, or ``query_token`` and ``key_token``.
        The outputs of all heads of a layer, plus the bias of its output matrix, sum to the output of the layer.

    Raises
    ------
    AttnscopeError
        If the layer, head or activation does not exist, attention is not captured, the arrays need more than 1 GiB, or
        the layers read several texts (source and target).

    Examples
    --------
    >>> found = head_outputs("bundled", ["The tide comes in.", "It rained."], on="z", layer=0)
    >>> found.dims, found.length.values.tolist()
    (('window', 'head', 'position', 'width'), [9, 8])
    """
    from typing import cast, get_args

    from attnscope.capture.placement import device_of
    from attnscope.intervention.activations import check_name
    from attnscope.intervention.edit import (
        Anatomy,
        On,
        activations_by,
        chosen_site,
        hook_point,
        is_hook_of_heads,
        labelled_activations,
        labelled_heads,
        padded,
        recorded,
    )
    from attnscope.measure.passes import WindowBatch
    from attnscope.measure.texts import first_windows
    from attnscope.opened import Opened
    from attnscope.support.errors import AttnscopeError

    of_heads = on in get_args(On) or is_hook_of_heads(on)
    if not of_heads:
        check_name(on)
    if head is not None and not of_heads:
        raise AttnscopeError(f"{on} is not of a head: leave out head")
    named: Any = {"heads": [(layer, head)] if of_heads else [], "kind": kind}
    session = Opened.open("head_outputs", model, reading, texts, reading["targets"], in_pairs=True, **named)
    loaded, length = session.model, session.length(reading["window"])
    windows = first_windows(loaded, session.corpus, session.target, length=length, limit=reading["limit"])
    longest = WindowBatch.of([max(windows, key=len)], 0, device_of(loaded.model))
    anatomy = Anatomy(loaded.model, longest.inputs(loaded.model))
    if not of_heads:
        activations, is_one = activations_by(anatomy, on, layer, kind)
        decodes = loaded.model.config.is_encoder_decoder and not activations[0].name.startswith("encoder.")
        values = padded(recorded(loaded, windows, anatomy, activations))
        arrays = labelled_activations(values, windows, activations, decodes=decodes)
        return arrays.isel({"block": 0}, drop=activations[0].block is None) if is_one else arrays
    sites = anatomy.layers.sites
    if is_hook_of_heads(on):
        site, what = hook_point(on, anatomy)
        layers, layer = [site], 0
    else:
        site, what = chosen_site(sites, layer or 0, kind), cast("On", on)
        layers = [one for one in sites if kind in {None, one.kind}] if layer is None else [site]
    if len({one.kind for one in layers}) > 1 and any(window.target for window in windows):
        raise AttnscopeError("layers of encoder and decoder read several texts: choose a kind, or one layer")
    if head is not None and not 0 <= head < min(one.heads for one in layers):
        raise AttnscopeError(f"there is no head {head} in every layer: choose from 0 to {layers[0].heads - 1}")
    taken = recorded(loaded, windows, anatomy, [(one, what) for one in layers], head)
    tensors = labelled_heads(padded(taken), windows, layers, what, head)
    return tensors.isel(({} if layer is None else {"layer": 0}) | ({} if head is None else {"head": 0}))
