"""A model and its texts, in whatever form they are given: windows of any length, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import torch
import xarray as xr
from torch import Tensor
from transformers import PreTrainedModel

from attnscope.capture.forward import decoder_start
from attnscope.capture.load import load_model
from attnscope.explanation.study import FEW_TEXTS, Study
from attnscope.explanation.tokens import ids_of
from attnscope.kernels.call import AttentionCall
from attnscope.measure.texts import window_length
from attnscope.read.encoded import EncodedTexts, texts_and_targets, windows_of
from attnscope.read.pairs import LinePairs
from attnscope.read.windows import Window, window_name
from attnscope.store.runs import RunFolder, is_finished
from attnscope.store.units import by_task, pending
from attnscope.support.arguments import Count, validated
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.capture.processors import Tokenizer
    from attnscope.read.encoded import Sources
    from attnscope.store.signature import Signature
    from attnscope.store.units import Batches, Task

AnyWindow = Window | Sequence[int]


@dataclass(frozen=True, eq=False)
class InterventionInput:
    """A model and the windows that it is to read."""

    model: PreTrainedModel  # as it was given, or loaded
    windows: list[AnyWindow]  # windows of any length; with a target where a decoder reads one
    name: str  # the model's
    mask_id: int | None  # the token that a masked language model predicts at; None where there is none, or no tokenizer

    @property
    def documents(self) -> list[str]:
        """The text that each window is from: what intervals are drawn over."""
        return [getattr(window, "source", window_name(window, number)) for number, window in enumerate(self.windows)]


class InputOptions(TypedDict, total=False):
    """How texts are read: see `attnscope.scan`."""

    targets: Sources
    tokenizer: Tokenizer
    window: int | None
    limit: int | None
    by_line: bool


@validated
def input_of(
    model: Model | Study | InterventionInput | None = None,
    texts: Sources = None,
    *,
    targets: Sources = None,
    tokenizer: Tokenizer = None,
    window: Count | None = None,
    limit: Count | None = None,
    by_line: bool = False,
) -> InterventionInput:
    """Take a model and texts; a study gives those that it has."""
    limit = FEW_TEXTS if limit is None else limit
    if isinstance(model, Study | InterventionInput):
        beside = {"texts": texts, "targets": targets, "tokenizer": tokenizer, "window": window}
        if named := [name for name, value in beside.items() if value is not None]:
            raise AttnscopeError(
                f"found a study and {named[0]} beside it: a study has read its texts; leave {named[0]} out, or make "
                "another study"
            )
        if isinstance(model, InterventionInput):
            return model
        known = None if model.loaded is None else model.loaded.tokenizer
        return InterventionInput(model.model, model.windows[:limit], model.name, _mask_id(known))
    corpus, target = texts_and_targets(
        texts, targets, by_line=by_line or targets is not None, blank_lines=targets is not None
    )
    if isinstance(model, PreTrainedModel) and tokenizer is None and isinstance(corpus, EncodedTexts):
        return InterventionInput(model, list(corpus.rows[:limit]), type(model).__name__, None)
    loaded = load_model(model, tokenizer=tokenizer)
    length = window_length(loaded, window)
    if target is None or isinstance(corpus, EncodedTexts):
        windows = list(islice(windows_of(corpus, loaded.tokenizer, length=length, limit=limit), limit))
    else:
        start = decoder_start(loaded.model)
        pairs = LinePairs(corpus, target, loaded.tokenizer, start, length=length, limit=limit)
        pairs.check()
        windows = list(pairs)
    return InterventionInput(loaded.model, [*windows], loaded.name, _mask_id(loaded.tokenizer))


def inputs_of(model: PreTrainedModel, window: AnyWindow) -> dict[str, Tensor]:
    """Arguments of a forward pass over one window; without a target a decoder beside an encoder reads the same."""
    read = {"input_ids": window}
    if model.config.is_encoder_decoder:
        read["decoder_input_ids"] = getattr(window, "target", None) or window
    return {name: torch.tensor([list(ids_of(text))], device=model.device) for name, text in read.items()}


def _mask_id(tokenizer: Any) -> int | None:
    return getattr(tokenizer, "mask_token_id", None)


MATRIX_BYTES = 2 << 30
NUMBERS_AT_ONCE = 1 << 25  # 128 MiB of weights, or of probabilities
_IN_A_GRAPH = 4  # matrices of each head: scores, their exponentials and what makes weights of them


def check_matrices(calls: Iterable[AttentionCall], name: str, *, in_a_graph: bool) -> None:
    """Refuse a text whose weights, of all heads of these calls, take more than 2 GiB."""
    needed = longest = 0
    for call in calls:
        numbers = call.query.shape[1] * call.query.shape[2] * call.key.shape[2]
        wide = torch.promote_types(call.query.dtype, torch.float32).itemsize
        needed += numbers * wide * (_IN_A_GRAPH if in_a_graph else 1)
        longest = max(longest, call.query.shape[2], call.key.shape[2])
    if needed > MATRIX_BYTES:
        backward = " in a backward pass" if in_a_graph else ""
        raise AttnscopeError(
            f"{name} has {longest} tokens, whose matrices of weights take more than {MATRIX_BYTES >> 30} GiB"
            f"{backward}: give a smaller window, or leave out what needs them"
        )


class StoredParts:
    """Parts of a result: those that a run folder holds are read, others made and written."""

    def __init__(self, run: RunFolder | None) -> None:
        self.run = run
        self.parts: dict[str, xr.Dataset] = {}

    def get(self, name: str, make: Callable[[], xr.Dataset]) -> xr.Dataset:
        """The part of that name, made if it is not there yet."""
        stored = None if self.run is None else self.run.load(name)
        if stored is None:
            stored = make()
            if self.run is not None:
                self.run.save(name, stored)
                stored = self.run.load(name) or stored  # as a later call will read it
        self.parts[name] = stored
        return stored


def tree_in_folder(
    out: str | Path | Callable[[Signature], Path],
    signature: Signature,
    task: Task | None,
    batches: Batches,
    whole: Callable[[RunFolder], xr.DataTree],
    attributes: dict[str, str],
    *,
    repair: bool,
) -> xr.DataTree:
    """Results in a run folder, by this process alone (`whole`), or its task of them (see `by_task`)."""
    folder = Path(out(signature) if callable(out) else out)
    if task is None or is_finished(folder):
        with RunFolder(folder, signature, repair=repair) as run:
            return whole(run)
    tree = by_task(task, folder, signature, batches, whole, attributes, repair=repair)
    return xr.DataTree(xr.Dataset(attrs=pending(task, folder, signature))) if tree is None else tree


@validated
def load_intervention(run: RunFolder) -> xr.DataTree:
    """The tree that `intervene` returned, from the folder of a finished run."""
    return stored_tree(run, {"effects": run.results()})


def stored_tree(run: RunFolder, measured: dict[str, xr.Dataset]) -> xr.DataTree:
    """What was measured and the parts made of it, with the attributes of a finished run."""
    parts = dict(measured)
    for name in run.state["parts"]:
        part = run.load(name)
        if part is None:
            raise AttnscopeError(
                f"{run.path} has no {name}: give the same command again, which makes anew what is not there"
            )
        parts[str(name)] = part
    tree = xr.DataTree.from_dict(parts)
    tree.attrs = {**run.state["attributes"], "run": str(run.path)}
    return tree
