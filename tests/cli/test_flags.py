"""What a command takes has one name: that of its flag is that of the parameter in Python."""

import ast
import inspect
import re

import pytest
import typer

import attnscope
from attnscope.cli import app
from attnscope.support.checks import WITHOUT_FLAG
from tests.test_docstrings import SOURCE, trees

COMMANDS = {
    name: command
    for name, command in typer.main.get_command(app).commands.items()
    if name in attnscope.__all__ and name not in {"train", "runs"}  # fields of `TrainConfig`; a group
}
WRITTEN = {"json", "csv", "legend", "figures", "report", "lang"}  # what a command prints and writes beside its results
FLAGS_ALONE = {
    "generate": {"prompt"},  # in Python: a string among the texts
    "translate": {"out"},  # in Python: .texts of the result
    "walk": {"markdown", "toy", "seed"},
}
PARAMETERS_ALONE = {"explain": {"intervention_texts"}, "translate": {"scores"}}


def flags_of(command):
    """Long names of the options and names of the arguments, as identifiers."""
    for parameter in command.params:
        name = next((name for name in parameter.opts if name.startswith("--")), parameter.opts[0])
        yield name.lstrip("-").replace("-", "_")


@pytest.mark.parametrize("name", COMMANDS)
def test_flags_and_parameters_have_the_same_names(name):
    parameters = {*inspect.signature(getattr(attnscope, name)).parameters} - {"progress"}
    flags = {*flags_of(COMMANDS[name])} - WRITTEN - FLAGS_ALONE.get(name, set())
    # a flag that may be repeated is in the singular
    named = {flag if flag in parameters else f"{flag}s" for flag in flags}
    assert named == parameters - PARAMETERS_ALONE.get(name, set())


#: Packages whose messages tell of one command. What they name must be flags of that one; of others, of any.
COMMAND_OF = {"detection": "roles", "explanation": "explain"}
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
OF_OTHERS = {"--nproc-per-node", "--help", "--models", "--texts"}  # of torchrun, typer and benchmarks


def flags_below(command):
    own = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    return own.union(*map(flags_below, getattr(command, "commands", {}).values()))


@pytest.fixture(scope="module")
def flags_here():
    """The flags that a file of the package may name, by its path."""
    everything = typer.main.get_command(app)
    known = {place: flags_below(everything.commands[name]) for place, name in COMMAND_OF.items()}

    def here(path):
        place = path.relative_to(SOURCE).parent.as_posix()
        of = [flags for start, flags in known.items() if f"{place}/".startswith(f"{start}/")]
        return (of[0] if of else flags_below(everything)) | OF_OTHERS

    return here


def test_a_message_names_flags_that_there_are(flags_here):
    missing = [
        f"{path.relative_to(SOURCE)}, line {node.lineno}: {flag}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for flag in FLAG.findall(node.value)
        if flag not in flags_here(path)
    ]
    assert not missing


def test_a_checked_number_names_a_flag_only_if_there_is_one(flags_here):
    """Messages name the flag of a number, bounded in a signature or by a check, unless it has none."""
    checked = [
        (path, keyword.arg)
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in {"check_whole", "check_real"}
        for keyword in node.keywords
        if keyword.arg is not None
    ]
    checked += [
        (path, argument.arg)
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for argument in node.args.kwonlyargs
        if argument.annotation is not None
        and re.search(r"\b(Count|Natural|Draws|Seed)\b", ast.unparse(argument.annotation))
    ]
    assert len(checked) > 70
    wrong = {
        f"{path.relative_to(SOURCE)}: {name}"
        for path, name in checked
        if (f"--{name.replace('_', '-')}" in flags_here(path)) == (name in WITHOUT_FLAG)
    }
    assert not wrong
    assert {name for _, name in checked} >= WITHOUT_FLAG
    with pytest.raises(attnscope.AttnscopeError, match=r"^intervention_texts is 0; expected a whole number"):
        attnscope.explain(intervention_texts=0)


LISTS = [
    (name, parameter.opts[0])
    for name, command in typer.main.get_command(app).commands.items()
    for parameter in command.params
    if parameter.param_type_name == "option"
    and not parameter.multiple
    and ("," in (parameter.metavar or "") or "with commas between" in (parameter.help or ""))
]


@pytest.mark.parametrize(("name", "flag"), LISTS)
def test_a_list_is_given_once(name, flag):
    with pytest.raises(attnscope.AttnscopeError, match=f"^{flag} is given twice, and only the last would count"):
        typer.main.get_command(app).main([name, flag, "1", f"{flag}=2"], standalone_mode=False)


@pytest.mark.parametrize("words", [["--offsets", "-1", "-64"], ["--offsets=-1", "-64"]])
def test_a_list_of_negative_numbers_is_told_to_have_commas(words):
    with pytest.raises(attnscope.AttnscopeError, match=r"found --offsets -1 -64; .*: --offsets -1,-64"):
        typer.main.get_command(app).main(["scan", *words, "text.txt"], standalone_mode=False)
    command = typer.main.get_command(app).commands["scan"]
    assert command.make_context("scan", ["--offsets", "-1,-64"]).params["offsets"] == "-1,-64"


def test_of_a_single_value_the_last_counts():
    assert len(LISTS) > 15
    command = typer.main.get_command(app).commands["scan"]
    assert command.make_context("scan", ["--window", "16", "--window", "32"]).params["window"] == 32


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["scan", "--band", "x"], "--band is 'x'; expected a whole number. For help: attnscope scan --help"),
        (["translate", "model", "--beams", "0"], "--beams is '0'; expected 1 or more"),
        (["align", "m", "t", "--target", "t", "--rule", "q"], "--rule is 'q'; expected one of 'argmax', "),
        (["align"], "missing argument 'model'. For help: attnscope align --help"),
        (["scan", "--nosuch"], "no such option: --nosuch"),
        (["scen"], "no such command 'scen'"),
        (["scan", "--limit"], "option '--limit' requires an argument. For help: attnscope --help"),
    ],
)
def test_wrong_words_are_explained_in_one_line(words, says, refused):
    refused(*words, says=says)
