"""`attnscope scan`: parse, call, print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli import options
from attnscope.cli.output import emit
from attnscope.cli.place import run
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.measure.quantities import Wording

_LAST = 32  # queries, as `attnscope.scan` has them

_INPUT, _SCALE = options.INPUT, options.SCALE
_Stride = Annotated[
    int | None, typer.Option(help="Tokens between window starts.", show_default="no overlap", rich_help_panel=_INPUT)
]
_Words = Annotated[
    str | None,
    typer.Option(
        metavar="RULE|FILE",
        help="Words to which tokens are merged before measuring: unicode, space, or a file of spans.",
        rich_help_panel=_INPUT,
    ),
]
_Statistics = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,...",
        help="Names of statistics, with commas between; 'default' for the usual ones, 'list' shows all.",
        show_default="default",
    ),
]
_Band = Annotated[
    int | None, typer.Option(help="Largest offset of the profiles.", show_default="10 tokens; images 3 patches")
]
_Offsets = Annotated[
    str | None, typer.Option(metavar="OFFSET,...", help="Offsets whose share of weight is measured, such as -1,-64.")
]
_Observation = Annotated[
    int | None,
    typer.Option(help="Queries at the end of each window for statistics recent_...", show_default=str(_LAST)),
]
_Groups = Annotated[
    str | None,
    typer.Option(
        metavar="RULE|FILE",
        help="Groups of tokens, whose weights on each other are measured: kinds, roles, or a file of rules.",
        show_default="roles of a chat",
    ),
]
_By = Annotated[
    str | None,
    typer.Option(metavar="FIELD", help="Field of JSON Lines (language, source, year) by which heads are compared."),
]
_Clusters = Annotated[
    int | None, typer.Option(help="Number of kinds of heads, by k-means.", show_default="as many as are named")
]
_Rows = Annotated[
    int | None, typer.Option(help="Random queries measured per window: estimates, at little cost.", show_default="all")
]
_Pool = Annotated[
    int | None,
    typer.Option(
        help="Windows per pool, at least: results by pool, for a corpus of any size.",
        show_default="by window",
        rich_help_panel=_SCALE,
    ),
]
_Until = Annotated[
    float | None,
    typer.Option(
        help="Width of the widest 95% interval of a head's mean share at which to stop.", rich_help_panel=_SCALE
    ),
]
_Show = Annotated[
    str | None,
    typer.Option(metavar="L.H,...", help="Heads that the page shows token by token.", rich_help_panel=options.OUTPUT),
]
_TEXT = (
    "Files, folders or URLs of text, as .txt .md .jsonl .parquet; - is standard input. Also images (.png .jpg .webp), "
    "folders of frames, or sounds (.wav)."
)


@options.takes(
    *options.READING,
    "target",
    "window",
    "limit",
    "chat",
    "chat_template",
    "device_map",
    "max_memory",
    "seed",
    *options.UNITS,
    "batch_size",
    "repair",
    *options.WRITING,
    text=(Annotated[list[options.PathOrUrl] | None, typer.Argument(parser=options.path_or_url, help=_TEXT)], None),
    window=options.varied("window", show_default="the model's length, at most 2048"),
    limit=options.varied("limit", help="Largest number of windows or images."),
    batch_size=options.varied("batch_size", show_default="about 2048 tokens"),
    target=options.varied(
        "target", help="Translation for the decoder, or transcripts of sounds, line by line; may be repeated."
    ),
    examples=(
        ("attnscope scan", "the bundled model on the bundled text"),
        ("attnscope scan gpt2 corpus.txt --limit 100 --window 512", "a model of the hub on a file"),
        ("attnscope scan ./my-model corpus/ --out run --task 1/4", "a quarter of a large run"),
    ),
)
def scan(
    statistics: _Statistics = None,
    band: _Band = None,
    offsets: _Offsets = None,
    observation: _Observation = None,
    groups: _Groups = None,
    by: _By = None,
    clusters: _Clusters = None,
    rows: _Rows = None,
    stride: _Stride = None,
    words: _Words = None,
    pool: _Pool = None,
    until: _Until = None,
    show: _Show = None,
    *,
    reading: options.Reading,
    output: options.Output,
) -> None:
    """Measure where every attention head attends, in texts, images, videos or sounds."""
    if statistics == "list":
        list_statistics()
        return
    shown = _shown(show, report=output.report)
    _reject_unused(observation, statistics)
    run(
        "scan",
        output,
        **reading,
        page_heads=shown,
        statistics=statistics,
        band=band,
        offsets=None if offsets is None else options.offsets_of("--offsets", offsets),
        observation=_LAST if observation is None else observation,
        groups=options.rule_or_file(groups, options.GROUPS),
        by=by,
        clusters=clusters,
        rows=rows,
        stride=stride,
        words=options.rule_or_file(words, options.WORDS),
        pool=pool,
        until=until,
        show=False if shown is None else shown,
    )


def _shown(show: str | None, *, report: bool) -> list[tuple[int, int]] | None:
    """The heads that the page shows beside its own choice; None where there is no page."""
    heads = options.heads_of("--show", show)
    if heads and not report:
        raise AttnscopeError("--show names heads of the page, and --no-report makes none: leave out one of them")
    return heads if report else None


def _reject_unused(observation: int | None, statistics: str | None) -> None:
    """Refuse an observation window that no statistic has."""
    if observation is not None and "recent_" not in (statistics or ""):
        raise AttnscopeError(
            "--observation is of the statistics recent_..., and none of them is asked for: name one, as by "
            "--statistics recent_top_key, or leave it out"
        )


def list_statistics() -> None:
    """What ``--statistics list`` prints."""
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
    lines += [f"{'..._by_group':28}each of one number a head, of the queries of each group (with --groups)"]
    every = STATISTICS | OF_OFFSETS | OF_GROUPS
    nulls = [name for name, statistic in every.items() if statistic.has_equal]
    equal = [f"{f'equal_{name}':28}{name}, of equal weights over what a token may see" for name in nulls]
    summaries = [f"{name:28}{_with_units(words)}" for name, words in SUMMARIES.items()]
    more = "found beside them, not to be asked for by name:"
    of_images = [f"{name:28}{_with_units(words)}" for name, words in PATCH_STATISTICS.items()]
    images = "of images, beside entropy, max_weight, gini_simpson and learned_sink:"
    usual = "by default: all that are not marked; to add one to them: --statistics default,block_recall"
    emit("".join(f"{line}\n" for line in (*lines, usual, "", more, *equal, *summaries, "", images, *of_images)))


def _with_units(words: Wording) -> str:
    return f"{words.long_name} [{words.units}]" if words.units else words.long_name
