"""The forward passes of one `generate` call, and what is measured of each."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from attnscope.capture import check_finite
from attnscope.capture._module_calls import cached_tokens
from attnscope.errors import AttnscopeError
from attnscope.statistics.generation._rows import KeyMarks, measure_rows
from attnscope.statistics.generation._spans import OWN, PROMPT, SOURCE, START, Prompts

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from attnscope.attention import AttentionCall
    from attnscope.capture import Site

    Layer = tuple[str, int]  # name of a module, and which of its calls in a pass


@dataclass(eq=False)
class ReadPass:
    """What one forward pass read, and what was measured of the queries from which a token is chosen.

    Attributes
    ----------
    batch, queries
        Size of the pass.
    start
        Where the first measured query stands in the text, padding counted.
    rows
        How many are measured; 0 in a part of the prompt.
    ids
        ``(batch, row)``: their tokens; None where the model was given embeddings.
    layers
        Statistics of each layer; see `measure_rows`.
    """

    batch: int
    queries: int
    start: int
    rows: int
    ids: Tensor | None
    layers: dict[Layer, dict[str, Tensor]] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)


class GenerationObserver:
    """Measures, in each pass of a `generate` call, the rows from which a token is chosen.

    Parameters
    ----------
    sites
        The layers that are measured; what else attends (an encoder, a vision tower) is let be.
    prompts
        What the model was given.
    is_pair
        Whether an encoder reads that, beside a decoder.
    """

    def __init__(self, sites: Mapping[Layer, Site], prompts: Prompts, *, is_pair: bool) -> None:
        self.sites, self.prompts, self.is_pair = sites, prompts, is_pair
        self.passes: list[ReadPass] = []
        self.prompt = None if is_pair or prompts.ids is None else prompts.ids.shape[1]
        self._now: ReadPass | None = None
        self._end = 0  # of what was read
        self._cache: Any = None
        self._marks: dict[tuple[bool, torch.device], KeyMarks] = {}  # by whether a layer looks across

    @property
    def spans(self) -> tuple[str, ...]:
        """Names of all spans."""
        first, rest = (SOURCE, (START, OWN)) if self.is_pair else (PROMPT, (OWN,))
        return (first, *self.prompts.names, *rest)

    def spans_of(self, kind: str) -> list[bool]:
        """Which of them the keys of a kind of layer may belong to."""
        of_given = [name not in {START, OWN} for name in self.spans]
        return [given == (kind == "cross") for given in of_given] if self.is_pair else [True] * len(of_given)

    def __call__(self, site: Site, call: AttentionCall) -> None:
        """Measure one call; the model goes on with its own output."""
        now = self._now
        if now is None or call.query.shape[0] != now.batch or call.query.shape[2] != now.queries:
            return  # of an encoder, or of what is no text
        layer = site.name, now.calls.get(site.name, 0)
        now.calls[site.name] = layer[1] + 1
        known = self.sites.get(layer)
        if known is None or not now.rows:
            return
        is_cross = known.kind == "cross"
        marks = self._marks_of(call, is_cross=is_cross)
        measured = measure_rows(call, now.queries - now.rows, now.start, marks, is_cross=is_cross)
        check_finite(
            f"layer {known.index} ({known.name})",
            measured["entropy"].transpose(1, 2),
            lambda text: f"sequence {text + 1}",
        )
        now.layers[layer] = measured

    @contextmanager
    def reading(self, model: PreTrainedModel) -> Generator[None]:
        """Know of each pass of a model what it reads."""
        known = inspect.signature(model.forward)

        def begin(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            arguments = dict(known.bind(*given, **named).arguments)
            self._begin(arguments | arguments.pop("kwargs", {}))

        def end(*_: Any) -> None:
            now, self._now = self._now, None
            if now is not None and now.rows:
                self.passes.append(now)

        hooks = [
            model.register_forward_pre_hook(begin, with_kwargs=True),
            model.register_forward_hook(end),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _begin(self, arguments: Mapping[str, Any]) -> None:
        side = "decoder_" if self.is_pair else ""
        ids, states = arguments.get(f"{side}input_ids"), arguments.get(f"{side}inputs_embeds")
        read = ids if ids is not None else states
        if read is None:
            raise AttnscopeError(
                "a pass reads neither token ids nor embeddings: which text it writes is not known"
            )
        batch, queries = read.shape[:2]
        past = self._past(arguments.get("past_key_values"))
        end = past + queries
        self.prompt = end if self.prompt is None else self.prompt
        start = max(self.prompt - 1, past or self._end)
        rows = max(end - start, 0)
        self._end = end
        self._now = ReadPass(batch, queries, start, rows, None if ids is None else ids[:, queries - rows :])

    def _past(self, cache: Any) -> int:
        """How many tokens a cache holds; refused where it is not known how."""
        if cache is None:
            return 0
        held = getattr(cache, "self_attention_cache", cache)
        layers = getattr(held, "layers", [held])
        strange = [layer for layer in layers if type(layer).__module__.partition(".")[0] != "transformers"]
        if strange or not hasattr(held, "get_seq_length"):
            kind = type([*strange, held][0]).__name__
            raise AttnscopeError(
                f"the cache keeps keys in a {kind}, which is not of transformers, so it is not known where in the text "
                "they stand: generate with one of transformers' caches"
            )
        if self._cache is not None and cache is not self._cache:
            raise AttnscopeError(
                "the passes of generate() use more than one cache, so it is not known which of them write the text"
            )
        self._cache = cache
        return cached_tokens(held)

    def _marks_of(self, call: AttentionCall, *, is_cross: bool) -> KeyMarks:
        device = call.query.device
        if (is_cross, device) not in self._marks:
            batch, names = len(call.query), self.prompts.names
            padding = self.prompts.padding(batch)
            if is_cross:
                columns, beyond = _padded(self.prompts.columns(batch, call.key.shape[2]), 0, 2), -1
            elif self.is_pair:
                columns, beyond = (
                    _padded(torch.ones(batch, self.prompt or 0, 1, dtype=torch.float32), 1 + len(names), 1),
                    2 + len(names),
                )
                padding = torch.zeros_like(padding)
            else:
                columns, beyond = _padded(self.prompts.columns(batch, self.prompt or 0), 0, 1), 1 + len(names)
            self._marks[is_cross, device] = KeyMarks(padding.to(device), columns.to(device), beyond)
        return self._marks[is_cross, device]


def _padded(columns: Tensor, before: int, behind: int) -> Tensor:
    return torch.nn.functional.pad(columns, (before, behind))
