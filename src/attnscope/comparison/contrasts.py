"""Differences between groups of texts of one scan, by a field such as language, source or year."""

from __future__ import annotations

import json

import numpy as np
import scipy
import xarray as xr
from jaxtyping import Float

from attnscope.comparison.diff import describe_repeated, repeated_statistics, sizes
from attnscope.measure.pools import VARIANCE
from attnscope.measure.quantities import without_end
from attnscope.measure.ranking import with_each
from attnscope.report.reads import reads, signed
from attnscope.report.schema import Row, rows_of
from attnscope.statistics.intervals import mean_by_document
from attnscope.statistics.units import LEAST, membership, numbered
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count

_GRID = ("layer", "head")
_DRAWS = 1000  # permutations
_AT_ONCE = 2048  # columns, so that memory stays bounded
_LEAST_SPREAD = 1e-9  # of the largest value: a smaller standard error is rounding
_UNLIKE = 1.1  # ratio of mean window lengths above which the report warns


def contrasts(results: xr.Dataset, *, level: float) -> xr.Dataset:
    """The work of `attnscope.contrasts`."""
    if "by" not in results.coords:
        raise AttnscopeError("this scan has no groups of texts. Scan again with a field in by (--by)")
    results = with_each(results)
    labels = results.by.values.astype(str)
    values = np.unique(labels)
    if len(values) < 2:  # noqa: PLR2004
        raise AttnscopeError(f"all texts have the value {values[0]!r}; expected two or more values to compare")
    names = [
        str(name)
        for name, values in results.data_vars.items()
        if set(values.dims) == {"window", *_GRID} and name != "label" and values.dtype.kind == "f"
        if without_end(str(name)) == name and name != "columns_left" and not str(name).endswith(VARIANCE)
    ]
    if not names:
        raise AttnscopeError("the scan has no statistic with one number for each head. Scan with others (--statistics)")
    by_name = {name: results[name].transpose("window", *_GRID).values for name in names}
    repeated = repeated_statistics(names, [[values] for values in by_name.values()])
    names = [name for name in names if name not in repeated]
    stacked = np.stack([by_name[name] for name in names], 1)
    flat = stacked.reshape(len(stacked), -1)
    documents = numbered(results.source.values.tolist())[0]
    parts = np.full((5, len(values), flat.shape[1]), np.nan)  # (part, by, column)
    for row, value in enumerate(values):
        parts[:4, row] = _interval(flat, documents, labels == value)
    tested = values[: 1 if len(values) == 2 else None]  # noqa: PLR2004 the second test mirrors the first
    parts[4, : len(tested)] = _chances(flat, documents, labels, tested)
    mean, others, low, high, p = np.moveaxis(parts.reshape(5, len(values), *stacked.shape[1:]), 2, 1)
    difference = mean - others
    cells = ("statistic", "by", *_GRID)
    windows = results.window_count.values if "window_count" in results else np.ones(len(labels), dtype=int)
    lengths = results.length.values if "length" in results else np.full(len(labels), np.nan)
    variables = {"mean": mean, "others": others, "low": low, "high": high, "difference": difference, "p": p}
    variables |= {"differs": p <= level, "tested": np.isfinite(p), "size": sizes(difference, others, mean)}
    chosen = [labels == value for value in values]
    by_value = {
        "texts": [int(members.sum()) for members in chosen],
        "documents": [len(np.unique(documents[members])) for members in chosen],
        "length": [float(lengths[members].sum() / windows[members].sum()) for members in chosen],
    }
    if "window_count" in results:
        by_value["windows"] = [int(windows[members].sum()) for members in chosen]
    return xr.Dataset(
        {name: (cells, values) for name, values in variables.items()}
        | {name: ("by", numbers) for name, numbers in by_value.items()},
        coords={
            "statistic": names,
            "by": values.astype(object),
            "long_name": ("statistic", [str(results[name].attrs.get("long_name", name)) for name in names]),
            **{name: results.coords[name] for name in _GRID if name in results.coords},
        },
        attrs={"level": level, "field": field_of(results), "repeated": json.dumps(repeated)},
    )


