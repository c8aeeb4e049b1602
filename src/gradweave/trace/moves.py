"""Changes of a plan that are tried: one boundary moved, or a few segments more.

A local search over the interpolation of `whatif`: it finds a good change to suggest, not the optimum, which is the split
planner's work. Cost: O(n k^2) for k segments and n gradients, n at most 256 (a grid beyond).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from gradweave.trace.whatif import Setting

_MOST_ADDED = 3
_GRID = 128
_ROUNDS = 12


def places(setting: Setting) -> list[int]:
    """Indices at which a boundary is tried: all of a small model, else a grid by bytes and all of the last ones."""
    n, total = len(setting.ready_s), setting.prefix_bytes[-1]
    if n <= 2 * _GRID:
        return list(range(n - 1))
    grid = {bisect_left(setting.prefix_bytes, total * k / _GRID) - 1 for k in range(1, _GRID)}
    return sorted((grid | set(range(n - _GRID // 4, n - 1))) & set(range(n - 1)))


def shifts(plan: tuple[int, ...], tried: Sequence[int]) -> list[tuple[int, ...]]:
    """Every plan that differs in one boundary, which stays between its neighbours."""
    return [
        (*plan[:k], new, *plan[k + 1 :])
        for k in range(len(plan) - 1)
        for new in tried
        if (plan[k - 1] if k else -1) < new < plan[k + 1] and new != plan[k]
    ]


def grown(plan: tuple[int, ...], setting: Setting, min_gain_s: float) -> tuple[int, ...]:
    """The best plan found with up to three segments more, each of which gains enough."""
    best, tried = plan, places(setting)
    for count in range(len(plan) + 1, min(len(plan) + _MOST_ADDED, len(tried) + 1) + 1):
        starts = [_even(count, setting), *(tuple(sorted((*best, place))) for place in tried if place not in best)]
        first = min((start for start in starts if len(start) == count), key=setting.exposed_s, default=best)
        found = _descend(first, setting, tried)
        if setting.exposed_s(best) - setting.exposed_s(found) >= min_gain_s:
            best = found
    return best


def _even(count: int, setting: Setting) -> tuple[int, ...]:
    """Segments of equal bytes."""
    total, n = setting.prefix_bytes[-1], len(setting.ready_s)
    cuts = {bisect_left(setting.prefix_bytes, total * k / count) - 1 for k in range(1, count)}
    return (*sorted(cut for cut in cuts if 0 <= cut < n - 1), n - 1)


def _descend(plan: tuple[int, ...], setting: Setting, tried: Sequence[int]) -> tuple[int, ...]:
    """Shift one boundary at a time while that helps, a few rounds."""
    for _ in range(_ROUNDS):
        better = min(shifts(plan, tried), key=setting.exposed_s, default=plan)
        if setting.exposed_s(better) >= setting.exposed_s(plan):
            break
        plan = better
    return plan
