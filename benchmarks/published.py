"""Published numbers next to attnscope's, and known heads found again in trained models: one page.

python scripts/real_models.py ~/attnscope-models
python benchmarks/published.py ~/attnscope-models --data ~/attnscope-data --lens PEER/bin/python

Writes docs/project/published.md. `--only whisper` (or whisper-base, lists, heads, positions) measures one part again;
the other parts come from the folder of `--results`. What is not there is listed with the file or checkpoint that would
fill it.
`--data` holds published/*.tsv (score files of the authors) and speech/jfk.flac. The synthetic speech needs flite
(Debian). `--lens` is a Python with `pip install transformer_lens gguf accelerate`; without it, the peer is eager
attention of transformers.
"""

import argparse
import csv
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from scipy import stats
from scipy.io import wavfile
from scipy.signal import resample_poly

PAGE = Path(__file__).parents[1] / "docs/project/published.md"
TEXTS = Path(__file__).parents[1] / "src/attnscope/bundled/text"
Rows = list[list[str]]

# Lists of heads from their authors' files

SHARES = {
    "retrieval_heads": ("mean_score", 0.1, (3.22, 2.06, 4.20, 6.15, 5.18, 3.81, 4.25)),
    "duo_attention_gates": ("gate", 0.5, (43.6, 81.2, 81.2, 91.4, 95.3, 93.8)),
}
#: Wang et al. 2022: name movers, negative and backup ones, S-inhibition, induction, duplicate and previous token
_IOI = (
    "9.9 10.0 9.6 10.7 11.10 9.0 9.7 10.1 10.2 10.6 10.10 11.2 11.9 7.3 7.9 8.6 8.10 "
    "5.5 5.8 5.9 6.9 0.1 0.10 3.0 2.2 4.11"
)
IOI = _IOI.split()


def lists(options: argparse.Namespace) -> dict[str, Any]:
    """Shares of heads above the published thresholds, and the overlap of two lists of heads of GPT-2."""
    folder = options.data / "published"
    rows: Rows = []
    for name, (column, threshold, published) in SHARES.items():
        scores: dict[str, list[float]] = defaultdict(list)
        for line in read_table(folder / f"{name}.tsv"):
            scores[line["model"]].append(float(line[column]))
        for (model, values), share in zip(scores.items(), published, strict=True):
            count = sum(value >= threshold for value in values)
            low, high = stats.binomtest(count, len(values)).proportion_ci(method="wilson")
            ours = 100 * count / len(values)
            digits = 2 if share < 10 else 1
            what = f"{'retrieval heads' if column == 'mean_score' else 'retrieval gates'}, {model}"
            agrees = "yes" if abs(ours - share) <= 0.51 * 10**-digits else "no"
            cells = (
                f"{share:.{digits}f}%",
                f"{ours:.{digits}f}%",
                f"{100 * low:.1f} to {100 * high:.1f}%",
                f"{count}/{len(values)}",
            )
            rows.append([what, *cells, agrees])
    edges = {line["component"]: float(line["sum_of_absolute_outgoing_edge_scores"]) for line in
             read_table(folder / "ioi_eap_ig_outgoing.tsv")}  # fmt: skip
    heads = {name[1:].replace(".h", "."): value for name, value in edges.items() if name.startswith("a")}
    largest = sorted(heads, key=lambda head: heads[head], reverse=True)[: len(IOI)]
    shared, chance = len({*largest} & {*IOI}), stats.hypergeom(len(heads), len(IOI), len(IOI))
    area = auroc(np.array([heads[head] for head in heads]), np.array([head in IOI for head in heads]))
    missing = sorted({*IOI} - {*largest}, key=lambda head: heads[head], reverse=True)
    overlap = {"shared": shared, "of": len(IOI), "p": float(chance.sf(shared - 1)), "mean": float(chance.mean()),
               "range": [int(end) for end in chance.interval(0.95)], "auroc": area, "missing": missing}  # fmt: skip
    return {"rows": rows, "overlap": overlap}


def read_table(path: Path) -> list[dict[str, str]]:
    """Rows of a table with tabs."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def auroc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Share of pairs of a listed and another head in which the listed one has the larger score."""
    ranks = stats.rankdata(scores)
    count = int(positive.sum())
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(scores) - count)))


