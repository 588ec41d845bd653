"""What analyses need of a model, each with the reason that is told where a model lacks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.mechanism._analysis import Requirement
from attnscope.mechanism.evidence import position_scheme

if TYPE_CHECKING:
    from attnscope.mechanism._study import Study

_FORMS = {
    "rope": "queries and keys turn with their positions, so that no one matrix gives the scores: see scheme_kernel"
}


def _no_table(study: Study) -> str:
    if study.tables:
        return ""
    return f"{type(study.model).__name__}: {position_scheme(study.model)}"


def _not_bilinear(study: Study) -> str:
    if study.evidence.bilinear:
        return ""
    first = study.evidence.layers[0].projections
    return first.reason or _FORMS.get(first.form, f"scores of the form {first.form!r} are not bilinear in X")


def _no_rotation(study: Study) -> str:
    rotates = any(layer.projections.rotation is not None for layer in study.evidence.layers)
    return "" if rotates else "queries and keys are not turned by positions"


def _no_bias(study: Study) -> str:
    return "" if any(layer.has_bias for layer in study.evidence.layers) else "no bias is added to the scores"


def _not_relative(study: Study) -> str:
    if not (_no_rotation(study) and _no_bias(study)):
        return ""
    return "queries and keys are not turned by positions, and no bias is added"


POSITION_TABLE = Requirement("a table of absolute positions", _no_table)
BILINEAR_SCORES = Requirement("scores that are bilinear in X", _not_bilinear)
ROTATION = Requirement("queries and keys that turn with their positions", _no_rotation)
BIAS = Requirement("a bias by distance", _no_bias)
ROTATION_OR_BIAS = Requirement("a position scheme within the scores", _not_relative)
