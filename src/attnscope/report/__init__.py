"""Offline HTML pages that show a stored result: where all heads look (`scan`), and why (`explain`)."""

from attnscope.report.explain_page import write_explain_report
from attnscope.report.page import write_report

__all__ = ["write_explain_report", "write_report"]