# Whisper: which heads of the decoder follow time?

VOICES, RATE, QUIET = ("slt", "rms", "awb"), 16_000, {"pau", "ssil"}
LETTERS = re.compile(r"[A-Za-z]+")
SET, LISTED = "the set of the synthetic sentences", "published"


def whisper(options: argparse.Namespace, name: str = "whisper-tiny.en") -> dict[str, Any]:
    """Score every head of the decoder by how well its cross-attention follows the words in time."""
    from attnscope_relations import relations

    folder = options.models / name
    with tempfile.TemporaryDirectory() as place:
        sentences = written(Path(place) / "sentences", utterances(options.utterances))
        readings = written(Path(place) / "readings", recordings(options.models / "librivox"))
        found = relations(folder, sentences, untrained=False, progress=tell)
        read = relations(folder, readings, untrained=False)
        model = transformers.WhisperForConditionalGeneration.from_pretrained(folder)
        model.generation_config.alignment_heads = np.argwhere(found.chosen.values).tolist()
        others = relations(model, readings, tokenizer=str(folder), untrained=False)
    errors = sets_of(read)
    errors[SET] = sets_of(others)[LISTED]
    return {
        "listed": np.argwhere(found.listed.values).tolist(),
        "chosen": np.argwhere(found.chosen.values).tolist(),
        "exchanged": found.exchanged_weight[0].values.tolist(),
        "sets": sets_of(found),
        "readings": {
            "count": read.sizes["window"],
            "seconds": 0.02 * int(read.length.sum()),
            "words": int(read.window_words.sum()),
            "sets": errors,
            **by_sound(read),
        },
        **by_sound(found),
    }


def by_sound(found: Any) -> dict[str, Any]:
    """Weight near the words and rank correlation, ``(sound, layer, head)``."""
    share = found.window_weight[:, 0] / found.window_queries[:, 0]
    return {"share": share.values.tolist(), "correlation": found.window_correlation.values.tolist()}


def sets_of(found: Any) -> dict[str, list[list[float]]]:
    """Of each set of heads the error in ms and its difference from that of the listed heads, with intervals."""
    names = [[f"set_{name}{end}" for end in ("", "_low", "_high")] for name in ("error", "difference")]
    return {
        str(one): [[float(found[name].sel(set=one)) for name in ends] for ends in names] for one in found.set.values
    }


def written(folder: Path, sounds: Iterator[tuple[str, np.ndarray, np.ndarray]]) -> Path:
    """A folder of sounds with their transcripts and the times of their words."""
    folder.mkdir()
    for number, (text, samples, words) in enumerate(sounds):
        path = folder / f"{number:03}.wav"
        wavfile.write(path, RATE, np.clip(32768 * samples, -32768, 32767).astype(np.int16))
        path.with_suffix(".txt").write_text(text, encoding="utf-8")
        said = re.findall(r"[A-Za-z']+", text)
        times = [
            {"word": word, "begin": begin, "end": end} for word, (begin, end) in zip(said, words.tolist(), strict=True)
        ]
        path.with_suffix(".json").write_text(json.dumps(times), encoding="utf-8")
        print(f"  {number + 1}: {text}", flush=True)
    return folder


