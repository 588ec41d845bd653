"""What a result says of how its model was captured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.capture._forward import draws
from attnscope.capture._heuristics import takes_points
from attnscope.capture._verify import pooling_heads
from attnscope.capture._watching import capture_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def capture_notes(model: PreTrainedModel) -> dict[str, str]:
    """Attributes of a result that say in which way its model was captured, and what of it was not; after `verify`.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    >>> capture_notes(BertModel(config))
    {'capture': 'registry'}
    """
    name = type(model).__name__
    notes: dict[str, str] = {"capture": capture_of(model)}
    if notes["capture"] != "registry":
        notes["way"] = (
            f"{name} does not attend through transformers' registry: its weights are those that its own eager "
            "attention returns, taken one layer at a time (slower)."
        )
    if heads := pooling_heads(model):
        notes["pooling"] = (
            f"The head that pools the last layer ({heads[0]}, {type(model.get_submodule(heads[0])).__name__}) attends "
            "once, from a learned probe in place of a token, and is not measured."
        )
    if draws(model):
        notes["random"] = (
            f"{name} draws random numbers in each pass (it masks or samples): here the same each time."
        )
    if points := [part for part in model.modules() if takes_points(part)]:
        notes["points"] = (
            f"Layers of deformable attention ({type(points[0]).__name__}), whose queries take a few points between the "
            "places of a picture, have no weights from token to token, and are not measured."
        )
    return notes
