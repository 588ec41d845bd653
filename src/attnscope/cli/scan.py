"""`attnscope scan`: it lists the statistics, and shows heads on the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.cli.output import emit, run
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.cli.options import Output
    from attnscope.measure.quantities import Wording


def scan(arguments: dict[str, Any], output: Output) -> None:
    """Run the command."""
    statistics = arguments.get("statistics", ())
    if statistics == ["list"]:
        list_statistics()
        return
    heads = arguments.get("show")
    if heads and not output.report:
        raise AttnscopeError("--show names heads of the page, and --no-report makes none: leave out one of them")
    if "observation" in arguments and not any("recent_" in name for name in statistics):
        raise AttnscopeError(
            "--observation needs a statistic recent_...: add one, such as --statistics recent_top_key, or leave it out"
        )
    show = (heads or ()) if output.report else False
    arguments["show"] = show
    run("scan", output, page_heads=(heads or []) if output.report else None, **arguments)


def list_statistics() -> None:
    """The output of ``--statistics list``."""
    from attnscope.measure.quantities import DEFAULT, OF_GROUPS, OF_OFFSETS, PATCH_STATISTICS, STATISTICS, SUMMARIES
    from attnscope.report.registry import load_records

    load_records()
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
