"""Speed of an all-reduce between two processes of this host.

Two real processes reduce messages of a few sizes over Gloo and check the sums. The figure to compare networks by is bytes of
the message per second; on loopback it is bound by memory copies and says what no network of this host can exceed.

    python -m gradweave.cli.loopback RENDEZVOUS_FILE RANK      (a worker; rank 0 prints JSON)
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradweave.errors import CollectiveError

SIZES_BYTES = (4_096, 1_048_576, 26_214_400)
REPEATS = 7


@dataclass(frozen=True)
class Speed:
    """Median time of one all-reduce of `size_bytes` on two processes."""

    size_bytes: int
    median_s: float

    @property
    def bytes_per_s(self) -> float:
        """Bytes of the message per second."""
        return self.size_bytes / self.median_s


def measure_loopback(timeout_s: float = 60.0) -> list[Speed]:
    """Start two workers and return what they measured, smallest message first.

    Raises:
        CollectiveError: a worker failed, summed wrongly, or did not end within `timeout_s`.
    """
    with tempfile.TemporaryDirectory(prefix="gradweave-loopback-") as folder:
        command = [sys.executable, "-m", "gradweave.cli.loopback", str(Path(folder) / "rendezvous")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        workers = [
            subprocess.Popen([*command, str(rank)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for rank in (0, 1)
        ]
        try:
            deadline = time.monotonic() + timeout_s
            outputs = [worker.communicate(timeout=max(0.1, deadline - time.monotonic())) for worker in workers]
        except subprocess.TimeoutExpired:
            raise CollectiveError(f"two processes did not finish an all-reduce within {timeout_s:.0f} s", fix=_FIX) from None
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    for rank, worker in enumerate(workers):
        if worker.returncode:
            last = (outputs[rank][1].strip().splitlines() or ["no message"])[-1]
            raise CollectiveError(f"the loopback all-reduce failed: {last}", rank=rank, fix=_FIX)
    return [Speed(**row) for row in json.loads(outputs[0][0])]


_FIX = "check that this host's name resolves and its loopback interface is up; GLOO_SOCKET_IFNAME=lo names the interface"


def _worker(rendezvous: str, rank: int) -> list[dict[str, Any]]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    rows = []
    for size_bytes in SIZES_BYTES:
        times = []
        for _ in range(REPEATS):
            tensor = torch.full((size_bytes // 4,), float(rank + 1))
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(tensor)
            times.append(time.perf_counter() - start)
            if not bool((tensor == 3.0).all()):
                raise SystemExit("the sum is wrong")
        rows.append({"size_bytes": size_bytes, "median_s": statistics.median(times)})
    dist.destroy_process_group()
    return rows


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        measured = _worker(sys.argv[1], int(sys.argv[2]))
        if sys.argv[2] == "0":
            print(json.dumps(measured))
