"""Every function that users import, a file each: its signature is the only declaration of its options.

The check of arguments, the command with its help, the docstring and the reference derive from the signature. A file
imports nothing heavy. Its function hands its arguments to the function of a room, which nobody else checks again.
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from inspect import Parameter, cleandoc
from pkgutil import resolve_name
from textwrap import indent, wrap
from typing import Any, ParamSpec, TypeVar

from attnscope.support.checked import checked, declaration, marked

P = ParamSpec("P")
R = TypeVar("R")


def verb(
    *, examples: tuple[tuple[str, str], ...] = (), **defaults: object
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a verb of a function: check its arguments, and document its options.

    `examples` are lines of the help: a command, and what it does. `defaults` are those of shared options.
    """

    def declare(function: Callable[P, R]) -> Callable[P, R]:
        declared = checked(**defaults)(function)
        declared.__doc__ = _documented(function.__doc__ or "", declaration(declared))
        declared.examples = examples  # pyright: ignore[reportFunctionMemberAccess]
        return declared

    return declare


def _documented(doc: str, parameters: Mapping[str, Parameter]) -> str:
    """A docstring with the sentences of the options in front of its other sections."""
    lines = cleandoc(doc).split("\n")
    rules = [number for number, line in enumerate(lines) if line and not line.strip("-")]
    first = rules[0] - 1 if rules else len(lines)
    options = ["Parameters", "----------"]
    for name, parameter in parameters.items():
        sentences = marked(parameter.annotation, str)
        if sentences:
            star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
            options += [star + name, "\n\n".join(map(_wrapped, sentences[0].split("\n\n")))]
    return "\n".join([*lines[:first], *options, "", *lines[first:]]).rstrip() if len(options) > 2 else doc  # noqa: PLR2004


def _wrapped(paragraph: str) -> str:
    is_list = paragraph.startswith("* ")
    return indent(paragraph if is_list else "\n".join(wrap(paragraph, 112, break_long_words=False)), "    ")


def run(function: str, arguments: dict[str, Any]) -> Any:
    """Call the function of a room, ``module:name``, with the arguments of a verb."""
    arguments |= arguments.pop("reading", {})
    called = resolve_name(f"attnscope.{function}")
    with _state():
        return called(**arguments)


def run_on_model(function: str, arguments: dict[str, Any]) -> Any:
    """`run` for verbs that run models: it borrows the models, and makes `out` a local folder."""
    from attnscope.capture.borrow import borrowed_arguments

    arguments |= arguments.pop("reading", {})
    called = resolve_name(f"attnscope.{function}")
    with _state(), borrowed_arguments(called.__name__, arguments):
        return called(**arguments)


def _state() -> Any:
    if "torch" not in sys.modules:  # nobody has set its modes, and to read results does not need it
        return nullcontext()
    from attnscope.support.state import own_state

    return own_state()
