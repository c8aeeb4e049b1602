"""Keeping the replicas of a module equal: parameters and buffers at construction, buffers before a forward."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradweave.collectives import broadcast

if TYPE_CHECKING:
    from gradweave.optim.ddp import DistributedDataParallel


def module_buffers(ddp: DistributedDataParallel) -> dict[str, Tensor]:
    """The buffers that are kept equal."""
    return {
        name: buffer
        for name, buffer in ddp.module.named_buffers()
        if name not in ddp.parameters_to_ignore and buffer is not None
    }


def sync_module(ddp: DistributedDataParallel, root: int, buffers: bool) -> None:
    """Copy parameters (and buffers) of peer `root` to all peers."""
    tensors = {name: p.detach() for name, p in ddp.module.named_parameters() if name not in ddp.parameters_to_ignore}
    if buffers:
        tensors.update(module_buffers(ddp))
    _send(ddp, tensors, root)


def sync_buffers(ddp: DistributedDataParallel, live: bool = True) -> None:
    """Copy the buffers of the authoritative peer to all peers: peer 0, or under join the last peer that still has inputs."""
    _send(ddp, module_buffers(ddp), common_peer(ddp, live) if ddp._join_config.enable else 0)


def common_peer(ddp: DistributedDataParallel, candidate: bool) -> int:
    """The highest peer that is a candidate, agreed on by all."""
    engine = ddp._engine
    highest = torch.tensor([engine.rank if candidate else -1], dtype=torch.int64)
    with engine.watch.naming("the choice of the rank whose buffers count"):
        engine.control.allreduce([highest], torch.distributed.ReduceOp.MAX).wait()
    return int(highest.item())


def _send(ddp: DistributedDataParallel, tensors: dict[str, Tensor], root: int) -> None:
    group = ddp._engine.group
    with torch.no_grad():
        broadcast(tensors, root=root, group=group, check=False)
