"""`attnscope scan`: parse, call, print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.markup import escape

from attnscope.cli import options
from attnscope.cli.output import csv_text, emit, new_console, print_note, progress_bar
from attnscope.cli.place import PAGE, Forms, OutputFolder, draw_views
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import change_texts, significant, with_nulls

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xarray as xr
    from rich.console import Console
    from rich.table import Table

    from attnscope.measure.keys import TopKeys
    from attnscope.measure.offset_shares import OffsetShares
    from attnscope.measure.quantities import Wording
    from attnscope.measure.questions import RankedHead

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
    with place.reading(folder):
        page = None if shown is None else draw(results, folder, formats, shown)
    Forms(as_dict, print_csv, print_tables).show(results, place, folder, page, as_json=as_json, as_csv=as_csv)


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


def as_dict(results: xr.Dataset, folder: Path) -> dict[str, Any]:
    """What ``--json`` prints."""
    from attnscope.measure.ranking import rank_heads
    from attnscope.measure.stored import notes_of

    return {
        "signature": json.loads(results.attrs["signature"]),
        "texts": results.sizes["text"],
        "notes": notes_of(results),
        "capture": results.attrs.get("capture"),
        "kinds": results.attrs.get("kinds"),
        "heads": rank_heads(results),
        "statistics": with_nulls(_means(results)),
        "offsets": offsets_dict(results),
        "received": _received(results, folder),
        "groups": groups_dict(results) if "group_weight" in results else None,
        "by": contrasts_dict(results) if "by" in results.coords else None,
        "independence": json.loads(results.attrs.get("summary", "null")),
        "run": str(folder),
    }


def _received(results: xr.Dataset, folder: Path) -> list[TopKeys] | None:
    """The keys that receive most in the sample windows, of the heads that lead the rankings or were asked for."""
    from attnscope.measure.keys import top_keys
    from attnscope.measure.ranking import rank_heads
    from attnscope.measure.stored import SAMPLE
    from attnscope.store.runs import RunFolder

    with RunFolder(folder, json.loads(results.attrs["signature"])) as run:
        sample = run.load(SAMPLE)
    if sample is None or "received" not in sample:
        return None
    asked = [tuple(place) for place in json.loads(sample.attrs["asked"])]
    leading = [(row["layer"], row["head"]) for rows in rank_heads(results).values() for row in rows]
    if not asked and not leading:  # nothing ranks heads: those with the key that receives most
        most = sample.received.max("position").mean("window").values
        leading = [np.unravel_index(place, most.shape) for place in np.argsort(-most, axis=None)[:_MOST]]
    return top_keys(sample, [(int(layer), int(head)) for layer, head in dict.fromkeys([*asked, *leading])])


def _means(results: xr.Dataset) -> dict[str, np.ndarray]:
    """Means over texts of what is one number a head, ``(layer, head)``; of several, one for each."""
    from attnscope.measure.quantities import without_end

    own = [
        str(name)
        for name, values in results.data_vars.items()
        if "head" in values.dims and name != "label" and without_end(str(name)) == name
    ]
    return {name: values for statistic in own for name, values in _means_of(results, statistic).items()}


def _means_of(results: xr.Dataset, name: str) -> dict[str, np.ndarray]:
    """Means over texts of one statistic, by the name of each; nothing where it is more than a number a head."""
    from attnscope.measure.quantities import SEVERAL

    values = results[name]
    if not {"text", "layer"} <= set(values.dims) <= {"text", "layer", "head", *SEVERAL}:
        return {}
    means = values.mean("text", skipna=True)
    several = next((dim for dim in SEVERAL if dim in means.dims), None)
    if several is None:
        return {name: means.values}
    return {f"{name}_{one}": means.sel({several: one}).values for one in means[several].values.tolist()}


def print_csv(results: xr.Dataset) -> None:
    """One line for each head: means over texts, and the signature that names the run's folder."""
    from attnscope.measure.documents import intervals
    from attnscope.measure.grid import patch_peaks
    from attnscope.measure.questions import majority_names
    from attnscope.measure.ranking import peaks
    from attnscope.store.signature import Signature

    means = _means(results)
    if "sampled_rows" in results:
        ends = intervals(results)
        for name in [name for name in means if name in ends]:
            means |= {f"{name}_{bound}": ends[name].sel(bound=bound).values for bound in ("low", "high")}
    means |= group_columns(results) if "group_weight" in results else {}
    highest = patch_peaks(results) if "patch_profile" in results else peaks(results)
    means |= {str(name): values.values for name, values in (highest or {}).items()}
    kinds = majority_names(results)
    signature = Signature.from_json(results.attrs["signature"]).short
    table: list[list[Any]] = [["layer", "head", "layer_name", "layer_kind", "label", *means, "signature"]]
    for layer, (name, kind) in enumerate(
        zip(results.layer_name.values, results.layer_kind.values, strict=True)
    ):
        for head in range(results.sizes["head"]):
            label = "" if kinds is None else kinds[layer][head]
            values = [f"{mean[layer, head]:.6g}" for mean in means.values()]
            table.append([layer, head, name, kind, label, *values, signature])
    emit(csv_text(table))


