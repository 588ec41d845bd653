"""`attnscope_circuits.edges`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, Unpack

from attnscope.options import (
    SCALE,
    Count,
    Flag,
    Heads,
    ModelReading,
    ModelsOrBundled,
    Names,
    PairAnswer,
    PairMetric,
    PairsOrBundled,
    PairWrong,
    Typed,
    float_of,
)
from attnscope.support.checked import Bounds
from attnscope.verbs import verb

if TYPE_CHECKING:
    import xarray as xr


@verb(
    examples=(
        ("attnscope edges", "the bundled model on its pairs"),
        ("attnscope edges gpt2 pairs.jsonl", "pairs with clean, corrupted, answer and wrong"),
        ("attnscope edges gpt2 pairs.jsonl --method exact --csv", "every edge patched, one line for each"),
        ("attnscope edges google-t5/t5-small pairs.jsonl", "encoder-decoder: pairs may add target, the answer so far"),
    )
)
def edges(
    model: ModelsOrBundled = None,
    pairs: PairsOrBundled = None,
    *,
    answer: PairAnswer = None,
    wrong: PairWrong = None,
    metric: PairMetric | None = None,
    method: Annotated[
        Literal["eap", "eap_ig", "exact"],
        "Score an edge by eap (one gradient), eap_ig (mean of gradients) or exact (patched). ``eap``: edge "
        "attribution patching, two forward passes and one backward pass (Syed et al. 2023). ``eap_ig``: mean "
        "gradient at `steps` inputs between both (Hanna et al. 2024). ``exact``: a patched pass for each edge.",
    ] = "eap_ig",
    steps: Annotated[Count, "Take this many gradients of eap_ig."] = 5,
    heads: Annotated[
        Heads | None,
        "Score only edges from these heads, as in 4.2,5.1. All other edges keep the clean activations, and tests count "
        "these edges alone. docs/guides/own-questions.md has all forms. By default from every part.",
    ] = None,
    positions: Annotated[
        Names | None,
        "Score edges at these spans of each pair only, by name, as in patch. All other positions keep the clean "
        "activations.",
    ] = None,
    sizes: Annotated[
        Sequence[float],
        Flag("size"),
        Typed(float_of, "X", repeated=True),
        "Test a circuit of this size, as a share of all edges; may be repeated. All other edges carry corrupted "
        "activations. With 6 or more pairs, circuits are chosen on a random half of the pairs and tested on the "
        "other, both ways. By default 11 sizes from 0 to 1.",
    ] = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
    draws: Annotated[
        int,
        Bounds(1, 1000),
        "Compare circuits with this many random orders of the edges. They are the null of the curves.",
    ] = 3,
    batch_size: Annotated[
        Count | None, SCALE, "Measure this many pairs at a time. By default about 1,024 tokens' worth."
    ] = None,
    **reading: Unpack[ModelReading],
) -> "xr.Dataset":
    r"""Find the edges between heads, MLPs and logits that carry an answer, and test circuits of the best ones.

    An edge goes from what a part adds to the residual stream to what a later part reads there: the queries, keys or
    values of a head, an MLP, or the logits. Its score is the change of answer minus wrong answer in the clean run if it
    alone carries the corrupted run's activation, :math:`(u' - u) \cdot \partial m / \partial v`, u what the sender
    adds, v the receiver's input. Behind a norm of a layer's output (Gemma 2) or of its sum with the stream (BERT), u is
    the part of the normed sum, with each run's own denominators, so that the parts still add up; biases of norms count
    as the input's.

    Returns
    -------
    xarray.Dataset
        ``score`` ``(sender, receiver)``, logits, NaN where there is no edge; mean over pairs with a 95% interval, and
        ``shown``: significant by random signs of pairs, corrected for all edges. Names are those of EAP-IG:
        ``input``, ``a4.h2`` (with ``<q>``, ``<k>`` or ``<v>`` as a receiver; key heads for k and v), ``m4``,
        ``mixer2`` (Mamba and other mixers), ``logits``, and ``target``, the embeddings of a decoder with an encoder,
        whose cross-attention reads the encoder through ``<k>`` and ``<v>``; then ``sender_stack`` and
        ``receiver_stack`` are encoder, decoder or cross.
        ``faithfulness`` ``(order, size)``, :math:`f = (m_C - m_\emptyset) / (m - m_\emptyset)`, with ``_low`` and
        ``_high`` over pairs, for circuits of the edges that raise the metric most (``raising``), change it most
        (``changing``), and of random edges (``random``); ``cpr`` and ``cmd`` ``(order)``, the areas
        :math:`\int f` and :math:`\int |1 - f|` over the share of edges (Mueller et al. 2025, MIB). ``difference``
        ``(pair, order, size)``: answer minus wrong answer of each circuit; ``without`` ``(pair)``, with `heads` or
        `positions`, that with none of these edges, which then stands for :math:`m_\emptyset`; ``half`` ``(pair)``: the
        pair's half.

    Raises
    ------
    AttnscopeError
        If the residual stream is not the sum of these parts (one norm for attention and MLP), or for the reasons of
        `attnscope.patch`.

    Examples
    --------
    >>> from attnscope_zoo.catalogue import build  # pip install packages/attnscope-zoo
    >>> planted = build("copying-decoder-1")
    >>> words = planted.tokenizer.decode(planted.ids[0]).split()
    >>> pair = {"clean": " ".join(words), "corrupted": " ".join(words[::-1]), "answer": "t9", "wrong": "t8"}
    >>> found = edges(planted.model, [pair], tokenizer=planted.tokenizer, method="eap", sizes=[0.0, 1.0])
    >>> found.score.dims, found.receiver.values[[0, -1]].tolist()
    (('sender', 'receiver'), ['a0.h0<q>', 'logits'])
    """
    from dataclasses import replace
    from functools import partial

    from attnscope.capture.borrow import borrowed
    from attnscope.head_names import checked_choice, heads_setting
    from attnscope.intervention.metrics import metric_of
    from attnscope.intervention.pair_sources import note_of_task
    from attnscope.intervention.patch import OpenedPairs, PatchJob, check_spans
    from attnscope.opened import Opened
    from attnscope.store.run import Job, Once
    from attnscope.support.errors import AttnscopeError
    from attnscope.support.progress import no_progress
    from attnscope_circuits.edge_scores import WITHOUT_GRADIENTS, measured_edges, with_own_layers, work_of

    if not sizes or sorted(sizes) != [*sizes] or not 0 <= sizes[0] <= sizes[-1] <= 1:
        raise AttnscopeError(f"found sizes {[*sizes]}; expected shares of the edges from 0 to 1, the smallest first")
    chosen_heads = checked_choice(heads)
    record = None if metric is None else metric_of(metric)
    session = Opened.of(model)
    opened = OpenedPairs.open(session, pairs, reading, (answer, wrong), metric)
    if positions is not None:
        check_spans(opened, positions)
    loaded, of_task = replace(opened.loaded, model=with_own_layers(opened.loaded.model)), opened.of_task
    runs = PatchJob(
        loaded,
        opened.pairs,
        "heads",
        False,
        "noising",
        None,
        0,
        None,
        no_progress,
        heads=chosen_heads,
        metric=record,
        media=opened.media,
        positions=positions or (),
    )
    runs.read(batch_size, "" if method == "exact" else WITHOUT_GRADIENTS)
    settings = {"method": method, "steps": steps, "sizes": [*sizes], "draws": draws, "batch_size": batch_size}
    settings |= {"seed": reading["seed"], **({} if record is None else {"metric": record.identity}), **of_task}
    settings |= heads_setting(heads) | ({"positions": [*positions]} if positions else {})
    session.corpus = replace(session.corpus, positions=positions or ())
    how = method, steps, sizes, draws, reading["seed"], reading["progress"] or no_progress

    def measured(_: Job) -> "xr.Dataset":
        with borrowed(loaded.model):
            return measured_edges(runs, *how)

    return session.run(
        "edges",
        Once(measured, partial(work_of, runs, *how[:2], len(sizes), draws)),
        settings,
        reading,
        attributes=runs.attributes_of_answers | note_of_task(of_task),
    )
