"""`attnscope.received`."""

from typing import TYPE_CHECKING, Annotated, Unpack

from attnscope.options import Count, ModelOrBundled, Natural, Sources, Tell, TextModelOptions
from attnscope.verbs import verb

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
    layer: Annotated[Natural | None, "Return this layer, counted from 0. By default all."] = None,
    head: Annotated[Natural | None, "Return this head, counted from 0. By default all."] = None,
    observation: Annotated[
        Count | None,
        "Count only these last queries, the observation window, as in methods that drop keys (SnapKV, Li et al. "
        "2024). By default all.",
    ] = None,
    key_value_heads: Annotated[
        bool,
        "Return key-value heads, of which a cache holds the keys: each the sum over the query heads that share it.",
    ] = False,
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
        ``key_token``. It sums to the number of queries (less with a learned sink), with `key_value_heads` times the
        query heads of each.

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
    from functools import partial

    from attnscope.bundled import MODEL
    from attnscope.capture.modalities import reject_modalities
    from attnscope.measure.raw import ChosenHeads, first_window, observe_window
    from attnscope.opened import Opened
    from attnscope.support.progress import Progress, no_progress

    heads, tell = ChosenHeads(layer, head, key_value_heads), progress or no_progress
    reject_modalities("received", MODEL if model is None else model, texts, revision=reading["revision"])
    tell(Progress("loading the model", 0.0))
    session = Opened.of(model, texts)
    loaded = session.load(reading, heads=[(layer, head)])
    tell(Progress("received", 0.5))
    first = first_window(session, targets, window)
    observe_window(loaded, first, partial(heads.add_received, last=observation))
    tell(Progress("received", 1.0))
    return heads.received(first, has_decoder=bool(loaded.model.config.is_encoder_decoder))
