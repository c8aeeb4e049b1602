"""Autocast, loss scaling and clipping, in the right order: synchronize, unscale, clip, step.

torchrun --nproc-per-node 2 examples/clip_and_amp.py
"""

import torch
from torch import nn

import gradweave as gw

gw.init()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), model)
scaler = torch.amp.GradScaler("cpu")

data = torch.Generator().manual_seed(100 + gw.rank())
for step in range(61):
    x = torch.randn(32, 8, generator=data)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
    scaler.scale(loss).backward()
    optimizer.synchronize()  # from here on .grad is the mean over the ranks
    scaler.unscale_(optimizer)
    norm = gw.clip_grad_norm_(model.parameters(), max_norm=1.0)  # the norm of the whole gradient, equal on all ranks
    scaler.step(optimizer)  # does not reduce again
    scaler.update()
    optimizer.zero_grad()
    if step % 30 == 0 and gw.rank() == 0:
        print(f"step {step}: loss {loss.item():.4f}, gradient norm {float(norm):.3f}")

norms = gw.allgather(norm.reshape(1))
assert torch.equal(norms[0], norms[-1])
if gw.rank() == 0:
    print(f"{gw.size()} ranks agree on the norm")
gw.shutdown()
