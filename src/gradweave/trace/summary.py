"""The run in figures: per wrapper, per plan, per segment and per rank, medians with quartiles.

Iterations are grouped by their plan (and whether communication overlaps), because a median over two plans describes neither.
Steps 0 and 1 are left out of every figure (compilation, allocation, and an order of gradients that is not fixed yet) unless
there is nothing else; so is a plan of one step where another plan has more: that step was the change from one plan to the next.
Figures of a plan pool all ranks; who was late comes from comparing them. The cost of a message is fitted
to the messages of all wrappers that share ranks, group and backend: one link has one cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from gradweave.model.events import Trace
from gradweave.trace.analysis import CollectiveReport, IterationReport, analyse
from gradweave.trace.bound import Bound, bound_of
from gradweave.trace.ranks import Meeting, SegmentSkew, clock_note, meetings, skew_by_segment
from gradweave.trace.stats import Spread, median, spread

WARM_UP_STEPS = 2
Sample = tuple[int, float]
Link = tuple[tuple[int, ...], str, str]


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """One segment of a plan; times in s relative to fp_start, medians over iterations and ranks."""

    index: int
    first: int
    last: int
    size_bytes: int
    share_pct: float
    start_s: Spread
    end_s: Spread
    duration_s: Spread
    hidden_s: Spread
    exposed_s: Spread
    hidden_pct: float | None
    skew: SegmentSkew | None

    @property
    def transfer_s(self) -> float:
        """Time of moving the bytes, without waiting for late ranks where several ranks are known."""
        known = self.skew.transfer_s if self.skew else None
        return known.median if known else self.duration_s.median


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """All iterations under one plan. `reports` are those that count, `steps` their numbers."""

    plan: tuple[int, ...]
    overlap: bool
    reports: tuple[IterationReport, ...]
    warm_up_counts: bool
    iteration_s: Spread
    data_wait_s: Spread | None
    fp_s: Spread | None
    bp_s: Spread | None
    fp_to_bp_s: Spread
    tail_s: Spread
    optimizer_s: Spread
    communication_s: Spread
    hidden_s: Spread
    exposed_s: Spread
    segments: tuple[SegmentSummary, ...]
    bound: Bound
    samples: tuple[Sample, ...]

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps that count, ascending."""
        return tuple(sorted({report.step for report in self.reports}))

    @property
    def hidden_pct(self) -> float | None:
        """Share of communication that is hidden; None without communication."""
        total = self.hidden_s.median + self.exposed_s.median
        return 100 * self.hidden_s.median / total if total > 0 else None

    @property
    def exposed_pct(self) -> float:
        """Exposed time as a share of the iteration."""
        return 100 * self.exposed_s.median / self.iteration_s.median if self.iteration_s.median > 0 else 0.0


@dataclass(frozen=True, slots=True)
class WrapperSummary:
    """One wrapper (label) on all its ranks. `reports` holds every iteration, warm-up too; `plans` come in order of use."""

    label: str
    traces: tuple[Trace, ...]
    reports: tuple[IterationReport, ...]
    plans: tuple[PlanSummary, ...]
    notes: tuple[str, ...]

    @property
    def sizes_bytes(self) -> tuple[int, ...]:
        """Bytes of each gradient in index order."""
        return tuple(info.size_bytes for info in self.traces[0].gradients)


def summarise(traces: Sequence[Trace]) -> list[WrapperSummary]:
    """Sum traces up, one result a label.

    Args:
        traces: of any ranks and labels; those without iterations are passed over.

    Returns:
        Sorted by label; empty when no trace holds an iteration.
    """
    by_label: dict[str, list[Trace]] = defaultdict(list)
    for trace in sorted(traces, key=lambda trace: trace.rank):
        if trace.iterations:
            by_label[trace.label].append(trace)
    measured = [_measure(label, members) for label, members in sorted(by_label.items())]
    pools: dict[Link, list[Sample]] = defaultdict(list)
    for each in measured:
        pools[each.link] += each.samples
    return [_wrapper(each, pools[each.link]) for each in measured]


def plan_key(report: IterationReport) -> tuple[tuple[int, ...], bool]:
    """What iterations are grouped by."""
    return report.iteration.plan, report.iteration.overlap


@dataclass(frozen=True, slots=True)
class _Measured:
    """One wrapper before its plans are judged: what counts, what ranks met in, and the times of its messages."""

    label: str
    traces: tuple[Trace, ...]
    reports: tuple[IterationReport, ...]
    counted: tuple[IterationReport, ...]
    found: tuple[Meeting, ...]
    samples: tuple[Sample, ...]

    @property
    def link(self) -> Link:
        """Wrappers with equal ranks, group and backend send over the same link: their messages have one cost."""
        return tuple(trace.rank for trace in self.traces), self.traces[0].group, self.traces[0].backend


