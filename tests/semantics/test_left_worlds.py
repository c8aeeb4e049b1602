"""What happens to wrappers when their world ends, when a backward raises, and in forked children."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gradweave as gw
from tests.support import pool


def after_shutdown(rank: int, world_size: int, again: bool) -> list[str]:
    model = nn.Linear(3, 1)
    ddp = gw.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ddp(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    gw.shutdown()
    if again:
        gw.init()
    said = []
    for act in (lambda: ddp(torch.ones(1, 3)), lambda: ddp.segments, lambda: ddp.save_plan("x.json")):
        try:
            act()
            said.append("nothing")
        except gw.StateError as error:
            said.append(str(error))
    with torch.no_grad():
        ddp(torch.ones(1, 3))  # to evaluate needs no world
    return said


@pytest.mark.parametrize("again", [False, True])
def test_a_drop_in_whose_world_was_left_does_not_train_on_silently(again: bool) -> None:
    for outcome in pool.fresh(2, after_shutdown, again):
        assert len(outcome.value) == 3, outcome
        assert all("the world was left" in text and "Fix: call gw.init() and wrap again" in text for text in outcome.value)


def again_and_again(rank: int, world_size: int) -> list[float]:
    sums = []
    for _ in range(4):
        gw.init(timeout=30)
        model = nn.Linear(2, 1, bias=False)
        optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
        for _ in range(2):
            model(torch.full((1, 2), float(rank))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        sums.append(float(gw.allreduce(torch.ones(1))))
        gw.shutdown()
    return sums


def test_worlds_may_follow_each_other_in_one_process() -> None:
    for outcome in pool.fresh(2, again_and_again, joins_group=False):
        assert outcome.value == [2.0] * 4, outcome


class Fails(torch.autograd.Function):
    """The identity, whose backward raises when told to."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, fails: bool) -> torch.Tensor:
        ctx.fails = fails
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        if ctx.fails:
            raise ValueError("mine")
        return gradient, None


def a_backward_raises(rank: int, world_size: int, where: str) -> str:
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
    model = nn.Sequential(*layers)
    ddp = gw.DistributedDataParallel(Guarded(model, where), strategy="per_gradient", find_unused_parameters=True, timeout=6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        for step in range(6):
            try:
                ddp(torch.full((2, 8), 1.0 + rank), step == 3 and rank == 1).sum().backward()
            except ValueError:
                optimizer.zero_grad()
                continue
            optimizer.step()
            optimizer.zero_grad()
    except gw.GradweaveError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


class Guarded(nn.Module):
    """A model that fails at the begin of backward, in its middle or at its end."""

    def __init__(self, inner: nn.Sequential, where: str) -> None:
        super().__init__()
        self.inner, self.where = inner, where

    def forward(self, x: torch.Tensor, fails: bool) -> torch.Tensor:
        x.requires_grad_(True)
        places = {"end": 0, "middle": 2, "begin": 4}
        for index, layer in enumerate([*self.inner, nn.Identity()]):
            if places[self.where] == index:
                x = Fails.apply(x, fails)
            x = layer(x)
        return x


@pytest.mark.parametrize("where", ["begin", "middle", "end"])
def test_a_backward_that_raised_on_one_rank_and_was_caught_does_not_part_the_ranks_silently(where: str) -> None:
    outcomes = pool.fresh(2, a_backward_raises, where)
    assert outcomes[1].value.startswith(("StateError", "MismatchError")), outcomes
    assert "did not end: it raised" in outcomes[1].value or "others are not" in outcomes[1].value
    assert outcomes[0].value != "nothing", outcomes


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_leaves_the_parents_world_alone(tmp_path: Path) -> None:
    script = """
import atexit, os, sys
import torch
import gradweave as gw
from gradweave.world import names

gw.init()
model = torch.nn.Linear(4, 1)
optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
model(torch.ones(1, 4)).sum().backward()
optimizer.step()
pid = os.fork()
if pid == 0:
    from gradweave.sync import engine
    from gradweave.world import setup
    setup._leave()
    engine._close_all()
    assert not optimizer._engine.closed and torch.distributed.is_initialized()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
model(torch.ones(1, 4)).sum().backward()
optimizer.step()
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
