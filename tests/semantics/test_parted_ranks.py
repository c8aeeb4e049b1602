"""A rank that skips a step alone has other weights than the rest: all ranks are told in the step that follows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradweave as gw
from tests.support import pool


def skip_alone(rank: int, world_size: int, skipping: int, at: int) -> str:
    model = nn.Linear(4, 1)
    optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    try:
        for step in range(6):
            model(torch.ones(1, 4)).sum().backward()
            if step == at and rank == skipping:
                optimizer.zero_grad()
                continue
            optimizer.step()
            optimizer.zero_grad()
    except gw.MismatchError as error:
        return str(error)
    return "nothing noticed"


@pytest.mark.parametrize("world_size", [2, 3])
def test_every_rank_is_told_that_one_skipped_a_step_alone(world_size: int) -> None:
    for text in pool.run(world_size, skip_alone, 1, 3):
        assert "threw its gradients away" in text and "Rule:" in text and "Fix:" in text


def skip_together(rank: int, world_size: int) -> bool:
    model = nn.Linear(4, 1)
    optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for step in range(6):
        model(torch.ones(1, 4)).sum().backward()
        if step % 2 == 0:
            optimizer.step()
        optimizer.zero_grad()
    return True


def test_skipping_a_step_on_all_ranks_together_is_allowed() -> None:
    assert pool.run(2, skip_together) == [True, True]


def recorded_bytes(rank: int, world_size: int) -> list[tuple[str, int]]:
    model = nn.Linear(4, 1).to(torch.bfloat16)
    optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, strategy="single")
    for _ in range(2):
        model(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
    return [(c.dtype, c.size_bytes) for c in optimizer.recorder.iterations[-1].collectives]


def test_the_trace_of_half_precision_gradients_shows_the_bytes_that_travelled() -> None:
    assert pool.run(2, recorded_bytes) == [[("float32", 5 * 4)]] * 2
