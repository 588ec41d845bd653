"""How often does a verb claim something about a model that has learned nothing?

    python benchmarks/claims.py                          # writes the table in docs/concepts/statistics.md
    python benchmarks/claims.py --verbs patch edges      # prints some rows, and every claim
    python benchmarks/claims.py --families gpt2 t5 --seeds 1

Models of eight families are initialised at random, as transformers initialises them and with every matrix ten times as
large, so that attention is peaked. Texts are words drawn at random, each text a document. A **claim** is a sentence of
the finding that does not say that there is nothing (`NOTHING`) and does not only describe (`DESCRIBES`); a sentence in
new words counts until it is listed. A **mark** is a cell that is printed as significant, in any table.

Where a verb claims or marks something, it runs on three times as many other texts. **Again** counts the marks that are
there **again** (or the claims without a mark). A false one is there again in 5% or less, a property of the random
weights in most.
"""

from __future__ import annotations

import argparse
import os
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
import transformers as tr
import xarray as xr
from rich.console import Console

import attnscope
import attnscope_cards
import attnscope_circuits
from attnscope.bundled import MODEL
from attnscope.report.schema import Report
from attnscope.results.reports import report_of
from attnscope_relations import relations

PAGE = Path(__file__).parents[1] / "docs" / "concepts" / "statistics.md"
TOKENIZER = tr.AutoTokenizer.from_pretrained(MODEL)
LAYERS, HEADS, WIDTH = 2, 4, 32
DOCUMENTS, WINDOW, PAIRS = 20, 32, 12
SIZES = {"as initialised": 1.0, "ten times as large": 10.0}
_IDS = {"vocab_size": len(TOKENIZER), "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
_WIDE = {
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 256,
    **_IDS,
}
FAMILIES: dict[str, Callable[[], tr.PreTrainedModel]] = {
    "gpt2": lambda: tr.GPT2LMHeadModel(
        tr.GPT2Config(n_positions=256, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, **_IDS)
    ),
    "llama": lambda: tr.LlamaForCausalLM(tr.LlamaConfig(num_key_value_heads=2, **_WIDE)),
    "gemma2": lambda: tr.Gemma2ForCausalLM(tr.Gemma2Config(head_dim=8, num_key_value_heads=2, **_WIDE)),
    "olmo2": lambda: tr.Olmo2ForCausalLM(tr.Olmo2Config(**_WIDE)),
    "gpt_neox": lambda: tr.GPTNeoXForCausalLM(tr.GPTNeoXConfig(**_WIDE)),
    "bloom": lambda: tr.BloomForCausalLM(tr.BloomConfig(hidden_size=WIDTH, n_layer=LAYERS, n_head=HEADS, **_IDS)),
    "bert": lambda: tr.BertForMaskedLM(tr.BertConfig(**_WIDE)),
    "t5": lambda: tr.T5ForConditionalGeneration(
        tr.T5Config(d_model=WIDTH, d_kv=8, d_ff=48, num_layers=1, num_heads=HEADS, decoder_start_token_id=0, **_IDS)
    ),
}

#: Sentences that say that there is nothing, or that give numbers and conclude nothing.
NOTHING = re.compile(
    r"\b[Nn]one of \d+|\b0 of \d+|\bNo (head|edge|component|pair)|nothing significant|not significant|no significant"
    r"|[Nn]either|does not show|do not show|no better than guessing|there are no shares"
    r"|no test|not tested|not more similar than chance|no head has one"
)
DESCRIBES = re.compile(
    r"^(The loss is|Mean logit|The parts add up|The largest weight|In this head|Rank correlation of estimates"
    r"|Strongest composition|Heads are matched by number"
    r"|Answer minus wrong answer|Check \d+ pairs|Shares of the difference|Area under the curve"
    r"|[a-z]+: .* documents\)\.$)"
)
#: Columns of a table that say what a row is about.
ABOUT = ("layer", "head", "component", "statistic", "by", "kind", "value", "sender", "receiver", "from", "to", "set")
BEYOND = re.compile(r"(\d+) \((\d+)\)")  # heads with a role, and the most with initialised or shuffled weights


@dataclass(frozen=True)
class Run:
    """A random model with random texts."""

    family: str
    size: str
    seed: int
    other: bool = False  # texts, three times as many

    @property
    def random(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, [*FAMILIES].index(self.family)] + [1] * self.other)

    @property
    def documents(self) -> int:
        return 3 * DOCUMENTS if self.other else DOCUMENTS

    def model(self, more: int = 0) -> tr.PreTrainedModel:
        torch.manual_seed(self.seed + more)
        model = FAMILIES[self.family]().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(SIZES[self.size])
        return model

    def texts(self) -> list[str]:
        """Each is one full window of tokens that are words, between two special tokens."""
        random = self.random
        return ["".join(random.choice(words(), WINDOW - 2)).strip() for _ in range(self.documents)]

    @property
    def reading(self) -> dict[str, Any]:
        """Options of every verb that reads texts."""
        targets = {"targets": self.texts()[::-1]} if self.family == "t5" else {}
        return {"tokenizer": TOKENIZER, "window": WINDOW, "limit": self.documents, **targets}

    def pairs(self) -> list[dict[str, str]]:
        """Pairs of texts that differ in two words; which of two words should follow is drawn at random."""
        random, found = self.random, list[dict[str, str]]()
        for _ in range(3 * PAIRS if self.other else PAIRS):
            clean, other = (random.choice(words(), 7) for _ in range(2))
            corrupted = [*clean[:1], *other[1:3], *clean[3:]]
            answer, wrong = random.choice(words(), 2, replace=False).tolist()
            end = "<mask>." if self.family == "bert" else ""
            texts = {"clean": "".join(clean) + end, "corrupted": "".join(corrupted) + end}
            found.append(texts | {"answer": answer, "wrong": wrong})
        return found

    @property
    def heads(self) -> list[tuple[int, int]]:
        return [*product(range(3 if self.family == "t5" else LAYERS), range(HEADS))]


