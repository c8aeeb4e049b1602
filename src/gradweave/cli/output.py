"""What every command prints with.

Data goes to stdout, everything else to stderr, so that `gradweave ... --json | jq` works whatever happens meanwhile.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from typing import Any

from rich.console import Console
from rich.markup import escape

from gradweave.errors import GradweaveError, MissingDependencyError

FILE_COLUMNS = 120
WIDE_COLUMNS = 100


def version() -> str:
    """The installed version of Gradweave."""
    try:
        return importlib.metadata.version("gradweave")
    except importlib.metadata.PackageNotFoundError:
        return "0.1.0 (not installed)"


def stderr_console() -> Console:
    """A console on stderr: progress, hints, errors."""
    return Console(stderr=True, highlight=False)


def stdout_console(wide: bool = False) -> Console:
    """A console on stdout: data for people. Tables that go into a file or a pipe are not cut to a terminal's width.

    Args:
        wide: what is printed needs 100 columns: in a narrower terminal lines wrap, since a cut figure cannot be read.
    """
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = FILE_COLUMNS
    elif wide and console.width < WIDE_COLUMNS:
        console.width = WIDE_COLUMNS
    return console


def print_json(data: Any) -> None:
    """Print one JSON document on stdout and nothing else."""
    json.dump(data, sys.stdout, indent=2, ensure_ascii=False, allow_nan=False)
    sys.stdout.write("\n")


def print_error(error: BaseException) -> None:
    """Print an error as one message: what is wrong, the rule, the fix."""
    console = stderr_console()
    if isinstance(error, OSError) and error.filename:
        console.print(
            f"[bold red]error:[/] {escape(str(error.filename))}: {escape(error.strerror or str(error))}", soft_wrap=True
        )
        console.print("  rule: files and folders named on the command line can be read or written", soft_wrap=True)
        console.print("  fix:  name another path, or change its permissions", soft_wrap=True)
        return
    if not isinstance(error, GradweaveError):
        console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        return
    console.print(f"[bold red]error:[/] {escape(error.what)}", soft_wrap=True)
    if error.rule:
        console.print(f"  rule: {escape(error.rule)}", soft_wrap=True)
    if error.fix:
        console.print(f"  fix:  {escape(error.fix)}", soft_wrap=True)


def require_torch(what: str) -> None:
    """Make sure that torch can be imported.

    Raises:
        MissingDependencyError: it cannot.
    """
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"{what} needs PyTorch, which cannot be imported here ({error})",
            rule="training commands run torch; `gradweave report` does not need it",
            fix="pip install 'torch==2.13.0'",
        ) from error
