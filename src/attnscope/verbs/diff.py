"""`attnscope.diff`."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from attnscope.options import ComparisonOptions, Names, Scans, Share
from attnscope.verbs import verb

if TYPE_CHECKING:
    import xarray as xr


@verb(
    examples=(
        ("attnscope diff before after", "two finished scans of the same texts"),
        ("attnscope diff a1,a2,a3 b1,b2,b3", "three seeds of one training against three of another"),
    )
)
def diff(
    before: Annotated[
        Scans,
        "Compare this finished scan, the first model's, or several of a group, with commas between. It is the folder "
        "of a run of ``attnscope scan``, or a result of `attnscope.scan`; a group is a list of them, such as seeds.",
    ],
    after: Annotated[
        Scans, "Compare with this finished scan of the same texts, the second model's, or with several of a group."
    ],
    *,
    statistics: Annotated[
        Names | None,
        "Compare these statistics, with commas between. They have one number for each head. Each chosen offset "
        "(``weight_at_-64``) and each share of blocks (``block_recall_5``) counts as a statistic. By default all "
        "that both scans have.",
    ] = None,
    heads: Annotated[
        Literal["auto", "number", "profile"],
        "Match heads within a layer by this rule: number, profile, auto. ``profile`` is one to one, with the "
        "smallest total distance of the profiles. See `match_heads`.",
    ] = "auto",
    level: Annotated[Share, "Bound the false discovery rate, all heads and statistics together."] = 0.05,
    **reading: Unpack[ComparisonOptions],
) -> "xr.Dataset":
    """Measure what changed between two models: two scans of one corpus, head by head.

    Both models read the same windows, so each text, image or sound is compared with itself. Two groups of models, such
    as three seeds of each training, are compared by the spread between the models of a group (`changes_by_model`).

    Returns
    -------
    xarray.Dataset
        Over ``statistic, layer, head``: ``before`` and ``after`` (means over texts), ``change``, ``change_low``,
        ``change_high`` (95% interval by the bootstrap over documents), ``p`` and ``changed`` (see
        `changes_by_document`), ``tested`` (False with fewer than 6 documents: there are no intervals, and ``changed``
        is False), ``size``, the change in standard deviations of all heads of both models together. Over
        ``layer, head``: ``partner``, the head of the second model to compare with, and ``profile_distance``, the total
        variation distance of the two offset profiles. ``units`` is a coordinate of each statistic. The attributes
        ``matching`` and ``similarity`` record the rule that matched heads, and whether pairs are more similar than by
        chance; if not, changes compare heads that may be unrelated. A statistic with the same numbers as an
        earlier one in both scans (``special_tokens`` and ``first_token``, if only the first token is special) is
        counted once; ``repeated`` lists these, as JSON. If groups are compared, ``before`` and ``after`` are means over
        models, intervals and p-values are by Welch's t over models; the attribute ``p_of_groupings`` is the exact
        p-value of the largest change, and ``least_p`` the least that it can be.

    Raises
    ------
    AttnscopeError
        If the scans differ in texts, tokenizer, windows or shape of the model, or have no statistic in common.

    Examples
    --------
    >>> import attnscope
    >>> texts = ["The tide is out.", "The boats rest on the mud."] * 4
    >>> first = attnscope.scan(texts=texts)
    >>> bool(diff(first, first).changed.any())
    False
    """
    from collections.abc import Sequence
    from contextlib import nullcontext
    from pathlib import Path

    import xarray as xr

    from attnscope.comparison.diff import check_same_texts, common_statistics, compared_scans, name_of_group
    from attnscope.measure.ranking import with_each
    from attnscope.measure.stored import opened_scan
    from attnscope.report.signature import Signature
    from attnscope.store.files import local_folder, read_as
    from attnscope.store.run import Job, Once, run
    from attnscope.support.errors import AttnscopeError

    if isinstance(reading["out"], str | Path):
        reading["out"] = local_folder(reading["out"])
    sides = [
        [*side] if isinstance(side, Sequence) and not isinstance(side, str) else [side] for side in (before, after)
    ]
    numbers = [len(side) for side in sides]
    if min(numbers) < 1 or (max(numbers) > 1 and min(numbers) < 2):  # noqa: PLR2004
        raise AttnscopeError(
            f"found {numbers[0]} and {numbers[1]} scans; expected one and one, or groups of two or more each, which "
            "show how much models differ"
        )
    every = [scan for side in sides for scan in side]
    folders = " or ".join(str(scan) for scan in every if not isinstance(scan, xr.Dataset))
    with read_as(folders) if folders else nullcontext():
        firsts, seconds = ([with_each(opened_scan(scan)) for scan in side] for side in sides)
        scans = [*firsts, *seconds]
        signatures = [Signature.from_json(scan.attrs["signature"]) for scan in scans]
        names: Any = statistics
        for scan, signature in zip(scans[1:], signatures[1:], strict=True):
            check_same_texts(scans[0], scan, signatures[0], signature)
            names = common_statistics(scans[0], scan, names)

    def compared(_: Job) -> xr.Dataset:
        return compared_scans(firsts, seconds, names, heads, level, reading["seed"])

    job = Once(compared)
    first, other = signatures[0], signatures[len(firsts)]
    systems = {"before": first.to_dict(), "after": other.to_dict()}
    if len(scans) > 2:  # noqa: PLR2004
        ends = ["before"] * len(firsts) + ["after"] * len(seconds)
        systems = {f"{end} {at}": one.to_dict() for at, (end, one) in enumerate(zip(ends, signatures, strict=True), 1)}
    job.signature = Signature(
        "diff",
        model={"name": f"{Path(first.name).name}-{Path(other.name).name}"},
        systems=systems,
        settings={"statistics": names, "heads": heads, "level": level, "seed": reading["seed"]},
        versions=first.versions,
    )
    models = {"before": name_of_group(firsts), "after": name_of_group(seconds)}
    job.attributes = models | {"signature": job.signature.to_json()}
    return run(job, reading["out"])
