"""Arguments and options that several commands take, each by the name under which a command declares it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

import typer
from typer.core import TyperCommand, TyperOption

from attnscope.read.urls import Url
from attnscope.support.checks import check_formats
from attnscope.support.errors import AttnscopeError

BUNDLED = "bundled"

Model = Annotated[
    str,
    typer.Argument(help=f"Model folder or hub id; '{BUNDLED}' is the small model that attnscope brings."),
]


@runtime_checkable
class PathOrUrl(Protocol):
    """What the help calls the place of a text; typer knows no unions."""

    @property
    def name(self) -> str:
        """Its last part."""
        ...

    @property
    def suffix(self) -> str:
        """How the last part ends."""
        ...


def path_or_url(given: str) -> Path | Url:
    """A path, or a URL."""
    return Url(given) if "://" in given else Path(given)


def run_folder(given: str | Path) -> Path:
    """A local folder; a URL and an empty name are rejected."""
    from attnscope.store.files import local_folder

    return local_folder(given)


Texts = Annotated[
    list[PathOrUrl] | None,
    typer.Argument(
        parser=path_or_url,
        help="Files or folders of text (UTF-8, .txt .md .jsonl, also .gz .bz2 .xz; .parquet .arrow), here or as URLs "
        "(s3://BUCKET/CORPUS); - is standard input; datasets:NAME:CONFIG:SPLIT a data set of Hugging Face.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        parser=run_folder,
        help="Run folder. A run that was stopped goes on there.",
        show_default="one under attnscope-runs",
    ),
]
Repair = Annotated[
    bool,
    typer.Option("--repair", help="Repair of a finished run: what was damaged is measured again."),
]
Task = Annotated[
    str | None,
    typer.Option(
        metavar="I/N|env",
        help="Part of the run that this process does, of N that share a folder; env asks torchrun or a Slurm array.",
        show_default="all of it",
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="local|auto|HOST:PORT",
        help="Ray whose actors measure: on this machine alone, on the cluster it is part of, or on the one of that "
        "address.",
        show_default="this process measures",
    ),
]
Workers = Annotated[
    int | None, typer.Option(help="Number of Ray's actors.", show_default="as many as there is room for")
]
RayGpus = Annotated[
    float | None,
    typer.Option(help="GPUs of each actor, or the part of one.", show_default="1 where there are any"),
]
Device = Annotated[
    str | None, typer.Option(help="Device: cpu, cuda, ...", show_default="cuda if there is one")
]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="Number format: float32, bfloat16, float16 or float64; int8 or int4 for the weights of linear layers.",
        show_default="as the model was saved",
    ),
]
Band = Annotated[int, typer.Option(help="Largest offset of the profiles.")]
Seed = Annotated[int, typer.Option(help="Seed of the random number generator.")]
Field = Annotated[
    str | None, typer.Option(help="Field of JSON Lines that holds the text.", show_default="text")
]
ByLine = Annotated[
    bool, typer.Option("--by-line", help="Lines as texts: every line of a file is a text of its own.")
]
TARGET = (
    "Translation of the text, for the decoder of an encoder-decoder; may be repeated. "  # and how it is cut
)
DeviceMap = Annotated[
    str | None,
    typer.Option(
        metavar="auto|balanced|balanced_low_0|sequential",
        help="Rule by which layers go to several devices, to memory or to the disk, of a model that is larger than one "
        "device (accelerate).",
        show_default="one device",
    ),
]
MaxMemory = Annotated[
    str | None,
    typer.Option(
        metavar="0=10GiB,cpu=30GiB",
        help="Most that --device-map may fill: of each GPU, by its number, and of the machine's memory (cpu). What is "
        "left of the model stays on the disk.",
        show_default="all that is free",
    ),
]
GROUPS, WORDS = ("kinds", "roles"), ("unicode", "space")  # rules that are known by name
Chat = Annotated[
    bool,
    typer.Option(
        "--chat", help="Chats: each line of JSON Lines holds messages.", show_default="by the first line"
    ),
]
ChatTemplate = Annotated[
    Path | None, typer.Option(help="Jinja file that writes chats out.", show_default="the tokenizer's own")
]
Variants = Annotated[
    int | None,
    typer.Option(
        help="Largest number of variants side by side.", show_default="what the device is quickest with"
    ),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        help="Folder or hub id of the tokenizer (of images, the processor).", show_default="the model's"
    ),
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Permission to run code that comes with the model.")
]
Report = Annotated[bool, typer.Option(help="Page (report.html) and figures beside the results.")]
Figures = Annotated[
    str, typer.Option(help="Formats of the figures, with commas between: svg, pdf, png; or none.")
]
USUAL_FIGURES = "svg"  # the quickest to draw
AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output instead of a table.")]
AsCsv = Annotated[
    bool, typer.Option("--csv", help="CSV on standard output instead of a table: one line for each head.")
]


_NEGATIVE = re.compile(r"[-\u2212][0-9]")


class Command(TyperCommand):
    """A command that refuses a list with commas between when it is given twice: only the last would count."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of the command line."""
        lists = {name for option in self.params if _is_list(option) for name in option.opts}
        words = [part for word in args for part in (word.split("=", 1) if word.startswith("--") else [word])]
        for flag, first, second in zip(words, words[1:], words[2:], strict=False):
            if flag in lists and _NEGATIVE.match(second):
                raise AttnscopeError(
                    f"found {flag} {first} {second}; expected commas between, without spaces: {flag} {first},{second}"
                )
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option in given:
            if _is_list(option) and given.count(option) > 1:
                raise AttnscopeError(
                    f"{option.opts[0]} is given twice, and only the last would count: give it once, with commas between"
                )
        return super().parse_args(ctx, args)


