"""Options that commands share, for input and output, declared once, and the form of the help."""

import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, cast, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from attnscope.capture.parameters import ScanReading, TranslationOptions
from attnscope.cli.output import wrapped
from attnscope.read.urls import Url
from attnscope.report.language import LANGUAGES, language, set_language, translate
from attnscope.support.arguments import option_types, shared_docs
from attnscope.support.checks import check_formats
from attnscope.support.errors import AttnscopeError

BUNDLED = "bundled"


def is_sentence(name: str) -> bool:
    """Whether a text was typed: with a space or letters beyond ASCII, and neither a URL nor the form of a path."""
    typed = " " in name or not (name.isascii() or "/" in name)
    return typed and not re.search(r"://|\.[A-Za-z]\w{1,6}$|/$", name) and not os.path.exists(name)  # noqa: PTH110 of any length


def text_or_place(name: str | Path) -> str | Path | Url:
    """A text, a path or a URL."""
    if not (name := str(name)).strip():
        raise AttnscopeError("found an empty text; expected a text, a path or a URL")
    return name if is_sentence(name) else Url(name) if "://" in name else Path(name)


def run_folder(name: str | Path) -> Path:
    """A local folder; a URL and an empty name are rejected."""
    from attnscope.store.files import local_folder

    return local_folder(name)


def option(
    kind: Any,
    default: Any,
    help: str,  # noqa: A002
    *flags: str,
    panel: str | None = None,
    **more: Any,
) -> tuple[Any, Any]:
    """The annotation and the default of an option."""
    return Annotated[kind, typer.Option(*flags, help=help, rich_help_panel=panel, **more)], default


def argument(kind: Any, default: Any, help: str, **more: Any) -> tuple[Any, Any]:  # noqa: A002
    """The annotation and the default of an argument; `inspect.Parameter.empty` if it is required."""
    return Annotated[kind, typer.Argument(help=help, **more)], default


_DOCS = shared_docs(ScanReading) | shared_docs(TranslationOptions)
_TYPES = option_types(ScanReading) | option_types(TranslationOptions)
#: Types and defaults of options, by the annotations of the parameters.
_OPTION_TYPES: dict[str, tuple[Any, Any]] = {
    "bool": (bool, False),
    "Seed": (int, 0),
    "Count | None": (int | None, None),
    "int | None": (int | None, None),
    "float | None": (float | None, None),
    "str | Path | None": (Path | None, None),
}


def _shared(panel: str, name: str, **more: Any) -> tuple[Any, Any]:
    """The option of a parameter that verbs share: its type and default, and the first sentence of what it means."""
    kind, default = _OPTION_TYPES.get(_TYPES[name], (str | None, None))
    first = re.match(r".*?\.(?= [A-Z]|$)", " ".join(_DOCS.get(name, "").split()))  # without docstrings: python -OO
    flags = [f"--{name.replace('_', '-')}"] if kind is bool else []
    return option(kind, default, more.pop("help", first[0] if first else ""), *flags, panel=panel, **more)


