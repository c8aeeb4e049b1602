"""join(): ranks with different numbers of inputs, against averages computed by hand.

The model is one weight w with loss w * x, so that a gradient is its input: with plain SGD of learning rate 1 the weight ends at
minus the sum of the averages.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn

import gradweave as gw
from tests.support import pool


class Weight(nn.Module):
    """w * x, with a buffer that counts forwards."""

    def __init__(self, buffer: bool = False) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        if buffer:
            self.register_buffer("seen", torch.zeros(1, dtype=torch.float64))

    def forward(self, x: float) -> torch.Tensor:
        if hasattr(self, "seen"):
            self.seen += x
        return (self.w * x).sum()


def value(rank: int, step: int) -> float:
    return 10.0**rank * (step + 1)


def by_hand(inputs: list[int], initial: bool, every: int = 1) -> float:
    """Where w ends: averages over all ranks or over those that have input; `every` micro-batches per step."""
    total = 0.0
    for first in range(0, max(inputs), every):
        window = range(first, min(first + every, max(inputs)))
        live = [rank for rank, count in enumerate(inputs) if count > window[-1]]
        given = sum(value(rank, step) for rank in live for step in window)
        total -= given / (len(inputs) if initial else len(live))
    return total


def joined(rank: int, world_size: int, inputs: list[int], initial: bool, kwargs: dict[str, Any], every: int = 1) -> list[float]:
    """[weight, counted forwards if there is a buffer] after each rank has trained on its own number of inputs, twice."""
    buffer = kwargs.pop("buffer", False)
    model = gw.DistributedDataParallel(Weight(buffer), **kwargs)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    seen = []
    for _ in range(2):
        with model.join(divide_by_initial_world_size=initial):
            for step in range(inputs[rank]):
                waits = (step + 1) % every != 0
                with model.no_sync() if waits else contextlib.nullcontext():
                    model(value(rank, step)).backward()
                if not waits:
                    optimizer.step()
                    optimizer.zero_grad()
        seen.append(float(model.module.w))
    if buffer:
        seen.append(float(model.module.seen))
    return seen


@pytest.mark.parametrize("initial", [True, False])
@pytest.mark.parametrize("inputs", [[2, 4], [4, 1], [3, 0], [0, 3], [3, 3], [0, 0]], ids=str)
def test_two_ranks_end_where_the_averages_by_hand_end(inputs: list[int], initial: bool) -> None:
    once = by_hand(inputs, initial) if any(inputs) else 0.0
    for first, second in pool.run(2, joined, inputs, initial, {}):
        assert (first, second) == pytest.approx((once, 2 * once), rel=1e-12)


@pytest.mark.parametrize("initial", [True, False])
@pytest.mark.parametrize("inputs", [[1, 2, 4], [4, 2, 1], [0, 3, 1], [2, 0, 0]], ids=str)
@pytest.mark.parametrize("kwargs", [{}, {"overlap": False}, {"find_unused_parameters": True, "buffer": True}], ids=str)
def test_three_ranks_end_where_the_averages_by_hand_end(inputs: list[int], initial: bool, kwargs: dict[str, Any]) -> None:
    once = by_hand(inputs, initial)
    results = pool.run(3, joined, inputs, initial, kwargs)
    for first, second, *_ in results:
        assert (first, second) == pytest.approx((once, 2 * once), rel=1e-12)
    assert len({tuple(result[2:]) for result in results}) == 1, "the buffers of the rank that ran longest are everybody's"


@pytest.mark.parametrize("inputs", [[2, 6], [6, 2], [4, 4]], ids=str)
def test_accumulation_inside_join(inputs: list[int]) -> None:
    once = by_hand(inputs, True, every=2)
    for first, second in pool.run(2, joined, inputs, True, {}, every=2):
        assert (first, second) == pytest.approx((once, 2 * once), rel=1e-12)


def disabled(rank: int, world_size: int) -> list[float]:
    model = gw.DistributedDataParallel(Weight())
    with model.join(enable=False):
        for step in range(3):
            model.zero_grad()
            model(value(rank, step)).backward()
    return [float(model.module.w.grad)]


def test_with_enable_false_training_is_the_plain_one() -> None:
    assert pool.run(2, disabled) == [[pytest.approx((3 + 30) / 2)]] * 2


def early(rank: int, world_size: int) -> tuple[int, str]:
    """Steps done until the join context raised, and the error."""
    model = gw.DistributedDataParallel(Weight())
    done = 0
    with pytest.raises(RuntimeError) as caught, model.join(throw_on_early_termination=True):
        for step in range([2, 5][rank]):
            model(value(rank, step)).backward()
            done += 1
    return done, str(caught.value)


def test_throw_on_early_termination_raises_on_all_ranks_when_one_runs_out() -> None:
    (first, said), (second, also) = pool.run(2, early)
    assert (first, second) == (2, 2)
    assert "exhausted" in said and "exhausted" in also


def validates(rank: int, world_size: int) -> list[float]:
    """A forward without gradients between the steps, on the ranks that still have input."""
    model = gw.DistributedDataParallel(Weight(buffer=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with model.join():
        for step in range([1, 4][rank]):
            with torch.no_grad():
                model(0.0)
            model(value(rank, step)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return [float(model.module.w)]


def test_a_forward_without_gradients_inside_join_does_not_disturb_the_others() -> None:
    for result in pool.run(2, validates):
        assert result == pytest.approx([by_hand([1, 4], True)])


def afterwards(rank: int, world_size: int) -> list[float]:
    """After a join in which ranks divided by the live count, the next steps divide by the group's size again."""
    model = gw.DistributedDataParallel(Weight())
    with model.join(divide_by_initial_world_size=False):
        for step in range([1, 3][rank]):
            model(value(rank, step)).backward()
    model.zero_grad()
    model(value(rank, 0)).backward()
    return [float(model.module.w.grad)]


def test_after_join_the_divisor_is_the_group_size_again() -> None:
    assert pool.run(2, afterwards) == [[pytest.approx(5.5)]] * 2


def left_over(rank: int, world_size: int, initial: bool) -> float:
    """The usual loop, zero_grad first: a rank that runs out keeps the gradients of its last step."""
    model = gw.DistributedDataParallel(Weight())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with model.join(divide_by_initial_world_size=initial):
        for step in range([2, 4][rank]):
            optimizer.zero_grad()
            model(value(rank, step)).backward()
            optimizer.step()
    return float(model.module.w)


@pytest.mark.parametrize("initial", [True, False])
def test_a_joined_rank_with_gradients_left_over_adds_nothing(initial: bool) -> None:
    assert pool.run(2, left_over, initial) == [pytest.approx(by_hand([2, 4], initial))] * 2
