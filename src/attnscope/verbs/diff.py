"""`attnscope.diff`."""

from typing import TYPE_CHECKING, Annotated, Literal, Unpack

from attnscope.options import ComparisonOptions, Names, Scan, Share
from attnscope.verbs import verb

if TYPE_CHECKING:
    import xarray as xr


@verb()
def diff(
    before: Annotated[
        Scan,
        "Compare this finished scan, the first model's. It is the folder of a run of ``attnscope scan``, or a "
        "result of `attnscope.scan`.",
    ],
    after: Annotated[Scan, "Compare with this finished scan of the same texts, the second model's."],
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

    Both models read the same windows, so each text, image or sound is compared with itself.

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
        counted once; ``repeated`` lists these, as JSON.

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
    from contextlib import nullcontext
    from pathlib import Path

    import xarray as xr

    from attnscope.comparison.diff import check_same_texts, common_statistics, compared_scans
    from attnscope.measure.ranking import with_each
    from attnscope.measure.stored import opened_scan
    from attnscope.report.signature import Signature
    from attnscope.store.files import local_folder, read_as
    from attnscope.store.run import Job, Once, run

    if isinstance(reading["out"], str | Path):
        reading["out"] = local_folder(reading["out"])
    folders = " or ".join(str(scan) for scan in (before, after) if not isinstance(scan, xr.Dataset))
    with read_as(folders) if folders else nullcontext():
        first, second = (with_each(opened_scan(scan)) for scan in (before, after))
        own, other = (Signature.from_json(scan.attrs["signature"]) for scan in (first, second))
        check_same_texts(first, second, own, other)
        names = common_statistics(first, second, statistics)

    def compared(_: Job) -> xr.Dataset:
        with read_as(folders) if folders else nullcontext():
            return compared_scans(first, second, names, heads, level, reading["seed"])

    job = Once(compared)
    job.signature = Signature(
        "diff",
        model={"name": f"{Path(own.name).name}-{Path(other.name).name}"},
        systems={"before": own.to_dict(), "after": other.to_dict()},
        settings={"statistics": names, "heads": heads, "level": level, "seed": reading["seed"]},
        versions=own.versions,
    )
    models = {"before": str(first.attrs["model"]), "after": str(second.attrs["model"])}
    job.attributes = models | {"signature": job.signature.to_json()}
    return run(job, reading["out"])
