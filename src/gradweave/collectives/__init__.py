"""Moving bytes between ranks: all-reduce, all-gather, reduce-scatter, all-to-all, broadcast, barrier.

Each takes a tensor or a nested structure of tensors and numbers, fuses what can travel together, and checks first that all
ranks mean the same. What needs torch lives in `runtime` and is imported at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradweave.collectives.runtime.allreduce import allreduce
    from gradweave.collectives.runtime.barrier import barrier
    from gradweave.collectives.runtime.broadcast import broadcast
    from gradweave.collectives.runtime.gather import allgather
    from gradweave.collectives.runtime.pending import Pending
    from gradweave.collectives.runtime.scatter import reduce_scatter
    from gradweave.collectives.runtime.transpose import alltoall

_HOME_OF = {
    "Pending": "pending",
    "allgather": "gather",
    "allreduce": "allreduce",
    "alltoall": "transpose",
    "barrier": "barrier",
    "broadcast": "broadcast",
    "reduce_scatter": "scatter",
}

__all__ = ["Pending", "allgather", "allreduce", "alltoall", "barrier", "broadcast", "reduce_scatter"]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.runtime.{_HOME_OF[name]}"), name)