_MOST = 4  # heads whose keys are listed where no ranking leads to any


def print_tables(results: xr.Dataset) -> None:
    """The rankings of heads, and what kinds there are."""
    from attnscope.measure.ranking import rank_heads
    from attnscope.measure.stored import WEIGHTS_NOTE, describe_labels, describe_ranking, means_note, notes_of
    from attnscope.results.account import describe_read

    console = new_console()
    console.print(
        f"{results.attrs['model']}: {describe_read('scan', results)}", highlight=False, markup=False
    )
    for note in notes_of(results).values():
        console.print(note, style="dim", highlight=False, markup=False)
    ranked = rank_heads(results)
    for kind, rows in ranked.items():
        console.print(f"\n{describe_ranking(results, kind, rows)}", style="bold", highlight=False)
        if rows:
            console.print(_table_of_heads(rows))
    _print_requested(results, console)
    if means := means_note(results, ranked.values()):
        console.print(means, style="dim")
    if "group_weight" in results:
        print_groups(results, console)
    if "by" in results.coords:
        print_contrasts(results, console)
    console.print(f"\n{describe_labels(results)}", highlight=False, markup=False)
    console.print(WEIGHTS_NOTE, style="dim")


def _print_requested(results: xr.Dataset, console: Console) -> None:
    """Statistics that are not there by default: of which head they are lowest and highest, beside equal weights."""
    from rich.table import Column, Table

    from attnscope.measure.quantities import DEFAULT, OF_OFFSETS, STATISTICS
    from attnscope.measure.stored import describe_windows

    known = STATISTICS | OF_OFFSETS
    asked = [str(name) for name in results.data_vars if name in known and name not in DEFAULT]
    table = Table(Column("statistic", no_wrap=True), "lowest", "head", "mean", "highest", "head", "equal")
    more = []
    for statistic in asked:
        means = _means_of(results, statistic)
        equal = _means_of(results, f"equal_{statistic}") if f"equal_{statistic}" in results else {}
        for name, values in means.items():
            table.add_row(name, *_ends_and_mean(values), _mean_text(equal.get(f"equal_{name}")))
        more += [] if means else [statistic]
    if table.row_count:
        each = describe_windows(results)
        console.print(
            f"\nstatistics asked for: means over {each}; head: layer.head", style="bold", highlight=False
        )
        console.print(table)
        console.print(
            "Equal: what equal weights over all that a token may see give. Each head's: --csv or --json.",
            style="dim",
        )
    if more:
        elsewhere = (
            "In bins that double on the page and in --json, which has every offset; sums: attnscope.open_run."
        )
        kept = f"More than one number a head, so not in this table: {', '.join(more)}. {elsewhere}"
        console.print(kept, style="dim", highlight=False, markup=False)


