"""Figures of a run equal those of the machine that made the traces: per plan, per segment, across ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradweave.model.cost import fit_affine
from gradweave.model.schedule import lower_bound_end_s
from gradweave.trace.bound import bound_of
from gradweave.trace.ranks import Meeting, clock_note, meetings, skew_by_segment
from gradweave.trace.stats import spread
from gradweave.trace.summary import summarise
from tests.trace import synthetic


def test_plans_are_told_apart_and_warm_up_is_left_out() -> None:
    (wrapper,) = summarise(synthetic.run(plans=(((107, 159), False), ((107, 159), True))))
    serial, overlapped = wrapper.plans
    assert (serial.overlap, overlapped.overlap) == (False, True)
    assert serial.steps == tuple(range(2, 12)) and overlapped.steps == tuple(range(12, 24))
    assert serial.iteration_s.median == pytest.approx(0.002 + 0.060 + 0.041 + 0.005)
    assert serial.hidden_pct == 0 and overlapped.exposed_s.median < serial.exposed_s.median
    assert len(wrapper.reports) == 48, "warm-up stays in the timeline"


def test_warm_up_counts_when_there_is_nothing_else() -> None:
    (wrapper,) = summarise([synthetic.trace(steps_each=2)])
    assert wrapper.plans[0].steps == (0, 1) and wrapper.plans[0].warm_up_counts


def test_labels_are_wrappers_of_their_own_and_empty_traces_are_passed_over() -> None:
    traces = [synthetic.trace(label="b"), synthetic.trace(label="a"), replace(synthetic.trace(label="c"), iterations=())]
    assert [wrapper.label for wrapper in summarise(traces)] == ["a", "b"]
    assert summarise([]) == []


def test_segments_carry_their_bytes_share_and_times() -> None:
    (wrapper,) = summarise(synthetic.run())
    first, last = wrapper.plans[0].segments
    assert (first.first, first.last, first.size_bytes, first.share_pct) == (0, 107, 27_000_000, 67.5)
    assert first.duration_s.median == pytest.approx(synthetic.transfer_s(27_000_000))
    assert first.start_s.median == pytest.approx(0.020 + 0.040 * 0.675)
    assert last.hidden_pct == pytest.approx(0.0) and last.exposed_s.median == pytest.approx(synthetic.transfer_s(13_000_000))


def test_the_late_rank_is_named_and_the_others_wait_for_it() -> None:
    (wrapper,) = summarise(synthetic.run(3, late_rank=2, late_s=0.004))
    skew = wrapper.plans[0].segments[0].skew
    assert skew is not None and skew.lateness_s is not None and skew.transfer_s is not None and skew.wait_s is not None
    assert (skew.late_rank, skew.late_steps, skew.steps) == (2, 10, 10)
    assert skew.lateness_s.median == pytest.approx(0.004, abs=1e-6) == skew.wait_s.median
    assert skew.transfer_s.median == pytest.approx(synthetic.transfer_s(27_000_000), abs=1e-6)


def alternating(late_steps_of_0: int, steps: int = 12) -> list[Meeting]:
    """Meetings of one segment on two ranks: rank 0 comes 1 ms late, or rank 1 comes 5 ms late."""
    return [
        Meeting(step, 0, 100, late, 0.001 if late == 0 else 0.005, 0.002, {0: 0.0, 1: 0.001}, 0.0)
        for step in range(steps)
        for late in [0 if step < late_steps_of_0 else 1]
    ]


def test_a_rank_is_named_only_when_it_was_last_in_two_thirds_of_the_steps() -> None:
    named, tossed = skew_by_segment(alternating(8))[0], skew_by_segment(alternating(7))[0]
    assert (named.late_rank, named.late_steps, named.steps, named.ranks_alternate) == (0, 8, 12, False)
    assert named.lateness_s is not None and named.lateness_s.median == pytest.approx(0.001), "its own lateness"
    assert (tossed.late_rank, tossed.late_steps, tossed.ranks_alternate) == (None, 0, True)


def test_nobody_is_late_when_all_come_together() -> None:
    (wrapper,) = summarise(synthetic.run())
    assert all(segment.skew is not None and segment.skew.late_rank is None for segment in wrapper.plans[0].segments)


def test_one_rank_alone_has_no_skew() -> None:
    (wrapper,) = summarise([synthetic.trace()])
    assert wrapper.plans[0].segments[0].skew is None and wrapper.plans[0].segments[0].transfer_s > 0


def test_clocks_that_disagree_are_noticed_and_blame_nobody() -> None:
    first, second = synthetic.run()
    (wrapper,) = summarise([first, replace(second, epoch_offset_s=second.epoch_offset_s + 5.0)])
    assert "clocks of the ranks disagree" in wrapper.notes[0]
    assert wrapper.plans[0].segments[0].skew is not None and wrapper.plans[0].segments[0].skew.late_rank is None
    assert clock_note(meetings([], {})) is None


def test_the_bound_is_the_certificate_of_the_machine() -> None:
    (wrapper,) = summarise(synthetic.run())
    bound = wrapper.plans[0].bound
    assert bound.cost is not None and bound.reason is None
    assert bound.cost.alpha_s == pytest.approx(synthetic.ALPHA_S, rel=1e-3)
    assert bound.cost.beta_s_per_byte == pytest.approx(1 / synthetic.BYTES_PER_S, rel=1e-6)
    sizes = [info.size_bytes for info in synthetic.gradients()]
    ready = [0.020 + 0.040 * (index + 1) / 160 for index in range(160)]
    expected = lower_bound_end_s(ready, sizes, bound.cost) - 0.060
    assert bound.exposed_s == pytest.approx(expected, abs=1e-6)
    assert wrapper.plans[0].exposed_s.median >= bound.exposed_s  # type: ignore[operator]


def test_wrappers_of_one_link_have_one_cost() -> None:
    alone = summarise(synthetic.run(plans=(((79, 159), True),)))
    assert alone[0].plans[0].bound.cost is None, "both segments have the same size"
    two = synthetic.run(plans=(((79, 159), True),), label="a") + synthetic.run(plans=(((39, 59, 159), True),), label="b")
    first, second = (wrapper.plans[0].bound for wrapper in summarise(two))
    assert first.cost is not None and first.cost == second.cost and first.sizes == 4
    apart = [replace(trace, group="other") if trace.label == "b" else trace for trace in two]
    assert summarise(apart)[0].plans[0].bound.cost is None, "another group is another link"


def test_a_measurement_below_the_bound_refutes_it() -> None:
    (wrapper,) = summarise(synthetic.run(plans=(((19, 159), True),)))
    plan, sizes = wrapper.plans[0], wrapper.sizes_bytes
    assert plan.bound.exposed_s is not None
    slow = [(size, 3 * seconds) for size, seconds in plan.samples]
    refuted = bound_of(plan.reports, sizes, [*slow, (400_000, 0.030), (100_000, 0.029)])
    assert refuted.exposed_s is None and "it does not fit here" in str(refuted.reason) and refuted.cost is not None
    assert f"{plan.exposed_s.median * 1e3:.2f} ms were measured" in str(refuted.reason)


def test_a_bound_is_called_an_estimate_and_two_sizes_too_few() -> None:
    (two_sizes,) = summarise(synthetic.run())
    assert two_sizes.plans[0].bound.basis == "an estimate: its cost is fitted to 2 message sizes, too few to check the fit"
    (three_sizes,) = summarise(synthetic.run(plans=(((19, 69, 159), True),)))
    assert three_sizes.plans[0].bound.basis == "an estimate: its cost is fitted to 3 message sizes"


def test_a_bound_that_cannot_be_had_says_why() -> None:
    (one_size,) = summarise(synthetic.run(plans=(((79, 159), True),)))
    assert one_size.plans[0].bound.exposed_s is None and "one message size was seen" in str(one_size.plans[0].bound.reason)
    (no_ready,) = summarise(synthetic.run(with_ready=False))
    assert no_ready.plans[0].bound.exposed_s is None and "ready times" in str(no_ready.plans[0].bound.reason)
    (silent,) = summarise(synthetic.run(plans=(((), True),)))
    assert silent.plans[0].segments == () and "no message was seen" in str(silent.plans[0].bound.reason)


def test_one_slow_collective_does_not_move_the_fit() -> None:
    samples = [(size, 1.0 + 0.5 * size) for size in range(10)] + [(10, 1000.0)]
    fit = fit_affine(samples)
    assert fit is not None and fit.beta_s_per_byte == pytest.approx(0.5, rel=0.05) and fit(4) == pytest.approx(3.0, rel=0.1)
    assert fit_affine([(1, 2.0), (2, 1.0)]) is None and fit_affine([]) is None


def test_a_spread_of_nothing_is_unknown() -> None:
    assert spread([None]) is None and spread([2.0]) is not None
