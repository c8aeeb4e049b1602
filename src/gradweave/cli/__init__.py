"""The command `gradweave`: one module per command, each of which parses, calls and prints. Imports without torch."""

from gradweave.cli.app import main

__all__ = ["main"]
