"""What a few iterations of all ranks say: ready times, times of collectives, and how much communication slows backward.

Times of a rank are counted from the end of its previous iteration's last collective: that moment is the same on all ranks, so
no clocks need to agree, and data wait, optimizer and forward are inside. Then

    ready_s[j]      median over iterations of the maximum over ranks, made to ascend
    samples         (bytes, least over ranks of end - max(start, end of the collective before)): the rank that came last waits
                    for nobody
    slow-down s     work that takes w alone takes (1 + s) w while a collective is under way:
                    s = (r_n with overlap - r_n without) / work done while communicating

Iterations without overlap give the ready times of undisturbed compute. A step is predicted to last until its last collective
ends. Cost: O(iterations x gradients).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

from gradweave.model.cost import AffineCost, TableCost
from gradweave.model.events import CollectiveEvent, Iteration

_MOST_SLOWDOWN = 4.0


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One iteration of all ranks, in s from the end of the last collective before it.

    Attributes:
        step: its number.
        plan: last indices of the segments.
        ready_s: maximum over ranks; None where no rank generated the gradient.
        duration_s: until its own last collective ended, maximum over ranks.
        transfers: (bytes, s) of each message, waiting excluded.
        begins_s, ends_s: of each message, maximum over ranks.
    """

    step: int
    plan: tuple[int, ...]
    ready_s: tuple[float | None, ...]
    duration_s: float
    transfers: tuple[tuple[int, float], ...]
    begins_s: tuple[float, ...]
    ends_s: tuple[float, ...]


def step_times(ranks: Sequence[Sequence[Iteration]]) -> list[StepTimes]:
    """Join the iterations of all ranks.

    Args:
        ranks: for each rank consecutive iterations, oldest first; the first only gives the origin of the second.

    Returns:
        The iterations that every rank recorded after its predecessor, with the same messages.
    """
    by_step = [{iteration.step: iteration for iteration in rank} for rank in ranks]
    steps = sorted(set.intersection(*(set(known) for known in by_step))) if by_step else []
    joined = []
    for step in steps:
        if not all(step - 1 in known and known[step - 1].collectives for known in by_step):
            continue
        found = _join(step, [known[step] for known in by_step], [_last_end(known[step - 1]) for known in by_step])
        if found is not None:
            joined.append(found)
    return joined


def _last_end(iteration: Iteration) -> float:
    return max(event.end_s for event in iteration.collectives)


def _join(step: int, iterations: Sequence[Iteration], origins: Sequence[float]) -> StepTimes | None:
    messages = [[event for event in iteration.collectives if event.kind == "all_reduce"] for iteration in iterations]
    shapes = {tuple((event.segment, event.size_bytes) for event in rank) for rank in messages}
    if len(shapes) != 1 or not messages[0]:
        return None
    count = min(len(iteration.ready_s) for iteration in iterations)
    ready = []
    for index in range(count):
        at = [
            moment - origin
            for iteration, origin in zip(iterations, origins, strict=True)
            if (moment := iteration.ready_s[index]) is not None
        ]
        ready.append(max(at) if at else None)
    served = [_served_s(rank) for rank in messages]
    sizes = [event.size_bytes for event in messages[0]]
    begins = [[event.start_s - origin for event in rank] for rank, origin in zip(messages, origins, strict=True)]
    ends = [[event.end_s - origin for event in rank] for rank, origin in zip(messages, origins, strict=True)]
    return StepTimes(
        step=step,
        plan=iterations[0].plan,
        ready_s=tuple(ready),
        duration_s=max(max(rank) for rank in ends),
        transfers=tuple((size, min(rank[k] for rank in served)) for k, size in enumerate(sizes)),
        begins_s=tuple(max(rank[k] for rank in begins) for k in range(len(sizes))),
        ends_s=tuple(max(rank[k] for rank in ends) for k in range(len(sizes))),
    )


def _served_s(events: Sequence[CollectiveEvent]) -> list[float]:
    """Time from when the channel was free for it to its end, of each message of one rank."""
    served, free = [], float("-inf")
    for event in events:
        served.append(max(0.0, event.end_s - max(event.start_s, free)))
        free = max(free, event.end_s)
    return served


