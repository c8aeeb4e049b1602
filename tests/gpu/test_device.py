"""What only a GPU shows: streams, events, device times. Skipped, and listed as not run, where there is none.

Two ranks share one GPU over Gloo; NCCL runs with a world of one (it refuses two ranks on one device).
"""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest
import torch
from torch import nn

import gradweave as gw
from tests.support import pool

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 8))


def _train(rank: int, world_size: int, backend: str, overlap: bool) -> dict[str, Any]:
    gw.init(backend=backend, timeout=60)
    device = torch.device("cuda", 0)
    model = _model().to(device)
    alone = copy.deepcopy(model)
    optimizer = gw.DistributedOptimizer(torch.optim.AdamW(model.parameters()), model, strategy="per_gradient", overlap=overlap)
    reference = torch.optim.AdamW(alone.parameters())
    torch.manual_seed(1)
    for _ in range(4):
        x, y = torch.randn(8 * world_size, 64, device=device), torch.randn(8 * world_size, 8, device=device)
        mine = slice(8 * rank, 8 * rank + 8)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[mine]), y[mine]).backward()
        optimizer.step()
        reference.zero_grad()
        nn.functional.mse_loss(alone(x), y).backward()
        reference.step()
    error = max(float((a - b).abs().max()) for a, b in zip(model.parameters(), alone.parameters(), strict=True))
    iteration = optimizer.recorder.iterations[-1]
    ordered = all(c.start_s <= c.end_s <= iteration.iteration_end_s for c in iteration.collectives)
    return {"error": error, "ordered": ordered, "segments": len(iteration.collectives)}


@pytest.mark.parametrize("overlap", [True, False])
def test_two_ranks_on_one_gpu_over_gloo_equal_the_single_process(overlap: bool) -> None:
    for outcome in pool.fresh(2, _train, "gloo", overlap, joins_group=False):
        assert outcome.error is None, outcome.text
        assert outcome.value["error"] < 1e-5
        assert outcome.value["segments"] == 6


@pytest.mark.parametrize("overlap", [True, False])
def test_nccl_with_one_rank_equals_the_plain_optimizer_and_its_times_are_in_order(overlap: bool) -> None:
    (outcome,) = pool.fresh(1, _train, "nccl", overlap, joins_group=False)
    assert outcome.error is None, outcome.text
    assert outcome.value["error"] < 1e-6
    assert outcome.value["ordered"]


def test_the_device_clock_runs_on_the_host_clocks_axis() -> None:
    from gradweave.sync.device import DeviceClock

    clock = DeviceClock(torch.device("cuda", 0))
    before = time.perf_counter()
    first, second = clock(), clock()
    torch.cuda.synchronize()
    after = time.perf_counter()
    assert before - 1e-3 <= float(first) <= float(second) <= after + 1e-3
