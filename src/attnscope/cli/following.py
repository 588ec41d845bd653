"""The commands that answer the next question, as they are typed: on the model and the texts of the run."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnscope.catalogue import Next, function_of, verb_of, verbs
from attnscope.cli.options import Declared
from attnscope.options import MEASURE, OUTPUT, SCALE, is_sentence
from attnscope.support.checked import declaration

if TYPE_CHECKING:
    from attnscope.report.schema import Report

_HEADS = 5  # that a command names, at most
_WINDOWS = 8  # fewer cannot be tested
_SHORT = 32  # tokens of all windows: fewer cannot be separated into position and text


def next_commands(report: "Report", typed: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Questions, each with the command that answers it; `typed` are the words of the run, by parameter."""
    if not typed:  # the command has no model
        return
    for one in verb_of(report.command).after:
        if one.command not in verbs():  # its package is not installed
            continue
        words = _words(one, report, dict(typed))
        if words is not None:
            yield one.question, shlex.join(["attnscope", one.command, *words])


def _words(one: Next, report: "Report", typed: dict[str, Any]) -> list[str] | None:
    """The words of a command; None if it cannot read what the run has read."""
    first, following = _declared(report.command), _declared(one.command)
    if typed.get("prompt"):
        typed["text"] = typed["prompt"]
        if not all(map(is_sentence, typed["text"])):  # a word alone is the name of a file
            return None
    inputs = [name for name in ("text", "pairs") if typed.get(name)]
    if not {*inputs} <= following.keys() or (one.needs and not typed.get(one.needs)):
        return None
    if one.command == report.command and typed.get(one.more.strip("-")):  # it was this command
        return None
    settings = report.signature.get("settings", {})
    is_chat = typed.get("chat") or settings.get("groups") == "roles"
    if (is_chat and "chat" not in following) or not _is_read(one.command, report.result):
        return None
    heads = [f"{layer}.{head}" for layer, head in _leading(report)[:_HEADS]]
    if "{" in one.more and not heads:
        return None
    positional, options = list[str](), list[str]()
    for name, parameter in following.items():
        is_input = name in inputs or parameter.panel not in {MEASURE, OUTPUT, SCALE}
        is_shared = name in first and parameter.panel == MEASURE and parameter.sentences == first[name].sentences
        value = typed.get(name)
        if value is None or value is False or value == [] or not (is_input or is_shared):
            continue
        values: Sequence[Any] = value if isinstance(value, list) else [value]
        if parameter.is_argument:
            positional += map(str, values)
            continue
        flag = f"--{parameter.shown_name.replace('_', '-')}"
        if name == "limit":
            values = [max(value, _WINDOWS)]
        options += [flag] if value is True else [word for one in values for word in (flag, str(one))]
    if any(word.startswith("-") and word != "-" for word in positional):
        return None
    texts = [*filter(is_sentence, [typed.get("model") or ""]), *(typed.get("text") or ())]
    if one.command == "intervene" and len(texts) == 1 and is_sentence(texts[0]):
        options += ["--ablations", "zero,mean"]  # to resample takes another text
    return [*positional, *options, *one.more.format(head="".join(heads[:1]), heads=",".join(heads)).split()]


def _declared(verb: str) -> dict[str, Declared]:
    parameters = map(Declared, declaration(function_of(verb)).values())
    return {one.typer_name: one for one in parameters if one.kind is not None}


def _leading(report: "Report") -> list[tuple[int, int]]:
    """The heads of the finding; else that of the first row."""
    rows = [(row["layer"], row["head"]) for row in report.rows[:1] if row.get("head") is not None]
    return report.finding.leading or rows


def _is_read(command: str, result: Any) -> bool:
    """Whether a verb can read what a run has read: texts; to explain, enough tokens; to attribute, answers of one."""
    attributes = getattr(result, "attrs", {})
    if attributes.get("reads"):
        return False
    if command == "attribute" and (attributes.get("unit") == "nats" or "answers" in attributes):
        return False
    coordinates = getattr(result, "coords", {})
    if command == "card" and "role" in coordinates:  # to check the loss, heads need a cache
        return any(name.startswith("kept_") for name in coordinates["role"].values.tolist())
    lengths = result["length"] if "length" in getattr(result, "data_vars", ()) else None
    return command != "explain" or lengths is None or int((lengths // (_SHORT // 2)).sum()) > 1
