"""`attnscope.view`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from attnscope.options import Array, Dataset, Model, Sources, TextModelOptions, Tree
from attnscope.verbs import verb

if TYPE_CHECKING:
    from attnscope.results.notebook import Page
    from attnscope.results.view import View


@verb()
def view(
    model: Annotated[
        Model | Dataset | Tree | Sequence[Any] | Array | None,
        "Show a model, as in `attnscope.scan`; or weights that you have (``outputs.attentions`` of a model of "
        "transformers, an array ``(layer, head, query, key)``), with their `tokens`; or a result, "
        "whose page is shown.",
    ] = None,
    texts: Annotated[
        Sources,
        "Show this text, cut to the model's length; or an image for a vision encoder, a video, a sound, or a text with "
        "an image. By default an example.",
    ] = None,
    *,
    image: Annotated[
        Path | None, "Show the text with this image (.png, .jpg, .webp), through a vision-language model."
    ] = None,
    pair: Annotated[
        tuple[str, str] | None,
        "Show these two sentences, which the tokenizer joins; one part can be shown alone, such as A to B.",
    ] = None,
    targets: Annotated[Sources, "Read this with the decoder of an encoder-decoder."] = None,
    tokens: Annotated[Sequence[str] | None, "Name the keys, for weights."] = None,
    query_tokens: Annotated[Sequence[str] | None, "Name the queries, for weights."] = None,
    layer: Annotated[
        int | None,
        "Open with a head of this layer, counted from 0. By default the first, or the last that attends to a sound.",
    ] = None,
    head: Annotated[int | None, "Open with this head, counted from 0. By default the first."] = None,
    query: Annotated[
        str | None, "Open with this word chosen, or with the token at this position, counted from 0."
    ] = None,
    window: Annotated[int | None, "Cut the text to this many tokens."] = None,
    **reading: Unpack[TextModelOptions],
) -> "View | Page":
    """Look at the attention of one text: all heads, one head over the running text, and its map.

    In a notebook with anywidget (``pip install 'attnscope[notebook]'``) the result is a widget. Heads and tokens that
    you click are read back as ``view.layer``, ``view.head``, ``view.token`` and ``view.span``. With the package
    attnscope-live its model answers: change the text, take heads out, compare two texts, let the model write.
    ``attnscope view`` opens the same in a browser. Elsewhere it is a page: ``view.save("view.html")``.

    Returns
    -------
    View
        With the open `layer`, `head` and `token`, their `weights`, a `figure` and `save`. For results, the frame with
        their page.

    Raises
    ------
    AttnscopeError
        If weights and tokens differ in number, or the head is not there.

    Examples
    --------
    >>> import attnscope
    >>> view = attnscope.view("bundled", "The tide comes in twice a day.", layer=0, head=3)
    >>> view, view.weights.dims
    (<view of small-mlm: head 0.3>, ('query', 'key'))
    """
    import numpy as np
    import torch
    import xarray as xr

    from attnscope.bundled import ANSWERS_IT, example_for
    from attnscope.capture.modalities import modality_of
    from attnscope.measure.raw import first_window
    from attnscope.opened import Opened
    from attnscope.report.language import translate
    from attnscope.results.view import (
        conversation_of,
        maps_of_modality,
        maps_of_pair,
        maps_of_weights,
        maps_of_window,
        view_at,
        with_image,
    )
    from attnscope.support.errors import AttnscopeError

    if model is None and texts is None and pair is None:
        model = ANSWERS_IT
    if isinstance(model, xr.Dataset | xr.DataTree):
        return model.attnscope.show()
    if isinstance(model[0] if isinstance(model, tuple | list) and model else model, np.ndarray | torch.Tensor):
        return view_at(maps_of_weights(model, tokens, query_tokens), layer, head, query, translate("Attention"))
    if tokens is not None or query_tokens is not None:
        raise AttnscopeError("tokens are names for weights, and a model has its own: leave them out")
    source = str(model) if isinstance(model, str | Path) else "bundled" if model is None else "model"
    if image is not None:
        texts = with_image(texts, image)
    modality: Any = None if texts is None else modality_of(model, texts, revision=reading["revision"])  # pyright: ignore[reportArgumentType]
    if modality is not None and (pair is not None or window is not None):
        raise AttnscopeError("pair and window need plain texts: leave them out")
    if modality is not None:
        reader, maps, text = maps_of_modality(model, modality, reading, targets)
        if layer is None:  # of a sound with its transcript: what attends from one to the other
            layer = max((index for index, kind in maps.kinds.items() if kind == "cross"), default=None)
        return view_at(maps, layer, head, query, reader.loaded.name, conversation_of(reader, source, reading), text)
    session = Opened.of(model, texts)  # pyright: ignore[reportArgumentType]
    loaded = session.load(reading, heads=[(layer, head)])
    if pair is not None:
        if texts is not None:
            raise AttnscopeError("found a text and a pair: give one of them")
        return view_at(maps_of_pair(loaded, pair), layer, head, query, loaded.name)
    if texts is None:
        session.texts = [example_for(model)]
        if model == ANSWERS_IT and layer is head is query is None:
            layer, head, query = 1, 0, "it"
    window_of_text = first_window(session, targets, window)
    maps = maps_of_window(loaded, window_of_text)
    return view_at(maps, layer, head, query, loaded.name, conversation_of(loaded, source, reading), window_of_text.text)
