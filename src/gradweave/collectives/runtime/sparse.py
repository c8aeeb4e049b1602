"""All-reduce of a sparse COO tensor: gather indices and values, sum equal indices.

    1. exchange the numbers of entries     2. all-gather indices and values, padded to the longest     3. coalesce

The sum of equal indices runs in rank order. Cost per rank: (p-1) messages of the longest rank's entries. Starts and ends within
the call, also with `async_op`. Reductions: sum and average.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradweave.collectives.runtime.gather import gather_tensors
from gradweave.errors import ConfigError
from gradweave.world.agree import exchange
from gradweave.world.groups import Group


def allreduce_sparse(x: Tensor, op: str, group: Group) -> Tensor:
    """The coalesced sum (average) of a sparse COO tensor over the group.

    Raises:
        ConfigError: another layout than COO, or another operation.
    """
    if x.layout is not torch.sparse_coo or op not in ("sum", "average"):
        raise ConfigError(
            f"op={op!r} of a tensor of layout {x.layout}",
            rule="sparse COO tensors can be summed and averaged",
            fix="convert it with x.to_sparse_coo(), or x.to_dense() for other operations",
        )
    mine = x.coalesce()
    values = mine.values() / group.size if op == "average" else mine.values()
    parts = [mine.indices().t().contiguous(), values]
    shapes = exchange([list(part.shape) for part in parts], group, "allreduce of sparse tensors")
    works, finish = gather_tensors(parts, shapes, group)
    for work in works:
        work.wait()
    indices, gathered = finish()
    return torch.sparse_coo_tensor(indices.t(), gathered, x.shape).coalesce()
