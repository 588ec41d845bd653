"""Tables in 80 columns show every digit, and every token."""

import io
import re

import pytest
from rich.console import Console

from attnscope.report.render import print_report
from attnscope.report.schema import Finding, Quantity, Report, Table, with_ends

HEADINGS = ("from", "heads", "initialised", "shuffled", "beyond", "which heads", "highest", "uniform")
NUMBERS = [Quantity(heading, unit="share") for heading in HEADINGS]
ROLE = Quantity("title", "role")


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_a_table_with_many_numbers_is_not_cut_off(width):
    row = {"title": "first-token sink of a head"} | {heading: 0.123 + at / 10 for at, heading in enumerate(HEADINGS)}
    table = Table("roles", "", [ROLE, *NUMBERS], [row], terminal=1)
    out = io.StringIO()
    print_report(Report("", "texts", Finding((), ""), [table], None), Console(file=out, width=width))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert re.findall(r"\d\.\d+", out.getvalue()) == ["0.12", "0.22", "0.32", "0.42", "0.52", "0.62", "0.72", "0.82"]


@pytest.mark.parametrize("width", range(60, 100))
def test_two_columns_of_words_leave_the_numbers_whole(width):
    rows = [{"title": "previous token", "which": "16.0 11.1 1.2 2.1"}, {"title": "induction", "which": "18.6 17.3"}]
    rows = [row | {name: 0.25 for name in HEADINGS if name != "which heads"} for row in rows]
    quantities = [ROLE, *(Quantity("which", "which heads") if one.name == "which heads" else one for one in NUMBERS)]
    table, out = Table("roles", "", quantities, rows), io.StringIO()
    print_report(Report("", "texts", Finding((), ""), [table], None), Console(file=out, width=width))
    assert max(map(len, out.getvalue().splitlines())) <= width
    assert out.getvalue().count("0.25") == 2 * (len(HEADINGS) - 1)
    assert "uniform" in out.getvalue()


def test_a_token_that_is_a_line_break_is_visible():
    table = Table("find", "", [Quantity("most", unit="token")], [{"most": "\n"}], terminal=1)
    out = io.StringIO()
    print_report(Report("", "texts", Finding((), ""), [table], None), Console(file=out, width=80))
    assert "⏎" in out.getvalue()


def test_intervals_go_below_their_values_where_they_have_no_room_beside_them():
    names = "BLEU", "difference", "chrF", "error"
    measured = [Quantity(n, unit="score", low=f"{n}_low", high=f"{n}_high", interval=True) for n in names]
    row = {"system": "Transformer"} | {n + end: 61.5 for n in names for end in ("", "_low", "_high")}
    table = Table("systems", "", [Quantity("system"), *measured], [row])
    out = io.StringIO()
    print_report(Report("", "texts", Finding((), ""), [table], None), Console(file=out, width=64))
    found = out.getvalue()
    assert max(map(len, found.splitlines())) <= 64
    assert "Transformer" in found  # no word is divided
    assert "interval)" in found
    assert found.count("61.5") == 3 * len(names)


def test_intervals_stay_beside_their_values_where_headings_alone_are_too_wide():
    measured = [
        Quantity(n, unit="score", low=f"{n}_low", high=f"{n}_high", interval=n == "a")
        for n in ("a", "a heading of several long words", "another heading of long words")
    ]
    row = {one.name + end: 61.5 for one in measured for end in ("", "_low", "_high")}
    out = io.StringIO()
    print_report(
        Report("", "texts", Finding((), ""), [Table("t", "", measured, [row])], None), Console(file=out, width=60)
    )
    assert max(map(len, out.getvalue().splitlines())) <= 60
    assert re.search(r"61\.5 +61\.5 to 61\.5 +61\.5", out.getvalue())


@pytest.mark.parametrize("width", [60, 80, 110])
def test_an_interval_is_not_cut_where_its_column_is_narrow(width):
    """Each interval is printed as it is where there is room for all."""
    measured = [with_ends(f"long heading {at}", unit="percent", interval=True) for at in range(4)]
    row = {"system": "Transformer"} | {n: 0.454 for one in measured for n in one.columns}
    table = Table("systems", "", [Quantity("system"), *measured], [row])
    out = io.StringIO()
    print_report(Report("", "texts", Finding((), ""), [table], None), Console(file=out, width=width))
    assert max(map(len, out.getvalue().splitlines())) <= width
    assert len(re.findall(r"45\.4%", out.getvalue())) == 3 * len(measured)
