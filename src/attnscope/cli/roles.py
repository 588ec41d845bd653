"""`attnscope roles`: it lists the roles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.cli.output import new_console, run

if TYPE_CHECKING:
    from attnscope.cli.options import Output


def roles(arguments: dict[str, Any], output: Output) -> None:
    """Run the command."""
    if arguments.get("only") != ["list"]:
        run("roles", output, **arguments)
        return
    from attnscope.detection.role import ROLES
    from attnscope.report.registry import load_records

    load_records()
    console = new_console()
    for role in ROLES.values():
        console.print(f"{role.name}: {role.definition}")
        console.print(f"  {role.source}", style="dim")
