"""Whether the best head of a relation matters: right and wrong texts, times of words and contacts without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from attnscope.capture.watching import capture_of, only_weights
from attnscope.intervention.ablation import changes_by_sets
from attnscope.intervention.predictions import PredictionSession
from attnscope.intervention.questions import kind_of_question
from attnscope.read.texts import Corpus
from attnscope.read.windows import Window, Windows
from attnscope.statistics.discovery import significant
from attnscope.statistics.units import numbered, units_in
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count
from attnscope_relations.contacts import is_protein
from attnscope_relations.data import PAIR, LinkedText
from attnscope_relations.summary import TIE, chances, interval_of

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from attnscope.capture.borrow import LoadedModel
    from attnscope.capture.watch import Site
    from attnscope_relations.measure import RelationReader

_OTHERS = 16  # heads of the same layer, at most, that are ablated too
_CELLS = ("relation", "layer", "head")
Head = tuple[int, int]  # number of the layer and of the head


def silenced(site: Site, output: Tensor, without: Head | None) -> Tensor:
    """The output of a call ``(batch, head, query, width)``, with that of one head set to 0."""
    if without is None or site.index != without[0]:
        return output
    output = output.clone()
    output[:, without[1]] = 0
    return output


def check_outputs(model: PreTrainedModel) -> None:
    """Raise an error if outputs of heads cannot be replaced."""
    if capture_of(model) != "registry":
        raise AttnscopeError(only_weights(model))


def check_ablation(loaded: LoadedModel, texts: Sequence[LinkedText], *, together: bool) -> None:
    """Raise an error if there is no behaviour to ask for."""
    if any(map(is_protein, texts)):
        if not together:
            raise AttnscopeError(
                "ablate (--ablate) measures the contacts that all heads give together: add together (--together)"
            )
        check_outputs(loaded.model)
        return
    if not any(text.answers for text in texts):
        raise AttnscopeError(
            f"ablate (--ablate) compares right texts with wrong ones, and no text has them: add good and bad, {PAIR}"
        )
    kind = kind_of_question(loaded.model)
    if kind not in {"next", "masked"}:
        raise AttnscopeError(
            f"ablate (--ablate) compares probabilities of texts, and {type(loaded.model).__name__} is neither a causal "
            "nor a masked language model: leave it out"
        )
    if kind == "masked" and loaded.tokenizer.mask_token_id is None:
        raise AttnscopeError("the tokenizer has no mask token, which ablate (--ablate) needs. Choose another")


@dataclass(frozen=True, eq=False)
class _Asked:
    """The windows whose log-probabilities, with their signs, add up to the margin of each text."""

    windows: Sequence[Window]
    text: np.ndarray  # ``(window,)``: number of the text
    sign: np.ndarray  # ``(window,)``: 1 if the text is right, -1 if it is wrong
    how: str  # a sentence

    def margins(self, logs: np.ndarray, texts: int) -> np.ndarray:
        """Log-probability of the right text less that of the wrong one, ``(text, ...)``, from ``(window, ...)``."""
        margins = np.zeros((texts, *logs.shape[1:]))
        np.add.at(margins, self.text, self.sign.reshape(-1, *[1] * (logs.ndim - 1)) * logs)
        return margins


def ablated(reader: RelationReader, results: xr.Dataset, summary: xr.Dataset) -> xr.Dataset:
    """Change of the margin between right and wrong texts without the best head of each relation, and without others.

    The output of a head is replaced by its mean over these texts. ``ablated_matters`` is whether the margin, which was
    above 0, falls significantly, and more than it does on average without other heads of the same layer, if there are
    any. The false discovery rate over relations is 0.05.
    """
    asked = _asked(reader)
    reader.notes["ablation"] = asked.how
    of_relations = _texts_of_relations(reader, asked, summary)
    cells = {relation: _cells(reader, summary, relation) for relation in of_relations}
    every = [*dict.fromkeys(cell for some in cells.values() for cell in some)]
    session = PredictionSession(reader.loaded, asked.windows, kind_of_question(reader.model))
    session.check()
    predictions, loss = _plain(session)
    sets = np.array([[cell == one for cell in session.cells] for one in every])
    changes = changes_by_sets(session, [sets] * len(session.slices()), "mean")
    falls = asked.margins(-changes * predictions[:, None], len(reader.windows))
    margins = asked.margins(-loss * predictions, len(reader.windows))
    changes = dict(zip(every, falls.T, strict=True))
    ones = np.ones(len(reader.windows))
    return summarised(results, of_relations, cells, margins, changes, ones, reader.settings["seed"], "nats")


def _texts_of_relations(reader: RelationReader, asked: _Asked, summary: xr.Dataset) -> dict[int, list[int]]:
    """The texts that are compared and have a query of each relation, if there are any."""
    compared = sorted({*asked.text.tolist()})
    of_relations = {
        number: [text for text in compared if any(query.relation == number for query in reader.queries[text])]
        for number in range(len(reader.relations))
        if float(summary.queries[number]) > 0
    }
    of_relations = {number: texts for number, texts in of_relations.items() if texts}
    if not of_relations:
        raise AttnscopeError(f"no text with good and bad has a link that the model sees; expected texts such as {PAIR}")
    return of_relations


def _cells(reader: RelationReader, summary: xr.Dataset, relation: int) -> list[tuple[int, int]]:
    """The head with the best score of a relation, then others of its layer: at most 16, a random choice.

    It is among those with more weight along the relation than uniform attention, if there are any: the largest weight
    of a head that rests on the first token may be right and still carry nothing.
    """
    of_relation = summary.isel(relation=relation)
    carries = of_relation.weight > of_relation.uniform
    ranked = (of_relation.score + TIE * of_relation.weight).transpose("layer", "head").values
    ranked = np.where(carries.transpose("layer", "head").values, ranked, -1.0) if carries.any() else ranked
    layer, head = np.unravel_index(np.nanargmax(ranked), ranked.shape)
    return cells_of((int(summary.layer[layer]), int(head)), reader.measured, reader.settings["seed"])


def cells_of(best: Head, sites: Sequence[Site], seed: int) -> list[Head]:
    """A head, then others of its layer: at most 16, a random choice."""
    heads = next(site.heads for site in sites if site.index == best[0])
    others = [(best[0], head) for head in range(heads) if head != best[1]]
    random = np.random.default_rng(seed)
    chosen = sorted(random.permutation(len(others))[:_OTHERS].tolist())
    return [best, *(others[at] for at in chosen)]


def _plain(session: PredictionSession) -> tuple[np.ndarray, np.ndarray]:
    """Number of predictions of each window, and their mean loss."""
    predictions: list[np.ndarray] = []
    loss: list[np.ndarray] = []
    for part in session.slices():
        with session.passes(part) as batch:
            predictions.append((batch.questions.labels >= 0).sum(1).cpu().numpy())
            loss.append(batch.loss[0].double().cpu().numpy())
    return np.concatenate(predictions), np.concatenate(loss)


# --- windows ---


#: How a right and a wrong text are compared.
_WAYS = {
    "whole": "whole texts",
    "read": "the tokens in which they differ from the text that is read",
    "masked": "the tokens in which they differ, behind masks",
    "each": "all tokens, one at a time behind a mask (Salazar et al. 2020), where they differ in length",
}


def _asked(reader: RelationReader) -> _Asked:
    """The windows of all texts that have a right and a wrong one."""
    length = reader.session.length(reader.settings["window"])
    windows: list[Window] = []
    numbers: list[int] = []
    signs: list[int] = []
    ways: list[str | None] = []
    for number, window in enumerate(reader.windows):
        text = reader.texts[number]
        if text.answers is None:
            continue
        way, both = _compared(reader.loaded, window, text, length)
        ways.append(way)
        for sign, some in zip((1, -1), both, strict=True):
            windows += some
            numbers += [number] * len(some)
            signs += [sign] * len(some)
    if not windows:
        raise AttnscopeError(
            "found no pair of good and bad whose probabilities can be compared; expected texts that fit into a window "
            "and, for a text that is neither of them, have as many tokens as that. Correct the data"
        )
    parts = [f"{words} ({count(ways.count(way), 'pair')})" for way, words in _WAYS.items() if way in ways]
    how = f"Margins are log-probabilities of right texts less those of wrong ones, over {'; '.join(parts)}."
    if None in ways:
        how += f" {ways.count(None)} of {count(len(ways), 'pair')} are left out, as their lengths do not fit."
    return _Asked(windows, np.array(numbers), np.array(signs), how)


def _compared(
    loaded: LoadedModel, window: Window, text: LinkedText, length: int
) -> tuple[str | None, tuple[list[Window], list[Window]]]:
    """How the right and the wrong text of one are compared, and windows of both; None if they cannot be."""
    cut = [[*Windows(Corpus.from_sources([answer]), loaded.tokenizer, length=length)] for answer in text.answers or ()]
    if any(len(windows) > 1 for windows in cut):
        return None, ([], [])
    good, bad = (replace(windows[0], source=text.document) for windows in cut)
    if kind_of_question(loaded.model) == "next":
        return "whole", ([good], [bad])
    mask = loaded.tokenizer.mask_token_id
    if text.text not in {*(text.answers or ())}:  # a pronoun that the model names, or a mask of the caller's own
        read = replace(window, words=())
        if not len(good) == len(bad) == len(read) or read.ids in {good.ids, bad.ids}:
            return None, ([], [])
        return "read", ([replace(read, target=good)], [replace(read, target=bad)])
    if len(good) == len(bad):
        differ = [at for at, (one, other) in enumerate(zip(good.ids, bad.ids, strict=True)) if one != other]
        return "masked", ([_behind_masks(good, differ, mask)], [_behind_masks(bad, differ, mask)])
    words = ([at for at, special in enumerate(side.special) if not special] for side in (good, bad))
    each = ([_behind_masks(side, [at], mask) for at in some] for side, some in zip((good, bad), words, strict=True))
    return "each", (next(each), next(each))


def _behind_masks(window: Window, positions: Sequence[int], mask: int) -> Window:
    """A window with masks at some positions, whose tokens the model restores."""
    ids = [mask if at in positions else token for at, token in enumerate(window.ids)]
    return replace(window, ids=tuple(ids), target=window)


# --- means by document ---

_MEANS = ("margin", "ablated", "ablated_others", "ablated_beyond")
_ENDS = ("", "_low", "_high")


def summarised(
    results: xr.Dataset,
    of_relations: Mapping[int, Sequence[int] | np.ndarray],
    cells: Mapping[int, Sequence[Head]],
    margins: np.ndarray,
    changes: Mapping[Head, np.ndarray],
    sizes: np.ndarray,
    seed: int,
    units: str,
) -> xr.Dataset:
    """Means with intervals by unit, from margins and their changes, which are sums over each window ``(window,)``.

    `of_relations` has the windows of each relation, `cells` its best head and then others, `sizes` how many a window
    counts.
    """
    relations, layers = results.sizes["relation"], results.layer.values.tolist()
    unit = numbered(units_in(results)[0])[0]
    columns = {f"{name}{end}": np.full(relations, np.nan) for name in _MEANS for end in _ENDS}
    columns |= {name: np.full(relations, np.nan) for name in ("margin_right", "ablated_rank")}
    columns |= {name: np.full(relations, -1) for name in ("ablated_layer", "ablated_head")}
    p = np.full((2, relations), np.nan)
    pairs = np.zeros(relations, dtype=int)
    of_heads = np.full((relations, len(layers), results.sizes["head"]), np.nan)
    for relation, windows in of_relations.items():
        best, *others = (changes[cell][windows] for cell in cells[relation])
        other = np.mean(others, 0) if others else np.full(len(windows), np.nan)
        number = np.bincount(unit[windows], weights=sizes[windows])
        whole = sizes[windows].sum()
        for name, values in zip(_MEANS, (margins[windows], best, other, best - other), strict=True):
            sums = np.bincount(unit[windows], weights=values)
            for end, value in zip(_ENDS, interval_of(sums, number, seed), strict=True):
                columns[f"{name}{end}"][relation] = value
            if name in {"ablated", "ablated_beyond"}:
                p[int(name == "ablated"), relation] = chances(sums[:, None, None, None], number[:, None]).item()
        columns["margin_right"][relation], pairs[relation] = (margins[windows] > 0).mean(), len(windows)
        columns["ablated_layer"][relation], columns["ablated_head"][relation] = cells[relation][0]
        if others:
            further = sum(bool(one.sum() <= best.sum()) for one in others)
            columns["ablated_rank"][relation] = (1 + further) / (1 + len(others))
        for layer, head in cells[relation]:
            of_heads[relation, layers.index(layer), head] = changes[layer, head][windows].sum() / whole
    largest = np.fmax(*p)  # of two tests together, or of one in a layer of one head
    variables: dict[str, Any] = {name: ("relation", values) for name, values in columns.items()}
    variables |= {
        "ablated_pairs": ("relation", pairs),
        "ablated_p": ("relation", largest),
        "ablated_matters": ("relation", matters(columns, largest)),
        "ablated_change": (_CELLS, of_heads, {"long_name": "Change of the margin without the head", "units": units}),
    }
    return xr.Dataset(variables)


def matters(columns: Mapping[str, np.ndarray], p: np.ndarray) -> np.ndarray:
    """Whether a margin that is above 0 falls significantly without a head, and more than without others, by relation.

    ``columns`` are those of the summary; without other heads ``ablated_beyond`` is NaN.
    """
    falls = (columns["ablated"] < 0) & ~(columns["ablated_beyond"] >= 0)
    return significant(p) & falls & (columns["margin_low"] > 0)
