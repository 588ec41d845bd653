"""Translation scores: BLEU and chrF with signatures, intervals and paired tests, also by length."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import xarray as xr
from scipy import special

from attnscope.report.reads import reads
from attnscope.report.schema import Finding, Quantity, Report, Row, Table, rows_of
from attnscope.statistics.intervals import FEW, SKEWED, long_tail, outside, reach
from attnscope.statistics.units import LEAST
from attnscope.support.checks import shortly, unexpected
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count as counted
from attnscope.support.numbers import percent
from attnscope_lineage.parallel_text import Lines, has_entries, is_unsegmented, lines_of_text

MOST_RESAMPLES = 1_000_000
_ROUNDING = 1e-9  # points of a score
OF_NO_SPACES = frozenset({"ja-mecab", "zh", "char"})
_TOKENIZER_OF = {"ja": "ja-mecab", "zh": "zh"}


def several_texts(texts: Any, name: str) -> list[Lines]:
    """One or several lists of sentences; a list of strings is one list of sentences."""
    if isinstance(texts, str | Path):
        return [texts]
    if not has_entries(texts):
        raise unexpected("sentences, a pathlib.Path, or several of these", texts, name)
    several = list(texts)
    if not several:
        raise AttnscopeError(f"{name} is empty; expected sentences, a pathlib.Path, or several of these")
    return [several] if all(isinstance(line, str) for line in several) else several


def systems_of(hypotheses: Any) -> dict[str, Sequence[str]]:
    if isinstance(hypotheses, Mapping):
        return {str(name): lines_of_text(text, str(name)) for name, text in hypotheses.items()}
    texts = several_texts(hypotheses, "hypotheses")
    paths = [text for text in texts if isinstance(text, Path)]
    short = len({path.name for path in paths}) == len(paths)
    named: dict[str, Sequence[str]] = {}
    for i, text in enumerate(texts):
        name = f"system {i + 1}"
        if isinstance(text, Path):
            name = "standard input" if str(text) == "-" else text.name if short else str(text)
        if name in named:
            raise AttnscopeError(f"{name} is listed twice: list each system once")
        named[name] = lines_of_text(text, name)
    return named


def buckets(sources: Sequence[str] | None, limits: Sequence[int], length_in: str) -> dict[str, np.ndarray]:
    """The sentences in each bucket, by the bucket's name."""
    if not limits:
        return {}
    if sources is None:
        raise AttnscopeError("scores by length need the source sentences: pass texts (--text FILE)")
    if list(limits) != sorted(set(limits)) or limits[0] < 1:
        raise AttnscopeError(f"found limits of length {list(limits)}; expected positive, increasing numbers")
    words = [line.split() for line in sources]
    lengths = np.array([len(parts if length_in == "words" else "".join(parts)) for parts in words])
    if length_in == "words" and lengths.max() <= 1 < max(map(len, sources)):
        raise AttnscopeError(
            "no source sentence has a space, so each has length 1: tokenise them, or count characters with "
            "--length-in characters"
        )
    names = [f"{low + 1}-{high}" for low, high in zip([0, *limits], limits, strict=False)] + [f"{limits[-1] + 1}+"]
    bucket = np.searchsorted(limits, lengths)
    return {name: np.flatnonzero(bucket == i) for i, name in enumerate(names)}


def tokenizer_for(language: str | None, references: list[list[str]]) -> str:
    if language in _TOKENIZER_OF:
        return _TOKENIZER_OF[language]
    if any(map(is_unsegmented, references)):
        unsupported = "" if language is None else f", and {shortly(language)} has no tokenizer here"
        raise AttnscopeError(
            f"the references have no spaces between words, which BLEU needs{unsupported}: set their language "
            "(--language ja or zh), or a tokenizer (--tokenize char)"
        )
    return "13a"


