"""How a verb opens what its model predicts: on texts, on a part of them, on images or sounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from attnscope.bundled import NOUNS, SENTENCES
from attnscope.capture.borrow import LoadedModel
from attnscope.capture.load import Model
from attnscope.explanation.study import DEFAULT_TEXTS
from attnscope.intervention.media import Media, open_media
from attnscope.intervention.predictions import PredictionSession
from attnscope.intervention.questions import Kind, kind_of_question
from attnscope.measure.texts import first_windows
from attnscope.opened import Heads, Opened
from attnscope.options import StudyReading
from attnscope.read.encoded import EncodedTexts, Sources, Texts
from attnscope.read.spans import field_of_part, tokens_of_part
from attnscope.read.texts import Corpus
from attnscope.read.windows import Window
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count

LONGEST = 512  # default limit of tokens in a window: every head of every window needs a pass


def open_predictions(
    verb: str,
    model: Model | None,
    texts: Sources,
    reading: StudyReading,
    *,
    batch_size: int | None,
    heads: Heads,
    option: str,
    splits_scores: bool = False,
    labels: str | Sequence[str | int] | None = None,
    part: str | None = None,
) -> tuple[Opened, PredictionSession]:
    """A session of a verb, and what its model predicts on its texts."""
    media = None if splits_scores else open_media(model, texts, reading, heads)
    if media is not None:
        return media.opened, media_session(media, labels, batch_size=batch_size, seed=reading["seed"])
    targets = NOUNS if texts is SENTENCES and reading["targets"] is None else reading["targets"]
    spans = field_of_part(part)
    if labels is not None and part is not None:
        raise AttnscopeError("labels (--labels) are of whole texts: leave out part (--part)")
    if spans is not None and (targets is not None or texts is None):
        raise AttnscopeError(
            f"part (--part) is {part!r}, a span of the texts by name: it needs texts with spans, and no translations. "
            "Choose first-half, second-half or after:TEXT, or other texts"
        )
    by = labels if isinstance(labels, str) else spans
    opened = Opened.open(verb, model, reading, texts, targets, in_pairs=True, by=by, heads=heads, option=option)
    length = min(reading["window"] or LONGEST, opened.length(reading["window"]))
    kind = kind_of_question(opened.model.model)
    if kind == "output" and opened.model.model.config.is_encoder_decoder:
        raise AttnscopeError(
            f"{opened.model.name} is an encoder-decoder without a language-modelling head: load the model with it, or "
            "its encoder alone (model.get_encoder())"
        )
    if splits_scores:
        kind = "translation" if opened.model.model.config.is_encoder_decoder else "next"
    settings: Any = {"window": length, "limit": reading["limit"] or DEFAULT_TEXTS}
    settings |= {"seed": reading["seed"], "batch_size": batch_size}
    side = int(reading["field"] == "corrupted")  # of pairs
    how: Any = {"kind": kind, "part": part, "side": side}
    session = prediction_session(opened.model, opened.corpus, opened.target, **how, **settings)
    session.settings = settings
    if labels is not None:
        session.labels = labels_of(session, labels)
    return opened, session


def media_session(
    media: Media, labels: str | Sequence[str | int] | None, *, batch_size: int | None, seed: int
) -> PredictionSession:
    """A session over images or sounds."""
    kind = kind_of_question(media.loaded.model)
    if kind not in {"label", "output"}:
        raise AttnscopeError(
            f"{type(media.loaded.model).__name__} writes texts about {media.opened.corpus.called}: only classifiers "
            "and encoders of them are measured"
        )
    session = PredictionSession(media.loaded, media.windows, kind, seed, batch_size, given=media.inputs)
    session.settings = media.settings | {"seed": seed, "batch_size": batch_size}
    if labels is not None:
        session.labels = labels_of(session, labels)
    return session


def labels_of(session: PredictionSession, labels: str | Sequence[str | int]) -> Sequence[str | int]:
    """The label of each window: from a field of its text, from the folder of its file, or as listed."""
    if session.kind != "label":
        raise AttnscopeError(
            f"{type(session.model).__name__} predicts no labels of texts: leave out labels (--labels), or load a "
            "classifier"
        )
    if not isinstance(labels, str):
        if len(labels) != len(session.windows):
            raise AttnscopeError(
                f"found {len(labels)} labels and {len(session.windows)} inputs; expected a label for each"
            )
        return labels
    if not session.given:
        return [window.by for window in session.windows]
    if labels != "folder":
        raise AttnscopeError(
            f"found the labels (--labels) {labels!r}; expected folder, which is the name of the folder of each file, "
            "or in Python a list"
        )
    folders = [PurePath(window.source).parent.name for window in session.windows]
    if not all(folders):
        raise AttnscopeError(f"{session.windows[folders.index('')].source} is in no folder of its own, by its label")
    return folders


def prediction_session(
    loaded: LoadedModel,
    corpus: Texts,
    target: Corpus | None = None,
    *,
    window: int,
    limit: int,
    seed: int = 0,
    batch_size: int | None = None,
    kind: Kind | None = None,
    part: str | None = None,
    side: int = 0,
) -> PredictionSession:
    """Cut texts into windows, and choose what the model predicts on them: all, or a part (see `tokens_of_part`)."""
    kind = kind or kind_of_question(loaded.model)
    if kind == "translation" and (target is None or isinstance(corpus, EncodedTexts)):
        raise AttnscopeError(
            f"{loaded.name} is an encoder-decoder and needs translations (targets, --target), matched line by line"
        )
    windows = first_windows(loaded, corpus, target, length=window, limit=limit, restores=kind == "masked")
    notes = dict[str, str]()
    if part is not None and kind in {"label", "output"}:
        raise AttnscopeError(f"{type(loaded.model).__name__} predicts no tokens: leave out part (--part)")
    if part is not None and isinstance(corpus, EncodedTexts):
        raise AttnscopeError("part (--part) is of texts, and these are token ids: give texts")
    read = [window if kind == "masked" else window.target or window for window in windows]
    parts = [] if part is None else [tokens_of_part(window, part, side=side) for window in read]
    given = target is not None and not parts  # with a target, a window without a question is an error
    anywhere = parts or [np.ones(len(window), bool) for window in read]
    asked = [at for at, window in enumerate(windows) if given or _asks(kind, window, anywhere[at])]
    if part is not None and not asked:
        raise AttnscopeError(
            f"found nothing to predict in the part {part!r} (--part) of {count(len(windows), 'window')}"
        )
    if 0 < len(asked) < len(windows):  # with none, the error says why
        left = len(windows) - len(asked)
        notes["left_out"] = f"{left} of {count(len(windows), 'window')} left out: nothing to predict."
        windows, parts = [windows[at] for at in asked], [parts[at] for at in asked if parts]
    if part is not None:
        notes["part"] = part
    return PredictionSession(loaded, windows, kind, seed, batch_size, parts=parts, notes=notes)


def _asks(kind: Kind, window: Window, part: np.ndarray) -> bool:
    """Whether a part of a window has a token to predict; a label or an embedding is of the whole."""
    if kind in {"label", "output"}:
        return True
    if kind == "masked" and window.target is not None:
        return bool(part[np.array(window.ids) != np.array(window.target.ids)].any())
    return bool((part & ~np.array(window.special)).any() if kind == "masked" else part[1:].any())
