"""Types and shapes, checked at each call of attnscope: jaxtyping's import hook with a cheaper decorator.

jaxtyping's own binds the arguments of every call and checks them twice, to tell which one was wrong: that took a third
of the time of these tests. beartype names the argument too, and only a signature with shapes needs a context in which
each name of a dimension has one size.
"""

import functools
import inspect
import types
import typing
from dataclasses import is_dataclass

import jaxtyping
from beartype import beartype
from jaxtyping import AbstractArray, config

_CONTEXT = jaxtyping.jaxtyped("context")  # one object for all calls: it holds nothing


def install(modules):
    """Check every call of a function of these modules, which are not imported yet."""
    jaxtyping.jaxtyped = checked  # by which name the import hook decorates
    jaxtyping.install_import_hook(modules, None)


def checked(decorated=None, *, typechecker=None):
    """A function that checks what it is given and returns; of a dataclass, what it is made of."""
    if decorated is None:
        return checked
    if inspect.isclass(decorated):
        if is_dataclass(decorated) and "__init__" in vars(decorated):
            decorated.__init__ = checked(decorated.__init__)
        return decorated
    hints = {name: _resolved(hint, decorated.__globals__) for name, hint in decorated.__annotations__.items()}
    checking = beartype(_annotated(decorated, hints))
    has_shapes = any(map(_is_array, hints.values()))

    @functools.wraps(decorated)
    def call(*args, **kwargs):
        if config.jaxtyping_disable:
            return decorated(*args, **kwargs)
        if not has_shapes:
            return checking(*args, **kwargs)
        with _CONTEXT:
            return checking(*args, **kwargs)

    return call


def _resolved(hint, names):
    """What a hint says; Any where it names what is imported for type checkers alone."""
    try:
        return typing.get_type_hints(types.SimpleNamespace(__annotations__={"hint": hint}), names)["hint"]
    except Exception:  # noqa: BLE001 a hint may be anything
        return typing.Any


def _annotated(function, hints):
    copy = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, hints
    copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
    return copy


def _is_array(hint):
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return True
    return any(map(_is_array, typing.get_args(hint)))
