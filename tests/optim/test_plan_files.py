"""A plan file serves the model, group size and backend that it was made for, and no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import gradweave as gw
from tests.support import pool


def net(width: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 3), nn.Linear(3, 2), nn.Linear(2, 1))


def wrapped(model: nn.Module, **options: object) -> gw.DistributedOptimizer:
    return gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, **options)


def step(model: nn.Module, optimizer: gw.DistributedOptimizer, width: int = 4) -> None:
    model(torch.ones(1, width)).sum().backward()
    optimizer.step()


def save_then_use(rank: int, world_size: int, path: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    model = net()
    optimizer = wrapped(model, strategy=[1, 3, 5])
    step(model, optimizer)
    if rank == 0:
        optimizer.save_plan(path, note="test")
    gw.barrier()
    optimizer.close()
    second = wrapped(model, strategy=path)
    before = tuple(segment.last for segment in second.segments)
    step(model, second)
    return before, tuple(segment.last for segment in second.segments)


def test_a_saved_plan_is_exact_before_and_after_the_first_step(tmp_path: Path) -> None:
    assert pool.run(2, save_then_use, str(tmp_path / "plan.json")) == [((1, 3, 5), (1, 3, 5))] * 2


def use(rank: int, world_size: int, path: str, width: int) -> str:
    model = net(width)
    try:
        wrapped(model, strategy=path)
    except gw.PlanFileError as error:
        return str(error)
    return "accepted"


@pytest.mark.parametrize(
    ("field", "value", "width", "told"),
    [
        ("group_size", 64, 4, "64 ranks"),
        ("backend", "nccl", 4, "nccl"),
        ("note", "same", 5, "0.weight"),
    ],
)
def test_a_plan_for_something_else_is_refused_by_the_wrapper(
    tmp_path: Path, field: str, value: object, width: int, told: str
) -> None:
    path = tmp_path / "plan.json"
    pool.run(2, save_then_use, str(path))
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, field: value}))
    for text in pool.run(2, use, str(path), width):
        assert told in text and "Fix:" in text


def too_early(rank: int, world_size: int, path: str) -> None:
    wrapped(net()).save_plan(path)


def test_a_plan_cannot_be_saved_before_the_order_is_known(tmp_path: Path) -> None:
    with pytest.raises(gw.StateError, match="first step"):
        pool.run(2, too_early, str(tmp_path / "plan.json"))


def one_rank_has_another(rank: int, world_size: int) -> str:
    model = net()
    try:
        wrapped(model, strategy=[1, 3, 5] if rank == 0 else [1, 99])
    except gw.GradweaveError as error:
        return type(error).__name__
    return "accepted"


def test_an_error_on_one_rank_is_told_to_the_others_at_once() -> None:
    assert pool.run(2, one_rank_has_another, timeout=20) == ["MismatchError", "MismatchError"]