def _ends_and_mean(values: np.ndarray) -> tuple[str, ...]:
    """The lowest value and its head, the mean, the highest value and its head; dashes where nothing is known."""
    known = np.isfinite(values)
    if not known.any():
        return "–", "", "–", "–", ""
    ends = []
    for find, beyond in ((np.argmin, np.inf), (np.argmax, -np.inf)):
        layer, head = np.unravel_index(find(np.where(known, values, beyond)), values.shape)
        ends.append((significant(values[layer, head], 3), f"{layer}.{head}"))
    (low, lowest), (high, highest) = ends
    if low == high:  # then no head is the one
        lowest = highest = ""
    return low, lowest, _mean_text(values), high, highest


def _mean_text(values: np.ndarray | None) -> str:
    if values is None:
        return ""
    known = values[np.isfinite(values)]
    return significant(known.mean(), 3) if known.size else "–"


def _table_of_heads(rows: Sequence[RankedHead]) -> Table:
    """Columns for what the rows have."""
    from rich.table import Table

    columns = {
        "layer": lambda row: str(row["layer"]),
        "attention": lambda row: row["attention"],
        "head": lambda row: str(row["head"]),
        "weight": lambda row: f"{row['value']:.3f}",
        "offset": lambda row: row["offset"] if isinstance(row["offset"], str) else f"{row['offset']:+d}",
        "kind of head": lambda row: row["label"],
    }
    for name in ("attention", "offset"):
        if not any(name in row for row in rows):
            del columns[name]
    if not any(row["label"] for row in rows):
        del columns["kind of head"]
    table = Table()
    for column in columns:
        table.add_column(column, justify="left" if column in ("attention", "kind of head") else "right")
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()))
    return table


_PAIRS = 10  # that a table shows


def groups_dict(results: xr.Dataset) -> dict[str, Any]:
    """What ``--json`` says of groups."""
    from attnscope.comparison.spans import NULLS, MeanGroupWeights, group_pairs, said_of

    means, pairs = MeanGroupWeights.of(results), group_pairs(results)
    return {
        "names": results.group_query.values.tolist(),
        "says": [f"{said_of(pairs)}.", NULLS],
        "pairs": [pair.as_dict() for pair in pairs],
        "weight": with_nulls(means.weight),
        "equal": with_nulls(means.equal),
        "places": with_nulls(means.places),
    }


def group_columns(results: xr.Dataset) -> dict[str, Any]:
    """Columns of the CSV for each pair of groups that are there: weight, and that of equal weights and places alone."""
    from attnscope.comparison.spans import MeanGroupWeights

    means = MeanGroupWeights.of(results)
    names = {int(number): str(results.group_query.values[number]) for number in means.present}
    kinds = {
        "group_weight": means.weight,
        "equal_group_weight": means.equal,
        "place_group_weight": means.places,
    }
    return {
        f"{kind} {query} > {key}": values[:, :, i, j]
        for i, query in names.items()
        for j, key in names.items()
        for kind, values in kinds.items()
    }


def print_groups(results: xr.Dataset, console: Console) -> None:
    """The pairs of groups between which a head looks most, beside equal weights."""
    from rich.table import Table

    from attnscope.comparison.spans import NULLS, explain_no_interval, group_pairs, said_of

    every = group_pairs(results)
    pairs = [pair for pair in every if pair.above > 0]
    console.print(
        "\ngroups of tokens: for each pair, the head furthest above both nulls", style="bold", highlight=False
    )
    table = Table()
    for column in ("queries", "keys", "head", "weight", "equal", "places"):
        table.add_column(column, justify="left" if column in ("queries", "keys") else "right")
    table.add_column("above, 95%", justify="right", no_wrap=True)
    table.add_column("beyond chance")
    for pair in pairs[:_PAIRS]:
        known = pair.low == pair.low
        above = f"{pair.low:.2f} to {pair.high:.2f}" if known else f"{pair.above:+.2f}"
        table.add_row(
            escape(pair.query),
            escape(pair.key),
            f"{pair.layer}.{pair.head}",
            *(f"{value:.2f}" for value in (pair.weight, pair.equal, pair.places)),
            above,
            {True: "yes", False: "not shown", None: "not known"}[pair.beyond_chance],
        )
    if pairs:
        console.print(table)
    largest = f"; the largest {_PAIRS} are shown, all are in --json and --csv" if len(pairs) > _PAIRS else ""
    heads = results.sizes["layer"] * results.sizes["head"]
    console.print(
        f"{said_of(every)}{largest}. Each is the largest of {heads} heads: its interval is of that head by itself. "
        f"{explain_no_interval(pairs[:_PAIRS])}Above: the weight less the larger null. {NULLS}",
        style="dim",
        highlight=False,
    )


