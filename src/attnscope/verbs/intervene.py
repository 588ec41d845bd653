"""`attnscope.intervene`."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from attnscope.options import (
    INPUT,
    SCALE,
    Band,
    Count,
    Flag,
    Heads,
    HeadSets,
    HeadsOrSets,
    ModelsOrBundled,
    Names,
    Natural,
    Part,
    Several,
    Steps,
    StudyReading,
    Texts,
    Typed,
    int_of,
    metric_of_file,
)
from attnscope.verbs import verb

if TYPE_CHECKING:
    import xarray as xr


@verb(
    limit=100,
    examples=(
        ("attnscope intervene", "the bundled model on the bundled text"),
        ("attnscope intervene gpt2 corpus.txt --ablations zero", "one ablation of every head"),
        ("attnscope intervene --together 0.1,0.3 --forbid-offset -1", "a set of heads; an offset forbidden"),
        ("attnscope intervene --heads 0.1,0.3 --random 50", "a set of heads against random sets"),
        ("attnscope intervene gpt2 corpus.txt --part second-half", "the loss of each second half"),
    ),
)
def intervene(
    model: ModelsOrBundled = None,
    texts: Texts = None,
    *,
    ablations: Annotated[
        Names,
        "Replace a head's output by zero, mean or resample, with commas between. ``mean`` is the head's mean over "
        "all texts, ``resample`` its output on another text; others are your own (`attnscope.ablation`).",
    ] = ("zero", "mean", "resample"),
    metric: Annotated[
        Callable[..., Any] | Sequence[tuple[str | Sequence[str], str | Sequence[str]]] | None,
        Typed(metric_of_file, "FILE:NAME"),
        "Measure this next to the loss: FILE:NAME, a function in a Python file, which is run. Name only files that you "
        "trust. It is a function of the logits ``(text, position, vocabulary)`` and of the model's "
        "inputs, a dict of tensors, that returns a number for each text; `attnscope.metric` gives it a name and a "
        "unit. Or the right and the wrong answer of every text or "
        "one pair for all: then the metric is the logit of the right answer minus that of the wrong one, at the "
        "mask or after the last token, and loss, KL divergence and accuracy are those of this answer. After a "
        "text, an answer may have several tokens: then the metric is the difference of the summed log "
        "probabilities. Either may also be several answers of one token each, whose probabilities are summed. One text "
        "suffices, without intervals and ``resample``.",
    ] = None,
    labels: Annotated[
        str | Sequence[str | int] | None,
        INPUT,
        Typed(metavar="FIELD"),
        "Read the right labels of a classifier from this field, or folder. ``folder`` is the name of the folder of "
        "each image or sound. In Python also a list. A label is a name in the model's ``id2label``, or a number. By "
        "default those that it predicts.",
    ] = None,
    part: Part | None = None,
    steps: Annotated[
        Steps, "Estimate effects at this many points of the integrated gradients; 0 leaves out all estimates."
    ] = 5,
    search: Annotated[
        bool, "Search too: random sets of heads ablated, and a sparse regression. See `search_heads`."
    ] = False,
    curves: Annotated[
        bool, "Draw curves too: more and more heads ablated, in several orders. See `removal_curves`."
    ] = False,
    order: Annotated[
        Heads | None,
        "Draw curves in this order of heads too, as in 4.2,5.1. The first is removed first. A list, a role of a run "
        "(RUN:induction), a file or a score: docs/guides/own-questions.md has all forms.",
    ] = None,
    heads: Annotated[
        HeadsOrSets | None,
        "Ablate only these heads, each alone, as in 4.2,5.1, or none; without estimates. Heads joined by + are a set, "
        "which is ablated together, in Python also a list in the list. With `random`, heads are one set. "
        "docs/guides/own-questions.md has all forms. By default every head.",
    ] = None,
    together: Annotated[
        HeadSets, "Ablate these heads together too, as in 0.1,0.3; may be repeated. See `joint_ablation`."
    ] = (),
    random: Annotated[
        Natural,
        "Compare each set with this many random sets of its size. How many of them change the loss at least "
        "as much is a p-value. See `sets_against_chance`.",
    ] = 0,
    matched: Annotated[
        Literal["layer", "effect", "size"],
        "Draw random sets with as many heads in each layer, there in each group of similar effect, or only of the same "
        "size. The groups of ``effect`` have about four heads of a layer, ordered by an estimate from one gradient.",
    ] = "layer",
    forbid_offsets: Annotated[
        Sequence[int],
        Flag("forbid-offset"),
        Typed(int_of, "N", repeated=True),
        "Forbid heads to attend to this offset (key minus query): -1 is the token before; may be repeated. All "
        "that is forbidden forms one rule: see `knock_out`.",
    ] = (),
    forbid_first: Annotated[bool, "Forbid heads to attend to the first token."] = False,
    forbid_tokens: Annotated[
        Several, Flag("forbid-token"), "Forbid heads to attend to this token, by its text; may be repeated."
    ] = (),
    renormalise: Annotated[bool, "Scale rows to their sum before, if something in them is forbidden."] = True,
    why: Annotated[
        bool, "Explain the causes next to the effects, as in explain. The windows are the same, and weights are tested."
    ] = True,
    band: Band = 10,
    batch_size: Annotated[
        Count | None, SCALE, "Measure this many windows at a time. By default about 1,024 tokens."
    ] = None,
    variants: Annotated[
        Count | None,
        SCALE,
        "Run at most this many variants side by side. Memory grows with it. By default the quickest. That is the "
        "number which is fastest on the device, with at most 256 MiB of logits.",
    ] = None,
    **reading: Unpack[StudyReading],
) -> "xr.DataTree":
    """Test whether a head matters: ablate every head, one at a time, and measure the loss.

    A masked language model predicts 15% of the words, behind masks, or with targets each word that differs there; a
    causal one the next token; an encoder-decoder the translation; a classifier the labels of texts, images or sounds.
    The loss of an encoder without a head is 1 minus the projection of its embedding on that of the unchanged model,
    in units of the latter's length; the embedding is its own, or the mean of its last layer over tokens.

    Returns
    -------
    xarray.DataTree
        ``effects``: ``loss_change``, ``kl`` (nats), ``accuracy_change`` of each text ``(text, ablation, layer, head)``,
        estimates ``(text, estimator, ablation, layer, head)``, and ``loss`` and ``accuracy`` of the unchanged model;
        with a metric, ``metric_change`` and ``metric``.
        ``heads``: means with intervals over documents, see `heads_of`. ``agreement``: rank correlations of the
        estimates, see `agreement_of`. ``where`` and ``why``: results of `scan` and `explain`; ``trust``: see
        `trust_in_weights`; ``shuffled``: see `shuffled_weights`. On request, ``forbidden`` (see `knock_out`),
        ``search`` and ``curves``; ``together``: ``effect`` of each set, with intervals, and with `random`
        ``random_effect`` ``(ablation, set, draw)``, ``p``, and ``beyond``, the effect less the mean of random sets.
        With `heads`, other heads are NaN; with sets alone there are ``effects`` and ``together`` only. The attribute
        ``skipped`` lists missing parts with reasons, as JSON.

    Raises
    ------
    AttnscopeError
        If the model returns neither logits nor an embedding, a layer's output projection is not found, or an
        encoder-decoder has no targets.

    Examples
    --------
    >>> effects = intervene(limit=4, window=32, ablations=["zero"], steps=0, why=False)
    >>> effects["effects"].loss_change.dims
    ('window', 'ablation', 'layer', 'head')
    """
    from itertools import chain

    from attnscope.intervention.ablation import alone_and_together
    from attnscope.intervention.calls import checked_heads
    from attnscope.intervention.edits import Forbidden
    from attnscope.intervention.intervene import Effects, ask_for_answers
    from attnscope.intervention.metrics import metric_of
    from attnscope.intervention.open_predictions import open_predictions
    from attnscope.intervention.replacements import chosen_ablations
    from attnscope.report import registry
    from attnscope.store.units import task_for
    from attnscope.support.checks import check_installed
    from attnscope.support.errors import AttnscopeError
    from attnscope.support.progress import no_progress

    if search:
        check_installed("search (--search)", "sklearn", "sklearn")
    task = task_for(intervene, locals())
    chosen = chosen_ablations(ablations)
    record = metric_of(metric) if callable(metric) else None

    named_heads: Any = heads
    named_sets: Any = together
    alone, several = alone_and_together(named_heads, named_sets, as_one_set=random > 0)
    named_order: Any = order
    if named_order is not None and not curves:
        raise AttnscopeError("an order (--order) is for curves (--curves): add it")
    if alone is not None and (search or curves):
        raise AttnscopeError("search (--search) and curves (--curves) are over all heads: leave out heads (--heads)")
    if random and not several:
        raise AttnscopeError("random (--random) draws sets of heads for a set: add heads (--heads) or together")
    if alone == [] and not several:
        raise AttnscopeError("found no heads (--heads); expected at least one, or a set of them (--together)")
    is_forbidding = bool(forbid_offsets or forbid_tokens or forbid_first)
    if alone == [] and is_forbidding:
        raise AttnscopeError(
            "nothing is forbidden to sets of heads: leave out what is forbidden (--forbid-offset and others), or name "
            "heads to ablate alone (--heads)"
        )
    named: Any = {"heads": [*(alone or ()), *chain(*several), *(named_order or ())]}
    named["option"] = "heads, together or order, --heads, --together, --order"
    named |= {"labels": labels, "part": part, "batch_size": batch_size}
    opened, session = open_predictions("intervene", model, texts, reading, **named)
    session.metric = record
    if metric is not None and not callable(metric):
        ask_for_answers(session, metric)
    session.check()
    in_order = [] if named_order is None else checked_heads(named_order, session.cells, "order, --order")
    sets = [checked_heads(one, session.cells, "heads or together, --heads, --together") for one in several]
    if alone:
        alone = checked_heads(alone, session.cells, "heads, --heads")
    if session.given and is_forbidding:
        raise AttnscopeError(
            "rules (--forbid-offset, --forbid-first, --forbid-token) are for tokens of texts: leave them out"
        )
    rule = Forbidden.of(forbid_offsets, forbid_tokens, session.loaded.tokenizer, first=forbid_first)
    if rule:
        rule.check(session.windows)
    elif not renormalise:
        raise AttnscopeError(
            "renormalise (--no-renormalise) applies only to a rule: add forbid_offsets (--forbid-offset), forbid_first "
            "or forbid_tokens"
        )

    is_one = len(session.windows) == 1 and metric is not None
    skipped = {"resample": "it needs 2 or more texts"} if is_one and "resample" in ablations else {}
    chosen = [one for one in chosen if one not in skipped]
    settings = {
        **session.settings,
        "forbid": rule.words,
        "ablations": chosen,
        **registry.signed("ablation", chosen),
        **({} if record is None else {"metric": record.identity}),
        **({} if metric is None or callable(metric) else {"metric": [list(pair) for pair in metric]}),
        **({} if labels is None else {"labels": labels if isinstance(labels, str) else [*labels]}),
        "steps": steps if alone is None else 0,  # estimates are of all heads
        "search": search,
        "curves": curves,
        **({} if part is None else {"part": part}),
        **({"order": [f"{layer}.{head}" for layer, head in in_order]} if in_order else {}),
        "together": ["+".join(f"{layer}.{head}" for layer, head in one) for one in sets] or None,
        **({} if alone is None else {"heads": [f"{layer}.{head}" for layer, head in alone]}),
        **({"random": random, "matched": matched} if random else {}),
        "renormalise": renormalise if rule else None,
        "why": why,
        "band": band,
    }
    tell = reading["progress"] or no_progress
    job = Effects(opened, session, chosen, alone, sets, rule, settings, variants, tell, skipped, in_order)
    predicted = session.kind + "_predicted" * (session.kind == "label" and not session.labels)
    attributes = {"prediction": predicted, **session.notes, **({} if record is None else record.attributes)}
    return opened.run("intervene", job, settings, reading, task, attributes)
