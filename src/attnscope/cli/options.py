"""Commands from the signatures of verbs, and the form of the help."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, cast, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from attnscope.catalogue import function_of, verb_of, verbs, where_to_find
from attnscope.cli.output import run
from attnscope.options import (
    IN_PYTHON,
    INPUT,
    MEASURE,
    MODEL,
    OUTPUT,
    PANELS,
    Flag,
    Panel,
    Typed,
    is_sentence,
    path_of,
    run_folder,
)
from attnscope.report.language import LANGUAGES, language, set_language, translate, wrapped
from attnscope.support.checked import alternatives, bare, declaration, marked
from attnscope.support.errors import AttnscopeError


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where and in which form a command leaves its results."""

    out: Annotated[Path | None, IN_PYTHON] = None  # the verb has an option for it
    report: Annotated[bool, OUTPUT, "Write a page (report.html) and figures next to the results."] = True
    figures: Annotated[
        str,
        OUTPUT,
        Typed(metavar="FORMAT,..."),
        "Draw figures in these formats, with commas between: svg, pdf, png; or none.",
    ] = "svg"
    as_json: Annotated[bool, OUTPUT, Flag("json"), "Print JSON instead of a table."] = False
    as_csv: Annotated[bool, OUTPUT, Flag("csv"), "Print CSV instead of a table: the rows of the first table."] = False
    as_latex: Annotated[bool, OUTPUT, Flag("latex"), "Print the tables as LaTeX, for a paper."] = False
    legend: Annotated[bool, OUTPUT, "Explain the columns below the tables, with all caveats."] = False
    records: Annotated[
        Sequence[Path],
        MODEL,
        Flag("records"),
        Typed(path_of, "FILE", repeated=True),
        "Run this Python file first, with records of your own; may be repeated. They are statistics, roles, ablations "
        "or readers. Use it only for code that you trust.",
    ] = ()
    typed: Annotated[Mapping[str, Any], IN_PYTHON] = field(default_factory=dict[str, Any])  # by parameter
    formats: Annotated[tuple[str, ...], IN_PYTHON] = field(init=False, default=())

    @property
    def as_data(self) -> bool:
        """Whether standard output has data, not a report for people."""
        return self.as_json or self.as_csv or self.as_latex

    def __post_init__(self) -> None:
        if self.as_json + self.as_csv + self.as_latex > 1:
            raise AttnscopeError("--json, --csv and --latex all print to standard output: choose one")
        from attnscope.report.registry import load_file
        from attnscope.support.checks import check_formats

        for file in self.records:
            load_file("--records", file)
        formats = () if self.figures == "none" else check_formats([name.strip() for name in self.figures.split(",")])
        if not self.report and self.figures not in {"svg", "none"}:
            raise AttnscopeError("--figures is of the report: leave --no-report out, or --figures")
        object.__setattr__(self, "formats", formats)


def folder(name: str | Path) -> Path:
    """A run folder, as it was typed."""
    return run_folder("", str(name))


SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
#: What was typed, by the names of the verb's parameters.
Arguments: TypeAlias = dict[str, Any]


