"""Differences between groups of texts of one scan, by a field such as language, source or year."""

from __future__ import annotations

import json

import numpy as np
import scipy
import xarray as xr
from jaxtyping import Float

from attnscope.comparison.diff import LEVEL, describe_repeated, repeated_statistics, sizes
from attnscope.explanation.arrays.composition import significant
from attnscope.measure.documents import LEAST, mean_by_document
from attnscope.measure.pools import VARIANCE
from attnscope.measure.quantities import without_end
from attnscope.measure.ranking import with_each
from attnscope.results.schema import Row, rows_of
from attnscope.support.arguments import reads, signed, validated
from attnscope.support.checks import check_real
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count

_GRID = ("layer", "head")
_UNLIKE = 1.1  # ratio of mean window lengths above which the report warns


@validated
def contrasts(results: xr.Dataset, *, level: float = LEVEL) -> xr.Dataset:
    r"""Compare the texts of each value with all others, head by head.

    Means are over texts. Each :math:`p` is from Welch's :math:`t` test (1947) with standard errors over documents,
    because windows of one document are not independent. Over all heads, statistics and values, the step-up rule of
    Benjamini and Hochberg (1995) limits the false discovery rate to `level`.

    Parameters
    ----------
    results
        From ``attnscope.scan(..., by=FIELD)``, or any scan with a coordinate ``by (text)``.
    level
        The false discovery rate.

    Returns
    -------
    xarray.Dataset
        Over ``statistic, by, layer, head``: ``mean`` of the texts with the value, ``others`` (mean of all others),
        ``difference``, ``low`` and ``high`` (95% interval), ``p``, ``differs``, ``tested``, and ``size``, the
        difference in standard deviations of all heads on both sides. Each chosen offset (``weight_at_-64``) and each
        share of blocks counts as a statistic. With fewer than 6 documents on one side there is no test: ``low``,
        ``high`` and ``p`` are NaN, ``differs`` and ``tested`` False. With two values only the first is tested. Over
        ``by``: ``texts``, ``documents``, ``length`` (mean tokens of a window). In a scan in pools (``pool=``) each pool
        counts as a text and a document, and ``windows`` counts the windows.

        A statistic with the same numbers as an earlier one is counted once; the attribute ``repeated`` lists these.

    Raises
    ------
    AttnscopeError
        If the scan has no such coordinate or only one value of it, or no statistic with one number for each head.

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
    check_real(0.0, 1.0, level=level)
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
    documents = np.unique(results.source.values.astype(str), return_inverse=True)[1]
    tests = np.stack([_welch(flat, documents, labels == value) for value in values], 1)  # (part, by, column)
    if len(values) == 2:  # noqa: PLR2004 the second test mirrors the first: only one counts
        tests[4, 1] = np.nan
    mean, others, low, high, p = np.moveaxis(tests.reshape(5, len(values), *stacked.shape[1:]), 2, 1)
    difference = mean - others
    cells = ("statistic", "by", *_GRID)
    windows = results.window_count.values if "window_count" in results else np.ones(len(labels), dtype=int)
    lengths = results.length.values if "length" in results else np.full(len(labels), np.nan)
    parts = {"mean": mean, "others": others, "low": low, "high": high, "difference": difference, "p": p}
    parts |= {"differs": significant(p, level), "tested": np.isfinite(p), "size": sizes(difference, others, mean)}
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
    """Means of some texts and of the others, the interval of their difference, and its p-value."""
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
    p = np.where(same, 1.0, np.where(variance == 0, np.nan, p))  # no test without variance
    return np.stack([mean, others, mean - others - half, mean - others + half, p])


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