def utterances(most: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Sentences of the bundled English texts, 8 to 16 words of letters alone: text, samples, and times of the words."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(TEXTS.glob("*.txt")) if not path.stem.endswith("-ja")]
    cut = [part.strip() for text in texts for part in re.split(r"(?<=[.?!])\s+", text)]
    chosen = [part for part in cut if re.fullmatch(r"[A-Z][A-Za-z ,]+\.", part) and 8 <= len(part.split()) <= 16]
    voices = cycle(VOICES)
    timed_ones = ((text, voice, words) for text in chosen if (words := timed(text, voice := next(voices))))
    for text, voice, words in islice(timed_ones, most):
        yield text, spoken(text, voice), np.array(words)


def recordings(folder: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Sentences read by a person: text, samples, and the times of the words by forced alignment."""
    for path in sorted(folder.glob("*.json")):
        said = json.loads(path.read_text(encoding="utf-8"))
        words = np.array([(word["b"], word["b"] + word["d"]) for word in said["w"] if word["t"] != "<sil>"])
        rate, samples = wavfile.read(path.with_suffix(".wav"))
        if rate != RATE or len(words) != len(said["t"].split()):
            raise ValueError(f"{path}: found {rate} Hz and {len(words)} aligned words of {len(said['t'].split())}")
        yield f"{said['t'].capitalize()}.", samples.astype(np.float32) / 2**15, words


def spoken(text: str, voice: str) -> np.ndarray:
    """Samples of a synthetic voice."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "speech.wav"
        flite("-voice", voice, "-t", text, "-o", str(path))
        rate, samples = wavfile.read(path)
    return resample_poly(samples.astype(np.float32) / 2**15, RATE, rate).astype(np.float32)


def timed(sentence: str, voice: str) -> list[tuple[float, float]]:
    """Begin and end of each word, by the synthesiser's durations; empty if it says a word otherwise alone."""
    said = [part.split(":") for part in flite("-voice", voice, "-psdur", "-t", sentence, "-o", "none").split()]
    phones, begin = [], 0.0
    for phone, end in said:
        if phone not in QUIET:
            phones.append((begin, float(end)))
        begin = float(end)
    alone = [flite("-voice", voice, "-ps", "-t", word, "-o", "none").split() for word in LETTERS.findall(sentence)]
    counts = [sum(phone not in QUIET for phone in word) for word in alone]
    if sum(counts) != len(phones):
        return []
    ends = np.cumsum(counts)
    return [(phones[last - count][0], phones[last - 1][1]) for last, count in zip(ends, counts, strict=True)]


def flite(*arguments: str) -> str:
    """Run the synthesiser."""
    if shutil.which("flite") is None:
        raise FileNotFoundError("flite, a speech synthesiser (Debian: apt install flite)")
    return subprocess.run(["flite", *arguments], check=True, capture_output=True, text=True).stdout


# Gemma: sinks, previous-token and induction heads

ROLES = ("previous_token", "first_token", "duplicate_token", "induction")


def heads(options: argparse.Namespace) -> dict[str, Any]:
    """Scores of four roles by attnscope, and the same patterns by a peer on the same tokens."""
    import attnscope
    from attnscope.capture.checkpoint import converted
    from attnscope.capture.load import load_model
    from attnscope.detection.probes import ordinary_tokens, repeated_probe
    from attnscope.read.encoded import texts_of, windows_of

    file = options.models / "gemma-3-270m/gemma-3-270m-q4_k_m.gguf"
    texts = [path for path in sorted(TEXTS.glob("*.txt")) if not path.stem.endswith("-ja")]
    length, limit = 128, 8
    out = options.results / "gemma-roles"
    found = attnscope.roles(file, texts, only=ROLES, window=length, limit=limit, out=out, progress=tell)
    loaded = load_model(file)
    windows = list(windows_of(texts_of(texts), loaded.tokenizer, length=length, limit=limit))[:limit]
    full = [list(each.ids) for each in windows if len(each) == length]
    words = ordinary_tokens(loaded.tokenizer, windows, loaded.model.get_input_embeddings().weight.shape[0])
    repeated = [list(each.ids) for each in repeated_probe(windows[0], words, length, 0, None).windows]
    begins = list(windows[0].special).index(False)
    task = {"folder": str(converted(file)), "text": full, "repeated": repeated, "begins": begins}
    del loaded
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "task.json"
        path.write_text(json.dumps(task), encoding="utf-8")
        command = [
            options.lens or sys.executable,
            "-P",
            __file__,
            "peer",
            str(path),
            *(["--lens"] if options.lens else []),
        ]
        subprocess.run(command, check=True)
        peer = json.loads((Path(folder) / "peer.json").read_text(encoding="utf-8"))
    numbers = {name: found[name].sel(role=list(ROLES)).values.tolist() for name in ("score", "low", "high")}
    controls = {name: found.control_score.sel(control=name, role=list(ROLES)).values.tolist() for name in
                found.control.values.tolist()}  # fmt: skip
    return {**numbers, "controls": controls, "peer": peer["scores"], "peer_name": peer["name"], "texts": len(full)}


def tell(progress: Any) -> None:
    """Print how far a run is."""
    print(f"  {progress.name} {progress.share:.0%}", flush=True)


def peer(path: Path, *, lens: bool) -> None:
    """Scores of the same patterns from whole matrices: by TransformerLens, or by transformers' eager attention."""
    task = json.loads(path.read_text(encoding="utf-8"))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        task["folder"], attn_implementation="eager", dtype=torch.float32
    ).eval()
    if lens:
        from transformer_lens.model_bridge import TransformerBridge

        bridge: Any = TransformerBridge.boot_transformers(task["folder"], hf_model=model, device="cpu")

    def patterns(ids: list[int]) -> list[torch.Tensor]:
        tokens = torch.tensor([ids])
        if not lens:
            return [each[0].double() for each in model(tokens, output_attentions=True, use_cache=False).attentions]
        cache = bridge.run_with_cache(tokens, names_filter=lambda name: name.endswith("hook_pattern"))[1]
        return [cache[f"blocks.{layer}.attn.hook_pattern"][0].double() for layer in range(bridge.cfg.n_layers)]

    scores: dict[str, list[Any]] = {name: [] for name in ROLES}
    with torch.no_grad():
        for ids in task["text"]:
            matrices = patterns(ids)
            scores["previous_token"].append(
                [each.diagonal(-1, -2, -1).sum(-1).div(len(ids)).tolist() for each in matrices]
            )
            scores["first_token"].append([each[..., 0].mean(-1).tolist() for each in matrices])
        for ids in task["repeated"]:
            period = (len(ids) - task["begins"]) // 2
            rows = torch.arange(task["begins"] + period, task["begins"] + 2 * period)
            matrices = patterns(ids)
            for name, after in (("duplicate_token", 0), ("induction", 1)):
                scores[name].append([each[:, rows, rows - period + after].mean(-1).tolist() for each in matrices])
    name = f"TransformerLens {version('transformer_lens')}" if lens else "eager attention of transformers"
    found = {"name": name, "scores": [np.mean(scores[role], 0).tolist() for role in ROLES]}
    (path.parent / "peer.json").write_text(json.dumps(found), encoding="utf-8")


# Yamamoto and Matsuzaki: learned positions

#: Two variable domains of human antibodies (trastuzumab's) and two public germline ones
ANTIBODIES = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS",
    "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPTFGQGTKVEIK",
    "EVQLLESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAVYYCAK",
    "DIQMTQSPSSLSASVGDRVTITCRASQSISSYLNWYQQKPGKAPKLLIYAASSLQSGVPSRFSGSGSGTDFTLTISSLQPEDFATYYCQQSYSTP",
)
MEASURES = (1, 2, 3, 4, 5, 15, 17, 18)  # rows of the papers' table that need no certain head and no other model
LEARNED = {
    "all-MiniLM-L6-v2": "text", "rxnfp/bert_pretrained": "reactions", "rxnfp/bert_ft": "reactions",
    "rxnfp/bert_ft_10k_25s": "reactions", "antiberty": "antibodies",
}  # fmt: skip


