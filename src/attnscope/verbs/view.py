"""`attnscope.view`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from attnscope.options import Array, Dataset, Model, Sources, TextModelOptions, Tree
from attnscope.verbs import run_on_model, verb

if TYPE_CHECKING:
    from attnscope.results.view import Page, View


@verb()
def view(
    model: Annotated[
        Model | Dataset | Tree | Sequence[Any] | Array | None,
        "Show a model, as in `attnscope.scan`; or weights that you have (``outputs.attentions`` of a model of "
        "transformers, an array ``(layer, head, query, key)``), with their `tokens`; or what a verb returned, "
        "whose page is shown.",
    ] = None,
    texts: Annotated[Sources, "Show this text. A long one is cut to the model's length."] = None,
    *,
    pair: Annotated[
        tuple[str, str] | None,
        "Show these two sentences, which the tokenizer joins; one part can be shown alone, such as A to B.",
    ] = None,
    targets: Annotated[Sources, "Read this with the decoder of an encoder-decoder."] = None,
    tokens: Annotated[Sequence[str] | None, "Name the keys, for weights."] = None,
    query_tokens: Annotated[Sequence[str] | None, "Name the queries, for weights."] = None,
    layer: Annotated[int | None, "Open with a head of this layer, counted from 0. By default the first."] = None,
    head: Annotated[int | None, "Open with this head, counted from 0. By default the first."] = None,
    window: Annotated[int | None, "Cut the text to this many tokens."] = None,
    **reading: Unpack[TextModelOptions],
) -> "View | Page":
    """Look at the attention of one text: all heads, one head over the running text, and its map.

    In a notebook with anywidget (``pip install 'attnscope[notebook]'``) the result is a widget: heads and tokens that
    you click are read back as ``view.layer``, ``view.head``, ``view.token`` and ``view.span``. Elsewhere it is a page:
    ``view.save("view.html")``.

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
    return run_on_model("results.view:view", locals())
