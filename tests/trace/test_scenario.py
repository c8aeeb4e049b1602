"""Scenarios are named as the split guide names them, and what they suggest helps on the machine that made the trace."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from gradweave.model.events import Trace
from gradweave.trace.reports import summary_dict
from gradweave.trace.reports.terminal import segment_table
from gradweave.trace.scenario import Scenario, diagnose, silence
from gradweave.trace.summary import PlanSummary, WrapperSummary, summarise
from tests.trace import synthetic


def measured(plan: Sequence[int], overlap: bool = True, probe: bool = True, **options: object) -> WrapperSummary:
    """The wrapper of a plan; a second wrapper on the same link sends other sizes, so that the cost is known."""
    other = synthetic.run(plans=(((9, 29, 159), True),), label="probe", **options) if probe else []
    return summarise(synthetic.run(plans=((plan, overlap),), **options) + other)[0]


def one(plan: Sequence[int], overlap: bool = True, **options: object) -> tuple[PlanSummary, Scenario | None]:
    wrapper = measured(plan, overlap, **options)
    return wrapper.plans[0], diagnose(wrapper.plans[0], wrapper.sizes_bytes)


# Communication three times as fast as backward: a good split hides nearly all of it.
FAST = {"size_bytes": 80_000}


def test_scenario_1_moves_the_split_point_backward() -> None:
    summary, found = one((79, 159), **FAST)
    assert found is not None and found.number == 1 and found.plan is not None
    assert found.plan[0] > 79 and found.plan[-1] == 159
    assert f"Move the split point backward (later): end segment 1 at index {found.plan[0]}" in found.text
    assert "instead of 79 (50 %)" in found.text and "approximate" in found.text


def test_scenario_2_moves_the_split_point_forward() -> None:
    summary, found = one((157, 159), **FAST)
    assert found is not None and found.number == 2 and found.plan is not None and found.plan[0] < 157
    assert f"Move the split point forward (earlier): end segment 1 at index {found.plan[0]}" in found.text
    assert "instead of 157 (99 %)" in found.text


def test_scenario_3_adds_segments_where_moving_gains_little() -> None:
    _, found = one((79, 159))
    assert found is not None and found.number == 3 and found.plan is not None and len(found.plan) > 2
    _, single = one((159,))
    assert single is not None and single.number == 3 and "Add" in single.text


@pytest.mark.parametrize("plan", [(79, 159), (157, 159), (159,), (20, 100, 159), (10, 20, 159)])
@pytest.mark.parametrize("size_bytes", [80_000, 250_000])
def test_what_is_suggested_comes_true_on_the_same_machine(plan: tuple[int, ...], size_bytes: int) -> None:
    before, found = one(plan, size_bytes=size_bytes)
    assert found is not None and found.plan is not None and found.expected_exposed_s is not None
    after, _ = one(found.plan, size_bytes=size_bytes)
    assert after.exposed_s.median < before.exposed_s.median
    # one size of message alone cannot tell latency from bandwidth: the interpolation may miss by a latency a segment
    assert after.exposed_s.median == pytest.approx(found.expected_exposed_s, abs=synthetic.ALPHA_S * (len(found.plan) + 1))


def test_serial_communication_comes_before_any_split() -> None:
    summary, found = one((143, 159), overlap=False, **FAST)
    assert (
        found is not None and found.number is None and "overlap=True" in found.advice and found.expected_exposed_s is not None
    )
    assert found.expected_exposed_s < summary.exposed_s.median


def test_overlap_that_does_not_happen_is_noticed() -> None:
    traces = [
        replace(trace, iterations=tuple(replace(iteration, overlap=True) for iteration in trace.iterations))
        for trace in synthetic.run(plans=(((79, 159), False),))
    ]
    (wrapper,) = summarise(traces)
    found = diagnose(wrapper.plans[0], wrapper.sizes_bytes)
    assert found is not None and found.number is None and "per block" in found.advice


def test_nothing_is_said_when_there_is_nothing_to_gain() -> None:
    summary, found = one((99, 135, 152, 159), **FAST)
    assert found is None and silence(summary).startswith("Nothing to gain")
    assert one((), **FAST)[1] is None, "no communication at all"


def test_a_step_time_that_varies_more_than_is_exposed_tells_nothing() -> None:
    summary, found = one((107, 159), jitter=3.0, **FAST)
    assert found is None and silence(summary).startswith("Too noisy to tell")


def test_waiting_for_a_late_rank_is_told_apart_from_transfer() -> None:
    _, found = one((107, 159), late_rank=1, late_s=0.030, **FAST)
    assert found is not None and "waiting for the last rank to come (most often rank 1)" in found.text
    _, only = one((99, 135, 152, 159), late_rank=1, late_s=0.030, **FAST)
    assert only is not None and only.number is None and only.title == "Held up by late ranks"
    _, together = one((107, 159), **FAST)
    assert together is not None and "waiting" not in together.text


def test_ranks_that_take_turns_in_being_late_are_not_blamed() -> None:
    def swapped(trace: Trace, other: Trace) -> Trace:
        """Every second iteration is the other rank's, on this rank's clock."""
        shift = trace.epoch_offset_s - other.epoch_offset_s
        mixed = [
            mine if mine.step % 2 else synthetic.shifted(theirs, -shift)
            for mine, theirs in zip(trace.iterations, other.iterations, strict=True)
        ]
        return replace(trace, iterations=tuple(mixed))

    first, second = synthetic.run(plans=(((107, 159), True),), late_rank=1, late_s=0.030, **FAST)
    probe = synthetic.run(plans=(((9, 29, 159), True),), label="probe", **FAST)
    wrapper = summarise([swapped(first, second), swapped(second, first), *probe])[0]
    found = diagnose(wrapper.plans[0], wrapper.sizes_bytes)
    assert found is not None and "(ranks alternate)" in found.text and "most often" not in found.text
    plan = summary_dict(list(wrapper.traces))["wrappers"][0]["plans"][0]
    assert (plan["segments"][0]["late_rank"], plan["segments"][0]["ranks_alternate"]) == (None, True)
    console = Console(width=100, file=io.StringIO())
    console.print(segment_table(plan))
    assert "alternate" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_bound_by_communication_is_called_so() -> None:
    _, found = one((9, 19, 29, 39, 59, 79, 99, 119, 139, 159), size_bytes=2_500_000)
    assert found is not None and found.number is None and found.title == "Bound by communication"


def test_without_ready_times_the_suggestion_says_what_it_assumes() -> None:
    _, found = one((157, 159), with_ready=False, **FAST)
    assert found is not None and found.number == 2 and "Ready times were not recorded" in found.text


def test_without_gradients_the_direction_is_still_named() -> None:
    for plan, number in (((79, 159), 1), ((157, 159), 2), ((159,), 3)):
        found = diagnose(measured(plan, **FAST).plans[0], ())
        assert found is not None and found.number == number and found.plan is None


def test_a_model_of_many_gradients_is_diagnosed_quickly() -> None:
    _, found = one((1400, 2999), count=3000, size_bytes=4_000, steps_each=6, probe=False)
    assert found is not None and found.number in (1, 2, 3)


def test_no_suggestion_promises_less_exposed_time_than_the_lower_bound() -> None:
    summary, found = one((79, 159), **FAST)
    assert found is not None and found.expected_exposed_s is not None
    raised = replace(summary, bound=replace(summary.bound, exposed_s=found.expected_exposed_s + 0.004))
    again = diagnose(raised, measured((79, 159), **FAST).sizes_bytes)
    assert again is None or again.expected_exposed_s is None or again.expected_exposed_s >= found.expected_exposed_s + 0.004
    assert again is not None


def test_one_message_size_predicts_nothing_and_advises_no_split() -> None:
    for plan in ((79, 159), (159,)):
        summary, found = one(plan, probe=False, **FAST)
        assert found is None and summary.exposed_pct > 5
        text = silence(summary)
        assert text.startswith("Nothing to predict: one message size was seen")
        assert "Expected" not in text and "no split is advised" in text


def test_a_gain_below_the_noise_is_not_promised() -> None:
    summary, found = one((79, 159), **FAST)
    assert found is not None and found.expected_exposed_s is not None and found.plan is not None
    assert summary.exposed_s.median - found.expected_exposed_s < 0.9 * summary.exposed_s.median
    width = 0.9 * summary.exposed_s.median * len(summary.steps) ** 0.5 / 1.86
    noisy = replace(summary.iteration_s, q3=summary.iteration_s.q1 + width)
    again = diagnose(replace(summary, iteration_s=noisy), measured((79, 159), **FAST).sizes_bytes)
    assert again is not None and again.plan is None and again.expected_exposed_s is None and "noise" in again.symptom


def test_little_exposed_time_alarms_nobody() -> None:
    summary, found = one((99, 135, 152, 159), late_rank=1, late_s=0.004, **FAST)
    assert 2 < summary.exposed_pct < 5 and found is None
    assert silence(summary).startswith("Little to gain") and "waiting" in silence(summary)


def test_two_iterations_are_too_few_for_a_verdict() -> None:
    summary, found = one((79, 159), steps_each=4, **FAST)  # steps 0 and 1 are warm-up
    assert len(summary.steps) == 2 and found is None
    assert silence(summary) == "Too few iterations to tell: 2, where 3 are needed."
