"""Aligning the words of a parallel text with a translation model, and judging the result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope._arguments import typed
from attnscope.capture import Tokenizer, borrowing, load_model
from attnscope.checks import check_real, check_whole, shortly
from attnscope.errors import AttnscopeError
from attnscope.progress import Tell, tell_nobody
from attnscope.store import local_out
from attnscope.tasks import Task, way_in
from attnscope.translation._lines import Lines, check_parallel, is_unsegmented, lines_of_text
from attnscope.translation.alignment._aligned import Aligned, aligned_of
from attnscope.translation.alignment._kept import in_memory, kept
from attnscope.translation.alignment._links import LEAST_WEIGHT, THRESHOLD, Gold, read_gold
from attnscope.translation.alignment._work import Work

if TYPE_CHECKING:
    from attnscope.capture import Model


@typed
@local_out
@borrowing
def align(
    model: Model,
    texts: Lines,
    targets: Lines,
    *,
    gold: str | Path | Gold | None = None,
    gold_first: int = 1,
    tokenizer: Tokenizer = None,
    out: str | Path | None = None,
    task: str | Task | None = None,
    ray: str | None = None,
    workers: int | None = None,
    ray_gpus: float | None = None,
    layer: int | None = None,
    head: int | None = None,
    end: str = "drop",
    step: str = "predicts",
    words: str = "space",
    rule: str = "argmax",
    threshold: float | None = None,
    every_head: bool | None = None,
    shown: int = 0,
    batch_size: int = 16,
    device: str | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    progress: Tell | None = None,
) -> Aligned:
    """Align the words of a parallel text by a translation model's cross-attention; judge it where people did the same.

    Attention weights were not trained to be alignments, and a layer's mean often is a poor one where a single head is
    a good one. With gold alignments and neither layer nor head given, every head is judged and the best one is used;
    its error rate is then a choice made on the same sentences, and so a little too good.

    Parameters
    ----------
    model
        An encoder-decoder: see `attnscope.scan`.
    texts, targets
        Sentences and their translations: lists of strings, or the `Path` of a file with a sentence a line.
    gold
        People's alignments (see `read_gold`), words as the text's spaces make them.
    gold_first
        The number of the first word in that file.
    tokenizer, device, dtype, revision, trust_remote_code
        As in `attnscope.scan`.
    out
        Folder for ``links.txt`` and ``run.json``, which `attnscope.open_run` reads. What
        another call has left there is replaced, unless the same was asked for: then it is read.
    task
        Which part of the pairs this process aligns, as in `attnscope.scan`: every N-th unit of 16 batches. The last one
        to finish puts the parts together; what the others return has no links and says so in `Aligned.task`.
    ray, workers, ray_gpus
        Have the same units aligned by actors of Ray, as in `attnscope.scan`; `out` keeps them. See docs/clusters.md.
    layer, head
        Layer and head of the decoder, from 0; None for the mean of all.
    end, step, words, batch_size
        As in `forced_alignment`.
    rule, threshold
        As in `links`; the threshold, 0.2 by default, is for the rule of that name alone.
    every_head
        Whether to judge every head; by default where there is gold and neither layer nor head was given.
    shown
        How many sentence pairs to keep with their weights: in `Aligned.pairs`, and in `out`. Nothing is drawn here, as
        the command does: `attnscope.report.write_alignment_report` and `attnscope.figures.alignment_map` draw them.
        Pairs of which a side has no word, or more than 40, are passed over and counted in `Aligned.passed_over`.
    progress
        Called with a `Progress` after each batch; it tells of ``pairs`` done.

    Returns
    -------
    Aligned

    Raises
    ------
    AttnscopeError
        If line counts differ, a text has no spaces between the words that are to be aligned, the model is not an
        encoder-decoder, a choice does not exist, the folder cannot be used, or a part of it is damaged.

    Examples
    --------
    >>> import attnscope
    >>> attnscope.align("bundled", ["a cat"], ["a cat"])
    Traceback (most recent call last):
    attnscope.errors.AttnscopeError: EncoderForMaskedLM is not an encoder-decoder: ...
    """
    part = way_in(align, locals())
    check_whole(0, layer=layer, head=head, shown=shown)
    check_whole(1, batch_size=batch_size)
    check_whole(0, 1, gold_first=gold_first)
    check_real(0.0, 1.0, threshold=threshold)
    if threshold is not None and rule != THRESHOLD:
        raise AttnscopeError(
            f"a threshold (--threshold) is for the rule threshold alone, and the rule (--rule) is {shortly(rule)}"
        )
    sources, targets = lines_of_text(texts, "the text"), lines_of_text(targets, "the target")
    for name, lines in (("the text", sources), ("the target", targets)) if words == "space" else ():
        if is_unsegmented(lines):
            raise AttnscopeError(
                f"{name} has no spaces between words, so that each line would be one word: align pieces instead "
                "(--words piece), or put spaces between its words"
            )
    judges = read_gold(gold, gold_first) if isinstance(gold, str | Path) else gold
    sides: dict[str, Sequence[object]] = {"the text": sources, "the target": targets}
    check_parallel(sides if judges is None else {**sides, "the gold file": judges.sure})
    if every_head and judges is None:
        raise AttnscopeError("every head can be judged only with gold alignments: give gold (--gold FILE)")
    loaded = load_model(
        model,
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
        revision=revision,
        trust_remote_code=trust_remote_code,
    )
    open_choice = layer is None and head is None
    work = Work(
        loaded.model,
        loaded.tokenizer,
        {"name": loaded.name, **loaded.identity},
        sources,
        targets,
        layer,
        head,
        judges is not None and (open_choice if every_head is None else every_head),
        {"rule": rule, **({"threshold": threshold or LEAST_WEIGHT} if rule == THRESHOLD else {})},
        {"end": end, "step": step, "words": words, "batch_size": batch_size},
        judges,
        progress or tell_nobody,
    )
    if out is None:
        return aligned_of(work, in_memory(work), shown)
    return kept(work, Path(out), part, shown)
