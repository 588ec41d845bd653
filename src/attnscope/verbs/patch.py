"""`attnscope.patch`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from attnscope.options import (
    SCALE,
    ComponentSets,
    Count,
    Heads,
    ModelsOrBundled,
    Names,
    Natural,
    PairAnswer,
    PairMetric,
    PairReading,
    PairsOrBundled,
    PairWrong,
    Steps,
    Typed,
)
from attnscope.verbs import verb

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.capture.borrow import LoadedModel


@verb(
    examples=(
        ("attnscope patch", "the bundled model on its pairs"),
        ("attnscope patch gpt2 pairs.jsonl", "pairs with clean, corrupted, answer and wrong"),
        ("attnscope patch gpt2 pairs.jsonl --what residual", "the stream after each block"),
        ("attnscope patch gpt2 pairs.jsonl --what resid_mid", "the stream before each MLP"),
        ("attnscope patch gpt2 agreement", "pairs of a task: see attnscope.pairs"),
        ("attnscope patch gpt2 brackets --positions open", "spans of the texts, by name"),
        ("attnscope patch google-t5/t5-small pairs.jsonl", "encoder-decoder; pairs may add target"),
    )
)
def patch(
    model: ModelsOrBundled = None,
    pairs: PairsOrBundled = None,
    *,
    answer: PairAnswer = None,
    wrong: PairWrong = None,
    metric: PairMetric | None = None,
    what: Annotated[
        Literal[
            "heads",
            "query",
            "key",
            "value",
            "weights",
            "attention",
            "mlp",
            "residual",
            "resid_pre",
            "resid_mid",
            "resid_post",
            "attn_out",
            "mlp_out",
            "mixer_out",
            "neurons",
            "ln1",
            "ln2",
        ],
        Typed(metavar="ACTIVATION"),
        "Patch heads; the query, key, value or weights of each; attention, mlp or residual (the stream after a "
        "block); or another activation (resid_pre, resid_mid, resid_post, attn_out, mlp_out, mixer_out, neurons, ln1, "
        "ln2). ``heads`` is each head's output. ``attention`` is the outputs of all heads of "
        "a block, ``mlp`` what its MLP adds, at each position. The MLP includes shared experts; mixers (Mamba) and "
        "per-layer embeddings (Gemma 4) are not part of it. The others "
        "are the activations of `attnscope.edit`, of each block at each position.",
    ] = "heads",
    heads: Annotated[
        Heads | None,
        "Patch only these heads, as in 4.2,5.1; without estimates. docs/guides/own-questions.md has all forms. By "
        "default every head.",
    ] = None,
    by_position: Annotated[
        bool, "Patch heads at one position at a time. All pairs must then have the same length."
    ] = False,
    positions: Annotated[
        Names | None,
        "Patch at these spans of each pair, all positions of one at a time, by name, with commas between: the gaps of "
        "a template or a task, the spans of a file, or ``prediction``. Lengths may then differ between pairs. See "
        "`attnscope.pairs`.",
    ] = None,
    direction: Annotated[
        Literal["noising", "denoising"] | None,
        "Put clean activations into the corrupted run (denoising), or corrupted ones into the clean run (noising). "
        "Do they restore the answer, or break it? By default denoising; noising with --receiver.",
    ] = None,
    receiver: Annotated[
        str | tuple[int, int] | Sequence[str | tuple[int, int]] | None,
        "Patch paths to this receiver alone: a later head (3.6), its queries, keys or values (3.6.q, 3.6.k, "
        "3.6.v), an MLP (m3), several with commas, or logits. This is path patching: the part of each head's "
        "effect that reaches the answer through a later component alone (Wang et al. 2022). In Python also "
        "``(layer, head)``, or several in a list. All other heads keep their output on the way there; MLPs do not.",
    ] = None,
    together: Annotated[
        ComponentSets,
        "Patch these heads and MLPs together, in addition, as in 4.2,3.1,m3; may be repeated. Heads may be in any form "
        "of `heads`, such as the role of a run (RUN:induction:10). They are patched at all positions: of heads the "
        "tensor `what`.",
    ] = (),
    random: Annotated[
        Natural,
        "Compare each set of `together` with this many random sets of heads of its size. How many of them move the "
        "answer at least as far is a p-value.",
    ] = 0,
    matched: Annotated[
        Literal["layer", "size"], "Draw random sets with as many heads in each layer, or only of the same size."
    ] = "layer",
    steps: Annotated[Steps, "Take this many gradients of the EAP-IG estimate; 0 leaves out all estimates."] = 5,
    batch_size: Annotated[
        Count | None, SCALE, "Measure this many pairs at a time. By default about 1,024 tokens' worth."
    ] = None,
    variants: Annotated[
        Count | None,
        SCALE,
        "Run at most this many variants side by side. By default the quickest. That is the number which is fastest "
        "on the device.",
    ] = None,
    **reading: Unpack[PairReading],
) -> "xr.DataTree":
    """Find what carries a difference: put activations of a clean run into a corrupted one.

    Each pair is a clean and a corrupted text of equal length in tokens with different answers. A masked language model
    predicts the mask, a causal one the next token, an encoder-decoder the token after `target`.

    Returns
    -------
    xarray.DataTree
        ``pairs``: ``difference`` (logit of the answer minus that of the wrong one in the patched run), of each pair
        ``(pair, layer, head[, position])`` or ``(pair, block, position)``, ``clean`` and ``corrupted`` ``(pair)`` of
        the two runs, and ``estimate`` ``(pair, estimator, layer, head[, position])``. In an encoder-decoder, blocks of
        the encoder come first, and positions of the source before those of the decoder; NaN where a block has none.
        ``patched``: means over pairs with intervals, see `patched_of`. ``agreement``: rank correlations of the
        estimates. ``together``: of each set ``effect`` and ``recovered``, ``alone``, the sum of the changes with each
        component alone, and ``between``, the change beyond that sum, with intervals; with `random` also
        ``random_effect`` ``(set, draw)``, ``p``, and ``beyond``, the effect less the mean of random sets.

    Raises
    ------
    AttnscopeError
        If the texts of a pair differ in length, the answer to a mask is not one token, the model predicts the same for
        clean and corrupted texts, or heads of an encoder-decoder are requested at one position.

    Examples
    --------
    >>> effects = patch(steps=0)
    >>> best = effects["patched"].recovered
    >>> {name: int(index) for name, index in best.argmax(...).items()}, bool(best.max() > 0.4)
    ({'layer': 0, 'head': 3}, True)
    """
    from dataclasses import replace
    from itertools import chain

    from attnscope.capture.outline import outlined, reject_absent
    from attnscope.head_names import checked_choice, heads_setting
    from attnscope.intervention.components import sets_of_components
    from attnscope.intervention.gradients import WITHOUT_ESTIMATES
    from attnscope.intervention.metrics import metric_of
    from attnscope.intervention.pair_sources import note_of_task
    from attnscope.intervention.patch import (
        OF_BLOCKS,
        OpenedPairs,
        PatchJob,
        names_of,
        receivers_of,
        reject_absent_parts,
    )
    from attnscope.opened import Opened
    from attnscope.store.units import task_for
    from attnscope.support.errors import AttnscopeError
    from attnscope.support.progress import no_progress

    task = task_for(patch, locals())
    on: Any = what if what in {"query", "key", "value", "weights"} else "z"
    sets = sets_of_components(together, "together (--together)", on)
    receivers = receivers_of(receiver, what, alone=not (by_position or positions or sets))
    chosen_heads = checked_choice(heads)
    if positions is not None and (by_position or not positions):
        raise AttnscopeError("positions (--positions) name spans, one or more, in place of by_position: leave one out")
    if random and not sets:
        raise AttnscopeError("random (--random) draws sets of heads for a set: add together (--together)")
    record = None if metric is None else metric_of(metric)
    session = Opened.of(model)

    def check(outline: "LoadedModel") -> None:
        if chosen_heads:
            reject_absent(chosen_heads, outlined(outline.model), "heads, --heads")
        reject_absent_parts([*chain(*sets, receivers or ())], outline)

    opened = OpenedPairs.open(session, pairs, reading, (answer, wrong), metric, check)
    loaded, of_task = opened.loaded, opened.of_task
    if opened.media and (by_position or positions or what in OF_BLOCKS):
        raise AttnscopeError(
            "positions of images and sounds are not patched one at a time: patch heads at all positions (--what heads, "
            "query, key, value or weights)"
        )
    if loaded.model.config.is_encoder_decoder and (by_position or positions or what == "attention"):
        raise AttnscopeError(
            f"{loaded.name} is an encoder-decoder, whose positions are of two texts: patch heads at all positions "
            "(--what heads, query, key, value or weights), or blocks at each (--what residual, mlp, attn_out, ...)"
        )
    if heads is not None and what in OF_BLOCKS:
        raise AttnscopeError(f"heads (--heads) are not of {what}, which is a part of a block: leave out heads or what")
    if by_position and what in OF_BLOCKS:
        raise AttnscopeError("blocks are always patched by position: leave out by_position (--by-position)")

    job = PatchJob(
        loaded,
        opened.pairs,
        what,
        bool(by_position or positions or what in OF_BLOCKS),
        direction or ("denoising" if receivers is None else "noising"),
        receivers,
        steps if what == "heads" and receivers is None and heads is None else 0,
        variants,
        reading["progress"] or no_progress,
        sets,
        reading["seed"],
        chosen_heads,
        random,
        matched,
        metric=record,
        media=opened.media,
        positions=positions or (),
    )
    job.read(batch_size, WITHOUT_ESTIMATES if job.steps else "")
    settings = {
        "what": what,
        "by_position": by_position,
        "direction": job.direction,
        "receiver": None if receivers is None else names_of(receivers),
        **({"together": [names_of(parts) for parts in sets]} if sets else {}),
        **({"random": random, "matched": matched} if random else {}),
        **heads_setting(heads),
        **({"positions": [*positions]} if positions else {}),
        **({} if record is None else {"metric": record.identity}),
        "steps": job.steps,
        "batch_size": batch_size,
        "seed": reading["seed"],
        **of_task,
    }
    session.corpus = replace(session.corpus, positions=positions or ())
    return session.run("patch", job, settings, reading, task, note_of_task(of_task))
