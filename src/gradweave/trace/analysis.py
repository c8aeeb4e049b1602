"""Where the time of one iteration went.

    iteration = data wait + (fp_start .. bp_end) + tail + optimizer
    hidden    = |union of collectives  intersected with  [fp_start, bp_end]|
    exposed   = |union of collectives| - hidden

A collective is *hidden* while forward or backward runs on the same rank; the tail also holds gaps between collectives after
backward. Collectives of one rank share one channel in order of launch (FIFO), so a collective begins to move bytes at its
*effective start* = max(own start, latest end so far); with it, hidden and exposed times of the collectives add up to those of
the iteration. Negative durations (a damaged clock) count as zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradweave.model.events import CollectiveEvent, Iteration, Trace
from gradweave.trace.intervals import Interval, intersect, length, union

_BUS_FACTOR = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}


@dataclass(frozen=True, slots=True)
class CollectiveReport:
    """One collective: when it moved bytes and how much of that was hidden."""

    event: CollectiveEvent
    effective_start_s: float
    hidden_s: float
    exposed_s: float

    @property
    def duration_s(self) -> float:
        """From effective start to end."""
        return self.hidden_s + self.exposed_s


@dataclass(frozen=True, slots=True)
class IterationReport:
    """One iteration on one rank; unknown is None."""

    rank: int
    iteration: Iteration
    iteration_s: float
    data_wait_s: float | None
    fp_s: float | None
    bp_s: float | None
    fp_to_bp_s: float
    tail_s: float
    optimizer_s: float
    communication_s: float
    hidden_s: float
    exposed_s: float
    collectives: tuple[CollectiveReport, ...]

    @property
    def step(self) -> int:
        """Number of the iteration."""
        return self.iteration.step


def analyse_iteration(iteration: Iteration, rank: int = 0) -> IterationReport:
    """Account for one iteration.

    Args:
        iteration: times in s on one clock.
        rank: copied to the report.

    Example:
        >>> event = CollectiveEvent(0, 0, 9, 1000, "float32", start_s=3.0, end_s=6.0)
        >>> report = analyse_iteration(Iteration(5, fp_start_s=1.0, bp_end_s=5.0, iteration_end_s=7.0, collectives=(event,)))
        >>> report.hidden_s, report.exposed_s, report.tail_s, report.optimizer_s
        (2.0, 1.0, 1.0, 1.0)
    """
    start, bp_end = iteration.fp_start_s, max(iteration.bp_end_s, iteration.fp_start_s)
    collectives = _in_channel(iteration, (start, bp_end))
    last_end = max([bp_end, *(report.event.end_s for report in collectives)])
    opened = start if iteration.previous_end_s is None else min(iteration.previous_end_s, start)
    all_comm = union((report.event.start_s, report.event.end_s) for report in collectives)
    hidden = length(intersect(all_comm, [(start, bp_end)]))
    fp_end = iteration.fp_end_s
    return IterationReport(
        rank=rank,
        iteration=iteration,
        iteration_s=max(iteration.iteration_end_s, last_end) - opened,
        data_wait_s=None if iteration.previous_end_s is None else start - opened,
        fp_s=None if fp_end is None else max(0.0, fp_end - start),
        bp_s=None if fp_end is None else max(0.0, bp_end - max(fp_end, start)),
        fp_to_bp_s=bp_end - start,
        tail_s=last_end - bp_end,
        optimizer_s=max(0.0, iteration.iteration_end_s - last_end),
        communication_s=length(all_comm),
        hidden_s=hidden,
        exposed_s=max(0.0, length(all_comm) - hidden),
        collectives=collectives,
    )


def analyse(trace: Trace) -> list[IterationReport]:
    """Account for every iteration of one rank."""
    return [analyse_iteration(iteration, trace.rank) for iteration in trace.iterations]


def _in_channel(iteration: Iteration, window: Interval) -> tuple[CollectiveReport, ...]:
    """Collectives in order of launch, each from its effective start."""
    reports, channel_free = [], float("-inf")
    for event in sorted(iteration.collectives, key=lambda event: (event.start_s, event.end_s)):
        effective = min(max(event.start_s, channel_free), max(event.start_s, event.end_s))
        moving = union([(effective, event.end_s)])
        hidden = length(intersect(moving, [window]))
        reports.append(CollectiveReport(event, effective, hidden, max(0.0, length(moving) - hidden)))
        channel_free = max(channel_free, event.end_s)
    return tuple(reports)


def algorithm_bytes_per_s(size_bytes: int, duration_s: float) -> float | None:
    """Message bytes by time; None for no time.

    Example:
        >>> algorithm_bytes_per_s(100, 0.5)
        200.0
    """
    return size_bytes / duration_s if duration_s > 0 and size_bytes > 0 else None


def bus_bytes_per_s(size_bytes: int, duration_s: float, world_size: int, kind: str = "all_reduce") -> float | None:
    """What each link carried in a ring: algorithm bandwidth times 2(p-1)/p for an all-reduce.

    Returns:
        Bytes/s, comparable over world sizes; None for one rank, no time, or a kind without such a factor.

    Example:
        >>> bus_bytes_per_s(100, 0.5, world_size=4)
        300.0
    """
    rate, factor = algorithm_bytes_per_s(size_bytes, duration_s), _BUS_FACTOR.get(kind)
    if rate is None or factor is None or world_size < 2:
        return None
    return rate * factor * (world_size - 1) / world_size