_TEXT = (
    "Texts in quotes, or files or folders of text (.txt .md .jsonl .csv .tsv, also .gz .bz2 .xz; .parquet .arrow) or "
    "their URLs; - is standard input, datasets:NAME:CONFIG:SPLIT a data set of Hugging Face."
)
INPUT, MODEL, MEASURE, OUTPUT, SCALE = PANELS = ("Input", "Model", "Measure", "Output", "Scale")
#: Annotation and default of every option that several commands take, by the name of its parameter.
SHARED: dict[str, tuple[Any, Any]] = {
    "model": argument(str, BUNDLED, f"Model folder or hub id; '{BUNDLED}' is the small model of attnscope."),
    "text": argument(list[str] | None, None, _TEXT, parser=text_or_place),
    "target": option(
        list[str] | None, None, "Translation for the decoder, line by line; may be repeated.", panel=INPUT,
        metavar="PATH", parser=text_or_place,
    ),
    "window": _shared(INPUT, "window", show_default="the model's length, at most 512"),
    "limit": _shared(INPUT, "limit", show_default="all"),
    "field": _shared(INPUT, "field", show_default="text"),
    "by_line": _shared(INPUT, "by_line"),
    "chat": _shared(INPUT, "chat", show_default="by the first line"),
    "chat_template": _shared(
        INPUT, "chat_template", help="Jinja file that writes chats out.", show_default="the tokenizer's"
    ),
    "tokenizer": _shared(MODEL, "tokenizer", show_default="the model's"),
    "revision": _shared(MODEL, "revision"),
    "trust_remote_code": _shared(MODEL, "trust_remote_code"),
    "target_language": _shared(MODEL, "target_language", metavar="CODE", show_default="the model's"),
    "device": _shared(MODEL, "device", show_default="cuda if there is one"),
    "dtype": _shared(MODEL, "dtype", show_default="as saved"),
    "device_map": _shared(MODEL, "device_map", metavar="RULE"),
    "max_memory": option(
        str | None, None, "Memory that --device-map may fill, such as 0=10GiB,cpu=30GiB; the rest is on disk.",
        metavar="SIZE,...", panel=MODEL,
    ),
    "band": option(int, 10, "Largest offset of the profiles.", panel=MEASURE),
    "seed": _shared(MEASURE, "seed"),
    "batch_size": option(int | None, None, "Windows at a time.", show_default="about 1,024 tokens' worth", panel=SCALE),
    "variants": option(
        int | None, None, "Largest number of variants side by side.", show_default="the quickest", panel=SCALE,
    ),
    "task": option(
        str | None, None, "Part of the run for this process, of N; env: as torchrun or Slurm says.",
        metavar="I/N|env", panel=SCALE,
    ),
    "ray": _shared(SCALE, "ray", metavar="ADDRESS"),
    "workers": _shared(SCALE, "workers", show_default="as many as fit"),
    "ray_gpus": _shared(SCALE, "ray_gpus", show_default="1 if any"),
    "repair": _shared(SCALE, "repair"),
    "out": option(
        Path | None, None, "Run folder; a stopped run resumes there.", parser=run_folder,
        show_default="one under attnscope-runs", panel=OUTPUT,
    ),
    "report": option(bool, True, "Page (report.html) and figures next to the results.", panel=OUTPUT),
    "figures": option(str, "svg", "Formats of the figures, with commas between: svg, pdf, png; or none.", panel=OUTPUT),
    "as_json": option(bool, False, "JSON on standard output instead of a table.", "--json", panel=OUTPUT),
    "as_csv": option(bool, False, "CSV on standard output: one line for each head.", "--csv", panel=OUTPUT),
    "legend": option(bool, False, "Explain the columns below the tables, with all caveats.", "--legend", panel=OUTPUT),
}  # fmt: skip
LOADING = ("tokenizer", "revision", "trust_remote_code", "device", "dtype")
READING = ("model", "text", "field", "by_line", *LOADING)
UNITS = ("task", "ray", "workers", "ray_gpus")
WRITING = ("out", "report", "figures", "as_json", "as_csv", "legend")
GROUPS, WORDS = ("types", "roles"), ("unicode", "space")  # rules that are known by name


def varied(name: str, default: Any = None, **changed: Any) -> tuple[Any, Any]:
    """A shared option with another default, help or `show_default`."""
    annotation, _ = SHARED[name]
    (option,) = annotation.__metadata__
    option = copy(option)
    for key, value in changed.items():
        setattr(option, key, value)
    return Annotated[annotation.__origin__, option], default


@dataclass(frozen=True)
class Output:
    """Where and in which form a command leaves its results."""

    out: Path | None = None
    report: bool = True
    figures: str = "svg"
    as_json: bool = False
    as_csv: bool = False
    legend: bool = False
    formats: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        if self.as_json and self.as_csv:
            raise AttnscopeError("--json and --csv both want the standard output: choose one")
        formats = () if self.figures == "none" else check_formats([name.strip() for name in self.figures.split(",")])
        if not self.report and self.figures not in {"svg", "none"}:
            raise AttnscopeError("--figures is of the report: leave --no-report out, or --figures")
        object.__setattr__(self, "formats", formats)


#: What was typed, by the names of the verb's parameters.
Arguments: TypeAlias = dict[str, Any]


