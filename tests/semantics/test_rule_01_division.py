"""Rule 1: the average divides before the sum, by a division in the reduction dtype, on every path."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradweave as gw
from tests.semantics.helpers import Given, same_bits, sgd, wrapped
from tests.support import pool

SIZES = (40, 24, 1)


def values(rank: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Gradients of a rank. Rank 2 has zeros, so that a sum over 3 ranks has the same bits in every order."""
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(n, generator=generator).to(dtype) * (rank < 2) for n in SIZES]


def reduced(rank: int, world_size: int, set_to_none: bool = True, dtype: torch.dtype = torch.float32, **options: Any) -> list:
    """Reduced gradients of steps 1 to 3."""
    model = Given(*SIZES, dtype=dtype)
    optimizer = wrapped(model, **options)
    steps = []
    for _ in range(3):
        for _ in range(options.get("accumulate", 1)):
            model(*values(rank, dtype)).backward()
        optimizer.synchronize()
        steps.append(torch.cat([p.grad.clone() for p in model.parameters()]))
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
    return steps


def reduced_by_ddp(rank: int, world_size: int) -> list:
    model = Given(*SIZES)
    ddp, optimizer, steps = gw.DistributedDataParallel(model), sgd(model), []
    for _ in range(3):
        ddp(*values(rank)).backward()
        steps.append(torch.cat([p.grad.clone() for p in model.parameters()]))
        optimizer.step()
        optimizer.zero_grad()
    return steps


def two() -> tuple[Tensor, Tensor]:
    return torch.cat(values(0)), torch.cat(values(1))


def test_the_values_tell_the_ways_to_divide_apart() -> None:
    a, b = two()
    ours = a / 3 + b / 3
    assert not same_bits(ours, (a + b) / 3)
    assert not same_bits(ours, a * (1 / 3) + b * (1 / 3))


@pytest.mark.parametrize("options", [{}, {"overlap": False}, {"set_to_none": False}, {"strategy": "single"}], ids=str)
def test_at_world_size_3_every_step_has_the_bits_of_divide_then_sum(options: dict[str, Any]) -> None:
    a, b = two()
    for steps in pool.run(3, reduced, **options):
        assert [same_bits(step, a / 3 + b / 3) for step in steps] == [True, True, True]


def test_the_ddp_drop_in_divides_at_the_same_place() -> None:
    a, b = two()
    for steps in pool.run(3, reduced_by_ddp):
        assert [same_bits(step, a / 3 + b / 3) for step in steps] == [True, True, True]


@pytest.mark.parametrize("overlap", [True, False])
def test_accumulation_divides_the_local_sum_once_by_ranks_times_micro_batches(overlap: bool) -> None:
    a, b = two()
    expected = (a + a + a) / 9 + (b + b + b) / 9
    for steps in pool.run(3, reduced, accumulate=3, overlap=overlap):
        assert [same_bits(step, expected) for step in steps] == [True, True, True]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_divided_in_the_reduction_dtype(dtype: torch.dtype) -> None:
    a, b = (torch.cat(values(rank, dtype)) for rank in (0, 1))
    expected = (a.float() / 3 + b.float() / 3).to(dtype)
    assert not same_bits(expected, ((a / 3).float() + (b / 3).float()).to(dtype))
    for steps in pool.run(3, reduced, dtype=dtype):
        assert [same_bits(step, expected) for step in steps] == [True, True, True]


@pytest.mark.parametrize("overlap", [True, False])
def test_op_sum_does_not_divide(overlap: bool) -> None:
    a, b = two()
    for steps in pool.run(3, reduced, op="sum", overlap=overlap):
        assert [same_bits(step, a + b) for step in steps] == [True, True, True]


def huge(rank: int, world_size: int) -> list[float]:
    model = Given(4)
    optimizer = wrapped(model)
    peaks = []
    for _ in range(2):
        model(torch.full((4,), 3e38)).backward()
        optimizer.synchronize()
        peaks.append(float(model.w[0].grad.max()))
        optimizer.step()
        optimizer.zero_grad()
    return peaks


def test_an_average_of_large_gradients_does_not_overflow_on_the_way() -> None:
    assert pool.run(2, huge) == [[pytest.approx(3e38)] * 2] * 2
