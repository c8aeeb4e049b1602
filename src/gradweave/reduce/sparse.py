"""Sparse gradients: all-gather of indices and values, summed in rank order.

    sizes <- all-gather(nnz);  indices, values <- all-gather(padded to the largest);  gradient <- coalesce(concatenation) /
    divisor

Works on every backend (NCCL has no sparse all-reduce) and gives the same bits on all ranks. Values travel and are summed in
the reduction dtype, as dense ones are.
Cost: received per rank (p-1) max(nnz) (8 d + value bytes); blocking, after the dense messages have been launched.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from gradweave.reduce.base import Divisor
from gradweave.reduce.division import divisor_for


def reduce_sparse(local: Tensor, divisor: Divisor, group: ProcessGroup, dtype: torch.dtype | None = None) -> Tensor:
    """Sum a sparse COO gradient over the ranks of `group`.

    Args:
        local: sparse COO gradient of this rank (may be empty), undivided.
        divisor: what the sum is divided by; the division happens before the sum.
        group: its ranks all call this.
        dtype: of the sum, a real dtype; complex values keep theirs. None is the values' own.

    Returns:
        A coalesced sparse COO tensor, equal on all ranks.
    """
    of = local.dtype
    if dtype is not None and not of.is_complex:
        local = local.to(dtype)
    local = local.coalesce()  # in the reduction dtype: micro-batches leave several values of one row
    indices, values = local.indices(), local.values().div(divisor_for(divisor, local))
    counts = _gather(torch.tensor([indices.shape[1]], device=values.device), group)
    most = max(int(count) for count in counts)
    if most == 0:
        return local.to(of)
    all_indices = _gather(_pad(indices.t().contiguous(), most), group)
    all_values = _gather(_pad(_real(values), most), group)
    kept = [int(count) for count in counts]
    joined_indices = torch.cat([part[:n] for part, n in zip(all_indices, kept, strict=True)]).t()
    joined_values = torch.cat([part[:n] for part, n in zip(all_values, kept, strict=True)])
    if values.is_complex():
        joined_values = torch.view_as_complex(joined_values)
    summed = torch.sparse_coo_tensor(joined_indices, joined_values, local.shape, check_invariants=False).coalesce()
    return summed.to(of)


def empty_like_sparse(param: Tensor, sparse_dims: int) -> Tensor:
    """An empty sparse gradient for a parameter that got none on this rank."""
    indices = torch.zeros((sparse_dims, 0), dtype=torch.int64, device=param.device)
    values = torch.zeros((0, *param.shape[sparse_dims:]), dtype=param.dtype, device=param.device)
    return torch.sparse_coo_tensor(indices, values, param.shape, check_invariants=False)


def _real(values: Tensor) -> Tensor:
    return torch.view_as_real(values) if values.is_complex() else values


def _pad(rows: Tensor, length: int) -> Tensor:
    padded = rows.new_zeros((length, *rows.shape[1:]))
    padded[: rows.shape[0]] = rows
    return padded


def _gather(tensor: Tensor, group: ProcessGroup) -> list[Tensor]:
    outputs = [torch.empty_like(tensor) for _ in range(group.size())]
    group.allgather([outputs], [tensor]).wait()
    return outputs
