"""A model, the texts that it is asked about, and what is checked before anything is changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

import torch

from attnscope._arguments import typed
from attnscope.capture import LoadedModel, Site, decoder_start, padding_difference, verify
from attnscope.corpus import Corpus, EncodedTexts, LinePairs, Texts, Window, window_name, windows_of
from attnscope.errors import AttnscopeError
from attnscope.faithfulness.passes import (
    HeadMeans,
    Kind,
    Outputs,
    Questions,
    kind_of_question,
    questions,
    real_queries,
    replacement,
    same_without_what_is_skipped,
    stacked_passes,
    unread_sites,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOKENS = 1024  # of a batch


@dataclass(eq=False)
class Inquiry:
    """One model and the windows that it is asked about.

    Attributes
    ----------
    loaded
        The model with its tokenizer.
    windows
        At least one; those of an encoder-decoder with what its decoder reads.
    kind
        What it is asked.
    seed
        Seed of the words that are hidden from a masked language model.
    skips
        Whether passes leave out what does not differ: so where that was seen to give the same numbers.

    Examples
    --------
    >>> from attnscope.capture import load_model
    >>> from attnscope.corpus import texts_of
    >>> texts = texts_of(["The tide is out.", "The boats lie on the sand."])
    >>> asked = inquiry(load_model("bundled", device="cpu"), texts, window=16, limit=2)
    >>> asked.check()
    >>> asked.heads, asked.cells[:2]
    ([4, 4, 4], [(0, 0), (0, 1)])
    """

    loaded: LoadedModel
    windows: Sequence[Window]
    kind: Kind
    seed: int = 0
    batch_size: int | None = None
    skips: bool = True
    sites: list[Site] = field(default_factory=list)

    @property
    def model(self) -> PreTrainedModel:
        """The model itself, without its tokenizer."""
        return self.loaded.model

    @cached_property
    def documents(self) -> list[str]:
        """The text that each window was cut from."""
        return [window.source for window in self.windows]

    @property
    def cells(self) -> list[tuple[int, int]]:
        """Every head, as (layer, head)."""
        return [(layer, head) for layer, heads in enumerate(self.heads) for head in range(heads)]

    @cached_property
    def heads(self) -> list[int]:
        """How many heads each attention call has."""
        return [output.shape[1] for output in self._few_outputs]

    def slices(self) -> list[slice]:
        """The windows of each batch: about 1,024 tokens' worth, and 2 at least, as heads are resampled within one."""
        longest = max(max(len(window), len(window.target or window)) for window in self.windows)
        size = self.batch_size or max(2, TOKENS // longest)
        starts = list(range(0, len(self.windows), size))
        if len(starts) > 1 and len(self.windows) - starts[-1] == 1:
            starts.pop()  # a last text that would be alone joins the batch before
        ends = [*starts[1:], len(self.windows)]
        return [slice(start, end) for start, end in zip(starts, ends, strict=True)]

    def batch(self, place: slice) -> Questions:
        """What the model is asked about some of the windows."""
        return questions(self.kind, self.windows[place], self.loaded.tokenizer, self.seed, self.model.device)

    def batches(self) -> Iterator[Questions]:
        """All windows, batch after batch."""
        return map(self.batch, self.slices())

    def name(self, first: int = 0) -> _Name:
        """What to call a text of a batch that begins at window `first`."""
        return _Name(self.windows, first)

    def check(self) -> None:
        """Refuse a model whose heads cannot be taken out, before anything is measured.

        Raises
        ------
        AttnscopeError
            If what is captured is not what the model does, a layer's output projection is not found, or a text's
            numbers depend on what stands beside it.
        """
        first = self.batch(slice(0, 1))
        inputs = first.reading.inputs(self.model)
        self.sites, _ = verify(self.model, inputs, text=window_name(self.windows[0], 0))
        check_read(self.loaded, inputs)
        if len({len(window) for window in self.windows}) > 1:
            self._check_padding()
        self.skips = same_without_what_is_skipped(self.model, inputs, first.places)

    def _check_padding(self) -> None:
        by_length = sorted(self.windows, key=len)
        texts = [by_length[-1], by_length[0]]
        both = questions(self.kind, texts, self.loaded.tokenizer, self.seed, self.model.device)
        alone = [
            questions(self.kind, [text], self.loaded.tokenizer, self.seed, self.model.device).reading.inputs(
                self.model
            )
            for text in texts
        ]
        if padding_difference(self.model, both.reading.inputs(self.model), alone) > 1:
            raise AttnscopeError(
                f"{type(self.model).__name__} gives a text other numbers beside a longer one: give texts that are all "
                f"equally long, such as full windows of --window {len(by_length[0])}"
            )

    @cached_property
    def _few_outputs(self) -> Outputs:
        with stacked_passes(self.model, skips=False) as passes:
            passes.plain(self.batch(slice(0, 1)).reading.inputs(self.model))
            return passes.outputs

    @cached_property
    @torch.no_grad()
    def means(self) -> HeadMeans:
        """Mean output of every head over all texts: one pass over them."""
        means = HeadMeans()
        with stacked_passes(self.model, skips=False) as passes:
            for place in self.slices():
                asked = self.batch(place)
                passes.plain(asked.reading.inputs(self.model), asked.places, self.name(place.start))
                means.add(passes.outputs, real_queries(asked, passes.sites))
        return means

    def stand_ins(
        self,
        asked: Questions,
        outputs: Outputs,
        sites: Sequence[Site],
        ablation: str,
        means: HeadMeans | None,
    ) -> list[torch.Tensor]:
        """What stands in for every head of every call of a batch."""
        real = real_queries(asked, sites)
        return [
            replacement(ablation, output, None if means is None else means.of(call), valid)  # pyright: ignore[reportArgumentType]
            for call, (output, valid) in enumerate(zip(outputs, real, strict=True))
        ]


@dataclass(frozen=True)
class _Name:
    windows: Sequence[Window]
    first: int

    def __call__(self, number: int) -> str:
        return window_name(self.windows[self.first + number], self.first + number)


def check_read(loaded: LoadedModel, inputs: dict[str, torch.Tensor]) -> None:
    """Refuse a model with a layer of which no linear layer reads the heads.

    Raises
    ------
    AttnscopeError
        Names the layer.
    """
    few = {key: value[:, :32] for key, value in inputs.items()}
    for site in unread_sites(loaded.model, few):
        raise AttnscopeError(
            f"{loaded.name}, layer {site.index} ({site.name}): no linear layer reads what its heads give, so "
            "no head's own part can be taken out of it. Choose another model"
        )


@typed
def inquiry(
    loaded: LoadedModel,
    corpus: Texts,
    target: Corpus | None = None,
    *,
    window: int,
    limit: int,
    seed: int = 0,
    batch_size: int | None = None,
) -> Inquiry:
    """Cut texts into windows and say what the model is asked about them.

    Parameters
    ----------
    loaded
        The model with its tokenizer.
    corpus
        Texts, or rows of token ids.
    target
        Text in the target language, line beside line, for an encoder-decoder.
    window
        Tokens of a window at most.
    limit
        Number of windows at most.
    seed
        Seed of the words that are hidden from a masked language model.
    batch_size
        Windows of a batch; by default about 1,024 tokens' worth.

    Returns
    -------
    Inquiry
        Not yet checked: see `Inquiry.check`.

    Raises
    ------
    AttnscopeError
        If the model makes no logits, or is an encoder-decoder without targets.

    Examples
    --------
    >>> from attnscope.capture import load_model
    >>> from attnscope.corpus import texts_of
    >>> texts = texts_of(["The tide is out.", "The boats lie on the sand."])
    >>> asked = inquiry(load_model("bundled", device="cpu"), texts, window=16, limit=2)
    >>> asked.kind, len(asked.windows)
    ('masked', 2)
    """
    kind = kind_of_question(loaded.model)
    if kind == "translation" and (target is None or isinstance(corpus, EncodedTexts)):
        raise AttnscopeError(
            f"{loaded.name} is an encoder-decoder, and what it shall say is not known: give translations "
            "(targets, --target), line i beside line i"
        )
    if target is not None and not isinstance(corpus, EncodedTexts):
        start = decoder_start(loaded.model)
        pairs = LinePairs(corpus, target, loaded.tokenizer, start, length=window, limit=limit)
        pairs.check()
        windows = list(islice(pairs, limit))
    else:
        windows = list(windows_of(corpus, loaded.tokenizer, length=window, limit=limit))
    return Inquiry(loaded, windows, kind, seed, batch_size)