def positions(options: argparse.Namespace) -> dict[str, Any]:
    """The seed paper's measures of every model with a table of learned positions."""
    from reactions import reactions

    from attnscope.capture.load import load_model
    from attnscope.read.encoded import texts_of, windows_of
    from attnscope_yamamoto2023.rows import ROWS, paper_table

    drawn = [line for line, _ in zip(reactions(), range(40), strict=False)]
    english = "\n".join(path.read_text(encoding="utf-8") for path in sorted(TEXTS.glob("0[1-8]*.txt")))
    texts = {"text": [english], "reactions": [".".join(drawn)], "antibodies": list(ANTIBODIES)}
    known = {f"{row.number}": [row.quantity, row.published] for row in ROWS if row.number in MEASURES}
    models: dict[str, Any] = {}
    for name, kind in LEARNED.items():
        loaded = load_model(options.models / name)
        length = 64 if kind == "antibodies" else 128
        cut = windows_of(texts_of(texts[kind]), loaded.tokenizer, length=length, limit=None)
        windows = list(islice((each for each in cut if len(each) == length), 8))
        table = paper_table(loaded.model, windows)
        models[name] = {f"{number}": str(table.ours.sel(row=number).item()) for number in MEASURES}
        models[name]["read"] = f"{len(windows)} × {length} tokens"
        print(f"  {name}: {models[name]}", flush=True)
    return {"known": known, "models": models}


