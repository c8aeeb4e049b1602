"""Coming from Ascend: only the import line changes.

torchrun --nproc-per-node 2 examples/ascend_import.py
"""

import torch
from torch import nn

import gradweave as gw
from gradweave.hccl.split.api import set_split_strategy_by_size  # was: from hccl.split.api import ...

gw.init()
set_split_strategy_by_size([60, 20, 20], group="hccl_world_group")

torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(5)))
optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model)
for _ in range(3):
    model(torch.randn(16, 32)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

assert len(optimizer.segments) == 3
if gw.rank() == 0:
    print("segment index list:", " ".join(f"[{segment.first}, {segment.last}]" for segment in optimizer.segments))
gw.shutdown()
