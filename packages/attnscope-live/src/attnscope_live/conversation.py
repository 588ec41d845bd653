"""Questions of a live view, and a model that answers them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from attnscope.bundled import ANSWERS_IT
from attnscope.capture.borrow import LoadedModel, borrowed
from attnscope.capture.forward import decoder_start, forward
from attnscope.capture.placement import device_of
from attnscope.capture.verify import verify
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.catalogue import function_of
from attnscope.intervention.edit import attend_changed
from attnscope.intervention.questions import Kind, Questions, as_float32, kind_of_question, questions
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of
from attnscope.kernels.full import row_weights
from attnscope.measure.passes import WindowBatch
from attnscope.measure.raw import first_window
from attnscope.opened import Opened, window_length
from attnscope.read.shown import IdNames
from attnscope.read.windows import Window
from attnscope.report.language import translate
from attnscope.results.page import parts
from attnscope.results.view import Maps, thumb
from attnscope.support.errors import AttnscopeError
from attnscope_live.copied import UNNAMED, Shown, Source, command_of, python_of
from attnscope_live.questions import (
    Attribution,
    Code,
    Draw,
    Effects,
    Inside,
    Look,
    MapOf,
    Picture,
    Predict,
    Reach,
    Receivers,
    RowOf,
    Shares,
    Times,
    Transcribe,
    question_of,
)

PAGE = Path(__file__).parent / "page"
LONGEST = 512  # tokens of a text that is shown while one types
_LISTED = 10  # predictions
_KEPT = 5  # passes that may be needed again: of two texts, with a mask too, and one more
_EVERY = slice(None)


class StoppedError(Exception):
    """A newer question has come."""


class Answer(NamedTuple):
    """An answer to the page: JSON, and arrays of bytes."""

    content: dict[str, Any]
    arrays: Sequence[bytes] = ()


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass over a text: its attention, and the logits of what the model predicts."""

    window: Window
    maps: Maps
    logits: Tensor | None  # (position, vocabulary), or (1, label)


@dataclass(frozen=True, eq=False)
class Looked:
    """The passes that a view shows."""

    question: Look
    plain: Pass
    edited: Pass  # the plain one, if no head is removed
    other: Pass | None = None

    @property
    def aligned(self) -> bool:
        """Whether both texts have as many tokens."""
        other = self.other
        return other is not None and all(
            len(other.maps.texts[name]) == len(tokens) for name, tokens in self.plain.maps.texts.items()
        )


