"""The lower bound of the exposed time over all splits, estimated from the measured ready times and a fitted affine cost.

    end >= max over k of  r_k + alpha + beta (S_n - S_{k-1})

because gradients k..n are sent after r_k, in at least one message. The bound on exposed time is that end minus bp_end. Source:
the certificate of the split planner. It holds for whole gradients in order of generation over one channel, and it is as good as
the cost: alpha and beta are fitted to the collectives of all wrappers of the run that share ranks, group and backend. Where a
measured median lies below it, by more than the median is uncertain, the cost does not fit and the bound is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradweave.model.cost import AffineCost, fit_affine
from gradweave.model.schedule import lower_bound_end_s
from gradweave.trace.analysis import IterationReport
from gradweave.trace.stats import median, spread, uncertainty
from gradweave.trace.whatif import ready_times_s
from gradweave.trace.words import ms


@dataclass(frozen=True, slots=True)
class Bound:
    """An estimate of the least exposed time that any split can have.

    Attributes:
        exposed_s: s; None when the traces do not allow a bound, and `reason` then says why.
        reason: None where there is a bound.
        cost: the cost that was fitted, also where another reason forbids a bound; None where none could be fitted.
        sizes: number of distinct message sizes that the cost stands on.
    """

    exposed_s: float | None
    reason: str | None
    cost: AffineCost | None = None
    sizes: int = 0

    @property
    def basis(self) -> str:
        """What the estimate stands on, in words."""
        thin = ", too few to check the fit" if self.sizes < _SIZES_TO_CHECK else ""
        return f"an estimate: its cost is fitted to {self.sizes} message sizes{thin}"


_SIZES_TO_CHECK = 3
_CLOCK_S = 10e-6


def bound_of(reports: Sequence[IterationReport], sizes_bytes: Sequence[int], samples: Sequence[tuple[int, float]]) -> Bound:
    """Bound of the exposed time of one plan's iterations, all ranks.

    Args:
        reports: the iterations.
        sizes_bytes: bytes of each gradient in index order.
        samples: (bytes, s) of collectives, of everything that was measured over the same link.
    """
    sizes = len({size for size, _ in samples})
    if sizes < 2:
        seen = "one message size was seen" if sizes else "no message was seen"
        return Bound(None, f"{seen}, and a cost needs two", sizes=sizes)
    cost = fit_affine(samples)
    if cost is None:
        return Bound(None, "the time of a collective does not grow with its bytes here", sizes=sizes)
    ready = ready_times_s(reports, len(sizes_bytes))
    if ready is None:
        return Bound(None, "ready times of the gradients were not recorded", cost, sizes)
    bp_end = max(median(report.fp_to_bp_s for report in reports), ready[-1])
    exposed = max(0.0, lower_bound_end_s(ready, sizes_bytes, cost) - bp_end)
    contradiction = _contradiction(reports, exposed)
    return Bound(None if contradiction else exposed, contradiction, cost, sizes)


def _contradiction(reports: Sequence[IterationReport], bound_s: float) -> str | None:
    """A measurement below the bound by more than its own uncertainty refutes the cost that the bound stands on."""
    measured = spread(report.exposed_s for report in reports)
    steps = len({report.step for report in reports})
    if measured is None or measured.median + uncertainty(measured, steps) + _CLOCK_S >= bound_s:
        return None
    return f"the fitted cost asks for {ms(bound_s)} where {ms(measured.median)} were measured: it does not fit here"
