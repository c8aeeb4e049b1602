"""The command line itself: the list of commands and what holds for all of them.

Exit codes: 0 success, 1 failure, 2 wrong usage. Data goes to stdout (with `--json` nothing else does), progress and errors to
stderr. An error that a user can cause is one message; `--debug` shows where it came from.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from gradweave.cli import demo, doctor, report, run, solve, tune
from gradweave.cli.output import print_error, version
from gradweave.errors import GradweaveError

EPILOG = """[bold]Examples[/bold]

  gradweave demo
  gradweave run --nproc 4 --trace runs/first train.py --lr 0.1
  gradweave report runs/first -o report.html
  gradweave tune train.py
  gradweave solve instance.json
  gradweave doctor
"""


def _without_types_of_flags(params: list[Any]) -> list[Any]:
    """Help shows a flag's type (`--json <bool>`) as if it took a value: an empty metavar leaves it out."""
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
    return params


class PlainCommand(TyperCommand):
    """A command whose help shows flags without a value."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Parameters as help shows them."""
        return _without_types_of_flags(super().get_params(ctx))


class Commands(TyperGroup):
    """The group of commands, which turns errors that users cause into one message and exit code 1."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Parameters as help shows them."""
        return _without_types_of_flags(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader of our output has gone (`... | head`): no message, and nothing left to flush at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except (GradweaveError, OSError) as error:
            if ctx.params.get("debug"):
                raise
            print_error(error)
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=Commands,
    name="gradweave",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"gradweave {version()}")
        raise typer.Exit()


@app.callback()
def common(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Make the communication of distributed training visible, optimal and boring."""


def _add(name: str, command: Callable[..., None], epilog: str, **settings: Any) -> None:
    """Add a command; its docstring is the help, each paragraph as one line that wraps to the terminal's width."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    app.command(name=name, cls=PlainCommand, help=text, epilog=epilog, context_settings=settings)(command)


_add("demo", demo.demo, demo.EPILOG)
_add("run", run.run, run.EPILOG, allow_interspersed_args=False)
_add("report", report.report, report.EPILOG)
_add("tune", tune.tune, tune.EPILOG, allow_interspersed_args=False)
_add("solve", solve.solve, solve.EPILOG)
_add("doctor", doctor.doctor, doctor.EPILOG)


def main() -> None:
    """Run the command line; ends with SystemExit."""
    app(prog_name="gradweave")
