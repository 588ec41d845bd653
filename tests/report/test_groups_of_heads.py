"""What a page says of heads that the finding does not count."""

from attnscope.results.page.heads import of_report
from attnscope.results.schema import Finding, Quantity, Report, Table


def test_an_untested_head_is_not_called_insignificant():
    quantities = (
        Quantity("layer", unit="count"),
        Quantity("head", unit="head"),
        Quantity("effect", unit="nats", significant="shown"),
    )
    rows = [{"layer": 0, "head": head, "effect": 0.1, "shown": shown} for head, shown in enumerate((True, False, None))]
    finding = Finding(["One."], "5%", {"rises": [(0, 0)]})
    labels = of_report(Report("", "", finding, [Table("heads", "", quantities, rows)], None))["labels"]
    assert labels["names"] == ["rises", "not significant"]
    assert labels["shares"] == [[1, 0], [0, 1], [None, None]]
