"""Interventions on words and positions: removed, shuffled or moved."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from attnscope.capture.watch import Site
from attnscope.capture.watching import attached, watching
from attnscope.explanation import profiles
from attnscope.explanation.analyses.verdict import weight_peaks
from attnscope.explanation.arrays.spectrum import remove_band
from attnscope.explanation.inputs import Tokens, batches, read, targets_of, token_ids
from attnscope.explanation.study import Picture, Section, Study, analysis, lacks_table
from attnscope.explanation.tables import position_table, position_tables, replaced_positions, word_embedding
from attnscope.kernels.call import AttentionCall
from attnscope.options import Count, Draws, Seed
from attnscope.report.schema import HEAD, Quantity, Row, Table, value_of, with_ends
from attnscope.statistics.units import units_of
from attnscope.support.checks import check_some
from attnscope.support.errors import AttnscopeError

CHANGED = Section(
    "interventions",
    "Words and positions changed",
    "A head that uses position alone keeps its profile when words change, loses it without positions, and follows the "
    "position ids when these are permuted.",
)


_COLUMNS = (
    *HEAD,
    Quantity("change"),
    Quantity("offset", unit="tokens", meaning="offset of the head's largest mean weight"),
    Quantity("weight_before", "before", "weight", "mean weight at that offset"),
    Quantity("weight_after", "after", "weight", "mean weight at that offset after the change"),
    with_ends("weight_change", "difference", "change", "after minus before"),
)


def _table(tree: xr.DataTree, rows: Sequence[Row]) -> Table:
    """The weight at each head's favoured offset, by change of words or positions."""
    changed = tree["interventions"].to_dataset()
    lines: list[Row] = []
    for row in rows:
        at = changed.sel(layer=row["layer"], head=row["head"])
        for name in changed.change.values.tolist() if np.isfinite(at.target) else ():
            after = at.sel(change=name)
            values = {"offset": at.target, "weight_before": at.mass_before, "weight_after": after.mass_after}
            values |= {f"weight_change{end}": after[f"mass_change{end}"] for end in ("", "_low", "_high")}
            line = {key: value_of(value.values[()]) for key, value in values.items()}
            lines.append({"layer": row["layer"], "head": row["head"], "change": str(name)} | line)
    meanings = "; ".join(f"{name}: {CHANGES[name]}" for name in changed.change.values.tolist() if name in CHANGES)
    title = "Weight at each head's offset, before and after words or positions change"
    return Table("interventions", title, _COLUMNS, lines, reading=meanings)


def _of_study(study: Study) -> xr.Dataset:
    """The changes; heads without a favoured offset have no weight to follow."""
    changed = interventions.alone(study)
    prefers = weight_peaks(study.evidence).prefers.reindex_like(changed.target, fill_value=False)
    at_offset = [str(name) for name in changed if name == "target" or str(name).startswith("mass_")]
    return changed.assign(changed[at_offset].where(prefers.reset_coords(drop=True)).data_vars)


