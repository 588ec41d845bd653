"""Every function that users import, a file each: its signature is the only declaration of its options.

The check of arguments, the command with its help, the docstring and the reference derive from the signature. A file
imports nothing heavy: its function does so, checks what needs no model, opens the model, and runs its job.
"""

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from inspect import Parameter, cleandoc, signature
from textwrap import indent, wrap
from typing import Any, ParamSpec, TypeVar

from attnscope.model_names import models_of
from attnscope.support.checked import checked, declaration, marked
from attnscope.support.errors import AttnscopeError

P = ParamSpec("P")
R = TypeVar("R")


def verb(
    *,
    examples: tuple[tuple[str, str], ...] = (),
    borrows: bool = True,
    before: Callable[[Mapping[str, Any]], None] | None = None,
    **defaults: object,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a verb of a function: check its arguments, document its options, and borrow its model while it runs.

    `examples` are lines of the help: a command, and what it does. `before` checks its arguments before anything that
    takes long is imported. `defaults` are those of shared options.
    """

    def declare(function: Callable[P, R]) -> Callable[P, R]:
        takes_model = borrows and "model" in signature(function).parameters
        surroundings = _on_models if takes_model else _in_own_state

        def around(name: str, arguments: dict[str, Any]) -> AbstractContextManager[Any]:
            if before is not None:
                before(arguments)
            return surroundings(name, arguments)

        declared = checked(around=around, **defaults)(function)
        if takes_model and "out" in declaration(declared):
            declared = _over_models(declared)
        declared.__doc__ = _documented(function.__doc__ or "", declaration(declared))
        declared.examples = examples  # pyright: ignore[reportFunctionMemberAccess]
        return declared

    return declare


def _documented(doc: str, parameters: Mapping[str, Parameter]) -> str:
    """A docstring with the sentences of the options in front of its other sections."""
    lines = [*cleandoc(doc).split("\n"), ""]
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


def _over_models(function: Callable[P, Any]) -> Callable[P, Any]:
    """Run a verb on each of several models, if they are its model."""

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> Any:
        models = models_of(arguments[0] if arguments else named.get("model"))
        if models is None:
            return function(*arguments, **named)
        if named.get("dry_run"):
            raise AttnscopeError(f"a dry run (--dry-run) plans one model, and found {len(models)}: name one of them")
        from attnscope.results.several import on_each

        return on_each(function, models, signature(function).bind(*arguments, **named).arguments)

    return call


@contextmanager
def _on_models(name: str, arguments: dict[str, Any]) -> Generator[None]:
    """Borrow the models among the arguments of a verb, and make `out` a local folder."""
    from attnscope.capture.borrow import borrowed_arguments
    from attnscope.read.readers import with_rows

    arguments |= {"texts": with_rows(arguments["texts"])} if "texts" in arguments else {}
    with _in_own_state(), borrowed_arguments(name, arguments):
        yield


def _in_own_state(*_: object) -> AbstractContextManager[Any]:
    """Compute as in a fresh process; what is not loaded has no modes, and to read results does not need PyTorch."""
    if "torch" not in sys.modules:
        import numpy as np

        return np.errstate(divide="warn", over="warn", under="ignore", invalid="warn")
    from attnscope.support.state import own_state

    return own_state()
