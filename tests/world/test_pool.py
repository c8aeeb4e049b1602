"""The worker pool itself: results, errors, hangs, deaths."""

from __future__ import annotations

import os
import time

import pytest

from gradweave.errors import ConfigError
from tests.support import pool


def total(rank: int, world_size: int, factor: float) -> float:
    import torch
    import torch.distributed as dist

    x = torch.tensor(factor * (rank + 1))
    dist.all_reduce(x)
    return float(x)


def pid(rank: int, world_size: int) -> int:
    return os.getpid()


def fail_on(rank: int, world_size: int, bad: int) -> int:
    if rank == bad:
        raise ConfigError("value 7 is wrong")
    return rank


def die_on(rank: int, world_size: int, bad: int) -> int:
    if rank == bad:
        os._exit(3)
    return rank


def hang(rank: int, world_size: int) -> None:
    time.sleep(1000)


@pytest.mark.parametrize("world_size", [2, 3])
def test_every_rank_answers_in_rank_order(world_size: int) -> None:
    expected = 10.0 * world_size * (world_size + 1) / 2
    assert pool.run(world_size, total, 10.0) == [expected] * world_size


def test_workers_are_reused() -> None:
    assert pool.run(2, pid) == pool.run(2, pid)


def test_a_workers_error_arrives_with_its_type_and_traceback() -> None:
    with pytest.raises(ConfigError, match="value 7 is wrong") as caught:
        pool.run(2, fail_on, bad=1)
    assert "rank 1" in str(caught.value.__cause__)
    assert "in fail_on" in str(caught.value.__cause__)


def test_a_hang_replaces_the_pool() -> None:
    before = pool.run(2, pid)
    with pytest.raises(pool.WorkerError, match=r"ranks \[0, 1\] of 2 did not finish in time"):
        pool.run(2, hang, timeout=0.5)
    assert not set(before) & set(pool.run(2, pid))


def test_a_death_is_reported_with_its_exit_code() -> None:
    with pytest.raises(pool.WorkerError, match="worker 1 of 2 died, exit code 3"):
        pool.run(2, die_on, bad=1)
    assert pool.run(2, total, 1.0) == [3.0, 3.0]


def test_fresh_processes_report_what_became_of_each() -> None:
    outcomes = pool.fresh(2, die_on, bad=1)
    assert (outcomes[0].value, outcomes[1].exit_code) == (0, 3)
