"""`attnscope.weights`."""

from typing import TYPE_CHECKING, Annotated, Unpack

from attnscope.options import ModelOptions, ModelOrBundled, Natural, Processor, Sources, Words
from attnscope.verbs import verb

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
    layer: Annotated[Natural | None, "Return this layer, counted from 0. By default all."] = None,
    head: Annotated[Natural | None, "Return this head, counted from 0. By default all."] = None,
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
    from functools import partial

    from attnscope.bundled import MODEL
    from attnscope.capture.modalities import modality_of
    from attnscope.capture.placement import device_of
    from attnscope.measure.raw import ChosenHeads, first_window, observe_window, several
    from attnscope.measure.reader import scan_settings
    from attnscope.measure.sample import WordBatch
    from attnscope.measure.scan import READERS
    from attnscope.opened import Opened
    from attnscope.read.sounds import Sounds
    from attnscope.read.words import WordedWindows, in_words, word_rule_of
    from attnscope.support.errors import AttnscopeError

    heads, source = ChosenHeads(layer, head), MODEL if model is None else model
    modality = None if texts is None else modality_of(source, texts, revision=reading["revision"])
    if modality is None:
        session = Opened.of(model, texts)
        loaded = session.load({"tokenizer": tokenizer, **reading}, heads=[(layer, head)])
        first = first_window(session, targets, window)
        merged = None
        if words is not None:
            first = next(iter(WordedWindows([first], word_rule_of(words))))
            merged = WordBatch.of([first], device_of(loaded.model))
        observe_window(loaded, first, partial(heads.add_weights, words=merged))
        return heads.weights(in_words(first))
    if window is not None or words is not None:
        raise AttnscopeError("window and words need plain texts: leave them out")
    if len(modality) > 1:
        raise several(f"{len(modality)} images, videos, sounds or texts with images")
    if targets is not None and not isinstance(modality, Sounds):
        raise AttnscopeError("targets need texts or sounds: leave them out")
    settings = scan_settings(reading, limit=1, tokenizer=tokenizer, targets=targets, statistics=("entropy",))
    reader = READERS[type(modality)](source, modality, settings)
    return heads.weights(reader.observe_first(heads.add_weights))
