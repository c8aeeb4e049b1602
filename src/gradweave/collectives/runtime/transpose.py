"""All-to-all: rank r sends part s of its rows to rank s, and receives part r of everyone's.

    y_r = concatenate(part r of x_0, part r of x_1, ..., part r of x_{p-1})

All tensors of a device travel as one message of bytes per pair of ranks. Cost per rank: what leaves for other ranks, one copy
in and one out, and an exchange of shapes and splits (always: a rank cannot know what it will receive).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradweave.collectives.runtime import launch, wire
from gradweave.errors import ConfigError
from gradweave.world.agree import exchange, require_equal
from gradweave.world.groups import Group, as_group


def alltoall(x: Any, splits: Sequence[int] | None = None, group: Any = "world", async_op: bool = False) -> Any:
    """Send parts of dim 0 to the peers and concatenate what they send.

    Args:
        x: a tensor [n, ...], or a nested structure of such. Dim 0 may differ between ranks, the rest may not.
        splits: rows for each peer, p integers that sum to n; may differ between ranks. None: n // p, one more for the first
            n mod p peers.
        group: a group's name, a ProcessGroup, a DeviceMesh of one axis.
        async_op: return a `Pending` after the exchange of shapes; its `wait()` gives the result.

    Returns:
        The same structure with tensors [received rows, ...], in peer order. With `splits` given, a pair of it and the list of
        rows received from each peer.

    Raises:
        MismatchError: ranks gave different structures, dtypes or shapes beyond dim 0, or some give `splits` and some do not.
        ConfigError: `splits` are malformed on some rank (raised on every rank), or a leaf is a number, 0-dim or sparse.
        GroupError, CollectiveError: as `gradweave.allreduce`.

    Example:
        >>> import gradweave as gw
        >>> gw.alltoall(torch.tensor([1, 2]), splits=[2])
        (tensor([1, 2]), [2])
    """
    place = as_group(group)
    tree = launch.flatten(x, place)
    problem = _problem(splits, [t.shape[0] for t in tree.tensors if t.ndim], place)
    mine = [] if problem else _rows(tree.tensors, splits, place)
    everyone = exchange(
        [{"tensors": tree.describe(drop_dim0=True), "splits given": splits is not None}, problem, mine], place, "alltoall"
    )
    require_equal([told[0] for told in everyone], "the arguments of alltoall", place)
    wire.require_dense(tree.tensors, tree.paths, "alltoall")
    wire.require_dim0(tree.tensors, tree.paths, "alltoall")
    _raise_problem([told[1] for told in everyone], place)
    rows = [told[2] for told in everyone]

    def start() -> tuple[list[Any], Callable[[], Any]]:
        works, finish = _exchange_tensors(tree.tensors, rows, place)
        received = [sent[0][place.rank] for sent in rows] if splits is not None and tree.tensors else []
        return works, lambda: tree.rebuild(finish()) if splits is None else (tree.rebuild(finish()), received)

    return launch.started(start, f"alltoall of {len(tree.tensors)} tensors", place, async_op)


def _exchange_tensors(
    tensors: Sequence[Tensor], rows: list[list[list[int]]], group: Group
) -> tuple[list[Any], Callable[[], list[Tensor]]]:
    """Start one all-to-all per device; rows[a][i][b] is what peer a sends of tensor i to peer b."""
    results: list[Tensor] = list(tensors)
    works, parts = [], []
    for indices in wire.by(lambda t: t.device, tensors):
        dtypes = [tensors[i].dtype for i in indices]
        sent = [_shapes(tensors, indices, rows[group.rank], peer) for peer in range(group.size)]
        received = [_shapes(tensors, indices, rows[peer], group.rank) for peer in range(group.size)]
        sent_bytes = [wire.length(shapes, dtypes) for shapes in sent]
        received_bytes = [wire.length(shapes, dtypes) for shapes in received]
        outgoing = torch.zeros(sum(sent_bytes), dtype=torch.uint8, device=tensors[indices[0]].device)
        pieces = [tensors[i].split(rows[group.rank][i]) for i in indices]
        for peer, part in enumerate(outgoing.split(sent_bytes)):
            wire.pack([piece[peer] for piece in pieces], part)
        incoming = outgoing.new_empty(sum(received_bytes))
        works.append(dist.all_to_all_single(incoming, outgoing, received_bytes, sent_bytes, group=group.pg, async_op=True))
        parts.append((indices, dtypes, received, incoming.split(received_bytes)))

    def finish() -> list[Tensor]:
        for indices, dtypes, received, incoming in parts:
            per_peer = [wire.unpack(part, shapes, dtypes) for part, shapes in zip(incoming, received, strict=True)]
            for index, pieces in zip(indices, zip(*per_peer, strict=True), strict=True):
                results[index] = torch.cat(pieces)
        return results

    return works, finish


def _shapes(tensors: Sequence[Tensor], indices: list[int], rows: list[list[int]], peer: int) -> list[list[int]]:
    return [[rows[i][peer], *tensors[i].shape[1:]] for i in indices]


def _rows(tensors: Sequence[Tensor], splits: Sequence[int] | None, group: Group) -> list[list[int]]:
    """Per tensor, the rows for each peer."""
    return [wire.shares(t.shape[0] if t.ndim else 0, group.size) if splits is None else list(splits) for t in tensors]


def _problem(splits: Any, rows: list[int], group: Group) -> str | None:
    """What is wrong with this rank's splits."""
    if splits is None:
        return None
    if not isinstance(splits, (list, tuple)) or len(splits) != group.size:
        return f"splits={splits!r} for {group.size} peers"
    for part in splits:
        if isinstance(part, bool) or not isinstance(part, int) or part < 0:
            return f"splits={list(splits)} holds {part!r}"
    wrong = [n for n in rows if n != sum(splits)]
    return f"splits={list(splits)} sum to {sum(splits)}, the tensor has {wrong[0]} rows" if wrong else None


def _raise_problem(problems: list[str | None], group: Group) -> None:
    """Raise on every rank what is wrong on any: the others would wait for rows that do not come."""
    for peer, problem in enumerate(problems):
        if problem is not None:
            raise ConfigError(
                f"{problem}, on rank {group.ranks[peer]}",
                rule="splits hold one integer of at least 0 for each peer and sum to the size of dim 0",
                fix="leave splits out for equal parts",
                rank=group.ranks[group.rank],
                group=group.name,
            )
