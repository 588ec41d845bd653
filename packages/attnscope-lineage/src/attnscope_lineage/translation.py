"""Translate lines with a trained model: greedy, beam search, n-best, sampling."""

from __future__ import annotations

import html
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase

from attnscope.capture.borrow import quiet
from attnscope.capture.families import configured_length
from attnscope.capture.forward import check_ids
from attnscope.report.schema import Finding, Quantity, Report, Table
from attnscope.support.checks import check_real, check_whole
from attnscope.support.errors import AttnscopeError, explaining
from attnscope.support.numbers import count
from attnscope.support.progress import Progress, Tell, no_progress
from attnscope.support.state import own_random_numbers
from attnscope_lineage.data import collate, encode_lines
from attnscope_lineage.ensembles import Together, mean_log_probabilities
from attnscope_lineage.options import BEAMS

_USUAL_BEAMS = 5


@own_random_numbers()
def translate_lines(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    lines: Sequence[str],
    *,
    beams: int = _USUAL_BEAMS,
    length_penalty: float = 1.0,
    n_best: int = 1,
    sample: bool = False,
    temperature: float = 1.0,
    seed: int = 0,
    batch_tokens: int = 4_096,
    overlong: str = "reject",
    scores: bool = False,
    progress: Tell | None = None,
    begin: Mapping[str, int] | None = None,
    others: Sequence[Any] = (),
) -> Translations:
    """`translate` with an encoder-decoder in eval mode, others of an ensemble, and their tokenizer."""
    check_whole(1, BEAMS, beams=beams, n_best=n_best)
    check_real(0.0, 1e3, temperature=temperature)
    check_real(-1e3, 1e3, length_penalty=length_penalty)
    if n_best > beams and not sample:
        raise AttnscopeError(f"found n_best {n_best} with {beams} beams: use at least {n_best} beams, or sample")
    if temperature != 1 and not sample:
        raise AttnscopeError("temperature applies to sampling only: add sample (--sample)")
    if seed and not sample:
        raise AttnscopeError("the seed (--seed) applies to sampling only: add sample (--sample)")
    if sample and beams not in {1, _USUAL_BEAMS}:
        raise AttnscopeError("beams (--beams) do not apply to sampling: leave out beams, or sample (--sample)")
    scored = scores or (sample and n_best > 1)
    if length_penalty != 1 and (sample or beams == 1) and not scored:
        raise AttnscopeError(
            "length_penalty (--length-penalty) applies to several beams or to scores: increase --beams, or "
            "request scores"
        )
    encoded, longest = encode_lines(tokenizer, lines), min(int(tokenizer.model_max_length), positions_of(model))
    pieces, owner = _pieces(encoded, lines, longest, overlong)
    if pieces:  # detect a tokenizer of another model by its largest id, before translating
        index = max(range(len(pieces)), key=lambda index: max(pieces[index]))
        check_ids(model, {"input_ids": torch.tensor([pieces[index]])}, lambda _: f"line {owner[index] + 1}")
    options: dict[str, Any] = {"num_beams": beams, "num_return_sequences": n_best, "do_sample": sample, **(begin or {})}
    if sample:
        torch.manual_seed(seed)
        options |= {"num_beams": 1, "temperature": temperature}
    elif beams > 1:
        options["length_penalty"] = length_penalty
    by_line: list[dict[int, list[Translation]]] = [{} for _ in lines]  # the translations of each of its pieces
    penalty = length_penalty if scored else None
    done = 0
    for chosen in _batches(pieces, batch_tokens // (n_best if sample else beams)):
        of_batch = _generate([model, *others], tokenizer, pieces, chosen, options, penalty)
        for index, ranked in zip(chosen, of_batch, strict=True):
            by_best = sorted(ranked, key=lambda one: -(one.score or 0.0)) if sample and scored else ranked
            by_line[owner[index]][index] = by_best
        done += len(chosen)
        (progress or no_progress)(Progress("translate", done / len(pieces), {"lines": done}))
    joined: list[tuple[Translation, ...]] = []
    for of_pieces, ids in zip(by_line, encoded, strict=True):
        several = _joined([of_pieces[index] for index in sorted(of_pieces)], scored=scored)
        left_out = max(0, len(ids) - longest) if overlong == "cut" else 0
        joined.append(tuple(replace(translation, left_out=left_out) for translation in several))
    return Translations(tuple(lines), tuple(joined))


def positions_of(model: Any) -> int:
    """Rows of the model's position table, on either side; a very large number if positions are computed."""
    computed = getattr(model.config, "positions", "learned") != "learned"
    return (None if computed else configured_length(model.config)) or sys.maxsize


def _pieces(
    encoded: list[list[int]], lines: Sequence[str], longest: int, overlong: str
) -> tuple[list[list[int]], list[int]]:
    """The pieces to translate, and the line of each; empty lines have none."""
    pieces: list[list[int]] = []
    owner: list[int] = []
    for number, ids in enumerate(encoded):
        if not lines[number].strip():
            continue
        if len(ids) > longest and overlong == "reject":
            raise AttnscopeError(
                f"line {number + 1} has {len(ids)} tokens; the model was trained for at most {longest}: shorten it, or "
                "use --overlong split or cut"
            )
        body, end = ids[:-1], ids[-1:]
        step = longest - 1
        for start in range(0, len(body), step) if len(ids) > longest and overlong == "split" else range(1):
            pieces.append(body[start : start + step] + end)
            owner.append(number)
    return pieces, owner


def _batches(pieces: list[list[int]], budget: int) -> Iterator[list[int]]:
    """Group pieces by length, the longest first."""
    order = sorted(range(len(pieces)), key=lambda i: -len(pieces[i]))
    start = 0
    while start < len(order):
        count = max(1, budget // len(pieces[order[start]]))
        yield order[start : start + count]
        start += count


@torch.inference_mode()
def _generate(
    models: Sequence[Any],
    tokenizer: Any,
    pieces: list[list[int]],
    chosen: list[int],
    options: dict[str, Any],
    penalty: float | None,
) -> list[list[Translation]]:
    model, *others = models
    batch = collate([pieces[i] for i in chosen], pad_id=tokenizer.pad_token_id)
    ids, mask = batch["input_ids"].to(model.device), batch["attention_mask"].to(model.device)
    most = min(2 * ids.shape[1] + 20, positions_of(model))
    each = options["num_return_sequences"]
    together = {"logits_processor": LogitsProcessorList([Together(others, ids, mask)])} if others else {}
    with (
        quiet(),  # no reminder of a length that computed positions do not have
        explaining(f"{type(model).__name__} cannot generate", "Check its generation_config.json"),
    ):
        made = model.generate(ids, attention_mask=mask, max_new_tokens=most, **options, **together)
        texts = tokenizer.batch_decode(made, skip_special_tokens=True)
        numbers = [None] * len(texts) if penalty is None else _scores(models, ids, mask, made, each, penalty)
    # A model can also generate bytes: keep each line on one line, without NUL.
    one_line = (re.sub(r"[\0\r\n]+", " ", text).strip() for text in texts)
    together = [Translation(text, score) for text, score in zip(one_line, numbers, strict=True)]
    return [together[i : i + each] for i in range(0, len(together), each)]


def _scores(
    models: Sequence[Any],
    ids: Int[Tensor, "row source"],
    mask: Int[Tensor, "row source"],
    made: Int[Tensor, "translation target"],
    each: int,
    penalty: float,
) -> list[float]:
    """Log-probability of each translation given its source, over its length to a power."""
    ends = torch.as_tensor(models[0].generation_config.eos_token_id, device=made.device).reshape(-1)
    tokens = made[:, 1:]
    ended = torch.isin(tokens, ends).cumsum(1)
    counts = (ended == 0) | ((ended == 1) & torch.isin(tokens, ends))  # the first end too, and nothing after it
    inputs = {"input_ids": ids.repeat_interleave(each, 0), "attention_mask": mask.repeat_interleave(each, 0)}
    several = [model(**inputs, decoder_input_ids=made[:, :-1]).logits.float().log_softmax(-1) for model in models]
    words = mean_log_probabilities(several).gather(-1, tokens[..., None])[..., 0]
    return ((words * counts).sum(1) / counts.sum(1) ** penalty).tolist()


def _joined(pieces: list[list[Translation]], *, scored: bool) -> list[Translation]:
    """The translations of a line, joined from those of its pieces, best with best."""
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return [Translation("", math.nan if scored else None)]
    return [
        Translation(" ".join(part.text for part in ranks), sum(part.score or 0.0 for part in ranks) if scored else None)
        for ranks in zip(*pieces, strict=True)
    ]


_SHOWN = 10  # sentences shown; further ones are counted
_LONGEST = 60  # characters of a text that is shown


@dataclass(frozen=True)
class Translation:
    """A translation and its score."""

    text: str  # the translation
    # log-probability in nats over ``tokens ** length_penalty``, the end counted; None if it was not asked for
    # (``scores=True``), NaN of an empty line, for which nothing was generated
    score: float | None = None
    left_out: int = 0  # truncated tokens of the source


@dataclass(frozen=True, repr=False)
class Translations(Sequence[tuple[Translation, ...]]):
    """The translations of a text: a sequence with an entry for each sentence. A notebook shows it as a table."""

    sources: tuple[str, ...]  #: the sentences
    #: for each sentence its translations, the best first; one of an empty sentence, which is empty
    candidates: tuple[tuple[Translation, ...], ...]
    signature: str = "{}"  #: JSON of model, text, settings and versions

    @property
    def attrs(self) -> dict[str, str]:
        """Attributes of a result."""
        return {"signature": self.signature}

    @property
    def texts(self) -> list[str]:
        """The best translation of each sentence."""
        return [several[0].text for several in self.candidates]

    @property
    def left_out(self) -> list[int]:
        """Number of truncated tokens of each sentence."""
        return [several[0].left_out for several in self.candidates]

    def __len__(self) -> int:
        return len(self.candidates)

    @overload
    def __getitem__(self, line: int) -> tuple[Translation, ...]: ...
    @overload
    def __getitem__(self, line: slice) -> Translations: ...
    def __getitem__(self, line: int | slice) -> tuple[Translation, ...] | Translations:
        """The translations of one sentence or several; the first sentence is 0."""
        if isinstance(line, slice):
            return replace(self, sources=self.sources[line], candidates=self.candidates[line])
        if not -len(self) <= line < len(self):
            raise IndexError(f"found sentence {line}; expected 0 to {len(self) - 1}")
        return self.candidates[line]

    def __repr__(self) -> str:
        shown = (f"{source} → {best}".strip() for source, best in self._shown())
        return "\n".join([self.account, *shown, *self._more])

    def _repr_html_(self) -> str:
        cell = '<td style="text-align: left">{}</td>'
        rows = (cell.format(html.escape(source)) + cell.format(html.escape(best)) for source, best in self._shown())
        table = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<p>{self.account}</p><table>{table}</table>" + "".join(f"<p>{more}</p>" for more in self._more)

    @property
    def account(self) -> str:
        """The numbers of translated and truncated sentences."""
        most = max(map(len, self.candidates), default=1)
        best = f", the best of up to {most} each" if most > 1 else ""
        tokens = [left_out for left_out in self.left_out if left_out]
        cut = f", {len(tokens)} of them truncated ({count(sum(tokens), 'token')} dropped)" if tokens else ""
        return f"{count(len(self), 'sentence')} translated{best}{cut}"

    @property
    def _more(self) -> list[str]:
        return [f"... and {len(self) - _SHOWN} more"] if len(self) > _SHOWN else []

    def _shown(self) -> Iterator[tuple[str, str]]:
        """The first sentences, each with its best translation and score (if computed)."""
        scored = any(several[0].score is not None for several in self.candidates)
        for source, (best, *_) in zip(self.sources[:_SHOWN], self.candidates, strict=False):
            number = "–" if best.score is None or math.isnan(best.score) else f"{best.score:.2f}"
            yield _on_a_line(source), (_on_a_line(best.text) + f" ({number})" * scored).strip()


def _on_a_line(text: str) -> str:
    """A text as one line of limited length."""
    shown = " ".join(text.split())
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1].rstrip() + "…"


_COLUMNS = tuple(
    Quantity(name, detail="data") for name in ("line", "rank", "source", "translation", "score", "tokens_cut")
)


def report(translations: Translations) -> Report:
    """The report of `translate`, best translations first."""
    rows = [
        {"line": line, "rank": rank, "source": source, "translation": one.text}
        | {"score": one.score, "tokens_cut": one.left_out}
        for line, (source, several) in enumerate(zip(translations.sources, translations, strict=True), 1)
        for rank, one in enumerate(several, 1)
    ]
    finding, read = Finding([f"{translations.account}."], "not tested"), count(len(translations), "sentence")
    table = Table("translations", "Translations", _COLUMNS, rows)
    return Report("Translations", read, finding, [table], translations, command="translate")
