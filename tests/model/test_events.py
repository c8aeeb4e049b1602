"""Events of an iteration: what is derived, what is unknown, what is shared."""

from __future__ import annotations

import dataclasses

import pytest

from gradweave.model import CollectiveEvent, Iteration, Trace


def iteration(**more: object) -> Iteration:
    return Iteration(step=3, fp_start_s=10.5, bp_end_s=11.0, iteration_end_s=11.25, **more)  # type: ignore[arg-type]


def trace() -> Trace:
    return Trace(0, 2, "world", "gloo", "optimizer", 0.0, (), ())


def test_data_wait_is_the_time_from_the_previous_end_to_forward() -> None:
    assert iteration(previous_end_s=10.0).data_wait_s == 0.5


def test_data_wait_is_unknown_where_no_iteration_came_before() -> None:
    assert iteration().data_wait_s is None


def test_what_was_not_seen_is_none_and_not_zero() -> None:
    seen, event = iteration(), CollectiveEvent(0, 0, 1, 8, "float32", 1.0, 2.0)
    assert (seen.fp_end_s, seen.previous_end_s, event.ready_s) == (None, None, None)


def test_an_event_is_an_all_reduce_of_the_world_unless_it_says_otherwise() -> None:
    event = CollectiveEvent(0, 0, 1, 8, "float32", 1.0, 2.0)
    assert (event.kind, event.group) == ("all_reduce", "world")


def test_events_are_values_that_nobody_changes() -> None:
    assert iteration() == iteration()
    with pytest.raises(dataclasses.FrozenInstanceError):
        iteration().step = 4  # type: ignore[misc]


def test_two_traces_do_not_share_their_head() -> None:
    one, other = trace(), trace()
    one.meta["model"] = "GPT"
    assert other.meta == {}
