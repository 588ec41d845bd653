"""The head that aligns best on the generated task, whose gold alignments are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from attnscope.lineage.align import align
from attnscope.lineage.data import encode_pairs
from attnscope.lineage.links import AlignmentScore, Baselines, Gold
from attnscope.lineage.parallel_text import TaskText


@dataclass(frozen=True)
class AligningHead:
    """A head and how well it aligns."""

    # layer and head of the decoder, from 0: the one with the lowest error rate on every second sentence pair
    layer: int
    head: int
    score: AlignmentScore  # its links against the gold ones, on the other sentence pairs
    baselines: Baselines  # what the diagonal and links to random words would give on those

    def rates(self) -> dict[str, float]:
        """Error rate with its interval, precision, recall and, beside them, what needs no model, by name."""
        return {
            "error_rate": self.score.error_rate,
            "precision": self.score.precision,
            "recall": self.score.recall,
            "diagonal": self.baselines.diagonal,
            "chance": self.baselines.chance,
            "chance_level": self.baselines.chance_level,
            "error_rate_lower": self.baselines.lower,
            "error_rate_upper": self.baselines.upper,
        }


def attends(model: PreTrainedModel) -> bool:
    """Whether the decoder looks at the source; with a fixed vector it does not."""
    return getattr(model.config, "attention", None) != "none"


def best_aligning_head(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: TaskText
) -> AligningHead | None:
    """Find the head that aligns the generated task best, by forced decoding against the gold links."""
    short = encode_pairs(tokenizer, text, longest=int(tokenizer.model_max_length)).index
    if not attends(model) or len(short) < 2:  # noqa: PLR2004 one to choose on, one to judge on
        return None
    choice = align(model, *_part(text, short[::2]), tokenizer=tokenizer, gold=_gold(text, short[::2]))
    judged = align(
        model,
        *_part(text, short[1::2]),
        tokenizer=tokenizer,
        gold=_gold(text, short[1::2]),
        layer=choice.layer,
        head=choice.head,
    )
    if judged.score is None or judged.baselines is None or choice.layer is None or choice.head is None:
        return None
    return AligningHead(choice.layer, choice.head, judged.score, judged.baselines)


def _part(text: TaskText, short: Sequence[int]) -> tuple[list[str], list[str]]:
    return [text.source[i] for i in short], [text.target[i] for i in short]


def _gold(text: TaskText, short: Sequence[int]) -> Gold:
    links = [frozenset(text.alignments[i]) for i in short]
    return Gold(links, links)
