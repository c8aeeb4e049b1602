"""Worker processes for multi-process tests, spawned once per world size and reused.

    from tests.support import pool

    def total(rank, world_size, factor):            # at module level: workers import it by name
        return float(gw.allreduce(torch.tensor(factor * rank)))

    def test_all_reduce_sums_over_ranks():
        assert pool.run(2, total, 10.0) == [10.0, 10.0]

`run` uses the shared pool; `fresh` spawns new processes, for tests that kill peers or start without a group. Importing torch
takes seconds and hundreds of megabytes, so tests use `run` unless they need `fresh`. Workers have torchrun's environment, one
thread, a Gloo default group with a timeout of 30 s, and forget named groups and split strategies after each call.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import pickle
import random
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from gradweave.errors import CollectiveError, GradweaveError

from . import worker

_CONTEXT = multiprocessing.get_context("spawn")
_START_TIMEOUT_S = 120.0
_STRAGGLER_S = 10.0


class WorkerError(Exception):
    """A worker failed, hung or died; the text holds the workers' tracebacks."""


@dataclass(frozen=True)
class Outcome:
    """What became of one process of `fresh`: a value, an error, or only an exit code (negative: minus the signal)."""

    rank: int
    value: Any = None
    error: BaseException | None = None
    exit_code: int | None = None
    text: str = ""


def run(world_size: int, fn: Callable[..., Any], *args: Any, timeout: float = 60.0, **kwargs: Any) -> list[Any]:
    """Call `fn(rank, world_size, *args, **kwargs)` on every rank of the pool and return the results in rank order.

    Raises:
        The exception of the lowest failing rank, with all failing ranks' tracebacks as its cause.
        WorkerError: that exception cannot be pickled, or a worker hung or died. The pool is then replaced.
    """
    task = _task(fn, args, kwargs)
    pool = _pools.get(world_size) or _pools.setdefault(world_size, _Pool(world_size))
    try:
        answers = pool.call(task, timeout)
    except BaseException:
        _discard(world_size)
        raise
    failures = {rank: answer for rank, answer in answers.items() if isinstance(answer, worker.Failure)}
    if not failures:
        return [answers[rank] for rank in range(world_size)]
    if len(failures) < world_size or not all(_is_clean(failure) for failure in failures.values()):
        # A collective may be half done: its remains must not meet the next test.
        _discard(world_size)
    first = failures[min(failures)]
    cause = WorkerError(_report(failures, [r for r in range(world_size) if r not in answers]))
    if first.error is None:
        raise cause
    raise first.error from cause


def fresh(
    world_size: int,
    fn: Callable[..., Any],
    *args: Any,
    timeout: float = 60.0,
    joins_group: bool = True,
    group_timeout_s: float = 30.0,
    env: dict[str, str | None] | None = None,
    **kwargs: Any,
) -> list[Outcome]:
    """Call `fn` on newly spawned processes and return one `Outcome` per rank; nothing is raised for a failing rank.

    Args:
        joins_group: False starts the processes with torchrun's environment but without a default group.
        group_timeout_s: timeout of the default group's collectives.
        env: variables to set in the workers; None removes one.
    """
    task, port = _task(fn, args, kwargs), free_port()
    crew = []
    for rank in range(world_size):
        setup = worker.Setup(rank, world_size, port, joins_group, group_timeout_s, env or {})
        crew.append(_spawn(worker.once, setup, task))
    deadline = time.monotonic() + timeout
    try:
        return [_outcome(rank, process, conn, deadline) for rank, (process, conn) in enumerate(crew)]
    finally:
        _stop(crew)


def shutdown() -> None:
    """End every pool; called at the end of the pytest session and at exit."""
    for world_size in list(_pools):
        _discard(world_size)


