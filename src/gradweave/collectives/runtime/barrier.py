"""Barrier: nobody goes on before everybody has come.

An all-reduce of one element on the control group. On a timeout, the ranks that did come call the roll through the store, and
each one's error names those that did not; the message stays under way, so that a late rank still passes.

Cost: one message of 4 bytes per rank and step of the all-reduce; it waits for the host, not for streams.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gradweave.world.failures import reported
from gradweave.world.groups import as_group, control_group
from gradweave.world.setup import as_timedelta


def barrier(group: Any = "world", timeout: float | timedelta | None = None) -> None:
    """Wait until every rank of the group has called `barrier`.

    Args:
        group: a group's name, a ProcessGroup, a DeviceMesh of one axis.
        timeout: seconds (or a timedelta) to wait; None takes the group's.

    Raises:
        CollectiveError: ranks did not come in time; the message names them, on every rank that came.
        ConfigError: the timeout is not a positive number.
        GroupError: the group is unknown or does not hold the caller.

    Example:
        >>> import gradweave as gw
        >>> gw.barrier(timeout=10)
    """
    limit = None if timeout is None else as_timedelta(timeout)
    place = as_group(group)
    if place.size == 1:
        return
    pg = control_group(place)
    with reported("the barrier", place.name, pg):
        arrival = dist.all_reduce(torch.zeros(1), group=pg, async_op=True)
        arrival.wait() if limit is None else arrival.wait(limit)
