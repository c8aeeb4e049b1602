"""What strategy= accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradweave.errors import ConfigError, PlanFileError, SplitError
from gradweave.model import GradientInfo
from gradweave.split import Auto, SplitStrategy, as_strategy, auto_of, save_plan


@pytest.mark.parametrize("name", ["default", "hccl_default", "single", "per_gradient"])
def test_names_of_strategies_are_accepted(name: str) -> None:
    assert as_strategy(name) == getattr(SplitStrategy, name)()


def test_none_strategies_and_lists_of_indices_are_accepted() -> None:
    assert as_strategy(None) is None
    assert as_strategy(SplitStrategy.single()) == SplitStrategy.single()
    assert as_strategy([1, 3]) == as_strategy((1, 3)) == SplitStrategy.by_idx([1, 3])


@pytest.mark.parametrize("kind", [str, Path])
def test_plan_files_are_accepted_by_path(tmp_path: Path, kind: type) -> None:
    path = tmp_path / "plan.json"
    save_plan(path, [GradientInfo(name, (4,), "float32", 16) for name in "ba"], [0, 1], group_size=2, backend="gloo")
    assert as_strategy(kind(path)) == SplitStrategy.by_names([["b"], ["a"]])


def test_a_plan_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanFileError, match="no_such.json.*Rule:.*Fix:"):
        as_strategy(str(tmp_path / "no_such.json"))


def test_auto_is_the_tuners_and_no_strategy() -> None:
    assert auto_of("auto") == Auto() and auto_of(Auto(watch=False)) == Auto(watch=False)
    assert [auto_of(value) for value in (None, "single", [1, 2], SplitStrategy.single())] == [None] * 4
    with pytest.raises(ConfigError, match="'auto' is not a split strategy.*Rule:.*Fix:"):
        as_strategy("auto")


@pytest.mark.parametrize("value", ["Default", "", 25, 2.5, True, {}, object(), b"default"])
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="(?s)Rule:.*Fix:"):
        as_strategy(value)


def test_a_malformed_list_of_indices_is_refused_by_its_own_rule() -> None:
    with pytest.raises(SplitError, match="ascending"):
        as_strategy([3, 1])