def bleu_metric(tokenize: str, *, lowercase: bool) -> Any:
    from sacrebleu.metrics.bleu import BLEU

    try:
        # force: tokenised text is the user's choice, which the signature records
        return BLEU(tokenize="none" if tokenize == "moses" else tokenize, lowercase=lowercase, force=True)
    except (ImportError, RuntimeError) as error:
        raise AttnscopeError("ja-mecab needs MeCab and its dictionary: pip install 'attnscope[ja]'") from error


def moses_tokenizer_of(language: str) -> Callable[[str], str]:
    from sacremoses import MosesTokenizer
    from sacremoses.corpus import NonbreakingPrefixes

    languages = NonbreakingPrefixes().available_langs
    if language not in languages:
        raise AttnscopeError(
            f"Moses has no rules for language {shortly(language)}: choose {', '.join(sorted(set(languages.values())))}"
        )
    tokenizer = MosesTokenizer(lang=language)
    return lambda line: str(tokenizer.tokenize(line, return_str=True, escape=False))


def additive_statistics(
    metric: Any, systems: list[Sequence[str]], references: list[list[str]], change: Callable[[str], str] | None
) -> list[np.ndarray]:
    """Additive statistics (sentence, statistic) of each system; references are processed once."""
    if change is not None:
        systems = [[change(line) for line in lines] for lines in systems]
        references = [[change(line) for line in lines] for lines in references]
    metric._ref_cache = metric._cache_references(references)  # noqa: SLF001 sacreBLEU's paired test does so
    return [
        np.array(metric._extract_corpus_statistics(lines, None), dtype=np.int64)  # noqa: SLF001
        for lines in systems
    ]


class CometMetric:
    """COMET (Rei et al. 2020) with statistics that add up: the sum of the scores of sentences, and their number.

    Its command scores, in an environment of its own: COMET needs an older transformers than attnscope.
    """

    def __init__(self, name: str, sources: Sequence[str], command: str) -> None:
        self._name, self._sources, self._command = name, sources, command
        self.signature = f"model:{Path(name).name}"

    def statistics(self, hypotheses: Sequence[str], references: list[list[str]]) -> np.ndarray:
        """Score of each sentence, its mean over references, and 1: (sentence, statistic)."""
        scores = np.mean([self._scores(hypotheses, lines) for lines in references], 0)
        return np.column_stack([scores, np.ones(len(scores))])

    def _scores(self, hypotheses: Sequence[str], reference: Sequence[str]) -> list[float]:
        import torch  # heavy

        texts = {"source": self._sources, "hypothesis": hypotheses, "reference": reference}
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with tempfile.TemporaryDirectory() as folder:
            files = {name: Path(folder, name) for name in (*texts, "scores.json")}
            for name, lines in texts.items():
                files[name].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            options = {"-s": files["source"], "-t": files["hypothesis"], "-r": files["reference"]}
            options |= {"--model": self._name, "--gpus": int(torch.cuda.is_available())}
            options["--to_json"] = files["scores.json"]
            call = [self._command, *(str(part) for option in options.items() for part in option), "--quiet"]
            ended = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
            if ended.returncode or not files["scores.json"].exists():
                reason = (ended.stderr.strip() or ended.stdout.strip()).rpartition("\n")[-1]
                raise AttnscopeError(
                    f"comet-score with the model {self._name} failed: {reason}. Pass the file of its checkpoint, or a "
                    "name of COMET's"
                )
            (sentences,) = json.loads(files["scores.json"].read_text(encoding="utf-8")).values()
        return [sentence["COMET"] for sentence in sentences]

    def _compute_score_from_stats(self, statistics: Sequence[float]) -> SimpleNamespace:  # the name of sacreBLEU
        total, count = statistics
        return SimpleNamespace(score=100 * total / count)


def comet_metric(name: str, sources: Sequence[str] | None) -> CometMetric:
    command = shutil.which("comet-score")
    if command is None:
        raise AttnscopeError(
            "found no command comet-score: pipx install unbabel-comet, which has an environment of its own, or leave "
            "out comet (--comet)"
        )
    if sources is None:
        raise AttnscopeError("COMET reads the sentences that were translated: pass texts (--text FILE)")
    return CometMetric(name, sources, command)


