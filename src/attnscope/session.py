"""A model and its texts, opened once for several verbs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack
from weakref import ref

from attnscope.bundled import OWN_TEXTS
from attnscope.opened import Opened
from attnscope.options import CorpusOptions, SessionReading
from attnscope.read.readers import with_rows
from attnscope.support.checked import checked
from attnscope.support.errors import AttnscopeError
from attnscope.verbs.examples import examples
from attnscope.verbs.explain import explain
from attnscope.verbs.generate import generate
from attnscope.verbs.intervene import intervene
from attnscope.verbs.roles import roles
from attnscope.verbs.scan import scan

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.read.encoded import Sources


P = ParamSpec("P")
R = TypeVar("R")


def _of_session(verb: Callable[Concatenate[Any, Any, P], R]) -> Callable[Concatenate[Session, P], R]:
    """A verb as a method: with the model and the texts of the session, and its options."""

    @wraps(verb)
    def method(self: Session, *arguments: P.args, **options: P.kwargs) -> R:
        function: Any = verb
        return function(self.model, self.texts, *arguments, **self.options_of(verb) | options)

    return method


class Session(Opened):
    """A model of texts and a corpus, loaded, hashed and verified once for several commands.

    Each method takes the options of the function of its name and returns the same arrays. An option of the session,
    such as `limit`, goes to every method, unless the call has another; what is left out has the default of the
    function. Other functions take ``session.model`` as the model.

    Parameters
    ----------
    model
        A folder, a hub id or a loaded model, as `attnscope.scan` takes it. The bundled one by default.
    texts
        Texts, as `attnscope.scan` takes them. By default the bundled sample.
    **reading
        How the model is loaded, and which part of the texts is read: `tokenizer`, `targets`, `device`, `dtype`,
        `revision`, `trust_remote_code`, `window`, `limit`, `seed`, `field` and `by_line`, as in `attnscope.explain`.

    Examples
    --------
    >>> import attnscope
    >>> session = attnscope.Session(texts=["The tide comes in twice a day, and twice a day it goes out."], limit=8)
    >>> dict(session.scan(band=4).profile.sizes)
    {'window': 1, 'layer': 3, 'head': 4, 'offset': 9}
    >>> session.generate()
    Traceback (most recent call last):
    attnscope.AttnscopeError: the bundled masked language model cannot generate: give ...
    """

    @checked
    def __init__(self, model: Model | None = None, texts: Sources = None, **reading: Unpack[SessionReading]) -> None:
        """Load the model."""
        if texts is None and isinstance(model, str) and model in OWN_TEXTS:
            texts, reading["by_line"] = OWN_TEXTS[model], True
        self.source, self.texts, self.known = model, with_rows(_repeatable(texts)), {}
        self.model = replace(self.load(reading), session=ref(self))
        shared: dict[str, Any] = {name: reading[name] for name in CorpusOptions.__annotations__}
        shared["targets"] = _repeatable(reading["targets"])
        self._options = {name: value for name, value in shared.items() if value is not None and value is not False}

    scan = _of_session(scan)
    generate = _of_session(generate)
    roles = _of_session(roles)
    examples = _of_session(examples)
    explain = _of_session(explain)
    intervene = _of_session(intervene)

    def options_of(self, verb: Callable[..., object]) -> dict[str, Any]:
        """The options of this session, for a verb that has them."""
        unused = self._options.keys() - inspect.signature(verb).parameters.keys()
        if unused:
            raise AttnscopeError(
                f"attnscope.{verb.__name__} has no {min(unused)}, which this session has: open one without it"
            )
        return self._options


def _repeatable(texts: Any) -> Any:
    """A generator gives its texts only once, and each verb reads them."""
    return list(texts) if isinstance(texts, Iterator) else texts