def _interval(
    values: Float[np.ndarray, "window column"], documents: np.ndarray, chosen: np.ndarray
) -> Float[np.ndarray, "part column"]:
    """Means of some texts and of the others, and the interval of their difference."""
    mean, error, count = mean_by_document(values[chosen], documents[chosen].tolist())
    others, other_error, other_count = mean_by_document(values[~chosen], documents[~chosen].tolist())
    if min(count, other_count) < LEAST:
        unknown = np.full(len(mean), np.nan)
        return np.stack([mean, others, unknown, unknown])
    variance = error**2 + other_error**2
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = variance**2 / (error**4 / (count - 1) + other_error**4 / (other_count - 1))
    if len(np.intersect1d(documents[chosen], documents[~chosen])) >= LEAST:  # both sides are of the same documents
        sides = [(chosen / chosen.sum(), mean), ((chosen - 1.0) / (~chosen).sum(), others)]
        apart = sum(share[:, None] * (values - centre) for share, centre in sides)
        apart = membership(documents.tolist()) @ apart
        variance, freedom = len(apart) / (len(apart) - 1) * (apart**2).sum(0), len(apart) - 1
    half = scipy.stats.t.ppf(0.975, freedom) * np.sqrt(variance)
    return np.stack([mean, others, mean - others - half, mean - others + half])


def _chances(
    values: Float[np.ndarray, "window column"], documents: np.ndarray, labels: np.ndarray, tested: np.ndarray
) -> Float[np.ndarray, "by column"]:
    """P-values of the difference between each value and all others, corrected for all; NaN without a test.

    Labels are permuted, and the largest studentised difference counts (Westfall and Young 1993; Janssen 1997): among
    documents, or among the windows of each document if there are 6 or more with several labels, as these share a topic.
    """
    generator = np.random.default_rng(0)
    whole = [np.unique(labels[documents == one]) for one in np.unique(documents)]
    several = np.array([len(own) > 1 for own in whole])
    inside = 2 * several.sum() >= len(several) and several.sum() >= LEAST
    if several.all() and not inside:  # too few documents, and none of one label
        return np.full((len(tested), values.shape[1]), np.nan)
    if inside:
        order = np.array([_shuffled(generator, documents) for _ in range(_DRAWS)])
        drawn, member = np.vstack([labels, labels[order]]), membership(documents.tolist())
    else:
        alike = ~several[documents]
        values, member = values[alike], membership(documents[alike].tolist())
        pure = labels[alike][member.argmax(1)]
        drawn = np.vstack([pure, [generator.permutation(pure) for _ in range(_DRAWS)]])
    found = np.full((len(tested), values.shape[1]), np.nan)
    largest = np.zeros(len(drawn))
    for row, value in enumerate(tested):
        for first in range(0, values.shape[1], _AT_ONCE):
            part = values[:, first : first + _AT_ONCE]
            with np.errstate(divide="ignore", invalid="ignore"):
                t = np.abs((_paired if inside else _unpaired)(part, member, drawn == value))
            found[row, first : first + _AT_ONCE] = t[0]
            largest = np.maximum(largest, np.nan_to_num(t, nan=0.0, posinf=0.0).max(1))
    as_large = len(largest) - np.searchsorted(np.sort(largest), found * (1 - 1e-9))
    return np.where(np.isfinite(found), as_large / len(largest), np.nan)


def _shuffled(generator: np.random.Generator, documents: np.ndarray) -> np.ndarray:
    """Numbers of the windows, in random order within each document."""
    order = np.empty(len(documents), dtype=int)
    order[np.argsort(documents, kind="stable")] = np.lexsort((generator.random(len(documents)), documents))
    return order


