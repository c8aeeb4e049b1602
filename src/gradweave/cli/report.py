"""`gradweave report`: the traces of a run as a table, an HTML page, a Chrome/Perfetto file, TensorBoard scalars or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradweave.cli.output import print_json, stderr_console, stdout_console
from gradweave.model import Trace
from gradweave.trace.files import file_to_write, load_dir

EPILOG = """[bold]Examples[/bold]

  gradweave report runs/first -o report.html
  gradweave report runs/first --chrome trace.json.gz --tensorboard runs/tb
  gradweave report runs/first --json | jq '.wrappers[0].plans[0].exposed_pct'
"""


def report(
    trace_dir: Annotated[Path, typer.Argument(help="Folder with the traces of one run.", show_default=False)],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the HTML report here.", show_default=False)
    ] = None,
    chrome: Annotated[
        Path | None,
        typer.Option("--chrome", metavar="FILE", help="Write a file for chrome://tracing and Perfetto.", show_default=False),
    ] = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option(
            "--tensorboard",
            metavar="DIR",
            help="Write scalars for TensorBoard (needs the package tensorboard).",
            show_default=False,
        ),
    ] = None,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Iterations shown for each plan.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print the analysis as JSON instead of tables.")] = False,
) -> None:
    """Show where the time of each iteration went.

    Prints the iteration trace, the segments, the bound and the suggested change; writes the files that are asked for. Needs
    neither torch nor the machine that trained.
    """
    from gradweave.trace.reports import print_report, require_tensorboard, summary_dict

    if tensorboard is not None:
        require_tensorboard()
    for path in (output, chrome):
        if path is not None:
            file_to_write(path)
    with stderr_console().status(f"reading {trace_dir}"):
        traces = load_dir(trace_dir)
        written = _write(traces, output, chrome, tensorboard)
    if as_json:
        print_json(summary_dict(traces))
    else:
        print_report(traces, stdout_console(wide=True), rows=rows)
    for path in written:
        stderr_console().print(f"written: {path}", soft_wrap=True, markup=False)


def _write(traces: list[Trace], output: Path | None, chrome: Path | None, tensorboard: Path | None) -> list[Path]:
    """Write what was asked for and return the paths."""
    from gradweave.trace.reports import write_chrome, write_report, write_scalars

    written: list[Path] = []
    if output is not None:
        write_report(traces, output)
        written.append(output)
    if chrome is not None:
        write_chrome(traces, chrome)
        written.append(chrome)
    if tensorboard is not None:
        write_scalars(traces, tensorboard)
        written.append(tensorboard)
    return written
