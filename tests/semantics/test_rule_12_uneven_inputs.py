"""Rule 12: ranks with different numbers of inputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import gradweave as gw
from tests.semantics.helpers import batch, error, loss_of, mlp, part, sgd, weights, wrapped
from tests.support import pool


def uneven(rank: int, world_size: int, idle: dict[int, int], overlap: bool) -> Tensor:
    """`idle[step]` is the rank that calls step() without a backward."""
    model = mlp()
    optimizer = wrapped(model, overlap=overlap)
    for step in range(5):
        if idle.get(step) != rank:
            loss_of(model, part(batch(seed=step), rank, world_size)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("idle", [{3: 1}, {2: 0, 4: 1}, {0: 1}, {0: 0, 1: 1}], ids=str)
def test_a_rank_that_steps_without_backward_takes_part_with_zeros(idle: dict[int, int], overlap: bool) -> None:
    model = mlp()
    optimizer = sgd(model)
    for step in range(5):
        for rank in {0, 1} - {idle.get(step)}:
            (loss_of(model, part(batch(seed=step), rank, 2)) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    for result in pool.run(2, uneven, idle, overlap):
        assert error(result, weights(model)) < 1e-6


def nobody(rank: int, world_size: int) -> list[bool]:
    model = mlp()
    optimizer = wrapped(model)
    seen = []
    for step in range(4):
        if step in (1, 3):
            loss_of(model, part(batch(seed=step), rank, world_size)).backward()
        before = weights(model).clone()
        optimizer.step()
        seen.append(bool((weights(model) != before).any()))
        optimizer.zero_grad()
    return seen


def test_a_step_without_any_backward_changes_nothing_and_leaves_later_steps_whole() -> None:
    assert pool.run(2, nobody) == [[False, True, False, True]] * 2


def joined(rank: int, world_size: int, initial: bool) -> Tensor:
    """Rank 0 has 2 batches, rank 1 has 4."""
    model = mlp()
    ddp = gw.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ddp.join(divide_by_initial_world_size=initial):
        for step in range(2 + 2 * rank):
            loss_of(ddp, part(batch(seed=step), rank, world_size)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return weights(model)


@pytest.mark.parametrize("initial", [True, False])
def test_join_keeps_the_others_going_and_divides_by_the_documented_count(initial: bool) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        live = [0, 1] if step < 2 else [1]
        for rank in live:
            (loss_of(model, part(batch(seed=step), rank, 2)) / (2 if initial else len(live))).backward()
        optimizer.step()
        optimizer.zero_grad()
    for result in pool.run(2, joined, initial):
        assert error(result, weights(model)) < 1e-6