@cache
def words() -> list[str]:
    """Tokens that are a word, or the beginning of one, with its space."""
    return sorted(token.replace("▁", " ") for token in TOKENIZER.get_vocab() if re.fullmatch("▁[a-z]{2,}", token))


def _by(run: Run) -> xr.Dataset:
    texts = [{"text": text, "side": "ab"[number % 2]} for number, text in enumerate(run.texts())]
    return attnscope.scan(run.model(), texts, field="text", by="side", **run.reading)


def _diff(run: Run) -> xr.Dataset:
    """Two models, exchanged in half of the texts, drawn at random."""
    scans = [attnscope.scan(run.model(more), run.texts(), **run.reading) for more in (0, 1000)]
    exchanged = xr.DataArray(run.random.random(scans[0].sizes["window"]) < 0.5, dims="window")

    def mixed(one: xr.Dataset, other: xr.Dataset) -> xr.Dataset:
        measured = [name for name, of in one.items() if "window" in of.dims and of.dtype.kind == "f"]
        return one.assign({name: one[name].where(~exchanged, other[name]) for name in measured})

    return attnscope.diff(mixed(*scans), mixed(*scans[::-1]), heads="number")


class Trial(NamedTuple):
    """A verb as it is called, and the share of models without a true effect in which it may claim one."""

    run: Callable[[Run], Any]
    promised: str
    verb: str = ""  # where it is not the name


TRIALS = {
    "scan": Trial(lambda run: attnscope.scan(run.model(), run.texts(), **run.reading), "1%, if rows are independent"),
    "scan --by": Trial(_by, "5%", "scan"),
    "generate": Trial(
        lambda run: attnscope.generate(
            run.model(), run.texts(), tokenizer=TOKENIZER, new_tokens=8, window=WINDOW, limit=run.documents
        ),
        "5%",
    ),
    "roles": Trial(lambda run: attnscope.roles(run.model(), run.texts(), **_plain(run)), "no test"),
    "card --answers --limits": Trial(
        lambda run: attnscope_cards.card(run.model(), run.texts(), answers=True, limits=True, **_plain(run)),
        "5%",
        "card",
    ),
    "examples": Trial(
        lambda run: attnscope.examples(run.model(), run.texts(), heads=run.heads, k=run.documents, **run.reading), "5%"
    ),
    "relations": Trial(
        lambda run: relations(run.model(), run.texts(), query="/[a-c].*/", key="/[s-z].*/", **_plain(run)), "5%"
    ),
    "explain": Trial(lambda run: attnscope.explain(run.model(), run.texts(), **run.reading), "1%; 5%"),
    "circuits": Trial(
        lambda run: attnscope_circuits.circuits(run.model(), tokenizer=TOKENIZER), "5% of each of 3 scores"
    ),
    "attribute": Trial(lambda run: attnscope_circuits.attribute(run.model(), run.texts(), **run.reading), "5%"),
    "intervene": Trial(lambda run: attnscope.intervene(run.model(), run.texts(), **run.reading), "5%"),
    "patch": Trial(lambda run: attnscope.patch(run.model(), run.pairs(), tokenizer=TOKENIZER, steps=2), "5%"),
    "edges": Trial(
        lambda run: attnscope_circuits.edges(run.model(), run.pairs(), tokenizer=TOKENIZER, method="eap", draws=1), "5%"
    ),
    "diff": Trial(_diff, "5%"),
}


