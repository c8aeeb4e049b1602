"""A conv net on scikit-learn's handwritten digits.

torchrun --nproc-per-node 2 examples/digits_conv.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import gradweave as gw

gw.init()
torch.manual_seed(0)
digits = load_digits()
images, labels = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)
order = torch.randperm(len(labels))
train, validation = order[:-360], order[-360:]
mine = train[gw.rank() :: gw.size()][: len(train) // gw.size()]  # equal shares

model = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
    *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Flatten(), nn.Linear(32 * 16, 10)),
)
optimizer = gw.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=3e-3), model)
for epoch in range(5):
    for batch in mine[torch.randperm(len(mine))].split(32):
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        hits = (model(images[validation]).argmax(1) == labels[validation]).float().mean()
    model.train()
    accuracy = gw.allreduce(hits, op="average").item()  # batch statistics differ between ranks
    if gw.rank() == 0:
        print(f"epoch {epoch}: loss {loss.item():.3f}, validation accuracy {100 * accuracy:.1f} %")
gw.shutdown()
