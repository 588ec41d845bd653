"""Aligning the words of a parallel text with a translation model, and judging the result."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from transformers import PreTrainedModel

from attnscope.capture import borrowing, load_model
from attnscope.checks import check_real, check_whole
from attnscope.errors import AttnscopeError
from attnscope.progress import Progress, Tell, tell_nobody
from attnscope.store import Signature, package_versions, tokenizer_sha256
from attnscope.translation._lines import Lines, check_parallel, lines_of_text
from attnscope.translation.alignment._links import (
    AlignmentScore,
    Gold,
    Links,
    links,
    read_gold,
    score_alignments,
    within,
)
from attnscope.translation.alignment._word_weights import (
    WordAlignment,
    forced_alignment,
    forced_alignment_of_heads,
)

MOST_WORDS = 40  # of a sentence in a picture


@dataclass(frozen=True, eq=False)
class ShownPair:
    """A sentence pair to look at: its weights, the links read off them, and people's where there are any."""

    line: int  # from 1
    words: WordAlignment
    found: Links
    sure: Links
    possible: Links
    error_rate: float


@dataclass(frozen=True, eq=False)
class Aligned:
    """A parallel text aligned by a model.

    Attributes
    ----------
    model
        Its name.
    layer, head
        Whose weights were read; None for the mean of all.
    chosen_on_gold
        Whether layer and head are those of the lowest error rate on the gold alignments themselves.
    links
        For each sentence pair its links.
    score
        Against the gold alignments.
    heads
        ``error_rate``, ``precision`` and ``recall (layer, head)``, where every head was tried.
    outside
        How many gold links point past the end of their sentence.
    pairs
        Some sentence pairs to look at; with gold, evenly from the best to the worst.
    signature
        JSON: model, texts, settings and versions.
    """

    model: str
    layer: int | None
    head: int | None
    chosen_on_gold: bool
    links: list[Links]
    score: AlignmentScore | None
    heads: xr.Dataset | None
    outside: int
    pairs: list[ShownPair]
    signature: str


@dataclass
class _Work:
    """What every pass over the text needs."""

    model: PreTrainedModel
    tokenizer: Any
    sources: list[str]
    targets: list[str]
    read: dict[str, Any]  # how links are read off the weights
    run: dict[str, Any]  # how weights are got
    gold: Gold | None = None
    tell: Tell = tell_nobody
    lengths: list[tuple[int, int]] = field(default_factory=list)

    def progress(self, name: str, begun: float, share: float) -> Callable[[int, int], None]:
        """Tells of a pass that is so much of all work, after so much of it."""
        return lambda done, total: self.tell(Progress(name, begun + share * done / total, {"pairs": done}))


