"""Sets of time as sorted, disjoint intervals.

Every overlap figure is a length of a union or of an intersection: overlapping collectives must not count twice. Intervals of
negative or no length vanish.

Cost: O(n log n) for a union, O(n + m) for an intersection.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge intervals that touch or overlap.

    Example:
        >>> union([(3, 4), (0, 2), (1, 3), (9, 8)])
        [(0, 4)]
    """
    merged: list[Interval] = []
    for start, end in sorted(pair for pair in intervals if pair[1] > pair[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def length(disjoint: Iterable[Interval]) -> float:
    """Total length of disjoint intervals.

    Example:
        >>> length([(0, 2), (5, 6)])
        3
    """
    return sum(end - start for start, end in disjoint)


def intersect(left: Sequence[Interval], right: Sequence[Interval]) -> list[Interval]:
    """What two unions share.

    Example:
        >>> intersect([(0, 4), (6, 9)], [(3, 7)])
        [(3, 4), (6, 7)]
    """
    shared, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if end > start:
            shared.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return shared


def subtract(left: Sequence[Interval], right: Sequence[Interval]) -> list[Interval]:
    """What is in the first union and not in the second.

    Example:
        >>> subtract([(0, 4)], [(1, 2)])
        [(0, 1), (2, 4)]
    """
    rest = []
    for start, end in left:
        for cut_start, cut_end in right:
            if cut_end <= start or cut_start >= end:
                continue
            if cut_start > start:
                rest.append((start, cut_start))
            start = cut_end
        if end > start:
            rest.append((start, end))
    return rest