ROOM = 1_000_000  # numbers of one profile over all heads: of more, the run folder alone has them


def offsets_dict(results: xr.Dataset) -> dict[str, Any] | None:
    """Shares of the weight by offset: ``bins`` that double, the ``band``, ``every`` offset, ``chosen`` ones."""
    from attnscope.measure.offset_shares import shares_by_offset

    profiles = {of: shares_by_offset(results, of) for of in ("bins", "band", "every")}
    told = {
        of: None if shares is None else _dict_of(shares.seen(), single=of != "bins")
        for of, shares in profiles.items()
    } | {"chosen": _chosen(results)}
    return told if any(part is not None for part in told.values()) else None


def _chosen(results: xr.Dataset) -> dict[str, Any] | None:
    if "weight_at" not in results:
        return None
    means = {"share": results.weight_at.mean("text"), "equal": results.equal_weight_at.mean("text")}
    return {"offset": results.chosen_offset.values.tolist()} | {
        name: with_nulls(values.transpose(..., "chosen_offset").values) for name, values in means.items()
    }


def _dict_of(shares: OffsetShares, *, single: bool) -> dict[str, Any]:
    if shares.share.size > ROOM:
        count = f"{shares.share.size:,} numbers are more than {ROOM:,}"
        return {"left_out": f"{count}: the sums are in the run folder, and attnscope.open_run reads them"}
    ends = {"offset": shares.first} if single else {"first": shares.first, "last": shares.last}
    return {name: offsets.tolist() for name, offsets in ends.items()} | {
        "share": with_nulls(shares.share),
        "equal": None if shares.equal is None else with_nulls(shares.equal),
    }


_SHOWN = 12  # differences that the table shows


def contrasts_dict(results: xr.Dataset) -> dict[str, Any]:
    """What ``--json`` says of them."""
    from attnscope.comparison.contrasts import contrast_rows, contrasts, describe_contrasts, field_of
    from attnscope.results.account import describe_groups

    field = field_of(results)
    if len(set(results.by.values)) == 1:
        return {"field": field, "says": describe_groups(results), "differences": []}
    tested = contrasts(results)
    return {"field": field, "says": describe_contrasts(tested), "differences": contrast_rows(tested)}


def print_contrasts(results: xr.Dataset, console: Console) -> None:
    """The largest differences that are told from 0."""
    from rich import box
    from rich.table import Table

    from attnscope.comparison.contrasts import contrast_rows, contrasts, describe_contrasts, field_of
    from attnscope.results.account import describe_groups

    if len(set(results.by.values)) == 1:
        for sentence in describe_groups(results):
            console.print(f"\n{sentence}", style="bold", highlight=False, markup=False)
        return
    tested = contrasts(results)
    first, *others = describe_contrasts(tested)
    console.print(f"\n{first}", style="bold", highlight=False, markup=False)
    for sentence in others:
        console.print(sentence, highlight=False, markup=False)
    rows = [row for row in contrast_rows(tested) if row["differs"]]
    if not rows:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("layer", "head"):
        table.add_column(heading, justify="right", overflow="fold")
    for heading in ("statistic", field_of(results)):
        table.add_column(escape(heading), overflow="fold")
    for heading in ("mean", "others", "difference", "95% interval"):
        table.add_column(heading, justify="right", overflow="fold")
    for row in rows[:_SHOWN]:
        names = [str(row[name]) for name in ("layer", "head", "statistic", "by")]
        numbers = [float(str(row[name])) for name in ("mean", "others", "difference", "low", "high")]
        table.add_row(*map(escape, names), *change_texts(*numbers))
    console.print(table)
    if len(rows) > _SHOWN:
        console.print(f"and {len(rows) - _SHOWN} more: --json lists all", highlight=False)