class Declared:
    """A parameter of a verb, or of its command alone, as the command line has it."""

    def __init__(self, parameter: inspect.Parameter) -> None:
        kind = parameter.annotation
        self.name, self.default = parameter.name, parameter.default
        self.flag = next(iter(marked(kind, Flag)), None)
        self.typed = next(iter(marked(kind, Typed)), None)
        self.sentences = " ".join(marked(kind, str)[:1])
        self.types = [bare(one) for one in alternatives(kind)]
        self.repeated = self.typed is not None and self.typed.repeated
        name = self.flag.name if self.flag else self.name
        self.is_argument = parameter.kind is not parameter.KEYWORD_ONLY and name == self.name
        # a parameter of several values has a name in the plural: one of them is typed at a time
        self.shown_name = name if self.flag or not (self.repeated or self.is_argument) else name.removesuffix("s")
        self.panel = next(iter(marked(kind, Panel)), INPUT if self.is_argument else MEASURE)
        #: Of the function that typer reads, whose arguments are named in a help as they are here.
        self.typer_name = self.shown_name if self.is_argument else self.name

    @property
    def kind(self) -> Any:
        """The type that is parsed by typer; None for an option of Python alone."""
        if self.flag == IN_PYTHON:
            return None
        if self.typed is not None:
            return str
        plain = [one for one in self.types if one in {bool, int, float, str, Path} or get_origin(one) is Literal]
        return plain[0] if plain else None

    @property
    def usual(self) -> str | bool:
        """The default as the help shows it; False where there is none."""
        stated = re.search(r"By default (.*?)\.(?= [A-Z`]|$)", self.sentences)
        is_number = isinstance(self.default, int | float) and self.default not in {False, True}
        if stated and not is_number:  # a verb may have another default than those that share its option
            return stated[1].replace("`", "")
        if self.default is True:
            return self.shown_name
        if self.default is None or self.default is False or self.default is inspect.Parameter.empty:
            return False
        if isinstance(self.default, tuple):
            each = cast("tuple[object, ...]", self.default)
            return ",".join("+".join(map(str, one)) if isinstance(one, tuple) else str(one) for one in each) or False
        return str(self.default)

    def for_typer(self) -> inspect.Parameter:
        """The parameter of the function that typer reads."""
        first = re.match(r".*?\.(?= [A-Z`]|$)", self.sentences)
        more: dict[str, Any] = {"help": first[0].replace("`", "") if first else "", "rich_help_panel": self.panel.name}
        stands = self.typed.usual if self.typed else ""
        is_needed = self.default is inspect.Parameter.empty and not stands
        kind: Any = list[str] if self.repeated else self.kind
        if self.is_argument:
            about: Any = typer.Argument(**more, show_default=stands or self.usual)
        else:
            name = self.shown_name.replace("_", "-")
            switch = kind is bool and self.default is not False
            names = [f"--{name}/--{(self.flag and self.flag.off) or f'no-{name}'}" if switch else f"--{name}"]
            names += [self.flag.short] if self.flag and self.flag.short else []
            metavar = self.typed.metavar if self.typed else None
            about = typer.Option(*names, **more, metavar=metavar, show_default=self.usual)
        default: Any = inspect.Parameter.empty if is_needed else stands or None
        annotation = Annotated[kind if is_needed else kind | None, about]
        return inspect.Parameter(
            self.typer_name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )

    def value(self, typed: Any) -> Any:
        """The value of what was typed."""
        if self.typed is None:
            return typed
        flag = self.shown_name if self.is_argument else f"--{self.shown_name.replace('_', '-')}"
        if self.repeated:
            return self.typed.gathered([self.typed.parse(flag, one) for one in typed])
        return self.typed.parse(flag, typed)


def commands() -> list[str]:
    """Names of the verbs that are commands: those that report, and those that have a command of their own."""
    return [name for name, verb in verbs().items() if verb.report or verb.command]


@cache
def command_of(verb: str) -> Any:
    """The command of a verb, from its signature; its module `command` has what differs."""
    function, command_module = function_of(verb), verb_of(verb).command

    def as_declared(arguments: Arguments, output: Output) -> None:
        run(verb, output, **arguments)

    special = getattr(import_module(command_module), verb) if command_module else as_declared
    of_command = inspect.signature(special, eval_str=False).parameters
    command = _command(function, special, of_command) if "arguments" in of_command else special
    command.__doc__ = _help(function)
    registry = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=SETTINGS)
    registry.command(verb, cls=Command, rich_help_panel=verb_of(verb).group)(command)
    return get_command(registry)


