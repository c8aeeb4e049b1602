"""Copies of a wrapper join the group when they are first used, so that a copy on one rank alone costs nothing."""

from __future__ import annotations

import copy
import pickle

import torch
import torch.distributed as dist
from torch import nn

import gradweave as gw
from tests.support import pool


def copy_on_one_rank(rank: int, world_size: int) -> float:
    model = nn.Linear(2, 1)
    optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    drop_in = gw.DistributedDataParallel(nn.Linear(2, 1))
    average = copy.deepcopy((model, optimizer)) if rank == 0 else None
    shadow = copy.deepcopy(drop_in) if rank == 0 else None
    for _ in range(3):
        optimizer.zero_grad()
        (model(torch.ones(1, 2)) * (rank + 1)).sum().backward()
        optimizer.step()
        drop_in(torch.ones(1, 2)).sum().backward()
    del average, shadow
    assert model.weight.grad is not None
    return float(model.weight.grad[0, 0])


def test_a_copy_that_only_one_rank_keeps_hangs_nobody() -> None:
    assert pool.run(2, copy_on_one_rank, timeout=30) == [1.5, 1.5]


def copy_on_an_unnamed_group(rank: int, world_size: int) -> list[float]:
    group = dist.new_group([0, 1])
    model = nn.Linear(1, 1, bias=False)
    optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model, group=group)
    twin_model, twin = copy.deepcopy((model, optimizer))
    before = float(twin_model.weight)
    for _ in range(2):
        twin.zero_grad()
        (twin_model(torch.ones(1, 1)) * (rank + 1)).sum().backward()
        twin.step()
    return [float(twin_model.weight) - before, float(model.weight) - before]


def test_a_copy_on_an_unnamed_group_trains_by_itself() -> None:
    for moved, original in pool.run(2, copy_on_an_unnamed_group):
        assert abs(moved + 3.0) < 1e-6 and original == 0.0


def pickled(rank: int, world_size: int) -> float:
    model = nn.Linear(1, 1, bias=False)
    optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model)
    model, optimizer = pickle.loads(pickle.dumps((model, optimizer)))
    before = float(model.weight)
    (model(torch.ones(1, 1)) * (rank + 1)).sum().backward()  # the copy has no hooks yet: step() finds the gradient
    optimizer.step()
    return float(model.weight) - before


def test_a_pickled_copy_reduces_what_it_finds_in_its_first_step() -> None:
    for moved in pool.run(2, pickled):
        assert abs(moved + 1.5) < 1e-6