@dataclass(frozen=True, slots=True)
class Profile:
    """What the tuner stands on.

    Attributes:
        ready_s: ready times of undisturbed compute, in s, ascending.
        sizes_bytes: bytes of each gradient.
        samples: (bytes, s) of collectives.
        slowdown: extra time of compute while a collective is under way, as a share (0: none).
        steps: number of iterations seen.
    """

    ready_s: tuple[float, ...]
    sizes_bytes: tuple[int, ...]
    samples: tuple[tuple[int, float], ...]
    slowdown: float
    steps: int


def make_profile(
    steps: Sequence[StepTimes], sizes_bytes: Sequence[int], sweep: Sequence[tuple[int, float]] = ()
) -> Profile | None:
    """Take ready times, samples and the slow-down from iterations, some of them without overlap.

    Args:
        steps: what `step_times` gave.
        sizes_bytes: bytes of each gradient.
        sweep: more (bytes, s), measured apart.

    Returns:
        None when no ready time is known.
    """
    alone = [step for step in steps if not _overlaps(step)]
    overlapped = [step for step in steps if _overlaps(step)]
    ready = _ready(alone or steps, len(sizes_bytes))
    if ready is None:
        return None
    samples = [sample for step in steps for sample in step.transfers if sample[0] > 0]
    slowdown = _slowdown(ready, overlapped) if alone and overlapped else 0.0
    return Profile(ready, tuple(sizes_bytes), (*samples, *sweep), slowdown, len(steps))


def _overlaps(step: StepTimes) -> bool:
    last = max((at for at in step.ready_s if at is not None), default=0.0)
    return any(begin < last for begin in step.begins_s)


def _ready(steps: Sequence[StepTimes], count: int) -> tuple[float, ...] | None:
    """Median over steps of each gradient; one that was never generated takes its predecessor's."""
    columns = []
    for index in range(count):
        seen = [at for step in steps if index < len(step.ready_s) and (at := step.ready_s[index]) is not None]
        columns.append(median(seen) if seen else 0.0)
    return tuple(accumulate(columns, max)) if any(columns) else None


def _slowdown(alone_s: Sequence[float], overlapped: Sequence[StepTimes]) -> float:
    """Median over the overlapped iterations of extra time over work done while communicating."""
    found = []
    for step in overlapped:
        last = max(at for at in step.ready_s if at is not None)
        busy = sum(
            max(0.0, min(end, last) - max(begin, before))
            for begin, end, before in zip(step.begins_s, step.ends_s, (0.0, *step.ends_s), strict=False)
        )
        extra = last - alone_s[-1]
        work = busy - extra
        found.append(extra / work if work > 0 and extra > 0 else 0.0)
    return min(_MOST_SLOWDOWN, median(found))


@dataclass(frozen=True, slots=True)
class Prediction:
    """A step under a plan: it ends with its last collective; `ready_s` are the ready times, slowed down."""

    step_s: float
    exposed_s: float
    ready_s: tuple[float, ...]


def predict(profile: Profile, cost: AffineCost | TableCost, plan: Sequence[int]) -> Prediction:
    """Play one step: compute goes on at 1 / (1 + s) of its speed while a collective is under way.

    Example:
        >>> profile = Profile((0.0, 2.0, 5.0), (2, 1, 1), (), 0.0, 1)
        >>> predict(profile, AffineCost(3.0, 1.0), (0, 2)).step_s
        10.0
    """
    stretch = 1 + profile.slowdown
    ready: list[float] = []
    now = free = done = 0.0
    ends, pending = iter(plan), 0
    last = next(ends)
    for index, alone in enumerate(profile.ready_s):
        work, done = alone - done, alone
        busy = max(0.0, free - now)
        now += work * stretch if work <= busy / stretch else work + busy - busy / stretch
        ready.append(now)
        pending += profile.sizes_bytes[index]
        if index == last:
            free = max(free, now) + cost(pending)
            last, pending = next(ends, -1), 0
    return Prediction(free, free - now, tuple(ready))
