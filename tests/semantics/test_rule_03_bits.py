"""Rule 3: at 2 ranks no split may change a bit, since a sum has two terms; from 3 on, `reduce="ordered"` keeps the bits."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch
from torch import nn

import gradweave as gw
from tests.semantics.helpers import wrapped
from tests.support import pool

N = 14
SPLITS: dict[str, Any] = {
    "default": "default",
    "single": "single",
    "per_gradient": "per_gradient",
    "hccl_default": "hccl_default",
    "by_idx": [0, 5, 6, N - 1],
}


def final_bits(rank: int, world_size: int, strategy: Any, overlap: bool = True) -> str:
    """SHA-256 of the weights after five steps of AdamW."""
    torch.manual_seed(3)
    model = nn.Sequential(*(m for _ in range(N // 2) for m in (nn.Linear(33, 33), nn.GELU())))
    optimizer = wrapped(model, torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True), strategy=strategy, overlap=overlap)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(5):
        model(torch.randn(6, 33, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    digest = hashlib.sha256()
    for param in model.parameters():
        digest.update(param.detach().numpy().tobytes())
    return digest.hexdigest()


def test_at_world_size_2_every_split_gives_the_same_bits_on_both_ranks() -> None:
    bits = {name: pool.run(2, final_bits, split) for name, split in SPLITS.items()}
    assert len({digest for pair in bits.values() for digest in pair}) == 1, bits


def test_overlap_on_and_off_give_the_same_bits() -> None:
    on, off = (pool.run(2, final_bits, "per_gradient", overlap=overlap) for overlap in (True, False))
    assert on == off and on[0] == on[1]


def test_at_world_size_3_all_ranks_hold_the_same_bits() -> None:
    assert len(set(pool.run(3, final_bits, "per_gradient"))) == 1


PLANS: list[Any] = [
    "single",
    "per_gradient",
    "default",
    [0, N - 1],
    [4, 5, N - 1],
    gw.SplitStrategy.by_size([10, 20, 70]),
    gw.SplitStrategy.by_bytes(9_000),
]


def trained_bits(rank: int, world_size: int, plans: list[Any], reduce: str, dtype: torch.dtype, wrapper: str = "") -> list[str]:
    """SHA-256 of the weights after four steps, for each plan."""
    digests = []
    for plan in plans:
        torch.manual_seed(3)
        model = nn.Sequential(*(m for _ in range(N // 2) for m in (nn.Linear(33, 33), nn.GELU()))).to(dtype)
        generator = torch.Generator().manual_seed(rank)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.5)
        forward: Any = model
        if wrapper == "ddp":
            forward = gw.DistributedDataParallel(model, strategy=plan, reduce=reduce)
        else:
            optimizer = gw.DistributedOptimizer(optimizer, model, strategy=plan, reduce=reduce, overlap=wrapper != "serial")
        for _ in range(4):
            forward(torch.randn(6, 33, generator=generator).to(dtype)).float().square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        digest = hashlib.sha256()
        for param in model.parameters():
            digest.update(param.detach().float().numpy().tobytes())
        digests.append(digest.hexdigest())
        (forward if wrapper == "ddp" else optimizer).close()
    return digests


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ranks", [2, 3, 4, pytest.param(8, marks=pytest.mark.verify)])
def test_ordered_gives_the_same_bits_for_every_plan_and_wrapper(ranks: int, dtype: torch.dtype) -> None:
    per_rank = pool.run(ranks, trained_bits, PLANS, "ordered", dtype)
    assert len({bits for digests in per_rank for bits in digests}) == 1, per_rank
    for wrapper in ("serial", "ddp"):
        assert pool.run(ranks, trained_bits, [[2, N - 1]], "ordered", dtype, wrapper)[0][0] == per_rank[0][0]


@pytest.mark.parametrize("ranks", [3, 4])
def test_without_it_the_plan_changes_bits_so_that_the_test_above_tests_something(ranks: int) -> None:
    assert len(set(pool.run(ranks, trained_bits, PLANS, "dense", torch.float32)[0])) > 1
