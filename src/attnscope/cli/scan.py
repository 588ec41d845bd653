"""`attnscope scan`: parse, call, print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli import options
from attnscope.cli.output import emit, print_note, progress_bar
from attnscope.cli.place import PAGE, OutputFolder, draw_views
from attnscope.cli.place import show as print_in
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.measure.quantities import Wording

_LAST = 32  # queries, as `attnscope.scan` has them

_Target = Annotated[
    list[options.PathOrUrl] | None,
    typer.Option(
        parser=options.path_or_url,
        help=options.TARGET + "Both texts by line, line i beside line i; of sounds, transcripts by line.",
    ),
]
_Statistics = Annotated[
    str | None,
    typer.Option(
        help="Names of statistics, with commas between; 'default' among them stands for those that are measured by "
        "default. 'list' shows all.",
        show_default="those that 'list' does not mark",
    ),
]
_Window = Annotated[
    int | None, typer.Option(help="Tokens of a window.", show_default="the model's length, at most 2048")
]
_Stride = Annotated[
    int | None, typer.Option(help="Tokens between the starts of windows.", show_default="no overlap")
]
_BatchSize = Annotated[
    int | None, typer.Option(help="Windows or images at a time.", show_default="about 2048 tokens")
]
_Pool = Annotated[
    int | None,
    typer.Option(
        help="Windows of a pool, at least: results are kept by pool, for a corpus of any size.",
        show_default="each window by itself",
    ),
]
_Until = Annotated[
    float | None,
    typer.Option(
        metavar="WIDTH",
        help="Width of the widest 95% interval of any head's mean share of weight at which to end.",
        show_default="at the end of the corpus",
    ),
]
_Rows = Annotated[
    int | None,
    typer.Option(
        help="Number of queries of each window that are measured, drawn at random: estimates, at the cost of the "
        "model's own pass. Windows that have no more are measured whole.",
        show_default="all",
    ),
]
_Band = Annotated[
    int | None,
    typer.Option(
        help="Largest offset of the profiles.",
        show_default="10 tokens; of images 3 rows and columns of patches",
    ),
]
_Offsets = Annotated[
    str | None,
    typer.Option(
        metavar="OFFSET,...",
        help="Offsets, however far, at which the share of the weight is measured: -1,-64 is the token before and the "
        "64th before.",
        show_default="none beside the profiles",
    ),
]
_Observation = Annotated[
    int | None,
    typer.Option(
        help="Queries at the end of each window over which the statistics recent_... are.",
        show_default=str(_LAST),
    ),
]
_Texts = Annotated[
    list[options.PathOrUrl] | None,
    typer.Argument(
        parser=options.path_or_url,
        help="Files or folders of text (UTF-8, .txt .md .jsonl, also .gz .bz2 .xz; .parquet .arrow), here or as URLs "
        "(s3://BUCKET/CORPUS); - is standard input. Of a vision encoder, images (.png .jpg .webp); of a video encoder, "
        "folders of frames, or JSON Lines with video; of Whisper, "
        "Wav2Vec2 and the like, sounds (.wav).",
    ),
]
_Clusters = Annotated[
    int | None,
    typer.Option(
        help="Number of kinds of heads, by k-means over profiles.", show_default="as many as are named"
    ),
]
_Groups = Annotated[
    str | None,
    typer.Option(
        metavar="kinds|roles|FILE",
        help="Groups of tokens, whose weights on each other are measured: by kind, by role in a chat, or by a file of "
        "rules.",
        show_default="roles of a chat, else none",
    ),
]
_Words = Annotated[
    str | None,
    typer.Option(
        metavar="unicode|space|FILE",
        help="Words to which tokens are merged before anything is measured: by the Unicode standard, by spaces, or "
        "by a file of spans.",
        show_default="tokens stay as they are",
    ),
]
_By = Annotated[
    str | None,
    typer.Option(
        metavar="FIELD",
        help="Field of JSON Lines (language, source, year) by which texts are held apart, and heads compared.",
    ),
]
_Show = Annotated[
    str | None,
    typer.Option(
        metavar="LAYER.HEAD,...",
        help="Heads that the page shows token by token, beside those that lead the rankings.",
    ),
]

_Limit = Annotated[int | None, typer.Option(help="Largest number of windows or images.", show_default="all")]

# What Python's `scan` takes by the same names: of the first a finished run knows what they were; with one of the second
# the command asks more than that.
_PLAIN = [
    "tokenizer",
    "window",
    "stride",
    "limit",
    "batch_size",
    "statistics",
    "band",
    "offsets",
    "observation",
    "clusters",
    "seed",
    "field",
    "by_line",
    "device",
    "dtype",
]
_APART = [
    "repair",
    "revision",
    "trust_remote_code",
    "chat",
    "chat_template",
    "device_map",
    "task",
    "pool",
    "until",
    "rows",
    "by",
]


def scan(
    model: options.Model = options.BUNDLED,
    text: _Texts = None,
    target: _Target = None,
    out: options.Out = None,
    repair: options.Repair = False,
    task: options.Task = None,
    ray: options.Ray = None,
    workers: options.Workers = None,
    ray_gpus: options.RayGpus = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    device_map: options.DeviceMap = None,
    max_memory: options.MaxMemory = None,
    statistics: _Statistics = None,
    window: _Window = None,
    stride: _Stride = None,
    limit: _Limit = None,
    batch_size: _BatchSize = None,
    pool: _Pool = None,
    until: _Until = None,
    rows: _Rows = None,
    band: _Band = None,
    offsets: _Offsets = None,
    observation: _Observation = None,
    clusters: _Clusters = None,
    seed: options.Seed = 0,
    field: options.Field = None,
    by_line: options.ByLine = False,
    groups: _Groups = None,
    chat: options.Chat = False,
    chat_template: options.ChatTemplate = None,
    words: _Words = None,
    by: _By = None,
    tokenizer: options.Tokenizer = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    report: options.Report = True,
    show: _Show = None,
    figures: options.Figures = options.USUAL_FIGURES,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
) -> None:
    """Where does every head look? Stream texts, images, videos or sounds through a model; measure every head."""
    given = dict(locals())  # what was typed, by name
    if statistics == "list":
        list_statistics()
        return
    from attnscope.measure.stored import default_out

    options.reject_two_formats(as_json=as_json, as_csv=as_csv)
    formats, shown = options.formats_of(figures, report=report), _shown(show, report=report)
    _reject_unused(observation, statistics)
    settings = {name: given[name] for name in _PLAIN}
    settings["observation"] = _LAST if observation is None else observation
    settings["offsets"] = None if offsets is None else options.offsets_of("--offsets", offsets)
    apart = {name: given[name] for name in _APART} | {"targets": target or None}
    place = OutputFolder(out, default_out)
    rules = {
        "groups": options.rule_or_file(groups, options.GROUPS),
        "words": options.rule_or_file(words, options.WORDS),
    }
    requested = {"out": place, "show": False if shown is None else shown, "ray": ray, "workers": workers}
    requested |= {"ray_gpus": ray_gpus, "max_memory": options.memory_of(max_memory)}
    results = _measured(model, text or None, **requested, **rules, **apart, **settings)
    if not results.data_vars:  # another process keeps and prints them
        print_note(results.attrs.get("task", ""))
        return
    folder = Path(results.encoding["source"])
    from attnscope.results.scanned import report as report_of

    with place.reading(folder):
        page = None if shown is None else draw(results, folder, formats, shown)
        found = report_of(results, data=as_json or as_csv)
        print_in(found, place, folder, page, as_json=as_json, as_csv=as_csv)


def _shown(show: str | None, *, report: bool) -> list[tuple[int, int]] | None:
    """The heads that the page shows beside its own choice; None where there is no page."""
    heads = options.heads_of("--show", show)
    if heads and not report:
        raise AttnscopeError(
            "--show names heads of the page, and --no-report makes none: leave out one of them"
        )
    return heads if report else None


def _reject_unused(observation: int | None, statistics: str | None) -> None:
    """Refuse an observation window that no statistic has."""
    if observation is not None and "recent_" not in (statistics or ""):
        raise AttnscopeError(
            "--observation is of the statistics recent_..., and none of them is asked for: name one, as by "
            "--statistics recent_top_key, or leave it out"
        )


def _measured(model: str, texts: list[options.PathOrUrl] | None, **settings: Any) -> xr.Dataset:
    from attnscope.measure.scan import scan as run_scan

    with progress_bar("scan") as told:
        return run_scan(model, texts, progress=told, **settings)


def draw(
    results: xr.Dataset, folder: Path, formats: tuple[str, ...], heads: list[tuple[int, int]]
) -> Path | None:
    """Draw the page and the figures of a finished scan, unless they lie there already."""
    from attnscope.store.runs import RunFolder

    with RunFolder(folder, json.loads(results.attrs["signature"])) as run:

        def write(place: Path) -> None:
            from attnscope.measure.stored import SAMPLE
            from attnscope.results.figures.scan import write_scan_figures
            from attnscope.results.page.scan import write_report

            sample = run.load(SAMPLE)
            write_scan_figures(results, sample, place / "figures", formats)
            write_report(results, sample, place / PAGE)

        return draw_views(run, [formats, heads], write)


def list_statistics() -> None:
    """What ``--statistics list`` prints."""
    from attnscope.measure.quantities import (
        DEFAULT,
        OF_GROUPS,
        OF_OFFSETS,
        PATCH_STATISTICS,
        STATISTICS,
        SUMMARIES,
    )

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
    emit(
        "".join(f"{line}\n" for line in (*lines, usual, "", more, *equal, *summaries, "", images, *of_images))
    )


def _with_units(words: Wording) -> str:
    return f"{words.long_name} [{words.units}]" if words.units else words.long_name
