"""The commands of translation systems: `translate`, `score`, `align`, `compare`; `train` has a file of its own."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnscope.cli import options
from attnscope.cli.options import argument, option, varied
from attnscope.cli.output import emit, emit_to, finish, json_text, print_note, progress_bar, show
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.lineage.translate import Translations

_NEEDED = inspect.Parameter.empty
_BEAMS = option(int, 5, "Beam size: translations followed at a time; 1 is greedy.", min=1)
_RESAMPLES = option(int, 1000, "Number of resamples of the bootstrap; 0 for no intervals.")


@options.takes(
    "model", *options.LOADING, "target_language", "seed",
    model=argument(str, _NEEDED, "Model: a folder of `attnscope train`, another model folder or a hub id."),
    own={
        "text": argument(
            Path, Path("-"), "Sentences in quotes, or a file, one a line; - is standard input.",
            parser=options.text_or_place,
        ),
        "out": option(Path | None, None, "File of the translations.", show_default="standard output"),
        "beams": _BEAMS,
        "length_penalty": option(float, 1.0, "Power of the length that log-probabilities are divided by."),
        "n_best": option(int, 1, "Number of translations of each line, the best first.", min=1),
        "sample": option(bool, False, "Sampling: words are drawn instead of searched for.", "--sample"),
        "temperature": option(float, 1.0, "Temperature of --sample; below 1, unlikely words become rarer.", min=0.01),
        "overlong": option(
            Literal["reject", "split", "cut"], "reject", "Treatment of lines longer than the model was trained for."
        ),
        "batch_tokens": option(int, 4096, "Source tokens times beams at a time.", min=1),
        "as_json": option(bool, False, "JSON on standard output: translations with their scores.", "--json"),
    },
)  # fmt: skip
def translate(arguments: dict[str, Any], _: options.Output) -> None:
    """Translate: one translation a line, in the order of the text; empty lines stay empty.

    With --n-best above 1, every translation has its own line, as Moses writes it: number of the source line, from 0
    ||| translation ||| score.
    """
    from attnscope.lineage.translate import report
    from attnscope.lineage.translate import translate as run
    from attnscope.report import render

    out, as_json, n_best = arguments.pop("out"), arguments.pop("as_json"), arguments["n_best"]
    with progress_bar("translate") as bar:
        translations = run(texts=arguments.pop("text"), scores=as_json or n_best > 1, progress=bar, **arguments)
    for number, left_out in enumerate(translations.left_out, start=1):
        if left_out:
            print_note(f"line {number}: {left_out} tokens at its end were cut off")
    if as_json:
        written = json_text(render.as_json(report(translations), "")) + "\n"
    else:
        written = "".join(f"{line}\n" for line in _lines(translations, n_best=n_best))
    emit_to(out, written, "--out")


def _lines(translations: Translations, *, n_best: int) -> list[str]:
    if n_best == 1:
        return translations.texts
    return [
        f"{number} ||| {translation.text} ||| {math.nan if translation.score is None else translation.score:.4f}"
        for number, several in enumerate(translations)
        for translation in several
    ]


@options.takes(
    "as_json", "legend",
    own={
        "hypotheses": argument(
            list[Path], _NEEDED, "Translations, one sentence a line; - is standard input. The first is the baseline.",
        ),
        "target": option(list[Path], _NEEDED, "Reference translations; repeat it for a second one of each sentence."),
        "tokenize": option(
            Literal["13a", "intl", "zh", "ja-mecab", "char", "none", "moses"] | None, None,
            "Tokenizer of BLEU; none is for tokenised text.",
            show_default="ja-mecab and zh for their languages, else 13a",
        ),
        "lowercase": option(
            bool, False, "Case-insensitive scores, as in older papers with moses or none.", "--lowercase", "-lc"
        ),
        "language": option(str | None, None, "Language of the targets, such as ja; for moses en by default."),
        "text": option(Path | None, None, "Sentences that were translated, for --by-length."),
        "by_length": option(str | None, None, "Upper limits of source length, with commas between, such as 10,20,30."),
        "length_in": option(Literal["words", "characters"], "words", "Unit of length."),
        "resamples": _RESAMPLES,
        "seed": option(int, 12345, "Seed of the bootstrap."),
    },
)  # fmt: skip
def score(arguments: dict[str, Any], output: options.Output) -> None:
    """How good are the translations? BLEU and chrF with signatures, intervals and paired tests."""
    from attnscope.lineage.score import score as run_score
    from attnscope.lineage.score import score_report

    hypotheses, targets, text = list(arguments.pop("hypotheses")), list(arguments.pop("target")), arguments.pop("text")
    by_length = arguments.pop("by_length")
    if [*map(str, hypotheses), *map(str, targets), str(text)].count("-") > 1:
        raise AttnscopeError("standard input (-) can be only one of the files")
    if text and not by_length:
        raise AttnscopeError("--text is for BLEU by its length: give limits too, such as --by-length 10,20,30")
    with progress_bar("score") as bar:
        limits = options.numbers_of("--by-length", by_length, "10,20,30") if by_length else []
        result = run_score(hypotheses, targets, texts=text, by_length=limits, progress=bar, **arguments)
    show(score_report(result), output)


_DRAWN = 12  # sentence pairs, where there is a folder for them


@options.takes(
    "model", *options.LOADING, "target_language", *options.UNITS, "batch_size", "repair", "out", "figures",
    "as_json", "legend",
    model=argument(str, _NEEDED, "Encoder-decoder: the folder of a trained system, or a hub id."),
    batch_size=varied("batch_size", 16, help="Sentence pairs at a time.", show_default=True),
    out=varied(
        "out", help="Folder for links.txt, run.json, report.html and figures.", show_default="links on standard output"
    ),
    as_json=varied("as_json", False, help="JSON on standard output instead of links or tables."),
    own={
        "text": argument(Path, _NEEDED, "Sentences, one a line, words between spaces; - is standard input."),
        "target": option(Path, _NEEDED, "Translations of the text, line by line."),
        "gold": option(Path | None, None, "File of people's alignments: 1-2 is a sure link, 1p2 a possible one."),
        "gold_first": option(int, 1, "Number of the first word in the gold file: 1 or 0."),
        "layer": option(
            int | None, None, "Decoder layer, counted from 0.",
            show_default="the mean of all, or with --gold the best head",
        ),
        "head": option(int | None, None, "Head, counted from 0.", show_default="the mean of the layer"),
        "end": option(
            Literal["drop", "keep", "null"], "drop",
            "Treatment of the weight on </s>: drop, keep, or null (a word that prefers </s> has no link).",
        ),
        "step": option(
            Literal["predicts", "reads"], "predicts",
            "Decoder step whose row is a word's: predicts (the step that predicts it) or reads (that reads it).",
        ),
        "words": option(
            Literal["space", "piece"], "space", "Unit of alignment: space (words between spaces) or piece (a token).",
        ),
        "rule": option(Literal["argmax", "intersection", "threshold"], "argmax", "Rule that makes links."),
        "threshold": option(float | None, None, "Least weight of a link under --rule threshold.", show_default="0.2"),
        "shown": option(
            int | None, None,
            "Number of sentence pairs to store in --out and draw there; those with more than 40 words on a side are "
            "passed over.", min=0, max=50, show_default=f"{_DRAWN} with --out",
        ),
    },
)  # fmt: skip
def align(arguments: dict[str, Any], output: options.Output) -> None:
    """Align words by attention: links in Pharaoh's format, and error rates against human alignments."""
    from attnscope.lineage.align import MOST_WORDS, links_of
    from attnscope.lineage.align import align as run_align
    from attnscope.results.reports import report_of
    from attnscope.store.folder import OwnedFolder

    text, target, shown = arguments.pop("text"), arguments.pop("target"), arguments.pop("shown")
    if str(text) == str(target) == "-":
        raise AttnscopeError("standard input (-) can be only one of the files")
    if shown is not None and output.out is None:
        raise AttnscopeError("--shown draws sentence pairs into --out: give --out too, or leave --shown out")
    drawn = 0 if output.out is None else _DRAWN if shown is None else shown
    with progress_bar("align") as bar:
        tree = run_align(texts=text, targets=target, out=output.out, shown=drawn, progress=bar, **arguments)
    if "task" in tree.attrs:  # another process keeps and prints the results
        print_note(tree.attrs["task"])
        return
    if output.out is None and arguments["gold"] is None and not output.as_json:
        emit("".join(f"{line}\n" for line in links_of(tree)))
        return
    page = "scores" in tree or "shown" in tree
    if output.out is not None and not page:
        why = f"no pair has between 1 and {MOST_WORDS} words on both sides" if drawn else "--shown is 0"
        print_note(f"no report.html: {why}")
    finish(report_of("align", tree), output, None if output.out is None else OwnedFolder(output.out, "align"), page)


