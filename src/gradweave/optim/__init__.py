"""What users hold: the distributed optimizer, the drop-in for DistributedDataParallel, clipping."""

from gradweave.optim.clip import clip_grad_norm_, clip_grad_value_
from gradweave.optim.ddp import DistributedDataParallel
from gradweave.optim.optimizer import DistributedOptimizer

__all__ = ["DistributedDataParallel", "DistributedOptimizer", "clip_grad_norm_", "clip_grad_value_"]
