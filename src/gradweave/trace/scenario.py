"""The three scenarios of gradient splitting, named in words, with the change that each suggests.

1. The first all-reduces are hidden, the last is long: move the split point backward (later), so that the last one shrinks.
2. An all-reduce starts late and ends after backward: move the split point forward (earlier), so that it starts earlier.
3. A long forward and backward with one boundary too few: add segments.

The two rules behind them: hide the first all-reduces within forward and backward; keep the last as short as possible. Every
single move of one boundary is tried on the interpolation of `whatif`; the best one's direction names the scenario, if it takes
away a quarter of the exposed time or more segments do not gain more. Serial communication comes first: no split helps it.
Without a cost, or where the expected gain is below the noise, nothing is predicted and no split is advised.
Source: "Adjusting Gradient Splitting Strategy", generalised to any number of segments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gradweave.trace.moves import grown, places, shifts
from gradweave.trace.ranks import named_rank
from gradweave.trace.stats import uncertainty
from gradweave.trace.summary import PlanSummary
from gradweave.trace.whatif import Setting, setting_of
from gradweave.trace.words import ms, pct, plan_text

_FEWEST_STEPS = 3
NOISE_SHARE = 0.02
LITTLE_SHARE = 0.05
_MIN_GAIN_SHARE = 0.01
_WORTH_SHARE = 0.25
_MOST_NAMED = 6
_WAITING_SHARE = 0.5
_BOUND = "Bound by communication"
_LATE = "Held up by late ranks"
_BALANCE = "Give every rank the same work and cores of its own; a split changes little here."


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is wrong and what to do. `number` is 1, 2 or 3; None where no split helps (serial, or bound by communication)."""

    number: int | None
    title: str
    symptom: str
    advice: str
    plan: tuple[int, ...] | None = None
    expected_exposed_s: float | None = None

    @property
    def text(self) -> str:
        """All of it in one paragraph."""
        name = self.title if self.number is None else f"Scenario {self.number}: {self.title}"
        return f"{name}. {self.symptom} {self.advice}"


def noise_s(summary: PlanSummary) -> float:
    """Exposed time below this is not worth a change: 2 % of the iteration, or what its median is uncertain by."""
    return max(NOISE_SHARE * summary.iteration_s.median, _uncertainty_s(summary))


def _uncertainty_s(summary: PlanSummary) -> float:
    return uncertainty(summary.iteration_s, len(summary.steps))


def diagnose(summary: PlanSummary, sizes_bytes: Sequence[int]) -> Scenario | None:
    """Name the scenario of one plan.

    Args:
        summary: the plan's figures.
        sizes_bytes: bytes of each gradient in index order.

    Returns:
        None when there is nothing to say: no communication, fewer than 3 iterations, exposed time below the noise, no cost to
        predict with, or little exposed and no split that helps (`silence` says which).
    """
    if not summary.segments or len(summary.steps) < _FEWEST_STEPS or summary.exposed_s.median < noise_s(summary):
        return None
    setting = _setting(summary, sizes_bytes)
    found = _serial(summary, setting)
    if found is None and summary.bound.cost is not None:
        found = _by_symptom(summary) if setting is None else _best_move(summary, setting)
    waiting = _waiting(summary)
    helpless = found is None or found.title == _BOUND
    if helpless and summary.exposed_pct < 100 * LITTLE_SHARE:
        return None
    if waiting is None:
        return found
    if helpless:
        symptom = f"{ms(summary.exposed_s.median)} are exposed." if found is None else found.symptom
        return Scenario(None, _LATE, f"{symptom} {waiting}", _BALANCE)
    return found and replace(found, symptom=f"{found.symptom} {waiting}")


def silence(summary: PlanSummary) -> str:
    """Why `diagnose` found nothing to say."""
    exposed = summary.exposed_s.median
    if not summary.segments:
        return "Nothing to gain: there is no communication."
    if exposed < NOISE_SHARE * summary.iteration_s.median:
        return f"Nothing to gain: {ms(exposed)} of communication are exposed, {pct(summary.exposed_pct)} of the step."
    if len(summary.steps) < _FEWEST_STEPS:
        return f"Too few iterations to tell: {len(summary.steps)}, where {_FEWEST_STEPS} are needed."
    if exposed >= _uncertainty_s(summary):
        return _little(summary)
    error = ms(_uncertainty_s(summary))
    return f"Too noisy to tell: {ms(exposed)} are exposed, but the median step time is known to within {error} only."


