"""`gradweave solve`: the exact best split of an instance in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from gradweave.cli.output import print_json, stderr_console, stdout_console

EPILOG = """[bold]Examples[/bold]

  gradweave solve instance.json
  gradweave solve instance.json --json | jq .plan

[bold]The file[/bold]

  {"ready_s": \\[0, 2, 5], "bytes": \\[2, 1, 1],
   "alpha_s": 3, "beta_s_per_byte": 1}

ready_s: when each gradient is ready, in seconds, in order of generation.
bytes: their sizes. An all-reduce takes alpha_s + beta_s_per_byte x bytes;
instead of these two, "table": \\[\\[bytes, seconds], ...] has measured points.
Optional: "max_segments", "max_bytes" (largest segment), "forced" (indices
that end a segment).
"""


def solve(
    file: Annotated[Path, typer.Argument(help="The instance, as JSON (see below).", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print the solution as JSON.")] = False,
) -> None:
    """Find the split of the gradients whose last all-reduce ends first, and prove it.

    Prints the plan (the last gradient index of each segment), when communication ends, how much of it is exposed, the lower
    bound for any split, and what common rules would do under the same cost.
    """
    from gradweave.tune.solve import solve_problem
    from gradweave.tune.solvefile import read_problem, solution_dict

    problem = read_problem(file)
    with stderr_console().status(f"solving {problem.count} gradients"):
        solution = solve_problem(problem)
        data = solution_dict(problem, solution)
    if as_json:
        print_json(data)
        return
    console = stdout_console()
    for note in solution.notes:
        console.print(f"note: {note}", soft_wrap=True)
    console.print(f"plan (last index of each of {len(solution.plan)} segments): {list(solution.plan)}", soft_wrap=True)
    table = Table("split", "ends at (s)", "exposed (s)", "over the bound", box=None, pad_edge=False)
    rows = {"this plan": solution.end_s, **data["baselines"], "bound for any split": solution.bound_s}
    for name, end in rows.items():
        over = f"{100 * (end / solution.bound_s - 1):.2f} %" if solution.bound_s > 0 else "-"
        table.add_row(name, f"{end:.6g}", f"{end - problem.ready_s[-1]:.6g}", over)
    for column in table.columns[1:]:
        column.justify = "right"
    console.print(table)
