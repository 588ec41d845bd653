"""`attnscope.explain`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Unpack

from attnscope.options import (
    IN_PYTHON,
    Analysis,
    Band,
    Completion,
    Count,
    Flag,
    Model,
    ModelOrBundled,
    Range,
    StudyReading,
    Texts,
    Typed,
)
from attnscope.verbs import run_on_model, verb

if TYPE_CHECKING:
    import xarray as xr


@verb(
    limit=100,
    examples=(
        ("attnscope explain", "the bundled model on the bundled text"),
        ("attnscope explain gpt2 corpus.txt --limit 20", "a model of the hub on a file"),
        ("attnscope explain ./my-model corpus/ --interventions", "with words and positions changed"),
    ),
)
def explain(
    model: ModelOrBundled = None,
    texts: Texts = None,
    *,
    band: Band = 10,
    frequencies: Annotated[
        Range | None,
        "Read shifts off these frequencies, in cycles per window. They are the first and the last. By default from 3.",
    ] = None,
    completion: Annotated[
        Completion, "Complete the rotation in the phase maps by minimal, lapack, haar or thin. See `phase_map`."
    ] = "minimal",
    also: Annotated[
        Sequence[Model],
        Typed(metavar="MODEL", repeated=True),
        "Show the position table of this model next to this one's; may be repeated. Other models read no text.",
    ] = (),
    layer: Annotated[
        int | None,
        "Show heads of this layer, counted from 0, in the figures of single heads. It changes no number; attnscope "
        "checks it before it reads the texts.",
    ] = None,
    head: Annotated[int | None, "Show this head, counted from 0, in the figures of single heads."] = None,
    interventions: Annotated[bool, "Change words and positions too, and watch heads."] = False,
    intervention_texts: Annotated[
        Count,
        IN_PYTHON,
        "Read this many windows for the interventions, from the first; each change takes a pass over them.",
    ] = 8,
    analyses: Annotated[
        Sequence[str | Analysis],
        Flag("analyses"),
        Typed(metavar="NAME[=SETTING]", repeated=True),
        "Add this analysis of an installed package, such as yamamoto2023, the numbers of a paper; may be repeated. "
        'In Python records, or names. Some take a setting: ``"relearned=2500"``.',
    ] = (),
    **reading: Unpack[StudyReading],
) -> "xr.DataTree":
    """Explain why every head attends there: take queries and keys apart into positions, content and waves.

    Returns
    -------
    xarray.DataTree
        A node for each analysis that the model admits, by the names of ``attnscope.explanation.catalogue.ANALYSES``
        and of `analyses`. ``verdict``, ``position_content`` and ``repeated_tokens`` have numbers of each head
        ``(layer, head)``, profiles also ``offset``; ``waves``, ``cross_spectrum`` and ``phase_map`` of each head and
        ``frequency`` (cycles per window) or ``column``; ``position_spectrum``, ``position_pca`` and ``position_cca``
        of the table of positions, by ``frequency`` or ``component``. ``also/0``, ``also/1``, ... hold spectrum and
        components of other models' tables. The attribute ``skipped`` lists, as JSON, the undefined analyses and the
        reasons; ``decoder`` describes the decoder's input in an encoder-decoder.

    Raises
    ------
    AttnscopeError
        For invalid input: see the message.

    See Also
    --------
    attnscope.scan : where heads attend.
    attnscope.circuits : composition of heads, and their directions in the residual stream, from the weights alone.

    References
    ----------
    Yamamoto and Matsuzaki, "Absolute position embedding learns sinusoid-like waves for attention based on relative
    position" (EMNLP 2023). docs/reference/mathematics.md has the formulas of every analysis.

    Examples
    --------
    >>> tree = explain(limit=4, window=32)
    >>> {"verdict", "position_content", "waves"} <= set(tree.children)
    True
    >>> tree["verdict"].position_share.dims
    ('layer', 'head')
    """
    return run_on_model("explanation.explain:explain", locals())