def _little(summary: PlanSummary) -> str:
    """Exposed time above the noise, and no change to advise."""
    if summary.bound.cost is None:
        more = " A few steps with another split would measure a second one." if summary.bound.sizes == 1 else ""
        return f"Nothing to predict: {summary.bound.reason}; no split is advised.{more}"
    exposed, waiting = f"{ms(summary.exposed_s.median)} are exposed", _waiting(summary)
    why = f", {pct(summary.exposed_pct)} of the step, and no other split is expected to gain more than the noise."
    return f"Little to gain: {exposed}{why}" + ("" if waiting is None else f" {waiting}")


def _waiting(summary: PlanSummary) -> str | None:
    """A split hides transfer; time spent waiting for a late rank it does not shorten."""
    skews = [segment.skew for segment in summary.segments if segment.skew is not None and segment.skew.wait_s is not None]
    wait = sum(skew.wait_s.median for skew in skews if skew.wait_s is not None)
    if wait < _WAITING_SHARE * summary.exposed_s.median:
        return None
    late: Counter[int] = Counter()
    for skew in skews:
        if skew.late_rank is not None:
            late[skew.late_rank] += skew.late_steps
    named = named_rank(late, sum(skew.steps for skew in skews))
    some = late or any(skew.ranks_alternate for skew in skews)
    who = f" (most often rank {named})" if named is not None else " (ranks alternate)" if some else ""
    return f"Up to {ms(wait)} of all-reduce time is waiting for the last rank to come{who}, which no split shortens."


def _setting(summary: PlanSummary, sizes_bytes: Sequence[int]) -> Setting | None:
    fits = bool(summary.plan) and summary.plan[-1] == len(sizes_bytes) - 1
    return setting_of(summary.reports, sizes_bytes, summary.samples) if fits else None


def _serial(summary: PlanSummary, setting: Setting | None) -> Scenario | None:
    begins = min(segment.start_s.median for segment in summary.segments)
    if summary.overlap and (len(summary.segments) == 1 or begins < summary.fp_to_bp_s.median):
        return None
    symptom = (
        f"Every all-reduce starts after backward has ended; all {ms(summary.exposed_s.median)} of communication are exposed."
    )
    if summary.overlap:
        fix = "Overlap is on, but no gradient is announced before backward ends: compile the model per block, not as a whole."
        return Scenario(None, "Communication in serial although overlap is on", symptom, fix)
    can_tell = setting is not None and summary.bound.cost is not None
    expected = None if setting is None or not can_tell else _at_least_the_bound(summary, setting.exposed_s(summary.plan))
    advice = "Let them proceed in parallel: overlap=True." + ("" if expected is None else _expectation(summary, expected))
    return Scenario(None, "Communication and computation proceed in serial", symptom, advice, None, expected)


def _by_symptom(summary: PlanSummary) -> Scenario:
    """Without bytes or ready times only the direction is known."""
    if len(summary.segments) == 1:
        return Scenario(3, "one segment cannot hide", _symptom_three(summary), "Split the gradients into two or more segments.")
    late = next((s.index for s in summary.segments[:-1] if s.end_s.median > summary.fp_to_bp_s.median), None)
    if late is not None:
        advice = f"Move the split point at the end of segment {late + 1} forward (earlier)."
        return Scenario(2, _TITLES[2], _symptom_two(summary, late), advice)
    return Scenario(1, _TITLES[1], _symptom_one(summary), "Move the last split point backward (later).")


_TITLES = {
    1: "the first all-reduces start early and the last is long",
    2: "an all-reduce starts late and ends after backward",
    3: "too few segments for a long forward and backward",
}


def _best_move(summary: PlanSummary, setting: Setting) -> Scenario:
    base, exposed, noise = setting.exposed_s(summary.plan), summary.exposed_s.median, noise_s(summary)
    moved = min(shifts(summary.plan, places(setting)), key=setting.exposed_s, default=summary.plan)
    added = grown(summary.plan, setting, _MIN_GAIN_SHARE * summary.iteration_s.median)
    gain_moved, gain_added = base - setting.exposed_s(moved), base - setting.exposed_s(added)
    if exposed - _at_least_the_bound(summary, exposed - max(gain_moved, gain_added)) < noise:
        return _bound_by_communication(summary)
    more = gain_added > gain_moved + noise
    if gain_moved < noise or (more and gain_moved < _WORTH_SHARE * exposed):
        symptom, advice = _symptom_three(summary), _advice_added(summary.plan, added, setting)
        return _scenario(3, symptom, advice, added, summary, base - gain_added, base, setting)
    place = next(k for k, (old, new) in enumerate(zip(summary.plan, moved, strict=True)) if old != new)
    later = moved[place] > summary.plan[place]
    symptom = _symptom_one(summary) if later else _symptom_two(summary, place)
    advice = _advice_moved(summary.plan, moved, place, setting)
    found = _scenario(1 if later else 2, symptom, advice, moved, summary, base - gain_moved, base, setting)
    return replace(found, advice=f"{found.advice} More segments gain more (scenario 3): {plan_text(added)}.") if more else found


