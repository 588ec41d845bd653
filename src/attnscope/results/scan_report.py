"""The report of a scan: rankings, statistics of each head, groups, contrasts, offsets, keys."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from attnscope.comparison.contrasts import contrast_rows, contrasts, describe_contrasts, field_of
from attnscope.comparison.diff import LEVEL
from attnscope.comparison.groups import NULLS, MeanGroupWeights, describe_group_pairs, explain_no_interval, group_pairs
from attnscope.measure import stored
from attnscope.measure.contexts import examples_by_head
from attnscope.measure.labels import SHARE, UNNAMED
from attnscope.measure.offset_shares import shares_by_offset
from attnscope.measure.quantities import DEFAULT, OF_OFFSETS, SEVERAL, STATISTICS, STRONGEST, without_end
from attnscope.measure.ranking import RankedHead, majority_names, peaks, rank_heads, top_keys
from attnscope.measure.sampling_error import intervals
from attnscope.report.reads import reads
from attnscope.report.schema import HEAD, Finding, Quantity, Report, Row, Table, value_of
from attnscope.report.signature import Signature
from attnscope.results.figures.selection import noun_of, of_entries
from attnscope.store.runs import RunFolder
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count, with_nulls

_MOST = 4  # heads whose keys are listed if no ranking selects any
_ROOM = 1_000_000  # numbers of one profile over all heads; larger ones are only in the run folder
_REQUESTED = (
    Quantity("statistic", unit="name"),
    Quantity("lowest", unit="significant"),
    Quantity("lowest_head", "head"),
    Quantity("mean", unit="significant"),
    Quantity("highest", unit="significant"),
    Quantity("highest_head", "head"),
    Quantity("equal", "uniform", "significant", "uniform attention over all that a token may attend to"),
)
_PAIRS = (
    Quantity("query", "queries"),
    Quantity("key", "keys"),
    *HEAD,
    Quantity("attention", detail="data"),
    Quantity("weight", unit="share"),
    Quantity("equal", "uniform", "share", "uniform attention"),
    Quantity("positions", unit="share", meaning="positions alone: the same weights at each offset, for any tokens"),
    Quantity("above", "above both", "above", low="low", high="high", interval=True),
    Quantity("over", detail="page"),
    Quantity("windows", unit="count", detail="data"),
    Quantity("beyond_chance", "beyond chance"),
)
_CONTRASTS = (
    *HEAD,
    Quantity("statistic", unit="name"),
    Quantity("by"),
    Quantity("mean", unit="change", like="difference"),
    Quantity("others", unit="change", like="difference"),
    Quantity("difference", unit="change", low="low", high="high", significant="differs", interval=True),
    Quantity("size", unit="deviations", detail="data", meaning="in standard deviations of all heads on both sides"),
    Quantity("p", unit="share", detail="data"),
)


_SUMMARY = (
    Quantity("quantity", detail="data"),
    Quantity("name", "quantity"),
    Quantity("value", unit="significant", low="low", high="high", interval=True),
)
_OF_SUMMARY = {
    "clusters": "Head labels",
    "k": "how many",
    "inertia": "sum of squared distances to their means (k-means)",
    "label_information": "Share of the label entropy that the head predicts",
    "label_information_by_chance": "The same by chance, with labels shuffled",
    "named": "Heads with a label",
    "unnamed": "Other heads",
    "intervals_over": "Intervals are over",
    "majority_share": "share of texts on which a head has its usual label",
    "effective_labels": "effective number of labels of a head over texts (1: always the same)",
    "at_most_two_labels": "share of heads with at most two labels",
    "sign_agreement": "share of texts on which a head attends to its usual side",
    "direction_icc": "share of the variance of direction between heads rather than texts",
    "profile_between_heads": "share of the variance of profiles between heads rather than texts",
}


@reads("scan")
def report(results: xr.Dataset, *, data: bool = False) -> Report:
    """The report of a scan, with heads ranked. With `data`, also the tables of JSON and CSV."""
    ranked = rank_heads(results)
    every = [row for rows in ranked.values() for row in rows]
    notes = [*stored.notes_of(results).values()]
    notes += [stored.describe_empty(results, kind) for kind, rows in ranked.items() if not rows]
    headline = _headline(results)
    sentences = [f"{headline}.", stored.describe_labels(results)]
    tables = [_heads(results) if data else Table("heads", "", (), []), _ranked_table(results, ranked)]
    requested, several = _requested(results)
    title = f"statistics by name: means over {stored.describe_windows(results)}"
    tables.append(Table("requested", title, _REQUESTED, requested, page=0))
    if several:
        notes.append(
            f"Several numbers for each head, so not in a table: {', '.join(several)}. See the page, --json or "
            "attnscope.open_run."
        )
    care = {stored.WEIGHTS_NOTE: ""}
    if "group_weight" in results:
        table, described = groups_table(results)
        tables += [table, *([_group_weights(results)] if data else [])]
        sentences += described
        care |= {NULLS: ""}
    if "by" in results.coords:
        table, described = contrasts_table(results)
        tables.append(table)
        sentences += described
    if data:
        tables += [
            summary_table(results),
            _offsets(results),
            *_received(results, [(row["layer"], row["head"]) for row in every]),
        ]
    means = stored.means_note(results, ranked.values())
    if means:
        care |= {means: ""}
    model = str(results.attrs.get("model", "the model"))
    heads = count(results.sizes["head"], "head")
    return Report(
        title=f"Where the heads of {model} attend",
        read=f"{stored.describe_layers(results)} x {heads} over {stored.describe_corpus(results)}",
        finding=Finding(
            sentences,
            _LABELLED if "label" in results else "means, without a test",
            {"": [(row["layer"], row["head"]) for row in _most_frequent_first(results, every)]},
            headline=headline,
        ),
        tables=[table for number, table in enumerate(tables) if table.rows or not number],
        result=results,
        notes=notes,
        care=care,
        method=_LABELS if "label" in results else "",
    )


def _ranked_table(results: xr.Dataset, ranked: Mapping[str, Sequence[RankedHead]]) -> Table:
    """The heads of all rankings, each once: a number where a head is in the ranking."""
    rows: dict[tuple[int, int], Row] = {}
    for kind, heads in ranked.items():
        for head in heads:
            row = rows.setdefault((head["layer"], head["head"]), {})
            row |= {name: value for name, value in head.items() if name != "value"}
            row[kind.replace("-", "_")] = head["value"]
    headings = {"positional": "at offset", "local": "nearby", "sink-like": "on first, special"}
    quantities = [*HEAD, Quantity("attention"), Quantity("label", unit="label"), Quantity("offset", unit="tokens")]
    for kind, heading in headings.items():
        meaning = stored.describe_score(results, kind)
        quantities.append(Quantity(kind.replace("-", "_"), heading, "share", meaning))
    title = "Heads with the most weight at one offset, nearby, and on the first or special tokens"
    return Table("ranked", title, quantities, [*rows.values()], page=0)


_LABELS = (
    "A label names the region of keys that gets at least 0.3 of a head's weight (0.5 for local) and twice its weight "
    "under uniform attention. Under the null, rows ignore positions; the Chernoff-Hoeffding bound of a false label, "
    "summed over all heads and regions, is below 0.01 if rows are independent."
)
#: Of a bound for independent rows; first and special tokens have a threshold instead.
_LABELLED = (
    "labels of offsets: less than a 1% chance of any false one if rows are independent; labels of the first or of "
    "special tokens (0.3 of the weight or more) were not tested"
)
#: What a head with a label attends to.
_OBJECTS = {
    "previous": "the previous token",
    "next": "the next token",
    "self": "their own token",
    "first token": "the first token",
    "same position": "the same position",
    "special tokens": "special tokens",
}
_LISTED = 4  # kinds of a headline


def _offsets_of(labels: Mapping[str, int]) -> str:
    """The offsets of labels that are all offsets, and more than one."""
    near = {"previous": -1, "self": 0, "next": 1}
    fixed = [name for name in labels if name in near or name.startswith("offset ")]
    offsets = sorted(near[name] if name in near else int(name.removeprefix("offset ")) for name in fixed)
    if not 1 < len(offsets) == len(labels):
        return ""
    return ", ".join(f"{offset:+d}".replace("-", "−") for offset in offsets)


def _headline(results: xr.Dataset) -> str:
    """How many heads attend where, by their most frequent labels; of clusters, how many there are."""
    names = majority_names(results)
    if names is None:
        return f"Where the heads of {results.attrs.get('model', 'the model')} attend"
    labels = np.array(names)[results.label_share.notnull().any("cluster").transpose("layer", "head").values].tolist()
    number = len(labels)
    if "clusters" in json.loads(results.attrs.get("summary", "{}")):
        return f"{number} heads in {len(set(labels))} clusters of similar profiles"
    counts = Counter(label for label in labels if label not in UNNAMED)
    fixed = counts.total()
    if not fixed:
        return f"None of {number} heads shows a fixed pattern"
    if fixed == number and len(counts) > _LISTED:
        return f"All {number} heads show a fixed pattern"
    (name, most), *_ = counts.most_common(1)
    attend, show, others = (["", "s"][one == 1] for one in (most, fixed, number - fixed))
    if name in _OBJECTS and (most == fixed or (len(counts) > _LISTED and 2 * most >= fixed)):
        where = _OBJECTS[name]
        return f"{most} of {number} heads attend{attend} to {where}; {number - fixed} show{others} no fixed pattern"
    offsets = _offsets_of(counts)
    if offsets:
        rest = f"{number - fixed} show{others} no fixed pattern"
        return f"{fixed} of {number} heads have {SHARE:.0%} or more of their weight at one offset ({offsets}); {rest}"
    if len(counts) <= _LISTED:
        listed = ", ".join(f"{label} ({heads})" for label, heads in counts.most_common())
        return f"Of {number} heads: {listed}; {number - fixed} show{others} no fixed pattern"
    return f"{fixed} of {number} heads show{show} a fixed pattern; {number - fixed} show{others} none"


def _most_frequent_first(results: xr.Dataset, rows: Sequence[Any]) -> list[Any]:
    """Ranked heads, first those with the label that most heads have."""
    names = np.array(majority_names(results) or [[]])
    counts = Counter(label for label in names.ravel().tolist() if label not in UNNAMED)
    return sorted(rows, key=lambda row: -counts[names[row["layer"], row["head"]]] if names.size else 0)


def _heads(results: xr.Dataset) -> Table:
    """Means over texts of statistics with one number for each head."""
    of_heads = [str(name) for name, one in results.data_vars.items() if "head" in one.dims and name != "label"]
    values: dict[str, np.ndarray] = {}
    for statistic in of_heads:
        if without_end(statistic) == statistic:  # the ends of intervals follow below
            values |= means_of(results, statistic)
    if "sampled_rows" in results:
        ends = intervals(results)
        for name in [name for name in values if name in ends]:
            values |= {f"{name}_{bound}": ends[name].sel(bound=bound).values for bound in ("low", "high")}
    if "group_weight" in results:
        values |= _group_columns(results)
    values |= {str(name): array.values for name, array in (peaks(results) or {}).items()}
    labels = majority_names(results)
    rows: list[Row] = []
    for layer, (name, kind) in enumerate(zip(results.layer_name.values, results.layer_kind.values, strict=True)):
        for head in range(results.sizes["head"]):
            label = "" if labels is None else labels[layer][head]
            row: Row = {"layer": layer, "head": head, "layer_name": str(name), "layer_kind": str(kind), "label": label}
            rows.append(row | {key: value_of(array[layer, head]) for key, array in values.items()})
    words = [Quantity(name, detail="data") for name in ("layer", "head", "layer_name", "layer_kind", "label", *values)]
    return Table("heads", "All heads", words, rows, terminal=0, page=0)


def means_of(results: xr.Dataset, name: str) -> dict[str, np.ndarray]:
    """Means over texts of one statistic, by name; empty if it has more dimensions."""
    values = results[name]
    if not {"window", "layer"} <= set(values.dims) <= {"window", "layer", "head", *SEVERAL}:
        return {}
    means = values.mean("window", skipna=True)
    several = next((dim for dim in SEVERAL if dim in means.dims), None)
    if several is None:
        return {name: means.values}
    return {f"{name}_{one}": means.sel({several: one}).values for one in means[several].values.tolist()}


def _requested(results: xr.Dataset) -> tuple[list[Row], list[str]]:
    """Statistics beyond the default, with their lowest and highest head; and those of several numbers."""
    named = STATISTICS | OF_OFFSETS
    rows: list[Row] = []
    several: list[str] = []
    for statistic in [str(name) for name in results.data_vars if name in named and name not in DEFAULT]:
        means = means_of(results, statistic)
        equal = means_of(results, f"equal_{statistic}") if f"equal_{statistic}" in results else {}
        rows += [
            {"statistic": name} | ends_and_mean(values) | {"equal": _mean(equal.get(f"equal_{name}"))}
            for name, values in means.items()
        ]
        several += [] if means or statistic == STRONGEST else [statistic]
    return rows, several


def ends_and_mean(values: np.ndarray) -> Row:
    """The lowest value and its head, the mean, the highest value and its head; None if unknown."""
    ends: Row = {"mean": _mean(values)}
    for name, find, beyond in (("lowest", np.argmin, np.inf), ("highest", np.argmax, -np.inf)):
        layer, head = np.unravel_index(find(np.where(np.isfinite(values), values, beyond)), values.shape)
        ends |= {name: value_of(values[layer, head]), f"{name}_head": f"{layer}.{head}"}
    if ends["lowest"] == ends["highest"]:  # all heads are equal
        ends |= {"lowest_head": None, "highest_head": None}
    return ends


def _mean(values: np.ndarray | None) -> float | None:
    finite = np.empty(0) if values is None else values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else None


def groups_table(results: xr.Dataset) -> tuple[Table, list[str]]:
    """The pairs of groups with the largest weights above both controls, and sentences about them."""
    every = group_pairs(results)
    pairs = [pair for pair in every if pair["above"] > 0]
    sentences = [f"{describe_group_pairs(every)}."]
    if pairs:
        first = pairs[0]
        weight, equal, positions = (f"{first[name]:.2f}" for name in ("weight", "equal", "positions"))
        sentences.append(
            f"Furthest above both controls is head {first['layer']}.{first['head']}, {first['query']} on "
            f"{first['key']}: weight {weight}, uniform {equal}, positions {positions}."
        )
    heads = results.sizes["layer"] * results.sizes["head"]
    reading = f"Each row is the largest of {heads} heads; its interval is for that head alone. "
    reading += explain_no_interval(pairs)
    title = "groups of tokens: for each pair, the head furthest above both controls"
    rows = [with_nulls(pair) for pair in pairs]
    return Table("groups", title, _PAIRS, rows, reading=reading.strip(), terminal=10, page=30), sentences


def _group_columns(results: xr.Dataset) -> dict[str, np.ndarray]:
    """For each pair of groups: the weight, and both controls."""
    means = MeanGroupWeights.of(results)
    names = {int(number): str(results.group_query.values[number]) for number in means.present}
    kinds = {"group_weight": means.weight, "equal_group_weight": means.equal, "position_group_weight": means.positions}
    columns: dict[str, np.ndarray] = {}
    for (i, query), (j, key) in product(names.items(), repeat=2):
        columns |= {f"{kind} {query} > {key}": values[:, :, i, j] for kind, values in kinds.items()}
    return columns


def _group_weights(results: xr.Dataset) -> Table:
    """The weights between all groups, a row for each head; each weight is a table of queries by keys."""
    means = MeanGroupWeights.of(results)
    names = results.group_query.values.tolist()
    kinds = {"weight": means.weight, "equal": means.equal, "positions": means.positions}
    rows: list[Row] = []
    for layer, head in np.ndindex(means.weight.shape[:2]):
        weights = {name: with_nulls(values[layer, head]) for name, values in kinds.items()}
        rows.append({"layer": layer, "head": head, "groups": names, **weights})
    return _of_lists("group_weights", "Weights between groups", rows)


def contrasts_table(results: xr.Dataset) -> tuple[Table, list[str]]:
    """Differences between the texts of one value and all others, and sentences about them."""
    title = f"differences by {field_of(results)}"
    values = set(results.by.values)
    if len(values) == 1:
        sentence = f"{field_of(results)}: all texts have the value {values.pop()}; nothing to compare."
        return Table("by", title, _CONTRASTS, []), [sentence]
    tested = contrasts(results, level=LEVEL)
    rows: list[Row] = [dict(row) for row in contrast_rows(tested)]
    number = sum(bool(row["differs"]) for row in rows)  # of significant differences
    corrected = "by the false discovery rate"
    table = Table("by", title, _CONTRASTS, rows, corrected=corrected, terminal=min(12, number), page=min(20, number))
    return table, describe_contrasts(tested)


def _offsets(results: xr.Dataset) -> Table:
    """Shares of the weight by offset: in bins that double, the band, every offset, chosen ones; a row for each head."""
    rows: list[Row] = []
    for of in ("bins", "band", "every"):
        shares = shares_by_offset(results, of)
        if shares is None:
            continue
        shares = shares.seen()
        if shares.share.size > _ROOM:
            numbers = f"{shares.share.size:,} numbers are more than {_ROOM:,}"
            rows.append({"of": of, "left_out": f"{numbers}: attnscope.open_run reads the sums in the run folder"})
            continue
        ends = {"first": shares.first.tolist(), "last": shares.last.tolist()}
        rows += _by_head(of, ends, shares.share, shares.equal)
    if "weight_at" in results:
        offsets = results.chosen_offset.values.tolist()
        means = results[["weight_at", "equal_weight_at"]].mean("window").transpose(..., "chosen_offset")
        share, equal = means.weight_at.values, means.equal_weight_at.values
        rows += _by_head("chosen", {"first": offsets, "last": offsets}, share, equal)
    return _of_lists("offsets", "Shares of the weight by offset", rows)


def summary_table(results: xr.Dataset) -> Table:
    """How far labels depend on texts, with intervals: a row for each number, by its path in the summary."""

    def rows(value: Any, path: tuple[str, ...] = ()) -> Iterator[Row]:
        if isinstance(value, dict) and "value" not in value:
            for name, inner in value.items():
                yield from rows(inner, (*path, str(name)))
        else:
            name = ", ".join(_OF_SUMMARY.get(part, part.replace("_", " ")) for part in path)
            row = value if isinstance(value, dict) else {"value": value}
            yield {"quantity": ".".join(path), "name": of_entries(name, noun_of(results)), **row}

    summary: list[Row] = list(rows(json.loads(results.attrs.get("summary", "{}"))))
    return Table("independence", "Labels over texts", _SUMMARY, summary, terminal=0)


def _by_head(of: str, ends: Row, share: np.ndarray, equal: np.ndarray | None) -> list[Row]:
    return [
        {"of": of, "layer": layer, "head": head}
        | ends
        | {"share": with_nulls(share[layer, head]), "equal": None if equal is None else with_nulls(equal[layer])}
        for layer, head in np.ndindex(share.shape[:2])
    ]


def _received(results: xr.Dataset, leading: Sequence[tuple[int, int]]) -> list[Table]:
    """The keys that receive most in the sample windows, of the heads that lead the rankings or were requested."""
    sample = sample_of(results)
    if sample is None or "received" not in sample:
        return []
    chosen = [(int(layer), int(head)) for layer, head in json.loads(sample.attrs.get("requested", "[]"))]
    if not chosen and not leading:  # nothing ranks heads: those with the key that receives most
        most = sample.received.max("position").mean("window").values
        leading = [divmod(int(cell), most.shape[1]) for cell in np.argsort(-most, axis=None)[:_MOST]]
    rows: list[Row] = [dict(row) for row in top_keys(sample, list(dict.fromkeys([*chosen, *leading])))]
    return [_of_lists("received", "Keys that receive most", rows)]


def _of_lists(name: str, title: str, rows: list[Row]) -> Table:
    """A table for JSON alone, whose values may be lists."""
    names = list(dict.fromkeys(key for row in rows for key in row))
    return Table(name, title, [Quantity(key, detail="data") for key in names], rows, terminal=0, page=0)


def sample_of(results: xr.Dataset) -> xr.Dataset | None:
    """The attention over the first windows."""
    sample = _beside(results, stored.SAMPLE)
    same = sample is not None and all(sample.sizes[dim] == results.sizes[dim] for dim in ("layer", "head"))
    return sample if same else None


def examples_of(results: xr.Dataset) -> dict[str, list[dict[str, Any]]]:
    """The examples of each head for the page; see `examples_by_head`."""
    return examples_by_head(_beside(results, stored.EXAMPLES))


def _beside(results: xr.Dataset, name: str) -> xr.Dataset | None:
    """What is stored for the page: in memory, or in the run folder that the results were read from."""
    in_memory = results.encoding.get(name)
    if in_memory is None and "source" in results.encoding:
        with suppress(AttnscopeError, OSError, KeyError):  # the folder is gone, or contains another run by now
            signature = results.attrs["signature"]
            run = RunFolder(Path(results.encoding["source"]), json.loads(signature))
            run.look()
            same = "signature" in run.state and Signature.of(run.state["signature"]).to_json() == signature
            return run.load(name) if same else None
    return in_memory
