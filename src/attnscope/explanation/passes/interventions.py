"""What happens to a head when words or positions are taken away, mixed up or moved."""

from __future__ import annotations

import json
from collections.abc import Generator, Hashable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Int
from torch import Tensor, nn

from attnscope.capture.notes import layer_coordinates
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.explanation.evidence import check_self_attention
from attnscope.explanation.inputs import capture_inputs, changing_input, input_moments
from attnscope.explanation.passes.cause import (
    CHANGES,
    POSITION_CHANGES,
    WORD_CHANGES,
    BeforeAfter,
    Settings,
    check_frequencies,
    check_measured,
)
from attnscope.explanation.tables import position_table, position_tables, replaced_positions, word_embedding
from attnscope.explanation.tokens import Tokens, Windows, batches, interval, read, targets_of, token_ids
from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import measure
from attnscope.measure.documents import units_of
from attnscope.support.checks import check_some, check_whole
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SHIFTED = "positions-shifted"


@torch.no_grad()
def interventions(
    model: PreTrainedModel,
    windows: Windows,
    changes: Sequence[str] | None = None,
    *,
    layer: int | None = None,
    band: int = 10,
    target_offset: Int[np.ndarray, "layer head"] | None = None,
    shift: int = 8,
    frequencies: tuple[int, int] | None = None,
    components: int = 12,
    draws: int = 1000,
    seed: int = 0,
) -> xr.Dataset:
    r"""Change what a model knows of its words or positions, and see what becomes of every head.

    ============================  ========================================================  ==========================
    change                        what is done                                              if position alone counts
    ============================  ========================================================  ==========================
    words-zero                    every word vector is zero                                 profile kept
    words-repeated                every word is the text's middle one                       profile kept
    words-shuffled                the words of a text change places (not special tokens)    profile kept
    positions-zero                every row is zero                                         profile flat
    positions-mean                every row is the mean row                                 profile flat
    positions-permuted            position ids change places                                kept in the order of ids
    positions-reversed            position ids run backwards                                left and right swap
    positions-shifted             position ids begin at `shift`                             profile kept
    positions-band-removed        `frequencies` are removed from the rows by FFT            weight at t\* falls
    positions-components-removed  the rows' first principal components are projected out    weight at t\* falls
    positions-phases-random       each column of rows keeps its spectrum, not its phases    lost if phases matter
    ============================  ========================================================  ==========================

    Parameters
    ----------
    model
        In eval mode. Its position tables are changed in place and put back.
    windows
        All equally long. With `layer`, two or more.
    changes
        Names from the table; by default all that model and windows allow.
    layer
        Change the input of this attention layer only, and look at this layer only: X = P + C with P the mean over
        texts at each position takes the place of table and words. Zeroing what all layers read puts them out of
        what they were trained on; this does so for one. There is no ``positions-shifted`` here.
    band
        Largest offset.
    target_offset
        ``(layer, head)``: the offset t\* to follow. By default where the mean profile is highest.
    shift
        First position id of ``positions-shifted``, tokens.
    frequencies
        First and last frequency removed, cycles per window. By default those of 8.5 to 12.8 tokens a cycle, where
        RoBERTa's table has its peak (40 to 60 in 512 tokens).
    components
        How many principal components are projected out.
    draws, seed
        Number of draws and seed of the bootstrap over documents (windows, where there are fewer than 6): ``_low``
        and ``_high`` are the ends of its 95% interval, NaN of fewer than 6 windows. The seed is also that of the
        permutations and random phases.

    Returns
    -------
    xarray.Dataset
        Dimensions ``change, layer, head, offset``. ``profile_before``, ``profile_after`` (mean weight at an offset),
        ``profile_by_id`` (the same with tokens in the order of their position ids; NaN for changes that keep the
        order), ``trace_before``, ``trace_after`` (:math:`tr_t` of the scores, scale included, keys about their
        mean), ``mass_before``, ``mass_after``, ``mass_change`` (weight at t\*), ``output_change`` (norm of the change
        of a head's output, as a share of the norm of its output before), ``target``. The attribute ``left_out`` says,
        as JSON, which changes these windows do not allow, and why, where `changes` names none.

    Raises
    ------
    AttnscopeError
        If a change is not known or not possible with this model and these windows, or a setting is out of range.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> from attnscope.capture.load import load_model
    >>> model = load_model(MODEL, device="cpu", need_tokenizer=False).model
    >>> texts = np.random.default_rng(0).integers(5, 500, (2, 16)).tolist()
    >>> effects = interventions(model, texts, ["words-shuffled", "positions-reversed"], band=4)
    >>> dict(effects.profile_after.sizes)
    {'change': 2, 'layer': 3, 'head': 4, 'offset': 9}
    """
    check_measured(band=band, draws=draws, seed=seed)
    check_whole(1, shift=shift, components=components)
    windows = list(windows)
    ids = token_ids(windows, least=1 if layer is None else 2)
    special, target_special = _special(windows), _special(targets_of(windows) or windows)
    length = ids.length
    if frequencies is not None:
        check_frequencies(frequencies, length)
    low = round(length * 40 / 512)
    settings = Settings(shift, frequencies or (low, max(low, round(length * 60 / 512))), components, seed)
    sites = list(capture_inputs(model, windows[0]))
    if layer is None:
        check_self_attention(model, sites)
    names, left_out = _checked(model, changes, length, layer, settings)
    means = None
    if layer is not None:
        means = input_moments(model, windows, layer).position_mean
    measured = BeforeAfter(band, layer)
    of_decoder = layer is not None and sites[layer].kind != "self"
    for place, batch in batches(ids):
        places = (target_special if of_decoder else special)[place]
        with watching(model, measured.before):
            read(model, batch)
        for name in names:
            measured.order = settings.order(name, length)
            with ExitStack() as stack:
                given = batch
                if layer is not None and means is not None:
                    stack.enter_context(
                        changing_input(model, sites, layer, settings.change_of_input(name, means, places))
                    )
                elif name in WORD_CHANGES:
                    beside = batch.target
                    given = Tokens(
                        settings.words(name, batch.ids, places),
                        None if beside is None else settings.words(name, beside, target_special[place]),
                        batch.names,
                    )
                    if name == "words-zero":
                        stack.enter_context(_without_words(model))
                else:
                    rows = {
                        table.name: settings.rows(name, table.rows, length)
                        for table in position_tables(model)
                    }
                    stack.enter_context(replaced_positions(model, rows))
                with watching(model, measured.after(name)):
                    read(model, given)
    units, called = units_of(ids.documents)
    return measured.dataset(names, target_offset, units, draws, seed).assign_attrs(
        texts=len(ids),
        intervals_over=called,
        length=length,
        shift=shift,
        frequencies=list(settings.frequencies),
        components=components,
        left_out=json.dumps(left_out),
    )


