"""Time of a collective by its bytes: an affine function, fitted robustly, or a table.

    t(b) = alpha + beta b,   beta = median over pairs of (t_j - t_i) / (b_j - b_i),   alpha = median of (t_i - beta b_i)

One slow collective in ten does not move a median of slopes. Source: H. Theil, 1950; P. K. Sen, 1968. A table is for curves
with knees: straight lines between its points, flat below the first, the last slope beyond the last.
Cost: O(m^2) for m distinct sizes; a look-up in a table is a bisection.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from gradweave.errors import ConfigError


@dataclass(frozen=True, slots=True)
class AffineCost:
    """`alpha_s` seconds a message plus `beta_s_per_byte` seconds a byte."""

    alpha_s: float
    beta_s_per_byte: float

    def __call__(self, size_bytes: float) -> float:
        """Seconds for one collective of `size_bytes`."""
        return self.alpha_s + self.beta_s_per_byte * size_bytes


@dataclass(frozen=True, slots=True)
class TableCost:
    """Piecewise linear time of a collective: `points` are (bytes, s), ascending in bytes.

    Flat below the first point; beyond the last, the slope of the last two.

    Raises:
        ConfigError: no point, bytes that do not ascend, a time that is negative or falls with bytes.

    Example:
        >>> table = TableCost(((10, 1.0), (20, 3.0)))
        >>> table(0), table(15), table(30)
        (1.0, 2.0, 5.0)
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        for k, point in enumerate(self.points or ((math.nan, 0.0),)):
            before = self.points[k - 1] if k else (-1.0, 0.0)
            if not all(math.isfinite(value) for value in point) or not (point[0] > before[0] and point[1] >= before[1]):
                raise ConfigError(
                    f"table[{k}] is {point!r}" if self.points else "the table is empty",
                    rule="a table has (bytes, seconds) with ascending bytes and times of at least 0 that do not fall",
                    fix="sort it by bytes and take the running maximum of the times",
                )

    def __call__(self, size_bytes: float) -> float:
        """Seconds for one collective of `size_bytes`."""
        if size_bytes <= self.points[0][0] or len(self.points) == 1:
            return self.points[0][1]
        high = min(bisect_left(self.points, (size_bytes,)), len(self.points) - 1)
        (b0, t0), (b1, t1) = self.points[high - 1], self.points[high]
        return t0 + (t1 - t0) * (size_bytes - b0) / (b1 - b0)


def median_by_size(samples: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """Median time of each distinct size, ascending.

    Example:
        >>> median_by_size([(8, 1.0), (4, 2.0), (8, 3.0)])
        [(4, 2.0), (8, 2.0)]
    """
    by_size: dict[int, list[float]] = defaultdict(list)
    for size_bytes, seconds in samples:
        by_size[size_bytes].append(seconds)
    return [(size, median(times)) for size, times in sorted(by_size.items())]


def fit_affine(samples: Iterable[tuple[int, float]]) -> AffineCost | None:
    """Fit t(b) = alpha + beta b (Theil-Sen over the medians of each size).

    Args:
        samples: (bytes, seconds) of collectives.

    Returns:
        The fit, alpha not below 0; None with fewer than two sizes, or when time does not grow with bytes.

    Example:
        >>> fit_affine([(0, 1.0), (10, 3.0), (20, 5.0), (30, 70.0), (40, 9.0)])
        AffineCost(alpha_s=1.0, beta_s_per_byte=0.2)
        >>> fit_affine([(10, 3.0)]) is None
        True
    """
    points = median_by_size(samples)
    slopes = [(t2 - t1) / (b2 - b1) for (b1, t1), (b2, t2) in combinations(points, 2)]
    beta = median(slopes) if slopes else 0.0
    if beta <= 0:
        return None
    return AffineCost(max(0.0, median(seconds - beta * size for size, seconds in points)), beta)
