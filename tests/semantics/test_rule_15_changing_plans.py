"""Rule 15: a plan changes between iterations only, on all ranks together, and no gradient notices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradweave as gw
from tests.semantics.helpers import alone, batch, error, loss_of, mlp, part, weights, wrapped
from tests.support import pool

CALLS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "by_idx": ([0, 2, 5], (0, 2, 5)),
    "by_size": ([50, 25, 25], (2, 4, 5)),
    "by_bytes": (300, (2, 5)),
}


def call(kind: str, value: Any) -> None:
    """set_split_strategy_by_..., or reset_split_strategy."""
    gw.reset_split_strategy() if kind == "reset" else getattr(gw, f"set_split_strategy_{kind}")(value)


def plans(optimizer: gw.DistributedOptimizer) -> list[tuple[int, ...]]:
    """Last indices of the collectives that each recorded iteration really ran."""
    return [tuple(c.last for c in iteration.collectives) for iteration in optimizer.recorder.iterations]


def changed(rank: int, world_size: int, calls: list[tuple[int, str, str, Any]], **options: Any) -> tuple[list, Tensor, list]:
    """Train six steps; `calls` are (step, moment, kind, value)."""
    model = mlp()
    optimizer = wrapped(model, strategy=options.pop("strategy", None), **options)
    for step in range(6):
        todo = {moment: (kind, value) for at, moment, kind, value in calls if at == step}
        if "top" in todo:
            call(*todo["top"])
        loss_of(model, part(batch(seed=step), rank, world_size)).backward()
        if "before step" in todo:
            call(*todo["before step"])
        optimizer.step()
        optimizer.zero_grad()
    return plans(optimizer), weights(model), [iteration.plan for iteration in optimizer.recorder.iterations]


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("kind", CALLS)
def test_a_change_takes_effect_in_the_iteration_after_the_call(kind: str, overlap: bool) -> None:
    value, expected = CALLS[kind]
    for seen, result, _ in pool.run(2, changed, [(2, "top", kind, value)], overlap=overlap):
        before = seen[0]
        assert seen == [before] * 3 + [expected] * 3
        assert before != expected
        assert error(result, alone(6)) < 1e-6


@pytest.mark.parametrize("overlap", [True, False])
def test_a_call_after_the_last_message_has_left_takes_effect_one_iteration_later_on_all_ranks(overlap: bool) -> None:
    for seen, result, _ in pool.run(2, changed, [(2, "before step", "by_idx", [0, 2, 5])], overlap=overlap):
        old = 4 if overlap else 3
        assert seen == [seen[0]] * old + [(0, 2, 5)] * (6 - old)
        assert error(result, alone(6)) < 1e-6


def test_an_iteration_is_recorded_under_the_plan_it_ran_with() -> None:
    for seen, _, recorded in pool.run(2, changed, [(2, "top", "by_idx", [0, 2, 5])]):
        assert recorded == seen


def test_reset_returns_to_the_default() -> None:
    calls = [(1, "top", "by_idx", [0, 2, 5]), (3, "top", "reset", None)]
    for seen, result, _ in pool.run(2, changed, calls):
        assert seen == [seen[0]] * 2 + [(0, 2, 5)] * 2 + [seen[0]] * 2
        assert error(result, alone(6)) < 1e-6


def test_a_call_in_the_first_iteration_counts_from_its_end() -> None:
    for seen, result, _ in pool.run(2, changed, [(0, "top", "by_idx", [0, 2, 5])]):
        assert seen[1:] == [(0, 2, 5)] * 5
        assert error(result, alone(6)) < 1e-6


def test_several_calls_in_one_iteration_leave_the_last_one() -> None:
    calls = [(2, "top", "by_idx", [0, 2, 5]), (2, "before step", "by_idx", [4, 5])]
    for seen, result, _ in pool.run(2, changed, calls):
        assert seen[4:] == [(4, 5)] * 2
        assert error(result, alone(6)) < 1e-6


def test_an_explicit_strategy_wins_over_the_registry() -> None:
    for seen, _, _ in pool.run(2, changed, [(1, "top", "by_idx", [0, 2, 5])], strategy=[3, 5]):
        assert seen == [(3, 5)] * 6


def set_before(rank: int, world_size: int) -> list[tuple[int, ...]]:
    gw.set_split_strategy_by_idx([1, 5])
    return changed(rank, world_size, [])[0]


def test_a_strategy_set_before_the_wrapper_is_built_holds_from_the_first_step() -> None:
    assert pool.run(2, set_before) == [[(1, 5)] * 6] * 2


def lopsided(rank: int, world_size: int, step: int, moment: str, same_kind: bool) -> Any:
    """Rank 1 makes no call, or another one."""
    calls = [(step, moment, "by_idx", [0, 2, 5])] if rank == 0 else []
    if rank == 1 and same_kind:
        calls = [(step, moment, "by_idx", [0, 3, 5])]
    return changed(rank, world_size, calls)


@pytest.mark.parametrize("moment", ["top", "before step"])
@pytest.mark.parametrize("step", [0, 2])
def test_a_call_on_some_ranks_only_raises_at_step_and_names_those_that_made_none(step: int, moment: str) -> None:
    with pytest.raises(gw.MismatchError, match=r"ranks \[1\] made no call") as caught:
        pool.run(2, lopsided, step, moment, False)
    assert str(caught.value.__cause__).count("MismatchError") >= 2, "on every rank"


@pytest.mark.parametrize("moment", ["top", "before step"])
def test_calls_with_different_values_raise_at_step_and_name_the_ranks(moment: str) -> None:
    with pytest.raises(gw.MismatchError, match=r"ranks \[1\] gave another value than rank 0") as caught:
        pool.run(2, lopsided, 2, moment, True)
    assert str(caught.value.__cause__).count("MismatchError") >= 2, "on every rank"


def two_wrappers(rank: int, world_size: int, value: Any, kind: str) -> tuple[list, list, bool]:
    models = [mlp(seed) for seed in (0, 1)]
    first, second = (wrapped(model, strategy=None) for model in models)
    for step in range(5):
        if step == 2:
            call(kind, value)
        pair = part(batch(seed=step), rank, world_size)
        (loss_of(models[0], pair) + loss_of(models[1], pair)).backward()
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()
    return plans(first), plans(second), error(weights(models[0]), alone(5)) < 1e-6


def test_all_wrappers_of_a_group_follow_a_call() -> None:
    for first, second, right in pool.run(2, two_wrappers, [0, 2, 5], "by_idx"):
        assert first == second == [first[0]] * 3 + [(0, 2, 5)] * 2
        assert right


def different_sizes(rank: int, world_size: int) -> str:
    models = [mlp(depth=depth) for depth in (2, 3)]
    optimizers = [wrapped(model, strategy=None, label=f"depth{2 + i}") for i, model in enumerate(models)]
    try:
        gw.set_split_strategy_by_idx([1, 5])
    except gw.SplitError as refusal:
        return str(refusal)
    return f"accepted for {optimizers}"


def test_an_index_list_for_wrappers_of_different_sizes_is_refused_and_names_both() -> None:
    for text in pool.run(2, different_sizes):
        assert "'depth2' (4 gradients)" in text and "'depth3' (6 gradients)" in text


def unfit(rank: int, world_size: int) -> tuple[str, list]:
    model = mlp()
    optimizer = wrapped(model, strategy=None)
    try:
        gw.set_split_strategy_by_idx([1, 6])
    except gw.SplitError as refusal:
        text = str(refusal)
    for step in range(3):
        loss_of(model, batch(seed=step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return text, plans(optimizer)


def test_a_list_that_does_not_fit_is_refused_at_the_call_and_changes_nothing() -> None:
    for text, seen in pool.run(2, unfit):
        assert "6" in text and "5" in text
        assert seen == [seen[0]] * 3 and seen[0][-1] == 5


def in_subgroup(rank: int, world_size: int) -> list[tuple[int, ...]] | None:
    gw.new_group("pair", [0, 2])
    if rank == 1:
        return None
    model = mlp()
    optimizer = wrapped(model, strategy=None, group="pair")
    for step in range(4):
        if step == 1:
            gw.set_split_strategy_by_idx([0, 2, 5], group="pair")
        loss_of(model, batch(seed=step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return plans(optimizer)


def test_a_strategy_of_a_subgroup_is_changed_by_its_members_alone() -> None:
    first, outside, third = pool.run(3, in_subgroup)
    assert outside is None
    assert first == third and first[2:] == [(0, 2, 5)] * 2 and first[0] != (0, 2, 5)


def held_across_change(rank: int, world_size: int) -> bool:
    """Gradients that are used after a change of plan are those of the old buffers, unharmed."""
    model = mlp()
    optimizer = wrapped(model, strategy=None)
    for step in range(3):
        if step == 1:
            gw.set_split_strategy_by_idx([0, 2, 5])
        loss_of(model, part(batch(seed=step), rank, world_size)).backward()
        optimizer.synchronize()
        kept = torch.cat([p.grad.flatten() for p in model.parameters()])
        optimizer.step()
        if not torch.equal(kept, torch.cat([p.grad.flatten() for p in model.parameters()])):
            return False
        optimizer.zero_grad()
    return True


def test_gradients_stay_readable_across_a_change() -> None:
    assert pool.run(2, held_across_change) == [True, True]