def _checked(
    model: PreTrainedModel, changes: Sequence[str] | None, length: int, layer: int | None, settings: Settings
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The changes to make, each once, refused where they cannot be made."""
    check_some(f"of {', '.join(CHANGES)}", changes=changes)
    unknown = [name for name in changes or () if name not in CHANGES]
    if unknown:
        raise AttnscopeError(f"there is no change {unknown[0]!r}: choose from {', '.join(CHANGES)}")
    tables = [] if layer is not None else position_tables(model)
    room = min((len(table.rows) for table in tables), default=0) - length
    if changes is None:
        possible = CHANGES if layer is not None or tables else WORD_CHANGES
        left_out = (
            {} if room >= settings.shift or not tables else {_SHIFTED: _no_room(room, length, settings)}
        )
        return tuple(name for name in possible if name != _SHIFTED or room >= settings.shift), left_out
    if layer is None and any(name in POSITION_CHANGES for name in changes):
        position_table(model)  # says why there is none
    if _SHIFTED in changes and room < settings.shift:
        raise AttnscopeError(_no_room(room, length, settings, " at one layer" * (layer is not None)))
    return tuple(dict.fromkeys(changes)), {}


def _no_room(room: int, length: int, settings: Settings, where: str = "") -> str:
    return (
        f"positions cannot be shifted by {settings.shift}: {max(0, room)} rows lie beyond the window's "
        f"{length}{where}. Give a smaller window (--window) or shift"
    )


def _special(windows: Sequence[Any]) -> Bool[Tensor, "text position"]:
    """Special tokens, as far as the windows know them."""
    return torch.tensor([tuple(getattr(window, "special", (False,) * len(window))) for window in windows])


@contextmanager
def _without_words(model: PreTrainedModel) -> Generator[None]:
    """Every module that shares the word table returns zeros (an encoder and a decoder may have one each)."""
    table = word_embedding(model).weight
    shared = [
        module
        for module in model.modules()
        if isinstance(module, nn.Embedding) and module.weight.data_ptr() == table.data_ptr()
    ]

    def nothing(_: nn.Module, __: Any, returned: Tensor) -> Tensor:
        return torch.zeros_like(returned)

    hooks = [module.register_forward_hook(nothing) for module in shared]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


#: For each attention call, one array ``(text, head, offset)`` for each batch.
ByCall = Mapping[int, list[np.ndarray]]


@torch.no_grad()
def profiles_of(
    model: PreTrainedModel, windows: Windows, band: int, *, every: int = 1
) -> tuple[dict[int, list[np.ndarray]], dict[int, Site]]:
    """Profiles of all calls but cross-attention, and which calls they are; of every so many rows, from the first."""
    by_layer: dict[int, list[np.ndarray]] = {}
    sites: dict[int, Site] = {}

    def observe(site: Site, call: AttentionCall) -> Tensor:
        output, rows = measure(call, Need(band=band))
        if site.kind != "cross" and rows.band is not None:
            sites[site.index] = site
            chosen = np.arange(0, call.query.shape[2], every)
            key = chosen[:, None] + np.arange(-band, band + 1)
            pairs = ((key >= 0) & (key < call.key.shape[2])).sum(0)
            sums = rows.band[:, :, ::every].double().sum(2).cpu().numpy()
            by_layer.setdefault(site.index, []).append(
                np.where(pairs > 0, sums / np.maximum(pairs, 1), np.nan)
            )
        return output

    with watching(model, observe):
        for _, batch in batches(token_ids(windows)):
            read(model, batch)
    return by_layer, sites


def stacked_profiles(
    parts: Mapping[str, ByCall],
    sites: Mapping[int, Site],
    *,
    documents: Sequence[Hashable] | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> xr.Dataset:
    """``profile`` and ``effect`` (that of the first name minus that of each) over ``variant, layer, head, offset``."""
    first = next(iter(parts.values()))
    texts = sum(map(len, next(iter(first.values()))))
    heads = max(part[0].shape[1] for part in first.values())
    offsets = next(iter(first.values()))[0].shape[2]
    stacked = np.full((len(parts), texts, len(sites), heads, offsets), np.nan)
    for number, by_call in enumerate(parts.values()):
        for row, index in enumerate(sorted(sites)):
            if index in by_call:
                layer = np.concatenate(by_call[index])
                stacked[number, :, row, : layer.shape[1]] = layer
    units, called = units_of(range(texts) if documents is None else documents)
    dims = ("variant", "layer", "head", "offset")
    arrays = {}
    for name, values in (("profile", stacked), ("effect", stacked[:1] - stacked)):
        ends = interval(np.moveaxis(values, 0, 1), units, draws=draws, seed=seed)
        for end, part in zip(("", "_low", "_high"), ends, strict=True):
            attributes = {"long_name": f"mean weight at an offset ({name})", "units": "weight"}
            arrays[name + end] = (dims, part, attributes)
    ordered = [sites[index] for index in sorted(sites)]
    return xr.Dataset(
        arrays,
        coords={
            "variant": list(parts),
            **layer_coordinates(ordered),
            "head": np.arange(heads),
            "offset": np.arange(-(offsets // 2), offsets // 2 + 1),
        },
        attrs={"texts": texts, "intervals_over": called},
    )
