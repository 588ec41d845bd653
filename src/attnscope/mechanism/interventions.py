"""What happens to a head when words or positions are taken away, mixed up or moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnscope.attention import AttentionCall
from attnscope.capture import Site, watching
from attnscope.errors import AttnscopeError
from attnscope.mechanism._rows import allowed_pairs, centred_keys, mean_profile, profile_and_output
from attnscope.mechanism._texts import Windows, batches, interval, model_inputs, resampled, token_ids
from attnscope.mechanism.inputs import capture_inputs, changing_input, collect_inputs
from attnscope.mechanism.tables import position_table, position_tables, replaced_positions, word_embedding

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    Rows = np.ndarray
    RowChange = Callable[[Rows], Rows]

WORD_CHANGES = ("words-zero", "words-repeated", "words-shuffled")
POSITION_CHANGES = (
    "positions-zero",
    "positions-mean",
    "positions-permuted",
    "positions-reversed",
    "positions-shifted",
    "positions-band-removed",
    "positions-components-removed",
    "positions-phases-random",
)
_REORDERING = ("positions-permuted", "positions-reversed")


@torch.no_grad()
def interventions(
    model: PreTrainedModel,
    windows: Windows,
    changes: Sequence[str] | None = None,
    *,
    layer: int | None = None,
    band: int = 10,
    target: Int[np.ndarray, "layer head"] | None = None,
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
    target
        ``(layer, head)``: the offset t\* to follow. By default where the mean profile is highest.
    shift
        Of ``positions-shifted``, tokens.
    frequencies
        First and last frequency removed, cycles per window. By default those of 8.5 to 12.8 tokens a cycle, where
        RoBERTa's table has its peak (40 to 60 in 512 tokens).
    components
        How many principal components are projected out.
    draws, seed
        Of the bootstrap over texts (``_low`` and ``_high`` are its 2.5 % and 97.5 % points), and of what is random.

    Returns
    -------
    xarray.Dataset
        Dimensions ``change, layer, head, offset``. ``profile_before``, ``profile_after`` (mean weight at an offset),
        ``profile_by_id`` (the same with tokens in the order of their position ids; NaN for changes that keep the
        order), ``trace_before``, ``trace_after`` (:math:`tr_t` of the scores, scale included, keys about their
        mean), ``mass_before``, ``mass_after``, ``mass_change`` (weight at t\*), ``output_change`` (norm of the change of a
        head's output, as a share of the norm of its output before), ``target``.

    Raises
    ------
    AttnscopeError
        If a change is not known or not possible with this model and these windows.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> from attnscope.capture import load_model
    >>> model = load_model(MODEL, device="cpu", need_tokenizer=False).model
    >>> texts = np.random.default_rng(0).integers(5, 500, (2, 16)).tolist()
    >>> found = interventions(model, texts, ["words-shuffled", "positions-reversed"], band=4)
    >>> dict(found.profile_after.sizes)
    {'change': 2, 'layer': 3, 'head': 4, 'offset': 9}
    """
    windows = list(windows)
    ids, special = token_ids(windows, least=1 if layer is None else 2), _special(windows)
    length = ids.shape[1]
    low = round(length * 40 / 512)
    settings = _Settings(shift, frequencies or (low, max(low, round(length * 60 / 512))), components, seed)
    sites = list(capture_inputs(model, model_inputs(model, ids[:1])))
    names = _checked(model, changes, length, layer, settings)
    means = None
    if layer is not None:
        ((_, moments),) = collect_inputs(model, ids.tolist(), layers=[layer], covariance=False).items()
        means = moments.position_means
    measured = _Measured(band, layer)
    for _, batch, places in _with_special(ids, special):
        with watching(model, measured.before):
            model(**model_inputs(model, batch))
        for name in names:
            measured.order = settings.order(name, length)
            with ExitStack() as stack:
                given = batch
                if layer is not None and means is not None:
                    stack.enter_context(
                        changing_input(model, sites, layer, settings.change_of_input(name, means, places))
                    )
                elif name in WORD_CHANGES:
                    given = settings.words(name, batch, places)
                    if name == "words-zero":
                        stack.enter_context(_without_words(model))
                else:
                    rows = {table.name: settings.rows(name, table.rows, length) for table in position_tables(model)}
                    stack.enter_context(replaced_positions(model, rows))
                with watching(model, measured.after(name)):
                    model(**model_inputs(model, given))
    return measured.dataset(names, target, resampled(len(ids), draws, seed)).assign_attrs(
        texts=len(ids), length=length, shift=shift, frequencies=list(settings.frequencies), components=components
    )


