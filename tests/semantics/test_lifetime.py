"""A wrapper that is dropped leaves nothing behind: no hook that reduces again, no communicator, no engine for the collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gradweave as gw
from gradweave.world import communicators
from tests.support import pool


def optimizer(model: nn.Module) -> Any:
    return gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)


def drop_in(model: nn.Module) -> Any:
    return gw.DistributedDataParallel(model)


def dropped(rank: int, world_size: int, wrap: Callable[[nn.Module], Any]) -> tuple[list[bool], int]:
    gc.collect()
    gc.disable()
    try:
        before, model, gone = len(communicators._made), nn.Linear(4, 1), []
        for _ in range(3):
            wrapper = wrap(model)
            for _ in range(3):
                (wrapper if isinstance(wrapper, nn.Module) else model)(torch.ones(1, 4)).sum().backward()
                if not isinstance(wrapper, nn.Module):
                    wrapper.step()
            engine = weakref.ref(wrapper._engine)
            del wrapper
            gone.append(engine() is None)
        return gone, len(communicators._made) - before
    finally:
        gc.enable()


@pytest.mark.parametrize("wrap", [optimizer, drop_in])
def test_a_dropped_wrapper_is_gone_at_once_with_its_communicator(wrap: Callable[[nn.Module], Any]) -> None:
    assert pool.run(2, dropped, wrap) == [([True, True, True], 0)] * 2


def wrapped_anew(rank: int, world_size: int) -> float:
    model = nn.Linear(1, 1, bias=False)
    first = drop_in(model)
    del first
    second = optimizer(model)
    for _ in range(3):
        second.zero_grad()
        (model(torch.ones(1, 1)) * (rank + 1)).sum().backward()
        second.synchronize()
    assert model.weight.grad is not None
    return float(model.weight.grad)


def test_wrapping_anew_after_dropping_reduces_once() -> None:
    assert pool.run(2, wrapped_anew) == [1.5, 1.5]
