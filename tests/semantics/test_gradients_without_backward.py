"""Gradients that no backward of the window has put there: set by hand, left over, or found by refresh()."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradweave as gw
from tests.support import pool


def one() -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def wrapped(model: nn.Module, **options: object) -> gw.DistributedOptimizer:
    return gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model, **options)


def by_hand(rank: int, world_size: int, in_place: bool) -> float:
    model = one()
    optimizer = wrapped(model)
    for step in range(3):
        (gradient,) = torch.autograd.grad((model(torch.ones(1, 1)) * (rank + 1)).sum(), [model.weight])
        if in_place and step:
            assert model.weight.grad is not None
            model.weight.grad.copy_(gradient)
        else:
            model.weight.grad = gradient
        optimizer.step()
    return float(model.weight)


@pytest.mark.parametrize("in_place", [False, True])
def test_gradients_set_by_hand_are_averaged(in_place: bool) -> None:
    assert pool.run(2, by_hand, in_place) == [-4.5, -4.5]


def refreshed(rank: int, world_size: int, overlap: bool, warm: int) -> float:
    model = one()
    optimizer = wrapped(model, overlap=overlap)
    for _ in range(warm):
        (model(torch.ones(1, 1)) * (rank + 1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    (model(torch.ones(1, 1)) * (rank + 1)).sum().backward()
    optimizer.refresh()
    optimizer.step()
    return float(model.weight)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("warm", [0, 2])
def test_refresh_between_backward_and_step_loses_nothing_and_reduces_once(overlap: bool, warm: int) -> None:
    assert pool.run(2, refreshed, overlap, warm) == [-1.5 * (warm + 1)] * 2


def halves(rank: int, world_size: int) -> tuple[float, float]:
    model = one()
    optimizer = wrapped(model, accumulate=4)
    means = []
    for _ in range(2):
        optimizer.zero_grad()
        for micro in range(2):
            (model(torch.ones(1, 1)) * (rank + 1 + micro)).sum().backward()
        optimizer.synchronize()
        assert model.weight.grad is not None
        means.append(float(model.weight.grad))
        optimizer.step()
    return means[0], means[1]


def test_a_partial_window_is_the_mean_of_what_there_is() -> None:
    assert pool.run(2, halves) == [(2.0, 2.0)] * 2


def never_zeroed(rank: int, world_size: int, options: dict[str, object]) -> list[float]:
    model = one()
    if options.get("weight"):
        options["weight"] = lambda: 3.0
    optimizer = wrapped(model, **options)
    found = []
    for _ in range(3):
        for _ in range(int(options.get("accumulate", 1))):  # type: ignore[call-overload]
            (model(torch.ones(1, 1)) * (rank + 1)).sum().backward()
        optimizer.step()
        assert model.weight.grad is not None
        found.append(round(float(model.weight.grad), 5))
    return found


@pytest.mark.parametrize(
    "options", [{}, {"accumulate": 2}, {"weight": True}, {"op": "sum"}, {"accumulate": 2, "overlap": False}]
)
def test_gradients_never_zeroed_add_up_step_by_step(options: dict[str, object]) -> None:
    unit = 3.0 if options.get("op") == "sum" else 1.5
    assert pool.run(2, never_zeroed, options) == [[unit, 2 * unit, 3 * unit]] * 2


def half_precision_weights(rank: int, world_size: int) -> float:
    model = one().to(torch.float16)
    optimizer = wrapped(model, weight=lambda: 4096.0 * (rank + 1))
    for _ in range(2):
        optimizer.zero_grad()
        (model(torch.ones(1, 1, dtype=torch.float16)) * 20 * (rank + 1)).sum().backward()
        optimizer.synchronize()
    assert model.weight.grad is not None
    return float(model.weight.grad)


def test_token_counts_do_not_overflow_half_precision() -> None:
    for value in pool.run(2, half_precision_weights):
        assert value == pytest.approx((20 * 1 + 40 * 2) / 3, rel=2e-3)


def narrow_sum_of_weighted(rank: int, world_size: int) -> bool:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    optimizer = wrapped(model, weight=lambda: 1e6, reduce_dtype=torch.float16)
    for _ in range(3):
        optimizer.zero_grad()
        model[0](torch.ones(1, 1)).sum().backward()  # the second layer is unused
        optimizer.step()
    return model[1].weight.grad is None and torch.isfinite(model[0].weight.grad).all().item()


def test_flags_survive_a_narrow_reduction_with_large_weights() -> None:
    assert pool.run(2, narrow_sum_of_weighted) == [True, True]
