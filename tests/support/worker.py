"""One worker process of the test pool.

A worker sets torchrun's environment, joins the default Gloo group and runs pickled functions until its pipe closes. A thread
reads the pipe, so that a worker that hangs in a collective still ends with its parent.
"""

from __future__ import annotations

import gc
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any


@dataclass(frozen=True)
class Setup:
    """How a worker starts: its rank, the rendezvous, and whether it joins a default group at once."""

    rank: int
    size: int
    port: int
    joins_group: bool = True
    group_timeout_s: float = 30.0
    env: dict[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """A call, with the parent's import path: test folders join it while pytest collects."""

    call: bytes
    import_path: tuple[str, ...]


@dataclass(frozen=True)
class Failure:
    """What went wrong: the exception (None when it cannot be pickled), its type's name and the traceback's text."""

    error: BaseException | None
    kind: str
    text: str


def serve(setup: Setup, conn: Connection) -> None:
    """Run tasks until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tasks: queue.Queue[Task] = queue.Queue()
    threading.Thread(target=_read, args=(conn, tasks), daemon=True).start()
    _start(setup)
    gc.collect()
    gc.freeze()
    conn.send_bytes(b"ready")
    while True:
        answer = _attempt(setup, tasks.get())
        _reset()
        conn.send_bytes(answer)


def once(setup: Setup, conn: Connection, task: Task) -> None:
    """Run one task in a process of its own and leave without waiting for peers."""
    threading.Thread(target=_read, args=(conn, None), daemon=True).start()
    sys.path[:] = task.import_path
    try:
        _start(setup)
    except BaseException as error:
        conn.send_bytes(_dump(_failure(error)))
        os._exit(1)
    conn.send_bytes(_attempt(setup, task))
    sys.stdout.flush()
    sys.stderr.flush()
    # Interpreter shutdown may wait for communicator threads whose peers are dead.
    os._exit(0)


def _read(conn: Connection, tasks: queue.Queue[Task] | None) -> None:
    try:
        while True:
            message = pickle.loads(conn.recv_bytes())
            if tasks is not None:
                tasks.put(message)
    except (EOFError, OSError):
        os._exit(0)


def _start(setup: Setup) -> None:
    os.environ.update(
        OMP_NUM_THREADS="1",
        RANK=str(setup.rank),
        WORLD_SIZE=str(setup.size),
        LOCAL_RANK=str(setup.rank),
        LOCAL_WORLD_SIZE=str(setup.size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(setup.port),
    )
    for name, value in setup.env.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    import torch

    torch.set_num_threads(1)
    if setup.joins_group:
        from gradweave import world

        world.init(backend="gloo", timeout=setup.group_timeout_s)


def _attempt(setup: Setup, task: Task) -> bytes:
    sys.path[:] = task.import_path
    try:
        fn, args, kwargs = pickle.loads(task.call)
        return _dump(fn(setup.rank, setup.size, *args, **kwargs))
    except BaseException as error:
        return _dump(_failure(error))


def _failure(error: BaseException) -> Failure:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        pickle.loads(pickle.dumps(error))
        carried: BaseException | None = error.with_traceback(None)
    except Exception:
        carried = None
    return Failure(carried, type(error).__name__, text)


def _dump(answer: Any) -> bytes:
    """Pickle by value: torch's own pickler would put tensors into shared memory that dies with the worker."""
    try:
        return pickle.dumps(answer)
    except Exception as error:
        return pickle.dumps(Failure(None, type(error).__name__, f"the result cannot be pickled: {error!r}\n"))


def _reset() -> None:
    """Forget named groups and split strategies of the finished test; the default group stays."""
    from gradweave import world

    world.reset_registries()
    gc.collect()
