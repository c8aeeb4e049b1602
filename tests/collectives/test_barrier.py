"""The barrier, and imports without torch."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

import gradweave as gw
from gradweave.errors import CollectiveError, ConfigError
from tests.support import needs_free_order, pool


def waits(rank: int, world_size: int) -> float:
    gw.barrier()
    start = time.monotonic()
    if rank == 1:
        time.sleep(0.4)
    gw.barrier(timeout=10)
    return time.monotonic() - start


def in_subgroup(rank: int, world_size: int) -> str:
    gw.new_group("late", [1, 2])
    if rank:
        gw.barrier("late")
    return "through"


def missing(rank: int, world_size: int, absent: int) -> None:
    if rank == absent:
        time.sleep(5)
    else:
        gw.barrier(timeout=1)


def bad_timeout(rank: int, world_size: int) -> None:
    gw.barrier(timeout=0)


def test_nobody_passes_before_the_last() -> None:
    assert all(seconds >= 0.4 for seconds in pool.run(2, waits))


def test_only_the_groups_ranks_take_part() -> None:
    assert pool.run(3, in_subgroup) == ["through"] * 3


@needs_free_order
def test_the_ranks_that_did_not_come_are_named_on_those_that_did() -> None:
    absent = 0
    outcomes = pool.fresh(3, missing, absent)
    for outcome in outcomes:
        if outcome.rank != absent:
            assert isinstance(outcome.error, CollectiveError), outcome
            assert f"the barrier did not finish: not heard from: rank {absent}. " in str(outcome.error)


def test_a_bad_timeout_is_refused() -> None:
    with pytest.raises(ConfigError, match="timeout=0"):
        pool.run(2, bad_timeout)


def test_the_package_imports_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import gradweave.collectives, gradweave.world"
    subprocess.run([sys.executable, "-c", code], check=True)
