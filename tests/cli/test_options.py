"""Options of commands: named as the parameters in Python, in short helps, and wrong words in one line."""

import ast
import inspect
import re
import sys

import pytest
import typer

import attnscope
from attnscope.catalogue import function_of, verbs
from attnscope.cli import app
from attnscope.report import registry
from tests.cli.command import attnscope as typed
from tests.test_docstrings import SOURCE, nodes

# --- what a command takes has one name: that of its flag is that of the parameter in Python ---


COMMANDS = {
    name: command
    for name, command in typer.main.get_command(app).commands.items()
    if name in verbs() and name not in {"train", "runs"}  # fields of `TrainConfig`; a group
}
WRITTEN = {"json", "csv", "latex", "legend", "figures", "report", "lang", "records"}  # how a command prints and writes
FLAGS_ALONE = {
    "relations": {"from", "to"},  # in Python query and key: from is a keyword
    "generate": {"prompt"},  # in Python: a string among the texts
    "view": {"page", "port", "browser"},
    "translate": {"out"},  # in Python: .texts of the result
    "walk": {"markdown", "page", "check"},
}
PARAMETERS_ALONE = {
    "view": {"pair", "tokens", "query_tokens"},
    "explain": {"intervention_texts"},
    "relations": {"query", "key"},
    "translate": {"scores"},
}


def flags_of(command):
    """Long names of the options and names of the arguments, as identifiers."""
    for parameter in command.params:
        name = next((name for name in parameter.opts if name.startswith("--")), parameter.opts[0])
        yield name.lstrip("-").replace("-", "_")


@pytest.mark.parametrize("name", COMMANDS)
def test_flags_and_parameters_have_the_same_names(name):
    parameters = {*inspect.signature(function_of(name)).parameters} - {"progress"}
    flags = {*flags_of(COMMANDS[name])} - WRITTEN - FLAGS_ALONE.get(name, set())
    # a flag that may be repeated is in the singular
    named = {flag if flag in parameters else f"{flag}s" for flag in flags}
    assert named == parameters - PARAMETERS_ALONE.get(name, set())


#: Packages whose messages are of these commands alone: what they name must be their flags; of others, of any.
COMMANDS_OF = {"detection": ("roles", "examples", "card", "runs"), "explanation": ("explain",)}
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
OF_OTHERS = {"--no-deps", "--nproc-per-node", "--help", "--models", "--texts"}  # of torchrun, typer and benchmarks


def flags_below(command):
    own = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    return own.union(*map(flags_below, getattr(command, "commands", {}).values()))


@pytest.fixture(scope="module")
def flags_here():
    """The flags that a file of the package may name, by its path."""
    everything = typer.main.get_command(app)
    commands = everything.commands
    every = flags_below(everything)
    known = {
        place: set().union(*(flags_below(commands[name]) for name in names)) for place, names in COMMANDS_OF.items()
    }

    def here(path):
        place = path.relative_to(SOURCE).parent.as_posix()
        of = [flags for start, flags in known.items() if f"{place}/".startswith(f"{start}/")]
        return (of[0] if of else every) | OF_OTHERS

    return here


def test_a_message_names_flags_that_there_are(flags_here):
    missing = [
        f"{path.relative_to(SOURCE)}, line {node.lineno}: {flag}"
        for path, every in nodes().items()
        for node in every
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for flag in FLAG.findall(node.value)
        if flag not in flags_here(path)
    ]
    assert not missing


LISTS = [
    (name, parameter.opts[0])
    for name, command in typer.main.get_command(app).commands.items()
    for parameter in command.params
    if parameter.param_type_name == "option" and not parameter.multiple and "," in (parameter.metavar or "")
]


@pytest.mark.parametrize(("name", "flag"), LISTS)
def test_a_list_is_given_once(name, flag):
    with pytest.raises(attnscope.AttnscopeError, match=f"^{flag} is given twice, and only the last would count"):
        typer.main.get_command(app).main([name, flag, "1", f"{flag}=2"], standalone_mode=False)


@pytest.mark.parametrize("words", [["--offsets", "-1", "-64"], ["--offsets=-1", "-64"]])
def test_a_list_of_negative_numbers_needs_commas(words):
    with pytest.raises(attnscope.AttnscopeError, match=r"found --offsets -1 -64; .*: --offsets -1,-64"):
        typer.main.get_command(app).main(["scan", *words, "text.txt"], standalone_mode=False)
    command = typer.main.get_command(app).commands["scan"]
    assert command.make_context("scan", ["--offsets", "-1,-64"]).params["offsets"] == "-1,-64"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["scan", "--band", "x"], "--band is 'x'; expected a whole number. For help: attnscope scan --help"),
        (["translate", "model", "--beams", "0"], "beams (--beams) is 0; expected a whole number from 1 to 1000"),
        (["align", "m", "t", "--target", "t", "--rule", "q"], "--rule is 'q'; expected one of 'argmax', "),
        (["align"], "missing argument 'model'. For help: attnscope align --help"),
        (["scan", "--nosuch"], "no such option: --nosuch"),
        (["scan", "--widnow", "9"], "no such option: --widnow. Did you mean '--window'? For help: "),
        (["scen"], "no such command 'scen'. Did you mean 'scan', 'score'? For help: attnscope --help"),
        (["examples"], "missing option '--heads'. "),
        (["scan", "--limit"], "option '--limit' requires an argument. For help: attnscope scan --help"),
    ],
)
def test_wrong_words_are_explained_in_one_line(words, says, refused):
    refused(*words, says=says)


