"""One offline HTML page that shows a stored result: all heads at a glance, and each head in detail."""

from attnscope.report.page import write_report

__all__ = ["write_report"]
