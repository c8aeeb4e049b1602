"""What the demo shows while it trains: a bar per phase with loss and tokens per second, then the iteration table.

Everything goes to stderr, from rank 0 only. Where stderr is no terminal, a line every few seconds takes the bar's place.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence

from rich import progress as bars
from rich.console import Console
from rich.markup import escape

from gradweave.model import Trace
from gradweave.trace.reports import print_report

FILE_COLUMNS = 120
LINE_EVERY_S = 5.0
TABLE_ITERATIONS = 5


class Progress:
    """Progress of the demo on stderr.

    Args:
        enabled: False (every rank but 0) shows nothing.
    """

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self.console = Console(stderr=True, highlight=False)
        if not self.console.is_terminal and "COLUMNS" not in os.environ:
            self.console.width = FILE_COLUMNS

    def say(self, text: str) -> None:
        """Print one line."""
        if self.enabled:
            self.console.print(escape(text), soft_wrap=True)

    @contextlib.contextmanager
    def phase(self, name: str, steps: int) -> Iterator[Callable[[float, float], None]]:
        """Show a phase of `steps` steps; yields `advance(loss, tokens_per_s)`, called after each."""
        if not self.enabled:
            yield lambda loss, tokens_per_s: None
        elif self.console.is_terminal:
            with self._bar(name, steps) as advance:
                yield advance
        else:
            yield self._lines(name, steps)

    @contextlib.contextmanager
    def _bar(self, name: str, steps: int) -> Iterator[Callable[[float, float], None]]:
        columns = (
            bars.TextColumn("{task.description}"),
            bars.BarColumn(bar_width=18),
            bars.MofNCompleteColumn(),
            bars.TextColumn("{task.fields[state]}"),
            bars.TimeElapsedColumn(),
        )
        with bars.Progress(*columns, console=self.console) as bar:
            task = bar.add_task(escape(name), total=steps, state="")
            yield lambda loss, tokens_per_s: bar.update(task, advance=1, state=_state(loss, tokens_per_s))

    def _lines(self, name: str, steps: int) -> Callable[[float, float], None]:
        done, last = 0, time.monotonic()

        def advance(loss: float, tokens_per_s: float) -> None:
            nonlocal done, last
            done += 1
            if done in (1, steps) or time.monotonic() - last >= LINE_EVERY_S:
                last = time.monotonic()
                self.say(f"{name}: step {done}/{steps}, {_state(loss, tokens_per_s)}")

        return advance

    def table(self, traces: Sequence[Trace], label: str) -> None:
        """Print the iteration trace of a phase, its segments and the suggested change.

        Args:
            traces: of all phases so far: the cost of a message is fitted to all of them.
            label: the phase to print.
        """
        if self.enabled:
            print_report(traces, self.console, rows=TABLE_ITERATIONS, only=label)


def _state(loss: float, tokens_per_s: float) -> str:
    return f"loss {loss:.3f}, {tokens_per_s:,.0f} tokens/s"
