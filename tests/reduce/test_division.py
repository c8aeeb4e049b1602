"""Division before the sum: a number on the CPU, a tensor wherever a number would become a product."""

from __future__ import annotations

import torch

from gradweave.reduce.division import divisor_for


def test_on_the_cpu_a_number_stays_a_number() -> None:
    assert divisor_for(3, torch.zeros(1)) == 3 and not isinstance(divisor_for(3, torch.zeros(1)), torch.Tensor)


def test_a_tensor_is_left_as_it_is() -> None:
    given = torch.tensor(3.0)
    assert divisor_for(given, torch.zeros(1)) is given
    assert divisor_for(given, torch.zeros(1, device="meta")) is given


def test_on_another_device_a_number_becomes_a_scalar_there() -> None:
    divisor = divisor_for(3, torch.zeros(1, device="meta"))
    assert isinstance(divisor, torch.Tensor) and divisor.device.type == "meta" and divisor.shape == ()


def test_the_scalar_of_a_device_is_made_once() -> None:
    there = torch.zeros(1, device="meta")
    assert divisor_for(5, there) is divisor_for(5, there)
    assert divisor_for(5, there) is not divisor_for(6, there)


def test_the_scalar_does_not_change_the_dtype_of_what_it_divides() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        there = torch.zeros(4, device="meta", dtype=dtype)
        assert there.div(divisor_for(3, there)).dtype == dtype
