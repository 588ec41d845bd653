"""`attnscope.explain`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Unpack

from attnscope.options import IN_PYTHON, Analysis, Band, Count, Flag, ModelsOrBundled, Range, StudyReading, Texts, Typed
from attnscope.verbs import verb

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
    model: ModelsOrBundled = None,
    texts: Texts = None,
    *,
    band: Band = 10,
    frequencies: Annotated[
        Range | None,
        "Read shifts off these frequencies, in cycles per window. They are the first and the last. By default from 3.",
    ] = None,
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
        "Add this analysis of an installed package, or all of the package: waves, phase_map and wave_removal are in "
        'yamamoto2023. May be repeated. In Python records, or names. Some take a setting: ``"relearned=2500"``.',
    ] = (),
    **reading: Unpack[StudyReading],
) -> "xr.DataTree":
    """Explain why every head attends there: take queries and keys apart into positions and content.

    Returns
    -------
    xarray.DataTree
        A node for each analysis that the model admits, by the names of ``attnscope.explanation.catalogue.ANALYSES``
        and of `analyses`. ``verdict``, ``position_content`` and ``repeated_tokens`` have numbers of each head
        ``(layer, head)``, profiles also ``offset``; ``cross_spectrum`` and ``cross_correlation`` of each head and
        ``frequency`` (cycles per window) or ``offset``. The attribute ``skipped`` lists, as JSON, the undefined
        analyses and the reasons; ``decoder`` describes the decoder's input in an encoder-decoder.

    Raises
    ------
    AttnscopeError
        For invalid input: see the message.

    See Also
    --------
    attnscope.scan : where heads attend.

    References
    ----------
    Yamamoto and Matsuzaki, "Absolute position embedding learns sinusoid-like waves for attention based on relative
    position" (EMNLP 2023). docs/reference/mathematics.md has the formulas of every analysis.

    Examples
    --------
    >>> tree = explain(limit=4, window=32)
    >>> {"verdict", "position_content", "cross_spectrum"} <= set(tree.children)
    True
    >>> tree["verdict"].position_share.dims
    ('layer', 'head')
    """
    from functools import partial

    from attnscope.capture.forward import decoder_note
    from attnscope.explanation.catalogue import requested_analyses
    from attnscope.explanation.explain import Explanation, check_lengths
    from attnscope.explanation.study import DEFAULT_TEXTS, Study, pairs_of_windows, usual_length
    from attnscope.opened import Opened
    from attnscope.store.units import task_for
    from attnscope.support.progress import no_progress

    task = task_for(explain, locals())
    more = requested_analyses(analyses)
    session = Opened.open("explain", model, reading, texts, reading["targets"], heads=[(layer, head)])
    loaded, target = session.model, session.target
    length = session.length(reading["window"])
    if reading["window"] is None:
        length = min([length, *(analysis.longest for analysis in more if analysis.longest)])
        length = usual_length(session.corpus, loaded, length) if target is None else length
    check_lengths(length, band, frequencies)
    study = Study(
        loaded.model,
        partial(pairs_of_windows, session.corpus, target, loaded, length, reading["limit"] or DEFAULT_TEXTS),
        band=band,
        frequencies=frequencies,
        intervention_texts=intervention_texts if interventions else 0,
        layer=layer,
        head=head,
        seed=reading["seed"],
        loaded=loaded,
        corpus=session.corpus,
        with_targets=target is not None,
    )
    for analysis in more:
        analysis.check(study)
    study.tell = reading["progress"] or no_progress
    settings = {
        "window": length,
        "windows": len(study.windows),
        "band": band,
        "frequencies": None if frequencies is None else list(frequencies),
        "intervene": study.intervention_texts,
        **{name: value for analysis in more for name, value in analysis.settings.items()},
        "seed": study.seed,
    }
    job = Explanation(session, study, more)
    note = decoder_note(loaded.model, with_target=target is not None)
    return session.run("explain", job, settings, reading, task, note)
