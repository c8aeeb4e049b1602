"""Communicators: process groups of our own over given ranks.

Only the members take part. `torch.distributed.new_group(use_local_synchronization=True)` names the new group after the number
of groups that the *calling* process has: members of different numbers of groups then wait for each other under different
names, and once a group was destroyed a name comes back, with stale addresses in the store. Here the first member draws a name
that was never used and tells the others through the parent group.

    name = broadcast(uuid, parent);  group = ProcessGroup(PrefixStore(name, default store), rank, size)

Cost: one object exchange on the parent group and a barrier on the new one, then one connection between each pair of members
(Gloo) or a communicator of buffers on the device (NCCL). Cannot be combined with a default NCCL group bound to a `device_id`
unless all ranks are members, because torch then splits communicators, which is collective over the world.
"""

from __future__ import annotations

import gc
import time
import uuid
import weakref
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as c10d

from gradweave.world import names
from gradweave.world.failures import reported

_made: list[ProcessGroup] = []
_controls: dict[ProcessGroup, ProcessGroup] = {}
_holders: weakref.WeakValueDictionary[tuple[int, str], Any] = weakref.WeakValueDictionary()
_in_memory: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()
_LINGER_S = 0.2


def create(ranks: tuple[int, ...], name: str, *, backend: str | None = None, timeout: timedelta | None = None) -> ProcessGroup:
    """A communicator over `ranks`, called by exactly these ranks with the same never used `name` (see `fresh_name`).

    Args:
        ranks: global ranks, ascending; the caller is one of them.
        backend: None takes the default group's.
        timeout: None takes torch's default of the backend.
    """
    default = c10d._get_default_group()
    store = c10d._get_default_store()
    chosen = c10d.Backend(backend or backend_of(default))
    label = name.rpartition(":")[0]
    with reported(f"making the communicator {label}", f"{list(ranks)}", default):
        group, _ = c10d._new_process_group_helper(
            len(ranks),
            ranks.index(default.rank()),
            list(ranks),
            chosen,
            store,
            c10d.GroupName(name),
            timeout=timeout or c10d._get_default_timeout(chosen),
            device_id=default.bound_device_id,
            group_desc=label,
        )
        c10d._world.pg_group_ranks[group] = {member: peer for peer, member in enumerate(ranks)}
        _made.append(cast(ProcessGroup, group))
        _in_memory.add(_made[-1])
        if serves_cpu(_made[-1]):
            group.barrier().wait()  # a member that ended the group at once would break the others' connecting
    return _made[-1]


def fresh_name(label: str, parent: ProcessGroup) -> str:
    """A communicator name that no group has had, equal on all members of `parent` (collective over `parent`)."""
    drawn: list[Any] = [f"gradweave:{label}:{uuid.uuid4().hex}"]
    with reported(f"naming the communicator {label}", parent.group_desc, parent):
        dist.broadcast_object_list(drawn, src=dist.get_global_rank(parent, 0), group=parent)
    return str(drawn[0])


def is_live(group: ProcessGroup) -> bool:
    """Whether torch still knows the group: it was not destroyed, alone or with its world."""
    return group in c10d._world.pg_map


def backend_of(group: ProcessGroup) -> str:
    """The backend as given at creation: "gloo", "nccl", "cpu:gloo,cuda:nccl"."""
    return str(c10d._world.pg_map[group][0]).lower()


def serves_cpu(group: ProcessGroup) -> bool:
    """Whether the group carries CPU tensors."""
    backend = backend_of(group)
    return backend in ("gloo", "mpi", "ucc", "fake", "undefined", "threaded") or "cpu:" in backend


def control(group: ProcessGroup) -> ProcessGroup:
    """A process group of the same ranks for CPU tensors: `group` itself where it serves them, else a kept Gloo group.

    The first call for a group of an accelerator's backend is collective over it and makes the Gloo group.
    """
    if serves_cpu(group):
        return group
    kept = _controls.get(group)
    if kept is None or not is_live(kept):
        ranks = tuple(dist.get_process_group_ranks(group))
        kept = _controls[group] = create(ranks, fresh_name("control", group), backend="gloo")
    return kept


def timeout_of(group: ProcessGroup) -> timedelta | None:
    """The timeout of a group's collectives; None where the backend does not tell (torch's debug wrapper)."""
    options = getattr(group._get_backend(torch.device(group._device_types[0])), "options", None)
    return getattr(options, "_timeout", None)


def destroy(group: ProcessGroup) -> None:
    """End one communicator made here, if torch has not ended it already; local, no other rank is asked."""
    if group in _made:
        _made.remove(group)
    if dist.is_initialized() and is_live(group):
        dist.destroy_process_group(group)


def destroy_named(name: str) -> None:
    """`destroy` for those who must not hold a reference: a process group's threads end with the last one."""
    for group in [group for group in _made if group.group_name == name]:
        destroy(group)


@names.on_reset
def destroy_all() -> None:
    """End every communicator made here that is still alive; objects that hold one are unusable afterwards."""
    _controls.clear()
    while _made:
        destroy(_made[-1])


def held_by(holder: Any, attribute: str) -> None:
    """Note an object whose attribute holds a process group, so that `end_world` can take it away."""
    _holders[id(holder), attribute] = holder


def let_go() -> None:
    """Take the process groups away from all that hold them (`held_by`)."""
    for (_, attribute), holder in list(_holders.items()):
        object.__setattr__(holder, attribute, None)
    _holders.clear()


def end_world() -> None:
    """End torch's default group and all others, and with them Gloo's threads, before the interpreter is torn down.

    A thread of Gloo lets go of the last tensor, or leaves a callback, by taking the interpreter's lock. In a dying interpreter
    that aborts the process ("terminate called without an active exception"). The threads end with the last reference to their
    process group: so those held here are dropped, those in cycles are collected, and where the user's program holds one (as
    torch's DDP does) the threads get a moment to finish.
    """
    if dist.is_initialized():
        _in_memory.update(c10d._world.pg_map)
    let_go()
    if dist.is_initialized():
        dist.destroy_process_group()
    names.forget_world()
    if len(_in_memory):
        gc.collect()
    if len(_in_memory):
        time.sleep(_LINGER_S)
