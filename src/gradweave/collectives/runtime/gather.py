"""All-gather: every rank ends with the tensors of all ranks, one after another on dim 0.

    y = concatenate(x_0, x_1, ..., x_{p-1})        rows may differ in number between ranks, the other dims may not

All tensors of a device travel as one message of bytes, padded to the longest rank's. Cost per rank: (p-1) messages of that
length, a buffer of p of them, one copy in and one out; with `check`, one exchange of shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradweave.collectives.runtime import launch, wire
from gradweave.collectives.runtime.tree import Tree
from gradweave.world.agree import exchange, require_equal
from gradweave.world.groups import Group, as_group


def allgather(x: Any, group: Any = "world", async_op: bool = False, check: bool = True) -> Any:
    """Concatenate every rank's tensors on dim 0, in peer order.

    Args:
        x: a tensor, a Python number, or a nested structure of them. Dim 0 may differ between ranks, the rest may not.
        group: a group's name, a ProcessGroup, a DeviceMesh of one axis.
        async_op: return a `Pending` after the exchange of shapes; its `wait()` gives the result.
        check: exchange and compare the shapes first (one exchange of objects). `check=False` is for equal shapes only.

    Returns:
        The same structure; a tensor [n, ...] becomes [sum of n, ...], a 0-dim tensor [p], a number a list of p numbers.

    Raises:
        MismatchError: ranks gave different structures, dtypes or shapes beyond dim 0.
        ConfigError: a leaf is sparse, or no tensor and no number.
        GroupError, CollectiveError: as `gradweave.allreduce`.

    Example:
        >>> import gradweave as gw
        >>> gw.allgather((torch.tensor([1, 2]), 7))
        (tensor([1, 2]), [7])
    """
    place = as_group(group)
    tree = launch.flatten(x, place)
    shapes = _shapes(tree, place, check)
    wire.require_dense(tree.tensors, tree.paths, "allgather")
    rows = [t.reshape(1) if t.ndim == 0 else t for t in tree.tensors]

    def start() -> tuple[list[Any], Callable[[], Any]]:
        works, finish = gather_tensors(rows, shapes, place)
        return works, lambda: tree.rebuild(finish())

    return launch.started(start, f"allgather of {len(rows)} tensors", place, async_op)


def gather_tensors(
    tensors: Sequence[Tensor], shapes: Sequence[Sequence[wire.Shape]], group: Group
) -> tuple[list[Any], Callable[[], list[Tensor]]]:
    """Start the gathering of tensors with a dim 0, given every peer's shapes; one message per device."""
    results: list[Tensor] = list(tensors)
    works, parts = [], []
    for indices in wire.by(lambda t: t.device, tensors):
        dtypes = [tensors[i].dtype for i in indices]
        layouts = [[peer[i] for i in indices] for peer in shapes]
        longest = max(wire.length(layout, dtypes) for layout in layouts)
        mine = torch.zeros(longest, dtype=torch.uint8, device=tensors[indices[0]].device)
        wire.pack([tensors[i] for i in indices], mine)
        everyone = mine.new_empty(group.size * longest)
        works.append(dist.all_gather_single(everyone, mine, group=group.pg, async_op=True))
        parts.append((indices, dtypes, layouts, everyone))

    def finish() -> list[Tensor]:
        for indices, dtypes, layouts, everyone in parts:
            rows = everyone.view(group.size, -1)
            per_peer = [wire.unpack(rows[peer], layout, dtypes) for peer, layout in enumerate(layouts)]
            for index, pieces in zip(indices, zip(*per_peer, strict=True), strict=True):
                results[index] = torch.cat(pieces)
        return results

    return works, finish


def _shapes(tree: Tree, group: Group, check: bool) -> list[list[list[int]]]:
    """Every peer's shapes, a 0-dim tensor as [1]; compared unless the caller promises equal ones."""
    mine = [list(t.shape) or [1] for t in tree.tensors]
    if not check:
        return [mine] * group.size
    everyone = exchange([tree.describe(drop_dim0=True), mine], group, "allgather")
    require_equal([described for described, _ in everyone], "the tensors of allgather", group)
    return [shapes for _, shapes in everyone]