def _measure(label: str, traces: Sequence[Trace]) -> _Measured:
    reports = tuple(report for trace in traces for report in analyse(trace))
    counted = tuple(report for report in reports if report.step >= WARM_UP_STEPS) or reports
    found = tuple(meetings(counted, {trace.rank: trace.epoch_offset_s for trace in traces}))
    return _Measured(label, tuple(traces), reports, counted, found, tuple(_samples(counted, found)))


def _wrapper(measured: _Measured, samples: Sequence[Sample]) -> WrapperSummary:
    label, found = measured.label, measured.found
    groups: dict[tuple[tuple[int, ...], bool], list[IterationReport]] = defaultdict(list)
    for report in sorted(measured.counted, key=lambda report: (report.step, report.rank)):
        groups[plan_key(report)].append(report)
    sizes = tuple(info.size_bytes for info in measured.traces[0].gradients)
    plans = tuple(_plan(members, found, sizes, samples) for members in _lasting(list(groups.values())))
    clocks = clock_note(found)
    return WrapperSummary(label, measured.traces, measured.reports, plans, (f"{label}: {clocks}",) if clocks else ())


def _lasting(groups: list[list[IterationReport]]) -> list[list[IterationReport]]:
    """Without the groups of a single step, which a change of plan leaves behind, unless there is nothing else."""
    return [group for group in groups if len({report.step for report in group}) > 1] or groups


def _plan(
    reports: Sequence[IterationReport], found: Sequence[Meeting], sizes: Sequence[int], samples: Sequence[Sample]
) -> PlanSummary:
    steps = {report.step for report in reports}
    skew = skew_by_segment([meeting for meeting in found if meeting.step in steps])
    return PlanSummary(
        plan=reports[0].iteration.plan,
        overlap=reports[0].iteration.overlap,
        reports=tuple(reports),
        warm_up_counts=all(step < WARM_UP_STEPS for step in steps),
        iteration_s=_of(reports, "iteration_s"),
        data_wait_s=spread(report.data_wait_s for report in reports),
        fp_s=spread(report.fp_s for report in reports),
        bp_s=spread(report.bp_s for report in reports),
        fp_to_bp_s=_of(reports, "fp_to_bp_s"),
        tail_s=_of(reports, "tail_s"),
        optimizer_s=_of(reports, "optimizer_s"),
        communication_s=_of(reports, "communication_s"),
        hidden_s=_of(reports, "hidden_s"),
        exposed_s=_of(reports, "exposed_s"),
        segments=_segments(reports, skew),
        bound=bound_of(reports, sizes, samples),
        samples=tuple(samples),
    )


def _of(reports: Sequence[IterationReport], name: str) -> Spread:
    return _known(spread(getattr(report, name) for report in reports))


def _known(found: Spread | None) -> Spread:
    assert found is not None, "a plan has at least one iteration, a segment at least one collective"
    return found


def _segments(reports: Sequence[IterationReport], skew: dict[int, SegmentSkew]) -> tuple[SegmentSummary, ...]:
    rows: dict[int, list[tuple[float, list[CollectiveReport]]]] = defaultdict(list)
    for report in reports:
        messages: dict[int, list[CollectiveReport]] = defaultdict(list)
        for item in report.collectives:
            messages[item.event.segment].append(item)
        for segment, items in messages.items():
            rows[segment].append((report.iteration.fp_start_s, items))
    sizes = {
        segment: int(median(sum(item.event.size_bytes for item in items) for _, items in row)) for segment, row in rows.items()
    }
    total = sum(sizes.values())
    return tuple(_segment(index, rows[index], sizes[index], total, skew.get(index)) for index in sorted(rows))


def _segment(
    index: int, rows: Sequence[tuple[float, list[CollectiveReport]]], size: int, total: int, skew: SegmentSkew | None
) -> SegmentSummary:
    hidden = _known(spread(sum(item.hidden_s for item in items) for _, items in rows))
    exposed = _known(spread(sum(item.exposed_s for item in items) for _, items in rows))
    both = hidden.median + exposed.median
    event = rows[-1][1][0].event
    return SegmentSummary(
        index=index,
        first=event.first,
        last=event.last,
        size_bytes=size,
        share_pct=100 * size / total if total else 0.0,
        start_s=_known(spread(min(item.effective_start_s for item in items) - origin for origin, items in rows)),
        end_s=_known(spread(max(item.event.end_s for item in items) - origin for origin, items in rows)),
        duration_s=_known(spread(sum(item.duration_s for item in items) for _, items in rows)),
        hidden_s=hidden,
        exposed_s=exposed,
        hidden_pct=100 * hidden.median / both if both > 0 else None,
        skew=skew,
    )


def _samples(reports: Sequence[IterationReport], found: Sequence[Meeting]) -> list[Sample]:
    """(bytes, s) of messages: transfers where several ranks met, durations where one rank is known."""
    if found:
        return [(meeting.size_bytes, meeting.transfer_s) for meeting in found]
    return [(item.event.size_bytes, item.duration_s) for report in reports for item in report.collectives]
