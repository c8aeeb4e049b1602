"""Coming from DistributedDataParallel: the class changes, the loop does not.

torchrun --nproc-per-node 2 examples/ddp_dropin.py
"""

import torch
from torch import nn

import gradweave as gw

gw.init()
torch.manual_seed(0)
model = gw.DistributedDataParallel(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1)), bucket_cap_mb=25)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

data = torch.Generator().manual_seed(100 + gw.rank())
for step in range(60):
    x = torch.randn(32, 8, generator=data)
    loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0 and gw.rank() == 0:
        print(f"step {step}: loss {loss.item():.4f}")

assert list(model.state_dict())[0] == "module.0.weight", "checkpoints keep DDP's names"
weights = gw.allgather(model.module[0].weight.detach()[None])
assert torch.equal(weights[0], weights[-1])
if gw.rank() == 0:
    print(f"{gw.size()} ranks agree")
gw.shutdown()
