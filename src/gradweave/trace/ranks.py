"""Across ranks: who was late, what was waiting and what was transfer.

A collective cannot end before its last participant starts. Of its duration on a rank, the shortest over the ranks is the
*transfer* (the last to come does not wait), the rest is *wait*; the rank with the latest start is the *late* one. Clocks are
put on one axis with each trace's `epoch_offset_s`; where they disagree, who was late is not known, transfer and wait still are.
A rank is named for a segment when it was last in two thirds of the steps or more; below that, ranks alternate.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gradweave.trace.analysis import IterationReport
from gradweave.trace.stats import Spread, spread

CLOCK_TOLERANCE_S = 0.5e-3
LATE_FLOOR_S = 50e-6
_NAMED_SHARE = 2 / 3


class _Times(NamedTuple):
    start_s: float
    end_s: float
    duration_s: float
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Meeting:
    """One collective of one step on all ranks that recorded it."""

    step: int
    segment: int
    size_bytes: int
    late_rank: int | None
    lateness_s: float
    transfer_s: float
    wait_s: Mapping[int, float]
    clock_error_s: float


@dataclass(frozen=True, slots=True)
class SegmentSkew:
    """One segment over the steps: the rank that was late, and how long the others waited.

    Attributes:
        late_rank: the rank that was last in at least two thirds of the steps; None when there is none.
        late_steps: steps in which it was last, of `steps` in all.
        ranks_alternate: whether some rank was late in two thirds of the steps, but no one rank was.
        lateness_s: how late `late_rank` was where it was last; without it, how late the last one was.
        transfer_s: the shortest time over the ranks.
        wait_s: the longest wait over the ranks.
    """

    late_rank: int | None
    late_steps: int
    steps: int
    ranks_alternate: bool
    lateness_s: Spread | None
    transfer_s: Spread | None
    wait_s: Spread | None


def meetings(reports: Sequence[IterationReport], epoch_offsets_s: Mapping[int, float]) -> list[Meeting]:
    """Join the k-th collective of a segment of a step over the ranks; those that one rank alone recorded are left out."""
    joined: dict[tuple[int, int, int], dict[int, _Times]] = defaultdict(dict)
    for report in reports:
        seen: Counter[int] = Counter()
        offset = epoch_offsets_s[report.rank]
        for item in report.collectives:
            key = (report.step, item.event.segment, seen[item.event.segment])
            seen[item.event.segment] += 1
            joined[key][report.rank] = _Times(
                item.effective_start_s + offset, item.event.end_s + offset, item.duration_s, item.event.size_bytes
            )
    return [_meeting(key[0], key[1], by_rank) for key, by_rank in sorted(joined.items()) if len(by_rank) > 1]


def _meeting(step: int, segment: int, by_rank: Mapping[int, _Times]) -> Meeting:
    starts = {rank: times.start_s for rank, times in by_rank.items()}
    transfer = min(times.duration_s for times in by_rank.values())
    late = max(sorted(starts), key=lambda rank: starts[rank])
    lateness = max(starts.values()) - min(starts.values())
    clock_error = max(0.0, max(starts.values()) - min(times.end_s for times in by_rank.values()))
    return Meeting(
        step=step,
        segment=segment,
        size_bytes=max(times.size_bytes for times in by_rank.values()),
        late_rank=None if clock_error > CLOCK_TOLERANCE_S or lateness < LATE_FLOOR_S else late,
        lateness_s=lateness,
        transfer_s=transfer,
        wait_s={rank: times.duration_s - transfer for rank, times in by_rank.items()},
        clock_error_s=clock_error,
    )


def skew_by_segment(found: Sequence[Meeting]) -> dict[int, SegmentSkew]:
    """Sum the meetings of each segment up."""
    by_segment: dict[int, list[Meeting]] = defaultdict(list)
    for meeting in found:
        by_segment[meeting.segment].append(meeting)
    return {segment: _skew(members) for segment, members in sorted(by_segment.items())}


def _skew(members: Sequence[Meeting]) -> SegmentSkew:
    known = [meeting for meeting in members if meeting.late_rank is not None]
    counts = Counter(meeting.late_rank for meeting in known if meeting.late_rank is not None)
    late = named_rank(counts, len(members))
    sane = [meeting for meeting in members if meeting.clock_error_s <= CLOCK_TOLERANCE_S]
    return SegmentSkew(
        late_rank=late,
        late_steps=counts[late] if late is not None else 0,
        steps=len(members),
        ranks_alternate=late is None and len(known) >= _NAMED_SHARE * len(members),
        lateness_s=spread(meeting.lateness_s for meeting in sane if late is None or meeting.late_rank == late),
        transfer_s=spread(meeting.transfer_s for meeting in members),
        wait_s=spread(max(meeting.wait_s.values()) for meeting in members),
    )


def named_rank(late_steps: Mapping[int, int], steps: int) -> int | None:
    """The rank that was last in at least two thirds of the steps, if there is one: less is near to a coin's toss.

    Args:
        late_steps: by rank, the number of steps in which it was last.
        steps: number of steps in all.

    Example:
        >>> named_rank({0: 27, 1: 28}, 55), named_rank({0: 10, 1: 45}, 55)
        (None, 1)
    """
    most = max(sorted(late_steps), key=lambda rank: late_steps[rank], default=None)
    return most if most is not None and late_steps[most] >= _NAMED_SHARE * steps else None


def clock_note(found: Sequence[Meeting]) -> str | None:
    """Say that clocks disagree, if they do: a collective seems to end on one rank before it starts on another."""
    errors = spread(meeting.clock_error_s for meeting in found)
    if errors is None or errors.median <= CLOCK_TOLERANCE_S:
        return None
    return f"clocks of the ranks disagree by at least {errors.median * 1e3:.1f} ms: who was late is not known"
