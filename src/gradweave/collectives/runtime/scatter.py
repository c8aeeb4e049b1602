"""Reduce-scatter: the sum over the ranks, of which each rank keeps its part of dim 0.

    y_r = rows of r in x_0 (+) ... (+) x_{p-1};      rows of r: n // p, the first n mod p ranks one more

Tensors of one dtype and device are fused, each part padded to the largest. Cost per rank: (p-1)/p n bytes, one copy of the
input, and 32 bytes for the agreement check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradweave.collectives.runtime import launch, ops, wire
from gradweave.world.agree import agree
from gradweave.world.groups import Group, as_group


def reduce_scatter(x: Any, op: str = "sum", group: Any = "world", async_op: bool = False, check: bool = True) -> Any:
    """Reduce over the ranks of a group and keep this rank's rows.

    Args:
        x: a tensor [n, ...], or a nested structure of such; equal shapes and dtypes on all ranks.
        op: as `gradweave.allreduce`.
        group: a group's name, a ProcessGroup, a DeviceMesh of one axis.
        async_op: return a `Pending` at once; its `wait()` gives the result.
        check: compare operation, shapes and dtypes across ranks first (32 bytes per rank).

    Returns:
        The same structure with tensors [n_r, ...]; n_r = n // p, one more on the first n mod p peers, in peer order.

    Raises:
        MismatchError: ranks gave different operations, structures, shapes or dtypes.
        ConfigError: the operation does not fit, or a leaf is a number, 0-dim or sparse.
        GroupError, CollectiveError: as `gradweave.allreduce`.

    Example:
        >>> import gradweave as gw
        >>> gw.reduce_scatter(torch.tensor([1.0, 2.0]))
        tensor([1., 2.])
    """
    place = as_group(group)
    tree = launch.flatten(x, place)
    if check:
        agree({"call": "reduce_scatter", "op": repr(op), "tensors": tree.describe()}, "the arguments of reduce_scatter", place)
    wire.require_dense(tree.tensors, tree.paths, "reduce_scatter")
    wire.require_dim0(tree.tensors, tree.paths, "reduce_scatter")
    for leaf, path in zip(tree.tensors, tree.paths, strict=True):
        ops.check_op(op, leaf, path)

    def start() -> tuple[list[Any], Callable[[], Any]]:
        works, finish = _scatter_tensors(tree.tensors, op, place)
        return works, lambda: tree.rebuild(finish())

    return launch.started(start, f"reduce_scatter of {len(tree.tensors)} tensors", place, async_op)


def _scatter_tensors(tensors: Sequence[Tensor], op: str, group: Group) -> tuple[list[Any], Callable[[], list[Tensor]]]:
    results: list[Tensor] = list(tensors)
    works, parts = [], []
    for indices in wire.by(lambda t: (t.dtype, t.device), tensors):
        chosen = [tensors[i] for i in indices]
        message, torch_op = ops.to_message(_by_peer(chosen, group.size), op, group.size)
        mine = message.new_empty(message.numel() // group.size)
        works.append(dist.reduce_scatter_single(mine, message, op=torch_op, group=group.pg, async_op=True))
        parts.append((indices, mine))

    def finish() -> list[Tensor]:
        for indices, mine in parts:
            flat, start = ops.from_message(mine, tensors[indices[0]].dtype), 0
            for i in indices:
                shape = [wire.shares(tensors[i].shape[0], group.size)[group.rank], *tensors[i].shape[1:]]
                results[i] = flat[start : start + prod(shape)].view(shape)
                start += prod(shape)
        return results

    return works, finish


def _by_peer(tensors: list[Tensor], peers: int) -> Tensor:
    """An own 1-dim tensor of p equal parts; part r holds the rows of peer r of every tensor, then zeros."""
    pieces = [x.split(wire.shares(x.shape[0], peers)) for x in tensors]
    widths = [sum(piece[peer].numel() for piece in pieces) for peer in range(peers)]
    parts = tensors[0].new_zeros(peers, max(widths))
    for peer in range(peers):
        torch.cat([piece[peer].reshape(-1) for piece in pieces], out=parts[peer, : widths[peer]])
    return parts.view(-1)