# The page

HEAD = """\
# Published numbers

Numbers that others published, next to those of attnscope, and known heads found again in public trained models.

```bash
pip install -c constraints.txt -e '.[gguf]' -e packages/attnscope-yamamoto2023 -e packages/attnscope-relations onnx
python scripts/real_models.py ~/attnscope-models
python benchmarks/published.py ~/attnscope-models --data ~/attnscope-data
```

The last command wrote this page ({versions}, CPU; TransformerLens by `--lens PEER/bin/python`). Heads are layer.head,
from 0. Intervals are 95%."""

WHISPER = """\
## Alignment heads of Whisper tiny.en

OpenAI published {count} of {heads} heads of the decoder that follow the sound in time: {listed}. attnscope ranks all
heads by their cross-attention, without that list (`attnscope relations`). The sentences are synthetic speech (flite,
three voices), so the times of all words are known; p is from a Mann-Whitney test over heads. The {readings}
recordings ({seconds:.0f} s, {words} words) are of one reader of LibriVox, with times by forced alignment (CMU Sphinx).

{scores}

{finding}

*Exchanged* is the same weight near the words of other sentences: what a constant pace gives.

{ranked}

Times of words by dynamic time warping, as in Whisper. The set with the smallest error on one half of the sentences is
scored on the other; that of all sentences is {chosen}.

{errors}

On the recordings, which are too few for intervals (rank correlation of the weights with those on sentences
{agreement:.2f}):

{read_errors}"""

BASE = """\
## Alignment heads of Whisper base

The multilingual model, measured alike. The published heads are {listed}, of {heads}; the chosen ones {chosen}.

{scores}

{finding}

{ranked}

{errors}

On the recordings, with the set of the synthetic sentences (rank correlation of the weights {agreement:.2f}):

{read_errors}"""

HEADS = """\
## Gemma 3 270M: sinks, previous-token and induction heads

No list of this model's heads is published. The peer, {peer}, measures the same patterns on the same tokens: {texts}
windows of 128 tokens of the bundled texts, and 16 repeated texts of random tokens. The weights have 4 bits. Controls
are the best heads with new random and with shuffled weights.

{table}"""

LISTS = """\
## Lists of heads from their authors' files

Retrieval heads (Wu et al. 2024, score of 0.1 or more) and retrieval gates (DuoAttention, 0.5 or more), recomputed from
the authors' files. Intervals are Wilson's, over heads.

{table}

The IOI paper (Wang et al. 2022) names {of} heads of GPT-2 small. Among the {of} heads with the largest outgoing edge
scores (EAP-IG), {shared} are on that list; by chance {mean:.1f} ({low} to {high}), p = {p:.0e}. AUROC {auroc:.3f}.
Listed but not among the 26: {missing}."""

POSITIONS = """\
## Learned positions: the measures of Yamamoto and Matsuzaki

The paper's measures of roberta-base, and of other models. Rows 1 to 5 are exact properties of the position table; the
others depend on the tokens read, and have no interval.

{table}"""

MISSING = """\
## What is missing

| published | needs |
|---|---|
| the other numbers of Yamamoto and Matsuzaki | checkpoints roberta-base and gpt2 (`explain --analyses yamamoto2023`) |
| retrieval scores by attnscope next to the authors' | Llama-2-7B-80K or Yi-6B-200K (`roles --only retrieval`) |
| DuoAttention's gates next to streaming and retrieval scores | Llama-3-8B-Instruct-Gradient-1048k |
| the IOI paper's heads by attnscope's own edges | checkpoint gpt2 |
| Whisper on many recordings with times of words marked by hand | a corpus such as TIMIT |"""


