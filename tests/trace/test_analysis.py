"""Accounting of an iteration: phases add up to it, hidden and exposed add up to communication, whatever the clocks did."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradweave.model.events import CollectiveEvent, Iteration
from gradweave.trace.analysis import algorithm_bytes_per_s, analyse_iteration, bus_bytes_per_s
from tests.trace import synthetic

TIMES = st.floats(min_value=-10, max_value=10, allow_nan=False)


def event(start_s: float, end_s: float, segment: int = 0) -> CollectiveEvent:
    return CollectiveEvent(segment, 0, 9, 1000, "float32", start_s, end_s)


def iteration(*events: CollectiveEvent, **changes: float | None) -> Iteration:
    base = Iteration(3, fp_start_s=1.0, bp_end_s=5.0, iteration_end_s=8.0, previous_end_s=0.5, fp_end_s=2.0, collectives=events)
    return replace(base, **changes)  # type: ignore[arg-type]


def test_phases_are_what_the_marks_say() -> None:
    report = analyse_iteration(iteration(event(4.0, 6.0), event(6.5, 7.0, 1)), rank=2)
    assert (report.rank, report.step) == (2, 3)
    assert (report.iteration_s, report.data_wait_s, report.fp_s, report.bp_s, report.fp_to_bp_s) == (7.5, 0.5, 1.0, 3.0, 4.0)
    assert (report.tail_s, report.optimizer_s) == (2.0, 1.0), "the tail holds the gap between collectives"
    assert (report.communication_s, report.hidden_s, report.exposed_s) == (2.5, 1.0, 1.5)


def test_unknown_marks_stay_unknown() -> None:
    report = analyse_iteration(iteration(fp_end_s=None, previous_end_s=None))
    assert report.data_wait_s is None and report.fp_s is None and report.bp_s is None
    assert report.iteration_s == 7.0 and report.tail_s == 0.0 and report.collectives == ()


def test_a_collective_starts_when_the_one_before_has_ended() -> None:
    first, second = analyse_iteration(iteration(event(3.0, 6.0), event(4.0, 7.0, 1))).collectives
    assert (second.effective_start_s, second.duration_s, second.hidden_s, second.exposed_s) == (6.0, 1.0, 0.0, 1.0)
    assert first.hidden_s == 2.0 and first.exposed_s == 1.0


def test_communication_that_runs_twice_at_once_counts_once() -> None:
    report = analyse_iteration(iteration(event(2.0, 6.0), event(3.0, 4.0, 1)))
    assert report.communication_s == 4.0


def test_serial_communication_is_all_exposed() -> None:
    report = analyse_iteration(synthetic.iteration(2, 0.0, (107, 159), synthetic.gradients(), overlap=False))
    assert report.hidden_s == 0.0
    assert report.exposed_s == pytest.approx(report.communication_s) == pytest.approx(2 * synthetic.ALPHA_S + 0.04)


@given(
    st.lists(st.tuples(TIMES, TIMES), max_size=8), TIMES, TIMES, TIMES, st.one_of(st.none(), TIMES), st.one_of(st.none(), TIMES)
)
def test_any_marks_at_all_are_accounted_for_without_negative_times(
    spans: list[tuple[float, float]], fp: float, bp: float, end: float, previous: float | None, fp_end: float | None
) -> None:
    events = tuple(event(start, stop, k) for k, (start, stop) in enumerate(spans))
    report = analyse_iteration(Iteration(0, fp, bp, end, events, fp_end_s=fp_end, previous_end_s=previous))
    parts = [
        report.iteration_s,
        report.data_wait_s,
        report.fp_s,
        report.bp_s,
        report.fp_to_bp_s,
        report.tail_s,
        report.optimizer_s,
    ]
    parts += [report.hidden_s, report.exposed_s, *(item.duration_s for item in report.collectives)]
    assert all(part is None or (math.isfinite(part) and part >= 0) for part in parts)
    assert report.hidden_s + report.exposed_s == pytest.approx(report.communication_s)
    assert sum(item.hidden_s for item in report.collectives) == pytest.approx(report.hidden_s)
    assert sum(item.exposed_s for item in report.collectives) == pytest.approx(report.exposed_s)
    whole = (report.data_wait_s or 0.0) + report.fp_to_bp_s + report.tail_s + report.optimizer_s
    assert whole == pytest.approx(report.iteration_s)


def test_bandwidths_are_unknown_rather_than_infinite() -> None:
    assert algorithm_bytes_per_s(100, 0.0) is None
    assert bus_bytes_per_s(100, 1.0, world_size=1) is None
    assert bus_bytes_per_s(100, 1.0, 4, kind="broadcast") is None
    assert bus_bytes_per_s(100, 1.0, 2) == 100.0
