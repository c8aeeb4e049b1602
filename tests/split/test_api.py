"""The calls users make."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gradweave as gw
from gradweave.hccl.split import api as hccl
from gradweave.model import segments_from_boundaries
from gradweave.split import registry
from gradweave.world import names

CALLS = [
    (gw.set_split_strategy_by_idx, [20, 100, 159], gw.SplitStrategy.by_idx([20, 100, 159])),
    (gw.set_split_strategy_by_size, [60, 20, 20], gw.SplitStrategy.by_size([60, 20, 20])),
    (gw.set_split_strategy_by_bytes, 1024, gw.SplitStrategy.by_bytes(1024)),
]


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    names.reset_registries()
    yield
    names.reset_registries()


@pytest.mark.parametrize(("call", "value", "strategy"), CALLS)
def test_calls_set_the_strategy_of_their_group_only(call: Callable[..., Any], value: Any, strategy: gw.SplitStrategy) -> None:
    names.add("mine", (0,))
    assert call(value, group="mine") is None
    assert gw.get_split_strategy("mine").strategy == strategy
    assert not gw.get_split_strategy().is_set
    gw.reset_split_strategy("mine")
    assert not gw.get_split_strategy("mine").is_set


@pytest.mark.parametrize(("call", "value", "strategy"), CALLS)
def test_the_group_is_the_world_by_default(call: Callable[..., Any], value: Any, strategy: gw.SplitStrategy) -> None:
    call(value)
    assert gw.get_split_strategy("hccl_world_group").strategy == gw.get_split_strategy(None).strategy == strategy


@pytest.mark.parametrize(("call", "value", "strategy"), CALLS)
def test_an_unknown_group_is_refused(call: Callable[..., Any], value: Any, strategy: gw.SplitStrategy) -> None:
    with pytest.raises(gw.GroupError, match="'nowhere'.*Rule:.*Fix:"):
        call(value, group="nowhere")


@pytest.mark.parametrize(("call", "value", "strategy"), CALLS)
def test_a_rank_outside_the_group_is_refused(call: Callable[..., Any], value: Any, strategy: gw.SplitStrategy) -> None:
    names.add("others", (1, 2))
    with pytest.raises(gw.GroupError, match="rank 0.*Rule:.*Fix:"):
        call(value, group="others")
    with pytest.raises(gw.GroupError, match="rank 0"):
        gw.get_split_strategy("others")


def test_malformed_values_are_refused_and_the_strategy_stays() -> None:
    gw.set_split_strategy_by_size([60, 20, 20])
    for call in (gw.set_split_strategy_by_idx, gw.set_split_strategy_by_size, gw.set_split_strategy_by_bytes):
        with pytest.raises(gw.SplitError, match="Rule:.*Fix:"):
            call([])
    assert gw.get_split_strategy().strategy == gw.SplitStrategy.by_size([60, 20, 20])


def test_the_result_shows_strategy_and_segments() -> None:
    gw.set_split_strategy_by_idx([0, 2])
    assert repr(gw.get_split_strategy()).endswith("by index: last indices 0, 2; not applied yet>")
    registry.report("world", "optimizer", segments_from_boundaries([0, 2], [4, 8, 8]))
    result = gw.get_split_strategy()
    assert result.last_indices == (0, 2) and "segment index list: [0, 0] [1, 2]" in repr(result)


def test_hccl_calls_have_huaweis_signatures() -> None:
    assert str(inspect.signature(hccl.set_split_strategy_by_idx)).startswith("(idxList:")
    assert str(inspect.signature(hccl.set_split_strategy_by_size)).startswith("(dataSizeList:")
    for call in (hccl.set_split_strategy_by_idx, hccl.set_split_strategy_by_size):
        assert inspect.signature(call).parameters["group"].default == "hccl_world_group"


def test_process_groups_and_meshes_are_groups() -> None:
    dist = pytest.importorskip("torch.distributed")
    from torch.distributed.device_mesh import init_device_mesh

    gw.init(backend="gloo")
    try:
        gw.set_split_strategy_by_size([60, 40], group=dist.group.WORLD)
        assert gw.get_split_strategy("world").strategy == gw.SplitStrategy.by_size([60, 40])
        group = dist.new_group([0])
        gw.set_split_strategy_by_bytes(1024, group=group)
        assert gw.get_split_strategy(group).strategy == gw.SplitStrategy.by_bytes(1024)
        assert gw.get_split_strategy("world").strategy == gw.SplitStrategy.by_size([60, 40])
        mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("data",))
        gw.set_split_strategy_by_idx([0], group=mesh)
        assert gw.get_split_strategy(mesh).strategy == gw.SplitStrategy.by_idx([0])
        with pytest.raises(gw.ConfigError, match="Rule:.*Fix:"):
            gw.set_split_strategy_by_idx([0], group=7)
    finally:
        gw.shutdown()
