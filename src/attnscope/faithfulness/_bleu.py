"""What a translator loses without a head, in BLEU: heads are out while it translates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope._arguments import typed
from attnscope.attention import output_of
from attnscope.capture import borrowed, watching
from attnscope.errors import AttnscopeError
from attnscope.progress import Progress, Tell, tell_nobody
from attnscope.translation import translate_lines
from attnscope.translation.evaluation import score

if TYPE_CHECKING:
    from attnscope.attention import AttentionCall
    from attnscope.capture import Site
    from attnscope.faithfulness._inquiry import Inquiry

WHOLE = "all heads"


@typed
def bleu_without_heads(
    inquiry: Inquiry,
    texts: Sequence[str],
    targets: Sequence[str],
    *,
    heads: Sequence[tuple[int, int]] | None = None,
    ablation: str = "mean",
    beams: int = 1,
    progress: Tell | None = None,
) -> xr.Dataset:
    """Translate once with all heads and once without each of some, and score every translation.

    Parameters
    ----------
    inquiry
        An encoder-decoder and its sentences, checked: the means of the heads are taken over them.
    texts, targets
        Sentences to translate, and their right translations.
    heads
        Pairs (layer, head); by default all of cross-attention.
    ablation
        ``zero`` or ``mean``. What a head gives on another text has no place in a translation that is not known yet.
    beams
        Translations that are followed at a time.
    progress
        Called with a `Progress` after each head; it tells of ``heads`` done.

    Returns
    -------
    xarray.Dataset
        From `attnscope.score`, a system for each head, called ``"layer.head"``, held against ``"all heads"``: BLEU,
        chrF, their intervals, and the p-values of paired bootstraps, which take each head alone.

    Raises
    ------
    AttnscopeError
        If the model is not an encoder-decoder, a head does not exist, or the ablation is another.

    Examples
    --------
    >>> from attnscope.capture import load_model
    >>> from attnscope.corpus import texts_of
    >>> from attnscope.faithfulness import inquiry
    >>> asked = inquiry(load_model("bundled", device="cpu"), texts_of(["The tide is out."]), window=16, limit=1)
    >>> bleu_without_heads(asked, ["The tide is out."], ["Es ist Ebbe."])
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: small-mlm does not translate: BLEU is of encoder-decoders with targets
    """
    if inquiry.kind != "translation":
        raise AttnscopeError(
            f"{inquiry.loaded.name} does not translate: BLEU is of encoder-decoders with targets"
        )
    if ablation not in {"zero", "mean"}:
        raise AttnscopeError(
            f"the ablation is {ablation!r}; expected zero or mean while a translation is made"
        )
    sites, counts = inquiry.sites, inquiry.heads
    crossing = [place for place, site in enumerate(sites) if site.kind == "cross"]
    chosen = (
        [(layer, head) for layer in crossing for head in range(counts[layer])]
        if heads is None
        else list(heads)
    )
    for layer, head in chosen:
        if not (0 <= layer < len(counts) and 0 <= head < counts[layer]):
            raise AttnscopeError(
                f"there is no head {layer}.{head}: layers are 0 to {len(counts) - 1}, heads 0 to {max(counts) - 1}"
            )
    names = [site.name for site in sites]
    if len(set(names)) < len(names):
        raise AttnscopeError(
            f"{inquiry.loaded.name} shares a layer's weights with others, so that while it translates its calls "
            "cannot be told apart: measure the loss instead (intervene)"
        )
    means = inquiry.means if ablation == "mean" else None
    tell = progress or tell_nobody
    systems = {WHOLE: _translated(inquiry, texts, beams, None, None)}
    for done, (layer, head) in enumerate(chosen, start=1):
        stands_in = torch.zeros(1, dtype=torch.float32) if means is None else means.of(layer)[head]
        systems[f"{layer}.{head}"] = _translated(inquiry, texts, beams, (names[layer], head), stands_in)
        tell(Progress("translations without a head", done / len(chosen), {"heads": done}))
    scores = score(systems, list(targets))
    layers, columns = np.array([(-1, -1), *chosen]).T
    return scores.assign_coords(layer=("system", layers), head=("system", columns)).assign_attrs(
        ablation=ablation
    )


def _translated(
    inquiry: Inquiry, texts: Sequence[str], beams: int, out: tuple[str, int] | None, stands_in: Tensor | None
) -> list[str]:
    def observe(site: Site, call: AttentionCall) -> Tensor:
        output = output_of(call)
        if out is not None and stands_in is not None and site.name == out[0]:
            output = output.clone()
            output[:, out[1]] = stands_in.to(output)
        return output

    with borrowed(inquiry.model), watching(inquiry.model, observe), torch.no_grad():
        return translate_lines(inquiry.model, inquiry.loaded.tokenizer, texts, beams=beams).texts
