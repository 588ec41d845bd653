"""A model and its texts, opened once: loaded, hashed and verified, read and cut, for one verb or for several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attnscope.bundled import MODEL
from attnscope.capture.borrow import LoadedModel
from attnscope.capture.families import configured_length
from attnscope.capture.load import load_model, signature_of, state_of
from attnscope.capture.modalities import reject_modalities
from attnscope.capture.notes import mixers_note
from attnscope.capture.outline import Heads, rejecting
from attnscope.capture.placement import Loading
from attnscope.capture.verify import position_table_length
from attnscope.read.encoded import texts_and_targets
from attnscope.read.texts import Corpus
from attnscope.report.signature import tokenizer_sha256
from attnscope.store.run import run
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.read.encoded import Sources, Texts
    from attnscope.report.signature import Signature
    from attnscope.store.run import Job
    from attnscope.store.units import Task

LONGEST_DEFAULT = 2048  # tokens: a longer window must be requested


class Opened:
    """A model with texts, as one verb opens them; verbs of one session share what they read and measured."""

    source: Model | None
    model: LoadedModel
    texts: Sources
    known: dict[Any, Any]  # results that the verbs of a session share, by a key of all that they depend on
    is_shared = False  # whether several verbs use them
    corpus: Any = None  # the texts as they are read by one verb, with their translations
    target: Corpus | None = None

    @classmethod
    def of(cls, model: Model | None, texts: Sources = None) -> Opened:
        """A session of one verb whose model is loaded later; it shares what the caller's session knows."""
        session, earlier = cls.__new__(cls), model.session() if isinstance(model, LoadedModel) else None
        session.source, session.texts = model, texts
        if earlier is not None and earlier.texts is texts:
            session.known, session.is_shared = earlier.known, True
        else:
            session.known = {}
        return session

    @classmethod
    def open(
        cls,
        verb: str,
        model: Model | None,
        reading: Mapping[str, Any],
        texts: Sources = None,
        targets: Sources = None,
        *,
        in_pairs: bool = False,
        heads: Heads = (),
        option: str = "layer, head",
        kind: str | None = None,
        check: Callable[[LoadedModel], object] | None = None,
        by: str | None = None,
    ) -> Opened:
        """Load a model after checks that need no weights, with texts; line i may translate line i (`in_pairs`).

        Texts have the value of a field, `by`.
        """
        inner = model.model if isinstance(model, LoadedModel) else MODEL if model is None else model
        reject_modalities(verb, inner, texts, field=reading["field"], revision=reading["revision"])
        session = cls.of(model, texts)
        paired = in_pairs and targets is not None
        lines = {"by_line": reading["by_line"] or paired, "blank_lines": paired, "by": by}
        session.read(targets, field=reading["field"], **lines)
        session.load(reading, heads=heads, option=option, kind=kind, check=check)
        session.corpus.sha256()  # reads all texts, so that few of them are read only here
        return session

    def read(self, targets: Sources = None, **lines: Any) -> tuple[Texts, Corpus | None]:
        """The texts and their translations; verbs of one session that read them in one way read them once."""
        given = {name: value for name, value in lines.items() if value and name != "with_inputs"}
        key = "texts", id(targets), frozenset(given.items())
        if key in self.known:
            self.corpus, self.target = self.known[key][1]
        else:
            self.corpus, self.target = texts_and_targets(self.texts, targets, **lines)
            if isinstance(self.corpus, Corpus):  # with the targets, so that no others get their number
                self.known[key] = targets, (self.corpus, self.target)
        return self.corpus, self.target

    def load(
        self,
        reading: Mapping[str, Any],
        *,
        heads: Heads = (),
        option: str = "layer, head",
        kind: str | None = None,
        check: Callable[[LoadedModel], object] | None = None,
        **more: Any,
    ) -> LoadedModel:
        """Load the model, unless it is; first `check` it, and its `heads` of a `kind`, by its config alone."""
        options = {"tokenizer": reading["tokenizer"], **vars(Loading.of(reading))}
        self.model = load_model(self.source, **options, first=check or rejecting(heads, option, kind), **more)
        return self.model

    def keep(self, key: tuple[Any, ...], result: Any) -> None:
        """Keep a result for the other verbs of a session, by all that it depends on besides the model."""
        state = state_of(self.model.model) if self.is_shared else None
        if state is not None:
            self.known[key] = state, result

    def kept(self, key: tuple[Any, ...]) -> Any:
        """The result that a verb of this session kept; None if there is none, or if the model has changed since."""
        state, result = self.known.get(key, (None, None)) if self.is_shared else (None, None)
        return result if state is not None and state == state_of(self.model.model) else None

    def length(self, window: int | None) -> int:
        """Tokens of a window: the setting, checked against the model; by default the model's length."""
        return window_length(self.model, window)

    def run(
        self,
        verb: str,
        job: Job,
        settings: Mapping[str, Any],
        reading: Mapping[str, Any],
        task: Task | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> Any:
        """Run the job of a verb, with everything behind its numbers as its signature; in a dry run, plan it."""
        if reading.get("dry_run"):
            from attnscope.plan import planned

            return planned(verb, self.source, self.model, job.work(), reading)
        job.signature = self.signature(verb, settings)
        job.attributes = {
            "signature": job.signature.to_json(),
            "model": self.model.name,
            **mixers_note(self.model.model),
            **(attributes or {}),
        }
        return run(job, reading["out"], task, repair=reading["repair"])

    def signature(self, verb: str, settings: Mapping[str, Any], corpus: Any = None) -> Signature:
        """Everything behind the numbers of a verb; by default of the texts."""
        corpus = self.corpus if corpus is None else corpus
        return signature_of(verb, self.model, corpus, self.target, settings, reader=self.reader)

    @property
    def reader(self) -> dict[str, str] | None:
        """The hash of the tokenizer."""
        tokenizer = self.model.tokenizer
        if tokenizer is None:
            return None
        size = len(tokenizer) if hasattr(tokenizer, "__len__") else 0  # more, once tokens were added
        key = "tokenizer", size
        if key not in self.known:
            self.known[key] = {"sha256": tokenizer_sha256(tokenizer)}
        return self.known[key]


def window_length(loaded: LoadedModel, window: int | None) -> int:
    """The window length: the setting, checked against the model; by default the model's length."""
    table = position_table_length(loaded.model)
    if window is not None:
        if table is not None and window > table:
            raise AttnscopeError(
                f"a window of {window} tokens does not fit {loaded.name}: its position table has {table} rows. "
                f"Use --window {table} or less"
            )
        return window
    config = loaded.model.config.get_text_config()
    limits = [table, getattr(loaded.tokenizer, "model_max_length", None), configured_length(config)]
    return min([*(int(limit) for limit in limits if limit and limit > 0), LONGEST_DEFAULT])  # XLNet says -1