def _plain(run: Run) -> dict[str, Any]:
    return {name: value for name, value in run.reading.items() if name != "targets"}


def claims(report: Report) -> dict[str, str]:
    """Sentences of a finding that claim something, one of a kind, by the sentence without numbers."""
    found: dict[str, str] = {}
    for sentence in report.finding.sentences:
        roles = BEYOND.findall(sentence)
        beyond = any(int(heads) > int(control) for heads, control in roles)
        if beyond if roles else not (NOTHING.search(sentence) or DESCRIBES.search(sentence)):
            found.setdefault(re.sub(r"\d+", "", sentence), sentence)
    return found


def marks(report: Report) -> set[tuple[Any, ...]]:
    """Names of quantities that a table marks as significant, each with what its row is about."""
    return {
        (one.significant, *(row.get(name) for name in ABOUT))
        for table in report.tables
        for one in table.quantities
        for row in table.rows
        if one.significant and row.get(one.significant)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verbs", nargs="+", choices=TRIALS, default=[*TRIALS])
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=[*FAMILIES])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=[*SIZES])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    tr.logging.set_verbosity_error()
    torch.set_num_threads(1)
    console, lines = Console(width=200, highlight=False), list[str]()
    for name in arguments.verbs:
        began, trial, cells = time.process_time(), TRIALS[name], [name, TRIALS[name].promised]
        for size in arguments.sizes:
            runs = [Run(family, size, seed) for family in arguments.families for seed in range(arguments.seeds)]
            tried = claiming = marking = again = facts = 0
            for run in runs:
                try:
                    report = report_of(trial.verb or name, trial.run(run))
                except Exception as error:  # noqa: BLE001 the next model may end otherwise
                    console.print(f"{name}, {run}: {type(error).__name__}: {error}", markup=False)
                    continue
                said, marked = claims(report), marks(report)
                tried, claiming, marking = tried + 1, claiming + bool(said), marking + bool(marked)
                for one in (*said.values(), *sorted({name for name, *_ in marked})):
                    console.print(f"{name}, {run.family}, {size}, {run.seed}: {one}", markup=False)
                if (said or marked) and name != "circuits":  # it reads no texts
                    other = report_of(trial.verb or name, trial.run(replace(run, other=True)))
                    first, second = (marked, marks(other)) if marked else (said.keys(), claims(other).keys())
                    again, facts = again + len(first & second), facts + len(first)
            cells += [f"{claiming} of {tried}", f"{marking} of {tried}"] if tried else ["–", "–"]
            cells.append(f"{again} of {facts}" if facts else "–")
        lines.append(f"| {' | '.join(cells)} |")
        console.print(f"{lines[-1]}  ({time.process_time() - began:.0f} s)", markup=False)
    if [arguments.verbs, arguments.families, arguments.sizes] != [[*TRIALS], [*FAMILIES], [*SIZES]]:
        return
    before, rest = PAGE.read_text(encoding="utf-8").split("<!-- claims -->\n", 1)
    titles = [f"{what}, {size}" for size in SIZES for what in ("claims", "marks", "again")]
    table = [f"| command | nominal error rate | {' | '.join(titles)} |", "|" + "---|" * (2 + len(titles)), *lines]
    text = "\n".join([f"{before}<!-- claims -->", *table, f"<!-- end -->{rest.split('<!-- end -->', 1)[1]}"])
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