def remove_band(
    rows: Float[np.ndarray, "position width"], first: int, last: int
) -> Float[np.ndarray, "position width"]:
    """Remove frequencies ``first..last`` (cycles over the rows) from every column.

    Examples
    --------
    >>> wave = np.cos(2 * np.pi * 3 * np.arange(16) / 16)[:, None]
    >>> bool(np.allclose(remove_band(wave + 1, 2, 4), 1))
    True
    """
    spectrum = np.fft.rfft(rows, axis=0)
    spectrum[first : last + 1] = 0
    return np.fft.irfft(spectrum, len(rows), axis=0)


def remove_components(rows: Float[np.ndarray, "position width"], count: int) -> Float[np.ndarray, "position width"]:
    """Project the first `count` principal components out of the rows; their mean stays.

    Examples
    --------
    >>> rows = np.array([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.1], [-1.0, -0.1]])
    >>> bool(abs(remove_components(rows, 1)).max() < 0.1)
    True
    """
    mean = rows.mean(0)
    _, _, directions = np.linalg.svd(rows - mean, full_matrices=False)
    kept = directions[:count]
    return rows - (rows - mean) @ kept.T @ kept


def random_phases(rows: Float[np.ndarray, "position width"], seed: int) -> Float[np.ndarray, "position width"]:
    """Give each column's every frequency a random phase: the amplitude spectrum and the mean stay (Theiler et al. 1992).

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(16, 2))
    >>> other = random_phases(rows, 1)
    >>> bool(np.allclose(abs(np.fft.rfft(rows, axis=0)), abs(np.fft.rfft(other, axis=0)))), bool(np.allclose(rows, other))
    (True, False)
    """
    spectrum = np.fft.rfft(rows, axis=0)
    phases = np.exp(2j * np.pi * np.random.default_rng(seed).random(spectrum.shape))
    phases[0] = 1
    if len(rows) % 2 == 0:
        phases[-1] = 1  # the highest frequency is real
    return np.fft.irfft(spectrum * phases, len(rows), axis=0)


