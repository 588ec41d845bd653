"""Offline HTML pages of a stored result: where all heads look (`scan`), why (`explain`), what aligns (`align`),
which system translates best (`compare`).
"""

from attnscope.report.alignment_page import write_alignment_report
from attnscope.report.comparison_page import write_comparison_report
from attnscope.report.explain_page import write_explain_report
from attnscope.report.page import write_report

__all__ = ["write_alignment_report", "write_comparison_report", "write_explain_report", "write_report"]
