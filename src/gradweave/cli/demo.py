"""`gradweave demo`: the main job on any machine, in about a minute."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from gradweave.cli.launch import launch
from gradweave.cli.output import print_json, require_torch, stderr_console, stdout_console
from gradweave.errors import StateError
from gradweave.trace.files import PATTERN, load_dir
from gradweave.trace.stats import Spread
from gradweave.trace.summary import PlanSummary, WrapperSummary, summarise

EPILOG = """[bold]Examples[/bold]

  gradweave demo
  gradweave demo --nproc 4 --seconds 120
  gradweave demo --out runs/mine --json
"""


def demo(
    nproc: Annotated[int, typer.Option("--nproc", "-n", min=1, help="Number of processes.")] = 2,
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="About how long to train.")] = 60,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder for the report (default: runs/demo-<time>).", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that DIR already holds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a small GPT on several processes and report where the time went.

    The text is the source code of Python's standard library. Three phases split the gradients by default, by size and by index;
    each shows its iterations; an HTML report compares them.
    """
    require_torch("the demo")
    folder = out if out is not None else Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    clear_folder(folder, overwrite or out is None)
    stderr_console().print(f"starting {nproc} processes; about {seconds:.0f} s of training, Ctrl-C ends it", soft_wrap=True)
    arguments = ["-m", "gradweave.demo.train", "--out", str(folder), "--seconds", str(seconds)]
    code = launch(arguments, nproc, {})
    if code:
        raise typer.Exit(code)
    report = _write_report(folder)
    result = {
        **json.loads((folder / "result.json").read_text()),
        "report": str(report),
        "traces": str((folder / "traces").resolve()),
    }
    if as_json:
        print_json(result)
    else:
        _compare(folder)
        loss = result["validation_loss"]
        stdout_console().print(f"validation loss {loss['start']:.3f} -> {loss['end']:.3f}; report: {report}", soft_wrap=True)


def clear_folder(folder: Path, overwrite: bool) -> None:
    """Remove what an earlier demo left in the folder, if that is allowed.

    Raises:
        StateError: the folder holds an earlier run, and `overwrite` is False.
    """
    old = [
        *(folder / "traces").glob(PATTERN),
        *(path for name in ("result.json", "report.html") if (path := folder / name).exists()),
    ]
    if old and not overwrite:
        raise StateError(
            f"{folder} already holds an earlier run ({old[0].relative_to(folder)})",
            rule="a folder holds one run",
            fix="give another folder, or --overwrite",
        )
    for path in old:
        path.unlink()


_NOTE = "(medians, quartiles in brackets; the exposed time tells splits apart, the step time also holds the machine's drift)"


def _compare(folder: Path) -> None:
    """One row a split: what the tables above come to, and which differences are more than noise."""
    console, wrappers = stdout_console(wide=True), summarise(load_dir(folder / "traces"))
    console.print(comparison_table(wrappers))
    for line in (_NOTE, *differences(wrappers)):
        console.print(line, soft_wrap=True, markup=False)


def comparison_table(wrappers: Sequence[WrapperSummary]) -> Table:
    """Medians of each phase's longest plan; forward and backward beside the step, since drift of computing shows there."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("split", overflow="fold")
    for name in ("step", "forward\n+ backward", "exposed", "share", "segments", "steps"):
        table.add_column(name, justify="right", no_wrap=True)
    for wrapper in wrappers:
        plan = _longest(wrapper)
        exposed = plan.exposed_s
        table.add_row(
            escape(wrapper.label),
            f"{1e3 * plan.iteration_s.median:.1f} ms",
            f"{1e3 * plan.fp_to_bp_s.median:.1f} ms",
            escape(f"{1e3 * exposed.median:.2f} ms [{1e3 * exposed.q1:.2f}, {1e3 * exposed.q3:.2f}]"),
            f"{plan.exposed_pct:.1f} %",
            str(len(plan.segments)),
            str(len(plan.steps)),
        )
    return table


def differences(wrappers: Sequence[WrapperSummary]) -> list[str]:
    """Compare the exposed time of each phase with the first one's; where the quartiles overlap, no difference is claimed."""
    lines = []
    for wrapper in wrappers[1:]:
        first, other = _longest(wrappers[0]), _longest(wrapper)
        exposed = _change(first.exposed_s, other.exposed_s)
        line = f"{wrapper.label} against {wrappers[0].label}: "
        line += f"{exposed} exposed" if exposed else "no difference beyond noise (the quartiles of the exposed time overlap)"
        computing = _change(first.fp_to_bp_s, other.fp_to_bp_s)
        if computing:
            line += f"; forward and backward took {computing} (the machine's drift, or cores shared with communication)"
        lines.append(line)
    return lines


def _change(first: Spread, other: Spread) -> str | None:
    """The difference of the medians in words; None where the quartiles overlap."""
    if other.q1 <= first.q3 and first.q1 <= other.q3:
        return None
    change_ms = 1e3 * (other.median - first.median)
    return f"{abs(change_ms):.2f} ms {'more' if change_ms > 0 else 'less'}"


def _longest(wrapper: WrapperSummary) -> PlanSummary:
    return max(wrapper.plans, key=lambda plan: len(plan.steps))


def _write_report(folder: Path) -> Path:
    from gradweave.trace.reports import write_report

    path = folder / "report.html"
    write_report(load_dir(folder / "traces"), path)
    return path.resolve()