@borrowing
def align(
    model: str | Path | PreTrainedModel,
    texts: Lines,
    targets: Lines,
    *,
    gold: str | Path | Gold | None = None,
    gold_first: int = 1,
    tokenizer: Any = None,
    layer: int | None = None,
    head: int | None = None,
    end: str = "drop",
    step: str = "predicts",
    words: str = "space",
    rule: str = "argmax",
    threshold: float = 0.2,
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
        An encoder-decoder: a folder, a hub id, or a loaded model with its `tokenizer`.
    texts, targets
        Sentences and their translations: lists of strings, or the `Path` of a file with a sentence a line.
    gold
        People's alignments (see `read_gold`), words as the text's spaces make them.
    gold_first
        The number of the first word in that file.
    tokenizer, device, dtype, revision, trust_remote_code
        As in `attnscope.scan`.
    layer, head
        Of the decoder, from 0; None for the mean of all.
    end, step, words, batch_size
        As in `forced_alignment`.
    rule, threshold
        As in `links`.
    every_head
        Whether to judge every head; by default where there is gold and neither layer nor head was given.
    shown
        How many sentence pairs to keep with their weights, for figures; those of more than 40 words are passed over.
    progress
        Called with a `Progress` after each batch of each pass over the text; it tells of ``pairs`` done.

    Returns
    -------
    Aligned

    Raises
    ------
    AttnscopeError
        If line counts differ, the model is no encoder-decoder, or a choice does not exist.

    Examples
    --------
    >>> import attnscope
    >>> attnscope.align("bundled", ["a cat"], ["a cat"])
    Traceback (most recent call last):
    attnscope.errors.AttnscopeError: EncoderForMaskedLM is no encoder-decoder: ...
    """
    check_whole(0, layer=layer, head=head, shown=shown)
    check_whole(1, batch_size=batch_size)
    check_whole(0, 1, gold_first=gold_first)
    check_real(0.0, 1.0, threshold=threshold)
    sources, targets = lines_of_text(texts, "the text"), lines_of_text(targets, "the target")
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
    work = _Work(
        loaded.model,
        loaded.tokenizer,
        sources,
        targets,
        {"rule": rule, "threshold": threshold},
        {"end": end, "step": step, "words": words, "batch_size": batch_size},
        judges,
        progress or tell_nobody,
    )
    open_choice = layer is None and head is None
    heads = (
        _judge_heads(work)
        if judges is not None and (open_choice if every_head is None else every_head)
        else None
    )
    on_gold = heads is not None and open_choice
    if heads is not None and on_gold:
        layer, head = _best(heads)
    alignments = _read_links(work, layer, head, begun=0.0 if heads is None else 0.5)
    score = None if judges is None else score_alignments(alignments, judges.sure, judges.possible)
    return Aligned(
        loaded.name,
        layer,
        head,
        on_gold,
        alignments,
        score,
        heads,
        _outside(work),
        _pairs(work, alignments, layer, head, shown),
        _signature(work, {"name": loaded.name, **loaded.identity}, layer, head),
    )


def _judge_heads(work: _Work) -> xr.Dataset:
    """Error rate, precision and recall of every head."""
    gold = work.gold
    if gold is None:
        raise AttnscopeError("there are no gold alignments to judge heads by")
    links_of_heads: dict[tuple[int, int], list[Links]] = {}
    passed = forced_alignment_of_heads(
        work.model,
        work.tokenizer,
        work.sources,
        work.targets,
        progress=work.progress("every head", 0.0, 0.5),
        **work.run,
    )
    for pair in passed:
        for layer, head in np.ndindex(pair.weights.shape[:2]):
            links_of_heads.setdefault((layer, head), []).append(
                links(pair.weights[layer, head, :, : len(pair.source)], **work.read)
            )
    layers, heads = (1 + max(at[axis] for at in links_of_heads) for axis in (0, 1))
    judged = {at: score_alignments(made, gold.sure, gold.possible) for at, made in links_of_heads.items()}
    names = ("error_rate", "precision", "recall")
    return xr.Dataset(
        {
            name: (
                ("layer", "head"),
                [[getattr(judged[layer, head], name) for head in range(heads)] for layer in range(layers)],
            )
            for name in names
        },
        coords={"layer": range(layers), "head": range(heads)},
    )


def _best(heads: xr.Dataset) -> tuple[int, int]:
    rates = heads["error_rate"].values
    # 2 is above every error rate: a head that has none is never the best; the first of equals is
    layer, head = np.unravel_index(int(np.nanargmin(np.where(np.isnan(rates), 2, rates))), rates.shape)
    return int(layer), int(head)


def _read_links(work: _Work, layer: int | None, head: int | None, begun: float) -> list[Links]:
    alignments: list[Links] = []
    for pair in forced_alignment(
        work.model,
        work.tokenizer,
        work.sources,
        work.targets,
        layer=layer,
        head=head,
        progress=work.progress("align", begun, 1.0 - begun),
        **work.run,
    ):
        alignments.append(links(pair.weights[:, : len(pair.source)], **work.read))
        work.lengths.append((len(pair.source), len(pair.target)))
    return alignments


def _outside(work: _Work) -> int:
    if work.gold is None:
        return 0
    pairs = zip(work.gold.possible, work.lengths, strict=True)
    return sum(len(possible) - len(within(possible, *lengths)) for possible, lengths in pairs)


def _pairs(
    work: _Work, alignments: list[Links], layer: int | None, head: int | None, shown: int
) -> list[ShownPair]:
    """Weights of some pairs, from a second pass over these alone: they are never held for the whole text."""
    short = [i for i, lengths in enumerate(work.lengths) if min(lengths) > 0 and max(lengths) <= MOST_WORDS]
    nothing: Links = frozenset()
    sure = work.gold.sure if work.gold else [nothing] * len(alignments)
    possible = work.gold.possible if work.gold else [nothing] * len(alignments)
    rates = {i: score_alignments([alignments[i]], [sure[i]], [possible[i]]).error_rate for i in short}
    if work.gold is not None:
        short = sorted((i for i in short if not np.isnan(rates[i])), key=lambda i: rates[i])
        at = np.unique(np.linspace(0, len(short) - 1, min(shown, len(short))).round().astype(int))
        short = [short[i] for i in at]
    short = short[:shown]
    if not short:
        return []
    weights = forced_alignment(
        work.model,
        work.tokenizer,
        [work.sources[i] for i in short],
        [work.targets[i] for i in short],
        layer=layer,
        head=head,
        **work.run,
    )
    return [
        ShownPair(i + 1, words, alignments[i], sure[i], possible[i], rates[i])
        for i, words in zip(short, weights, strict=True)
    ]


def _signature(work: _Work, identity: dict[str, str], layer: int | None, head: int | None) -> str:
    def digest(lines: Sequence[str]) -> str:
        return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()

    return Signature(
        "align",
        model=identity,
        tokenizer={"sha256": tokenizer_sha256(work.tokenizer)},
        text={
            "pairs": len(work.sources),
            "source_sha256": digest(work.sources),
            "target_sha256": digest(work.targets),
        },
        settings={"layer": layer, "head": head, **work.run, **work.read},
        versions=package_versions(),
    ).to_json()
