"""Waiting with a name: who waits for what, and who did not come.

A rank that waits longer than a second leaves a mark "step, place" in the rendezvous store. When a collective fails or runs out
of time, each survivor leaves its mark, gives the others a moment to do the same, and reports the ranks whose mark is missing or
older. While a segment is waited for, a SIGTERM handler prints it, because torchrun ends the survivors as soon as one rank dies;
elsewhere the signal is left alone: a Python handler would not run while the process is blocked in a collective of torch.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch.distributed as dist

from gradweave.errors import CollectiveError, GradweaveError
from gradweave.world.groups import Group

_MARK_AFTER_S = 1.0
_GRACE_S = 1.5
_STORE_S = 2.0


class Watch:
    """Names what an engine does, and turns a failed wait into an error that names the ranks which did not arrive.

    Args:
        group: the ranks that take part.
        label: the engine's name in errors.
        key: equal on all ranks and to no other engine's; part of the marks' keys.
        timeout_s: seconds after which a wait is given up although the backend did not report an error.
    """

    def __init__(self, group: Group, label: str, key: str, timeout_s: float) -> None:
        self.group, self.label, self.key, self.timeout_s = group, label, key, timeout_s
        self.step, self.place = 0, "construction"
        self.pending: str | None = None

    def at(self, place: str) -> None:
        """Note where the engine is."""
        self.place = place

    def wait(self, ended: Callable[[float], bool], finish: Callable[[], None], what: str) -> None:
        """Wait until `ended`, then call `finish`; CollectiveError names `what`, group, step and the missing ranks."""
        with self.naming(what):
            if not ended(0.0):
                with self._telling_sigterm():
                    if not ended(_MARK_AFTER_S):
                        self._wait_long(ended, what)
            finish()

    @contextlib.contextmanager
    def _telling_sigterm(self) -> Iterator[None]:
        """Print what is waited for when the process is told to end, where the program has no handler of its own."""
        ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        if ours:
            signal.signal(signal.SIGTERM, self._on_sigterm)
        try:
            yield
        finally:
            if ours:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        """Say what this process was waiting for, then die as the signal asks."""
        rank = dist.get_rank() if dist.is_initialized() else "?"
        print(
            f"gradweave: terminated while rank {rank} waited for {self.pending} "
            f"(group {self.group.name}, {self.label}, step {self.step})",
            file=sys.stderr,
            flush=True,
        )
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)

    @contextlib.contextmanager
    def naming(self, what: str) -> Iterator[None]:
        """Name what is waited for, should this process be terminated meanwhile; torch's errors become CollectiveError."""
        self.pending = what
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, GradweaveError) and not (isinstance(error, CollectiveError) and error.step is None):
                raise
            cause = error.__cause__ if isinstance(error, CollectiveError) and error.__cause__ else error
            raise self.failure(what, str(cause)) from error
        finally:
            self.pending = None

    def _wait_long(self, ended: Callable[[float], bool], what: str) -> None:
        self._leave_mark()
        deadline = time.monotonic() + self.timeout_s + 5.0
        while not ended(_MARK_AFTER_S):
            if time.monotonic() > deadline:
                raise self.failure(what, f"no answer within {self.timeout_s:g} s")

    def failure(self, what: str, cause: str) -> CollectiveError:
        """The error to raise for a collective that failed, with the ranks that did not arrive."""
        with self._telling_sigterm():
            return self._roll_call(what, cause)

    def _roll_call(self, what: str, cause: str) -> CollectiveError:
        first_line = _plain(cause)
        self.pending = f"{what}, which failed: torch says: {first_line}"
        self._leave_mark()
        time.sleep(min(_GRACE_S, self.timeout_s))
        missing = self._missing_ranks()
        if _keeps_store():
            time.sleep(_GRACE_S)  # whoever failed a moment later reads the marks here; this process may end on this error
        if missing is None:
            who = "the rendezvous store does not answer: the process that holds it (rank 0, or torchrun's agent) is gone"
        elif missing:
            who = f"ranks that did not arrive: {', '.join(missing)}"
        else:
            who = "every rank arrived, but the connection between them broke"
        return CollectiveError(
            f"{what} failed in {self.label}: {who} (torch says: {first_line})",
            rule=f"all {self.group.size} ranks of the group take the same steps, within {self.timeout_s:g} s of each other",
            fix="look at the first error of the ranks that did not arrive, or give every rank the same number of steps if they "
            "ended earlier; raise timeout= if they are only slow",
            rank=dist.get_rank() if dist.is_initialized() else None,
            group=self.group.name,
            step=self.step,
        )

    def _key(self, rank: int) -> str:
        return f"gradweave/mark/{self.key}/{rank}"

    def _leave_mark(self) -> None:
        mark = f"{self.step} {self.place}"
        _in_time(lambda: _store().set(self._key(dist.get_rank()), mark))

    def _missing_ranks(self) -> list[str] | None:
        """Ranks with no mark of this step, each with its last known place; None when the store is gone."""

        def read() -> list[str]:
            missing, store = [], _store()
            for rank in self.group.ranks:
                mark = store.get(self._key(rank)).decode() if store.check([self._key(rank)]) else ""
                if not mark or int(mark.split(" ", 1)[0]) < self.step:
                    missing.append(f"{rank} (last waited in step {mark})" if mark else str(rank))
            return missing

        return _in_time(read)


def _plain(cause: str) -> str:
    """The first line of what torch says, without the source file before it and the general advice behind it."""
    line = cause.splitlines()[0] if cause else "nothing"
    return re.sub(r"^\[\S+\] ", "", line).split(" This is typically")[0].rstrip(". ")


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


def _keeps_store() -> bool:
    """Whether the rendezvous store ends with this process: rank 0's, unless torchrun's agent serves it."""
    return dist.is_initialized() and dist.get_rank() == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"


def _in_time(action: Callable[[], Any]) -> Any:
    """Run `action` on a helper thread for at most two seconds: a store whose server died blocks for minutes."""
    result: list[Any] = []

    def run() -> None:
        with contextlib.suppress(Exception):
            result.append(action())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_STORE_S)
    return result[0] if result else None