def _scenario(
    number: int,
    symptom: str,
    advice: str,
    plan: tuple[int, ...],
    summary: PlanSummary,
    predicted: float,
    base: float,
    setting: Setting,
) -> Scenario:
    """Correct the interpolation by its own error on the present plan, and say what it stands on."""
    expected = _at_least_the_bound(summary, summary.exposed_s.median - (base - predicted))
    guess = "" if setting.ready_is_measured else " Ready times were not recorded: they are taken as even over backward."
    return Scenario(number, _TITLES[number], symptom, advice + _expectation(summary, expected) + guess, plan, expected)


def _at_least_the_bound(summary: PlanSummary, expected_s: float) -> float:
    """An interpolation may promise more than any split can give: never less exposed time than the lower bound."""
    return max(0.0, expected_s, summary.bound.exposed_s or 0.0)


def _expectation(summary: PlanSummary, expected: float) -> str:
    return f" Expected exposed time: {ms(expected)} instead of {ms(summary.exposed_s.median)} (interpolated, approximate)."


def _advice_moved(old: tuple[int, ...], new: tuple[int, ...], k: int, setting: Setting) -> str:
    direction = "backward (later)" if new[k] > old[k] else "forward (earlier)"
    return (
        f"Move the split point {direction}: end segment {k + 1} at index {new[k]} ({_share(new[k], setting)} of bytes) "
        f"instead of {old[k]} ({_share(old[k], setting)})."
    )


def _advice_added(old: tuple[int, ...], new: tuple[int, ...], setting: Setting) -> str:
    if set(old) <= set(new):
        ends = [f"{index} ({_share(index, setting)} of bytes)" for index in new if index not in old]
        points = "a split point" if len(ends) == 1 else f"{len(ends)} split points"
        return f"Add {points} at index {', '.join(ends)}: {plan_text(new)}."
    ends = [f"{index} ({_share(index, setting)} of bytes)" for index in new[:-1]]
    after = f", split after index {', '.join(ends)}" if len(ends) <= _MOST_NAMED else ""
    return f"Use {len(new)} segments instead of {len(old)}{after}: {plan_text(new)}."


def _share(index: int, setting: Setting) -> str:
    return pct(100 * setting.prefix_bytes[index + 1] / max(1, setting.prefix_bytes[-1]))


def _symptom_one(summary: PlanSummary) -> str:
    last = summary.segments[-1]
    return (
        f"All-reduce 1 starts at {_of_fpbp(summary.segments[0].start_s.median, summary)} of forward and backward; "
        f"the last one takes {ms(last.duration_s.median)}, of which {ms(last.exposed_s.median)} are exposed."
    )


def _symptom_two(summary: PlanSummary, k: int) -> str:
    segment = summary.segments[min(k, len(summary.segments) - 1)]
    after = segment.end_s.median - summary.fp_to_bp_s.median
    ends = f"ends {ms(after)} after backward" if after > 0 else "leaves no room for the next ones before backward ends"
    begins = _of_fpbp(segment.start_s.median, summary)
    return f"All-reduce {segment.index + 1} starts at {begins} of forward and backward and {ends}."


def _symptom_three(summary: PlanSummary) -> str:
    busy = summary.hidden_s.median / summary.fp_to_bp_s.median if summary.fp_to_bp_s.median > 0 else 0.0
    return (
        f"Forward and backward last {ms(summary.fp_to_bp_s.median)}, and communication uses {pct(100 * busy)} of that; "
        f"{ms(summary.exposed_s.median)} are exposed with {len(summary.segments)} segment{'s' * (len(summary.segments) > 1)}."
    )


def _of_fpbp(at_s: float, summary: PlanSummary) -> str:
    return pct(100 * at_s / summary.fp_to_bp_s.median) if summary.fp_to_bp_s.median > 0 else "0 %"


def _bound_by_communication(summary: PlanSummary) -> Scenario:
    bound, noise = summary.bound.exposed_s, ms(noise_s(summary))
    symptom = f"{ms(summary.exposed_s.median)} are exposed; no other split is expected to gain more than the noise, {noise}"
    symptom += "." if bound is None else f"; the lower bound for any split is estimated at {ms(bound)}."
    return Scenario(None, _BOUND, symptom, "Send less (half precision, fewer reductions) or use a faster link.")