def compare_systems(
    metrics: dict[str, Any], statistics: dict[str, list[np.ndarray]], chosen: np.ndarray, resamples: int, seed: int
) -> xr.Dataset:
    """Score the chosen sentences of all systems and test each system against the first."""
    names = ("score", "lower", "upper", "p_value", "difference", "difference_lower", "difference_upper")
    shape = (len(statistics["BLEU"]), len(metrics))
    out = {name: np.full(shape, np.nan) for name in names}
    if len(chosen):
        for column, (name, metric) in enumerate(metrics.items()):
            parts = [part[chosen] for part in statistics[name]]
            out["score"][:, column] = [_value(metric, part.sum(0)) for part in parts]
            if resamples and len(chosen) >= LEAST:
                drawn, generator = np.empty((len(parts), resamples)), np.random.default_rng(seed)
                whole, count = np.stack(parts).astype(np.float64), len(chosen)
                for i in range(resamples):  # sacreBLEU's draws, the same for all systems, one at a time to save memory
                    times = np.bincount(generator.choice(count, size=count, replace=True), minlength=count)
                    drawn[:, i] = [_value(metric, part) for part in times.astype(np.float64) @ whole]
                _intervals(out, column, drawn, count)
        out["difference"][1:] = out["score"][1:] - out["score"][:1]
    return xr.Dataset({name: (("system", "metric"), values) for name, values in out.items()})


def _intervals(out: dict[str, np.ndarray], column: int, drawn: np.ndarray, sentences: int) -> None:
    """Fill in intervals and p-values from the scores of all resamples, (system, resample)."""
    resamples, stretch = drawn.shape[1], np.sqrt(sentences / (sentences - 1))
    ordered, cut = np.sort(drawn, axis=1), round(resamples * outside(sentences))
    unbiased = np.sqrt(sentences * (sentences - 1)) / (sentences - 2)
    apart = drawn - drawn.mean(1, keepdims=True)
    third, spread = (apart**3).mean(1), (apart**2).mean(1) ** 1.5
    skewness = unbiased * np.divide(third, spread, out=np.zeros_like(third), where=np.ptp(drawn, axis=1) > _ROUNDING)
    score = out["score"][:, column]
    low, high = ordered[:, cut], ordered[:, resamples - cut - 1]
    error, quantile = drawn.std(1) * stretch, special.stdtrit(sentences - 1, 0.975)
    left, right = (error * long_tail(quantile, np.maximum(sign * skewness, 0)) for sign in (-1, 1))
    if sentences >= FEW:  # with fewer, coverage is too low if quality is very skewed
        left, right = np.fmin(low, score - left), np.fmax(high, score + right)
        out["lower"][:, column] = np.where(skewness < -SKEWED, left, low).clip(0)
        out["upper"][:, column] = np.where(skewness > SKEWED, right, high).clip(max=100)
    gaps = drawn[1:] - drawn[:1]
    away = np.sort(np.abs(gaps - gaps.mean(1, keepdims=True)), axis=1) * reach(sentences) / reach()
    difference = out["score"][1:, column] - out["score"][0, column]
    out["p_value"][1:, column] = ((away >= np.abs(difference)[:, None]).sum(1) + 1) / (resamples + 1)
    most = int(0.05 * (resamples + 1) + 1e-9) - 1  # resamples beyond the difference at p = 0.05
    half = away[:, resamples - 1 - most] if most >= 0 else np.nan
    out["difference_lower"][1:, column], out["difference_upper"][1:, column] = (difference - half, difference + half)


def _value(metric: Any, total: np.ndarray) -> float:
    return float(metric._compute_score_from_stats(total.tolist()).score)  # noqa: SLF001


