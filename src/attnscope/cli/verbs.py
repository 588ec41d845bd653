"""The commands that measure heads.

Each declares its own options, turns what was typed into the arguments of its verb, and lets `run` do the rest.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.capture.parameters import OBSERVATION, ScanReading
from attnscope.cli import options
from attnscope.cli.options import INPUT, SCALE, argument, option, varied
from attnscope.cli.output import emit, new_console, run
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.measure.quantities import Wording
    from attnscope.report.schema import Report

_TEXT = (
    "Texts in quotes, or files, folders or URLs of text, as .txt .md .jsonl .csv .parquet; - is standard input. Also "
    "images (.png .jpg .webp), folders of frames, or sounds (.wav)."
)


@options.takes(
    *options.READING, "target", "window", "limit", "chat", "chat_template", "device_map", "max_memory", "seed",
    *options.UNITS, "batch_size", "repair", *options.WRITING,
    text=argument(list[str] | None, None, _TEXT, parser=options.text_or_place),
    window=varied("window", show_default="the model's length, at most 2048"),
    limit=varied("limit", help="Largest number of windows or images."),
    batch_size=varied("batch_size", show_default="about 2048 tokens"),
    target=varied(
        "target", help="Translation for the decoder, or transcripts of sounds, line by line; may be repeated."
    ),
    others=ScanReading,
    own={
        "statistics": option(
            str | None, None,
            "Names of statistics, with commas between; 'default' for the usual ones, 'list' shows all.",
            metavar="NAME,...", show_default="default",
        ),
        "band": option(int | None, None, "Largest offset of the profiles.", show_default="10 tokens; images 3 patches"),
        "offsets": option(
            str | None, None, "Offsets whose share of weight is measured, such as -1,-64.", metavar="OFFSET,..."
        ),
        "observation": option(
            int | None, None, "Queries at the end of each window for statistics recent_...",
            show_default=str(OBSERVATION),
        ),
        "groups": option(
            str | None, None,
            "Groups of tokens, whose weights on each other are measured: types, roles, or a file of rules.",
            metavar="RULE|FILE", show_default="roles of a chat",
        ),
        "by": option(
            str | None, None, "Field of JSON Lines (language, source, year) by which heads are compared.",
            metavar="FIELD",
        ),
        "clusters": option(int | None, None, "Number of labels, by k-means.", show_default="as many as are named"),
        "rows": option(
            int | None, None, "Random queries measured per window: estimates, at little cost.", show_default="all"
        ),
        "stride": option(int | None, None, "Tokens between window starts.", panel=INPUT, show_default="no overlap"),
        "words": option(
            str | None, None, "Words to which tokens are merged before measuring: unicode, space, or a file of spans.",
            panel=INPUT, metavar="RULE|FILE",
        ),
        "pool": option(
            int | None, None, "Windows per pool, at least: results by pool, for a corpus of any size.",
            panel=SCALE, show_default="by window",
        ),
        "until": option(
            float | None, None, "Width of the widest 95% interval of a head's mean share at which to stop.",
            panel=SCALE,
        ),
        "show": option(
            str | None, None, "Heads that the page shows token by token.", panel=options.OUTPUT, metavar="L.H,..."
        ),
    },
    examples=(
        ("attnscope scan", "the bundled model on the bundled text"),
        ("attnscope scan gpt2 corpus.txt --limit 100 --window 512", "a model of the hub on a file"),
        ("attnscope scan ./my-model corpus/ --out run --task 1/4", "a quarter of a large run"),
    ),
)  # fmt: skip
def scan(arguments: dict[str, Any], output: options.Output) -> None:
    """Measure where every attention head attends, in texts, images, videos or sounds."""
    if arguments["statistics"] == "list":
        list_statistics()
        return
    heads, offsets = options.heads_of("--show", arguments["show"]), arguments["offsets"]
    if heads and not output.report:
        raise AttnscopeError("--show names heads of the page, and --no-report makes none: leave out one of them")
    if arguments["observation"] is not None and "recent_" not in (arguments["statistics"] or ""):
        raise AttnscopeError(
            "--observation needs a statistic recent_...: add one, such as --statistics recent_top_key, or leave it out"
        )
    arguments |= {
        "offsets": None if offsets is None else options.numbers_of("--offsets", offsets, "-1,-64"),
        "observation": OBSERVATION if arguments["observation"] is None else arguments["observation"],
        "groups": options.rule_or_file(arguments["groups"], options.GROUPS),
        "words": options.rule_or_file(arguments["words"], options.WORDS),
        "show": heads if output.report else False,
    }
    run("scan", output, page_heads=heads if output.report else None, **arguments)


def list_statistics() -> None:
    """The output of ``--statistics list``."""
    from attnscope.measure.quantities import DEFAULT, OF_GROUPS, OF_OFFSETS, PATCH_STATISTICS, STATISTICS, SUMMARIES

    lines = [
        f"{name:28}{_with_units(statistic.words)}" + (" (not by default)" if name not in DEFAULT else "")
        for name, statistic in STATISTICS.items()
    ]
    lines += [
        f"{name:28}{_with_units(statistic.words)} (with {flag})"
        for flag, measured in (("--offsets", OF_OFFSETS), ("--groups", OF_GROUPS))
        for name, statistic in measured.items()
    ]
    lines += [f"{'..._by_group':28}statistics with one number a head, for the queries of each group (with --groups)"]
    nulls = [name for name, statistic in (STATISTICS | OF_OFFSETS | OF_GROUPS).items() if statistic.has_equal]
    equal = [f"{f'equal_{name}':28}{name} under uniform attention over visible tokens" for name in nulls]
    summaries = [f"{name:28}{_with_units(words)}" for name, words in SUMMARIES.items()]
    more = "reported with them:"
    of_images = [f"{name:28}{_with_units(words)}" for name, words in PATCH_STATISTICS.items()]
    images = "for images, with entropy, max_weight, gini_simpson and learned_sink:"
    usual = "by default: all that are not marked. To add one to the defaults: --statistics default,block_recall"
    emit("".join(f"{line}\n" for line in (*lines, usual, "", more, *equal, *summaries, "", images, *of_images)))


def _with_units(words: Wording) -> str:
    return f"{words.long_name} [{words.units}]" if words.units else words.long_name


_MODEL = "Model folder or hub id: a causal model or an encoder-decoder, which the bundled model is not."


@options.takes(
    *options.READING, "window", "limit", "chat", "chat_template", "seed", "batch_size", "repair", "out", "report",
    "as_json", "as_csv", "legend",
    model=argument(str, inspect.Parameter.empty, _MODEL),
    window=varied("window", help="Tokens of a prompt, at most.", show_default="what the model takes"),
    limit=varied("limit", help="Largest number of prompts."),
    batch_size=varied("batch_size", 1, help="Prompts at a time.", show_default=True),
    own={
        "prompt": option(list[str] | None, None, "Prompt itself, instead of text files; may be repeated."),
        "new_tokens": option(int, 64, "Tokens to write, at most."),
        "beams": option(int, 1, "Beams of the search; 1 is greedy."),
        "sample": option(bool, False, "Sampling: tokens are drawn instead of searched for.", "--sample"),
        "temperature": option(float, 1.0, "Temperature of --sample; below 1, unlikely tokens become rarer."),
        "top_p": option(float, 1.0, "Probability that the likeliest tokens have together, among which --sample draws."),
        "span": option(
            list[str] | None, None, "Span of the prompts by name, as it reads, with ... for any text between: "
            "document='<doc>...</doc>'; may be repeated.", metavar="NAME=PATTERN",
        ),
        "groups": option(
            str | None, None,
            "Groups of the prompts' tokens, each a span: by kind, by role in a chat, or by a file of rules.",
            metavar="types|roles|FILE", show_default="roles of a chat, else none",
        ),
        "cache": option(str, "dynamic", "Cache of keys and values: dynamic, static or none."),
    },
    examples=(
        ("attnscope generate gpt2 --prompt 'The tide is'", "one prompt"),
        ("attnscope generate gpt2 prompts.txt --by-line --limit 20", "prompts, one a line"),
        ("attnscope generate ./chat-model chats.jsonl --groups roles", "chats, by role"),
    ),
)  # fmt: skip
def generate(arguments: dict[str, Any], output: options.Output) -> None:
    """Measure where every head attends while the model writes: each new token of continued texts."""
    prompt = arguments.pop("prompt")
    if prompt and arguments["texts"]:
        raise AttnscopeError("found both files of text and --prompt; expected one of them")
    arguments["texts"] = prompt or arguments["texts"]
    arguments["groups"] = options.rule_or_file(arguments["groups"], options.GROUPS)
    arguments["spans"] = {}
    for text in arguments.pop("span") or []:
        name, _, pattern = text.partition("=")
        if not name.strip() or not pattern:
            raise AttnscopeError(f"--span is {text!r:.60}; expected a name and a pattern, as document='<doc>...</doc>'")
        arguments["spans"][name.strip()] = pattern
    run("generate", output, first=_print_texts, **arguments)


_TEXTS = 3  # that are printed
_PROMPT = 200  # characters of a prompt's end


def _print_texts(results: xr.Dataset) -> None:
    """The end of each prompt, and what the model wrote."""
    from rich.text import Text

    console, texts = new_console(), results.sizes["sequence"]
    for number in range(min(texts, _TEXTS)):
        text = results.isel(sequence=number)
        tokens, length = [str(token) for token in text.text_token.values], int(text.prompt_length)
        prompt, new = "".join(tokens[:length]), "".join(tokens[length:])
        begin = "…" if len(prompt) > _PROMPT else ""
        console.print(Text(f"{text.source.item()}: ", style="dim"), end="")
        console.print(Text(begin + prompt[-_PROMPT:], style="dim") + Text(new, style="bold"))
        console.print()
    if texts > _TEXTS:
        console.print(f"and {count(texts - _TEXTS, 'text')} more: --json has all\n", style="dim")


@options.takes(
    *options.READING, "window", "limit", "seed", "batch_size", "repair", *options.WRITING,
    limit=32,
    batch_size=varied("batch_size", show_default="about 2,048 tokens' worth"),
    own={
        "only": option(
            str | None, None, "Roles to score, with commas between; list names them all.", show_default="all"
        ),
        "needles": option(
            Path | None, None, "File of needles for retrieval heads: JSON Lines with needle and question in each line.",
            show_default="three sentences in English",
        ),
        "controls": option(
            str, "initialised,shuffled", "Untrained controls, with commas between: initialised, shuffled; or none.",
        ),
    },
    examples=(
        ("attnscope roles", "the bundled model on the bundled text"),
        ("attnscope roles gpt2 corpus.txt --only induction", "one role in a model of the hub"),
        ("attnscope roles --only list", "the definitions of all roles"),
    ),
)  # fmt: skip
def roles(arguments: dict[str, Any], output: options.Output) -> None:
    """Find which published roles heads have, next to uniform attention and untrained weights."""
    if arguments["only"] != "list":
        run("roles", output, **arguments)
        return
    from attnscope.detection.role import ROLES

    console = new_console()
    for role in ROLES.values():
        console.print(f"{role.name}: {role.definition}")
        console.print(f"  {role.source}", style="dim")


@options.takes(
    *options.READING, "target", "window", "limit", "seed", *options.UNITS, "batch_size", "repair", *options.WRITING,
    window=varied("window", show_default="the model's length, at most 2048"),
    batch_size=varied("batch_size", show_default="about 2048 tokens"),
    as_csv=varied("as_csv", False, help="CSV on standard output: one line for each example."),
    own={
        "head": option(
            str, inspect.Parameter.empty,
            "Heads as layer.head, counted from 0; or the run folder of a scan, for the heads of its rankings.",
            metavar="L.H,... or RUN",
        ),
        "k": option(int, 20, "Examples: as many of the strongest, of the middle, and at random.", "--k", "-k"),
        "by": option(str, "weight", "Strength of a query's row: weight, value_norm or entropy."),
        "query": option(
            str | None, None, "Token, or /pattern/, of the queries that count.", metavar="TOKEN", show_default="any"
        ),
        "key": option(
            str | None, None, "Token, or /pattern/, of the keys that count.", metavar="TOKEN", show_default="any"
        ),
        "sinks": option(bool, False, "First token and special tokens count as keys.", "--sinks"),
    },
    examples=(
        ("attnscope examples --head 0.1", "a head of the bundled model"),
        ("attnscope examples gpt2 corpus.txt --head 5.1,6.9 -k 10", "two heads, on a file"),
        ("attnscope examples gpt2 corpus.txt --head runs/gpt2", "the heads of the rankings of a scan"),
        ("attnscope examples gpt2 corpus.txt --head 5.1 --query it", "where the query is the token it"),
    ),
)  # fmt: skip
def examples(arguments: dict[str, Any], output: options.Output) -> None:
    """Find where in a corpus heads attend most strongly, in context, and the features that these windows share."""
    head = arguments["head"]
    arguments["head"] = head if Path(head).is_dir() else options.heads_of("--head", head)
    run("examples", output, **arguments)


_SHOWN_IN_FIGURES = 4  # heads, where none was asked for; of a layer that was asked for, twice as many


@options.takes(
    *options.READING, "target", "window", "limit", "band", "seed", *options.UNITS, "repair", *options.WRITING,
    limit=100,
    window=varied("window", show_default="the model's length"),
    target=varied("target", help="Text for the decoder, cut like the text; may be repeated."),
    own={
        "frequencies": option(
            str | None, None, "Frequencies, in cycles per window, that shifts are read off.", metavar="LOW:HIGH",
            show_default="from 3",
        ),
        "completion": option(
            str, "minimal", "Completion of the rotation in the phase maps: minimal, lapack, haar or thin."
        ),
        "interventions": option(
            bool, False, "Interventions too: words and positions are changed, and heads watched.", "--interventions"
        ),
        "analyses": option(
            list[str] | None, None,
            "Analyses that an installed package adds, such as yamamoto2023, the numbers of a paper; may be repeated.",
            metavar="NAME[=SETTING]",
        ),
        "also": option(
            list[str] | None, None, "Model whose position table is shown next to this one's; may be repeated.",
            metavar="MODEL",
        ),
        "layer": option(int | None, None, "Layer, counted from 0, of the heads in the figures of single heads."),
        "head": option(int | None, None, "Head, counted from 0, to show in the figures of single heads."),
    },
    examples=(
        ("attnscope explain", "the bundled model on the bundled text"),
        ("attnscope explain gpt2 corpus.txt --limit 20", "a model of the hub on a file"),
        ("attnscope explain ./my-model corpus/ --interventions", "with words and positions changed"),
    ),
)  # fmt: skip
def explain(arguments: dict[str, Any], output: options.Output) -> None:
    """Explain why every head attends there: take queries and keys apart into positions, content and waves."""
    from attnscope.explanation.catalogue import requested_analyses

    more, layer, head = requested_analyses(arguments["analyses"] or []), arguments["layer"], arguments["head"]
    arguments |= {
        "analyses": more,
        "also": arguments["also"] or [],
        "frequencies": _frequencies(arguments["frequencies"]),
    }

    def heads_to_show(report: Report) -> list[tuple[int, int]]:
        from attnscope.explanation.analyses.verdict import best_heads

        number = _SHOWN_IN_FIGURES if layer is None and head is None else 2 * _SHOWN_IN_FIGURES
        return best_heads(report.rows, layer=layer, head=head, count=number)

    parts = [f"{one.name}.npz" for one in more if not one.needs]
    run("explain", output, parts=parts, page_heads=heads_to_show, first=_print_text_tables, **arguments)


def _frequencies(given: str | None) -> tuple[int, int] | None:
    if given is None:
        return None
    low, _, high = given.partition(":")
    if not (low.isdecimal() and high.isdecimal() and int(low) <= int(high)):
        raise AttnscopeError(f"--frequencies is {given!r}: give two whole numbers, the smaller first, as in 3:60")
    return int(low), int(high)


def _print_text_tables(tree: xr.DataTree) -> None:
    """Text tables of analyses, such as a comparison with published numbers."""
    if not json.loads(tree.attrs.get("more", "[]")):  # the analyses of explain itself have figures alone
        return
    from rich.table import Table
    from rich.text import Text

    from attnscope.explanation.catalogue import analyses_of

    console = new_console()
    for analysis in analyses_of(tree):
        if analysis.table is None:
            continue
        shown = Table.grid(padding=(0, 2, 0, 0))  # below each other: seven columns would cut words
        for number, quantity, *cells in analysis.table.lines(tree[analysis.name].to_dataset()):
            shown.add_row(Text(number), Text(quantity, style="bold"))
            for heading, cell in zip(analysis.table.columns[2:], cells, strict=True):
                if cell:
                    shown.add_row("", Text(f"{heading}: {cell}"))
            shown.add_row()
        console.print(shown)
        for remark in (analysis.table.key, analysis.table.remark(tree)):
            if remark:
                console.print(remark, style="dim")


@options.takes(
    *options.READING, "target", "window", "limit", "band", "seed", *options.UNITS, "batch_size", "variants", "repair",
    *options.WRITING,
    limit=100,
    own={
        "ablations": option(
            str, "zero,mean,resample", "Stand-ins for a head's output, with commas between: zero, mean, resample.",
        ),
        "steps": option(int, 5, "Points of the integrated gradients; 0 leaves out all estimates."),
        "search": option(
            bool, False, "Search too: random sets of heads ablated, and a sparse regression.", "--search"
        ),
        "curves": option(bool, False, "Curves too: more and more heads ablated, in several orders.", "--curves"),
        "together": option(
            list[str] | None, None, "Heads ablated together, in addition to each alone, as in 0.1,0.3; may be repeated."
        ),
        "forbid_offset": option(
            list[int] | None, None,
            "Offset (key minus query) that heads may not attend to: -1 is the token before; may be repeated.",
        ),
        "forbid_first": option(bool, False, "First token: heads may not attend to it.", "--forbid-first"),
        "forbid_token": option(
            list[str] | None, None, "Token that heads may not attend to, by its text; may be repeated."
        ),
        "renormalise": option(bool, True, "Rows scaled to their sum before, where something in them is forbidden."),
        "why": option(bool, True, "Causes next to the effects, as in explain."),
    },
    examples=(
        ("attnscope intervene", "the bundled model on the bundled text"),
        ("attnscope intervene gpt2 corpus.txt --ablations zero", "one ablation of every head"),
        ("attnscope intervene --together 0.1,0.3 --forbid-offset -1", "a set of heads; an offset forbidden"),
    ),
)  # fmt: skip
def intervene(arguments: dict[str, Any], output: options.Output) -> None:
    """Test whether a head matters: ablate every head, one at a time, and measure the loss."""
    arguments |= {
        "ablations": [name.strip() for name in arguments["ablations"].split(",")],
        "together": [options.heads_of("--together", names) for names in arguments["together"] or ()],
        "forbid_offsets": arguments.pop("forbid_offset") or (),
        "forbid_tokens": arguments.pop("forbid_token") or (),
    }
    run("intervene", output, **arguments)


@options.takes(
    "seed", *options.WRITING,
    own={
        "before": argument(Path, inspect.Parameter.empty, "Folder of a finished scan: the first model's."),
        "after": argument(
            Path, inspect.Parameter.empty, "Folder of a finished scan of the same texts: the second model's."
        ),
        "statistics": option(
            str | None, None, "Statistics to compare, with commas between.", show_default="all that both scans have"
        ),
        "heads": option(str, "auto", "Rule by which heads are matched within a layer: number, profile, auto."),
        "level": option(float, 0.05, "False discovery rate, all heads and statistics together."),
    },
)  # fmt: skip
def diff(arguments: dict[str, Any], output: options.Output) -> None:
    """Measure what changed between two models: two scans of one corpus, head by head."""
    if arguments["statistics"] is not None:
        arguments["statistics"] = [name.strip() for name in arguments["statistics"].split(",")]
    run("diff", output, **arguments)
