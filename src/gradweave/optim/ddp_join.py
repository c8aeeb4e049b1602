"""Uneven inputs: a rank that has run out answers the collectives of those that have not.

Before each forward all ranks exchange (am I live, do I reduce this time); a joined rank then takes part with zeros, and with no
used flag. Division is by the group size, or by the number of live ranks when `divide_by_initial_world_size=False`; it is
agreed on in that exchange, before any gradient is divided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.algorithms.join import JoinHook

from gradweave.optim import ddp_sync

if TYPE_CHECKING:
    from gradweave.optim.ddp import DistributedDataParallel


def _exchange(ddp: DistributedDataParallel, live: bool, reduces: bool) -> tuple[int, int]:
    counts = torch.tensor([int(live), int(reduces)], dtype=torch.int64)
    with ddp._engine.watch.naming("the exchange of who has inputs left (join)"):
        ddp._engine.control.allreduce([counts]).wait()
    return int(counts[0]), int(counts[1])


def tell_joined(ddp: DistributedDataParallel) -> None:
    """On a live rank, before its forward: say so, and learn how many are live."""
    reduces = torch.is_grad_enabled() and ddp.require_backward_grad_sync
    live, _ = _exchange(ddp, True, reduces)
    ddp._engine.live_size = None if ddp._divide_by_initial else live


class DDPJoinHook(JoinHook):
    """What a joined rank does in place of an iteration, and when all have joined."""

    def __init__(self, ddp: DistributedDataParallel, divide_by_initial: bool) -> None:
        self._ddp = ddp
        ddp._divide_by_initial = divide_by_initial
        super().__init__()

    def main_hook(self) -> None:
        """Shadow one forward and backward of the live ranks."""
        ddp = self._ddp
        live, reduces = _exchange(ddp, False, False)
        if ddp.will_sync_module_buffers():
            ddp_sync.sync_buffers(ddp, live=False)
        if reduces:
            ddp._engine.live_size = None if ddp._divide_by_initial else live
            ddp._engine.tuning_pauses = True
            ddp._close_iteration()
            for slot in ddp._engine.table.slots:
                slot.param.grad = None  # what an earlier step left is no share of this one
            ddp._engine.shadow = True
            try:
                ddp._engine.finish()
            finally:
                ddp._engine.shadow = False
            for slot in ddp._engine.table.slots:
                slot.param.grad = None
        ddp.require_forward_param_sync = bool(reduces)

    def post_hook(self, is_last_joiner: bool) -> None:
        """Take the model of a rank that trained to the end."""
        ddp = self._ddp
        ddp._engine.live_size = None
        ddp_sync.sync_module(ddp, ddp_sync.common_peer(ddp, is_last_joiner), buffers=ddp.forward_sync_buffers)