NO_ATTENTION = "no attention"  # for a system without heads
_ENDS = ("lower", "upper", "difference", "difference_lower", "difference_upper", "p_value")
_EFFORT = (
    Quantity("parameters", unit="count", detail="page"),
    Quantity("training_seconds", "training, s", "count", detail="page"),
    Quantity("training_tokens_per_second", "train tokens/s", "count", "target tokens in training, median over the log"),
    Quantity("sentences_per_second", "lines/s", "rate", "while translating this text"),
    Quantity(
        "alignment_error_rate",
        "AER",
        "percent",
        low="alignment_error_rate_lower",
        high="alignment_error_rate_upper",
        interval=True,
    ),
)
#: Further quantities of a system, for JSON and CSV.
_MORE = ("training_tokens", "alignment_diagonal", "alignment_chance", "alignment_chance_level", "sentences_cut")
_ONCE, _OF_SEEDS = "Each system was trained once.", "Scores are of the first seed."
_CARE = {
    _ONCE: "Intervals and p-values cover sentences, not training seeds. Sizes and training "
    "times differ too: see the table.",
    "BLEU by length is corpus BLEU over the sentences of a bucket.": "Few sentences give wide intervals.",
    "Attention was not trained to align.": "The output may depend on other words.",
}


_SENTENCE = (Quantity("system"), Quantity("text", unit="text"))


def score_report(scores: xr.Dataset) -> Report:
    """The report of `attnscope_lineage.score`."""
    sentences, names = int(scores.attrs["sentences"]), [str(name) for name in scores["system"].values]
    notes = [scores.attrs[name] for name in ("note",) if name in scores.attrs]
    if sentences < FEW:
        notes.append(f"Intervals of scores need {FEW} or more sentences.")
    if sentences < LEAST:
        notes.append(f"Tests need {LEAST} or more sentences.")
    return Report(
        command="score",
        title="Scores of translations",
        model=", ".join(names),
        read=counted(sentences, "sentence"),
        finding=Finding(_sentences(scores), _certainty(scores)),
        tables=_tables(scores, ()),
        result=scores,
        notes=[*notes, *_signatures(scores.attrs["signature"])],
    )


@reads("compare")
def report(tree: xr.DataTree) -> Report:
    """The report of a comparison of systems."""
    scores, curves = tree["scores"].to_dataset(), tree["curves"].to_dataset()
    names = [str(name) for name in scores["system"].values]
    along = [str(key) for key, values in curves.data_vars.items() if values.dims == ("system", "validation")]
    lines = rows_of({key: curves[key] for key in along}, curves["updates"])
    columns = [Quantity(str(name), detail="data") for name in ("system", *along)]
    seeds = curves.sizes["seed"]
    sentence = tree["alignment"].to_dataset()
    sides = {"source": sentence["source"], "reference": sentence["target"]}
    texts: list[Row] = [{"system": name, "text": " ".join(map(str, words.values))} for name, words in sides.items()]
    texts += [{"system": name, "text": str(sentence["translation"].sel(system=name).item())} for name in names]
    sentences = [*_sentences(scores), *_by_length(scores), *_sooner(curves)]
    notes = [_error_rate_note(scores)] if "alignment_error_rate" in scores else []
    gradients = tree["gradients"].to_dataset()
    rows = rows_of({str(name): values for name, values in gradients.items()}, gradients["share"])
    return Report(
        title=f"Translation systems: {', '.join(names)}",
        model=", ".join(names),
        read=counted(int(scores.attrs["sentences"]), "sentence"),
        finding=Finding(sentences, _certainty(scores), headline=_headline(scores)),
        tables=[
            *_tables(scores, _EFFORT),
            Table("sentence", f"One sentence: line {sentence.attrs['line']}", _SENTENCE, texts, terminal=0),
            Table("gradients", "Gradient of the loss by source position", _GRADIENTS, rows, terminal=0),
            Table("learning_curves", "Learning curves", columns, lines, terminal=0, page=0),
        ],
        result=tree,
        notes=[*notes, *_cut_sentences(scores), *_signatures(scores.attrs["signature"])],
        care={_OF_SEEDS if seeds > 1 and name == _ONCE else name: why for name, why in _CARE.items()},
    )