def takes(
    *names: str,
    own: Mapping[str, tuple[Any, Any]] | None = None,
    others: type | None = None,
    examples: tuple[tuple[str, str], ...] = (),
    **changed: Any,
) -> Callable[[Callable[[Arguments, Output], None]], Callable[..., None]]:
    """Make a command of a function of arguments and output: of shared options, by name, and of its `own`.

    `changed` has other defaults, or whole declarations; `others` is a TypedDict of the verb, whose remaining parameters
    of a simple type become options too; `examples` are lines of the help: a command, and what it does.
    """

    def decorate(command: Callable[[Arguments, Output], None]) -> Callable[..., None]:
        declared = {name: SHARED[name] for name in names}
        for name, other in changed.items():
            declared[name] = other if isinstance(other, tuple) else varied(name, other, show_default=True)
        first = {name: declared.pop(name) for name in ("model", "text") if name in declared} | dict(own or {})
        for name, kind in {} if others is None else option_types(others).items():
            if kind in _OPTION_TYPES and name not in first | declared:
                first[name] = _shared(MEASURE, name)

        def run(**arguments: Any) -> None:
            output = Output(**{name: arguments.pop(name) for name in WRITING if name in names})
            if "text" in names and is_sentence(arguments["model"]):  # of the bundled model
                arguments |= {"text": [arguments["model"], *(arguments["text"] or ())], "model": BUNDLED}
            for name in {"text", "target"} & {*names}:
                arguments[f"{name}s"] = arguments.pop(name) or None
            if "max_memory" in arguments:
                arguments["max_memory"] = memory_of(arguments["max_memory"])
            command(arguments, output)

        run.__signature__ = inspect.Signature(  # pyright: ignore[reportFunctionMemberAccess]
            [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
                for name, (annotation, default) in (first | declared).items()
            ]
        )
        run.__annotations__ = {}
        run.__name__ = command.__name__
        run.__doc__ = "\n\n".join([inspect.cleandoc(command.__doc__ or ""), _examples(examples)]).rstrip()
        return run

    return decorate


def _examples(lines: tuple[tuple[str, str], ...]) -> str:
    """Examples as a paragraph of the help that is not wrapped."""
    width = max((len(line) for line, _ in lines), default=0)
    return "\b\nExamples:\n" + "\n".join(f"  {line:{width}}  {does}".rstrip() for line, does in lines) if lines else ""


_NEGATIVE = re.compile(r"[-\u2212][0-9]")
_DEFAULT = re.compile(r"\[default: \((.*?)\)(?=[;\]])")  # typer puts words into parentheses
_NAMES = 24  # columns of the names in a help
_KINDS = {"int": "N", "float": "X", "Path": "PATH"}


_declared = typer.Typer(add_completion=False)


@_declared.command()
def _declare(  # pyright: ignore[reportUnusedFunction] typer makes an option of it
    language: Annotated[
        Literal["en", "ja"] | None,
        typer.Option(
            "--lang", help="Language of terminal, pages and figures: by default the locale's.", expose_value=False
        ),
    ] = None,
) -> None: ...


_LANGUAGE = get_command(_declared).params[0]
_REMARK = re.compile(r"(.*?)(?:\s+\[((?:default: |required).*)\])?", re.DOTALL)
_BASE: Any = typer.Context.formatter_class


class _Formatter(_BASE):
    """A help in the user's language, in columns of which a Japanese letter fills two."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, prefix or translate("Usage: "))

    def write_heading(self, heading: str) -> None:
        super().write_heading(translate(heading))

    def write_text(self, text: str) -> None:
        if language() == "en":
            super().write_text(text)
            return
        paragraphs: list[str] = []
        for paragraph in text.split("\n\n"):
            lines = paragraph.split("\n")
            words = (re.split(r"(?<=\S)(\s{2,})", line) for line in lines[1:])
            whole = lines[0] == "\b"
            paragraphs.append(_fixed("".join(map(translate, p)) for p in words) if whole else self._lines(paragraph))
        super().write_text("\n\n".join(paragraphs))

    def write_dl(self, rows: Any, col_max: int = 30, col_spacing: int = 2) -> None:
        if language() != "en":
            first = min(max(len(name) for name, _ in rows), col_max) + col_spacing
            rows = [(name, self._meaning(text, first)) for name, text in rows]
        super().write_dl(rows, col_max, col_spacing)

    def _meaning(self, text: str, taken: int) -> str:
        meaning, remark = cast("Any", _REMARK.fullmatch(text)).groups()
        word, colon, default = (remark or "").partition(": ")
        return self._lines(
            translate(meaning) + (f" [{translate(word)}{colon}{translate(default)}]" if word else ""), taken
        )

    def _lines(self, text: str, taken: int = 0) -> str:
        return _fixed(wrapped(translate(" ".join(text.split())), self.width - self.current_indent - taken - 2))


def _fixed(lines: Iterable[str]) -> str:
    """A paragraph that click does not wrap."""
    return "\n".join(("\b", *lines))


class _Spoken:
    """A group that accepts --lang anywhere on the command line."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.params: list[Any] = [*self.params, _LANGUAGE]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of the command line: first the language, for the help and for errors."""
        ctx.formatter_class = _Formatter
        if ctx.parent is None:
            set_language()
        chosen = cast("Any", self).make_parser(ctx).parse_args(args=list(args))[0].get("language")
        if chosen in LANGUAGES:
            set_language(chosen)
        return cast("Any", super()).parse_args(ctx, args)


