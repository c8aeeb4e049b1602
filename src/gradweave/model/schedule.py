"""When segments end: one channel, first come first served, under the cost of a collective.

    F(0) = 0;  F(k) = max(F(k-1), r_last(k)) + t(bytes of segment k)

r_j is when gradient j is ready; a segment starts when its last gradient is ready and the channel is free. The lower bound of
any split, for t(b) = alpha + beta b, is max over k of r_k + t(bytes of gradients k..n-1): they are sent after r_k, in at least
one message. Pure Python; O(n).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Cost = Callable[[float], float]


def segment_ends_s(plan: Sequence[int], ready_s: Sequence[float], prefix_bytes: Sequence[float], cost: Cost) -> list[float]:
    """End of each segment.

    Args:
        plan: ascending last indices.
        ready_s: n ascending ready times in s.
        prefix_bytes: n+1 sums, `prefix_bytes[j]` = bytes of the gradients before j.
        cost: seconds of one collective by its bytes.

    Example:
        >>> segment_ends_s([1, 2], [0, 2, 5], [0, 2, 3, 4], lambda size: 3 + size)
        [8, 12]
    """
    ends: list[float] = []
    free, first = 0.0, 0
    for last in plan:
        free = max(free, ready_s[last]) + cost(prefix_bytes[last + 1] - prefix_bytes[first])
        ends.append(free)
        first = last + 1
    return ends


def lower_bound_end_s(ready_s: Sequence[float], sizes_bytes: Sequence[float], cost: Cost) -> float:
    """Earliest possible end of communication under any split, for a cost that is affine.

    Args:
        ready_s: ready times in s, ascending.
        sizes_bytes: bytes of each gradient.
        cost: seconds of one collective by its bytes.

    Example:
        >>> lower_bound_end_s([0, 2, 5], [2, 1, 1], lambda size: 3.0 + size)
        9.0
    """
    remaining, bound = 0.0, 0.0
    for ready, size in zip(reversed(ready_s), reversed(sizes_bytes), strict=True):
        remaining += size
        bound = max(bound, ready + cost(remaining))
    return bound