@options.takes(
    "device", "report", "figures", "as_json", "as_csv", "legend",
    as_csv=varied("as_csv", False, help="CSV on standard output: one line for each system."),
    own={
        "systems": argument(
            list[Path] | None, None,
            "Systems: YAML files of settings, to be trained; folders of `attnscope train`; position schemes (rope, "
            "learned, ...): small Transformers that differ in it alone. The first is the baseline.",
            show_default="three that learn a generated task in minutes",
        ),
        "out": option(
            Path, Path("attnscope-comparison"),
            "Folder of trainings, translations and page; a repeated command resumes there.", parser=options.run_folder,
        ),
        "text": option(
            Path | None, None, "Sentences to translate, one a line.", show_default="what the systems were validated on"
        ),
        "target": option(Path | None, None, "Right translations of the text, line by line."),
        "join": option(
            int | None, None,
            "Largest number of adjacent sentences joined into one (drawn from 1 to this number).",
            show_default="as in training; a text in the command is not changed",
        ),
        "by_length": option(
            str | None, None, "Upper limits of source length, with commas between, such as 10,20,30.",
            show_default="from the text",
        ),
        "length_in": option(
            Literal["words", "characters"] | None, None, "Unit of length.", show_default="from the text"
        ),
        "line": option(
            int | None, None, "Sentence pair whose alignments are shown, from 1.",
            show_default="one of at most 24 words",
        ),
        "seeds": option(
            int, 1, "Number of trainings of each system, from its seed on: learning curves get intervals.", min=1
        ),
        "beams": _BEAMS,
        "tokenize": option(
            str | None, None, "Tokenizer of BLEU, as in `attnscope score`.", show_default="as in training"
        ),
        "lowercase": option(
            bool | None, None, "Case in BLEU: ignored or not.", "--lowercase/--cased", "-lc",
            show_default="as in training",
        ),
        "resamples": _RESAMPLES,
        "threads": option(
            int | None, None, "Threads for training and translating.", min=1, show_default="the processors there are",
        ),
    },
)  # fmt: skip
def compare(arguments: dict[str, Any], output: options.Output) -> None:
    """Which system translates best, how fast, up to which length? Trains what is not trained; one table, one page.

    By default: the bottleneck of the fixed-length vector, next to attention and its long-range dependence.
    """
    from attnscope.lineage.compare import compare as run
    from attnscope.results.reports import report_of
    from attnscope.store.files import PAGE
    from attnscope.store.folder import OwnedFolder

    systems, text, target = (arguments.pop(name) for name in ("systems", "text", "target"))
    out, by_length = arguments.pop("out"), arguments.pop("by_length")
    limits = None if by_length is None else options.numbers_of("--by-length", by_length, "10,20,30")
    with progress_bar("compare", lines=True) as bar:
        tree = run(systems or None, text, targets=target, out=out, by_length=limits, progress=bar, **arguments)
    folder = OwnedFolder(out, "compare").look()
    results = sorted(one.sha256 for name, one in folder.files.items() if "/" not in name and name != PAGE)
    finish(report_of("compare", tree), output, folder, key=results)