def _is_list(option: object) -> bool:
    """Whether an option takes several values at once, with commas between."""
    if not isinstance(option, TyperOption) or option.multiple:
        return False
    return "," in (option.metavar or "") or "with commas between" in (option.help or "")


def memory_of(given: str | None) -> dict[int | str, str] | None:
    """What each device may take, from ``0=10GiB,cpu=30GiB``."""
    if given is None:
        return None
    sizes: dict[int | str, str] = {}
    for part in given.split(","):
        device, equals, size = part.strip().partition("=")
        if not equals or not size or not (device == "cpu" or device.isdecimal()):
            raise AttnscopeError(
                f"--max-memory is {given!r:.60}; expected devices and sizes, as in 0=10GiB,cpu=30GiB"
            )
        sizes[device if device == "cpu" else int(device)] = size
    return sizes


def rule_or_file(given: str | None, known: tuple[str, ...]) -> str | Path | None:
    """A rule by its name, else the file of that name."""
    if given is None or given in known:
        return given
    if not Path(given).is_file():
        raise AttnscopeError(f"{given}: no such file; choose {' or '.join(known)}, or a file that is there")
    return Path(given)


def formats_of(figures: str, *, report: bool = True) -> tuple[str, ...]:
    """The formats that ``--figures`` asks for; other than the usual ones are refused without a report."""
    formats = () if figures == "none" else check_formats([name.strip() for name in figures.split(",")])
    if not report and figures not in {USUAL_FIGURES, "none"}:
        raise AttnscopeError("--figures is of the report: leave --no-report out, or --figures")
    return formats


def reject_two_formats(*, as_json: bool, as_csv: bool) -> None:
    """Standard output takes one format."""
    if as_json and as_csv:
        raise AttnscopeError("--json and --csv both want the standard output: choose one")


def offsets_of(flag: str, given: str) -> list[int]:
    """Offsets as people write them."""
    try:
        return [int(offset) for offset in given.replace("\u2212", "-").split(",")]
    except ValueError:
        raise AttnscopeError(
            f"{flag} is {given!r}: give whole numbers with commas between, negative to the left, as in -1,-64"
        ) from None


def heads_of(flag: str, given: str | None) -> list[tuple[int, int]]:
    """Heads as people write them."""
    from attnscope.support.errors import AttnscopeError

    heads: list[tuple[int, int]] = []
    for name in given.split(",") if given else []:
        layer, _, head = name.strip().partition(".")
        if not (layer.isdecimal() and head.isdecimal()):
            raise AttnscopeError(
                f"{flag} is {given!r}: give heads as layer.head, with commas between, as in 3.6,10.5"
            )
        heads.append((int(layer), int(head)))
    return heads
