"""`attnscope lesson`: it lists the lessons, or writes them."""

from typing import Any

from attnscope.cli.output import new_console, print_written
from attnscope.report.language import translate


def lesson(arguments: dict[str, Any]) -> None:
    """Run the command."""
    import attnscope_lineage
    from attnscope_lineage.lessons import LESSONS

    if "name" not in arguments:
        from rich.table import Table

        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")  # Japanese has no spaces
        for name, one in LESSONS.items():
            table.add_row(name, f"{translate(one.title)}\n{translate(one.about)}")
        console = new_console()
        console.print(table)
        console.print(translate("To write one as a page: attnscope lesson NAME"), highlight=False)
        return
    for path in attnscope_lineage.lesson(**arguments):
        print_written(path)
