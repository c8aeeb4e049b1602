"""`gradweave demo`: the main job on any machine, in about a minute."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from gradweave.cli.launch import launch
from gradweave.cli.output import print_json, require_torch, stderr_console, stdout_console
from gradweave.errors import StateError
from gradweave.trace.files import PATTERN, load_dir
from gradweave.trace.summary import summarise

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


def _compare(folder: Path) -> None:
    """One line a split: what the tables above come to."""
    console = stdout_console()
    for wrapper in summarise(load_dir(folder / "traces")):
        plan = max(wrapper.plans, key=lambda plan: len(plan.steps))
        console.print(
            f"{wrapper.label:28} step {1e3 * plan.iteration_s.median:7.1f} ms, exposed {1e3 * plan.exposed_s.median:6.2f} ms "
            f"({plan.exposed_pct:.1f} %), {len(plan.segments)} segments, {len(plan.steps)} steps",
            soft_wrap=True,
        )
    console.print("(noise of the machine included: compare medians and quartiles in the report)", soft_wrap=True)


def _write_report(folder: Path) -> Path:
    from gradweave.trace.reports import write_report

    path = folder / "report.html"
    write_report(load_dir(folder / "traces"), path)
    return path.resolve()
