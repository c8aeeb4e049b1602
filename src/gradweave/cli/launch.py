"""Starting processes with torchrun.

`torch.distributed.run` runs inside the calling process, which is then the parent of the workers: a signal reaches it directly,
it ends the workers, and this module makes sure that none is left. Steps:

    1. give every worker its share of the cores, unless OMP_NUM_THREADS is set;
    2. run torchrun's agent on this host;
    3. on any way out, also a second Ctrl-C, kill the process groups of workers that are still there.

Source: PyTorch's elastic agent. Several hosts: call torchrun itself on each, with GRADWEAVE_TRACE_DIR set.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gradweave.cli.output import require_torch, stderr_console


def default_nproc() -> int:
    """One process per CUDA or NPU device; 2 where there is none."""
    import torch

    for backend in ("cuda", "npu"):
        device = getattr(torch, backend, None)
        if device is not None and device.is_available():
            return max(1, int(device.device_count()))
    return 2


def launch(arguments: Sequence[str], nproc: int | None, environment: Mapping[str, str]) -> int:
    """Run `nproc` processes of a script or module.

    Args:
        arguments: the script and its arguments, or `-m`, the module and its arguments.
        nproc: number of processes; None takes `default_nproc()`.
        environment: variables to add for the workers.

    Returns:
        0 when all processes ended well, 1 when one failed, 130 on Ctrl-C, 143 on SIGTERM.

    Raises:
        MissingDependencyError: torch cannot be imported.
    """
    require_torch("starting training processes")
    count = nproc if nproc is not None else default_nproc()
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    os.environ.update(environment)
    with _no_worker_left():
        return _torchrun(arguments, count)


def _torchrun(arguments: Sequence[str], nproc: int) -> int:
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.ERROR)  # its warnings on an interrupt repeat what is said below
    head = 2 if arguments[0] == "-m" else 1
    options = run.parse_args(["--nnodes=1", f"--nproc-per-node={nproc}", "--shutdown-timeout=10", *arguments[:head]])
    # Not through the parser: it would take `--` and abbreviations of its own options out of the script's arguments.
    options.training_script_args = list(arguments[head:])
    try:
        run.run(options)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        reason = f"signal {failure.signal_name()}" if failure.exitcode < 0 else f"exit code {failure.exitcode}"
        stderr_console().print(
            f"[bold red]error:[/] rank {rank} failed first ({reason}); its own output above says why", soft_wrap=True
        )
        return 1
    except SignalException as error:
        stderr_console().print(f"interrupted by {error.sigval.name}; the training processes were ended")
        return 128 + int(error.sigval)
    except KeyboardInterrupt:
        return 130
    return 0


@contextlib.contextmanager
def _no_worker_left() -> Iterator[None]:
    """Kill what torchrun left behind: a second signal can interrupt its own clean-up."""
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # only the main thread may set handlers
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for pid in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                # torchrun gives each worker a session of its own, so this reaches what the worker started, too.
                os.killpg(pid, signal.SIGKILL) if os.getpgid(pid) == pid else os.kill(pid, signal.SIGKILL)


def _children() -> list[int]:
    """Direct children of this process (Linux; empty elsewhere)."""
    found: list[int] = []
    for listing in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in listing.read_text().split()]
    return found