@dataclass(frozen=True)
class _Settings:
    """What each change needs to know."""

    shift: int
    frequencies: tuple[int, int]
    components: int
    seed: int

    def order(self, name: str, length: int) -> np.ndarray | None:
        """The position id that each token gets, where ids change places."""
        if name == "positions-reversed":
            return np.arange(length)[::-1].copy()
        if name == "positions-permuted":
            return np.random.default_rng(self.seed).permutation(length)
        return None

    def rows(self, name: str, whole: np.ndarray, length: int) -> np.ndarray:
        """The rows that positions ``0..length-1`` read, changed."""
        rows = whole[:length]
        order = self.order(name, length)
        if order is not None:
            return rows[order]
        changes: dict[str, RowChange] = {
            "positions-zero": np.zeros_like,
            "positions-mean": lambda rows: np.broadcast_to(rows.mean(0), rows.shape).copy(),
            "positions-shifted": lambda _: whole[self.shift : self.shift + length],
            "positions-band-removed": lambda rows: remove_band(rows, *self.frequencies),
            "positions-components-removed": lambda rows: remove_components(rows, self.components),
            "positions-phases-random": lambda rows: random_phases(rows, self.seed),
        }
        return changes[name](rows)

    def words(self, name: str, ids: Tensor, special: Tensor) -> Tensor:
        """Other token ids; special tokens stay in their places."""
        places = self._places(name, special).to(ids.device)
        return ids.gather(1, places)

    def change_of_input(self, name: str, means: np.ndarray, special: Tensor) -> Callable[[Tensor], Tensor]:
        """The same changes on one layer's X, split into position means and the rest."""

        def change(states: Tensor) -> Tensor:
            position = torch.from_numpy(means).to(states)
            content = states - position
            if name == "words-zero":
                content = torch.zeros_like(content)
            elif name in WORD_CHANGES:
                places = self._places(name, special).to(states.device)
                content = content.gather(1, places[:, :, None].expand_as(content))
            else:
                position = torch.from_numpy(self.rows(name, means, len(means))).to(states)
            return position + content

        return change

    def _places(self, name: str, special: Tensor) -> Tensor:
        """Where each token's word comes from, ``(text, position)``."""
        texts, length = special.shape
        places = torch.arange(length).repeat(texts, 1)
        generator = np.random.default_rng(self.seed)
        for text in range(texts):
            words = torch.nonzero(~special[text])[:, 0]
            if name == "words-repeated" and len(words):
                places[text, words] = words[len(words) // 2]
            elif name == "words-shuffled":
                places[text, words] = words[torch.from_numpy(generator.permutation(len(words)))]
        return places


def _checked(
    model: PreTrainedModel, changes: Sequence[str] | None, length: int, layer: int | None, settings: _Settings
) -> tuple[str, ...]:
    """The changes to make, refused where they cannot be made."""
    known = (*WORD_CHANGES, *POSITION_CHANGES)
    unknown = [name for name in changes or () if name not in known]
    if unknown:
        raise AttnscopeError(f"there is no change {unknown[0]!r}: choose from {', '.join(known)}")
    tables = [] if layer is not None else position_tables(model)
    room = min((len(table.rows) for table in tables), default=0) - length
    if changes is None:
        possible = known if layer is not None or tables else WORD_CHANGES
        return tuple(name for name in possible if name != "positions-shifted" or room >= settings.shift)
    if layer is None and any(name in POSITION_CHANGES for name in changes):
        position_table(model)  # says why there is none
    if "positions-shifted" in changes and room < settings.shift:
        raise AttnscopeError(
            f"positions cannot be shifted by {settings.shift}: {max(0, room)} rows lie beyond the window's "
            f"{length}{' at one layer' if layer is not None else ''}. Give a smaller window or shift"
        )
    return tuple(changes)


def _special(windows: Sequence[Any]) -> Bool[Tensor, "text position"]:
    """Special tokens, as far as the windows know them."""
    return torch.tensor([tuple(getattr(window, "special", (False,) * len(window))) for window in windows])


def _with_special(ids: Tensor, special: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    for place, batch in batches(ids):
        yield place, batch, special[place]


@contextmanager
def _without_words(model: PreTrainedModel) -> Iterator[None]:
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


@dataclass(eq=False)
class _Measured:
    """Profiles, traces and outputs of every head, before and after."""

    band: int
    layer: int | None
    order: np.ndarray | None = None
    sites: dict[int, Site] = field(default_factory=dict)
    outputs: dict[int, Tensor] = field(default_factory=dict)  # of the batch, before
    parts: dict[tuple[str, str], dict[int, list[np.ndarray]]] = field(default_factory=dict)

    def before(self, site: Site, call: AttentionCall) -> Tensor:
        profile, output = profile_and_output(call, self.band)
        if self._wanted(site):
            self.sites[site.index] = site
            self.outputs[site.index] = output
            self._keep("", "profile", site, profile)
            self._keep("", "trace", site, score_traces(call, self.band))
        return output

    def after(self, name: str) -> Callable[[Site, AttentionCall], Tensor]:
        def observe(site: Site, call: AttentionCall) -> Tensor:
            profile, output = profile_and_output(call, self.band)
            if self._wanted(site):
                self._keep(name, "profile", site, profile)
                self._keep(name, "trace", site, score_traces(call, self.band))
                self._keep(name, "output", site, _relative(output, self.outputs[site.index]))
                if self.order is not None:
                    self._keep(name, "by_id", site, mean_profile(_reordered(call, self.order), self.band))
            return output

        return observe

    def _wanted(self, site: Site) -> bool:
        return site.kind != "cross" if self.layer is None else site.index == self.layer

    def _keep(self, name: str, what: str, site: Site, values: Tensor) -> None:
        self.parts.setdefault((name, what), {}).setdefault(site.index, []).append(values.double().cpu().numpy())

    def _stacked(self, name: str, what: str) -> np.ndarray:
        """``(text, layer, head, ...)``, NaN where there is no such number."""
        order = sorted(self.sites)
        found = self.parts.get((name, what), {})
        like = self.parts["", "profile"]
        texts, heads = sum(map(len, like[order[0]])), max(one[0].shape[1] for one in like.values())
        rest = () if what == "output" else (2 * self.band + 1,)
        stacked = np.full((texts, len(order), heads, *rest), np.nan)
        for row, index in enumerate(order):
            if index in found:
                layer = np.concatenate(found[index])
                stacked[:, row, : layer.shape[1]] = layer
        return stacked

    def dataset(self, names: Sequence[str], target: np.ndarray | None, weights: np.ndarray) -> xr.Dataset:
        before = self._stacked("", "profile")
        if target is None:
            target = np.nan_to_num(before.mean(0), nan=-1.0).argmax(-1) - self.band
        if target.shape != before.shape[1:3] or int(np.abs(target).max()) > self.band:
            raise AttnscopeError(
                f"found targets of shape {target.shape} up to {np.abs(target).max()}; expected {before.shape[1:3]}, "
                f"layer by head, within the band of {self.band}"
            )
        after, by_id, trace, output = (
            np.stack([self._stacked(name, what) for name in names], 1)
            for what in ("profile", "by_id", "trace", "output")
        )
        index = (target + self.band)[..., None]
        mass = np.take_along_axis(before, index[None], -1)[..., 0]
        mass_after = np.take_along_axis(after, index[None, None], -1)[..., 0]
        found: dict[str, Any] = {"target": (("layer", "head"), target, {"long_name": "offset", "units": "tokens"})}
        heads = ("layer", "head")
        for name, values, dims in (
            ("profile_before", before, (*heads, "offset")),
            ("profile_after", after, ("change", *heads, "offset")),
            ("profile_by_id", by_id, ("change", *heads, "offset")),
            ("trace_before", self._stacked("", "trace"), (*heads, "offset")),
            ("trace_after", trace, ("change", *heads, "offset")),
            ("mass_before", mass, heads),
            ("mass_after", mass_after, ("change", *heads)),
            ("mass_change", mass_after - mass[:, None], ("change", *heads)),
            ("output_change", output, ("change", *heads)),
        ):
            for end, one in zip(("", "_low", "_high"), interval(values, weights), strict=True):
                found[name + end] = (dims, one)
        sites = [self.sites[index] for index in sorted(self.sites)]
        return xr.Dataset(
            found,
            coords={
                "change": list(names),
                "layer": [site.index for site in sites],
                "layer_name": ("layer", np.array([site.name for site in sites], dtype=object)),
                "layer_kind": ("layer", np.array([site.kind for site in sites], dtype=object)),
                "head": np.arange(before.shape[2]),
                "offset": np.arange(-self.band, self.band + 1),
            },
        )


def score_traces(call: AttentionCall, band: int) -> Float[Tensor, "batch head offset"]:
    """``tr_t`` of the scores of a call (scale included, keys about their mean), without the matrix of scores."""
    query = call.query.double()
    key = call.key.double().repeat_interleave(call.group, 1)
    key = call.scale * centred_keys(call, [key])[0]
    queries, keys = query.shape[2], key.shape[2]
    found: list[Tensor] = []
    for t in range(-band, band + 1):
        first = max(0, -t)
        last = max(first, min(queries, keys - t))
        found.append((query[:, :, first:last] * key[:, :, first + t : last + t]).sum((-1, -2)))
    return torch.stack(found, -1)


def _relative(after: Tensor, before: Tensor) -> Tensor:
    """Norm of the change of each head's output, ``(batch, head)``, as a share of the norm before."""
    change, norm = ((one.double().flatten(2)).norm(dim=-1) for one in (after - before, before))
    return torch.where(change > 0, change / norm, 0.0)


def _reordered(call: AttentionCall, position_ids: np.ndarray) -> AttentionCall:
    """The same call with its tokens in the order of their position ids."""
    order = torch.from_numpy(np.argsort(position_ids)).to(call.query.device)

    def pairs(matrix: Tensor | None) -> Tensor | None:
        return None if matrix is None else matrix[:, :, order][:, :, :, order]

    mask = call.mask
    if call.causal:
        heads = 1 if mask is None else mask.shape[1]
        texts = range(1 if mask is None else mask.shape[0])
        mask = torch.stack([torch.stack([allowed_pairs(call, text, head) for head in range(heads)]) for text in texts])
    return replace(
        call,
        query=call.query[:, :, order],
        key=call.key[:, :, order],
        value=call.value[:, :, order],
        causal=False,
        mask=pairs(mask),
        bias=pairs(call.bias),
    )
