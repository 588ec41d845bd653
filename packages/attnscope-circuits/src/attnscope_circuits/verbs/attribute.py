"""`attnscope_circuits.attribute`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from attnscope.options import (
    SCALE,
    Count,
    Flag,
    Head,
    Heads,
    Metric,
    ModelsOrBundled,
    Names,
    Pairs,
    Part,
    StudyReading,
    Texts,
    Vector,
)
from attnscope.verbs import verb

if TYPE_CHECKING:
    import xarray as xr


@verb(
    limit=100,
    examples=(
        ("attnscope attribute gpt2 corpus.txt", "the next token, everywhere in a file"),
        ("attnscope attribute gpt2 corpus.txt --direction probe.safetensors --site 5.resid_post", "a probe"),
        ('attnscope attribute gpt2 "The Eiffel Tower is in" --token " Paris" --against " Rome"', "one prompt"),
        ("attnscope attribute gpt2 corpus.txt --head 5.1", "why a head attends where it does"),
        ("attnscope attribute gpt2 --pairs pairs.jsonl", "pairs with clean, corrupted, answer and wrong"),
    ),
)
def attribute(
    model: ModelsOrBundled = None,
    texts: Texts = None,
    *,
    token: Annotated[
        str | None,
        "Split the logit of this token, after each text, or at its masks; or of this label. By default the next token, "
        "everywhere; of a classifier the label that it predicts. They are predicted as in `attnscope.intervene`.",
    ] = None,
    against: Annotated[str | None, "Subtract the logit of this token or label."] = None,
    direction: Annotated[
        Vector | None,
        "Split the product with this direction, in place of the logit of a token: of the input of the unembedding, of "
        "the embedding of an encoder, or of the residual stream at `site`. A file of safetensors, as in "
        "``probe.safetensors`` or, with a tensor and its row, ``sae.safetensors:W_dec:1234``. In Python also an array "
        "``(width,)``, numbers, or an `attnscope.intervention.directions.Direction`.",
    ] = None,
    site: Annotated[
        str | None,
        "Split the product of the residual stream here with `direction`: 3.resid_pre, 3.resid_mid or 3.resid_post, "
        "as in `attnscope.edit`. By default the input of the unembedding.",
    ] = None,
    metric: Annotated[
        Metric | None,
        "Split this in place of the logit of a token: FILE:NAME, a function in a Python file, which is run. Name only "
        "files that you trust. It is a function of the logits ``(text, position, vocabulary)`` and of the model's "
        "inputs, a dict of tensors, that returns a number for each text, with a gradient. The gradient "
        "times the logits is split; of a metric that is linear in the logits, that is its value. `attnscope.metric` "
        "gives it a name and a unit.",
    ] = None,
    pairs: Annotated[
        Pairs | None,
        Flag("pairs"),
        "Read pairs in place of texts: answer against wrong after each clean text. See `attnscope.patch`.",
    ] = None,
    positions: Annotated[
        Names | None,
        "Sum the part of each head over the tokens that it attends to in these spans of the clean texts, by name. See "
        "`attnscope.patch`.",
    ] = None,
    heads: Annotated[
        Heads | None,
        "Split off the parts of these heads only, as in 4.2,5.1; all others are one part, the rest. Tests count these "
        "heads alone. docs/guides/own-questions.md has all forms. By default all components.",
    ] = None,
    part: Part | None = None,
    by_position: Annotated[
        bool, "Store the parts of every prediction, not only their means. Also those of each key."
    ] = False,
    head: Annotated[
        Head | None,
        "Split the scores of this head in place of a logit, as layer.head, counted from 0. They are split by the "
        "sources of queries and keys.",
    ] = None,
    batch_size: Annotated[
        Count | None, SCALE, "Measure this many windows at a time. By default about 1,024 tokens' worth."
    ] = None,
    **reading: Unpack[StudyReading],
) -> "xr.DataTree":
    r"""Split the logit of a token into what heads, MLPs and embeddings add; logit lens.

    The final residual stream is a sum of what each part writes. The final norm, divided by its actual denominator
    :math:`\sigma` at each token (frozen), and the unembedding :math:`w` are linear, so the logit is a sum too:

    .. math:: w^T\left(\gamma \odot \frac{x - \bar x}{\sigma} + \beta\right) + b, \qquad
        x = e + p + \sum_{lh} z_{lh} W_O^{lh} + \sum_l m_l

    with :math:`\bar x = 0` for an RMSNorm; norms behind a layer's output, or of its sum with the stream (post-norm),
    are frozen alike (Elhage et al. 2021). A part is what it adds directly, not through later layers. Sums are compared
    with the logits in every run.

    For a classifier of texts, images or sounds, the logit of the label is split, less that of `against` or the mean
    over all labels; for an encoder without a head, the projection of its embedding on itself, in its length: the parts
    add up to 1. The layers behind the last block keep their denominators, and their activations (tanh, GELU, ReLU) the
    factor by which each multiplies its input.

    Returns
    -------
    xarray.DataTree
        ``predictions``: ``part`` ``(window, component)``, logits, mean over the predictions of a window; a component
        is a head (coordinates ``layer`` and ``head``), ``mlp``, ``mixer`` (Mamba), ``embedding``, ``layer embedding``
        (Gemma 4), ``position``, ``bias`` or ``output layers``, the biases behind the last block of a classifier or
        encoder (coordinate ``kind``). ``total``: the logit; ``difference``: the largest
        distance from it of a sum of parts. ``random``: parts of the mean token of the texts, by frequency, if a token
        has none to subtract. ``lens_logit``,
        ``lens_probability`` and ``lens_rank`` ``(window, position, depth)``: if the stream ended after that number of
        attention layers, normed by its own denominator; probability and rank are those of the token. ``token``, and
        ``query``, the position that predicts it ``(window, position)``; with `by_position`, ``part_at`` ``(window,
        position, component)``, and ``by_key`` ``(window, component, key)``: the part of a head by token that it attends
        to, ``key_token`` (in cross-attention a token of the source). With `positions`, ``by_span`` ``(window,
        component, span)``: its sum over the tokens of each span.

        With `metric`, and of labels and embeddings, ``metric`` ``(window,)`` is the value, ``total`` its gradient times
        the logits, summed over all positions, and ``lens_metric`` ``(window, depth)`` its value if the stream ended
        there.

        ``parts``: means over windows with 95% intervals over documents; ``excess``: over the mean token, with
        ``shown``: significant by random signs of documents, corrected for all components. ``lens``: means by depth.

        With `head`, ``scores`` and ``parts`` (docs/questions/attribute.md): of the score of some keys (``relation`` to
        the query) less the row's mean, nats, the ``share`` ``(relation, side, source)`` that each component has through
        queries or keys, and the largest pairs of both, with intervals. ``shown``: by random signs of documents; not of
        the strongest key, which the scores choose.

    Raises
    ------
    AttnscopeError
        If the logits of tokens are not a linear function of a sum of parts (not with `head` or `site`): several layers
        between stream and logits (BERT), or an unknown module in the stream.

    Examples
    --------
    >>> found = attribute(limit=8, window=32)
    >>> sums = found["predictions"].part.sum("component")
    >>> bool(abs(sums - found["predictions"].total).max() < 1e-3)
    True
    """
    from hashlib import sha256

    from attnscope.head_names import checked_choice, heads_setting
    from attnscope.intervention.activations import check_name
    from attnscope.intervention.directions import Direction
    from attnscope.intervention.metrics import metric_of
    from attnscope.intervention.open_predictions import open_predictions, prediction_session
    from attnscope.intervention.pair_sources import pairs_of_input, spans_of
    from attnscope.intervention.pairs import PairTexts
    from attnscope.plan import planned
    from attnscope.read.encoded import texts_of
    from attnscope.store.units import task_for
    from attnscope.support.errors import AttnscopeError
    from attnscope.support.progress import no_progress
    from attnscope_circuits.attribution import Attribution, AttributionJob
    from attnscope_circuits.score_parts import ScoreParts

    task = task_for(attribute, locals())
    named_head: Any = head
    chosen_heads = checked_choice(heads)
    listed: Any = [*pairs] if isinstance(pairs, Iterator) else pairs
    chosen = None if listed is None else pairs_of_input(listed, answered=False)
    targets = token, direction, pairs, metric
    if sum(one is not None for one in targets) > 1 or (against is not None and token is None):
        raise AttnscopeError(
            "expected one of token (--token), direction, pairs (--pairs) and metric; against is for a token"
        )
    if part is not None and (head is not None or any(one is not None for one in (token, pairs, metric))):
        raise AttnscopeError("part (--part) is for the tokens of texts: leave out token, pairs, metric and head")
    if site is not None:
        if direction is None:
            raise AttnscopeError("a site (--site) is for a direction (--direction): give one")
        check_name(site)
    vector = None if direction is None else Direction.of(direction).vector.double()
    if chosen is not None and texts is not None:
        raise AttnscopeError("pairs (--pairs) are texts themselves: leave out texts")
    if positions is not None and (chosen is None or not positions):
        raise AttnscopeError("positions (--positions) name spans of pairs, one or more: add pairs (--pairs)")
    if head is not None and (by_position or any(one is not None for one in (*targets, heads))):
        raise AttnscopeError(
            "head (--head) splits scores: leave out token, direction, pairs, metric, heads and by_position"
        )

    if chosen is not None:
        texts = [pair.clean for pair in chosen]
        reading["limit"] = len(chosen)
    splits_scores = head is not None
    rejected: Any = {"heads": [named_head] if splits_scores else chosen_heads or ()}
    rejected |= {"option": "head, --head" if splits_scores else "heads, --heads", "splits_scores": splits_scores}
    opened, session = open_predictions("attribute", model, texts, reading, batch_size=batch_size, part=part, **rejected)
    is_whole = session.kind in {"label", "output"} and head is None and site is None
    if session.given and (site is not None or chosen is not None):
        raise AttnscopeError(
            f"site and pairs (--site, --pairs) are of texts, and {type(session.model).__name__} reads "
            f"{opened.corpus.called}: leave them out, or use attnscope patch"
        )
    if session.kind == "label" and is_whole and direction is not None:
        raise AttnscopeError(
            f"{type(session.model).__name__} is a classifier, so a direction (--direction) is one of its residual "
            "stream: give a site (--site)"
        )
    if session.kind == "output" and is_whole and token is not None:
        raise AttnscopeError(
            f"{type(session.model).__name__} predicts neither tokens nor labels: leave out token (--token), or give a "
            "direction (--direction) or a function as metric"
        )
    if listed is not None and session.kind != "output":  # an encoder without a head needs no answers
        chosen = pairs_of_input(listed)
    length = session.settings["window"]
    if chosen is not None and len(session.windows) != len(chosen):
        raise AttnscopeError(f"found pairs of one token, or of more than {length}; expected 2 to {length} tokens")
    session.check(ablates=False)
    if reading["dry_run"]:  # how the stream splits is found with numbers
        # recorded are input and output of norms, attention and MLP, and of calls; logits, and those of the predictions
        held: Any = {"states": 10, "logits": 2 if head is None and site is None and not is_whole else 0}
        return planned("attribute", model, opened.model, session.work(has_head=head is None, **held), reading)

    settings = {**session.settings, "token": token, "against": against, "by_position": by_position, "direction": None}
    settings |= {} if part is None else {"part": part}
    settings["pairs"] = None if chosen is None else PairTexts(tuple(chosen), positions=positions or ()).sha256()
    attributes = session.notes | ({} if chosen is None else {"pairs": "clean"})
    if head is None:
        if any(isinstance(side, tuple) for pair in chosen or () for side in (pair.answer, pair.wrong)):
            raise AttnscopeError("found pairs with several answers, which have no logit: use attnscope patch")
        record = None if metric is None else metric_of(metric)
        how: Any = {"by_position": by_position, "heads": chosen_heads, "metric": record}
        if positions and listed is not None:
            settings["positions"] = [*positions]
            how["spans"] = spans_of(listed, positions, opened.model)
        words = [(pair.text("answer"), pair.text("wrong")) for pair in chosen or ()]
        words = words if words and session.kind != "output" else [(token, against)] * len(session.windows)
        settings["direction"] = None if vector is None else sha256(vector.numpy().tobytes()).hexdigest()
        if site is not None:
            settings["site"] = attributes["site"] = site
        settings |= heads_setting(heads) | ({} if record is None else {"metric": record.identity})
        if is_whole and session.kind == "output" and chosen is not None:
            same: Any = {name: session.settings[name] for name in ("window", "limit", "seed", "batch_size")}
            others = texts_of([pair.corrupted for pair in chosen])
            how["corrupted"] = prediction_session(opened.model, others, **same).unchanged
        split = Attribution(session, words, vector, site, **how)
    else:
        settings["head"] = [*named_head]
        attributes["head"] = "{}.{}".format(*named_head)
        split = ScoreParts(session, named_head)
    job = AttributionJob(session, split, reading["progress"] or no_progress)
    return opened.run("attribute", job, settings, reading, task, attributes)
