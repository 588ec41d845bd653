"""`attnscope_lineage.align`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Unpack

from attnscope.options import SCALE, Count, Flag, Model, Natural, PathOrName
from attnscope.verbs import verb
from attnscope_lineage.options import AlignmentReading, Gold, Lines

if TYPE_CHECKING:
    import xarray as xr


@verb()
def align(
    model: Annotated[
        Model, "Align with this encoder-decoder: the folder of a trained system, or a hub id. See `attnscope.scan`."
    ],
    texts: Annotated[
        Lines,
        "Align these sentences, one a line, words between spaces; - is standard input. In Python also lists of "
        "strings.",
    ],
    targets: Annotated[Lines, Flag("target"), "Align with these translations of the text, line by line."],
    *,
    gold: Annotated[
        PathOrName | Gold | None,
        "Compare with this file of people's alignments: 1-2 is a sure link, 1p2 a possible one. See `read_gold`; "
        "words are split at spaces.",
    ] = None,
    gold_first: Annotated[int, "Count words in the gold file from this number: 1 or 0."] = 1,
    layer: Annotated[
        Natural | None,
        "Align by this decoder layer, counted from 0. By default the mean of all, or with --gold the best head.",
    ] = None,
    head: Annotated[Natural | None, "Align by this head, counted from 0. By default the mean of the layer."] = None,
    end: Annotated[
        Literal["drop", "keep", "null"],
        "Drop or keep the weight on </s>, or null: a word that prefers </s> has no link. Kept weight is one more "
        "column.",
    ] = "drop",
    step: Annotated[
        Literal["predicts", "reads"],
        "Read a word's row at the decoder step that predicts it, or at the one that reads it.",
    ] = "predicts",
    words: Annotated[Literal["space", "piece"], "Align words between spaces (space), or tokens (piece)."] = "space",
    rule: Annotated[Literal["argmax", "intersection", "threshold"], "Make links by this rule. See `links`."] = "argmax",
    threshold: Annotated[
        float | None, "Link weights of at least this number under --rule threshold. By default 0.2."
    ] = None,
    shown: Annotated[
        Natural,
        "Store this many sentence pairs in --out and draw them; those with more than 40 words on a side are "
        "skipped. Pairs with no word are skipped too. Draw one with "
        "`attnscope_lineage.figures.alignment.pair_map`. By default 12 with --out.",
    ] = 0,
    batch_size: Annotated[Count, SCALE, "Align this many sentence pairs at a time."] = 16,
    **reading: Unpack[AlignmentReading],
) -> "xr.DataTree":
    """Align words by attention: links in Pharaoh's format, and error rates against human alignments.

    Attention was not trained to align: the mean of a layer is often poor where a single head is good. With gold
    alignments and neither `layer` nor `head`, every head is evaluated and the best one is used. Its error rate is then
    slightly optimistic, because it was chosen on the same sentences.

    Returns
    -------
    xarray.DataTree
        ``pairs``: words and links of each sentence pair, as lines of Pharaoh's format; with every head evaluated, the
        ``links_of_heads (pair, layer, head)``. ``links``: the links one by one (words counted from 0), with layer and
        head as coordinates unless they are means. With gold alignments ``scores``: error rate, precision, recall and
        controls (see `attnscope_lineage.links.Controls`), and ``gold_links_outside``, links beyond the end of their
        sentence; with every head evaluated ``heads``: its rates ``(layer, head)``. ``shown``: by line, the stored
        sentence pairs, with gold alignments evenly from the best to the worst.

    Raises
    ------
    AttnscopeError
        If line counts differ, a text has no spaces between words, the model is not an encoder-decoder, an option does
        not exist, the folder cannot be used, or a part of it is damaged.
    """
    from attnscope.read.windows import TargetTokenizer
    from attnscope.store.run import run
    from attnscope.store.units import task_for
    from attnscope.support.checks import check_real, check_whole, shortly
    from attnscope.support.errors import AttnscopeError
    from attnscope.support.progress import no_progress
    from attnscope_lineage.alignment import Work
    from attnscope_lineage.ensembles import open_translator
    from attnscope_lineage.links import LEAST_WEIGHT, Forcing, read_gold
    from attnscope_lineage.parallel_text import check_parallel, is_unsegmented, lines_of_text

    part = task_for(align, locals())
    check_whole(0, 1, gold_first=gold_first)
    check_real(0.0, 1.0, threshold=threshold)
    if threshold is not None and rule != "threshold":
        raise AttnscopeError(
            f"found a threshold (--threshold) with the rule {shortly(rule)}: leave it out, or use --rule threshold"
        )
    sources, targets = lines_of_text(texts, "the text"), lines_of_text(targets, "the target")
    for name, lines in (("the text", sources), ("the target", targets)) if words == "space" else ():
        if is_unsegmented(lines):
            raise AttnscopeError(
                f"{name} has no spaces between words: align tokens with --words piece, or put spaces between the words"
            )
    judges = read_gold(gold, gold_first) if isinstance(gold, str | Path) else gold
    sides: dict[str, Sequence[object]] = {"the text": sources, "the target": targets}
    check_parallel(sides if judges is None else {**sides, "the gold file": judges.sure})
    language = reading["target_language"]
    session, options = open_translator(model, reading)
    loaded = session.load(options, heads=[(layer, head)], kind="cross")
    tokenizer = loaded.tokenizer if language is None else TargetTokenizer(loaded.tokenizer, language).tokenizer
    work = Work(
        Forcing(loaded.model, tokenizer, sources, targets, words=words, batch_size=batch_size),
        {"name": loaded.name, **loaded.identity},
        layer,
        head,
        judges is not None and layer is None and head is None,
        {"rule": rule, **({"threshold": threshold or LEAST_WEIGHT} if rule == "threshold" else {})},
        {"end": end, "step": step},
        judges,
        reading["progress"] or no_progress,
        language,
        shown,
    )
    work.signature = work.sign()
    work.attributes = {"signature": work.signature.to_json(), "model": loaded.name}
    return run(work, reading["out"], part, repair=reading["repair"])
