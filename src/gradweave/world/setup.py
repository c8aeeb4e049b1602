"""Joining the world: init, shutdown, who am I.

`init` creates torch's default process group from the environment that torchrun sets, or adopts the one that exists. Without
torchrun it makes a world of one, so that the same script runs alone and on many processes.

    environment                          world
    RANK, WORLD_SIZE, MASTER_ADDR, _PORT  as torchrun says
    neither RANK nor WORLD_SIZE          one process, an in-memory store, no port
    a part of them                       ConfigError that names the missing variable

Cost: one rendezvous through the store.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import math
import os
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist

from gradweave.errors import ConfigError
from gradweave.world import communicators, names

DEFAULT_TIMEOUT_S = 1800.0
_stores: dict[tuple[str, str, int, int], dist.Store] = {}
_worlds: list[int] = []  # of this process so far; all ranks count alike
_made_here: set[str] = set()  # backends of the worlds that `init` made and `shutdown` did not end yet
_REQUIRED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def init(backend: str | None = None, timeout: float | timedelta | None = None) -> None:
    """Join the world, or adopt the default process group that exists already.

    Args:
        backend: "gloo", "nccl", "hccl" or torch's form "cpu:gloo,cuda:nccl". None: NCCL for CUDA tensors, HCCL for NPU
            tensors when torch_npu is installed (Gloo for CPU tensors beside them), Gloo otherwise.
        timeout: how long a collective may wait for its peers, in seconds or as a timedelta. None: 30 minutes, or what an
            adopted group has; a value given is set on an adopted group too.

    Calling it again is harmless. On CUDA (NPU), the current device becomes the local rank's.

    Raises:
        ConfigError: the backend is unknown, the timeout is not a positive number, torchrun's environment is incomplete or
            contradicts itself, or the world exists with another backend.

    Example:
        >>> import gradweave.world as world
        >>> world.init()
        >>> world.rank(), world.size()
        (0, 1)
    """
    limit = as_timedelta(DEFAULT_TIMEOUT_S if timeout is None else timeout)
    if dist.is_initialized():
        _check_backend(backend)
        if timeout is not None:
            dist.distributed_c10d._set_pg_timeout(limit, dist.distributed_c10d._get_default_group())
    else:
        place = read_environment(os.environ)
        # Its functions keep the world of the moment they are defined as a default argument, and torch.optim imports it: a world
        # that began before would never end, nor would its threads.
        importlib.import_module("torch.distributed.nn.functional")
        chosen = _default_backend() if backend is None else _checked_backend(backend)
        _select_device(chosen)
        if place is None:
            dist.init_process_group(chosen, store=dist.HashStore(), rank=0, world_size=1, timeout=limit)
        else:
            dist.init_process_group(chosen, store=_store(*place, limit), rank=place[0], world_size=place[1], timeout=limit)
        _made_here.add(chosen)
    leave_at_exit()
    names.known()


def shutdown() -> None:
    """Leave the world: end the wrappers, the named groups and torch's default group. Harmless when there is none."""
    names.reset_registries()
    communicators.end_world()
    _made_here.clear()


def leave_at_exit() -> None:
    """Let what was built on the world end while the interpreter is whole. Whoever uses a world calls this; once is enough.

    Gloo's threads end with it: one that wakes in a dying interpreter aborts the process. A Gloo world made by `init` ends, too;
    one that the user made is the user's to end.
    """
    atexit.unregister(_leave)
    atexit.register(_leave)


def _leave() -> None:
    if names.is_forked_child():
        return
    with contextlib.suppress(RuntimeError):
        if _made_here == {"gloo"}:
            shutdown()
        else:
            names.reset_registries()
            communicators.let_go()


def is_initialized() -> bool:
    """Whether torch's default process group exists, made by `init` or by the user."""
    return dist.is_available() and dist.is_initialized()


def local_rank() -> int:
    """The caller's index on its host: LOCAL_RANK, or the global rank where no launcher says (one host is assumed)."""
    return _integer(os.environ, "LOCAL_RANK") if "LOCAL_RANK" in os.environ else names.my_rank()