def free_port() -> int:
    """A TCP port of the loopback interface that is free now, outside the range from which outgoing connections take theirs."""
    chooser = random.SystemRandom()
    for _ in range(100):
        port = chooser.randrange(15000, 30000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port between 15000 and 30000")


class _Pool:
    """The workers of one world size."""

    def __init__(self, world_size: int) -> None:
        port = free_port()
        self.crew = [_spawn(worker.serve, worker.Setup(rank, world_size, port)) for rank in range(world_size)]
        try:
            self._gather(time.monotonic() + _START_TIMEOUT_S, parse=lambda message: message)
        except BaseException:
            _stop(self.crew)
            raise

    def call(self, task: worker.Task, timeout: float) -> dict[int, Any]:
        """Send a task to every worker and collect the answers by rank."""
        message = pickle.dumps(task)
        for rank, (_, conn) in enumerate(self.crew):
            try:
                conn.send_bytes(message)
            except OSError as error:
                raise WorkerError(f"worker {rank} of {len(self.crew)} had died before the call") from error
        return self._gather(time.monotonic() + timeout, parse=pickle.loads)

    def _gather(self, deadline: float, parse: Callable[[bytes], Any]) -> dict[int, Any]:
        waiting = {conn: rank for rank, (_, conn) in enumerate(self.crew)}
        answers: dict[int, Any] = {}
        while waiting:
            ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                return self._overdue(answers, sorted(waiting.values()))
            for conn in ready:
                assert isinstance(conn, Connection)
                rank = waiting.pop(conn)
                try:
                    answers[rank] = parse(conn.recv_bytes())
                except (EOFError, OSError) as error:
                    process = self.crew[rank][0]
                    process.join(5)
                    raise WorkerError(f"worker {rank} of {len(self.crew)} died, exit code {process.exitcode}") from error
                if isinstance(answers[rank], worker.Failure):
                    # Its peers may wait for it in a collective: give them a moment, not the whole timeout.
                    deadline = min(deadline, time.monotonic() + _STRAGGLER_S)
        return answers

    def _overdue(self, answers: dict[int, Any], missing: list[int]) -> dict[int, Any]:
        if any(isinstance(answer, worker.Failure) for answer in answers.values()):
            return answers
        raise WorkerError(f"ranks {missing} of {len(self.crew)} did not finish in time; ranks {sorted(answers)} did")


_pools: dict[int, _Pool] = {}


def _task(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> worker.Task:
    return worker.Task(pickle.dumps((fn, args, kwargs)), tuple(sys.path))


def _spawn(target: Callable[..., None], setup: worker.Setup, *args: Any) -> tuple[BaseProcess, Connection]:
    ours, theirs = _CONTEXT.Pipe()
    name = f"test-worker-{setup.rank}-of-{setup.size}"
    process = _CONTEXT.Process(target=target, args=(setup, theirs, *args), name=name, daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _outcome(rank: int, process: BaseProcess, conn: Connection, deadline: float) -> Outcome:
    try:
        if not conn.poll(max(0.0, deadline - time.monotonic())):
            return Outcome(rank, error=WorkerError(f"rank {rank} did not finish in time"))
        answer = pickle.loads(conn.recv_bytes())
    except (EOFError, OSError):
        process.join(5)
        return Outcome(rank, exit_code=process.exitcode)
    process.join(5)
    if isinstance(answer, worker.Failure):
        error = answer.error or WorkerError(answer.text)
        return Outcome(rank, error=error, exit_code=process.exitcode, text=answer.text)
    return Outcome(rank, value=answer, exit_code=process.exitcode)


def _is_clean(failure: worker.Failure) -> bool:
    """Whether the rank was refused by a check, which all ranks pass or fail together, and lost no peer."""
    return isinstance(failure.error, GradweaveError) and not isinstance(failure.error, CollectiveError)


def _report(failures: dict[int, worker.Failure], missing: list[int]) -> str:
    parts = [f"--- rank {rank} ---\n{failure.text}" for rank, failure in sorted(failures.items())]
    if missing:
        parts.append(f"--- ranks {missing} did not finish ---")
    return "\n" + "\n".join(parts)


def _discard(world_size: int) -> None:
    pool = _pools.pop(world_size, None)
    if pool is not None:
        _stop(pool.crew)


def _stop(crew: list[tuple[BaseProcess, Connection]]) -> None:
    for process, conn in crew:
        conn.close()
        process.kill()
    for process, _ in crew:
        process.join(10)


atexit.register(shutdown)
