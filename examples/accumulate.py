"""Several micro-batches per step: one reduction, the mean over micro-batches and ranks.

torchrun --nproc-per-node 2 examples/accumulate.py
"""

import torch
from torch import nn

import gradweave as gw

MICRO_BATCHES = 3
gw.init()
torch.manual_seed(0)
model, reference = nn.Linear(4, 1), nn.Linear(4, 1)
reference.load_state_dict(model.state_dict())
optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, accumulate=MICRO_BATCHES)
plain = torch.optim.SGD(reference.parameters(), lr=0.1)

data = torch.randn(5, gw.size(), MICRO_BATCHES, 8, 4)  # the same on all ranks: each takes its row
for batch in data:
    for micro_batch in batch[gw.rank()]:
        model(micro_batch).square().mean().backward()  # only the last of the three communicates
    optimizer.step()
    optimizer.zero_grad()
    reference(batch.flatten(0, 2)).square().mean().backward()  # one process on the full batch
    plain.step()
    plain.zero_grad()

torch.testing.assert_close(model.weight, reference.weight)
if gw.rank() == 0:
    print(f"{gw.size()} ranks x {MICRO_BATCHES} micro-batches equal one process on the full batch")
gw.shutdown()
