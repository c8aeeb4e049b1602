"""Choosing the segments, also during training.

torchrun --nproc-per-node 2 examples/split_by_idx.py
"""

import torch
from torch import nn

import gradweave as gw

gw.init()
torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(8)))  # 16 gradients: indices 0 to 15
optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model)


def train(steps: int) -> str:
    for _ in range(steps):
        model(torch.randn(16, 32)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return " ".join(f"[{segment.first}, {segment.last}]" for segment in optimizer.segments)


default = train(2)
gw.set_split_strategy_by_idx([3, 11, 15])  # the last gradient index of each segment
by_idx = train(2)
gw.set_split_strategy_by_size([60, 20, 20])  # percent of the bytes
by_size = train(2)
gw.reset_split_strategy()
assert train(2) == default
assert by_idx == "[0, 3] [4, 11] [12, 15]", by_idx
if gw.rank() == 0:
    print(f"default {default}\nby idx  {by_idx}\nby size {by_size}")
gw.shutdown()