class Conversation:
    """A model that answers the questions of one page, one after another; `source` names it in what is copied."""

    scripts = tuple(str(PAGE / name) for name in ("dropped.js", "sound.js", "live.js"))
    styles = (str(PAGE / "live.css"),)

    def __init__(self, loaded: LoadedModel, source: Source = UNNAMED) -> None:
        self.loaded, self.source = loaded, source
        self.kind: Kind = kind_of_question(loaded.model)
        self.length = min(LONGEST, window_length(loaded, None))
        self._watched = loaded.model  # the part whose attention is shown
        self._passes: dict[Any, Pass] = {}
        self._verified = set[Any]()  # sizes of inputs
        self._looked: Looked | None = None
        self._stopped: Callable[[], bool] = lambda: False

    @cached_property
    def _names(self) -> IdNames:
        return IdNames(self.loaded.tokenizer)

    def answer(self, name: str, question: Mapping[str, Any], stopped: Callable[[], bool] = lambda: False) -> Answer:
        """Answer a question; an `AttnscopeError` says what is wrong with it.

        Raises
        ------
        StoppedError
            As soon as `stopped` says so, between two layers.
        """
        asked = question_of(name, question)
        self._stopped = stopped
        with torch.no_grad(), borrowed(self.loaded.model):
            return getattr(self, f"_{name}")(asked)

    def reply(self, name: str, question: Mapping[str, Any], stopped: Callable[[], bool]) -> Answer | None:
        """An answer; what is wrong with a question, in words; None if a newer one has come."""
        try:
            return self.answer(name, question, stopped)
        except StoppedError:
            return None
        except AttnscopeError as error:
            return Answer({"error": translate(str(error))})
        except Exception as error:  # noqa: BLE001 the page says so, and the next question may be answered
            return Answer({"error": f"{type(error).__name__}: {error}"[:500]})

    def another(self) -> Conversation:
        """One with the same model for another page."""
        return Conversation(self.loaded, self.source)

    @property
    def about(self) -> dict[str, Any]:
        """The model in words, for a page that has asked nothing yet."""
        decodes = bool(self.loaded.model.config.is_encoder_decoder)
        return {"name": self.loaded.name, "decodes": decodes, "masks": self.source.name != ANSWERS_IT}

    @property
    def maps(self) -> Maps | None:
        """The maps of the text that is shown; None before any."""
        return None if self._looked is None else self._looked.edited.maps

    @property
    def looked(self) -> Looked:
        """What is shown now."""
        if self._looked is None:
            raise AttnscopeError("found no text: look at one first")
        return self._looked

    def _picture(self, asked: Picture) -> Answer:  # noqa: ARG002
        raise AttnscopeError(f"{self.loaded.name} reads no pictures: it reads texts")

    def _times(self, asked: Times) -> Answer:  # noqa: ARG002
        raise AttnscopeError(f"{self.loaded.name} reads no sounds: it reads texts")

    def _transcribe(self, asked: Transcribe) -> Answer:  # noqa: ARG002
        raise AttnscopeError(f"{self.loaded.name} reads no sounds: it reads texts")

    def _look(self, asked: Look) -> Answer:
        plain = self._pass(asked, asked.text)
        other = None if asked.other is None else self._pass(asked, asked.other)
        looked = Looked(asked, plain, plain, other)
        if asked.removed:
            looked = replace(looked, edited=self._edited(looked))
        self._looked = looked
        small = [looked.edited.maps.small_maps()] + ([] if other is None else [other.maps.small_maps()])
        changes: list[float] = []
        if looked.aligned:
            differences, changes = _differences(looked.edited.maps, cast("Pass", other).maps)
            small.append(differences)
        position = self._asked_position(plain.window) if asked.position is None else asked.position
        position = min(position, len(_predicted(plain.window)) - 1)
        predicted = self._predictions(Predict(position=position, mask=asked.mask, temperature=asked.temperature))
        return Answer(
            {
                **looked.edited.maps.meta(),
                "other": None if other is None else other.maps.meta()["texts"],
                "aligned": looked.aligned,
                "changes": changes,
                "kind": self.kind,
                "loss": self._losses(looked),
                "length": self.length,
                "cut": self._is_cut(asked, plain.window),
                "prompt": len(_predicted(plain.window)) - len(asked.written),
                "position": position,
                **predicted,
            },
            [array.tobytes() for array in small],
        )

    def _map(self, asked: MapOf) -> Answer:
        maps = self._maps(asked)
        if asked.of == "difference":
            weights = np.abs(maps.weights(asked.layer, asked.head) - self._others.weights(asked.layer, asked.head))
            n, m = weights.shape
            return Answer({"n": n, "m": m, "tile": 1}, [parts.encode(weights).tobytes()])
        codes = maps.codes(asked.layer, asked.head)
        return Answer({name: codes[name] for name in ("n", "m", "tile")}, [codes["codes"].tobytes()])

    def _row(self, asked: RowOf) -> Answer:
        maps = self._maps(asked)
        weights = maps.weights(asked.layer, asked.head)
        if asked.of == "difference":
            weights = np.abs(weights - self._others.weights(asked.layer, asked.head))
        along = weights if asked.direction == "from" else weights.T
        if asked.token >= len(along):
            raise AttnscopeError(f"found the token {asked.token}; expected 0 to {len(along) - 1}")
        return Answer({}, [np.ascontiguousarray(along[asked.token]).tobytes()])

    def _predict(self, asked: Predict) -> Answer:
        return Answer(self._predictions(asked))

    def _predictions(self, asked: Predict) -> dict[str, Any]:
        """The likeliest tokens, and how much of the second text's answer returns."""
        looked = self.looked
        rows = self._logits_at(looked, asked.position, mask=asked.mask)
        if rows is None:
            return {"rows": [], "returned": None}
        before, after, other = rows
        listed = {
            int(i) for logits in rows if logits is not None for i in logits.topk(min(_LISTED, len(logits))).indices
        }
        actual = self._actual(looked.plain.window, asked.position)
        listed |= set() if actual is None else {actual}
        chances = [None if one is None else (one / asked.temperature).log_softmax(-1) for one in rows]
        after_each = cast("Tensor", chances[1])
        ordered = sorted(listed, key=lambda index: -float(after_each[index]))
        named = [self._guess(index, chances, actual) for index in ordered]
        return {"rows": named, "returned": self._returned(before, after, other)}

    def _guess(self, index: int, chances: Sequence[Tensor | None], actual: int | None) -> dict[str, Any]:
        """A token with its log-probabilities before, after, and on the other text; None where it cannot come."""
        logs = [None if chance is None or chance[index].isinf() else float(chance[index]) for chance in chances]
        about = {"id": index, "token": self._name(index), "actual": index == actual}
        return about | dict(zip(("before", "after", "other"), logs, strict=True))

    def _draw(self, asked: Draw) -> Answer:
        rows = self._logits_at(self.looked, asked.position, mask=asked.mask)
        if rows is None or self.kind not in {"next", "translation"}:
            raise AttnscopeError(f"{self.loaded.name} writes no text: choose a model that generates")
        chance = (rows[1] / asked.temperature).softmax(-1).cpu()
        index = int(torch.multinomial(chance, 1, generator=torch.Generator().manual_seed(asked.seed)))
        return Answer({"id": index, "token": self._name(index)})

    def _effects(self, asked: Effects) -> Answer:
        """The share of the difference that its output on the second text returns, or the change without the head."""
        looked = self.looked
        call = looked.plain.maps.calls.get(asked.layer)
        if call is None or self.kind == "output":
            raise AttnscopeError(f"there are no effects in layer {asked.layer}")
        effects: list[float | None] = []
        for head in range(call.query.shape[1]):
            alone = {"removed": ((asked.layer, head),), "by": asked.by}
            without = replace(looked, question=looked.question.model_copy(update=alone))
            if self.kind != "masked" or not asked.mask:
                without = replace(without, edited=self._edited(without))
            before, after, other = cast("Any", self._logits_at(without, asked.position, mask=asked.mask))
            if asked.token >= len(before):
                raise AttnscopeError(f"found the token {asked.token}; expected 0 to {len(before) - 1}")
            returned = self._returned(before, after, other)
            if asked.by == "other":
                effects.append(None if returned is None else returned["share"])
            else:
                change = float(after.log_softmax(-1)[asked.token] - before.log_softmax(-1)[asked.token])
                effects.append(change if isfinite(change) else None)
        return Answer({"effects": effects})

    def _attribution(self, asked: Attribution) -> Answer:
        """Parts of the logit of a token, of the whole model, as the verb `attribute` splits it."""
        window = self.looked.plain.window
        if self.kind != "next" or self._views(window):
            raise AttnscopeError("logits are split here for models that predict the next token of a text")
        if asked.position >= len(window):
            raise AttnscopeError(f"found the position {asked.position}; expected 0 to {len(window) - 1}")
        ids = [*window.ids[: asked.position + 1], asked.token]
        texts = {"input_ids": [ids]}
        attribute = function_of("attribute")  # of a package of its own, which the error names where it is absent
        split = attribute(self.loaded.model, texts, tokenizer=self.loaded.tokenizer, by_position=True, limit=1)
        parts = split["predictions"].part_at[0, -1]
        of_heads = parts[parts.kind.values == "head"]
        rows = zip(of_heads.coords["layer"].values, of_heads.coords["head"].values, of_heads.values, strict=True)
        heads = [{"layer": int(layer), "head": int(head), "part": float(part)} for layer, head, part in rows]
        return Answer({"heads": heads, "total": float(parts.sum())})

    def _reach(self, asked: Reach) -> Answer:
        """The heads with the largest weight, of those that attend within the text that is predicted."""
        maps, window = self.looked.edited.maps, _predicted(self.looked.plain.window)
        if max(asked.query, asked.key) >= len(window):
            raise AttnscopeError(f"found the positions {asked.query} and {asked.key}; expected 0 to {len(window) - 1}")
        written = "text" if window is self.looked.plain.window else "target"
        heads: list[dict[str, Any]] = []
        for layer, call in maps.calls.items():
            if maps.sides(layer) != (written, written):
                continue
            row = call.take(torch.tensor([[asked.query]], device=call.query.device))
            weights = row_weights(row, _EVERY).weights[0, :, 0, asked.key].tolist()
            heads += [{"layer": layer, "head": head, "weight": weight} for head, weight in enumerate(weights)]
        heads.sort(key=lambda one: -one["weight"])
        return Answer({"heads": heads[:_LISTED]})

    def _inside(self, asked: Inside) -> Answer:
        """The share of each head, next to that of uniform attention over what the query may attend to."""
        maps, window = self.looked.edited.maps, _predicted(self.looked.plain.window)
        if max(asked.query, *asked.keys) >= len(window):
            raise AttnscopeError(f"found the position {max(asked.query, *asked.keys)}; expected 0 to {len(window) - 1}")
        written = "text" if window is self.looked.plain.window else "target"
        keys = sorted({*asked.keys})
        heads: list[dict[str, Any]] = []
        for layer, call in maps.calls.items():
            if maps.sides(layer) != (written, written):
                continue
            rows = row_weights(call.take(torch.tensor([[asked.query]], device=call.query.device)), _EVERY)
            allowed = rows.allowed[0, :, 0].double().expand(call.query.shape[1], -1)
            uniform = allowed[:, keys].sum(-1) / allowed.sum(-1).clamp(min=1)
            shares = rows.weights[0, :, 0].double()[:, keys].sum(-1)
            for head, (share, chance) in enumerate(zip(shares.tolist(), uniform.tolist(), strict=True)):
                heads.append({"layer": layer, "head": head, "share": share, "chance": chance})
        return Answer({"heads": heads})

    def _shares(self, asked: Shares) -> Answer:
        """The shares of heads that attend within the text that the model writes."""
        looked = self.looked
        window = _predicted(looked.plain.window)
        prompt = len(window) - len(looked.question.written)
        written = "text" if window is looked.plain.window else "target"
        if asked.position >= len(window):
            raise AttnscopeError(f"found the position {asked.position}; expected 0 to {len(window) - 1}")
        shares: list[dict[str, Any]] = []
        for layer, call in looked.edited.maps.calls.items():
            queries, keys = looked.edited.maps.sides(layer)
            if not queries == keys == written:
                continue  # a head of the source
            row = call.take(torch.tensor([[asked.position]], device=call.query.device))
            weights = row_weights(row, _EVERY).weights[0, :, 0].double()
            itself = weights[:, asked.position]
            on_prompt = weights[:, :prompt].sum(-1) - (itself if asked.position < prompt else 0)
            for head, values in enumerate(
                torch.stack([on_prompt, weights.sum(-1) - on_prompt - itself, itself], -1).tolist()
            ):
                shares.append(
                    {"layer": layer, "head": head, "prompt": values[0], "written": values[1], "itself": values[2]}
                )
        return Answer({"shares": shares})

    def _receivers(self, _: Receivers) -> Answer:
        """The sentence that later ones attend to most, by head, above chance by length and place.

        Sentences that follow immediately do not count, nor do special tokens and the first token, on which heads rest.
        """
        maps = self.looked.edited.maps
        window = _predicted(self.looked.plain.window)
        written = "text" if window is self.looked.plain.window else "target"
        parts_of = sentences(window)
        if len(parts_of) < _SENTENCES:
            raise AttnscopeError(f"found {len(parts_of)} sentences; expected {_SENTENCES} or more")
        found: list[dict[str, Any]] = []
        for layer, call in maps.calls.items():
            queries, keys = maps.sides(layer)
            if not queries == keys == written:
                continue
            rows = row_weights(call, _EVERY)
            chance = rows.allowed[0].double()
            weights = rows.weights[0].double()
            above = (
                _received(weights, parts_of),
                _received(chance / chance.sum(-1, keepdim=True).clamp(min=1), parts_of),
            )
            for head, excess in enumerate(above[0] - above[1].expand_as(above[0])):
                best = int(excess.argmax())
                share, uniform = (float(one.expand_as(above[0])[head, best]) for one in above)
                found.append({"layer": layer, "head": head, "sentence": best, "share": share, "chance": uniform})
        found.sort(key=lambda one: one["chance"] - one["share"])
        texts = ["".join(window.tokens[part.start : part.stop]).strip() for part in parts_of]
        return Answer({"heads": found[:_LISTED], "sentences": texts})

    def _code(self, asked: Code) -> Answer:
        looked = self.looked
        question, window = looked.question, looked.plain.window
        answers = None
        if question.by == "other" and looked.aligned and asked.position == self._asked_position(window):
            rows = self._logits_at(looked, asked.position, mask=asked.mask)
            returned = None if rows is None else self._returned(*rows)
            answers = None if returned is None or returned["share"] is None else (returned["answer"], returned["wrong"])
        shown = Shown(self.source, self.kind, question, window, looked.other and looked.other.window, asked, answers)
        return Answer({"python": python_of(shown), "command": command_of(shown)})

    def _maps(self, asked: MapOf) -> Maps:
        """The maps of a question; of a difference those of the text."""
        maps = self._others if asked.of == "other" else self.looked.edited.maps
        if asked.of == "difference" and not self.looked.aligned:
            raise AttnscopeError("the two texts have different numbers of tokens: their heads cannot be compared")
        heads = maps.calls[asked.layer].query.shape[1] if asked.layer in maps.calls else 0
        if asked.head >= heads:
            raise AttnscopeError(f"there is no head {asked.layer}.{asked.head}")
        return maps

    @property
    def _others(self) -> Maps:
        if self.looked.other is None:
            raise AttnscopeError("found no second text")
        return self.looked.other.maps

    def _pass(self, asked: Look, text: str) -> Pass:
        """The unchanged pass over a text, which may be known."""
        key = text, asked.target, asked.written
        if key not in self._passes:
            window = self._window(text, asked.target, asked.written)
            self._keep(key, self._run(window))
        return self._passes[key]

    def _keep(self, key: Any, one: Pass) -> None:
        self._passes[key] = one
        for old in [*self._passes][:-_KEPT]:
            del self._passes[old]

    def _window(self, text: str, target: str | None, written: Sequence[int]) -> Window:
        """The first tokens of a text, and what the model has written."""
        if not text.strip():
            raise AttnscopeError("found no text: type one")
        decodes = self.loaded.model.config.is_encoder_decoder
        if target is not None and not decodes:
            raise AttnscopeError(f"{self.loaded.name} is no encoder-decoder: leave out the target")
        read = self._opened([text])
        window = first_window(read, [target] if target and not written else None, self.length)
        if not written:
            return window
        if decodes:
            start = decoder_start(self.loaded.model)(written)
            return replace(window, target=self._of_ids([start, *written]))
        last = len(window) - next((i for i, mark in enumerate(reversed(window.special)) if not mark), 0)
        return self._of_ids([*window.ids[: last or len(window)], *written])

    def _of_ids(self, ids: Sequence[int]) -> Window:
        if len(ids) > self.length:
            raise AttnscopeError(f"the text has {len(ids)} tokens; expected {self.length} at most: shorten it")
        return first_window(self._opened({"input_ids": [[*ids]]}), None, self.length)

    def _opened(self, texts: Any) -> Opened:
        session = Opened.of(self.loaded, texts)
        session.model = self.loaded
        return session

    def _run(self, window: Window, change: Mapping[int, Callable[[Tensor], Tensor]] | None = None) -> Pass:
        """A pass in which some layers' heads return something else; `change` has functions of their outputs."""
        return self._run_inputs(window, self._inputs(window), change or {})

    def _inputs(self, window: Window) -> dict[str, Any]:
        """Arguments of the forward pass."""
        model = self.loaded.model
        return WindowBatch.of([window], 0, device_of(model)).inputs(model)

    def _views(self, window: Window) -> Sequence[dict[str, Any]]:  # noqa: ARG002
        """Pictures among the tokens."""
        return ()

    def _checked(self, inputs: dict[str, Any], *, weights_suffice: bool) -> None:
        """Check the captured attention, once for inputs of a size: the model stays as it is."""
        sizes = weights_suffice, *((name, tuple(getattr(value, "shape", ()))) for name, value in inputs.items())
        if sizes not in self._verified:
            verify(self.loaded.model, inputs, text="the text", weights_suffice=weights_suffice)
            self._verified.add(sizes)

    def _forward(self, inputs: dict[str, Any]) -> Tensor:
        return forward(self.loaded.model, inputs, lambda _: "the text")

    def _run_inputs(
        self, window: Window, inputs: dict[str, Any], change: Mapping[int, Callable[[Tensor], Tensor]]
    ) -> Pass:
        calls, kinds = dict[int, AttentionCall](), dict[int, str]()

        def observe(site: Site, call: AttentionCall) -> Tensor | None:
            if self._stopped():
                raise StoppedError
            calls[site.index], kinds[site.index] = call, site.kind
            return attend_changed(call, {"z": change[site.index]}) if site.index in change else None

        weights_suffice = not change
        self._checked(inputs, weights_suffice=weights_suffice)
        with watching(self._watched, observe, weights_suffice=weights_suffice):
            output = self._forward(inputs)
        texts = {"text": window.tokens} | ({} if window.target is None else {"target": window.target.tokens})
        maps = Maps(dict(sorted(calls.items())), kinds, texts, views=self._views(window))
        maps.reject_other_positions(self.loaded.name)
        logits = None if self.kind == "output" else output[0] if output.ndim == _MATRICES else output
        return Pass(window, maps, logits)

    def _edited(self, looked: Looked) -> Pass:
        return self._run(looked.plain.window, self._changes(looked, looked.plain))

    def _changes(self, looked: Looked, plain: Pass) -> dict[int, Callable[[Tensor], Tensor]]:
        """Functions of the outputs of layers with removed heads, which return 0, a mean, or the other text's output."""
        by, calls = looked.question.by, plain.maps.calls
        if by == "other" and not looked.aligned:
            raise AttnscopeError(
                "the heads' outputs on the other text have other positions: both texts need equally many tokens"
            )
        heads: dict[int, list[int]] = {}
        for layer, head in looked.question.removed:
            if layer not in calls or head >= calls[layer].query.shape[1]:
                raise AttnscopeError(f"there is no head {layer}.{head}")
            heads.setdefault(layer, []).append(head)

        def replacing(layer: int, some: list[int]) -> Callable[[Tensor], Tensor]:
            source = calls[layer] if by == "mean" else None
            if by == "other":
                source = cast("Pass", looked.other).maps.calls[layer]

            def change(z: Tensor) -> Tensor:
                returned = torch.zeros_like(z) if source is None else output_of(source).to(z)
                returned = returned.mean(2, keepdim=True).expand_as(z) if by == "mean" else returned
                changed = z.clone()
                changed[:, some] = returned[:, some]
                return changed

            return change

        return {layer: replacing(layer, some) for layer, some in heads.items()}

    def _losses(self, looked: Looked) -> dict[str, Any] | None:
        """The loss with and without the removed heads, as `attnscope.intervene` measures it; None without one."""
        window, tokenizer = looked.plain.window, self.loaded.tokenizer
        if self.kind in {"label", "output"} or len(_predicted(window)) < _FEWEST:
            return None
        asked = questions(self.kind, [window], tokenizer, 0, device_of(self.loaded.model))
        before, after = looked.plain, looked.edited
        if self.kind == "masked":
            if after is before:  # two passes more, which nobody asked for
                return None
            inputs = asked.batch.inputs(self.loaded.model)
            before = self._run_inputs(window, inputs, {})
            after = self._run_inputs(window, inputs, self._changes(looked, before))
        measured = {"before": _loss(asked, before), "after": None if after is before else _loss(asked, after)}
        return measured | {"count": int((asked.labels >= 0).sum())}

    def _logits_at(self, looked: Looked, position: int, *, mask: bool) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """Logits at a position before, after, and of the other text; a masked language model restores the token."""
        if self.kind == "output":
            return None
        passes = [looked.plain, looked.edited, looked.other if looked.aligned else None]
        if self.kind == "label":
            at = [None if one is None else cast("Tensor", one.logits)[0] for one in passes]
        else:
            length = len(_predicted(looked.plain.window))
            if position >= length:
                raise AttnscopeError(f"found the position {position}; expected 0 to {length - 1}")
            if self.kind == "masked" and mask:
                passes = self._masked_at(looked, position)
            at = [None if one is None else cast("Tensor", one.logits)[position] for one in passes]
        before, after, other = (None if one is None else as_float32(one) for one in at)
        return cast("Tensor", before), cast("Tensor", after), other

    def _masked_at(self, looked: Looked, position: int) -> list[Pass | None]:
        mask = self.loaded.tokenizer.mask_token_id
        if mask is None:
            raise AttnscopeError("the tokenizer has no mask token, which a masked language model needs")

        def hidden(one: Pass) -> Window:
            ids = list(one.window.ids)
            ids[position] = mask
            return replace(one.window, ids=tuple(ids))

        def restored(one: Pass) -> Pass:
            key = one, position
            if key not in self._passes:
                self._keep(key, self._run(hidden(one)))
            return self._passes[key]

        plain = restored(looked.plain)
        other = None if looked.other is None or not looked.aligned else restored(looked.other)
        if not looked.question.removed:
            return [plain, plain, other]
        masked = replace(looked, plain=plain, other=other)
        return [plain, self._edited(masked), other]

    def _returned(self, before: Tensor, after: Tensor, other: Tensor | None) -> dict[str, Any] | None:
        """How much of the other text's answer, next to this one's, comes back with the replaced heads."""
        if other is None:
            return None
        answer, wrong = int(other.argmax()), int(before.argmax())
        margins = [float(logits[answer] - logits[wrong]) for logits in (before, after, other)]
        apart = margins[2] - margins[0]  # 0 where both texts have both tokens equally likely
        share = (margins[1] - margins[0]) / apart if apart else None
        return {"answer": self._name(answer), "wrong": self._name(wrong), "share": share, "margins": margins}

    def _is_cut(self, asked: Look, window: Window) -> bool:
        """Whether the text is longer than what is read of it."""
        ends = [end for _, end in window.spans if end]
        return not asked.written and bool(ends) and bool(asked.text[max(ends) :].strip())

    def _asked_position(self, window: Window) -> int:
        """Where predictions are shown first: at a mask, else after the last token."""
        if self.kind == "masked":
            masks = [i for i, one in enumerate(window.ids) if one == self.loaded.tokenizer.mask_token_id]
            words = [
                i for i, token in enumerate(window.tokens) if not window.special[i] and token.strip(" ▁").isalnum()
            ]
            return (masks or words[-1:] or [0])[0]
        return len(_predicted(window)) - 1

    def _actual(self, window: Window, position: int) -> int | None:
        """The token that stands where one is predicted."""
        if self.kind == "label":
            return None
        ids, at = _predicted(window).ids, position + (self.kind != "masked")
        return int(ids[at]) if at < len(ids) else None

    def _name(self, index: int) -> str:
        if self.kind == "label":
            names: dict[Any, Any] = dict(self.loaded.model.config.id2label or {})
            return str(names.get(index, index))
        return self._names.of([index])[0]


