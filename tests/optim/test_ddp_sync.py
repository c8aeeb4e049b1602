"""Buffers and ignored parameters of the DDP drop-in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import gradweave as gw
from tests.optim.models import Normed, inputs
from tests.support import pool

TorchDDP = nn.parallel.DistributedDataParallel


def running(rank: int, world_size: int, kwargs: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Running means at the start of the fourth forward, ours and torch's."""
    seen: list[list[float]] = []
    for kind in (gw.DistributedDataParallel, TorchDDP):
        model = kind(Normed(), **kwargs)
        for step in range(3):
            model(inputs(rank, step)).square().sum().backward()
        model.eval()
        with torch.no_grad():
            model(inputs(0))
        seen.append(model.module.norm.running_mean.tolist())
    return seen[0], seen[1]


def test_buffers_follow_rank_0() -> None:
    (first, theirs), (second, _) = pool.run(2, running, {})
    assert first == second == pytest.approx(theirs)


@pytest.mark.parametrize("kwargs", [{"broadcast_buffers": False}, {"forward_sync_buffers": False}], ids=str)
def test_buffers_are_each_ranks_own_when_they_are_not_synchronised(kwargs: dict[str, Any]) -> None:
    (first, theirs), (second, also) = pool.run(2, running, kwargs)
    assert first != second
    assert first == pytest.approx(theirs) and second == pytest.approx(also)


def ignored(rank: int, world_size: int) -> tuple[float, float, list[float]]:
    """A parameter and a buffer that the model asks to leave alone."""
    module = Normed()
    module._ddp_params_and_buffers_to_ignore = ["layer.bias", "norm.running_mean"]  # type: ignore[assignment]
    with torch.no_grad():
        module.layer.bias.fill_(float(rank))
        module.norm.running_mean.fill_(float(rank))
    model = gw.DistributedDataParallel(module)
    bias, mean = float(module.layer.bias.mean()), float(module.norm.running_mean.mean())
    module.eval()
    model(inputs(rank)).square().sum().backward()
    return bias, mean, module.layer.bias.grad.tolist()


def test_ignored_parameters_and_buffers_stay_local() -> None:
    (bias, mean, first), (other_bias, other_mean, second) = pool.run(2, ignored)
    assert (bias, other_bias, mean, other_mean) == (0.0, 1.0, 0.0, 1.0)
    assert first != second
