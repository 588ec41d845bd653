"""`attnscope_circuits.circuits`."""

from typing import TYPE_CHECKING, Annotated, Unpack

from attnscope.options import Band, Count, ModelReading, ModelsOrBundled
from attnscope.verbs import verb

if TYPE_CHECKING:
    import xarray as xr


@verb(
    examples=(
        ("attnscope circuits", "the bundled model"),
        ("attnscope circuits gpt2 --csv", "a model of the hub, one line for each head"),
    )
)
def circuits(
    model: ModelsOrBundled = None,
    *,
    band: Band = 10,
    tokens: Annotated[Count, "List this many tokens and pairs of tokens for each head."] = 5,
    **reading: Unpack[ModelReading],
) -> "xr.Dataset":
    r"""Read circuits off the weights alone: copying, preferred tokens and offsets, composition of heads.

    For a head with :math:`W_{QK} = W_Q W_K^T` and :math:`W_{OV} = W_V W_O` (Elhage et al. 2021, A Mathematical
    Framework for Transformer Circuits), between embeddings :math:`W_E` and unembedding :math:`W_U`:

    * copying: :math:`W_E W_{OV} W_U` has as many eigenvalues as the head has dimensions; positive ones raise the logit
      of the token that the head attends to. They are computed from a product of the width of the head.
    * composition of a head A with a later head B: :math:`\|W_{OV}^A W_{QK}^B\|_F / (\|W_{OV}^A\|_F \|W_{QK}^B\|_F)`
      through queries; :math:`W_{QK}^{B\,T}` through keys, :math:`W_{OV}^B` through values.

    Norms are folded into the matrices: exactly up to their denominator, one positive number for each token, which no
    eigenvalue's sign and no ratio depends on. Other sublayers between two heads are left out. RoPE counts at offset 0
    in W_QK.

    Returns
    -------
    xarray.Dataset
        Over ``(layer, head)``, NaN where undefined (the attribute ``skipped`` has the reasons):

        * ``copying``: share of the eigenvalues with a positive real part. ``copying_sum``: :math:`\sum\lambda /
          \sum|\lambda|`, from -1 to 1. ``copying_p``: two-sided, of the sum under a random rotation of the head's
          values; ``copying_shown``: significant, corrected for all heads.
        * ``same_token``: mean score of a token with itself less that with others, in standard deviations of all scores
          of the embeddings; ``same_token_p`` and ``_shown`` under a random rotation of the head's keys.
        * ``offset_score`` ``(layer, head, offset)``: score by offset from positions alone, in nats: RoPE between the
          mean tokens, the position table, or the model's bias. ``peak_offset``: where it is highest; ``peak_offset_p``
          and ``_shown`` under random phases (RoPE), or a random rotation of the keys (table); NaN for a bias.
        * ``copied``, ``copied_logit``, ``suppressed``, ``suppressed_logit`` ``(layer, head, rank)``: tokens whose own
          logit, less the mean logit, rises and falls most if the head attends to them.
        * ``query_token``, ``key_token``, ``pair_score`` ``(layer, head, rank)``: pairs with the highest scores, in
          nats, among the tokens furthest along the head's first directions.

        ``composition`` ``(kind, from_layer, from_head, layer, head)`` with ``composition_p``, one-sided for random
        matrices with the same singular values, and ``composition_shown``, corrected for all pairs and kinds;
        ``composition_random``, its root mean square for such matrices.

    Raises
    ------
    AttnscopeError
        If the model is no language model, or its attention is not captured.

    Notes
    -----
    The p-values follow from the exact mean and variance over random rotations, by a normal or, for squared
    compositions, a chi-squared distribution with the skewness of a sum of weighted squares. The false discovery
    rate is 0.05 (Benjamini and Hochberg 1995).

    Examples
    --------
    >>> found = circuits("bundled")
    >>> found.copying.dims, found.composition.dims
    (('layer', 'head'), ('kind', 'from_layer', 'from_head', 'layer', 'head'))
    """
    from contextlib import suppress
    from dataclasses import replace
    from functools import partial

    from attnscope.capture.load import tokenizer_of
    from attnscope.opened import Opened
    from attnscope.store.run import Once
    from attnscope.support.errors import AttnscopeError
    from attnscope.support.progress import no_progress
    from attnscope_circuits.weights import Weights

    session = Opened.of(model)
    loaded = session.load(reading, need_tokenizer=False)
    if loaded.model.main_input_name != "input_ids":
        raise AttnscopeError(
            f"{type(loaded.model).__name__} reads {loaded.model.main_input_name}, not tokens: choose a language model"
        )
    with suppress(AttnscopeError):  # tokens are then named by their numbers
        trusts = reading["trust_remote_code"]
        tokenizer = tokenizer_of(loaded.model, reading["tokenizer"], loaded.model, trust_remote_code=trusts)
        session.model = replace(loaded, tokenizer=tokenizer)
    length = min(2 * band + 4, session.length(None))
    if band >= length:
        raise AttnscopeError(
            f"band (--band) is {band}; this model's largest offset is {length - 1}: use a smaller band"
        )
    seed, tell = reading["seed"], reading["progress"] or no_progress
    weights = partial(Weights, loaded.model, session.model.tokenizer, length, band, tokens, seed, tell)
    settings = {"band": band, "tokens": tokens, "seed": seed}
    return session.run("circuits", Once(lambda _: weights().dataset()), settings, reading)
