"""Time of a collective as an affine function of its bytes, fitted robustly.

    t(b) = alpha + beta b,   beta = median over pairs of (t_j - t_i) / (b_j - b_i),   alpha = median of (t_i - beta b_i)

One slow collective in ten does not move a median of slopes. Source: H. Theil, 1950; P. K. Sen, 1968.
Cost: O(m^2) for m distinct sizes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from statistics import median


@dataclass(frozen=True, slots=True)
class AffineCost:
    """`alpha_s` seconds a message plus `beta_s_per_byte` seconds a byte."""

    alpha_s: float
    beta_s_per_byte: float

    def __call__(self, size_bytes: float) -> float:
        """Seconds for one collective of `size_bytes`."""
        return self.alpha_s + self.beta_s_per_byte * size_bytes


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
