"""Rule 7: parameters unused on all ranks, on some, or only used in an earlier micro-batch of the window."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.semantics.helpers import Given, gradients, same_bits, wrapped
from tests.support import pool

Uses = list[tuple[int, int]]


class Branches(Given):
    """Three parameters; forward takes the chosen ones, whose gradient is then `value`."""

    def __init__(self) -> None:
        super().__init__(5, 6, 7)

    def forward(self, chosen: tuple[int, ...], value: float) -> Tensor:
        return sum((self.w[i] * value).sum() for i in chosen)


def used(rank: int, world_size: int, plan: list[dict[int, tuple[int, ...]]], set_to_none: bool = True, **options: Any) -> list:
    """Gradients after each step of `plan`; a step maps a rank to the parameters it uses. Rank r's gradient is r + 1."""
    model = Branches()
    optimizer = wrapped(model, **options)
    seen = []
    for step in plan:
        if step[rank]:
            model(step[rank], float(rank + 1)).backward()
        optimizer.step()
        seen.append([None if g is None else float(g[0]) for g in gradients(model)])
        optimizer.zero_grad(set_to_none=set_to_none)
    return seen


ALL = {0: (0, 1, 2), 1: (0, 1, 2)}
NOBODY_2 = {0: (0, 1), 1: (0, 1)}
RANK_0_ONLY = {0: (0, 1, 2), 1: (0, 1)}
RANK_1_ONLY = {0: (0, 1), 1: (0, 1, 2)}
DIFFERENT = {0: (0, 2), 1: (1, 2)}


@pytest.mark.parametrize("overlap", [True, False])
def test_unused_on_all_ranks_stays_none_from_the_first_step_on(overlap: bool) -> None:
    for seen in pool.run(2, used, [NOBODY_2, NOBODY_2, ALL, NOBODY_2], overlap=overlap):
        assert seen == [[1.5, 1.5, None], [1.5, 1.5, None], [1.5, 1.5, 1.5], [1.5, 1.5, None]]


@pytest.mark.parametrize("overlap", [True, False])
def test_unused_on_some_ranks_gets_the_others_sum_divided_by_all(overlap: bool) -> None:
    for seen in pool.run(2, used, [ALL, RANK_0_ONLY, RANK_1_ONLY, DIFFERENT], overlap=overlap):
        assert seen == [[1.5, 1.5, 1.5], [1.5, 1.5, 0.5], [1.5, 1.5, 1.0], [0.5, 1.0, 1.5]]


def test_unused_on_some_ranks_works_in_the_first_step() -> None:
    for seen in pool.run(2, used, [RANK_1_ONLY, DIFFERENT, ALL]):
        assert seen == [[1.5, 1.5, 1.0], [0.5, 1.0, 1.5], [1.5, 1.5, 1.5]]


def test_with_zeroed_gradients_an_unused_one_stays_zero() -> None:
    for seen in pool.run(2, used, [ALL, NOBODY_2, RANK_0_ONLY, ALL], set_to_none=False):
        assert seen == [[1.5, 1.5, 1.5], [1.5, 1.5, 0.0], [1.5, 1.5, 0.5], [1.5, 1.5, 1.5]]


def left_over(
    rank: int, world_size: int, steps: int, reduce_dtype: torch.dtype | None, dtype: torch.dtype, op: str
) -> list[Tensor]:
    """The gradient of a parameter that was used in step 1 only and never zeroed, after each step."""
    model = Given(5, 301, dtype=dtype)
    optimizer = wrapped(model, reduce_dtype=reduce_dtype, op=op)
    values = torch.randn(301, generator=torch.Generator().manual_seed(rank)).to(dtype)
    seen = []
    for step in range(steps):
        model.w[0].grad = None
        loss = (model.w[0] * (rank + 1)).sum()
        (loss + (model.w[1] * values).sum() if step == 0 else loss).backward()
        optimizer.synchronize()
        seen.append(model.w[1].grad.clone())
        optimizer.step()
    return seen


@pytest.mark.parametrize("op", ["average", "sum"])
@pytest.mark.parametrize(
    ("dtype", "reduce_dtype"),
    [(torch.float32, None), (torch.bfloat16, None), (torch.float32, torch.bfloat16)],
    ids=["fp32", "bf16", "fp32 as bf16"],
)
@pytest.mark.parametrize("world_size", [2, 3])
def test_a_left_over_gradient_of_a_parameter_unused_everywhere_keeps_every_bit(
    world_size: int, dtype: torch.dtype, reduce_dtype: torch.dtype | None, op: str
) -> None:
    for seen in pool.run(world_size, left_over, 4, reduce_dtype, dtype, op):
        assert all(same_bits(later, seen[0]) for later in seen[1:])


def earlier_only(rank: int, world_size: int, set_to_none: bool, **options: Any) -> list:
    """Parameter 2 takes part in the first of two micro-batches only (on rank 1: in neither)."""
    model = Branches()
    optimizer = wrapped(model, **options)
    seen = []
    for _ in range(3):
        model((0, 1, 2) if rank == 0 else (0, 1), rank + 1.0).backward()
        model((0, 1), rank + 1.0).backward()
        optimizer.step()
        seen.append([float(g[0]) for g in gradients(model)])
        optimizer.zero_grad(set_to_none=set_to_none)
    return seen


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("overlap", [True, False])
def test_a_parameter_used_only_in_an_earlier_micro_batch_counts(overlap: bool, set_to_none: bool) -> None:
    for seen in pool.run(2, earlier_only, set_to_none, accumulate=2, overlap=overlap):
        assert seen == [[1.5, 1.5, 0.25]] * 3
    for seen in pool.run(2, earlier_only, set_to_none, overlap=overlap):
        assert seen == [[3.0, 3.0, 0.5]] * 3


def behind_no_sync(rank: int, world_size: int) -> list:
    model = Branches()
    optimizer = wrapped(model)
    seen = []
    for _ in range(3):
        with optimizer.no_sync():
            model((0, 1, 2), rank + 1.0).backward()
        model((0, 1), rank + 1.0).backward()
        optimizer.step()
        seen.append([float(g[0]) for g in gradients(model)])
        optimizer.zero_grad()
    return seen


def test_a_parameter_used_only_inside_no_sync_counts() -> None:
    assert pool.run(2, behind_no_sync) == [[[3.0, 3.0, 1.5]] * 3] * 2
