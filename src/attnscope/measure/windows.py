"""How long windows are, and whether a model is made for that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.capture.families import configured_length
from attnscope.capture.verify import position_table_length
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.capture.loaded import LoadedModel

LONGEST_DEFAULT = 2048  # tokens: a longer window must be asked for


def beyond_note(loaded: LoadedModel, length: int, what: str = "Windows") -> dict[str, str]:
    """What a reader has to know of windows that are longer than the config says; rotary angles take any length."""
    known = configured_length(loaded.model.config.get_text_config())
    if not known or known < 1 or length <= known:
        return {}
    return {
        "beyond": f"{what} may have {length} tokens; the model's config names {known} (max_position_embeddings). "
        "Beyond them its heads need not do what they do within."
    }


def window_length(loaded: LoadedModel, window: int | None) -> int:
    """The window asked for, if the model can take it; else what the model takes."""
    table = position_table_length(loaded.model)
    if window is not None:
        if table is not None and window > table:
            raise AttnscopeError(
                f"a window of {window} tokens does not fit {loaded.name}: its position table has {table} rows. "
                f"Give --window {table} or less"
            )
        return window
    config = loaded.model.config.get_text_config()
    known = [table, getattr(loaded.tokenizer, "model_max_length", None), configured_length(config)]
    return min([*(int(limit) for limit in known if limit and limit > 0), LONGEST_DEFAULT])  # XLNet says -1