def _sooner(curves: xr.Dataset) -> list[str]:
    """Which system learns sooner, over seeds, where all were validated after the same updates."""
    updates = curves["updates"].values
    if curves.sizes["seed"] == 1 or not np.array_equal(updates, np.broadcast_to(updates[:1], updates.shape)):
        return []
    first, *others = curves["system"].values.tolist()
    sentences: list[str] = []
    for name in others:
        at = curves.sel(system=name)
        value, low, high = (float(at[f"difference{end}"]) for end in ("", "_lower", "_upper"))
        ends = f"{min(abs(low), abs(high)):.2f} to {max(abs(low), abs(high)):.2f}, {curves.sizes['seed']} seeds"
        if low <= 0 <= high:
            sentences.append(
                f"Neither {first} nor {name} learns sooner beyond chance: the validation loss over training differs by "
                f"{value:.2f} nats per token (95% interval {low:.2f} to {high:.2f}, {curves.sizes['seed']} seeds)."
            )
        else:
            sooner, later = (first, name) if value > 0 else (name, first)
            sentences.append(
                f"{sooner} learns sooner than {later}: its validation loss over training is {abs(value):.2f} nats per "
                f"token lower (95% interval {ends})."
            )
    return sentences


_GRADIENTS = (
    Quantity("system"),
    Quantity("tenth", "tenth of the source", "count"),
    Quantity("share", "share of the gradient", "percent", low="lower", high="upper", interval=True),
    Quantity("sentences", unit="count", detail="data"),
)


def _by_length(scores: xr.Dataset) -> list[str]:
    """BLEU of the shortest and the longest sentences for each system, and whether the intervals overlap."""
    bleu = scores.sel(metric="BLEU").isel(bucket=[0, -1])
    if scores.sizes["bucket"] == 1:
        return []
    trends: list[str] = []
    for name in bleu["system"].values:
        low, high, value = (bleu[f"{end}_by_length"].sel(system=name).values for end in ("lower", "upper", "score"))
        if not np.isnan(low).any():
            trend = f"{value[0]:.1f} and {value[1]:.1f} with {name}"
            trends.append(trend + " (their intervals overlap)" * bool((low <= high[::-1]).all()))
    first, last = bleu["bucket"].values
    many, more = scores["sentences"].values[[0, -1]]
    unit = scores.attrs["length_in"]
    sentence = f"BLEU of {many} sentences of {first} {unit} and of {more} of {last}: {', '.join(trends)}."
    return [sentence] if trends else []


def _sentences(scores: xr.Dataset) -> list[str]:
    bleu = scores.sel(metric=scores["metric"].values[0])
    return [
        f"{system}: {bleu['metric'].item()} {score:.1f}"
        + (f" (95% interval {low:.1f} to {high:.1f})" if math.isfinite(low) else "")
        + "."
        for system, score, low, high in zip(
            bleu["system"].values, *(bleu[name].values for name in ("score", "lower", "upper")), strict=True
        )
    ]


def _headline(scores: xr.Dataset) -> str:
    """The best system, and whether it differs from the first, or the first from the second best, beyond chance."""
    bleu = scores.sel(metric=scores["metric"].values[0])
    best, *others = np.argsort(-bleu["score"].values, kind="stable").tolist()
    name, score = str(bleu["system"].values[best]), float(bleu["score"].values[best])
    if not others:
        return f"{name}: {bleu['metric'].item()} {score:.1f}"
    rival, p = 0 if best else others[0], float(bleu["p_value"].values[best or others[0]])
    size = "< 0.001" if p < 0.001 else f"= {p:.3f}"  # noqa: PLR2004
    against = "" if math.isnan(p) else f" (compared with {bleu['system'].values[rival]}: p {size})"
    return f"{name} has the highest {bleu['metric'].item()}, {score:.1f}{against}"


