"""The offset profile of `scan`, on every kind of weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from attnscope._arguments import typed
from attnscope.capture import borrowed
from attnscope.checks import check_whole
from attnscope.corpus import window_name
from attnscope.faithfulness._given import Given, given_texts, inputs_of
from attnscope.faithfulness._predictions import lacks_predictions
from attnscope.faithfulness.contributions._blocks import find_blocks
from attnscope.faithfulness.contributions._kinds import KINDS, Kind, chosen_kinds
from attnscope.faithfulness.contributions._run import ModelRun
from attnscope.mechanism.evidence import FOR_MATCHING
from attnscope.progress import Progress, Tell, tell_nobody

if TYPE_CHECKING:
    from attnscope.capture import Model, Tokenizer
    from attnscope.corpus import Sources
    from attnscope.mechanism import Study


@typed
def contribution_profiles(
    model: Model | Study | Given | None = None,
    texts: Sources = None,
    *,
    targets: Sources = None,
    tokenizer: Tokenizer = None,
    window: int | None = None,
    limit: int | None = None,
    by_line: bool = False,
    kinds: Sequence[Kind | str] | None = None,
    band: int = 10,
    progress: Tell | None = None,
) -> xr.Dataset:
    r"""Measure where heads and layers take from, by more than their weights.

    Does "a previous-token head" survive when its weights are multiplied by the size of what they weigh, when what the
    output cannot see is taken out, when the residual connection is counted, when layers are followed through one
    another? Every profile is defined as that of `attnscope.scan`: the mean over rows at each offset.

    ==============  ===============================================================================================
    kind            what is laid along offsets
    ==============  ===============================================================================================
    weights         A, of each head
    norms           :math:`\lVert\alpha_{ij}f(x_j)\rVert` of each head, as shares of each row (Kobayashi 2020)
    effective       :math:`A_\text{eff}` of each head: what the output can see (Brunner 2020); rows need not sum to 1
    block_norms     norms of what tokens give to the block's output, all heads, residual and normalisation included,
                    as shares of each row (Kobayashi 2021)
    rollout         product of :math:`\tfrac12 I + \tfrac12\bar A_l` up to each layer (Abnar and Zuidema 2020)
    gradient        :math:`(\nabla A\odot A)^+` of each head, as shares of each row (``profile_gradient``), and R - I
                    of Chefer 2021 up to each layer (``profile_relevance``). The gradient is that of one number: the
                    sum over positions of the log probability of the most likely outcome there
    ==============  ===============================================================================================

    Texts are read one at a time, and of a text nothing is kept but its queries, keys, values and states: weights are
    made some rows at a time. ``rollout`` and ``gradient`` hold matrices over all tokens of a text, and the backward
    pass of ``gradient`` those of all heads and layers, at most 2 GiB. ``effective`` costs more behind a causal mask,
    where each row sees other values.

    Parameters
    ----------
    model, texts, targets, tokenizer, window, by_line
        See `attnscope.scan`. A `attnscope.mechanism.Study` or a `Given` brings its texts.
    limit
        Windows to read, by default 8.
    kinds
        Names from the table; by default all that the model allows.
    band
        Largest offset.
    progress
        Called with a `Progress` after each text.

    Returns
    -------
    xarray.Dataset
        Dimensions ``text, layer, head, offset, of``. ``profile_weights``, ``profile_norms``, ``profile_effective``,
        ``profile_gradient`` (text, layer, head, offset); ``null_share`` and ``null_share_permuted``, ``rank``,
        ``free_dimensions``, ``identifiable`` (text, layer, head), see `attnscope.faithfulness.arrays`;
        ``profile_block_norms``, ``profile_rollout``, ``profile_relevance`` (text, layer, offset); ``mixing_ratio``
        (text, layer, of), the part of other tokens by weights, by norms, with half of the residual, with the
        residual, and with the normalisation. In cross-attention all keys are other tokens, offsets count from the
        query's place to the key's in the other text, and the residual has its share at no offset. What is not
        defined for a layer is NaN, and the attribute ``skipped`` says why.

    Raises
    ------
    AttnscopeError
        If a kind is not known; or one that was asked for is not possible with this model or text, with the reason.

    References
    ----------
    Kobayashi et al. (2020, 2021); Brunner et al. (2020); Abnar and Zuidema (2020); Chefer et al. (2021): see
    `attnscope.faithfulness.arrays`.

    Examples
    --------
    >>> profiles = contribution_profiles("bundled", limit=1, kinds=["weights", "norms", "block_norms"], band=3)
    >>> profiles.profile_norms.dims, profiles.profile_block_norms.dims
    (('text', 'layer', 'head', 'offset'), ('text', 'layer', 'offset'))
    >>> profiles.profile_weights.sel(layer=0).mean("text").idxmax("offset").values.tolist()
    [-2.0, 1.0, 2.0, -1.0]
    >>> profiles.profile_norms.sel(layer=0).mean("text").idxmax("offset").values.tolist()
    [-2.0, 1.0, 2.0, -1.0]
    """
    check_whole(1, band=band)
    chosen, asked = chosen_kinds(kinds, KINDS), kinds is not None
    given = given_texts(
        model, texts, targets=targets, tokenizer=tokenizer, window=window, limit=limit, by_line=by_line
    )
    tell = progress or tell_nobody
    with borrowed(given.model):
        first = inputs_of(given.model, given.windows[0])
        blocks = find_blocks(given.model, {name: ids[:, :FOR_MATCHING] for name, ids in first.items()})
        run = ModelRun(given.model, blocks, chosen, band, asked=asked)
        run.refuse(lacks_predictions(given.model, first) if "gradient" in chosen else "", "gradient")
        profiles: list[xr.Dataset] = []
        for number, own_window in enumerate(given.windows):
            profiles.append(run.text(inputs_of(given.model, own_window), window_name(own_window, number)))
            tell(Progress("what weights miss", (number + 1) / len(given.windows)))
    whole = xr.concat(profiles, "text", data_vars="all", coords="minimal", compat="override", join="override")
    return whole.assign_coords(
        text=np.arange(len(profiles)), source=("text", np.array(given.documents, dtype=object))
    ).assign_attrs(model=given.name, skipped=run.skipped)