@analysis(
    "interventions",
    "Words and positions changed",
    "Interventions",
    explained=_of_study,
    needs=(lacks_table,),
    section=CHANGED,
    pictures=(
        Picture(
            "interventions",
            "Before and after",
            "Grey: before. Blue: after. Dashed: after, with tokens in the order of their position ids. The number is "
            "the change of the weight at the head's offset, with its 95% interval over texts. Zeroed vectors are far "
            "from the training data: means and shuffles are fairer.",
            draw="attnscope.results.figures.panels:interventions",
            of="heads",
        ),
    ),
    units="weight",
    requested=lambda study: study.intervention_texts > 0,
    few_texts=True,
    tables=_table,
)
@torch.no_grad()
def interventions(
    study: Study,
    changes: Sequence[str] | None = None,
    *,
    band: Count | None = None,
    target_offset: Int[np.ndarray, "layer head"] | None = None,
    shift: Count = 8,
    frequencies: tuple[int, int] | None = None,
    components: Count = 12,
    draws: Draws = 1000,
    seed: Seed | None = None,
) -> xr.Dataset:
    r"""Change a model's words or positions, and measure how every head responds.

    See mathematics.md, Interventions. Position tables are changed and restored.

    ============================  ========================================================  ==========================
    change                        effect on the input                                       if position alone counts
    ============================  ========================================================  ==========================
    words-zero                    every word vector is zero                                 profile kept
    words-repeated                every word is the text's middle one                       profile kept
    words-shuffled                the words of a text are shuffled (not special tokens)     profile kept
    positions-zero                every row is zero                                         profile flat
    positions-mean                every row is the mean row                                 profile flat
    positions-permuted            position ids are permuted                                 kept in the order of ids
    positions-reversed            position ids are reversed                                 left and right swap
    positions-shifted             position ids begin at `shift`                             profile kept
    positions-band-removed        `frequencies` are removed from the rows by FFT            weight at t\* falls
    positions-components-removed  the rows' first principal components are projected out    weight at t\* falls
    positions-phases-random       each column of rows keeps its spectrum, not its phases    lost if phases matter
    ============================  ========================================================  ==========================

    Parameters
    ----------
    changes
        Names from the table; by default all that model and windows allow.
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
        of a head's output, as a share of the norm of its output before), ``target``. The attribute ``left_out`` lists,
        as JSON, the default changes that these windows do not allow, with the reason. In the tree of
        `attnscope.explain` ``target`` and all weights at it are NaN for heads without a favoured offset.
    """
    check_some(f"of {', '.join(CHANGES)}", changes=changes)
    model, windows = study.model, study.first(study.intervention_texts)
    band, seed = band or study.band, study.seed if seed is None else seed
    ids = token_ids(windows)
    special, target_special = _special(windows), _special(targets_of(windows) or windows)
    length = ids.length
    if frequencies is not None:
        check_frequencies(frequencies, length)
    low = round(length * 40 / 512)
    settings = Settings(shift, frequencies or (low, max(low, round(length * 60 / 512))), components, seed)
    names, left_out = _checked(model, changes, length, settings)
    measured = BeforeAfter(band)
    for part, batch in batches(ids):
        with watching(model, measured.before):
            read(model, batch)
        profiles.check_self_attention(model, measured.sites)
        for name in names:
            measured.order = settings.order(name, length)
            changed, changing = batch, nullcontext()
            if name in WORD_CHANGES:
                target = batch.target
                changed = Tokens(
                    settings.words(name, batch.ids, special[part]),
                    None if target is None else settings.words(name, target, target_special[part]),
                    batch.names,
                )
                changing = _without_words(model) if name == "words-zero" else nullcontext()
            else:
                rows = {table.name: settings.rows(name, table.rows, length) for table in position_tables(model)}
                changing = replaced_positions(model, rows)
            with changing, watching(model, measured.after(name)):
                read(model, changed)
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


_SHIFTED = "positions-shifted"


