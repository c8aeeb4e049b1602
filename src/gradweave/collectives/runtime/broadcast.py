"""Broadcast: every rank ends with the root's values, in place.

    x_r <- x_root        for tensors, structures, state_dicts, modules (parameters and buffers) and optimizers (state, settings)

Tensors of a device travel in messages of up to 25 MiB; larger ones travel alone and, where contiguous, without a copy. Cost per
rank: n bytes (a tree or a pipeline of the backend), an agreement check of 32 bytes, and one exchange of objects when there are
plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradweave.collectives.runtime import launch, wire
from gradweave.collectives.runtime.containers import Found, collect, replace
from gradweave.collectives.runtime.optimizer_state import adopt_optimizer
from gradweave.errors import ConfigError
from gradweave.world import names
from gradweave.world.agree import agree
from gradweave.world.failures import reported
from gradweave.world.groups import Group, as_group, control_group

MESSAGE_BYTES = 25 * 2**20


def broadcast(x: Any, root: int = 0, group: Any = "world", async_op: bool = False, check: bool = True) -> Any:
    """Give every rank the root's values, in place.

    Args:
        x: a tensor; a nested structure (dict, list, tuple) of tensors and plain values, such as a state_dict; an
            `nn.Module` (its parameters and buffers); a torch optimizer (its state, made where it is missing, and the settings
            of its parameter groups).
        root: the peer whose values count: an index into the group, which for the world is the global rank.
        group: a group's name, a ProcessGroup, a DeviceMesh of one axis.
        async_op: return a `Pending` once the messages are under way; `x` holds the values after its `wait()`.
        check: compare root, structure, shapes and dtypes across ranks first (32 bytes per rank).

    Returns:
        `x`, its tensors overwritten. Plain values in dicts and lists are replaced; where they cannot be (a bare number, a
        tuple), the returned structure holds them.

    Raises:
        MismatchError: ranks gave different roots, structures, shapes or dtypes.
        ConfigError: the root is not a peer of the group, or a tensor is sparse.
        GroupError, CollectiveError: as `gradweave.allreduce`.

    Example:
        >>> import gradweave as gw
        >>> gw.broadcast({"w": torch.tensor([1.0]), "epoch": 3}, root=0)
        {'w': tensor([1.]), 'epoch': 3}
    """
    place = as_group(group)
    if isinstance(x, torch.optim.Optimizer):
        state, restore = adopt_optimizer(x, _checked_root(root, place), place, check)
        return _broadcast(state, lambda _: restore() or x, root, place, async_op, check=False)
    if isinstance(x, nn.Module):
        tensors = {**dict(x.named_parameters()), **{f"buffer {name}": buffer for name, buffer in x.named_buffers()}}
        return _broadcast(tensors, lambda _: x, root, place, async_op, check)
    return _broadcast(x, lambda result: result, root, place, async_op, check)


def _broadcast(x: Any, result_of: Callable[[Any], Any], root: int, group: Group, async_op: bool, check: bool) -> Any:
    found = collect(x)
    if check:
        agree({"call": "broadcast", "root": repr(root), **found.describe()}, "the arguments of broadcast", group)
    _checked_root(root, group)
    wire.require_dense(found.tensors, found.tensor_paths, "broadcast")
    values = _plain_values(found, root, group)

    def start() -> tuple[list[Any], Callable[[], Any]]:
        works, finish = send_tensors(found.tensors, root, group)

        def result() -> Any:
            finish()
            return result_of(replace(x, values))

        return works, result

    return launch.started(start, f"broadcast of {len(found.tensors)} tensors from peer {root}", group, async_op)


def send_tensors(tensors: Sequence[Tensor], root: int, group: Group) -> tuple[list[Any], Callable[[], None]]:
    """Start the messages; the second value writes what arrived into the tensors of the other ranks."""
    works, writers = [], []
    source = group.ranks[root]
    for bunch in _bunches([t.detach() for t in tensors]):
        alone = len(bunch) == 1 and bunch[0].is_contiguous()
        shapes, dtypes = [t.shape for t in bunch], [t.dtype for t in bunch]
        if alone:
            message = wire.as_bytes(bunch[0])
        else:
            message = torch.empty(wire.length(shapes, dtypes), dtype=torch.uint8, device=bunch[0].device)
            if group.rank == root:
                wire.pack(bunch, message)
        works.append(dist.broadcast(message, src=source, group=group.pg, async_op=True))
        if not alone and group.rank != root:
            writers.append((bunch, message, shapes, dtypes))

    def finish() -> None:
        for bunch, message, shapes, dtypes in writers:
            for target, arrived in zip(bunch, wire.unpack(message, shapes, dtypes), strict=True):
                target.copy_(arrived)

    return works, finish


def _bunches(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one device, in order, up to the message size; a larger one alone."""
    for indices in wire.by(lambda t: t.device, tensors):
        bunch: list[Tensor] = []
        n_bytes = 0
        for x in (tensors[i] for i in indices):
            size = wire.aligned(x.numel() * x.element_size())
            if bunch and n_bytes + size > MESSAGE_BYTES:
                yield bunch
                bunch, n_bytes = [], 0
            bunch.append(x)
            n_bytes += size
        yield bunch


def _plain_values(found: Found, root: int, group: Group) -> list[Any]:
    """The root's plain values; no communication where there are none."""
    if not found.values or group.size == 1:
        return found.values
    sent = [found.values]
    with reported("broadcast of plain values", group.name, group.pg):
        dist.broadcast_object_list(sent, src=group.ranks[root], group=control_group(group))
    return list(sent[0])


def _checked_root(root: Any, group: Group) -> int:
    if isinstance(root, bool) or not isinstance(root, int) or not 0 <= root < group.size:
        raise ConfigError(
            f"root={root!r} in a group of {group.size}",
            rule=f"root is a peer index from 0 to {group.size - 1}",
            fix=f"root=0 is rank {group.ranks[0]}, the first of the group's ranks {list(group.ranks)}",
            rank=names.my_rank(),
            group=group.name,
        )
    return root