_MATRICES = 3  # dimensions of logits by position
_SENTENCES = 4  # of an answer, whose last two do not attend to the first alone
_ENDS = ".!?。！？"
_FEWEST = 2  # tokens of a text of which one is predicted


def _predicted(window: Window) -> Window:
    """The text whose tokens are predicted."""
    return window.target or window


def sentences(window: Window) -> list[slice]:
    """The tokens of each sentence, without the first token of the text and special ones at its ends."""
    inner = [i for i, special in enumerate(window.special) if i and not special]
    parts_of, start = list[slice](), inner[0] if inner else 0
    for i in inner:
        token = window.tokens[i]
        if token.rstrip().endswith(tuple(_ENDS)) or "\n" in token or i == inner[-1]:
            if any(letter.isalnum() for letter in "".join(window.tokens[start : i + 1])):
                parts_of.append(slice(start, i + 1))
            start = i + 1
    return parts_of


def _received(weights: Tensor, parts_of: Sequence[slice]) -> Tensor:
    """Mean share of their weight that queries of later sentences, but the next, give to a sentence, by head."""
    received = [
        weights[:, parts_of[i + 2].start : parts_of[-1].stop, part].sum(-1).mean(-1)
        for i, part in enumerate(parts_of[:-2])
    ]
    return torch.stack(received, -1)


def _loss(asked: Questions, of: Pass) -> float:
    """Mean loss over the predicted tokens, nats."""
    logits = cast("Tensor", of.logits)[None]
    return float(asked.scores(asked.at(logits)[None])["loss"][0, 0])


def _differences(first: Maps, second: Maps) -> tuple[np.ndarray, list[float]]:
    """Small maps of the differences of two texts' weights, and the mean over queries of half their sum, by head.

    Half the sum of the absolute differences of two rows is the share of the weight that moves (total variation).
    """
    most = first.meta()["heads"]
    small = np.zeros((len(first.calls), most, first.side, first.side), np.uint8)
    moved: list[float] = []
    for row, layer in enumerate(first.calls):
        weights = [row_weights(maps.calls[layer], _EVERY).weights[0] for maps in (first, second)]
        difference = (weights[0] - weights[1]).abs()
        heads = len(difference)
        small[row, :heads] = parts.encode(np.stack([thumb(one, first.side) for one in difference.cpu().numpy()]))
        moved += (difference.sum(-1).mean(-1) / 2).tolist() + [0.0] * (most - heads)
    return small, moved
