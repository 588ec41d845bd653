"""A model and its texts, opened once for several verbs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Unpack

from attnscope.capture.load import load_model
from attnscope.capture.parameters import CorpusOptions, SessionReading, loading
from attnscope.capture.watch import way_of
from attnscope.support.arguments import validated
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.capture.load import Model
    from attnscope.read.encoded import Sources


class Session:
    """A model of texts and a corpus, loaded, hashed and verified once for several verbs.

    Each method takes the options of the verb of its name and returns the same arrays. An option of the session, such
    as `limit`, goes to every verb, unless the call has another; what is left out has the default of the verb. Other
    verbs take ``session.model`` as the model.

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

    @validated
    def __init__(self, model: Model | None = None, texts: Sources = None, **reading: Unpack[SessionReading]) -> None:
        """Load the model."""
        self.texts = _repeatable(texts)
        self.model = load_model(model, **loading(reading))
        way_of(self.model.model).verified = {}
        shared: dict[str, Any] = {name: reading[name] for name in CorpusOptions.__annotations__}
        shared["targets"] = _repeatable(reading["targets"])
        self._options = {name: value for name, value in shared.items() if value is not None and value is not False}

    def scan(self, **options: Any) -> xr.Dataset:
        """`attnscope.scan` of this model and these texts."""
        return self._run("scan", options)

    def generate(self, **options: Any) -> xr.Dataset:
        """`attnscope.generate` of this model, which continues these texts."""
        return self._run("generate", options)

    def roles(self, **options: Any) -> xr.Dataset:
        """`attnscope.roles` of this model and these texts."""
        return self._run("roles", options)

    def examples(self, **options: Any) -> xr.Dataset:
        """`attnscope.examples` of this model in these texts."""
        return self._run("examples", options)

    def explain(self, **options: Any) -> xr.DataTree:
        """`attnscope.explain` of this model and these texts."""
        return self._run("explain", options)

    def intervene(self, **options: Any) -> xr.DataTree:
        """`attnscope.intervene` of this model and these texts."""
        return self._run("intervene", options)

    def _run(self, name: str, options: dict[str, Any]) -> Any:
        import attnscope

        verb = getattr(attnscope, name)
        unused = self._options.keys() - inspect.signature(verb).parameters.keys()
        if unused:
            raise AttnscopeError(f"attnscope.{name} has no {min(unused)}, which this session has: open one without it")
        return verb(self.model, self.texts, **self._options | options)


def _repeatable(texts: Any) -> Any:
    """A generator gives its texts only once, and each verb reads them."""
    return list(texts) if isinstance(texts, Iterator) else texts