def _unpaired(values: np.ndarray, member: np.ndarray, chosen: np.ndarray) -> Float[np.ndarray, "draw column"]:
    """Welch's t of sums over documents, with the documents on one side chosen in each draw."""
    sums, sizes = member @ values, member.sum(1)
    sides = []
    for side in (chosen.astype(float), 1.0 - chosen):
        count, texts = side.sum(1)[:, None], (side @ sizes)[:, None]
        if count[0] < LEAST:
            return np.full((len(chosen), values.shape[1]), np.nan)
        mean = side @ sums / texts
        squares = side @ sums**2 - 2 * mean * (side @ (sums * sizes[:, None])) + mean**2 * (side @ sizes**2)[:, None]
        sides.append((mean, count / (count - 1) * squares.clip(0) / texts**2))
    (mean, variance), (others, other_variance) = sides
    error = np.sqrt(variance + other_variance)
    scale = _LEAST_SPREAD * np.abs(values).max(0)
    return np.where(error > scale, (mean - others) / error, np.where(np.abs(mean - others) > scale, np.nan, 0.0))


def _paired(values: np.ndarray, member: np.ndarray, chosen: np.ndarray) -> Float[np.ndarray, "draw column"]:
    """A monotone function of the t of differences within documents, with some windows chosen in each draw."""
    sizes = member @ chosen[0]
    others = member.sum(1) - sizes
    total, squares = np.zeros((2, len(chosen), values.shape[1]))
    mixed = np.flatnonzero((sizes > 0) & (others > 0))
    if mixed.size < LEAST:
        return np.full_like(total, np.nan)
    for document in mixed:
        inside = member[document] > 0
        # their sum is 0, so that the document's mean drops out
        apart = chosen[:, inside] - sizes[document] / inside.sum()
        part = apart @ (values[inside] - values[inside].mean(0))
        total, squares = total + part, squares + part**2
    return np.where(squares > 0, total / np.sqrt(squares), 0.0)


def field_of(results: xr.Dataset) -> str:
    """The field that groups a scan's texts; ``by`` if the scan has no signature."""
    return str((signed(results).get("settings") or {}).get("by", "by"))


@reads("contrasts")
def contrast_rows(tested: xr.Dataset) -> list[Row]:
    """All tested differences: the significant ones first, and the largest first within each part."""
    names = ("mean", "others", "difference", "low", "high", "size", "p", "differs")
    rows = rows_of({name: tested[name] for name in names}, tested["mean"].where(tested.tested))
    return sorted(rows, key=lambda row: (not row["differs"], -abs(row["size"])))


@reads("contrasts")
def describe_contrasts(tested: xr.Dataset) -> list[str]:
    """Findings of a comparison of groups, as sentences."""
    pooled = "windows" in tested
    one, part, parts = ("pool", "window", tested.windows) if pooled else ("window", "document", tested.documents)
    numbers = zip(tested.by.values.tolist(), tested.texts.values.tolist(), parts.values.tolist(), strict=True)
    listed = ", ".join(f"{value} ({count(texts, one)} of {count(own, part)})" for value, texts, own in numbers)
    sentences = [f"{tested.attrs['field']}: {listed}."]
    by = "pools of different documents" if pooled else "documents"
    known, differs = tested.tested.values, tested.differs.values
    if not known.any():
        return [*sentences, f"Nothing is tested: each value, and all others together, need {LEAST} or more {by}."]
    heads, every = differs.any((0, 1)).sum(), known.any((0, 1)).sum()
    rate = f"{float(tested.attrs['level']):.0%}"
    sentences.append(
        f"{heads} of {every} heads differ in some statistic between a value and all others: {differs.sum()} of "
        f"{known.sum()} differences are significant (false discovery rate {rate}, over {by})."
    )
    sentences += describe_repeated(json.loads(tested.attrs["repeated"]))
    lengths = tested.length.values
    if np.isfinite(lengths).all() and lengths.max() > _UNLIKE * lengths.min():
        each = ", ".join(f"{value} {length:.0f}" for value, length in zip(tested.by.values, lengths, strict=True))
        sentences.append(
            f"Mean window lengths differ ({each} tokens). Statistics depend on the length, so a difference may not "
            "be due to the kind of text."
        )
    return sentences
