"""`attnscope.examples`."""

from typing import TYPE_CHECKING, Annotated, Any, Unpack

from attnscope.options import SCALE, Count, Flag, HeadsOrScan, ModelsOrBundled, StudyReading, Texts, Typed
from attnscope.verbs import verb

if TYPE_CHECKING:
    import xarray as xr


@verb(
    examples=(
        ("attnscope examples --heads 0.1", "a head of the bundled model"),
        ("attnscope examples gpt2 corpus.txt --heads 5.1,6.9 -k 10", "two heads, on a file"),
        ("attnscope examples gpt2 corpus.txt --heads runs/gpt2", "the heads of the rankings of a scan"),
        ("attnscope examples gpt2 corpus.txt --heads 5.1 --query it", "where the query is the token it"),
    )
)
def examples(
    model: ModelsOrBundled = None,
    texts: Texts = None,
    *,
    heads: Annotated[
        HeadsOrScan,
        "Find examples of these heads, as layer.head, counted from 0; or of the rankings of a scan, by its run "
        "folder. In Python also a scan of the model. docs/guides/own-questions.md has all forms.",
    ],
    k: Annotated[
        Count, Flag("k", short="-k"), "Find this many examples: of the strongest, of the middle, and at random."
    ] = 20,
    by: Annotated[
        str,
        "Order rows by weight, value_norm or entropy. The strength of a row of n visible keys is what the strength "
        'of a row of n visible keys is: ``"weight"``, its largest weight over that of uniform attention, :math:`n '
        '\\max_j A_{ij}`; ``"value_norm"``, the largest :math:`n A_{ij} \\lVert v_j \\rVert` (Kobayashi et al. '
        '2020, without the output projection); or ``"entropy"``, its entropy below that of uniform attention, '
        ":math:`\\ln n - H_i` (nats), among rows whose largest weight is on a key that counts.",
    ] = "weight",
    query: Annotated[
        str | None,
        Typed(metavar="TOKEN"),
        "Count only queries of this token, or /pattern/. It is a token without the space around it, or a pattern "
        'between slashes (``"/[0-9]+/"``). With `key`, this searches a corpus for a pair of tokens. By default any.',
    ] = None,
    key: Annotated[
        str | None, Typed(metavar="TOKEN"), "Count only keys of this token, or /pattern/. By default any."
    ] = None,
    sinks: Annotated[
        bool,
        "Count the first token and special tokens as keys. Without it they do not count, because many heads put "
        "most of their weight there.",
    ] = False,
    batch_size: Annotated[
        Count | None, SCALE, "Measure this many windows at a time. By default about 2,048 tokens' worth."
    ] = None,
    **reading: Unpack[StudyReading],
) -> "xr.Dataset":
    """Find where in a corpus heads attend most strongly, in context, and the features that these windows share.

    Every window is measured exactly, row by row. Each window has at most one example of a head, so that examples are
    different texts. The strongest windows (``top``) are compared with windows around the median (``middle``) and with
    rows drawn at random from all windows (``random``).

    The memory grows with neither the corpus nor the weights: of the windows so far only those remain that can still be
    examples. With `out`, the run can be interrupted, resumed and split into tasks; the result is identical.

    Returns
    -------
    xarray.Dataset
        Over ``example``: ``set``, ``layer``, ``head``, ``score``, ``weight``, ``query``, ``key`` (positions in the
        window), ``query_token``, ``key_token``, ``window_number``, ``text`` (its name) and ``context`` (JSON: pieces
        of text, each with the mark ``query``, ``key`` or none). Over ``feature``: what the top examples have in common,
        such as a token or an offset, with ``found`` examples, ``expected`` ones under uniform attention from the same
        queries, ``p`` and ``significant``. Attributes: ``windows`` and ``tokens`` of the corpus.

    Raises
    ------
    AttnscopeError
        If there is no such head, no row counts, or an argument, the model or a text cannot be used.

    Notes
    -----
    Features are tested by a Poisson-binomial test: the number of top examples with a feature is a sum of independent
    yes-or-no variables, one for each window. A key is drawn as under uniform attention from the example's own query. A
    query is drawn from those at the relative positions of all top examples, as a ranking can prefer early or late ones.
    The false discovery rate over all features that could occur, of all heads, is 0.05 (Benjamini and Hochberg 1995).

    The number of a window and the seed decide whether it is drawn, so the sample does not depend on the order of
    measuring. The median of more than 4,096 windows is that of 4,096 drawn at random.

    Examples
    --------
    >>> import attnscope
    >>> found = attnscope.examples(heads="0.1", k=3, limit=8, window=64)
    >>> top = found.sel(example=found.set == "top")
    >>> bool((top.score.diff("example") <= 0).all()), dict(top.sizes)["example"]
    (True, 3)
    """
    from pathlib import Path

    import xarray as xr

    from attnscope.detection.examples import RANKINGS, Choice, ExampleReader
    from attnscope.measure.reader import scan_settings
    from attnscope.measure.sample import leading_heads
    from attnscope.measure.stored import opened_scan
    from attnscope.report.signature import Signature
    from attnscope.store.units import task_for
    from attnscope.support.errors import AttnscopeError

    if by not in RANKINGS:
        raise AttnscopeError(f"by is {by!r:.60}; expected {', '.join(RANKINGS[:-1])} or {RANKINGS[-1]}")
    task = task_for(examples, locals(), in_memory=True)
    scanned = opened_scan(heads) if isinstance(heads, xr.Dataset | str | Path) else None
    chosen: Any = heads if scanned is None else leading_heads(scanned)
    settings = scan_settings(reading, statistics="entropy", batch_size=batch_size)
    reader = ExampleReader(model, texts, settings, chosen, Choice(k, by, query, key, sinks))
    if scanned is not None and Signature.from_json(scanned.attrs["signature"]).model != reader.signature.model:
        raise AttnscopeError(
            "heads are those of a scan of another model: give the model that was scanned, or other heads"
        )
    return reader.scan(task)
