"""What happens behind the wrapper's back is noticed, or harmless: replaced parameters, cleared gradients, evaluating copies."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import gradweave as gw
from tests.support import pool


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))


def wrapped(model: nn.Module, **options: Any) -> gw.DistributedOptimizer:
    return gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, **options)


def replaced(rank: int, world_size: int, drop_in: bool, assign: bool) -> str:
    module = net()
    model: Any = gw.DistributedDataParallel(module) if drop_in else module
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if drop_in else wrapped(module)
    try:
        for step in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            if step == 1 and assign:
                module.load_state_dict({k: v.clone() for k, v in module.state_dict().items()}, assign=True)
            elif step == 1:
                module[1] = nn.Linear(2, 1)
    except gw.StateError as error:
        return str(error)
    return "nothing noticed"


@pytest.mark.parametrize("drop_in", [True, False])
@pytest.mark.parametrize("assign", [True, False])
def test_a_replaced_parameter_is_noticed(drop_in: bool, assign: bool) -> None:
    for text in pool.run(2, replaced, drop_in, assign):
        assert "were replaced" in text and ("1.weight" if assign else "'1'") in text and "Fix:" in text


def cleared(rank: int, world_size: int) -> str:
    model = net()
    optimizer = wrapped(model)
    try:
        for step in range(3):
            model(torch.ones(1, 2)).sum().backward()
            if step == 2:
                model[1].weight.grad = None
            optimizer.step()
            optimizer.zero_grad()
    except gw.StateError as error:
        return str(error)
    return "nothing noticed"


def test_a_gradient_cleared_while_it_travels_is_noticed() -> None:
    for text in pool.run(2, cleared):
        assert "while their reduction was under way" in text


def average_evaluates_on_rank_0(rank: int, world_size: int) -> bool:
    model = gw.DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = copy.deepcopy(model) if rank == 0 else None
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        if average is not None:
            with torch.no_grad():
                average(torch.ones(1, 2))
    return True


def test_a_copy_that_one_rank_evaluates_joins_no_group() -> None:
    assert pool.run(2, average_evaluates_on_rank_0, timeout=30) == [True, True]


def no_tokens(rank: int, world_size: int) -> float:
    model = nn.Linear(1, 1, bias=False)
    optimizer = wrapped(model, weight=lambda: 0.0 if rank else 5.0)
    for _ in range(2):
        optimizer.zero_grad()
        tokens = torch.ones(0 if rank else 5, 1)
        (model(tokens).mean() * 2).backward()  # the mean of nothing is NaN
        optimizer.synchronize()
    assert model.weight.grad is not None
    return float(model.weight.grad)


def test_a_rank_without_tokens_leaves_its_nan_out() -> None:
    assert pool.run(2, no_tokens) == [2.0, 2.0]


@pytest.mark.parametrize("weight", ["x", None, -1.0, float("nan")])
def test_a_bad_weight_is_told_by_name(weight: object) -> None:
    model = nn.Linear(1, 1)
    gw.init()
    try:
        optimizer = wrapped(model, weight=lambda: weight)
        with pytest.raises(gw.ConfigError, match="weight\\(\\) returned"):
            model(torch.ones(1, 1)).sum().backward()
        optimizer.close()
    finally:
        gw.shutdown()


def different_calls(rank: int, world_size: int) -> str:
    try:
        gw.allreduce(torch.ones(2)) if rank == 0 else gw.allgather(torch.ones(2))
    except gw.MismatchError as error:
        return str(error)
    return "nothing noticed"


def test_different_collectives_on_different_ranks_are_told() -> None:
    for text in pool.run(3, different_calls):
        assert "allgather" in text and "Fix:" in text
