"""`attnscope.received`."""

from typing import TYPE_CHECKING, Annotated, Unpack

from attnscope.options import ModelOrBundled, Sources, Tell, TextModelOptions
from attnscope.verbs import run, verb

if TYPE_CHECKING:
    import xarray as xr


@verb()
def received(
    model: ModelOrBundled = None,
    texts: Annotated[Sources, "Read one text, or its token ids; only the first window of a long text is used."] = None,
    *,
    targets: Annotated[
        Sources, "Read this with the decoder of an encoder-decoder. By default what the encoder reads."
    ] = None,
    layer: Annotated[int | None, "Return this layer, counted from 0. By default all."] = None,
    head: Annotated[int | None, "Return this head, counted from 0. By default all."] = None,
    observation: Annotated[
        int | None,
        "Count only these last queries, the observation window, as in methods that drop keys (SnapKV, Li et al. "
        "2024). By default all.",
    ] = None,
    window: Annotated[int | None, "Cut the text to this many tokens. By default the model's length."] = None,
    progress: Annotated[
        Tell | None, "Call this function with a `Progress` before loading the model, before the pass, and at the end."
    ] = None,
    **reading: Unpack[TextModelOptions],
) -> "xr.DataArray":
    r"""Attention received by each token of a text: :math:`\sum_i A_{ij}` over all queries, or over the last ones.

    The result is exact, and memory grows linearly with the length of the text.

    Returns
    -------
    xarray.DataArray
        ``(layer, head, key)``, in queries, float64, without the dimensions of a chosen layer or head; coordinate
        ``key_token``. It sums to the number of queries (less with a learned sink).

    Raises
    ------
    AttnscopeError
        If there are several texts, the layer or head does not exist, or `observation` is below 1.

    Examples
    --------
    >>> received_weights = received("bundled", "The tide comes in twice a day.", layer=0, head=3)
    >>> received_weights.dims, round(float(received_weights.sum()), 4) == received_weights.sizes["key"]
    (('key',), True)
    >>> most = received_weights.sortby(received_weights, ascending=False)[:2]  # the keys that receive most
    >>> most.key_token.shape
    (2,)
    """
    return run("measure.raw:received", locals())