def page(found: dict[str, Any]) -> str:
    """The page of what was measured."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    parts = [write(found[name]) if name in found else missing(name) for name, (_, write) in PARTS.items()]
    return "\n\n".join([HEAD.format(versions=versions), *parts, MISSING]) + "\n"


def missing(name: str) -> str:
    """What replaces a part that was not measured."""
    return f"## {name.capitalize()}\n\nNot measured yet: `python benchmarks/published.py MODELS --only {name}`."


def table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [names, ["---"] * len(names), *rows])


def write_whisper(found: dict[str, Any], form: str = WHISPER) -> str:
    """Ranking of the heads of Whisper, and its agreement with the published list."""
    from attnscope.statistics.intervals import interval, outside

    listed = {tuple(head) for head in found["listed"]}
    share, order = np.array(found["share"]), np.array(found["correlation"])
    count, layers, heads_ = share.shape
    names = [(layer, head) for layer in range(layers) for head in range(heads_)]
    positive, units = np.array([name in listed for name in names]), list(range(count))

    def common(scores: np.ndarray) -> str:
        best = {names[number] for number in np.argsort(-scores)[: len(listed)]}
        return f"{len(best & listed)} of {len(listed)}"

    rows: Rows = []
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=1000)
    for scores, what in ((share, "weight within 0.1 s of the word"), (order, "rank correlation with time")):
        flat = scores.reshape(count, -1)
        areas = [auroc(weight @ flat, positive) for weight in drawn]
        ends = np.quantile(areas, [outside(count), 1 - outside(count)])
        low, high = np.clip(ends, 0, 1)
        mean = flat.mean(0)
        p = stats.mannwhitneyu(mean[positive], mean[~positive], alternative="greater").pvalue
        interval_ = f"{low:.3f} to {high:.3f}"
        rows.append([what, f"{count} sentences", f"{auroc(mean, positive):.3f}", interval_, f"{p:.1g}", common(mean)])
    readings = found["readings"]
    of_readings = {name: np.array(readings[name]) for name in ("share", "correlation")}
    for name, what in (("share", "weight within 0.1 s of the word"), ("correlation", "rank correlation with time")):
        flat = of_readings[name].mean(0).reshape(-1)
        p = stats.mannwhitneyu(flat[positive], flat[~positive], alternative="greater").pvalue
        rows.append(
            [what, f"{readings['count']} recordings", f"{auroc(flat, positive):.3f}", "", f"{p:.1g}", common(flat)]
        )
    agreement = stats.spearmanr(of_readings["share"].mean(0).reshape(-1), share.mean(0).reshape(-1)).statistic
    read_errors = [[name, f"{error[0]:.0f}"] for name, (error, _) in readings["sets"].items()]
    low, high = (ends.reshape(-1) for ends in interval(share, units))
    mean, null, ranks = (values.reshape(-1) for values in (share.mean(0), np.array(found["exchanged"]), order.mean(0)))
    ranked = [
        [
            "{}.{}".format(*names[at]),
            f"{mean[at]:.2f} ({low[at]:.2f} to {high[at]:.2f})",
            f"{null[at]:.2f}",
            f"{ranks[at]:.2f}",
            "yes" if positive[at] else "no",
        ]
        for at in np.argsort(-mean)[:12]
    ]
    better = [f"{layer}.{head}" for (layer, head), one in zip(names, mean, strict=True) if one > mean[positive].max()]
    least = names.index(min(listed, key=lambda head: mean[names.index(head)]))
    above = f"Heads {', '.join(better)}, not on the list, follow" if better else "No head outside the list follows"
    finding = (
        f"{above} the words more closely than every published head. Even the weakest published head, "
        f"{names[least][0]}.{names[least][1]}, puts {mean[least]:.2f} of its weight near the spoken word, and "
        f"{null[least]:.2f} near words of other sentences."
    )
    errors = [
        [name, *(f"{mean:.0f} ({low:.0f} to {high:.0f})" if low or high else "" for mean, low, high in values)]
        for name, values in found["sets"].items()
    ]
    return form.format(
        count=len(listed),
        listed=", ".join("{}.{}".format(*head) for head in sorted(listed)),
        heads=len(names),
        finding=finding,
        chosen=", ".join("{}.{}".format(*head) for head in found["chosen"]),
        errors=table(["heads", "mean error of a word's begin, ms", "minus the published heads' error, ms"], errors),
        seconds=readings["seconds"],
        words=readings["words"],
        readings=readings["count"],
        agreement=agreement,
        read_errors=table(["heads", "mean error of a word's begin, ms"], read_errors),
        scores=table(["score of a head", "read", "AUROC", "interval", "p", "best eight that are listed"], rows),
        ranked=table(["head", "weight near the word", "exchanged", "rank correlation", "published"], ranked),
    )


def write_heads(found: dict[str, Any]) -> str:
    """Roles of the heads of Gemma."""
    score, low, high, other = (np.array(found[name]) for name in ("score", "low", "high", "peer"))
    thresholds = {"previous_token": 0.5, "first_token": 0.3}
    rows: Rows = []
    for number, role in enumerate(ROLES):
        at = np.unravel_index(np.argmax(score[number]), score[number].shape)
        controls = [np.array(values)[number].max() for values in found["controls"].values()]
        reached = (score[number] >= thresholds.get(role, np.inf)).sum()
        rows.append(
            [
                role.replace("_", " "),
                "{}.{}".format(*at),
                f"{score[number][at]:.3f}",
                f"{low[number][at]:.3f} to {high[number][at]:.3f}",
                f"{other[number][at]:.3f}",
                f"{np.abs(score[number] - other[number]).max():.0e}",
                " and ".join(f"{value:.2f}" for value in controls),
                f"{reached} of {score[number].size} ({thresholds[role]})" if role in thresholds else "",
            ]
        )
    names = ["role", "best head", "score", "interval", "peer", "largest difference, all heads", "controls"]
    return HEADS.format(
        peer=found["peer_name"],
        texts=found["texts"],
        table=table([*names, "heads above the published threshold"], rows),
    )


def write_lists(found: dict[str, Any]) -> str:
    """Shares and overlaps from the authors' files."""
    both = found["overlap"]
    names = ["heads", "published", "here", "interval", "count", "agree"]
    low, high = both["range"]
    words = both | {"missing": ", ".join(both["missing"]), "low": low, "high": high}
    return LISTS.format(table=table(names, found["rows"]), **words)


