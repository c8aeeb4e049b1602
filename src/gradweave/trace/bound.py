"""The lower bound: what no split can beat, under the measured ready times and an affine cost.

    end >= max over k of  r_k + alpha + beta (S_n - S_{k-1})

because gradients k..n are sent after r_k, in at least one message. The bound on exposed time is that end minus bp_end. Source:
the certificate of the split planner. It holds for whole gradients in order of generation over one channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradweave.model.cost import AffineCost, fit_affine
from gradweave.model.schedule import lower_bound_end_s
from gradweave.trace.analysis import IterationReport
from gradweave.trace.stats import median
from gradweave.trace.whatif import ready_times_s


@dataclass(frozen=True, slots=True)
class Bound:
    """`exposed_s` is None when the trace does not allow a bound; `reason` then says why."""

    exposed_s: float | None
    reason: str | None
    cost: AffineCost | None = None


def bound_of(reports: Sequence[IterationReport], sizes_bytes: Sequence[int], samples: Sequence[tuple[int, float]]) -> Bound:
    """Bound of the exposed time of one plan's iterations, all ranks.

    Args:
        reports: the iterations.
        sizes_bytes: bytes of each gradient in index order.
        samples: (bytes, s) of collectives, of every plan that was measured.
    """
    distinct = len({size for size, _ in samples})
    if distinct < 2:
        return Bound(None, f"collectives of {distinct} size{'' if distinct == 1 else 's'} were seen: a cost needs two")
    ready = ready_times_s(reports, len(sizes_bytes))
    if ready is None:
        return Bound(None, "ready times of the gradients were not recorded")
    cost = fit_affine(samples)
    if cost is None:
        return Bound(None, "the time of a collective does not grow with its bytes here")
    bp_end = max(median(report.fp_to_bp_s for report in reports), ready[-1])
    return Bound(max(0.0, lower_bound_end_s(ready, sizes_bytes, cost) - bp_end), None, cost)
