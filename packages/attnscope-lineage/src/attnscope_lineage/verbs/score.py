"""`attnscope_lineage.score`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from attnscope.options import IN_PYTHON, Flag, Numbers, Seed, Tell, Typed, path_of
from attnscope.verbs import verb
from attnscope_lineage.options import BleuTokenizer, Lines

if TYPE_CHECKING:
    import xarray as xr


@verb()
def score(
    hypotheses: Annotated[
        Lines | Sequence[Lines] | Mapping[str, Lines],
        Flag("hypotheses"),
        Typed(path_of, "PATH", repeated=True),
        "Score these translations, one sentence a line; - is standard input. The first is the baseline. In Python "
        "the output of a system: a list of sentences, or the `Path` of a file with one sentence per line. For "
        "several systems, a list of these or a mapping from names to these.",
    ],
    targets: Annotated[
        Lines | Sequence[Lines],
        Flag("target"),
        Typed(path_of, "PATH", repeated=True),
        "Compare with these reference translations; repeat it for a second one of each sentence. They have the "
        "same form.",
    ],
    *,
    texts: Annotated[
        Lines | None, Flag("text"), "Read these sentences that were translated, for --by-length and --comet."
    ] = None,
    by_length: Annotated[
        Numbers,
        "Score buckets of source length up to these limits, with commas between, such as 10,20,30. In Python "
        "increasing upper limits of the buckets of source length: ``(10, 20)`` makes 1-10, 11-20 and 21 or more. A "
        "sentence of length 0 belongs to the first.",
    ] = (),
    length_in: Annotated[
        Literal["words", "characters"],
        "Measure length in words or characters. Words are between spaces; spaces are no characters.",
    ] = "words",
    tokenize: Annotated[
        BleuTokenizer | None,
        "Tokenise for BLEU by this tokenizer; none is for tokenised text. ``13a`` is the default of sacreBLEU; "
        "``ja-mecab`` needs ``attnscope[ja]``; ``moses`` is the tokenizer of the Moses scripts in its Python form, "
        "sacremoses, for `language`, without their normalisation of punctuation. chrF always uses the original "
        "text. By default ja-mecab and zh for their languages, else 13a.",
    ] = None,
    lowercase: Annotated[
        bool,
        Flag("lowercase", short="-lc"),
        "Ignore case, as in older papers with moses or none. Ignore case. Many published scores come from "
        '``multi-bleu.perl`` on text tokenised by Moses and lower-cased. Here this is ``tokenize="moses", '
        "lowercase=True`` (or ``none`` for tokenised files), except that multi-bleu gives 0 if no n-gram of some "
        "order matches, and sacreBLEU smooths. Do not compare such a score with a cased ``13a`` one.",
    ] = False,
    comet: Annotated[
        str | None,
        "Also score with this COMET model: a name such as Unbabel/wmt22-comet-da, which is downloaded, or the file of "
        "its checkpoint. It reads `texts` too, and needs its command ``comet-score`` (``pipx install unbabel-comet``: "
        "in an environment of its own, since it needs an older transformers). Of several references, the mean.",
    ] = None,
    language: Annotated[
        str | None, "Name the language of the targets, such as ja; for moses en by default. Also ``ja-JP``."
    ] = None,
    resamples: Annotated[int, "Draw this many resamples for the bootstrap; 0 for no intervals."] = 1000,
    seed: Annotated[Seed, "Seed the bootstrap with this number."] = 12345,
    progress: Annotated[
        Tell | None, IN_PYTHON, "Called with a `Progress` before the whole text, before each bucket, and at the end."
    ] = None,
) -> "xr.Dataset":
    """Score translations with sacreBLEU's BLEU and chrF, and with COMET; compare systems; follow the score over length.

    Intervals come from a bootstrap over sentences, widened for small samples (Hesterberg 2015). With the default seed
    and 400 sentences or more, they equal those of sacreBLEU. All systems share the resamples, so that each is compared
    in pairs with the first one, the baseline. `p_value` is two-sided: the share of resamples whose gap is at least as
    far from the mean gap as the difference is from 0. It is 0.05 or less when the interval of the difference excludes
    0. sacreBLEU's paired bootstrap centres the absolute gap instead; at the 5% level it calls equal systems different
    in 9% to 20% of cases.

    Returns
    -------
    xarray.Dataset
        ``score``, ``lower`` and ``upper`` (its 95% interval), ``p_value``, ``difference``,
        ``difference_lower``, ``difference_upper`` (from the baseline, which has NaN itself), all ``(system, metric)``
        in points from 0 to 100. Intervals need 20 sentences or more, tests 6 or more (with 5, no paired test can
        reach p below 1 in 16). With `by_length` also ``score_by_length``,
        ``lower_by_length``, ``upper_by_length`` ``(system, metric, bucket)`` and ``sentences (bucket)``; an empty
        bucket is NaN. The attribute ``signature`` is JSON with the signature of each metric; ``note`` is a warning if
        the references have no spaces between words and the tokenizer needs them.

    Raises
    ------
    AttnscopeError
        If a file cannot be read, line counts differ, two systems have the same name, a tokenizer is unknown or not
        installed, the limits do not increase, or the references have no spaces between words and neither a tokenizer
        nor a language with one is given.

    References
    ----------
    Post, "A call for clarity in reporting BLEU scores" (WMT 2018); Koehn, "Statistical significance tests for
    machine translation evaluation" (EMNLP 2004); Popović, "chrF" (WMT 2015); Rei et al., "COMET" (EMNLP 2020).

    Examples
    --------
    >>> references = ["The tide comes in twice a day.", "The boats lie on the sand."]
    >>> scores = score({"copy": references, "other": [references[0], "The boats lie in the sand."]}, references)
    >>> scores.score.sel(metric="BLEU").round(1).values.tolist()
    [100.0, 75.2]
    """
    import importlib.metadata
    import json
    import re

    import numpy as np
    import xarray as xr
    from sacrebleu.metrics.chrf import CHRF

    from attnscope.statistics.units import LEAST
    from attnscope.support.checks import check_whole
    from attnscope.support.progress import Progress, no_progress
    from attnscope_lineage.parallel_text import check_parallel, is_unsegmented, lines_of_text
    from attnscope_lineage.scores import (
        MOST_RESAMPLES,
        OF_NO_SPACES,
        additive_statistics,
        bleu_metric,
        buckets,
        comet_metric,
        compare_systems,
        moses_tokenizer_of,
        several_texts,
        systems_of,
        tokenizer_for,
    )

    systems = systems_of(hypotheses)
    references = [lines_of_text(text, "the references") for text in several_texts(targets, "targets")]
    sides = {**systems, **{f"reference {i + 1}": lines for i, lines in enumerate(references)}}
    sources = None if texts is None else lines_of_text(texts, "the text")
    if sources is not None:
        sides["the text"] = sources
    count = check_parallel(sides)
    check_whole(0, MOST_RESAMPLES, resamples=resamples)
    buckets = buckets(sources, by_length, length_in)
    language = None if language is None else re.split("[-_]", language.lower())[0]  # ja-JP is Japanese
    tokenizer: str = tokenize or tokenizer_for(language, references)
    language = language or "en"

    metrics = {"BLEU": bleu_metric(tokenizer, lowercase=lowercase), "chrF": CHRF(lowercase=lowercase)}
    prepared = {"BLEU": moses_tokenizer_of(language) if tokenizer == "moses" else None, "chrF": None}
    signatures: dict[str, str] = {}
    statistics: dict[str, list[np.ndarray]] = {}
    judge = None if comet is None else comet_metric(comet, sources)
    for name, metric in metrics.items():
        statistics[name] = additive_statistics(metric, list(systems.values()), references, prepared[name])
        signature = metric.get_signature()
        if resamples and count >= LEAST:
            signature.update("bs", resamples)
            signature.update("seed", seed)
        signatures[name] = signature.format()
    if tokenizer == "moses":
        version = importlib.metadata.version("sacremoses")
        signatures["BLEU"] = signatures["BLEU"].replace("tok:none", f"tok:moses.{language}-sacremoses.{version}")

    if judge is not None:
        statistics["COMET"] = [judge.statistics(lines, references) for lines in systems.values()]
        metrics, signatures["COMET"] = {**metrics, "COMET": judge}, judge.signature
    tell = progress or no_progress
    tell(Progress("all sentences", 0.0))
    result = compare_systems(metrics, statistics, np.arange(count), resamples, seed)
    result = result.assign_coords(system=list(systems), metric=list(metrics))
    if buckets:
        parts: list[xr.Dataset] = []
        for number, (name, chosen) in enumerate(buckets.items(), start=1):
            tell(Progress(f"{name} {length_in}", number / (len(buckets) + 1)))
            parts.append(compare_systems(metrics, statistics, chosen, resamples, seed))
        joined = xr.concat(parts, "bucket")[["score", "lower", "upper"]].transpose("system", "metric", "bucket")
        result = result.merge(joined.rename({name: f"{name}_by_length" for name in joined}))
        result["sentences"] = ("bucket", [len(chosen) for chosen in buckets.values()])
        result = result.assign_coords(bucket=list(buckets))
        result.attrs["length_in"] = length_in
    tell(Progress("done", 1.0))
    result.attrs |= {"sentences": count, "signature": json.dumps(signatures)}
    if tokenizer not in OF_NO_SPACES and any(map(is_unsegmented, references)):
        result.attrs["note"] = (
            f"the references have no spaces between words, so {tokenizer} treats a sentence as one word and BLEU is "
            "not meaningful: use ja-mecab, zh or char"
        )
    return result
