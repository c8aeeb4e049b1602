"""Turning torch's communication errors into ones that say who is missing.

Torch names a socket. Here the operation, the group and the rank are added, and a roll call: every rank that meets the failure
leaves a mark in the store and reads, for a short while, the marks of the others.

    1. an operation raises       2. set mark(my rank) = now      3. poll the peers' marks of late      4. name who left none

Cost: none until something fails; then up to `ROLL_CALL_S` seconds. A rank without a mark is dead, late, or still waits in
another operation: the message says "not heard from". The store lives in rank 0's process (or torchrun's agent); without it,
the message says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as c10d

from gradweave.errors import CollectiveError, GradweaveError
from gradweave.world import names

ROLL_CALL_S = 2.0
MARK_LASTS_S = 30.0
_SIGNS_OF_LOSS = (
    "closed by peer",
    "timed out",
    "timeout",
    "reset by peer",
    "broken pipe",
    "connection",
    "socket",
    "remote",
    "monitoredbarrier",
)


@contextmanager
def reported(operation: str, group_name: str, pg: ProcessGroup) -> Iterator[None]:
    """Raise a `CollectiveError` that names operation, group, rank and the ranks not heard from, for torch's errors inside.

    Args:
        operation: what was going on, for example "allreduce of 3 tensors".
    """
    try:
        yield
    except (GradweaveError, torch.OutOfMemoryError, NotImplementedError):
        raise
    except RuntimeError as error:
        raise describe(error, operation, group_name, pg) from error


def describe(error: BaseException, operation: str, group_name: str, pg: ProcessGroup) -> CollectiveError:
    """The `CollectiveError` for torch's `error`; holds the roll call when the error is a lost or late peer."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if not any(sign in text.lower() for sign in _SIGNS_OF_LOSS):
        return CollectiveError(f"{operation} failed: {text}", rank=names.my_rank(), group=group_name)
    return CollectiveError(
        f"{operation} did not finish: {_verdict(pg)}. Torch says: {text}",
        rule="every rank of the group makes the same collective calls, in the same order, within the group's timeout",
        fix="look at the ranks named for an error, an exit or a branch that skipped the call; "
        "if they are only slow, raise the timeout",
        rank=names.my_rank(),
        group=group_name,
    )


def roll_call(pg: ProcessGroup, wait_s: float = ROLL_CALL_S) -> list[int]:
    """Global ranks of `pg` that left no mark within `wait_s` seconds; every rank that meets a failure calls this.

    Raises:
        RuntimeError: the store is gone.
    """
    store = c10d._get_process_group_store(pg)
    members = dist.get_process_group_ranks(pg)
    store.set(f"gradweave/failure/{names.my_rank()}", str(time.time()))
    deadline = time.monotonic() + wait_s
    absent = [rank for rank in members if rank != names.my_rank()]
    while absent and time.monotonic() < deadline:
        absent = [rank for rank in absent if not _is_here(store, rank)]
        if absent:
            time.sleep(0.05)
    return absent


def _is_here(store: Any, rank: int) -> bool:
    """Whether the rank left a mark lately; one of an earlier failure, of which this rank may know nothing, does not count."""
    key = f"gradweave/failure/{rank}"
    return bool(store.check([key])) and time.time() - float(store.get(key)) < MARK_LASTS_S


def _verdict(pg: ProcessGroup) -> str:
    answer: list[list[int]] = []

    def call() -> None:
        with suppress(RuntimeError, ValueError, OSError):
            answer.append(roll_call(pg))

    # On a thread: a store whose server hangs would block for minutes.
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(2 * ROLL_CALL_S)
    if not answer:
        return "the store is gone too, so the process that keeps it (rank 0, or torchrun's agent) has ended"
    absent = answer[0]
    if not absent:
        return "every rank met the same failure: the ranks called different collectives, or the network broke"
    return f"not heard from: rank{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent))}"
