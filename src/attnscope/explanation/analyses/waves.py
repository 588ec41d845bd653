"""Waves in queries and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.explanation.arrays.decomposition import append_one
from attnscope.explanation.arrays.waves import query_key_waves as waves_of_head
from attnscope.explanation.ranking import over_heads
from attnscope.explanation.study import BILINEAR_SCORES, Analysis, Picture, Section, studied, study
from attnscope.support.arguments import validated
from attnscope.support.checks import check_seed, check_whole

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.capture.load import Model
    from attnscope.capture.processors import Tokenizer
    from attnscope.explanation.evidence import Evidence, Layer
    from attnscope.explanation.study import Study
    from attnscope.read.encoded import Sources

WAVES_ALONG_TEXT = Section(
    "waves",
    "Waves in queries and keys",
    (
        "A head can only prefer an offset if its queries and keys carry the position. Here are the "
        "columns of both, after the rotation that the scores determine, that are waves along the text."
    ),
)


@validated
def query_key_waves(
    model: Model | Study | None = None,
    texts: Sources = None,
    *,
    targets: Sources = None,
    tokenizer: Tokenizer = None,
    window: int | None = None,
    limit: int | None = None,
    permutations: int = 5,
    seed: int = 0,
) -> xr.Dataset:
    """Waves in the columns of the queries and keys of all heads, re-parametrised by the SVD of W_Q W_K^T.

    See docs/mathematics.md, Queries and keys as waves. On the X of the first text, with biases.

    Parameters
    ----------
    model, texts, targets, tokenizer, window, limit
        See `attnscope.explanation.study.study`.
    permutations, seed
        Number of orders in which the text's tokens are shuffled for the null, and seed of these.

    Returns
    -------
    xarray.Dataset
        As `attnscope.explanation.arrays.waves.query_key_waves`, with the dimensions ``layer, head``.

    Raises
    ------
    AttnscopeError
        If no layer has scores that are bilinear in X (under RoPE none has), or there are fewer than two full windows.

    Examples
    --------
    >>> from attnscope.explanation.analyses.waves import query_key_waves
    >>> query_key_waves("bundled", limit=2, permutations=0).periodic_columns.dims
    ('layer', 'head')
    """
    check_whole(0, permutations=permutations)
    check_seed(seed)
    given = study(model, texts, targets=targets, tokenizer=tokenizer, window=window, limit=limit)
    with studied(given, ANALYSIS):
        return of_heads(given.evidence, permutations=permutations, seed=seed)


def of_heads(evidence: Evidence, *, permutations: int = 5, seed: int = 0) -> xr.Dataset:
    """`waves_of_head` of every head; tests are corrected for all heads together."""
    tests = sum(2 * layer.heads * layer.matrices(0, affine=False)[0].shape[1] for layer in evidence.bilinear)

    def of_head(layer: Layer, head: int) -> xr.Dataset:
        query, key = layer.matrices(head, affine=True)
        states = append_one(layer.sample)
        return waves_of_head(states, query, key, tests=tests, permutations=permutations, seed=seed)

    return over_heads(evidence, of_head)


ANALYSIS = Analysis(
    "waves",
    "Waves in queries and keys",
    "Queries and keys as waves",
    lambda study: of_heads(study.evidence, seed=study.seed),
    needs=(BILINEAR_SCORES,),
    section=WAVES_ALONG_TEXT,
    pictures=(
        Picture(
            "wave-counts",
            "How many columns are waves",
            (
                "Counted by Fisher's test on one text, strict enough for all heads together. On the "
                "right the most that the same head has when the tokens of the text are shuffled."
            ),
            draw="attnscope.results.figures.waves:wave_counts",
        ),
        Picture(
            "wave-columns",
            "Which columns are waves",
            (
                "A row is a column, the largest singular value on top: disc and ring are the strongest "
                "frequencies of query and key, green ones are waves, an arc joins a cosine and its "
                "sine. Bars: the column's share of the scores. Columns of nearly equal singular values "
                "may trade places."
            ),
            draw="attnscope.results.figures.waves:wave_columns",
            of="heads",
        ),
        Picture(
            "wave-curves",
            "Queries and keys along the text",
            (
                "The columns that weigh most in the scores, along the first tokens of one text. Where "
                "both are waves, the key's is the query's moved by the head's offset."
            ),
            draw="attnscope.results.figures.waves:wave_curves",
            of="heads",
        ),
    ),
    units="columns",
    of_arrays=True,
)
