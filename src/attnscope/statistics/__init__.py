"""Where every head looks: statistics per text and head, kinds of heads, independence of the text."""

from typing import TYPE_CHECKING

from attnscope._on_demand import on_demand
from attnscope.statistics._ranking import peaks, rank_heads

if TYPE_CHECKING:
    from attnscope.statistics._catalogue import DEFAULT, STATISTICS, Statistic, choose, reduce_call
    from attnscope.statistics._forms import Form, compare_call, compare_forms, usual_forms
    from attnscope.statistics._independence import (
        Estimate,
        between_head_share,
        effective_labels,
        independence,
        intraclass_correlation,
        label_information,
        label_shares,
        sign_agreement,
    )
    from attnscope.statistics._labels import Clustering, cluster_profiles, direction, name_profile
    from attnscope.statistics._scan import Progress, scan, window_length
    from attnscope.statistics._summary import summarize

__all__ = [
    "DEFAULT",
    "STATISTICS",
    "Clustering",
    "Estimate",
    "Form",
    "Progress",
    "Statistic",
    "between_head_share",
    "choose",
    "cluster_profiles",
    "compare_call",
    "compare_forms",
    "direction",
    "effective_labels",
    "independence",
    "intraclass_correlation",
    "label_information",
    "label_shares",
    "name_profile",
    "peaks",
    "rank_heads",
    "reduce_call",
    "scan",
    "sign_agreement",
    "summarize",
    "usual_forms",
    "window_length",
]

__getattr__ = on_demand(
    __name__,
    _catalogue="DEFAULT STATISTICS Statistic choose reduce_call",
    _forms="Form compare_call compare_forms usual_forms",
    _independence="Estimate between_head_share effective_labels independence intraclass_correlation "
    "label_information label_shares sign_agreement",
    _labels="Clustering cluster_profiles direction name_profile",
    _scan="Progress scan window_length",
    _summary="summarize",
)
