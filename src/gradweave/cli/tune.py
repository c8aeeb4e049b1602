"""`gradweave tune`: find the split of an unmodified training script, and keep it in a plan file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gradweave.cli.launch import launch
from gradweave.cli.output import print_json, stderr_console, stdout_console
from gradweave.cli.run import Args, Nproc, Script
from gradweave.errors import StateError
from gradweave.split import load_plan

EPILOG = """[bold]Examples[/bold]

  gradweave tune train.py
  gradweave tune --nproc 4 -o plan.json --stop train.py --lr 0.1
  gradweave tune --json train.py 2>/dev/null | jq .segments

Then train with it: gw.DistributedOptimizer(..., strategy="plan.json"). For several hosts, call torchrun on each with
GRADWEAVE_TUNE=plan.json set.
"""


def tune(
    script: Script,
    args: Args = None,
    nproc: Nproc = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The plan file to write.")] = Path("plan.json"),
    stop: Annotated[bool, typer.Option("--stop", help="End the script when the plan is settled.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Tune from the start even if FILE holds a plan already.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON at the end.")] = False,
) -> None:
    """Run a training script, find the split of its gradients that hides most communication, and write it to a plan file.

    The script is not changed: wrappers that name no strategy of their own are tuned while it trains. Each decision is one line
    on stderr. The plan that the script begins with is kept unless another one is measured to be faster.
    """
    if not script.is_file():
        raise typer.BadParameter(f"there is no file {script}", param_hint="script")
    target = output.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    if fresh:
        target.unlink(missing_ok=True)
    before = target.stat().st_mtime_ns if target.exists() else None
    environment = {"GRADWEAVE_TUNE": str(target), "GRADWEAVE_TUNE_STOP": "1" if stop else "0"}
    code = launch([str(script), *(args or [])], nproc, environment)
    if code != 0:
        raise typer.Exit(code)
    if not target.exists():
        raise StateError(
            f"{script} ended without a plan",
            rule="a plan needs some 40 steps of a wrapper that names no strategy of its own",
            fix="let the script train longer; wrap its optimizer or model with Gradweave, and leave strategy= out",
        )
    _show(target, kept=before == target.stat().st_mtime_ns, as_json=as_json)


def _show(target: Path, kept: bool, as_json: bool) -> None:
    plan = load_plan(target)
    if as_json:
        data: dict[str, Any] = plan.to_dict()
        print_json(data)
        return
    console = stdout_console()
    count = len(plan.segments)
    word = "kept" if kept else "written"
    console.print(f"{word}: {target} ({count} segment{'s' * (count != 1)})", soft_wrap=True, markup=False)
    for index, names in enumerate(plan.segments):
        first, last = names[0], names[-1]
        console.print(f"  segment {index}: {len(names)} gradients, {first} .. {last}", soft_wrap=True, markup=False)
    stderr_console().print(f'train with it: strategy="{target.name}"', soft_wrap=True, markup=False)
