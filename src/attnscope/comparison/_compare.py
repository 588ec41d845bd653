"""Comparing translation systems: trained alike, outputs on one text, laid side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from attnscope._arguments import typed
from attnscope.checks import BEAMS, THREADS, check_whole
from attnscope.comparison._curves import learning_curves, training_effort
from attnscope.comparison._outputs import SystemOutput, SystemOutputs
from attnscope.comparison._systems import System, check_untrained, read_systems
from attnscope.comparison._test_text import read_test_text
from attnscope.errors import AttnscopeError
from attnscope.progress import Progress, Tell, tell_nobody
from attnscope.store import (
    SUFFIX,
    OwnedFolder,
    Signature,
    explained,
    json_bytes,
    local_folder,
    packed,
)
from attnscope.training.config import TrainConfig, read_config
from attnscope.translation import Lines, ParallelText, TaskText
from attnscope.translation.evaluation import score

_SHOWN_WORDS = 24  # of each side of the sentence pair in the picture
_NODES = ("scores", "curves", "alignment")
_OF_ALIGNMENT = (  # of `AligningHead.rates`
    "error_rate",
    "error_rate_lower",
    "error_rate_upper",
    "precision",
    "recall",
    "diagonal",
    "chance",
    "chance_level",
)
_BUCKETS = 6  # of length, about as many as a curve needs


@typed
def compare(
    systems: Sequence[str | Path] | Mapping[str, str | Path | TrainConfig] | None = None,
    texts: Lines | None = None,
    *,
    targets: Lines | None = None,
    out: str | Path = "attnscope-comparison",
    join: int | None = None,
    by_length: Sequence[int] | None = None,
    length_in: str | None = None,
    line: int | None = None,
    beams: int = 5,
    tokenize: str | None = None,
    lowercase: bool | None = None,
    resamples: int = 1000,
    threads: int | None = None,
    device: str | None = None,
    progress: Tell | None = None,
) -> xr.DataTree:
    """Train systems where they are not trained yet, translate one text with all of them, and compare.

    Parameters
    ----------
    systems
        YAML files of settings (`TrainConfig`), each trained in ``out/systems/NAME``; folders that `attnscope train`
        made, taken as they are; or a mapping from names to these. None, the default, trains three that learn the
        generated task in a few minutes each: a recurrent model with one fixed vector, the same with additive attention,
        and a Transformer.
    texts, targets
        Sentences to translate and their right translations: lists of strings, or paths as `read_parallel` reads them.
        By default what `read_test_text` says: new sentences of the generated task, or the validation text that all
        systems share.
    out
        Folder of trainings (``systems``), translations and results. Given again, it goes on where it was stopped, and
        what is done is not done again.
    join
        Neighbouring pairs of the text joined into one, at most; by default as the systems were trained.
    by_length
        Upper limits of the buckets of source length, as in `attnscope.score`; by default about six from the text.
    length_in
        ``words`` or ``characters``; by default words where any sentence has a space.
    line
        Line of the sentence pair whose alignments are laid side by side, from 1; by default the longest of at most 24
        words a side.
    beams
        Translations followed at a time; 1 is greedy.
    tokenize, lowercase, resamples
        As in `attnscope.score`; by default tokenizer and case that the first system was validated with.
    threads, device
        For training and translating.
    progress
        Called with a `Progress` while it works: its name says what is done with which system.

    Returns
    -------
    xarray.DataTree
        Three nodes, which also lie in `out`, each as a file such as ``scores.npz``:

        ``scores``
            What `attnscope.score` gives, with the first system as the baseline; and by system ``parameters``,
            ``sentences_per_second`` (of translating), ``sentences_cut`` (longer than it was trained for),
            ``training_tokens_per_second`` (target tokens, median of the log), ``training_seconds``,
            ``training_tokens``; on the generated task ``alignment_error_rate``, ``alignment_precision`` and
            ``alignment_recall`` (see `best_aligning_head`), with ``alignment_error_rate_lower`` and
            ``alignment_error_rate_upper``, the interval over sentence pairs; beside them the error rates of links on
            the diagonal and to random words, ``alignment_diagonal`` and ``alignment_chance``, and what the latter go
            below in 1 of 100, ``alignment_chance_level``.
        ``curves``
            ``bleu`` and ``loss`` (nats per token) on the validation text ``(system, validation)``, with ``updates``,
            ``tokens`` (target tokens seen) and ``seconds`` at each.
        ``alignment``
            One sentence pair: ``weights (system, target_word, source_word)`` by forced decoding, NaN for a system
            without attention; ``read_from`` says from which heads; ``translation (system)``; ``gold`` where the right
            links are.

        Attributes: ``signature`` (JSON) and ``run``, the folder.

    Raises
    ------
    AttnscopeError
        For systems, files, texts and settings that do not fit: see the message.

    Examples
    --------
    >>> compare([])
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: there is no system to compare: give YAML files of settings, or trained folders
    """
    check_whole(1, line=line, join=join)
    check_whole(1, BEAMS, beams=beams)
    check_whole(1, THREADS, threads=threads)
    out = local_folder(out)
    asked = read_systems(systems, out)
    check_untrained(asked)
    text = read_test_text(asked, texts, targets, join=join)
    shown = _shown_pair(text, line)
    length_in = length_in or ("words" if any(" " in line for line in text.source) else "characters")
    limits = list(by_length or ()) or length_limits(text.source, length_in)
    validated = asked[0].config or read_config()

    def scored(hypotheses: dict[str, Sequence[str]], resamples: int) -> xr.Dataset:
        return score(
            hypotheses,
            text.target,
            texts=text.source,
            by_length=limits,
            length_in=length_in,
            tokenize=tokenize or validated.bleu_tokenizer,
            lowercase=validated.lowercase if lowercase is None else lowercase,
            resamples=resamples,
        )

    tell = progress or tell_nobody
    scored({"reference": text.target}, min(resamples, 0))  # refuses wrong settings before hours of training
    with OwnedFolder(out, "compare") as folder:
        every = SystemOutputs(folder, text, shown, beams, threads, device, tell)
        every.write_text()
        outputs = every.all(asked)
        tell(Progress("score", 0.99))
        scores = scored({name: output.lines for name, output in outputs.items()}, resamples)
        scores = scores.isel(bucket=np.flatnonzero(scores.sentences.values))  # those with sentences
        results = {
            "scores": scores.merge(_by_system(asked, outputs, text)),
            "curves": learning_curves({system.name: system.folder for system in asked}),
            "alignment": _alignment(text, shown, outputs),
        }
        signature = Signature(
            "compare",
            systems={name: output.signature for name, output in outputs.items()},
            scores=json.loads(scores.attrs["signature"]),
            settings={
                "baseline": asked[0].name,
                "by_length": limits,
                "length_in": length_in,
                "line": shown + 1,
            },
        )
        with explained(f"write to {out}", "Free some room and give the same command again"):
            folder.write(
                {f"{name}{SUFFIX}": packed(dataset) for name, dataset in results.items()}
                | {"run.json": json_bytes(signature.to_dict())}
            )
        tell(Progress("done", 1.0))
        return load_comparison(folder)


def load_comparison(folder: OwnedFolder) -> xr.DataTree:
    """The tree that `compare` returned, from its folder.

    Examples
    --------
    >>> import tempfile
    >>> from attnscope.store import Signature
    >>> with tempfile.TemporaryDirectory() as place, OwnedFolder(Path(place) / "run", "compare") as folder:
    ...     files = {f"{name}{SUFFIX}": packed(xr.Dataset({"line": number})) for number, name in enumerate(_NODES)}
    ...     folder.write({**files, "run.json": Signature("compare").to_json().encode()}, complete=True)
    ...     tree = load_comparison(folder)
    >>> {name: int(node["line"]) for name, node in tree.children.items()}
    {'scores': 0, 'curves': 1, 'alignment': 2}
    """
    tree = xr.DataTree.from_dict({name: folder.arrays(f"{name}{SUFFIX}") for name in _NODES})
    signature = Signature.from_json(folder.read("run.json").decode())
    tree.attrs = {"signature": signature.to_json(), "run": str(folder.path)}
    return tree


def length_limits(sources: Sequence[str], length_in: str = "words") -> list[int]:
    """Round limits of length that cut a text into about six buckets, the last one not empty.

    Examples
    --------
    >>> length_limits(["a " * n for n in range(1, 61)])
    [10, 20, 30, 40, 50]
    """
    lengths = [len(line.split()) if length_in == "words" else len("".join(line.split())) for line in sources]
    reach = float(np.quantile(lengths, 0.98))  # the very longest few do not make a bucket
    wide = next(
        step * 10**power for power in range(9) for step in (1, 2, 5) if reach <= _BUCKETS * step * 10**power
    )
    return [limit for limit in range(wide, wide * _BUCKETS, wide) if limit < reach] or [wide]


def _shown_pair(text: ParallelText, line: int | None) -> int:
    if line is not None:
        if not 1 <= line <= len(text):
            raise AttnscopeError(f"there is no line {line}: the text has lines 1 to {len(text)}")
        return line - 1
    sizes = [max(len(a.split()), len(b.split())) for a, b in zip(text.source, text.target, strict=True)]
    short = [i for i, size in enumerate(sizes) if size <= _SHOWN_WORDS]
    return max(short, key=lambda i: sizes[i]) if short else int(np.argmin(sizes))


def _by_system(systems: Sequence[System], outputs: dict[str, SystemOutput], text: ParallelText) -> xr.Dataset:
    """What there is of each system beside its scores."""
    efforts = [training_effort(system.folder) for system in systems]
    values: dict[str, list[float]] = {
        "parameters": [output.parameters for output in outputs.values()],
        "sentences_cut": [output.cut for output in outputs.values()],
        "sentences_per_second": [len(text) / output.seconds for output in outputs.values()],
        **{name: [effort[name] for effort in efforts] for name in efforts[0]},
    }
    if isinstance(text, TaskText):
        values |= {
            f"alignment_{name}": [output.aligned.get(name, np.nan) for output in outputs.values()]
            for name in _OF_ALIGNMENT
        }
    return xr.Dataset(
        {name: ("system", numbers) for name, numbers in values.items()}, {"system": list(outputs)}
    )


def _alignment(text: ParallelText, shown: int, outputs: dict[str, SystemOutput]) -> xr.Dataset:
    source, target = text.source[shown].split(), text.target[shown].split()
    blank = np.full((len(target), len(source)), np.nan)
    weights = [blank if output.weights is None else output.weights for output in outputs.values()]
    dataset = xr.Dataset(
        {
            "weights": (("system", "target_word", "source_word"), np.stack(weights)),
            "read_from": ("system", [output.read_from for output in outputs.values()]),
            "translation": ("system", [output.lines[shown] for output in outputs.values()]),
            "source": ("source_word", source),
            "target": ("target_word", target),
        },
        coords={"system": list(outputs)},
        attrs={"line": shown + 1},
    )
    if isinstance(text, TaskText):
        gold = np.zeros(blank.shape, dtype=bool)
        for at, by in text.alignments[shown]:
            gold[by, at] = True
        dataset["gold"] = (("target_word", "source_word"), gold)
    return dataset
