"""Groups of ranks that communicate.

A group may be given by name, as torch's ProcessGroup, as a DeviceMesh of one axis or as a `Group`; `as_group` turns each into a
`Group`. The engine's collectives run on `private_group` and its objects travel on `control_group`, so that they never
interleave with the user's own collectives.

Cost: `as_group` none (it may initialise a world); `new_group` two small exchanges over the world and a communicator; a private
group is a communicator: one connection (Gloo) or some megabytes of device memory (NCCL) per pair of peers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import ProcessGroup

from gradweave.errors import ConfigError, GroupError
from gradweave.world import communicators, names, setup
from gradweave.world.agree import agree

_LONGEST_NAME = 200


@dataclass(frozen=True)
class Group:
    """Ranks that communicate, seen from one of them.

    Attributes:
        name: the registered name, or torch's for a ProcessGroup that has no name here.
        ranks: global ranks, ascending.
        rank: the caller's peer index: its position in `ranks`.
        pg: torch's process group; None once the world has been left (`shutdown`).
    """

    name: str
    ranks: tuple[int, ...]
    rank: int
    pg: ProcessGroup = field(repr=False, hash=False)

    def __post_init__(self) -> None:
        communicators.held_by(self, "pg")

    @property
    def size(self) -> int:
        """The number of peers."""
        return len(self.ranks)

    @property
    def backend(self) -> str:
        """The backend as given at creation: "gloo", "nccl", "cpu:gloo,cuda:nccl".

        Raises:
            GroupError: the world was left.
        """
        return communicators.backend_of(_live(self).pg)


def as_group(group: Any = None) -> Group:
    """The `Group` of a name, ProcessGroup, DeviceMesh of one axis or `Group`; None is the world.

    When nothing is initialised, the world is: from torchrun's environment, or as a world of one.

    Raises:
        GroupError: the name is unknown, the caller's rank is not a member, or the communicator was destroyed.
        ConfigError: something else was given, or a mesh of several axes.

    Example:
        >>> as_group("world").size
        1
    """
    if not setup.is_initialized():
        setup.init()
    setup.leave_at_exit()
    if group is None or isinstance(group, str):
        return _from_name(names.WORLD if group is None else group)
    if isinstance(group, Group):
        return _live(group)
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise GroupError(
            f"rank {names.my_rank()} is not in the process group it was given",
            rule="only members of a group may use it",
            fix="make the call on the group's ranks only",
            rank=names.my_rank(),
        )
    if isinstance(group, ProcessGroup):
        return _from_process_group(group)
    if hasattr(group, "get_group") and hasattr(group, "mesh_dim_names"):
        return _from_mesh(group)
    raise ConfigError(
        f"{group!r} is not a group",
        rule="a group is a name, a torch.distributed.ProcessGroup, a DeviceMesh of one axis, or None for the world",
        fix='pass group="world", or a name made with gw.new_group',
    )


def rank(group: Any = names.WORLD) -> int:
    """The caller's rank in a group: global for the world, the peer index otherwise. Before `init`, what the launcher says.

    Args:
        group: as `as_group` takes it.

    Raises:
        GroupError: the group is unknown, or the caller is not in it.

    Example:
        >>> rank(), rank("hccl_world_group")
        (0, 0)
    """
    if isinstance(group, str):
        return names.require_member(group).ranks.index(names.my_rank())
    return as_group(group).rank


def size(group: Any = names.WORLD) -> int:
    """The number of processes in a group. Before `init`, what the launcher says.

    Args:
        group: as `as_group` takes it; a name is also answered on ranks outside the group.

    Raises:
        GroupError: the group is unknown.

    Example:
        >>> size()
        1
    """
    return len(names.lookup(group).ranks) if isinstance(group, str) else as_group(group).size


def new_group(
    name: str, ranks: list[int] | tuple[int, ...], timeout: float | timedelta | None = None, backend: str | None = None
) -> Group | None:
    """Name a part of the world; every rank of the world makes the same call, members or not.

    Args:
        name: not in use, not empty.
        ranks: global ranks, each once, in any order; peers are numbered in ascending rank order.
        timeout: of the group's collectives, in seconds or as a timedelta; None takes the world's.
        backend: None takes the world's.

    Returns:
        The group, or None on ranks outside it.

    Raises:
        ConfigError: the name or a rank is malformed, or a rank is given twice or out of range.
        GroupError: the name is taken.
        MismatchError: ranks of the world gave different values.

    Example:
        >>> new_group("solo", [0]).ranks
        (0,)
    """
    world = as_group()
    problem = _problem(name, ranks, world.size, timeout)
    shown = repr(ranks) if isinstance(ranks, (list, tuple, range)) else type(ranks).__name__
    given = {"name": name, "ranks": shown if problem else sorted(ranks), "timeout": str(timeout), "backend": backend}
    agree(given, f"the arguments of new_group({name!r})", world)
    if problem is not None:
        raise problem
    members = tuple(sorted(ranks))
    limit = communicators.timeout_of(world.pg) if timeout is None else setup.as_timedelta(timeout)
    unique = communicators.fresh_name(f"group:{name}", control_group(world))
    if names.my_rank() not in members:
        names.add(name, members)
        return None
    names.add(name, members, communicators.create(members, unique, backend=backend, timeout=limit))
    return _from_name(name)


def private_group(group: Group, label: str, timeout: float | timedelta | None = None) -> ProcessGroup:
    """A communicator of the group's ranks and backend for `label` alone (collective over the group).

    Each call makes a new one; keep it. It ends with `gradweave.world.reset_registries`, `shutdown`, or torch's
    destroy_process_group.

    Args:
        label: what it is for; shown in torch's debug output.
        timeout: of its collectives; None takes the group's.
    """
    limit = communicators.timeout_of(group.pg) if timeout is None else setup.as_timedelta(timeout)
    unique = communicators.fresh_name(f"{label}:{group.name}", group.pg)
    return communicators.create(group.ranks, unique, backend=group.backend, timeout=limit)


def control_group(group: Group) -> ProcessGroup:
    """A process group of the same ranks that carries CPU tensors, for objects and checks.

    The group itself where its backend serves CPU tensors (then nothing is made); otherwise a Gloo group, made at the first call
    (collective over the group) and kept.
    """
    return communicators.control(group.pg)


def _from_name(name: str) -> Group:
    entry = names.require_member(name)
    return Group(entry.name, entry.ranks, entry.ranks.index(names.my_rank()), entry.handle)


def _from_process_group(pg: ProcessGroup) -> Group:
    if pg is dist.group.WORLD:
        return _from_name(names.WORLD)
    if not communicators.is_live(pg):
        raise _destroyed(pg.group_desc)
    for name in names.known():
        if names.lookup(name).handle is pg:
            return _from_name(name)
    ranks = tuple(dist.get_process_group_ranks(pg))
    label = f"{pg.group_desc} {pg.group_name}" if pg.group_desc != "undefined" else pg.group_name
    return Group(label, ranks, ranks.index(names.my_rank()), pg)


def _from_mesh(mesh: Any) -> Group:
    if mesh.ndim != 1:
        raise ConfigError(
            f"a DeviceMesh of {mesh.ndim} axes {mesh.mesh_dim_names}",
            rule="a group is one axis of a mesh",
            fix="pick an axis, for example mesh['dp'], or flatten the mesh",
        )
    return _from_process_group(mesh.get_group())


def _live(group: Group) -> Group:
    if not communicators.is_live(group.pg):
        raise _destroyed(group.name)
    return group


def _destroyed(name: str) -> GroupError:
    return GroupError(
        f"the communicator of group {name!r} was destroyed",
        rule="a group ends with destroy_process_group, shutdown or reset_registries",
        fix="create the group, and what was built on it, again",
        rank=names.my_rank(),
        group=name,
    )


def _problem(name: Any, ranks: Any, world_size: int, timeout: Any) -> Exception | None:
    """What is wrong with new_group's arguments; raised after the agreement check, so that no rank waits for another."""
    try:
        _check_name(name)
        _check_ranks(ranks, world_size)
        if timeout is not None:
            setup.as_timedelta(timeout)
    except (ConfigError, GroupError) as error:
        return error
    return None


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name or len(name) > _LONGEST_NAME:
        shown = f"{name[:40]!r}... of {len(name)} characters" if isinstance(name, str) and name else repr(name)
        raise ConfigError(
            f"the group name {shown}",
            rule=f"a name is a string of 1 to {_LONGEST_NAME} characters",
            fix='for example new_group("even", [0, 2])',
        )
    if name in names.WORLD_NAMES or name in names.known():
        raise GroupError(
            f"the group name {name!r} is taken",
            rule=f"names are unique; in use are {', '.join(sorted({*names.WORLD_NAMES, *names.known()}))}",
            fix="choose another name",
            rank=names.my_rank(),
        )


def _check_ranks(ranks: Any, world_size: int) -> None:
    rule, fix = f"ranks are different integers from 0 to {world_size - 1}, at least one", "for example ranks=[0]"
    if not isinstance(ranks, (list, tuple, range)) or not ranks:
        raise ConfigError(f"ranks={ranks!r}", rule=rule, fix=fix)
    for position, rank in enumerate(ranks):
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < world_size:
            raise ConfigError(f"ranks[{position}] is {rank!r} in a world of {world_size}", rule=rule, fix=fix)
        if rank in ranks[:position]:
            raise ConfigError(f"rank {rank} is given twice, in {list(ranks)}", rule=rule, fix="name each rank once")
