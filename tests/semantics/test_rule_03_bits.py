"""Rule 3: at world size 2 a sum has two terms, so that no split may change a bit."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn

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
