"""`attnscope_cards.card`."""

from typing import TYPE_CHECKING, Annotated, Unpack

from attnscope.options import (
    SCALE,
    Caches,
    Controls,
    Count,
    HiddenNeedles,
    ModelsOrBundled,
    PathOrName,
    Reading,
    ScoredHeads,
    TextsOrSounds,
    Tree,
    Typed,
    run_of,
)
from attnscope.verbs import verb

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.capture.borrow import LoadedModel


@verb(
    limit=32,
    examples=(
        ("attnscope card gpt2 corpus.txt --json", "the card of every head, as JSON"),
        ("attnscope card gpt2 corpus.txt --effects runs/intervene", "with the effects of a run"),
        ("attnscope card gpt2 corpus.txt --published heads.tsv", "next to a published list"),
        ("attnscope card openai/whisper-base recordings/ --published generation_config.json", "Whisper's list"),
        ("attnscope card gpt2 corpus.txt --check --kept 64+4", "loss with more and more heads limited"),
    ),
)
def card(
    model: ModelsOrBundled = None,
    texts: TextsOrSounds = None,
    *,
    kept: Annotated[
        Caches,
        "Measure the share of weight that these caches keep, as latest + first tokens, such as 64+4,256+4. The latest "
        "tokens include the query's own.",
    ] = ((64, 4), (16, 4), (64, 0), (256, 4)),
    effects: Annotated[
        Tree | None,
        Typed(run_of, "RUN"),
        "Repeat the effects of this run folder of attnscope intervene. In Python the result of "
        "`attnscope.intervene` on the same model.",
    ] = None,
    published: Annotated[
        PathOrName | None,
        "Compare every score with this file of heads, such as a published list. It is DuoAttention's table, "
        "MInference's patterns, a list of QRHead, Whisper's generation config, or names of heads (L5H1 or 5.1).",
    ] = None,
    heads: ScoredHeads = None,
    needles: HiddenNeedles = None,
    answers: Annotated[
        bool, "Measure the loss of the answers to the needles without each head: a pass for each prompt and head."
    ] = False,
    limits: Annotated[
        bool,
        "Measure the loss if the keys of a key-value head are limited to each cache: a pass for each. Keys are "
        "limited by masks, in a pass for each batch of windows, cache and key-value head.",
    ] = False,
    check: Annotated[
        bool,
        "Check the order of heads by the loss with more and more key-value heads limited, next to random orders. The "
        "heads that need the cache least come first: by `limits`, or else by the kept share, on the other half of the "
        "texts. There are 19 random orders.",
    ] = False,
    controls: Controls = None,
    batch_size: Annotated[
        Count | None, SCALE, "Measure this many windows at a time. By default about 2,048 tokens' worth."
    ] = None,
    **reading: Unpack[Reading],
) -> "xr.Dataset":
    """Write the card of every head: roles, kept shares of its weight, effects, stability over texts.

    The kept share is the share of a head's weight on tokens that a cache of the latest w and the first s tokens keeps,
    for queries that see more tokens.

    Returns
    -------
    xarray.Dataset
        The scores of `attnscope.roles`, with the further roles ``kept_W_S``. Over ``layer``: ``query_heads``, the
        number of query heads that share one key-value head. Over ``half, role, layer, head``: ``half_score``, from
        alternate documents. Over ``role``: ``stability``, the rank correlation of both halves over heads, with its 95%
        interval by the jackknife that leaves out a third of the documents (Shao and Wu 1989; of Fisher's z).
        Over ``ablation, layer, head``: ``effect`` and its interval,
        where given; with `answers`, of the ``answer`` and of as many tokens of the ``prompt`` if the head has its mean
        over the prompt, with intervals and tests from 6 needles that the model answers; with `limits`, the
        change of the loss ``limit_W_S`` over the windows of ``kept_W_S``, for each query head that of its key-value
        head. With `check`, over ``cache, order, point``: ``check_effect``, the change of the loss with
        ``check_limited`` key-value heads limited, in the order ``card`` and at ``random``, with intervals;
        ``check_difference`` of both, and ``check_p`` of each cache, by random orders. With a published
        list: ``listed`` ``(layer, head)``, and over ``role`` ``auroc``, its interval and ``auroc_p``, of random lists
        of as many heads of each layer, corrected for all roles.

    Raises
    ------
    AttnscopeError
        If `effects` are of another model, the file lists heads that the model lacks, the model predicts no tokens and
        `limits` or `check` is set, or as `attnscope.roles` does.

    Examples
    --------
    >>> from attnscope_zoo.catalogue import build  # pip install packages/attnscope-zoo
    >>> planted = build("previous-decoder-2")
    >>> made = card(planted.model, planted.ids.tolist(), tokenizer=planted.tokenizer, kept=[(4, 1)], controls="none")
    >>> bool((made.score.sel(role="kept_4_1") > made.equal.sel(role="kept_4_1")).any())
    True
    """
    import json
    from pathlib import Path

    from attnscope.capture.load import check_same_model
    from attnscope.capture.outline import outlined, reject_absent
    from attnscope.detection.probes import needles_of
    from attnscope.detection.role import OF_SOUNDS, PUBLISHED
    from attnscope.detection.roles import Scoring, wanted_controls
    from attnscope.detection.sounds import notes_on, open_sounds
    from attnscope.head_names import checked_choice
    from attnscope.intervention.questions import kind_of_question
    from attnscope.measure.texts import beyond_note
    from attnscope.opened import Opened
    from attnscope.report.signature import short_hash
    from attnscope.store.run import Once
    from attnscope.support.checks import check_whole
    from attnscope.support.errors import AttnscopeError
    from attnscope_cards.head_files import check_listing, listing_of
    from attnscope_cards.measure import MOST, Additions

    for recent, sinks in kept:
        check_whole(1, MOST, kept=recent)
        check_whole(0, MOST, kept=sinks)
    caches = tuple(dict.fromkeys(kept))
    if (limits or check) and not caches:
        raise AttnscopeError("limits (--limits) and check (--check) need a cache: give one (--kept)")
    listing = None if published is None else listing_of(Path(published))
    hidden = None if needles is None else needles_of(needles)
    drawn = wanted_controls(controls)
    chosen_heads = checked_choice(heads)
    if check and heads is not None:
        raise AttnscopeError("check (--check) limits all heads in turn: leave out heads (--heads)")

    def check_outline(outline: "LoadedModel") -> None:
        reject_absent(chosen_heads or (), outlined(outline.model) if chosen_heads else [], "heads, --heads")
        if listing is not None:
            check_listing(listing, outline)

    opened = open_sounds("card", model, reading, texts, chosen_heads, needles=needles, batch_size=batch_size)
    if opened is not None and (answers or limits or check):
        raise AttnscopeError(
            "answers (--answers), limits (--limits) and check (--check) measure the loss of texts, but the input is "
            "sounds: leave them out"
        )
    sounds = None if opened is None else opened[1]
    session = Opened.open("card", model, reading, texts, check=check_outline) if opened is None else opened[0]
    if (limits or check) and kind_of_question(session.model.model) in {"label", "output", "masked"}:
        raise AttnscopeError(
            "limits (--limits) and check (--check) measure the loss of next tokens; found "
            f"{session.model.name}, which predicts none: leave them out, or give a causal language model"
        )
    if effects is not None:
        check_same_model(effects, session.model, "effects (--effects)")

    names = [*PUBLISHED, *(f"kept_{recent}_{sinks}" for recent, sinks in caches)]
    if sounds is None:
        scoring = Scoring.of("card", session, reading, names, hidden, drawn, batch_size, caches, chosen_heads)
    else:
        scoring = Scoring.of_sounds("card", session, sounds, reading, [*names, *OF_SOUNDS], drawn, chosen_heads)
    if limits or check:
        longest, least = max(map(len, scoring.windows), default=0), min(map(sum, caches))
        if longest <= least:
            raise AttnscopeError(
                "limits (--limits) and check (--check) need windows longer than a cache (--kept); the longest has "
                f"{longest} tokens, and the smallest cache {least}: give longer texts or smaller caches"
            )
    more = effects, answers, limits, check, listing, chosen_heads
    scoring.more = Additions(session.model, reading, caches, *more).added
    settings = scoring.settings | {
        "answers": answers,
        "limits": limits,
        "effects": None if effects is None else short_hash(json.loads(effects.attrs["signature"])),
        "published": None if listing is None else short_hash(listing[1]),
        **({"check": True} if check else {}),
    }
    notes = beyond_note(session.model, scoring.length) if sounds is None else notes_on(sounds)
    return session.run("card", Once(scoring.scores, scoring.work), settings, reading, attributes=notes)
