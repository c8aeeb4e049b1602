"""The table of named groups.

A name stands for a list of global ranks and, where torch is in use, a communicator. This module imports no torch: it asks
torch.distributed only when the program has imported it, so that split strategies can check groups on a laptop without torch.

    name -> Entry(name, ranks, handle);   "world" and "hccl_world_group" -> every rank of the current world

The table belongs to one world: when the default process group goes or changes, the names registered under it are forgotten.
Cost: no communication.
"""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradweave.errors import GroupError

WORLD = "world"
WORLD_NAMES = (WORLD, "hccl_world_group")


@dataclass(frozen=True)
class Entry:
    """One named group: its global ranks, ascending, and its communicator (None without torch, or on non-members)."""

    name: str
    ranks: tuple[int, ...]
    handle: Any = None


@dataclass
class _Table:
    named: dict[str, Entry]
    owner: Any = None


_table = _Table({})
_process = os.getpid()
_reset_hooks: list[Callable[[], None]] = []


def lookup(name: str) -> Entry:
    """The group of that name.

    Raises:
        GroupError: no group has that name.

    Example:
        >>> lookup("hccl_world_group").name
        'world'
    """
    named = _current().named
    if name in WORLD_NAMES:
        return _world_entry()
    if not isinstance(name, str) or name not in named:
        raise GroupError(
            f"group {name!r} is unknown",
            rule=f"the groups are {', '.join(known())}",
            fix=f"create it on every rank first: gw.new_group({name!r}, ranks)",
            rank=my_rank(),
        )
    return named[name]


def require_member(name: str) -> Entry:
    """The group of that name, of which the caller must be a member.

    Raises:
        GroupError: no group has that name, or the caller's rank is not in it.
    """
    entry = lookup(name)
    if my_rank() not in entry.ranks:
        raise GroupError(
            f"rank {my_rank()} is not in the group",
            rule=f"only its members {list(entry.ranks)} may use it",
            fix="make the call on those ranks only, or choose another group",
            rank=my_rank(),
            group=entry.name,
        )
    return entry


def known() -> list[str]:
    """Names of all groups, the world first."""
    return [WORLD, *sorted(_current().named)]


def add(name: str, ranks: tuple[int, ...], handle: Any = None) -> Entry:
    """Register a group; the checks are `gradweave.world.new_group`'s.

    Raises:
        GroupError: the name is taken.
    """
    named = _current().named
    if name in WORLD_NAMES or name in named:
        raise GroupError(
            f"the group name {name!r} is taken",
            rule=f"names are unique; in use are {', '.join([*WORLD_NAMES, *sorted(named)])}",
            fix="choose another name",
            rank=my_rank(),
        )
    named[name] = Entry(name, ranks, handle)
    return named[name]


def my_rank() -> int:
    """The caller's global rank. Where no process group exists yet: the launcher's RANK, or 0 when there is no launcher."""
    group = _default_group()
    return _launcher("RANK", 0) if group is None else int(group.rank())


def world_size() -> int:
    """The number of processes in the world. Where no process group exists yet: the launcher's WORLD_SIZE, or 1."""
    group = _default_group()
    return _launcher("WORLD_SIZE", 1) if group is None else int(group.size())


def _launcher(variable: str, otherwise: int) -> int:
    """What torchrun says, when it says both rank and size; `gw.init` is where a half-set environment is refused."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() and "RANK" in os.environ and "WORLD_SIZE" in os.environ else otherwise


def on_reset(hook: Callable[[], None]) -> Callable[[], None]:
    """Let `reset_registries` also call `hook`; usable as a decorator on a registry's own reset function."""
    if hook not in _reset_hooks:
        _reset_hooks.append(hook)
    return hook


def reset_registries() -> None:
    """End the wrappers and their communicators, forget named groups and split strategies; torch's default group stays.

    What was registered last, by the module that stands highest, is reset first; one that raises does not keep the others.
    """
    _table.named.clear()
    with contextlib.ExitStack() as stack:
        for hook in _reset_hooks:
            stack.callback(hook)


def forget_world() -> None:
    """Let go of the default group, which has ended."""
    _table.named.clear()
    _table.owner = None


def is_forked_child() -> bool:
    """Whether this process was forked from the one that imported Gradweave: its communicators belong to the parent."""
    return os.getpid() != _process


def _default_group() -> Any:
    """Torch's default process group, or None; does not import torch."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return dist.group.WORLD


def _world_entry() -> Entry:
    return Entry(WORLD, tuple(range(world_size())), _default_group())


def _current() -> _Table:
    """The table, emptied first when another world (or none) has replaced the one it was filled for."""
    owner = _default_group()
    known = None if _table.owner is None else _table.owner()
    if known is not owner or (known is None and _table.owner is not None):
        _table.named.clear()
        _table.owner = None if owner is None else weakref.ref(owner)
    return _table
