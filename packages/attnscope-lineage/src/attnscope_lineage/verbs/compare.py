"""`attnscope_lineage.compare`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from attnscope.options import (
    IN_PYTHON,
    MODEL,
    OUTPUT,
    SCALE,
    Beams,
    Count,
    Flag,
    Numbers,
    PathOrName,
    Tell,
    Typed,
    path_of,
    run_folder,
)
from attnscope.verbs import verb
from attnscope_lineage.options import BleuTokenizer, Lines, TrainConfig

if TYPE_CHECKING:
    import xarray as xr


@verb()
def compare(
    systems: Annotated[
        Sequence[str | Path] | Mapping[str, str | Path | TrainConfig] | None,
        Flag("systems"),
        Typed(path_of, "PATH", repeated=True),
        "Compare these systems: YAML files of settings, to be trained; folders of `attnscope train`; position "
        "schemes (rope, learned, ...): small Transformers that differ in it alone. The first is the baseline. "
        "Files are settings of `TrainConfig`, each trained in ``out/systems/NAME``. In Python also a mapping from "
        "names to these. The default ones train in a few minutes each: a recurrent model with one fixed vector, "
        "the same with additive attention, and a Transformer. By default three that learn a generated task in "
        "minutes.",
    ] = None,
    texts: Annotated[
        Lines | None,
        Flag("text"),
        "Translate these sentences, one a line. In Python lists of strings, or paths as `read_parallel` reads "
        "them. By default what the systems were validated on. See `read_test_text`; of the generated task they are "
        "new sentences.",
    ] = None,
    *,
    targets: Annotated[
        Lines | None, Flag("target"), "Compare with these right translations of the text, line by line."
    ] = None,
    out: Annotated[
        PathOrName,
        OUTPUT,
        Typed(run_folder, "PATH"),
        "Write trainings, translations and page to this folder; a repeated command resumes there.",
    ] = "attnscope-comparison",
    join: Annotated[
        Count | None,
        "Join up to this many adjacent sentences into one (drawn from 1 to this number). By default as in "
        "training; a text in the command is not changed.",
    ] = None,
    by_length: Annotated[
        Numbers | None,
        "Score buckets of source length up to these limits, with commas between, such as 10,20,30. See "
        "`attnscope_lineage.score`. By default from the text. These are about six.",
    ] = None,
    length_in: Annotated[
        Literal["words", "characters"] | None,
        "Measure length in words or characters. By default from the text. These are words if any sentence has a space.",
    ] = None,
    line: Annotated[
        Count | None, "Show the alignments of this sentence pair, counted from 1. By default one of at most 24 words."
    ] = None,
    seeds: Annotated[
        Count,
        "Train each system this many times, from its seed on: learning curves get intervals. All else is of the "
        "first. A seed also draws the generated task, the same for all systems.",
    ] = 1,
    beams: Annotated[Beams, "Search with this many beams: translations followed at a time; 1 is greedy."] = 5,
    tokenize: Annotated[
        BleuTokenizer | None, "Tokenise for BLEU by this tokenizer, as in `attnscope score`. By default as in training."
    ] = None,
    lowercase: Annotated[
        bool | None,
        Flag("lowercase", short="-lc", off="cased"),
        "Ignore case in BLEU, or not. By default as in training.",
    ] = None,
    resamples: Annotated[int, "Draw this many resamples for the bootstrap; 0 for no intervals."] = 1000,
    threads: Annotated[
        int | None,
        SCALE,
        "Train and translate with this many threads. Systems of few threads are trained at once on a CPU, each in "
        "a process of its own. By default the processors there are.",
    ] = None,
    device: Annotated[
        str | None,
        MODEL,
        "Compute on this device: cpu, cuda, ... By default CUDA if there is one; a model object stays where it is.",
    ] = None,
    progress: Annotated[
        Tell | None,
        IN_PYTHON,
        "Called with a `Progress` during the work; its name says which step of which system is running.",
    ] = None,
) -> "xr.DataTree":
    """Train systems that are not trained yet, translate one text with all of them, and compare.

    Returns
    -------
    xarray.DataTree
        Four nodes, which are also stored in `out`, each as a file such as ``scores.npz``:

        ``scores``
            What `attnscope_lineage.score` gives, with the first system as the baseline; and by system ``parameters``,
            ``sentences_per_second`` (of translating), ``sentences_cut`` (longer than it was trained for),
            ``training_tokens_per_second`` (target tokens, median of the log), ``training_seconds``,
            ``training_tokens``; on the generated task ``alignment_error_rate``, ``alignment_precision`` and
            ``alignment_recall`` (see `best_aligning_head`), with ``alignment_error_rate_lower`` and
            ``alignment_error_rate_upper``, the interval over sentence pairs; as controls, ``alignment_diagonal`` and
            ``alignment_chance`` (random words), and ``alignment_chance_level``, below which random words fall in 1 of
            100 cases.
        ``curves``
            ``bleu`` and ``loss`` (nats per token) on the validation text ``(system, validation)``, with ``updates``,
            ``tokens`` (target tokens seen) and ``seconds`` at each: means over seeds, with the ends of Student's 95%
            interval over seeds, ``loss_lower`` and so on. By system ``mean_loss``, the mean of the loss over all
            validations, which is low if a system learns soon, and ``difference`` from the first, paired by seed, with
            their intervals; and ``loss_of_seed (system, seed, validation)``.
        ``alignment``
            One sentence pair: ``weights (system, target_word, source_word)`` by forced decoding, NaN for a system
            without attention; ``read_from``, the heads used; ``translation (system)``; ``gold``, the known links if
            any.
        ``gradients``
            ``share (system, tenth)``: share of each tenth of the source in the gradient of the loss (its norm by the
            embedding of each token, under teacher forcing), mean over the 100 longest sentences of at least ten
            tokens, with ``lower`` and ``upper``, the 95% interval over sentences, and ``sentences``, their number. A
            fixed vector has a second row, with the gradient through its forward state alone.

        Attributes: ``signature`` (JSON) and ``run``, the folder.

    Raises
    ------
    AttnscopeError
        If systems, files, texts or settings are invalid.
    """
    import json
    from collections.abc import Sequence
    from typing import Any

    import numpy as np
    import xarray as xr

    from attnscope.capture.load import usable_device
    from attnscope.report.signature import Signature
    from attnscope.store.arrays import packed
    from attnscope.store.files import SUFFIX, explained, json_bytes, local_folder
    from attnscope.store.folder import OwnedFolder
    from attnscope.support.checks import check_whole
    from attnscope.support.progress import Progress, no_progress
    from attnscope_lineage.comparison import (
        MAKE_ROOM,
        SEED,
        TRAINING,
        SystemOutput,
        Work,
        alignment_of,
        as_lines,
        by_system,
        check_untrained,
        gradient_dataset,
        learning_curves,
        length_limits,
        load_comparison,
        part_of_work,
        read_systems,
        read_test_text,
        shown_pair,
        train_at_once,
        trainings_of,
    )
    from attnscope_lineage.config import read_config
    from attnscope_lineage.options import BEAMS, THREADS
    from attnscope_lineage.verbs.score import score

    check_whole(1, BEAMS, beams=beams)
    check_whole(1, THREADS, threads=threads)
    out = local_folder(out)
    chosen = read_systems(systems, out)
    trainings = {system.name: trainings_of(system, seeds) for system in chosen}
    check_untrained(chosen)
    text = read_test_text(chosen, texts, targets, join=join)
    shown = shown_pair(text, line)
    length_in = length_in or ("words" if any(" " in line for line in text.source) else "characters")
    limits = list(by_length or ()) or length_limits(text.source, length_in)
    usual = chosen[0].config or read_config()
    words: Any = tokenize or usual.bleu_tokenizer

    def scored(hypotheses: dict[str, Sequence[str]], resamples: int) -> xr.Dataset:
        return score(
            hypotheses,
            text.target,
            texts=text.source,
            by_length=limits,
            length_in=length_in,
            tokenize=words,
            lowercase=usual.lowercase if lowercase is None else lowercase,
            resamples=resamples,
            seed=SEED,
        )

    tell = progress or no_progress
    scored({"reference": text.target}, min(resamples, 0))  # rejects invalid settings before hours of training
    with OwnedFolder(out, "compare") as folder:
        sides = {"text/source.txt": text.source, "text/reference.txt": text.target}
        with explained(f"write to {out}", "Choose another folder with --out"):
            folder.write({name: as_lines(lines) for name, lines in sides.items()})
        outputs: dict[str, SystemOutput] = {}
        untrained = [each for several in trainings.values() for each in several if not each.trained]
        on_cpu = threads is None and usable_device(device).type == "cpu"
        began = TRAINING if on_cpu and train_at_once(untrained, tell) else 0.0
        for number, system in enumerate(chosen):
            for place, training in enumerate(trainings[system.name]):
                part = part_of_work(tell, number * seeds + place, len(chosen) * seeds, began)
                work = Work(folder, text, shown, beams, threads, device, part)
                work.train(training)
            outputs[system.name] = work.output_of(system)  # pyright: ignore[reportPossiblyUnboundVariable] seeds > 0
        tell(Progress("score", 0.99))
        scores = scored({name: output.lines for name, output in outputs.items()}, resamples)
        scores = scores.isel(bucket=np.flatnonzero(scores.sentences.values))  # those with sentences
        results = {
            "scores": scores.merge(by_system(chosen, outputs, text)),
            "curves": learning_curves({name: [each.folder for each in several] for name, several in trainings.items()}),
            "alignment": alignment_of(text, shown, outputs),
            "gradients": gradient_dataset(outputs),
        }
        signature = Signature(
            "compare",
            systems={name: output.record["signature"] for name, output in outputs.items()},
            scores=json.loads(scores.attrs["signature"]),
            settings={
                "baseline": chosen[0].name,
                "by_length": limits,
                "length_in": length_in,
                "line": shown + 1,
                "seeds": seeds,
            },
        )
        with explained(f"write to {out}", MAKE_ROOM):
            arrays = {f"{name}{SUFFIX}": packed(dataset) for name, dataset in results.items()}
            folder.write(arrays | {"run.json": json_bytes(signature.to_dict())})
        tell(Progress("done", 1.0))
        return load_comparison(folder)
