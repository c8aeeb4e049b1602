"""The smallest change to a training script: `init` and the wrapped optimizer.

torchrun --nproc-per-node 2 examples/minimal_optimizer.py
"""

import torch
from torch import nn

import gradweave as gw

gw.init()
torch.manual_seed(gw.rank())  # ranks start apart on purpose: the wrapper broadcasts rank 0's parameters
model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.002), model)

data = torch.Generator().manual_seed(100 + gw.rank())  # each rank has its own data
losses = []
for step in range(1, 151):
    x = torch.randn(32, 8, generator=data)
    loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    if step % 50 == 0 and gw.rank() == 0:
        print(f"step {step}: loss {sum(losses[-20:]) / 20:.4f} (mean of 20 steps)")

weights = gw.allgather(model[0].weight.detach()[None])
assert torch.equal(weights[0], weights[-1]), "after every step all ranks hold the same parameters"
if gw.rank() == 0:
    print(f"{gw.size()} ranks agree")
gw.shutdown()
