"""`attnscope.weights`."""

from typing import TYPE_CHECKING, Annotated, Unpack

from attnscope.options import ModelOptions, ModelOrBundled, Processor, Sources, Words
from attnscope.verbs import run, verb

if TYPE_CHECKING:
    import xarray as xr


@verb()
def weights(
    model: ModelOrBundled = None,
    texts: Annotated[
        Sources,
        "Read one text, or its token ids; only the first window of a long text is used. Or one image, sound or "
        "text with images, in any form of `attnscope.scan`.",
    ] = None,
    *,
    targets: Annotated[
        Sources,
        "Read this with the decoder of an encoder-decoder. By default what the encoder reads. For a sound, its "
        "transcript, by default the text file next to it.",
    ] = None,
    layer: Annotated[int | None, "Return this layer, counted from 0. By default all."] = None,
    head: Annotated[int | None, "Return this head, counted from 0. By default all."] = None,
    tokenizer: Annotated[Processor, "Use this tokenizer or processor: see `attnscope.scan`."] = None,
    window: Annotated[int | None, "Cut the text to this many tokens. By default the model's length."] = None,
    words: Annotated[Words | None, "Return weights from word to word: see `attnscope.scan`."] = None,
    **reading: Unpack[ModelOptions],
) -> "xr.DataArray":
    """Raw attention weights of some heads over one text, image or sound.

    Returns
    -------
    xarray.DataArray
        A, ``(layer, head, query, key)``, float32, without the dimensions of a chosen layer or head; coordinates
        ``query_token`` and ``key_token``: for images ``r0c0`` is the patch in row 0 and column 0, for sounds the second
        at which a frame begins. Rows sum to 1 (less with a learned sink).

    Raises
    ------
    AttnscopeError
        If there are several texts, the layer or head does not exist, its layer attends in windows of an image, or the
        weights need more than 1 GiB.

    Examples
    --------
    >>> matrix = weights("bundled", "The tide comes in twice a day.", layer=0, head=3)
    >>> matrix.dims, matrix.key_token.values[:3].tolist()
    (('query', 'key'), ['<s>', ' The', ' t'])
    >>> int(matrix[2].argmax("key")), round(float(matrix[2].sum()), 5)
    (1, 1.0)
    """
    return run("measure.raw:weights", locals())
