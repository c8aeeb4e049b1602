"""From the iterations of all ranks to ready times, samples and the slow-down; a step played from them."""

from __future__ import annotations

import random

import pytest

from gradweave.model import CollectiveEvent, Iteration
from gradweave.tune import AffineCost
from gradweave.tune.decide import decide
from gradweave.tune.paired import compare
from gradweave.tune.profile import Profile, make_profile, predict, step_times

SIZES = (400, 300, 200, 100)
READY = (0.010, 0.020, 0.030, 0.040)
COST = AffineCost(0.002, 2e-5)


def iteration(step: int, plan: tuple[int, ...], origin: float, late_s: float = 0.0, other_s: float = 0.0, slow: float = 0.0):
    """One rank's iteration under a plan: it computes `late_s` longer; collectives start when all ranks are there."""
    profile = Profile(tuple(at + max(late_s, other_s) for at in READY), SIZES, (), slow, 1)
    everyone, mine = predict(profile, COST, plan), [at + late_s for at in READY]
    shift = [at - own for at, own in zip(everyone.ready_s, [at + max(late_s, other_s) for at in READY], strict=True)]
    events, free, first = [], 0.0, 0
    for index, last in enumerate(plan):
        size = sum(SIZES[first : last + 1])
        begin = max(free, everyone.ready_s[last])
        free = begin + COST(size)
        launched = mine[last] + shift[last]
        events.append(CollectiveEvent(index, first, last, size, "float32", origin + launched, origin + free))
        first = last + 1
    ready = tuple(origin + own + moved for own, moved in zip(mine, shift, strict=True))
    return Iteration(step, origin, ready[-1], origin + free, tuple(events), ready, plan=plan), origin + free


def run(plans: list[tuple[int, ...]], late_s: tuple[float, float] = (0.0, 0.0), slow: float = 0.0, skew_s: float = 100.0):
    """The iterations of two ranks whose clocks differ by `skew_s`."""
    ranks = []
    for rank in (0, 1):
        rows, at = [], skew_s * rank
        for step, plan in enumerate(plans):
            made, at = iteration(step, plan, at, late_s[rank], late_s[1 - rank], slow)
            rows.append(made)
        ranks.append(rows)
    return ranks


def test_times_are_counted_from_the_end_of_the_iteration_before_whatever_the_clocks_say():
    steps = step_times(run([(3,)] * 3, late_s=(0.0, 0.004)))
    assert [step.step for step in steps] == [1, 2]
    assert steps[0].ready_s == pytest.approx([at + 0.004 for at in READY])
    assert steps[0].duration_s == pytest.approx(0.044 + COST(1000))
    assert steps[0].transfers == ((1000, pytest.approx(COST(1000))),)  # the punctual rank's wait is not transfer


def test_a_rank_that_recorded_other_messages_makes_the_iteration_useless():
    ranks = run([(3,)] * 3)
    ranks[1] = run([(1, 3)] * 3)[1]
    assert step_times(ranks) == []


def test_the_slow_down_is_found_from_iterations_with_and_without_overlap():
    steps = step_times(run([(0, 1, 2, 3)] * 4 + [(3,)] * 3, slow=0.5))
    profile = make_profile(steps, SIZES)
    assert profile.ready_s == pytest.approx(READY)
    assert profile.slowdown == pytest.approx(0.5, rel=0.05)
    assert sorted({size for size, _ in profile.samples}) == [100, 200, 300, 400, 1000]


def test_a_played_step_is_what_was_recorded():
    steps = step_times(run([(0, 3)] * 3, slow=0.5))
    profile = Profile(READY, SIZES, (), 0.5, 1)
    assert predict(profile, COST, (0, 3)).step_s == pytest.approx(steps[-1].duration_s)


def test_a_gradient_that_no_rank_generated_takes_its_predecessors_time():
    ranks = [
        [
            Iteration(
                i.step,
                i.fp_start_s,
                i.bp_end_s,
                i.iteration_end_s,
                i.collectives,
                (*i.ready_s[:2], None, i.ready_s[3]),
                plan=i.plan,
            )
            for i in rank
        ]
        for rank in run([(3,)] * 3)
    ]
    assert make_profile(step_times(ranks), SIZES).ready_s == pytest.approx((0.010, 0.020, 0.020, 0.040))


def test_without_ready_times_there_is_no_profile():
    ranks = [
        [Iteration(i.step, i.fp_start_s, i.bp_end_s, i.iteration_end_s, i.collectives, (), plan=i.plan) for i in rank]
        for rank in run([(3,)] * 3)
    ]
    assert make_profile(step_times(ranks), SIZES) is None


@pytest.mark.parametrize("seed", range(20))
def test_the_decision_is_never_predicted_to_be_worse_than_the_plan_in_force(seed):
    rng = random.Random(seed)
    count = rng.randint(2, 40)
    ready = tuple(sorted(rng.random() for _ in range(count)))
    sizes = tuple(rng.randint(0, 10_000) for _ in range(count))
    cost = AffineCost(rng.random() * 0.02, rng.random() * 1e-4)
    samples = tuple((size, cost(size)) for size in (1, 100, 5_000, 50_000))
    profile = Profile(ready, sizes, samples, rng.choice([0.0, 0.3, 1.0]), 1)
    present = tuple(sorted({*rng.sample(range(count), min(3, count)), count - 1}))
    decision = decide(profile, present)
    assert decision.predicted.step_s <= decision.present.step_s
    assert decision.bound_s <= decision.predicted.step_s * (1 + 1e-9)
    if profile.slowdown == 0:
        assert decision.predicted.step_s <= decision.bound_s * 1.5 + 0.1


def test_limits_of_a_plan_are_kept():
    samples = ((1, 0.0001), (10_000, 0.5))
    profile = Profile(tuple(0.1 * k for k in range(10)), (1_000,) * 10, samples, 0.0, 1)
    assert len(decide(profile, (9,), max_segments=2).plan) <= 2
    plan = decide(profile, (4, 9), max_bytes=2_000).plan
    firsts = (0, *(last + 1 for last in plan[:-1]))
    assert all(last - first < 2 for first, last in zip(firsts, plan, strict=True))


@pytest.mark.parametrize(
    ("factor", "noise", "faster", "slower"), [(0.9, 0.02, True, False), (1.1, 0.02, False, True), (0.995, 0.05, False, False)]
)
def test_pairs_decide_beyond_their_spread_only(factor, noise, faster, slower):
    rng = random.Random(3)
    drift = [1 + 0.3 * k / 8 for k in range(8)]
    a = [at * (1 + noise * (rng.random() - 0.5)) for at in drift]
    b = [factor * at * (1 + noise * (rng.random() - 0.5)) for at in drift]
    verdict = compare(a, b)
    assert (verdict.faster, verdict.slower) == (faster, slower)
    assert verdict.low <= verdict.ratio <= verdict.high


def test_no_pairs_decide_nothing():
    assert not compare([], []).faster and not compare([], []).slower