def _certainty(scores: xr.Dataset) -> str:
    tested = bool(scores["p_value"].notnull().any())
    name = "p: paired bootstrap over sentences against the first system; scores of one training each"
    return name if tested else "not tested"


def _signatures(text: str) -> list[str]:
    return [f"{metric}|{signature}" for metric, signature in json.loads(text).items()]


def _tables(scores: xr.Dataset, effort: Sequence[Quantity]) -> list[Table]:
    metrics = [str(name) for name in scores["metric"].values]
    alone = [str(name) for name, values in scores.data_vars.items() if values.dims == ("system",)]

    def columns(ends: Sequence[str], of: str) -> dict[str, xr.DataArray | None]:
        """The arrays of each metric, by the names of their columns."""
        named = {f"_{end}" * (end != "score"): scores.get(f"{end}{of}") for end in ends}
        existing = {end: values for end, values in named.items() if values is not None}
        return {f"{name.lower()}{end}": values.sel(metric=name) for name in metrics for end, values in existing.items()}

    whole = columns(("score", *_ENDS), "")
    systems = rows_of({key: scores[key] for key in alone} | whole, xr.ones_like(scores["score"][:, 0], float))
    lengths: list[Row] = []
    if "bucket" in scores.dims:
        of_length = {"length": scores["bucket"], "sentences": scores["sentences"]}
        of_length |= columns(("score", "lower", "upper"), "_by_length")
        lengths = rows_of(of_length, xr.ones_like(scores["score_by_length"][:, 0], float))
    measured = [
        Quantity(key, name, "score", low=f"{key}_lower", high=f"{key}_upper", interval=not effort or name == "BLEU")
        for name, key in ((metric, metric.lower()) for metric in metrics)
    ]
    differences = [one for metric in metrics for one in _difference(metric)]
    more = [Quantity(name, detail="data") for name in _MORE if name in alone]
    tables = [Table("systems", "All systems", [Quantity("system"), *measured, *differences, *effort, *more], systems)]
    if lengths:
        title = f"By source length, {scores.attrs['length_in']}"
        words = [Quantity("system"), Quantity("length"), Quantity("sentences", unit="count"), *measured]
        tables.append(Table("lengths", title, words, lengths, least=f"{FEW} or more sentences", terminal=60))
    return tables


def _difference(metric: str) -> tuple[Quantity, Quantity]:
    name, in_table = f"{metric.lower()}_difference", metric == "BLEU"
    meaning = "difference from the first system"
    detail, low, high = "table" if in_table else "data", f"{name}_lower", f"{name}_upper"
    return (
        Quantity(name, "difference", "gain", meaning, detail, low=low, high=high, interval=True),
        Quantity(f"{metric.lower()}_p_value", "p", "p", "paired bootstrap over sentences", detail),
    )


def _error_rate_note(scores: xr.Dataset) -> str:
    """Explain the alignment error rates of a comparison, and give the controls."""
    text = (
        "AER: alignment error rate of the best head, on sentences not used to choose it, with its 95% interval over "
        "sentences."
    )
    diagonal, chance, level = (scores[f"alignment_{name}"] for name in ("diagonal", "chance", "chance_level"))
    if diagonal.isnull().all():
        return text
    shares = [percent(float(values.mean())) for values in (diagonal, chance, level)]
    controls = f"Controls: diagonal {shares[0]}, random words {shares[1]} (below {shares[2]} in 1 of 100)."
    return f"{text} {controls}"


def _cut_sentences(scores: xr.Dataset) -> list[str]:
    """The number of truncated sentences, by system."""
    return [
        f"{name}: {counted(int(cut), 'sentence')} longer than in training {'was' if cut == 1 else 'were'} truncated"
        for name, cut in zip(scores["system"].values, scores["sentences_cut"].values, strict=True)
        if cut
    ]
