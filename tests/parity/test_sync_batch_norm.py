"""torch's SyncBatchNorm under both wrappers equals batch-norm on the full batch. Needs a GPU: it refuses CPU tensors."""

from __future__ import annotations

import pytest

from tests.support import pool

TOLERANCE = 1e-4


def train(rank: int, world_size: int, wrapper: str) -> float:
    """Three steps on this rank's half of the batch, on one GPU over Gloo; distance to batch-norm on the full batch."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    import gradweave as gw
    from tests.parity.harness import distance
    from tests.parity.models import ConvNet

    def fresh() -> nn.Module:
        torch.manual_seed(7)
        return ConvNet(nn.BatchNorm2d).cuda()

    plain, model = fresh(), nn.SyncBatchNorm.convert_sync_batchnorm(fresh())
    reference, optimizer = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (plain, model))
    if wrapper == "ddp":
        model = gw.DistributedDataParallel(model, device_ids=[0])
    else:
        optimizer = gw.DistributedOptimizer(optimizer, model)
    generator = torch.Generator().manual_seed(3)
    for _ in range(3):
        x = torch.randn(4 * world_size, 2, 5, 5, generator=generator).cuda()
        y = torch.randint(0, 3, (4 * world_size,), generator=generator).cuda()
        F.cross_entropy(plain(x), y).backward()
        F.cross_entropy(model(x[rank::world_size]), y[rank::world_size]).backward()
        for each in (reference, optimizer):
            each.step()
            each.zero_grad()
    return distance(model.parameters(), plain.parameters())


@pytest.mark.parametrize("wrapper", ["optimizer", "ddp"])
def test_sync_batch_norm_equals_the_full_batch(wrapper: str) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch's SyncBatchNorm refuses CPU tensors and there is no GPU here")
    assert max(pool.run(2, train, wrapper)) <= TOLERANCE
