"""From passes to texts: which row of which pass wrote each token of each sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from attnscope.errors import AttnscopeError
from attnscope.statistics.generation._places import PLACES, by_places
from attnscope.statistics.generation._spans import OWN, PROMPT, START

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from attnscope.capture import Site
    from attnscope.statistics.generation._observer import GenerationObserver


@dataclass(frozen=True, eq=False)
class Written:
    """One generated sequence, and what was measured of it.

    Attributes
    ----------
    prompt, new, source
        Token ids without padding: what its decoder was given, what it wrote, and what its encoder read, if it has one.
    given
        How many tokens the decoder was given, which may have been embeddings.
    number
        Number of the prompt among those of its call.
    sites
        One for each layer.
    spans
        Names of the spans, and of each layer the spans that its keys may belong to, ``(layer, span)``.
    measured
        ``(step, layer, head)``, spans or bins behind; of equal weights with one head.

    Examples
    --------
    >>> text = Written([5, 6], [7], [], 3, 0, [], ((), np.ones((0, 0))), {})
    >>> text.whole  # the first token was given as an embedding
    [-1, 5, 6, 7]
    """

    prompt: list[int]
    new: list[int]
    source: list[int]
    given: int
    number: int
    sites: Sequence[Site]
    spans: tuple[tuple[str, ...], np.ndarray]
    measured: Mapping[str, np.ndarray]

    @property
    def whole(self) -> list[int]:
        """The text that the decoder has read and written; -1 for what it was given as an embedding."""
        return [*([-1] * (self.given - len(self.prompt))), *self.prompt, *self.new]


def texts_of(
    observer: GenerationObserver,
    sequences: Tensor,
    beams: Tensor | None,
    ends: Sequence[int],
    pad: int | None,
) -> list[Written]:
    """A record of each sequence that `generate` gave.

    Parameters
    ----------
    observer
        With its passes.
    sequences
        ``(sequence, token)``.
    beams
        ``(sequence, step)``: in which row of the batch each token was chosen, -1 behind the last one; None where that
        is the sequence's own.
    ends, pad
        Tokens that end a text, and the one that is written behind it.

    Raises
    ------
    AttnscopeError
        If the passes do not read the tokens of the sequences.
    """
    rows = rows_of(observer)
    sequences = sequences.cpu()
    prompts, before = (
        observer.prompts,
        rows.prompt if observer.is_pair or observer.prompts.ids is not None else 0,
    )
    count = 1 if prompts.ids is None else len(prompts.ids)
    texts: list[Written] = []
    for number, sequence in enumerate(sequences):
        new = sequence[before:]
        own = number * count // len(sequences)
        if beams is not None:
            chosen = beams[number][beams[number] >= 0].cpu()
        else:
            chosen = torch.full((_length(new, ends, pad if len(sequences) > 1 else None),), number)
        new = new[: len(chosen)]
        rows.check(chosen, new)
        given = prompts.tokens(own)
        padding = 0 if observer.is_pair else int(prompts.padding(len(sequences))[number])
        spans = np.array([observer.spans_of(site.kind) for site in rows.sites])
        if prompts.names:
            there = prompts.spans[own]
            spans[:, 1 : 1 + len(prompts.names)] &= np.array([name in there for name in prompts.names])
        texts.append(
            Written(
                prompt=sequence[:before].tolist() if observer.is_pair else given,
                new=new.tolist(),
                source=given if observer.is_pair else [],
                given=rows.prompt - padding,
                number=own,
                sites=rows.sites,
                spans=(observer.spans, spans),
                measured=_with_places(observer, rows.picked(chosen), own, rows.prompt - padding),
            )
        )
    return texts


def _with_places(
    observer: GenerationObserver, measured: dict[str, np.ndarray], own: int, given: int
) -> dict[str, np.ndarray]:
    """Beside what was measured of one sequence, what the places of each head give."""
    names = list(observer.spans)
    columns = np.zeros((given + len(measured["entropy"]), len(names)))
    columns[:given, names.index(START if observer.is_pair else PROMPT)] = 1.0
    columns[given:, names.index(OWN)] = 1.0
    if observer.prompts.spans and not observer.is_pair:
        for name, tokens in observer.prompts.spans[own].items():
            columns[tokens, names.index(name)] = 1.0
    return measured | {PLACES: by_places(measured, columns, given)}


@dataclass(frozen=True, eq=False)
class MeasuredRows:
    """The measured rows of all passes, one behind the other; see `rows_of`."""

    prompt: int
    sites: list[Site]
    layers: list[dict[str, Tensor]]  # (batch, head, row) of all passes
    ids: Tensor  # (batch, row), -1 where they are not known
    of_place: dict[int, int]  # from a place in the text to the last row that was read there

    def columns(self, steps: int) -> Tensor:
        """The row from which each token was chosen: that of the token before it."""
        places = range(self.prompt - 1, self.prompt - 1 + steps)
        missing = [place for place in places if place not in self.of_place]
        if missing:
            raise AttnscopeError(
                f"no pass of generate() reads token {missing[0] + 1} of the text: what was measured is not of it"
            )
        return torch.tensor([self.of_place[place] for place in places], dtype=torch.int64)

    def check(self, chosen: Tensor, new: Tensor) -> None:
        """Refuse passes that read other tokens than the text holds."""
        read = self.ids[chosen, self.columns(len(chosen))][1:]
        if bool(((read != new[:-1]) & (read >= 0)).any()):
            raise AttnscopeError(
                "the passes of generate() read other tokens than it returns: it is not known which rows write the text"
            )

    def picked(self, chosen: Tensor) -> dict[str, np.ndarray]:
        """Of one sequence: ``(step, layer, head)``, spans behind; NaN where a layer has fewer heads than another."""
        columns = self.columns(len(chosen))
        heads = {name: max(layer[name].shape[1] for layer in self.layers) for name in self.layers[0]}
        arrays: dict[str, np.ndarray] = {}
        for name, most in heads.items():
            first = self.layers[0][name]
            array = np.full((len(chosen), len(self.layers), most, *first.shape[3:]), np.nan)
            for number, layer in enumerate(self.layers):
                array[:, number, : layer[name].shape[1]] = layer[name][chosen, :, columns].numpy()
            arrays[name] = array
        return arrays


def rows_of(observer: GenerationObserver) -> MeasuredRows:
    """The measured rows of all passes of a `generate` call.

    Raises
    ------
    AttnscopeError
        If passes differ in their layers, or there is none.
    """
    passes = observer.passes
    if not passes or observer.prompt is None:
        raise AttnscopeError("generate() made no pass that could be seen, so nothing was measured")
    known = list(passes[0].layers)
    if not known or any(list(seen.layers) != known or seen.batch != passes[0].batch for seen in passes):
        raise AttnscopeError(
            "the passes of generate() differ in their layers or sequences: which rows write the text is not known"
        )
    of_place: dict[int, int] = {}
    row = 0
    for seen in passes:
        of_place |= {seen.start + number: row + number for number in range(seen.rows)}
        row += seen.rows
    layers = [
        {
            name: torch.cat([seen.layers[layer][name] for seen in passes], dim=2).cpu()
            for name in passes[0].layers[layer]
        }
        for layer in known
    ]
    ids = [torch.full((seen.batch, seen.rows), -1) if seen.ids is None else seen.ids.cpu() for seen in passes]
    return MeasuredRows(
        observer.prompt, [observer.sites[layer] for layer in known], layers, torch.cat(ids, 1), of_place
    )


def _length(new: Tensor, ends: Sequence[int], pad: int | None) -> int:
    """How many tokens were written, up to the one that ends the text; what is behind only fills the batch."""
    last = torch.isin(new, torch.tensor(list(ends), dtype=new.dtype)).nonzero()
    if len(last):
        return int(last[0]) + 1
    written = (new != pad).nonzero() if pad is not None else new
    return len(new) if pad is None else int(written[-1]) + 1 if len(written) else len(new)
