"""`attnscope.head_outputs`."""

from typing import TYPE_CHECKING, Annotated, Literal, Unpack

from attnscope.options import ModelOrBundled, SessionReading, Texts
from attnscope.verbs import run_on_model, verb

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
    return run_on_model("intervention.edit:head_outputs", locals())
