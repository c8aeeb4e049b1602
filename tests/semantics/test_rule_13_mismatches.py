"""Rule 13: ranks that differ fail at construction, or within the timeout, with an error that names difference and ranks."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

import gradweave as gw
from tests.semantics.helpers import batch, loss_of, mlp, wrapped
from tests.support import pool


def model_of(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "shape":
        return nn.Sequential(nn.Linear(8, 9), nn.Linear(9, 8))
    if kind == "dtype":
        return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8).bfloat16())
    if kind == "order":
        model = nn.Module()
        model.add_module("1", nn.Linear(8, 8))
        model.add_module("0", nn.Linear(8, 8))
        return model
    if kind == "fewer":
        return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8, bias=False))
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    if kind == "frozen":
        model[1].bias.requires_grad_(False)
    if kind == "strides":
        model[1].weight = nn.Parameter(torch.zeros(8, 8).t())
    return model


def built(rank: int, world_size: int, kind: str, options: dict[str, Any], mine: dict[str, Any], bad: int, ddp: bool) -> str:
    """The text of the error that building a wrapper raises; rank `bad` differs."""
    model = model_of(kind if rank == bad else "")
    chosen = mine if rank == bad else options
    try:
        if ddp:
            gw.DistributedDataParallel(model, **chosen)
        else:
            gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, **chosen)
    except gw.MismatchError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("ddp", [False, True], ids=["optimizer", "ddp"])
@pytest.mark.parametrize(
    ("kind", "theirs", "ours"),
    [
        ("shape", "0.weight (8, 8)", "0.weight (9, 8)"),
        ("dtype", "1.weight (8, 8) torch.float32", "1.weight (8, 8) torch.bfloat16"),
        ("order", "0.weight", "1.weight"),
        ("fewer", "1.bias (8,)", ""),
        ("frozen", "1.bias (8,) torch.float32 strides=(1,) trains", ""),
        ("strides", "strides=(8, 1)", "strides=(1, 8)"),
    ],
)
def test_different_models_fail_on_every_rank_and_name_the_first_difference(
    kind: str, theirs: str, ours: str, ddp: bool
) -> None:
    for text in pool.run(2, built, kind, {}, {}, 1, ddp):
        assert "rank 0 has" in text and "rank 1 has" in text, text
        before, after = text.split("rank 1 has")
        assert theirs in before and ours in after, text


def test_both_ranks_are_named_when_they_are_not_neighbours() -> None:
    for text in pool.run(3, built, "shape", {}, {}, 2, False):
        assert "rank 0 has" in text and "rank 2 has" in text and "rank 1" not in text.replace("[rank 1,", ""), text


@pytest.mark.parametrize(
    ("options", "mine", "word"),
    [
        ({"strategy": [0, 3]}, {"strategy": [1, 3]}, "strategy"),
        ({"strategy": "single"}, {}, "strategy"),
        ({}, {"op": "sum"}, "op="),
        ({}, {"overlap": False}, "overlap="),
        ({}, {"accumulate": 2}, "accumulate="),
        ({}, {"reduce_dtype": torch.bfloat16}, "reduce_dtype="),
    ],
    ids=str,
)
def test_different_strategies_and_options_fail_on_every_rank(options: dict[str, Any], mine: dict[str, Any], word: str) -> None:
    for text in pool.run(2, built, "", options, mine, 1, False):
        assert word in text and "rank 0 has" in text and "rank 1 has" in text, text


def test_equal_ranks_build_without_an_error() -> None:
    assert pool.run(2, built, "", {"op": "sum"}, {"op": "sum"}, 1, False) == ["no error"] * 2


def usable_afterwards(rank: int, world_size: int) -> list[int]:
    built(rank, world_size, "shape", {}, {}, 1, False)
    model = mlp()
    optimizer = wrapped(model)
    loss_of(model, batch()).backward()
    optimizer.step()
    return [segment.last for segment in optimizer.segments]


def test_after_a_mismatch_the_same_processes_can_build_an_equal_wrapper() -> None:
    assert pool.run(2, usable_afterwards) == [[0, 1, 2, 3, 4, 5]] * 2


# -- at run time ------------------------------------------------------------------------------------------------------------


def diverging(rank: int, world_size: int, bad_step: int, timeout: float) -> tuple[str, float]:
    """Rank 1 leaves the loop before `bad_step`, but lives on. The error of the ranks that wait, and how long it took."""
    model = mlp()
    optimizer = wrapped(model, timeout=timeout, strategy=[2, 5], label="trunk")
    started = time.monotonic()
    try:
        for step in range(bad_step + 1):
            if rank == 1 and step == bad_step:
                time.sleep(timeout + 4)
                return "left", 0.0
            started = time.monotonic()
            loss_of(model, batch(seed=step)).backward()
            optimizer.step()
            optimizer.zero_grad()
    except gw.CollectiveError as error:
        return str(error), time.monotonic() - started
    return "no error", 0.0


@pytest.mark.parametrize("bad_step", [pytest.param(0, marks=pytest.mark.verify), 3])
def test_a_rank_that_skips_a_step_is_named_by_the_rank_that_waits_within_the_timeout(bad_step: int) -> None:
    first, second = pool.fresh(2, diverging, bad_step, 3.0)
    assert second.value == ("left", 0.0), second
    text, seconds = first.value
    place = "segment 0 (gradients 0..2" if bad_step else "gradient order"
    for word in ("[rank 0, group world, step " + str(bad_step) + "]", place, "trunk", "did not arrive: 1"):
        assert word in text, text
    assert 2.0 < seconds < 9.0
