"""Types and shapes, checked at each call of attnscope: jaxtyping's import hook with a cheaper decorator.

jaxtyping's own binds the arguments of every call and checks them twice, to tell which one was wrong: that took a third
of the time of these tests. beartype names the argument too, and only a signature with shapes needs a context in which
each name of a dimension has one size. What the innermost functions are given thousands of times is looked at in some
calls.
"""

import functools
import inspect
import types
import typing
from collections import Counter
from dataclasses import is_dataclass
from unittest.mock import patch

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray, _import_hook, config

_CONTEXT = jaxtyping.jaxtyped("context")  # one object for all calls: it holds nothing
_FIRST = 20  # calls of each function that are checked, in each process,
_ONE_IN = 50  # and then so many
_NESTED = 5  # definitions of a nested function that are checked: beartype compiles a checker for each of them

_defined: Counter[types.CodeType] = Counter()


def install(modules):
    """Check every call of a function of these modules, which are not imported yet."""
    jaxtyping.jaxtyped = checked  # by which name the import hook decorates
    _import_hook._JaxtypingLoader.exec_module = _exec_module
    names = frozenset(modules)
    # jaxtyping's own compares each module that anything imports with all of ours, one after the other
    _import_hook._JaxtypingFinder.should_instrument = lambda _finder, name: name in names
    jaxtyping.install_import_hook(modules, None)


def _exec_module(loader, module):
    """Bytecode of ours lies under a name of its own; that of what is imported within, such as PyTorch, does not.

    jaxtyping's own way has all of that compiled once more.
    """
    place = functools.partial(_import_hook._optimized_cache_from_source, loader._typechecker.get_hash())
    with patch("importlib._bootstrap_external.cache_from_source", place):
        code = loader.get_code(module.__name__)
    exec(code, vars(module))  # noqa: S102 as every loader does


def checked(decorated=None, *, typechecker=None):
    """A function that checks what it is given and returns; of a dataclass, what it is made of."""
    if decorated is None:
        return checked
    if inspect.isclass(decorated):
        if is_dataclass(decorated) and "__init__" in vars(decorated):
            decorated.__init__ = checked(decorated.__init__)
        return decorated
    if "<locals>" in decorated.__qualname__:
        _defined[decorated.__code__] += 1
        if _defined[decorated.__code__] > _NESTED:
            return decorated
    calls, checking, has_shapes = 0, None, False

    @functools.wraps(decorated)
    def call(*args, **kwargs):
        nonlocal calls, checking, has_shapes
        calls += 1
        if (calls > _FIRST and calls % _ONE_IN) or config.jaxtyping_disable:
            return decorated(*args, **kwargs)
        if checking is None:  # made when it is needed: most functions are not called in every process
            checking, has_shapes = _checking(decorated)
        if not has_shapes:
            return checking(*args, **kwargs)
        with _CONTEXT:
            return checking(*args, **kwargs)

    return call


def _checking(function):
    """The function with its types checked, and whether there are shapes among them."""
    hints = {name: _resolved(hint, function.__globals__) for name, hint in function.__annotations__.items()}
    check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # a whole number is a float, as for type checkers
    return check(_annotated(function, hints)), any(map(_is_array, hints.values()))


def _resolved(hint, names):
    """What a hint says; Any where it names what is imported for type checkers alone."""
    try:
        return typing.get_type_hints(types.SimpleNamespace(__annotations__={"hint": hint}), names)["hint"]
    except Exception:  # noqa: BLE001 a hint may be anything
        return typing.Any


def _annotated(function, hints):
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, hints
    copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
    return copy


def _is_array(hint):
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return True
    return any(map(_is_array, typing.get_args(hint)))