class Group(_Spoken, TyperGroup):
    """Commands in groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            short = (command.help or "").strip().partition("\n")[0]
            panels.setdefault(getattr(command, "rich_help_panel", None) or "Commands", []).append((name, short))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl([(f"{name:10}", short) for name, short in rows])


class Command(_Spoken, TyperCommand):
    """A command that rejects a comma-separated list given twice, as only the last would count."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments and options in groups."""
        panels: dict[str, list[tuple[str, str]]] = {panel: [] for panel in PANELS}
        own = MEASURE if any(getattr(one, "rich_help_panel", None) == OUTPUT for one in self.params) else "Options"
        for parameter in self.get_params(ctx):
            record: Any = parameter.get_help_record(ctx)
            usual = INPUT if parameter.param_type_name == "argument" else own
            usual = OUTPUT if {"-h", "--lang"} & {*parameter.opts} and own == MEASURE else usual
            panel: str = getattr(parameter, "rich_help_panel", None) or usual
            if record is not None:
                panels.setdefault(panel, []).append(
                    (_name_of(parameter).ljust(_NAMES), _DEFAULT.sub(r"[default: \1", " ".join(record[1].split())))
                )
        for panel, rows in panels.items():
            if rows:
                with formatter.section(panel):
                    formatter.write_dl(rows, col_max=_NAMES)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of the command line."""
        lists = {name for option in self.params if _is_list(option) for name in option.opts}
        words = [part for word in args for part in (word.split("=", 1) if word.startswith("--") else [word])]
        for flag, first, second in zip(words, words[1:], words[2:], strict=False):
            if flag in lists and _NEGATIVE.match(second):
                raise AttnscopeError(
                    f"found {flag} {first} {second}; expected commas between, without spaces: {flag} {first},{second}"
                )
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for option in order:
            if _is_list(option) and order.count(option) > 1:
                raise AttnscopeError(
                    f"{option.opts[0]} is given twice, and only the last would count: give it once, with commas between"
                )
        return super().parse_args(ctx, args)


def _name_of(parameter: Any) -> str:
    """An argument or an option as the help names it."""
    if parameter.param_type_name == "argument":
        return parameter.name.upper() + "..." * (parameter.nargs == -1)
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    if parameter.is_flag or parameter.count:
        return names
    kind = parameter.type_descriptor.annotation
    if get_origin(kind) is not Literal:
        kind = next(iter(get_args(kind)), kind)
    words = "|".join(get_args(kind)) if get_origin(kind) is Literal else _KINDS.get(kind.__name__, "TEXT")
    return f"{names} {parameter.metavar or words}"


def _is_list(option: object) -> bool:
    """Whether an option takes several values, separated by commas."""
    if not isinstance(option, TyperOption) or option.multiple:
        return False
    return "," in (option.metavar or "") or "with commas between" in (option.help or "")


def memory_of(text: str | None) -> dict[int | str, str] | None:
    """Memory limits by device, from ``0=10GiB,cpu=30GiB``."""
    if text is None:
        return None
    sizes: dict[int | str, str] = {}
    for part in text.split(","):
        device, equals, size = part.strip().partition("=")
        if not equals or not size or not (device == "cpu" or device.isdecimal()):
            raise AttnscopeError(f"--max-memory is {text!r:.60}; expected devices and sizes, as in 0=10GiB,cpu=30GiB")
        sizes[device if device == "cpu" else int(device)] = size
    return sizes


def rule_or_file(text: str | None, known: tuple[str, ...]) -> str | Path | None:
    """The name of a rule, or the path of a file of rules."""
    if text is None or text in known:
        return text
    if not Path(text).is_file():
        raise AttnscopeError(f"{text}: no such file; choose {' or '.join(known)}, or a file that is there")
    return Path(text)


def numbers_of(flag: str, text: str, example: str) -> list[int]:
    """Whole numbers as people write them."""
    try:
        return [int(number) for number in text.replace("\u2212", "-").split(",")]
    except ValueError:
        raise AttnscopeError(
            f"{flag} is {text!r}; expected whole numbers with commas between, as in {example}"
        ) from None


def heads_of(flag: str, text: str | None) -> list[tuple[int, int]]:
    """Heads as people write them."""
    heads: list[tuple[int, int]] = []
    for name in text.split(",") if text else []:
        layer, _, head = name.strip().partition(".")
        if not (layer.isdecimal() and head.isdecimal()):
            raise AttnscopeError(f"{flag} is {text!r}: give heads as layer.head, with commas between, as in 3.6,10.5")
        heads.append((int(layer), int(head)))
    return heads
