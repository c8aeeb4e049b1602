"""Keeping a split: a plan file names the parameters, so it is exact from the first step.

torchrun --nproc-per-node 2 examples/plan_file.py
"""

import tempfile
from pathlib import Path

import torch
from torch import nn

import gradweave as gw

gw.init()
torch.manual_seed(0)


def build(strategy):
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))
    return model, gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model, strategy=strategy)


def one_step(model, optimizer):
    model(torch.randn(4, 16)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return [(segment.first, segment.last) for segment in optimizer.segments]


path = Path(tempfile.gettempdir()) / f"gradweave-example-{gw.rank()}.json"
model, optimizer = build(gw.SplitStrategy.by_idx([1, 5, 7]))
one_step(model, optimizer)
chosen = one_step(model, optimizer)  # from the second step on, indices follow the observed order
optimizer.save_plan(path)
assert one_step(*build(str(path))) == chosen
if gw.rank() == 0:
    print(f"the plan file gives {chosen} from the first step")
path.unlink()
gw.shutdown()
