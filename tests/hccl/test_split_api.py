"""HCCL's names, limits and import path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gradweave as gw
from gradweave.hccl.split.api import (
    get_split_strategy,
    reset_split_strategy,
    set_split_strategy_by_idx,
    set_split_strategy_by_size,
)
from gradweave.world import names

BOTH = [(set_split_strategy_by_idx, "idxList"), (set_split_strategy_by_size, "dataSizeList")]


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    names.reset_registries()
    yield
    names.reset_registries()


def test_the_vendors_examples_run_by_position_and_by_keyword() -> None:
    names.add("group", (0,))
    assert set_split_strategy_by_idx([20, 100, 159], "group") is None
    assert get_split_strategy("group").strategy == gw.SplitStrategy.by_idx([20, 100, 159])
    assert set_split_strategy_by_size([60, 20, 20]) is None
    assert gw.get_split_strategy().strategy == gw.SplitStrategy.by_size([60, 20, 20])
    set_split_strategy_by_idx(idxList=[20, 100, 159], group="hccl_world_group")
    assert gw.get_split_strategy().strategy == gw.SplitStrategy.by_idx([20, 100, 159])
    set_split_strategy_by_size(dataSizeList=[60, 40], group="group")
    assert get_split_strategy("group").strategy == gw.SplitStrategy.by_size([60, 40])


@pytest.mark.parametrize("call", ["set_split_strategy_by_idx([20, 100, 159])", "set_split_strategy_by_size([60, 20, 20])"])
def test_a_script_needs_only_its_import_line_changed(call: str) -> None:
    script = f"from hccl.split.api import {call.partition('(')[0]}\n{call}"
    exec(script.replace("from hccl.", "from gradweave.hccl."), {})
    assert gw.get_split_strategy().is_set


@pytest.mark.parametrize(
    ("call", "argument", "value"),
    [(*BOTH[0], list(range(9))), (*BOTH[1], [20] + [10] * 8)],
)
def test_more_than_eight_segments_are_refused(call: Callable[..., Any], argument: str, value: list[int]) -> None:
    with pytest.raises(gw.SplitError, match="9 segments.*at most 8.*Fix:"):
        call(**{argument: value})
    assert not get_split_strategy().is_set


def test_eight_segments_are_allowed() -> None:
    set_split_strategy_by_idx(list(range(8)))
    set_split_strategy_by_size([12.5] * 8)


@pytest.mark.parametrize(("call", "argument"), BOTH)
@pytest.mark.parametrize("value", [[], None, [-1, 101], [True, 99], ["100"], [float("nan"), 100], 100])
def test_malformed_values_are_refused(call: Callable[..., Any], argument: str, value: Any) -> None:
    with pytest.raises(gw.SplitError, match="Rule:.*Fix:"):
        call(**{argument: value})


@pytest.mark.parametrize(("call", "argument"), BOTH)
def test_unknown_groups_and_foreign_ranks_are_refused(call: Callable[..., Any], argument: str) -> None:
    names.add("others", (3,))
    for group in ("nowhere", "others", 7):
        with pytest.raises((gw.GroupError, gw.ConfigError), match="Rule:.*Fix:"):
            call([100], group)


def test_a_reset_returns_the_group_to_hccls_default() -> None:
    set_split_strategy_by_size([60, 40])
    reset_split_strategy()
    assert get_split_strategy().strategy == gw.SplitStrategy.by_size([96.54, 3.46])