def _checked(
    model: PreTrainedModel, changes: Sequence[str] | None, length: int, settings: Settings
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The changes to make, each once; an error for impossible ones."""
    unknown = [name for name in changes or () if name not in CHANGES]
    if unknown:
        raise AttnscopeError(f"unknown change {unknown[0]!r}: choose from {', '.join(CHANGES)}")
    tables = position_tables(model)
    room = min((len(table.rows) for table in tables), default=0) - length
    no_room = (
        f"positions cannot be shifted by {settings.shift}: the table has only {max(0, room)} rows beyond the window's "
        f"{length}. Use a smaller window (--window) or shift"
    )
    if changes is None:
        possible = CHANGES if tables else WORD_CHANGES
        left_out = {} if room >= settings.shift or not tables else {_SHIFTED: no_room}
        return tuple(name for name in possible if name != _SHIFTED or room >= settings.shift), left_out
    if any(name in POSITION_CHANGES for name in changes):
        position_table(model)  # says why there is none
    if _SHIFTED in changes and room < settings.shift:
        raise AttnscopeError(no_room)
    return tuple(dict.fromkeys(changes)), {}


def _special(windows: Sequence[Any]) -> Bool[Tensor, "text position"]:
    """Special tokens, as far as the windows know them."""
    return torch.tensor([tuple(getattr(window, "special", (False,) * len(window))) for window in windows])


@contextmanager
def _without_words(model: PreTrainedModel) -> Generator[None]:
    """Every module that shares the word table returns zeros (an encoder and a decoder may have one each)."""
    words, table = word_embedding(model)
    tables = (module for module in model.modules() if isinstance(module, nn.Embedding))
    shared = [words, *(one for one in tables if one.weight.data_ptr() == table.weight.data_ptr() and one is not table)]

    def nothing(_: nn.Module, __: Any, returned: Tensor) -> Tensor:
        return torch.zeros_like(returned)

    with attached(module.register_forward_hook(nothing) for module in shared):
        yield


RowChange = Callable[[np.ndarray], np.ndarray]


#: The effect of each change on the input.
WORD_CHANGES = {
    "words-zero": "every word vector is zero",
    "words-repeated": "every word is the text's middle one",
    "words-shuffled": "the words of a text are shuffled",
}


POSITION_CHANGES = {
    "positions-zero": "every position vector is zero",
    "positions-mean": "every position vector is their mean",
    "positions-permuted": "position ids are permuted",
    "positions-reversed": "position ids are reversed",
    "positions-shifted": "position ids begin later",
    "positions-band-removed": "position vectors lose a band of frequencies",
    "positions-components-removed": "position vectors lose their first principal components",
    "positions-phases-random": "waves of the position vectors get random phases",
}


CHANGES = WORD_CHANGES | POSITION_CHANGES


def remove_components(rows: Float[np.ndarray, "position width"], count: int) -> Float[np.ndarray, "position width"]:
    """Project the first `count` principal components out of the rows; their mean stays."""
    mean = rows.mean(0)
    _, _, directions = np.linalg.svd(rows - mean, full_matrices=False)
    leading = directions[:count]
    return rows - (rows - mean) @ leading.T @ leading


def random_phases(rows: Float[np.ndarray, "position width"], seed: int) -> Float[np.ndarray, "position width"]:
    """Give each column's every frequency a random phase; its amplitudes and its mean stay (Theiler et al. 1992)."""
    spectrum = np.fft.rfft(rows, axis=0)
    phases = np.exp(2j * np.pi * np.random.default_rng(seed).random(spectrum.shape))
    phases[0] = 1
    if len(rows) % 2 == 0:
        phases[-1] = 1  # the highest frequency is real
    return np.fft.irfft(spectrum * phases, len(rows), axis=0)


@dataclass(frozen=True)
class Settings:
    """The settings of the changes, and the changes themselves."""

    shift: int  # tokens by which ids are shifted
    frequencies: tuple[int, int]  # first and last frequency removed, cycles per window
    components: int  # principal components projected out
    seed: int  # seed of permutations and phases

    def order(self, name: str, length: int) -> np.ndarray | None:
        """The position id of each token, if ids are permuted or reversed."""
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
        """Other token ids; special tokens keep their positions."""
        texts, length = special.shape
        origin = torch.arange(length).repeat(texts, 1)  # of each word
        generator = np.random.default_rng(self.seed)
        for text in range(texts):
            words = torch.nonzero(~special[text])[:, 0]
            if name == "words-repeated" and len(words):
                origin[text, words] = words[len(words) // 2]
            elif name == "words-shuffled":
                origin[text, words] = words[torch.from_numpy(generator.permutation(len(words)))]
        return ids.gather(1, origin.to(ids.device))


@dataclass(eq=False)
class BeforeAfter:
    """Profiles, traces and outputs of every head, before and after."""

    band: int
    order: np.ndarray | None = None
    outputs: dict[int, Tensor] = field(default_factory=dict)  # of the batch, before
    collected: profiles.Collected = field(default_factory=profiles.Collected)
    sites: list[Site] = field(default_factory=list[Site])  # all that ran

    def before(self, site: Site, call: AttentionCall) -> Tensor:
        profile, output = profiles.profile_and_output(call, self.band)
        self.sites.append(site)
        if site.kind != "cross":
            self.outputs[site.index] = output
            self.collected.add("profile", site, profile)
            self.collected.add("trace", site, profiles.score_traces(call, self.band))
        return output

    def after(self, name: str) -> Callable[[Site, AttentionCall], Tensor]:
        def observe(site: Site, call: AttentionCall) -> Tensor:
            profile, output = profiles.profile_and_output(call, self.band)
            if site.kind != "cross":
                self.collected.add(f"profile {name}", site, profile)
                self.collected.add(f"trace {name}", site, profiles.score_traces(call, self.band))
                before = self.outputs[site.index]
                change, norm = (states.double().flatten(2).norm(dim=-1) for states in (output - before, before))
                self.collected.add(f"output {name}", site, torch.where(change > 0, change / norm, 0.0))
                if self.order is not None:
                    by_id = profiles.mean_profile(_reordered(call, self.order), self.band)
                    self.collected.add(f"by_id {name}", site, by_id)
            return output

        return observe

    def dataset(
        self, names: Sequence[str], target: np.ndarray | None, units: Sequence[Hashable], draws: int, seed: int
    ) -> xr.Dataset:
        before = self.collected.stacked("profile")
        at = np.nan_to_num(before.mean(0), nan=-1.0).argmax(-1) - self.band if target is None else target
        profiles.check_target(at, before.shape[1:3], self.band)

        def after(what: str) -> np.ndarray:
            """Over text and change; NaN for changes that have no such number."""
            keys = [f"{what} {name}" for name in names]
            nothing = np.full_like(before, np.nan)
            return np.stack(
                [self.collected.stacked(key) if key in self.collected.parts else nothing for key in keys], 1
            )

        profile = after("profile")
        index = (at + self.band)[..., None]
        mass = np.take_along_axis(before, index[None], -1)[..., 0]
        mass_after = np.take_along_axis(profile, index[None, None], -1)[..., 0]
        heads = ("layer", "head")
        variables: dict[str, Any] = {"target": (heads, at, {"long_name": "offset", "units": "tokens"})}
        for name, values, dims in (
            ("profile_before", before, (*heads, "offset")),
            ("profile_after", profile, ("change", *heads, "offset")),
            ("profile_by_id", after("by_id"), ("change", *heads, "offset")),
            ("trace_before", self.collected.stacked("trace"), (*heads, "offset")),
            ("trace_after", after("trace"), ("change", *heads, "offset")),
            ("mass_before", mass, heads),
            ("mass_after", mass_after, ("change", *heads)),
            ("mass_change", mass_after - mass[:, None], ("change", *heads)),
            ("output_change", after("output"), ("change", *heads)),
        ):
            variables |= profiles.with_interval(name, dims, values, units, draws=draws, seed=seed)
        return xr.Dataset(variables, {"change": list(names), **self.collected.coordinates(self.band)})


def _reordered(call: AttentionCall, position_ids: np.ndarray) -> AttentionCall:
    """The same call with its tokens in the order of their position ids."""
    order = torch.from_numpy(np.argsort(position_ids)).to(call.query.device)

    def pairs(matrix: Tensor | None) -> Tensor | None:
        return None if matrix is None else matrix[:, :, order][:, :, :, order]

    mask = call.mask
    if call.causal:
        heads = 1 if mask is None else mask.shape[1]
        texts = range(1 if mask is None else mask.shape[0])
        mask = torch.stack([torch.stack([call.allowed(text, head) for head in range(heads)]) for text in texts])
    return replace(
        call,
        query=call.query[:, :, order],
        key=call.key[:, :, order],
        value=call.value[:, :, order],
        causal=False,
        mask=pairs(mask),
        bias=pairs(call.bias),
    )


def check_frequencies(frequencies: tuple[int, int], length: int) -> None:
    """Reject frequencies that windows of this length do not have."""
    first, last = frequencies
    if not 0 <= first <= last <= length // 2:
        raise AttnscopeError(
            f"frequencies are {first} to {last}; expected two between 0 and {length // 2} (half the window), the "
            "smaller first"
        )
