"""Rule 6: all ranks skip a step together when one of them has an infinity, with the same number of collectives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import gradweave as gw
from tests.semantics.helpers import batch, collectives, mlp, part, same_bits, weights, wrapped
from tests.support import pool


def overflow(rank: int, world_size: int, way: str, bad_step: int) -> list[tuple[bool, int, float, Tensor]]:
    """Per step: whether it was skipped, the collectives it took, the scale after it, the weights. Rank 1 overflows once."""
    model = mlp()
    optimizer = wrapped(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    steps = []
    for step in range(5):
        before = weights(model)
        with collectives() as log:
            x, y = part(batch(seed=step), rank, world_size)
            loss = (model(x) - y).square().mean()
            scaler.scale(loss * (torch.inf if rank == 1 and step == bad_step else 1)).backward()
            if way == "unscale":
                scaler.unscale_(optimizer)
                gw.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        steps.append((same_bits(before, weights(model)), len(log), scaler.get_scale(), weights(model)))
    return steps


@pytest.mark.parametrize("bad_step", [0, 2])
@pytest.mark.parametrize("way", ["unscale", "step only"])
def test_an_infinity_on_one_rank_makes_all_ranks_skip_with_the_same_collectives(way: str, bad_step: int) -> None:
    first, second = pool.run(2, overflow, way, bad_step)
    for ours in (first, second):
        assert [skipped for skipped, *_ in ours] == [step == bad_step for step in range(5)]
        assert [scale for _, _, scale, _ in ours] == [1024.0 if step < bad_step else 512.0 for step in range(5)]
    assert [count for _, count, *_ in first] == [count for _, count, *_ in second]
    assert len({count for _, count, *_ in first[1:]}) == 1, "a skipped step costs what every step costs"
    assert all(same_bits(a[3], b[3]) for a, b in zip(first, second, strict=True))


def nan_is_seen(rank: int, world_size: int) -> bool:
    model = mlp()
    optimizer = wrapped(model)
    x, y = part(batch(), rank, world_size)
    ((model(x) - y).square().mean() * (torch.nan if rank == 1 else 1)).backward()
    return bool(gw.clip_grad_norm_(model.parameters(), 1.0).isnan()) and optimizer is not None


def test_a_nan_on_one_rank_is_in_every_ranks_norm() -> None:
    assert pool.run(2, nan_is_seen) == [True, True]
