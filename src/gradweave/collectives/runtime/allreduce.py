"""All-reduce: every rank ends with the sum (average, maximum, ...) over the ranks.

    y = x_0 (+) x_1 (+) ... (+) x_{p-1}       with (+) the operation, for every element

Tensors of one dtype and device are fused into one message. Cost per rank: 2 (p-1)/p n bytes (ring), one copy of the input, and
32 bytes for the agreement check. Sparse COO tensors: all-gather of indices and values, summed in rank order.
Not differentiable: results carry no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradweave.collectives.runtime import launch, ops, wire
from gradweave.collectives.runtime.sparse import allreduce_sparse
from gradweave.errors import ConfigError
from gradweave.world.agree import agree
from gradweave.world.groups import Group, as_group

Finish = Callable[[], list[Tensor]]


def allreduce(
    x: Any, op: str = "sum", group: Any = "world", async_op: bool = False, in_place: bool = False, check: bool = True
) -> Any:
    """Reduce over the ranks of a group; every rank gets the result.

    Args:
        x: a tensor, a Python number, or a nested structure (dict, list, tuple) of them; equal shapes and dtypes on all ranks.
        op: "sum", "average" (divided by the group's size *before* the sum), "max", "min", "product". Complex values: sum and
            average. Bool: sum and max mean "any", product and min mean "all". Integers have no average.
        group: a group's name, a ProcessGroup, a DeviceMesh of one axis.
        async_op: return a `Pending` at once; its `wait()` gives the result. Do not touch `x` before when `in_place`.
        in_place: write the results into the tensors of `x` as well, and return `x`'s structure with these tensors.
        check: compare operation, structure, shapes and dtypes across ranks first: one exchange of 32 bytes per rank (about
            0.2 ms on loopback). Without it, different shapes give wrong numbers or a hang.

    Returns:
        A structure of the same kind; tensors without gradient, numbers where `x` has numbers.

    Raises:
        MismatchError: ranks gave different operations, structures, shapes or dtypes.
        ConfigError: the operation does not exist or does not fit a dtype; a leaf is no tensor and no number; `in_place` with
            a number.
        GroupError: the group is unknown or does not hold the caller.
        CollectiveError: a peer died or did not come within the group's timeout.

    Example:
        >>> import gradweave as gw
        >>> gw.allreduce({"loss": 0.5, "hits": torch.tensor([3, 4])})
        {'loss': 0.5, 'hits': tensor([3, 4])}
    """
    place = as_group(group)
    tree = launch.flatten(x, place)
    if check:
        agree({"call": "allreduce", "op": repr(op), "tensors": tree.describe()}, "the arguments of allreduce", place)
    for leaf, path, kind in zip(tree.tensors, tree.paths, tree.kinds, strict=True):
        ops.check_op(op, leaf, path)
        if in_place and kind is not Tensor:
            _refuse_number(path)

    def start() -> tuple[list[Any], Callable[[], Any]]:
        works, finish = reduce_tensors(tree.tensors, op, place, in_place)

        def result() -> Any:
            reduced = finish()
            return x if in_place else tree.rebuild(reduced)

        return works, result

    return launch.started(start, f"allreduce of {len(tree.tensors)} tensors", place, async_op)


def reduce_tensors(tensors: Sequence[Tensor], op: str, group: Group, in_place: bool) -> tuple[list[Any], Finish]:
    """Start one all-reduce per dtype and device; the second value finishes and returns the results in order."""
    works: list[Any] = []
    results: list[Tensor] = list(tensors)
    parts: list[tuple[list[int], Finish]] = []
    for indices in wire.by(lambda x: (x.layout, x.dtype, x.device), tensors):
        chosen = [tensors[i] for i in indices]
        if chosen[0].layout is torch.strided:
            work, finish_part = _dense(chosen, op, group, in_place)
            works.append(work)
        else:
            finish_part = _sparse(chosen, op, group, in_place)
        parts.append((indices, finish_part))

    def finish() -> list[Tensor]:
        for indices, finish_part in parts:
            for index, value in zip(indices, finish_part(), strict=True):
                results[index] = value
        return results

    return works, finish


def _dense(tensors: list[Tensor], op: str, group: Group, in_place: bool) -> tuple[Any, Finish]:
    own = in_place and len(tensors) == 1 and tensors[0].is_contiguous()
    flat = tensors[0].view(-1) if own else _fused(tensors)
    message, torch_op = ops.to_message(flat, op, group.size)
    work = dist.all_reduce(message, op=torch_op, group=group.pg, async_op=True)

    def finish() -> list[Tensor]:
        reduced = ops.from_message(message, tensors[0].dtype).split([x.numel() for x in tensors])
        results = [part.view(x.shape) for part, x in zip(reduced, tensors, strict=True)]
        if in_place:
            for x, result in zip(tensors, results, strict=True):
                if x.data_ptr() != result.data_ptr():
                    x.copy_(result)
        return results

    return work, finish


def _sparse(tensors: list[Tensor], op: str, group: Group, in_place: bool) -> Finish:
    results = [allreduce_sparse(x, op, group) for x in tensors]
    if in_place:
        for x, result in zip(tensors, results, strict=True):
            x.copy_(result)
    return lambda: results


def _fused(tensors: list[Tensor]) -> Tensor:
    """An own 1-dim copy of the tensors, one after another."""
    return tensors[0].reshape(-1).clone() if len(tensors) == 1 else torch.cat([x.reshape(-1) for x in tensors])


def _refuse_number(path: str) -> None:
    raise ConfigError(
        "in_place=True with a Python number" + (f" at {path}" if path else ""),
        rule="only tensors can be changed in place",
        fix="leave in_place out and use the returned value",
    )
