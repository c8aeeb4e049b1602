"""A median with its quartiles: how every repeated figure is stated.

Training has outliers (page faults, a neighbour's job), so means and standard deviations mislead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of `count` values, in the values' unit."""

    median: float
    q1: float
    q3: float
    count: int

    @property
    def iqr(self) -> float:
        """Distance between the quartiles."""
        return self.q3 - self.q1


def uncertainty(found: Spread, independent: int) -> float:
    """What the median is uncertain by, in the values' unit: two standard errors for values that are near to normal.

        1.86 iqr / sqrt(n)

    Args:
        found: the spread of the values.
        independent: how many of them are independent (steps, where ranks of one step go together).

    Example:
        >>> uncertainty(Spread(10.0, 9.0, 11.0, 16), 16)
        0.93
    """
    return 1.86 * found.iqr / math.sqrt(independent)


def quantile(ordered: list[float], share: float) -> float:
    """Quantile of ascending values, linear between neighbours.

    Example:
        >>> quantile([1.0, 2.0, 4.0], 0.25)
        1.5
    """
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def spread(values: Iterable[float | None]) -> Spread | None:
    """Median and quartiles of the known values; None when there is none.

    Example:
        >>> spread([3.0, None, 1.0, 2.0])
        Spread(median=2.0, q1=1.5, q3=2.5, count=3)
    """
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    return Spread(quantile(known, 0.5), quantile(known, 0.25), quantile(known, 0.75), len(known))


def median(values: Iterable[float | None], default: float = 0.0) -> float:
    """Median of the known values, or `default`."""
    found = spread(values)
    return default if found is None else found.median
