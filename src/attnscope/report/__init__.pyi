from ._alignment_page import compared_heads, whose, write_alignment_report
from ._comparison_page import write_comparison_report
from ._difference_page import write_difference_report
from ._embed import numbers, picture, script_json
from ._explain_page import write_explain_report
from ._generation_page import write_generation_report
from ._intervention_page import write_intervention_report
from ._patch_page import write_patch_report
from ._roles_page import write_roles_report
from ._scan_content import flatten
from ._scan_page import write_report
from ._window import encode

__all__ = [
    "compared_heads",
    "encode",
    "flatten",
    "numbers",
    "picture",
    "script_json",
    "whose",
    "write_alignment_report",
    "write_comparison_report",
    "write_difference_report",
    "write_explain_report",
    "write_generation_report",
    "write_intervention_report",
    "write_patch_report",
    "write_report",
    "write_roles_report",
]
