"""Moving bytes between ranks: all-reduce, all-gather, reduce-scatter, all-to-all, broadcast, barrier.

Each takes a tensor or a nested structure of tensors and numbers, fuses what can travel together, and checks first that all
ranks mean the same. What needs torch lives in `runtime` and is imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradweave._lazy import attribute_loader

if TYPE_CHECKING:
    from gradweave.collectives.runtime.allreduce import allreduce
    from gradweave.collectives.runtime.barrier import barrier
    from gradweave.collectives.runtime.broadcast import broadcast
    from gradweave.collectives.runtime.gather import allgather
    from gradweave.collectives.runtime.pending import Pending
    from gradweave.collectives.runtime.scatter import reduce_scatter
    from gradweave.collectives.runtime.transpose import alltoall

_HOME_OF = {
    "Pending": "runtime.pending",
    "allgather": "runtime.gather",
    "allreduce": "runtime.allreduce",
    "alltoall": "runtime.transpose",
    "barrier": "runtime.barrier",
    "broadcast": "runtime.broadcast",
    "reduce_scatter": "runtime.scatter",
}

__all__ = ["Pending", "allgather", "allreduce", "alltoall", "barrier", "broadcast", "reduce_scatter"]


__getattr__ = attribute_loader(__name__, _HOME_OF)
