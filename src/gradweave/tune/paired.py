"""Whether one plan is faster than another: interleaved measurement, and a robust test.

Plans are measured in turns of a few iterations, A B A B, so that a drift of the machine meets both. The pairs of medians of
neighbouring turns give ratios; the verdict is the median ratio and a bootstrap-free interval: the Walsh averages of the log
ratios (Hodges-Lehmann). Source: J. Hodges, E. Lehmann, 1963. Cost: O(n^2) of n pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Verdict:
    """B against A: `ratio` is the robust centre of B / A, `low` and `high` its spread over the pairs."""

    ratio: float
    low: float
    high: float

    @property
    def faster(self) -> bool:
        """Whether B is faster, beyond the spread."""
        return self.high < 1.0

    @property
    def slower(self) -> bool:
        """Whether B is slower, beyond the spread."""
        return self.low > 1.0


def compare(a_s: Sequence[float], b_s: Sequence[float]) -> Verdict:
    """Compare paired times.

    Args:
        a_s, b_s: as many times in s, of neighbouring turns.

    Example:
        >>> verdict = compare([1.0, 1.1, 1.0], [0.9, 1.0, 0.9])
        >>> verdict.faster, round(verdict.ratio, 2)
        (True, 0.9)
    """
    logs = [math.log(b / a) for a, b in zip(a_s, b_s, strict=True) if a > 0 and b > 0]
    if not logs:
        return Verdict(1.0, 0.0, math.inf)
    walsh = sorted((x + y) / 2 for i, x in enumerate(logs) for y in logs[i:])
    cut = len(walsh) // 10
    return Verdict(math.exp(median(walsh)), math.exp(walsh[cut]), math.exp(walsh[-1 - cut]))