def _command(
    function: Callable[..., Any], special: Callable[..., None], of_command: Mapping[str, inspect.Parameter]
) -> Callable[..., None]:
    of_verb = declaration(function)
    of_its_own = [one for one in of_command.values() if one.kind is one.KEYWORD_ONLY and get_origin(one.annotation)]
    is_written = "output" in of_command
    of_output = [*inspect.signature(Output).parameters.values()] if is_written else []
    verb = verb_of(function.__name__)
    left_out = {"report", "figures"} if not verb.report else {"figures"} if not verb.figures else set[str]()
    declared = [Declared(one) for one in (*of_verb.values(), *of_its_own, *of_output) if one.name not in left_out]
    by_name = {one.typer_name: one for one in declared if one.kind is not None}

    def command(**typed: Any) -> None:
        arguments = {
            by_name[name].name: by_name[name].value(value)
            for name, value in _with_sentence(typed).items()
            if value is not None and value is not False and value != []
        }
        arguments |= {one.name: False for name, one in by_name.items() if typed[name] is False and one.default is True}
        more = {one.name: arguments.pop(one.name) for one in of_its_own if one.name in arguments}
        if is_written:
            written = {one.name: arguments.pop(one.name) for one in (*of_output,) if one.name in arguments}
            more["output"] = Output(**written, typed=typed)
            if written.get("records") and "ray" in arguments:
                raise AttnscopeError("Ray's actors do not run --records: install a package that registers them instead")
        special(arguments, **more)

    command.__signature__ = inspect.Signature([one.for_typer() for one in by_name.values()])  # pyright: ignore[reportFunctionMemberAccess]
    command.__annotations__ = {}
    return command


def _with_sentence(typed: dict[str, Any]) -> dict[str, Any]:
    """A sentence in place of the model is a text of the bundled model."""
    model = typed.get("model")
    if isinstance(model, str) and "text" in typed and is_sentence(model):
        return typed | {"model": None, "text": [model, *(typed["text"] or ())]}
    return typed


def _help(function: Any) -> str:
    """The first sentences of a docstring, and the examples as a paragraph that is not wrapped."""
    summary, _, _ = inspect.cleandoc(function.__doc__ or "").partition("\n\n")
    lines = getattr(function, "examples", ())
    width = max((len(line) for line, _ in lines), default=0)
    listed = "".join(f"\n  {line:{width}}  {does}".rstrip() for line, does in lines)
    return summary + (f"\n\n\b\nExamples:{listed}" if listed else "")


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
        said = translate(default) if " " in default else default  # what has one word is typed so
        return self._lines(translate(meaning) + (f" [{translate(word)}{colon}{said}]" if word else ""), taken)

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


class Root(Group):
    """The commands of verbs, each made when it is needed, and those of run folders."""

    @property
    def commands(self) -> dict[str, Any]:
        """Every command, by its name."""
        return {name: command_of(name) for name in commands()} | self._own

    @commands.setter
    def commands(self, own: dict[str, Any]) -> None:
        self._own = own

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """The names of all commands."""
        return [*commands(), *self._own]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """One command."""
        if cmd_name in commands():
            return command_of(cmd_name)
        if cmd_name not in verbs() and where_to_find(cmd_name):
            raise AttnscopeError(where_to_find(cmd_name))
        return self._own.get(cmd_name)


class Command(_Spoken, TyperCommand):
    """A command that rejects a comma-separated list given twice, as only the last would count."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments and options in groups."""
        panels: dict[str, list[tuple[str, str]]] = {panel.name: [] for panel in PANELS}
        of_verb = any(getattr(one, "rich_help_panel", None) for one in self.params)
        plain = MEASURE.name if of_verb else "Options"
        for parameter in self.get_params(ctx):
            record: Any = parameter.get_help_record(ctx)
            usual = INPUT.name if parameter.param_type_name == "argument" else plain
            usual = OUTPUT.name if {"-h", "--lang"} & {*parameter.opts} and of_verb else usual
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
    return "," in (option.metavar or "")
