"""Rule 2: the reduction dtype is explicit; half precision is summed in float32 unless the user asks otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradweave as gw
from tests.semantics.helpers import Given, same_bits, wrapped
from tests.support import pool

SIZE = 5000


def values(rank: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(rank)).to(dtype)


def reduced(rank: int, world_size: int, dtype: torch.dtype, **options: Any) -> tuple[Tensor, str, str]:
    """The gradient after step 2, its dtype, and the dtype on the wire."""
    model = Given(SIZE, dtype=dtype)
    optimizer = wrapped(model, **options)
    for _ in range(2):
        optimizer.zero_grad()
        model(values(rank, dtype)).backward()
        optimizer.step()
    return model.w[0].grad, str(model.w[0].grad.dtype), optimizer.recorder.iterations[-1].collectives[0].dtype


def rms(result: Tensor, dtype: torch.dtype, ranks: int) -> float:
    exact = sum(values(rank, dtype).double() for rank in range(ranks)) / ranks
    return float((result.double() - exact).square().mean().sqrt())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_default_sum_of_half_precision_is_float32_and_more_accurate_than_a_native_one(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    default, grad_dtype, wire = pool.run(4, reduced, dtype)[0]
    native, _, native_wire = pool.run(4, reduced, dtype, reduce_dtype=dtype)[0]
    assert (grad_dtype, wire, native_wire) == (str(dtype), "float32", name)
    assert rms(native, dtype, 4) > 1.3 * rms(default, dtype, 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_default_is_the_float32_average_rounded_once(dtype: torch.dtype) -> None:
    expected = (values(0, dtype).float() / 2 + values(1, dtype).float() / 2).to(dtype)
    assert same_bits(pool.run(2, reduced, dtype)[0][0], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_gradients_travel_in_their_own_dtype(dtype: torch.dtype) -> None:
    result, _, wire = pool.run(2, reduced, dtype)[0]
    assert wire == str(dtype).removeprefix("torch.")
    assert same_bits(result, values(0, dtype) / 2 + values(1, dtype) / 2)


def test_float32_gradients_can_travel_as_bfloat16() -> None:
    halves = [values(rank, torch.float32).bfloat16() / 2 for rank in (0, 1)]
    for result, grad_dtype, wire in pool.run(2, reduced, torch.float32, reduce_dtype=torch.bfloat16):
        assert (grad_dtype, wire) == ("torch.float32", "bfloat16")
        assert same_bits(result, (halves[0] + halves[1]).float())


def test_float32_gradients_can_be_summed_in_float64() -> None:
    halves = [values(rank, torch.float32).double() / 2 for rank in (0, 1)]
    for result, _, wire in pool.run(2, reduced, torch.float32, reduce_dtype=torch.float64):
        assert wire == "float64"
        assert same_bits(result, (halves[0] + halves[1]).float())


@pytest.mark.parametrize("bad", ["float32", torch.int32, torch.complex64])
def test_a_reduction_dtype_that_is_no_real_floating_point_dtype_is_refused(bad: Any) -> None:
    model = Given(2)
    with pytest.raises(gw.ConfigError, match="reduce_dtype="):
        gw.DistributedOptimizer(torch.optim.SGD(model.parameters()), model, reduce_dtype=bad)
