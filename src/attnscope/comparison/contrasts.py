"""What differs between the texts of one scan that are held apart: by language, source, year."""

from __future__ import annotations

import json

import numpy as np
import scipy
import xarray as xr
from jaxtyping import Float

from attnscope.comparison.diff import LEVEL, describe_repeated, repeated_statistics, sizes
from attnscope.measure.documents import LEAST, mean_by_document
from attnscope.measure.pools import VARIANCE
from attnscope.measure.quantities import without_end
from attnscope.measure.ranking import with_each
from attnscope.results.schema import Row, rows_of
from attnscope.support.arguments import reads, validated
from attnscope.support.checks import check_kind, check_real
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count

_GRID = ("layer", "head")
_UNLIKE = 1.1  # how many times longer windows may be in the mean before it is said


@validated
def contrasts(results: xr.Dataset, *, level: float = LEVEL) -> xr.Dataset:
    r"""Compare the texts of each value with all others, head by head.

    Means are over texts. Each :math:`p` is that of Welch's :math:`t` (1947) with standard errors by documents, a ratio
    of sums, as windows of one document are not independent and documents have different numbers of them. Over all
    heads, statistics and values, the step-up rule of Benjamini and Hochberg (1995) keeps the expected share of false
    ones among those called different at `level` or below.

    Parameters
    ----------
    results
        From ``attnscope.scan(..., by=FIELD)``, or any scan with a coordinate ``by (text)``.
    level
        The false discovery rate.

    Returns
    -------
    xarray.Dataset
        Over ``statistic, by, layer, head``, each chosen offset (``weight_at_-64``) and each share of blocks a statistic
        of its own: ``mean`` of the texts with the value, ``others`` (mean of all others),
        ``difference``, ``low`` and ``high`` (95% interval), ``p``, ``differs``, ``tested``, and ``size``, the
        difference in standard deviations of all heads on both sides together. Where a value, or all others together,
        have fewer than 6 documents nothing is tested: ``low``, ``high`` and ``p`` are NaN, ``differs`` and ``tested``
        False. Of two values the first alone is tested. Over ``by``: ``texts``, ``documents``, ``length``
        (mean tokens of a window). Of a scan in pools (``pool=``) texts are pools, a pool of several documents counts as
        one, and ``windows`` counts their windows.

        A statistic whose numbers are those of an earlier one is counted once, and the attribute ``repeated`` names it.

    Raises
    ------
    AttnscopeError
        The scan has no such coordinate or only one value of it, or no statistic with one number a head.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> entropy = rng.normal(2.0, 0.1, (40, 1, 3))
    >>> entropy[:20, 0, 1] += 0.5
    >>> scan = xr.Dataset(
    ...     {"entropy": (("window", "layer", "head"), entropy)},
    ...     {"by": ("window", ["en"] * 20 + ["ja"] * 20), "source": ("window", np.arange(40))},
    ... )
    >>> contrasts(scan).differs.sel(statistic="entropy", by="en").values.tolist()
    [[False, True, False]]
    """
    check_kind("a scan", xr.Dataset, results=results)
    check_real(0.0, 1.0, level=level)
    if "by" not in results.coords:
        raise AttnscopeError("the texts of this scan are not held apart: give scan a field with by (--by)")
    results = with_each(results)
    labels = results.by.values.astype(str)
    values = np.unique(labels)
    if len(values) < 2:  # noqa: PLR2004
        raise AttnscopeError(f"all texts have the same value, {values[0]!r}: there is nothing to hold apart")
    names = [
        str(name)
        for name, values in results.data_vars.items()
        if set(values.dims) == {"window", *_GRID} and name != "label" and values.dtype.kind == "f"
        if without_end(str(name)) == name and name != "columns_left" and not str(name).endswith(VARIANCE)
    ]
    if not names:
        raise AttnscopeError("the scan has no statistic with one number a head: give it some with --statistics")
    by_name = {name: results[name].transpose("window", *_GRID).values for name in names}
    repeated = repeated_statistics(names, [[values] for values in by_name.values()])
    names = [name for name in names if name not in repeated]
    stacked = np.stack([by_name[name] for name in names], 1)
    flat = stacked.reshape(len(stacked), -1)
    documents = np.unique(results.source.values.astype(str), return_inverse=True)[1]
    tests = np.stack([_welch(flat, documents, labels == value) for value in values], 1)  # (part, by, column)
    if len(values) == 2:  # noqa: PLR2004 the second says what the first says: one of them is tested
        tests[4, 1] = np.nan
    mean, others, low, high, p = np.moveaxis(tests.reshape(5, len(values), *stacked.shape[1:]), 2, 1)
    known = np.isfinite(p)
    differs = np.zeros(p.shape, dtype=bool)
    if known.any():
        differs[known] = scipy.stats.false_discovery_control(p[known]) <= level
    difference = mean - others
    cells = ("statistic", "by", *_GRID)
    windows = results.window_count.values if "window_count" in results else np.ones(len(labels), dtype=int)
    lengths = results.length.values if "length" in results else np.full(len(labels), np.nan)
    parts = {"mean": mean, "others": others, "low": low, "high": high, "difference": difference, "p": p}
    parts |= {"differs": differs, "tested": known, "size": sizes(difference, others, mean)}
    chosen = [labels == value for value in values]
    by_value = {
        "texts": [int(own.sum()) for own in chosen],
        "documents": [len(np.unique(documents[own])) for own in chosen],
        "length": [float(lengths[own].sum() / windows[own].sum()) for own in chosen],
    }
    if "window_count" in results:
        by_value["windows"] = [int(windows[own].sum()) for own in chosen]
    return xr.Dataset(
        {name: (cells, values) for name, values in parts.items()}
        | {name: ("by", numbers) for name, numbers in by_value.items()},
        coords={
            "statistic": names,
            "by": values.astype(object),
            "long_name": ("statistic", [str(results[name].attrs.get("long_name", name)) for name in names]),
            **{name: results.coords[name] for name in _GRID if name in results.coords},
        },
        attrs={"level": level, "field": field_of(results), "repeated": json.dumps(repeated)},
    )


