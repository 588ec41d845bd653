"""Heads as other tools read them: for alignment by Whisper and translators, for contacts by ESM."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.report.reads import reads
from attnscope.support.checks import check_whole
from attnscope.support.errors import AttnscopeError
from attnscope_relations.contact_regression import contact_head

if TYPE_CHECKING:
    import xarray as xr

_CPP = """\
// Alignment heads of {model}: layer of the decoder and head.
// The presets of whisper.cpp's --dtw are compiled in, so that another list goes into the parameters of the context:
//   params.flash_attn = false;
//   params.dtw_token_timestamps = true;
//   params.dtw_aheads_preset = WHISPER_AHEADS_CUSTOM;
//   params.dtw_aheads = {{ {count}, g_aheads_custom }};
static const whisper_ahead g_aheads_custom[] = {{ {heads} }};
"""


_TIMED = (
    "They were chosen on all sounds of the run, so their own error on other sounds is unknown. The report has the "
    "error of sets that were chosen on one half and scored on the other."
)
_ORDERED = "They have the largest correlations with the order of the tokens. Nothing was compared with times of words."
_README = """\
# Alignment heads of {model}

{certain}

* `{config}`: for transformers, in place of the file in the model's folder.
* `faster_whisper.json`: copy `alignment_heads` into the `config.json` of the converted model.
* `whisper_cpp.h`: for whisper.cpp, with `WHISPER_AHEADS_CUSTOM`.
* `whisper_timestamped.txt`: for openai-whisper and whisper-timestamped:

```python
from pathlib import Path
import whisper
model = whisper.load_model("NAME")
model.set_alignment_heads(Path("whisper_timestamped.txt").read_bytes())
```
"""


@reads("relations")
def files(
    result: xr.Dataset,
    to: str,
    top: int | None = None,
    variables: Sequence[str] | None = None,  # noqa: ARG001 of a card
) -> Mapping[str, str | bytes]:
    """Names and contents of the files of a format; see `attnscope.results.export.export`."""
    if to == "contacts":
        if top is not None:
            raise AttnscopeError(f"top (--top) is {top}, but --to contacts has the weights of all heads: leave it out")
        return {"contact_head.safetensors": contact_head(result)}
    if result.attrs.get("reads") == "sounds":
        return _of_sounds(result, top)
    if "error_rate" in result:
        return _of_translations(result, top)
    raise AttnscopeError(
        "alignment heads are of sounds with transcripts, or of translations with links (--target, --gold); this run "
        "has neither. Use --to parquet or csv"
    )


def _of_sounds(result: xr.Dataset, top: int | None) -> dict[str, str]:
    """The set that is chosen on all sounds, or its first heads."""
    order = result.set_order.transpose("layer", "head").values
    size = int(result.chosen.sum())
    check_whole(1, size, top=1 if top is None else top)
    heads = [[int(part) for part in np.argwhere(order == number)[0]] for number in range(top or size)]
    heads.sort()
    mask = np.zeros(order.shape, bool)
    mask[tuple(np.array(heads).T)] = True
    written = ", ".join(f"{{ {layer}, {head} }}" for layer, head in heads)
    whole = json.loads(result.attrs.get("generation_config", "{}"))
    # complete, so that it may take the place of the model's; of a model without one, another name
    name = "generation_config.json" if whole else "alignment_heads.json"
    certain = _TIMED if "error" in result else _ORDERED
    return {
        "README.md": _README.format(model=result.attrs["model"], config=name, certain=certain),
        name: json.dumps(whole | {"alignment_heads": heads}, indent=2),
        "whisper_cpp.h": _CPP.format(model=result.attrs["model"], count=len(heads), heads=written),
        "faster_whisper.json": json.dumps({"alignment_heads": heads}),
        "whisper_timestamped.txt": base64.b85encode(gzip.compress(mask.tobytes(), mtime=0)).decode(),
    }


def _of_translations(result: xr.Dataset, top: int | None) -> dict[str, str]:
    """The head with the smallest error rate; Marian and CTranslate2 read the first head of a layer."""
    check_whole(1, 1, top=1 if top is None else top)
    rates = result.error_rate.transpose("layer", "head")
    at, head = (int(part) for part in np.unravel_index(np.nanargmin(rates.values), rates.shape))
    heads = int(rates[at].notnull().sum())
    layer = at if result.attrs.get("links") == "cross" else int(result.layer[at])
    described: dict[str, Any] = {
        "model": result.attrs["model"],
        "layer": layer,
        "head": head,
        "error_rate": float(rates[at, head]),
    }
    if result.attrs.get("links") == "cross":
        described |= {
            "marian": {"transformer-guided-alignment-layer": layer + 1},
            "ctranslate2": {"alignment_layer": layer, "alignment_heads": 1},
            # both read the first head: reorder the rows of q, k, v and the columns of the output projection so
            "order_of_heads": [head, *(other for other in range(heads) if other != head)],
        }
    return {"alignment_head.json": json.dumps(described)}
