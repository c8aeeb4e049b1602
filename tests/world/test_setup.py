"""Joining and leaving the world."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from gradweave.errors import ConfigError
from tests.support import pool

FULL = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


def whole_life(rank: int, world_size: int) -> list:
    """Init twice, look around, leave, come back as a world of one."""
    import os

    from gradweave import world

    seen = [world.is_initialized(), world.rank(), world.size()]
    world.init(timeout=30)
    world.init()
    seen += [world.is_initialized(), world.rank(), world.size(), world.local_rank(), world.local_size()]
    world.shutdown()
    world.shutdown()
    seen += [world.is_initialized(), world.rank(), world.size()]
    for name in ("RANK", "WORLD_SIZE"):
        del os.environ[name]
    world.init()
    return [*seen, world.is_initialized(), world.rank(), world.size()]


def adopt(rank: int, world_size: int) -> tuple:
    """Torch's own initialisation, no gw.init."""
    import torch.distributed as dist

    from gradweave import world
    from gradweave.world import names

    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    before = world.rank(), world.size(), world.as_group().pg is dist.group.WORLD
    world.init()
    world.new_group("both", [0, 1])
    names.lookup("both")
    dist.destroy_process_group()
    return before, names.known(), world.rank(), world.size()


def other_backend(rank: int, world_size: int) -> None:
    from gradweave import world

    world.init(backend="nccl")


def test_a_world_is_joined_left_and_joined_again() -> None:
    outcomes = pool.fresh(2, whole_life, joins_group=False)
    assert [o.value for o in outcomes] == [
        [False, rank, 2, True, rank, 2, rank, 2, False, rank, 2, True, 0, 1] for rank in range(2)
    ], outcomes


def test_torchs_own_group_is_adopted_and_its_end_noticed() -> None:
    outcomes = pool.fresh(2, adopt, joins_group=False)
    assert [o.value for o in outcomes] == [((rank, 2, True), ["world"], rank, 2) for rank in range(2)], outcomes


def test_another_backend_for_the_same_world_is_refused() -> None:
    with pytest.raises(ConfigError, match="backend='nccl', but the world exists with 'gloo'"):
        pool.run(2, other_backend)


def test_no_launcher_means_a_world_of_one() -> None:
    from gradweave.world.setup import read_environment

    assert read_environment({"MASTER_ADDR": "localhost", "LOCAL_RANK": "3"}) is None


@pytest.mark.parametrize("missing", sorted(FULL))
def test_a_missing_variable_is_named(missing: str) -> None:
    from gradweave.world.setup import read_environment

    env = {name: value for name, value in FULL.items() if name != missing}
    with pytest.raises(ConfigError, match=f"but not {missing}"):
        read_environment(env)


@pytest.mark.parametrize(("name", "value", "text"), [("RANK", "two", "RANK='two'"), ("RANK", "2", "RANK=2 with WORLD_SIZE=2")])
def test_a_contradictory_environment_is_refused(name: str, value: str, text: str) -> None:
    from gradweave.world.setup import read_environment

    with pytest.raises(ConfigError, match=text):
        read_environment({**FULL, name: value})


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf, True, "60", timedelta(0)])
def test_a_bad_timeout_is_refused(timeout: object) -> None:
    from gradweave.world import init

    with pytest.raises(ConfigError, match="timeout="):
        init(timeout=timeout)


@pytest.mark.parametrize("backend", ["foo", "cpu:foo", "", 3])
def test_a_backend_that_torch_does_not_know_is_refused_before_anything_starts(backend: Any) -> None:
    from gradweave.world.setup import _checked_backend as checked_backend

    with pytest.raises(ConfigError, match=r"backend=.*Rule: a backend is one of .*gloo"):
        checked_backend(backend)


def by_group(rank: int, world_size: int) -> tuple[int, int, int, int]:
    import torch.distributed as dist

    from gradweave import world

    pair = world.new_group("the pair", [0, 1])
    return world.rank(dist.group.WORLD), world.size(dist.group.WORLD), world.rank(pair), world.size(pair)


def test_rank_and_size_take_whatever_is_a_group() -> None:
    assert pool.run(2, by_group) == [(0, 2, 0, 2), (1, 2, 1, 2)]
