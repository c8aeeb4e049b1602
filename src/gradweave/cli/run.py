"""`gradweave run`: a training script on several processes of this host, with torchrun underneath."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradweave.cli.launch import launch
from gradweave.cli.output import stderr_console
from gradweave.errors import StateError
from gradweave.trace.files import PATTERN

Script = Annotated[Path, typer.Argument(help="The training script.", show_default=False)]
Args = Annotated[list[str] | None, typer.Argument(help="Its arguments, passed on untouched.", show_default=False)]
Nproc = Annotated[
    int | None,
    typer.Option("--nproc", "-n", min=1, help="Number of processes (default: one per device, 2 on CPU).", show_default=False),
]
EPILOG = """[bold]Examples[/bold]

  gradweave run train.py
  gradweave run --nproc 4 train.py --lr 0.1 --epochs 3
  gradweave run --trace runs/first train.py
  gradweave report runs/first
"""


def run(
    script: Script,
    args: Args = None,
    nproc: Nproc = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="DIR", help="Write every rank's trace here.", show_default=False)
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the traces that DIR already holds.")] = False,
) -> None:
    """Run a training script on several processes of this host.

    The script sees torchrun's environment (RANK, WORLD_SIZE, ...). Options of this command stand before the script; all that
    follows the script belongs to the script. For several hosts, call torchrun on each with GRADWEAVE_TRACE_DIR set.
    """
    if not script.is_file():
        raise typer.BadParameter(f"there is no file {script}", param_hint="script")
    late = [arg for arg in args or [] if arg.split("=")[0] in ("--trace", "--nproc", "--overwrite")]
    if late:
        stderr_console().print(f"note: {late[0]} stands behind the script, so it goes to the script", soft_wrap=True)
    environment = {"GRADWEAVE_TRACE_DIR": str(_trace_folder(trace, overwrite))} if trace else {}
    code = launch([str(script), *(args or [])], nproc, environment)
    if trace and any(trace.glob(PATTERN)):
        stderr_console().print(f"traces written; look at them with: gradweave report {trace}", soft_wrap=True)
    elif trace and code == 0:
        stderr_console().print(f"no trace came into {trace}: the script wraps nothing with Gradweave", soft_wrap=True)
    raise typer.Exit(code)


def _trace_folder(folder: Path, overwrite: bool) -> Path:
    """Make the folder; traces of two runs in one folder would be read as one run."""
    old = sorted(folder.glob(PATTERN))
    if old and not overwrite:
        raise StateError(
            f"{folder} already holds {len(old)} traces",
            rule="a folder holds the traces of one run",
            fix="give another folder, or --overwrite",
        )
    for path in old:
        path.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()
