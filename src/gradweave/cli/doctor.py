"""`gradweave doctor`: what this machine has, how fast its loopback is, what is missing and how to get it."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from gradweave.cli.checks import Check, all_checks
from gradweave.cli.output import print_json, stderr_console, stdout_console

EPILOG = """[bold]Examples[/bold]

  gradweave doctor
  gradweave doctor --quick
  gradweave doctor --json | jq '.checks[] | select(.state != "ok")'
"""
_MARKS = {
    "ok": "[green]ok[/]",
    "missing": "[yellow]missing[/]",
    "failed": "[bold red]failed[/]",
    "unneeded": "[dim]not needed here[/]",
}


def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the loopback measurement.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show versions, backends, loopback speed, and what is missing.

    Ends with exit code 1 when something that should work here fails; what is missing is listed with the way to get it.
    """
    checks: list[Check] = []
    console = stderr_console()
    if not console.is_terminal:  # a terminal shows the spinner
        console.print(f"looking at this machine{'' if quick else '; measuring takes about ten seconds'}", soft_wrap=True)
    with console.status("looking at this machine") as status:
        for check in all_checks(loopback=not quick):
            checks.append(check)
            status.update(f"checked {check.name}; measuring takes a few seconds")
    failed = any(check.state == "failed" for check in checks)
    if as_json:
        print_json({"ok": not failed, "checks": [check.as_dict() for check in checks]})
    else:
        _print_table(checks)
    raise typer.Exit(1 if failed else 0)


def _print_table(checks: list[Check]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for column in ("name", "state", "detail"):
        table.add_column(column, overflow="fold")
    area = None
    for check in sorted(checks, key=lambda c: [c.area for c in checks].index(c.area)):
        if check.area != area:
            area = check.area
            table.add_row(f"[bold]{escape(area)}[/]", "", "")
        detail = escape(check.detail) + (f"\n[dim]{escape(check.fix)}[/]" if check.fix else "")
        table.add_row(f"  {escape(check.name)}", _MARKS[check.state], detail)
    stdout_console().print(table)