def _welch(
    values: Float[np.ndarray, "window column"], documents: np.ndarray, chosen: np.ndarray
) -> Float[np.ndarray, "part column"]:
    """Means of some texts and of the others, the interval of their difference, and its chance."""
    mean, error, count = mean_by_document(values[chosen], documents[chosen].tolist())
    others, other_error, other_count = mean_by_document(values[~chosen], documents[~chosen].tolist())
    if min(count, other_count) < LEAST:
        unknown = np.full(len(mean), np.nan)
        return np.stack([mean, others, unknown, unknown, unknown])
    variance = error**2 + other_error**2
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = variance**2 / (error**4 / (count - 1) + other_error**4 / (other_count - 1))
        p = 2 * scipy.stats.t.sf(np.abs(mean - others) / np.sqrt(variance), freedom)
        half = scipy.stats.t.ppf(0.975, freedom) * np.sqrt(variance)
    same = (variance == 0) & (mean == others)
    p = np.where(same, 1.0, np.where(variance == 0, np.nan, p))  # no spread at all tells nothing
    return np.stack([mean, others, mean - others - half, mean - others + half, p])


def field_of(results: xr.Dataset) -> str:
    """The field by which a scan's texts are held apart; ``by`` where no signature tells it."""
    signature = json.loads(results.attrs.get("signature", "{}"))
    return str(signature.get("settings", {}).get("by", "by"))


@reads("contrasts")
def contrast_rows(tested: xr.Dataset) -> list[Row]:
    """Every difference that is known, those told from 0 first, the largest of each first."""
    names = ("mean", "others", "difference", "low", "high", "size", "p", "differs")
    rows = rows_of({name: tested[name] for name in names}, tested["mean"].where(tested.tested))
    return sorted(rows, key=lambda row: (not row["differs"], -abs(row["size"])))


@reads("contrasts")
def describe_contrasts(tested: xr.Dataset) -> list[str]:
    """What differs, in sentences that say how sure they are."""
    pooled = "windows" in tested
    listed = ", ".join(
        f"{value} ({count(texts, 'pool')} of {count(parts, 'window')})"
        if pooled
        else f"{value} ({count(texts, 'window')} of {count(parts, 'document')})"
        for value, texts, parts in zip(
            tested.by.values.tolist(),
            tested.texts.values.tolist(),
            tested["windows" if pooled else "documents"].values.tolist(),
            strict=True,
        )
    )
    sentences = [f"{tested.attrs['field']}: {listed}."]
    by = "pools of different documents" if pooled else "documents"
    known, differs = tested.tested.values, tested.differs.values
    if not known.any():
        return [*sentences, f"Nothing is told apart: each value, and all others, need {LEAST} {by} or more."]
    heads, every = differs.any((0, 1)).sum(), known.any((0, 1)).sum()
    rate = f"{float(tested.attrs['level']):.0%}"
    sentences.append(
        f"{heads} of {every} heads differ in some statistic between a value and all others: {differs.sum()} of "
        f"{known.sum()} differences are told from 0 (false discovery rate {rate}, by {by})."
    )
    sentences += describe_repeated(json.loads(tested.attrs["repeated"]))
    lengths = tested.length.values
    if np.isfinite(lengths).all() and lengths.max() > _UNLIKE * lengths.min():
        each = ", ".join(f"{value} {length:.0f}" for value, length in zip(tested.by.values, lengths, strict=True))
        sentences.append(
            f"Windows differ in length (tokens in the mean: {each}), and statistics with it: a difference need not "
            "be one of the texts' kind."
        )
    return sentences
