"""Only what all ranks do together communicates; what one rank does alone is harmless, or refused on all."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import gradweave as gw
from tests.support import pool


def wrapped(model: nn.Module, **options: object) -> gw.DistributedOptimizer:
    return gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model, **options)


def log_on_one_rank(rank: int, world_size: int, overlap: bool) -> float:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = wrapped(model, overlap=overlap)
    for _ in range(3):
        optimizer.zero_grad()
        (model(torch.ones(1, 1)) * (rank + 1)).sum().backward()
        if rank == 0:
            assert optimizer.param_groups[0]["lr"] == 1.0
        assert gw.allreduce(torch.ones(1), check=False).item() == 2.0
        (model(torch.ones(1, 1)) * (rank + 1)).sum().backward()
        optimizer.step()
    return float(model.weight)


@pytest.mark.parametrize("overlap", [True, False])
def test_reading_the_learning_rate_on_one_rank_is_harmless(overlap: bool) -> None:
    assert pool.run(2, log_on_one_rank, overlap, timeout=30) == [-9.0, -9.0]


def validated(rank: int, world_size: int) -> float:
    import time

    class Slow(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not torch.is_grad_enabled():
                time.sleep(0.3)
            return super().forward(x)

    model = Slow(1, 1)
    optimizer = wrapped(model)
    for _ in range(3):
        with torch.no_grad():
            model(torch.ones(1, 1))
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
    iteration = optimizer.recorder.iterations[-1]
    return iteration.bp_end_s - iteration.fp_start_s


def test_a_validation_is_no_part_of_the_next_forward() -> None:
    assert max(pool.run(2, validated)) < 0.25


def scaler_skips(rank: int, world_size: int) -> list[int]:
    model = nn.Linear(1, 1)
    optimizer = wrapped(model, strategy="single")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for step in range(4):
        optimizer.zero_grad()
        loss = model(torch.full((1, 1), float("inf") if step == 2 else 1.0)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return [len(iteration.collectives) for iteration in optimizer.recorder.iterations]


def test_a_step_that_the_scaler_skips_is_an_iteration_of_its_own() -> None:
    assert pool.run(2, scaler_skips) == [[1, 1, 1, 1]] * 2


def thawed(rank: int, world_size: int) -> str:
    module = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    module[0].requires_grad_(False)
    model = gw.DistributedDataParallel(module)
    model(torch.ones(1, 1)).sum().backward()
    module[0].requires_grad_(True)
    try:
        model(torch.ones(1, 1))
    except gw.StateError as error:
        return str(error)
    return "accepted"


def test_the_drop_in_notices_a_parameter_that_starts_to_train() -> None:
    for text in pool.run(2, thawed):
        assert "0.weight" in text and "wrap the module again" in text


def hook_on_one_rank(rank: int, world_size: int) -> str:
    model = gw.DistributedDataParallel(nn.Linear(1, 1))
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    try:
        model.register_comm_hook(None, default_hooks.allreduce_hook if rank == 0 else default_hooks.fp16_compress_hook)
    except gw.MismatchError as error:
        return str(error)
    return "accepted"


def test_different_hooks_are_refused_on_all_ranks() -> None:
    for text in pool.run(2, hook_on_one_rank):
        assert "fp16_compress_hook" in text


def flags_differ(rank: int, world_size: int) -> str:
    try:
        gw.DistributedDataParallel(nn.BatchNorm1d(2), forward_sync_buffers=rank == 0)
    except gw.MismatchError as error:
        return str(error)
    return "accepted"


def test_different_buffer_flags_are_refused_on_all_ranks() -> None:
    for text in pool.run(2, flags_differ):
        assert "forward_sync_buffers" in text


def twice(rank: int, world_size: int) -> bool:
    model = nn.Linear(1, 1)
    drop_in = gw.DistributedDataParallel(model)
    drop_in.close()
    drop_in.close()
    gw.set_split_strategy_by_idx([0, 7])  # a closed wrapper has no say
    optimizer = wrapped(nn.Linear(1, 1), strategy="single")
    optimizer.close()
    optimizer.close()
    return True


def test_closing_twice_does_nothing_and_a_closed_wrapper_has_no_say() -> None:
    assert pool.run(2, twice) == [True, True]


def nothing_to_train(rank: int, world_size: int) -> None:
    wrapped(nn.Linear(1, 1).requires_grad_(False))


def test_an_optimizer_without_anything_to_train_is_refused() -> None:
    with pytest.raises(gw.ConfigError, match="requires a gradient"):
        pool.run(2, nothing_to_train)


def test_rank_and_size_before_init_are_the_launchers() -> None:
    environment = {**os.environ, "RANK": "3", "WORLD_SIZE": "5"}
    code = "import gradweave as gw; print(gw.rank(), gw.size())"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=50)
    assert done.stdout.split() == ["3", "5"], done.stderr