# --- the help of every parameter of every command names a thing, and ends ---


EVERY = {"attnscope": typer.main.get_command(app)}
EVERY |= EVERY["attnscope"].commands
EVERY |= {f"runs {name}": command for name, command in EVERY["runs"].commands.items()}


@pytest.mark.parametrize("name", EVERY)
def test_each_command_has_a_help(name):
    command = EVERY[name]
    assert command.get_help(command.make_context(name, [], resilient_parsing=True)).startswith("Usage: ")


@pytest.mark.parametrize("name", ["scan", "explain", "intervene", "roles", "generate", "patch"])
def test_a_help_fits_two_screens_and_opens_with_three_examples(name, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "100")
    lines = typed(name, "--help", cwd=tmp_path).stdout.splitlines()
    assert len(lines) <= 90
    assert max(map(len, lines)) <= 100
    start = lines.index("  Examples:")
    assert [line.split()[:2] for line in lines[start + 1 : start + 4]] == [["attnscope", name]] * 3
    headings = [line for line in lines if re.fullmatch("[A-Z][a-z]+:", line)]
    assert headings == ["Input:", "Model:", "Measure:", "Output:", "Scale:"]


@pytest.mark.parametrize("name", [name for name in EVERY if name in verbs()])
def test_a_help_shows_the_number_that_a_verb_takes_by_default(name):
    """Verbs may have another default of a shared option than its sentence says."""
    shown = {param.name: param.show_default for param in EVERY[name].params}
    for option, parameter in inspect.signature(function_of(name)).parameters.items():
        if type(parameter.default) in {int, float} and parameter.default > 1 and option in shown:
            assert str(shown[option]).startswith(f"{parameter.default}"), option


def test_the_help_groups_the_commands(tmp_path):
    lines = typed("--help", cwd=tmp_path).stdout.splitlines()
    headings = [line.strip(":") for line in lines if re.fullmatch("[A-Z][a-z]+:", line)]
    assert headings == ["Options", "Look", "Explain", "Test", "Compare", "Translate", "Runs"]


OWN = '''
import torch
import attnscope

@attnscope.statistic(needs=["entropy"], units="share")
def own_sharp(rows):
    """Queries with less than half a nat of entropy."""
    return rows.mean(rows.measures.entropy < 0.5)

@attnscope.reader("own_lines")
def lines(path):
    yield from path.read_text().splitlines()

def last(logits, inputs):
    """Largest logit of the last position."""
    return logits[:, -1].amax(-1)
'''


def test_a_file_of_own_records_is_run_and_its_runs_are_shown_without_it(tmp_path):
    (tmp_path / "records_of_mine.py").write_text(OWN)
    (tmp_path / "text.own_lines").write_text("The tide comes in twice a day.\nIt rained all day.\n")
    own = ["--records", "records_of_mine.py", "--statistics", "own_sharp", "--no-report", "--out", "run"]
    try:
        done = typed("scan", "bundled", "text.own_lines", *own, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        brief = ["--limit", "2", "--heads", "0.1", "--no-why", "--ablations", "zero", "--json", "--out", "other"]
        found = typed("intervene", "bundled", *brief, "--metric", "records_of_mine.py:last", cwd=tmp_path)
        assert '"metric_zero_mean"' in found.stdout, found.stderr
    finally:
        sys.modules.pop("records_of_mine", None)
        registry.forget()
    shown = typed("runs", "show", "run", cwd=tmp_path)
    assert "Queries with less than half a nat of entropy [share]" in shown.stdout
    (tmp_path / "json.py").write_text("")
    (tmp_path / "wrong.py").write_text("1 / 0")
    for words, reason in (
        (["--records", "absent.py"], "--records is absent.py; expected a Python file that is there"),
        (["--records", "json.py"], "--records is json.py, but there is another module json: rename the file"),
        (["--records", "wrong.py"], "--records: wrong.py failed: "),
        (["--records", "records_of_mine.py", "--ray", "local"], "Ray's actors do not run --records"),
    ):
        failed = typed("scan", "bundled", *words, cwd=tmp_path)
        assert (failed.returncode, reason in failed.stderr) == (2, True), failed.stderr
    for metric, reason in (
        ("last", "expected a Python file and its function"),
        ("json.py:last", "another module json"),
    ):
        failed = typed("patch", "bundled", "--metric", metric, cwd=tmp_path)
        assert (failed.returncode, reason in failed.stderr) == (2, True), failed.stderr
