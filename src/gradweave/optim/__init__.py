"""What users hold: the distributed optimizer, the drop-in for DistributedDataParallel, clipping.

Each is imported when it is asked for, so that a program which uses one does not carry the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradweave._lazy import attribute_loader

if TYPE_CHECKING:
    from gradweave.optim.clip import clip_grad_norm_, clip_grad_value_
    from gradweave.optim.ddp import DistributedDataParallel
    from gradweave.optim.optimizer import DistributedOptimizer

_HOME_OF = {
    "DistributedDataParallel": "ddp",
    "DistributedOptimizer": "optimizer",
    "clip_grad_norm_": "clip",
    "clip_grad_value_": "clip",
}

__all__ = ["DistributedDataParallel", "DistributedOptimizer", "clip_grad_norm_", "clip_grad_value_"]


__getattr__ = attribute_loader(__name__, _HOME_OF)