def write_positions(found: dict[str, Any]) -> str:
    """The measures of the position tables."""
    models = found["models"]
    rows = [[number, *found["known"][number], *(models[name][number] for name in models)] for number in found["known"]]
    read = ["", "tokens read", "", *(models[name]["read"] for name in models)]
    return POSITIONS.format(table=table(["row", "quantity", "roberta-base, published", *models], [*rows, read]))


Part = tuple[Callable[[argparse.Namespace], dict[str, Any]], Callable[[dict[str, Any]], str]]
PARTS: dict[str, Part] = {
    "whisper": (whisper, write_whisper),
    "whisper-base": (partial(whisper, name="whisper-base"), partial(write_whisper, form=BASE)),
    "heads": (heads, write_heads),
    "lists": (lists, write_lists),
    "positions": (positions, write_positions),
}


def main() -> None:
    """Measure the parts that are not there, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, help="folder of scripts/real_models.py")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with published/")
    parser.add_argument("--results", type=Path, default=Path("published"), help="folder of what was measured")
    parser.add_argument("--only", choices=tuple(PARTS), action="append", help="parts to measure again")
    parser.add_argument("--lens", help="a Python with transformer_lens")
    parser.add_argument("--utterances", type=int, default=24)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    for name, (measure, _) in PARTS.items():
        path = options.results / f"{name}.json"
        if name in options.only if options.only else not path.is_file():
            print(name, flush=True)
            try:
                path.write_text(json.dumps(measure(options)), encoding="utf-8")
            except FileNotFoundError as error:
                print(f"  left out, missing: {error}")
        if path.is_file():
            found[name] = json.loads(path.read_text(encoding="utf-8"))
    options.page.write_text(page(found), encoding="utf-8")
    print(options.page)


if __name__ == "__main__":
    if sys.argv[1:2] == ["peer"]:
        peer(Path(sys.argv[2]), lens="--lens" in sys.argv)
    else:
        main()
