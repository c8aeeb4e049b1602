"""What another plan would do, interpolated from what was measured.

    F(0) = 0;  F(k) = max(F(k-1), r_last(k)) + t(bytes(k));  exposed = max(0, F(last) - bp_end)

Ready times r are medians over iterations of the maximum over ranks, relative to fp_start; t(b) is linear between the measured
medians of each message size (transfer: the shortest over the ranks), runs to alpha at 0 bytes and keeps its last slope beyond.
It is approximate: one network, one order, and a collective that does not slow backward down more than it did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from gradweave.model.cost import TableCost, fit_affine, median_by_size
from gradweave.model.schedule import segment_ends_s
from gradweave.trace.analysis import IterationReport
from gradweave.trace.stats import median


def curve_through(samples: Sequence[tuple[int, float]]) -> TableCost | None:
    """The curve through the median time of each size, from alpha at 0 bytes; None without a sample that has bytes."""
    measured = [(size, seconds) for size, seconds in median_by_size(samples) if size > 0]
    if not measured:
        return None
    fit = fit_affine(measured)
    start = min(fit.alpha_s if fit else 0.0, min(seconds for _, seconds in measured))
    rising = accumulate((seconds for _, seconds in measured), max)  # more bytes never take less time
    return TableCost(((0.0, start), *((float(size), seconds) for (size, _), seconds in zip(measured, rising, strict=True))))


@dataclass(frozen=True, slots=True)
class Setting:
    """What the interpolation stands on: times in s relative to fp_start, `prefix_bytes[j]` = bytes of gradients before j."""

    ready_s: tuple[float, ...]
    prefix_bytes: tuple[int, ...]
    bp_end_s: float
    curve: TableCost
    ready_is_measured: bool

    def end_s(self, plan: Sequence[int]) -> float:
        """End of the last collective under a plan (last indices of the segments)."""
        return segment_ends_s(plan, self.ready_s, self.prefix_bytes, self.curve)[-1]

    def exposed_s(self, plan: Sequence[int]) -> float:
        """Time from bp_end to the end of the last collective."""
        return max(0.0, self.end_s(plan) - self.bp_end_s)


def setting_of(
    reports: Sequence[IterationReport], sizes_bytes: Sequence[int], samples: Sequence[tuple[int, float]]
) -> Setting | None:
    """Collect what `Setting` needs from the iterations of one plan on all ranks; None when there is nothing to stand on.

    Args:
        reports: iterations, all ranks.
        sizes_bytes: bytes of each gradient in index order.
        samples: (bytes, s) of collectives.
    """
    curve = curve_through(samples)
    if curve is None or not sizes_bytes or not reports:
        return None
    bp_end = median(report.fp_to_bp_s for report in reports)
    prefix = tuple(accumulate(sizes_bytes, initial=0))
    ready = ready_times_s(reports, len(sizes_bytes))
    if ready is not None:
        return Setting(ready, prefix, max(bp_end, ready[-1]), curve, True)
    begin = median((report.fp_s for report in reports), default=bp_end / 3)
    even = tuple(begin + (bp_end - begin) * done / max(1, prefix[-1]) for done in prefix[1:])
    return Setting(even, prefix, bp_end, curve, False)


def ready_times_s(reports: Sequence[IterationReport], count: int) -> tuple[float, ...] | None:
    """Ready time of each gradient relative to fp_start: maximum over ranks, median over steps, made to ascend.

    Returns:
        None when no ready time is known; a gradient that was never generated takes its predecessor's.
    """
    by_step: dict[int, list[float | None]] = {}
    for report in reports:
        iteration = report.iteration
        if len(iteration.ready_s) != count:
            continue
        row = by_step.setdefault(report.step, [None] * count)
        for index, at in enumerate(iteration.ready_s):
            if at is not None:
                so_far = row[index]
                relative = max(0.0, at - iteration.fp_start_s)
                row[index] = relative if so_far is None else max(so_far, relative)
    if not any(at is not None for row in by_step.values() for at in row):
        return None
    return tuple(accumulate((median(column) for column in zip(*by_step.values(), strict=True)), max))