def local_size() -> int:
    """The number of processes on this host: LOCAL_WORLD_SIZE, or the world size where no launcher says."""
    return _integer(os.environ, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in os.environ else names.world_size()


def read_environment(env: Mapping[str, str]) -> tuple[int, int] | None:
    """Rank and world size from torchrun's variables; None when there is no launcher.

    Raises:
        ConfigError: a variable is missing, not a number, or the rank is not below the world size.

    Example:
        >>> read_environment({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"})
        (1, 2)
    """
    if "RANK" not in env and "WORLD_SIZE" not in env:
        return None
    missing = [name for name in _REQUIRED if name not in env]
    if missing:
        raise ConfigError(
            f"the environment has {[n for n in _REQUIRED if n in env]} but not {', '.join(missing)}",
            rule="RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT go together",
            fix="start the script with torchrun, or unset RANK and WORLD_SIZE to run a single process",
        )
    place = _integer(env, "RANK"), _integer(env, "WORLD_SIZE")
    if not 0 <= place[0] < place[1]:
        raise ConfigError(
            f"RANK={place[0]} with WORLD_SIZE={place[1]}",
            rule="a rank is at least 0 and below the world size",
            fix="start the script with torchrun, which sets both",
        )
    return place


def as_timedelta(timeout: float | timedelta) -> timedelta:
    """A timeout in seconds, or a timedelta, as a timedelta.

    Raises:
        ConfigError: not a finite number of seconds above 0.

    Example:
        >>> as_timedelta(1.5).total_seconds()
        1.5
    """
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not math.isfinite(seconds) or seconds <= 0:
        raise ConfigError(
            f"timeout={timeout!r}",
            rule="a timeout is a finite number of seconds above 0, or a timedelta",
            fix=f"leave it out for {DEFAULT_TIMEOUT_S:.0f} s, or give for example timeout=60",
        )
    return timedelta(seconds=seconds)


def _integer(env: Mapping[str, str], name: str) -> int:
    try:
        return int(env[name])
    except ValueError:
        raise ConfigError(
            f"{name}={env[name]!r} in the environment", rule=f"{name} is an integer", fix="start the script with torchrun"
        ) from None


def _default_backend() -> str:
    if torch.cuda.is_available() and dist.is_nccl_available():
        return "cpu:gloo,cuda:nccl"
    return "cpu:gloo,npu:hccl" if _npu_is_available() else "gloo"


def _npu_is_available() -> bool:
    try:
        import torch_npu  # noqa: F401
    except ImportError:
        return False
    return bool(torch.npu.is_available())


def _select_device(backend: str) -> None:
    """Point this process at its own accelerator before a communicator is made: NCCL would put all ranks on device 0."""
    index = local_rank()
    if torch.cuda.is_available() and index < torch.cuda.device_count():
        torch.cuda.set_device(index)
    elif "hccl" in backend and _npu_is_available():
        torch.npu.set_device(index)


def _store(rank: int, world_size: int, timeout: timedelta) -> dist.Store:
    """The launcher's store, with a name of its own for each world: an earlier one left its addresses under the same keys.

    The store is met once and kept for later worlds: a rank that is quick would still find an earlier one's server, which ends.
    """
    place = (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], rank, world_size)
    if place not in _stores:
        _stores[place] = next(dist.rendezvous("env://", rank, world_size, timeout=timeout))[0]
    store = _stores[place]
    store.set_timeout(timeout)
    _worlds.append(len(_worlds))
    return dist.PrefixStore(f"gradweave/world/{_worlds[-1]}", store)


def _checked_backend(backend: str) -> str:
    parts = [part.rpartition(":")[2] for part in backend.split(",")] if isinstance(backend, str) else [""]
    known = dist.Backend.backend_list
    if not all(part.lower() in known and part != "undefined" for part in parts):
        raise ConfigError(
            f"backend={backend!r}",
            rule=f"a backend is one of {', '.join(name for name in known if name != 'undefined')}, or of the form "
            '"cpu:gloo,cuda:nccl"',
            fix="leave it out: NCCL for CUDA, HCCL for NPU, Gloo otherwise",
        )
    return backend


def _check_backend(backend: str | None) -> None:
    existing = communicators.backend_of(dist.group.WORLD)
    if backend is not None and backend not in (existing, dist.get_backend()):
        raise ConfigError(
            f"backend={backend!r}, but the world exists with {existing!r}",
            rule="a world has one backend",
            fix="call gw.init first and once, or shutdown() before choosing another",
            rank=names.my_rank(),
        )
