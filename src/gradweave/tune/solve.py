"""The exact best split: the plan whose last all-reduce ends first, and the proof.

    F(0) = 0;   F(j) = min over low(j) <= i < j of  max(F(i), r_j) + t(S_j - S_i)          S = sums of bytes

Finishing earlier never hurts, so the programme is exact for any t. For t(b) = alpha + beta b only two i matter, because F(i)
and F(i) - beta S_i never fall as i grows: the last one with F(i) <= r_j (the channel is free: send as little as possible) and
the first one behind it (the channel is busy: merge as much as possible). `low` never falls either, so both are found with one
pointer. Of all plans that end at the optimum (within `slack_s`), the one with the fewest segments is returned: it is built from
the back, each segment as long as its deadline allows.

    affine, any number of segments     O(n)          affine, at most K     O(K n)
    table                              O(n^2)        table, at most K      O(K n^2)

Certificate: for an affine cost no split ends before max over k of r_k + alpha + beta (S_n - S_(k-1)); for a table the optimum
of the programme is itself the bound. Source: exact dynamic programme for one first-come-first-served channel; the merge rule
that is beaten: S. Shi, X. Chu, B. Li, "MG-WFBP", INFOCOM 2019.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradweave.errors import ConfigError
from gradweave.model.cost import AffineCost, TableCost
from gradweave.model.schedule import lower_bound_end_s, segment_ends_s
from gradweave.tune.problem import Problem, make_problem

_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Solution:
    """A plan and its certificate.

    Attributes:
        plan: last index of each segment, ascending.
        end_s: when the last collective ends, on the axis of the ready times.
        exposed_s: `end_s` minus the last ready time: what no backward hides.
        bound_s: no split ends before it (with an affine cost; with a table the optimum over all plans that are allowed).
        optimum_s: the least end of any plan that is allowed; `end_s` is at most `slack_s` above it.
        notes: what was corrected in the input.
    """

    plan: tuple[int, ...]
    end_s: float
    exposed_s: float
    bound_s: float
    optimum_s: float
    notes: tuple[str, ...] = ()

    @property
    def gap(self) -> float:
        """How far the end is from the bound, as a share of the bound."""
        return self.end_s / self.bound_s - 1 if self.bound_s > 0 else 0.0


def solve(
    ready_s: Sequence[float],
    sizes_bytes: Sequence[int],
    cost: AffineCost | TableCost,
    *,
    max_segments: int | None = None,
    forced: Sequence[int] = (),
    max_bytes: int | None = None,
    slack_s: float = 0.0,
) -> Solution:
    """Find the plan whose last all-reduce ends first.

    Args:
        ready_s: when each gradient is ready, in s, in the order of generation.
        sizes_bytes: bytes of each gradient.
        cost: time of one collective by its bytes.
        max_segments: at most so many segments.
        forced: indices that must end a segment.
        max_bytes: largest segment; a single gradient above it travels alone.
        slack_s: end so much later than the optimum, at most, to save segments: each costs the CPU something.

    Raises:
        ConfigError: an argument is malformed.
        SplitError: `max_segments` is below what `forced` and `max_bytes` need.

    Example:
        >>> solve([0, 2, 5], [2, 1, 1], AffineCost(3.0, 1.0)).plan
        (0, 2)
    """
    problem = make_problem(ready_s, sizes_bytes, cost, max_segments=max_segments, forced=forced, max_bytes=max_bytes)
    if isinstance(slack_s, bool) or not isinstance(slack_s, (int, float)) or not 0 <= slack_s < math.inf:
        raise ConfigError(f"slack_s={slack_s!r}", rule="slack_s is a time in s of at least 0", fix="leave it out")
    return solve_problem(problem, slack_s)


def solve_problem(problem: Problem, slack_s: float = 0.0) -> Solution:
    """`solve` for an instance that `make_problem` has checked."""
    earliest = _layer(problem, None)
    plan = _from_the_back(problem, earliest, earliest[-1] + slack_s)
    optimum = earliest[-1]
    if problem.max_segments is not None and len(plan) > problem.max_segments:
        plan, optimum = _limited(problem, problem.max_segments)
    end = segment_ends_s(plan, problem.ready_s, problem.prefix_bytes, problem.cost)[-1]
    bound = optimum
    if isinstance(problem.cost, AffineCost):
        bound = lower_bound_end_s(problem.ready_s, problem.sizes_bytes, problem.cost)
    return Solution(plan, end, end - problem.ready_s[-1], bound, optimum, problem.notes)


def _layer(problem: Problem, before: list[float] | None) -> list[float]:
    """F for all j; with `before`, the F of one segment fewer, the least end of plans with at most one segment more."""
    if isinstance(problem.cost, AffineCost):
        return _affine_layer(problem, problem.cost, before)
    return _table_layer(problem, before)


def _affine_layer(problem: Problem, cost: AffineCost, before: list[float] | None) -> list[float]:
    alpha, beta = cost.alpha_s, cost.beta_s_per_byte
    prefix, lows, ready = problem.prefix_bytes, problem.lows, problem.ready_s
    ends = [0.0] * (problem.count + 1)
    ends_before = ends if before is None else before
    free = 0  # the last i with F(i) <= r_j
    for j, at in enumerate(ready, 1):
        low = lows[j]
        while free + 1 < j and ends_before[free + 1] <= at:
            free += 1
        if free >= low:
            best, busy = at + alpha + beta * (prefix[j] - prefix[free]), free + 1
        else:
            best, busy = math.inf, low
        if busy < j:
            start = ends_before[busy]
            end = (start if start > at else at) + alpha + beta * (prefix[j] - prefix[busy])
            if end < best:
                best = end
        ends[j] = best
    return ends


def _table_layer(problem: Problem, before: list[float] | None) -> list[float]:
    cost, prefix, lows, ready = problem.cost, problem.prefix_bytes, problem.lows, problem.ready_s
    ends = [0.0] * (problem.count + 1)
    ends_before = ends if before is None else before
    for j in range(1, problem.count + 1):
        at, total = ready[j - 1], prefix[j]
        ends[j] = min(max(ends_before[i], at) + cost(total - prefix[i]) for i in range(lows[j], j))
    return ends


def _from_the_back(problem: Problem, earliest: list[float], end_s: float) -> tuple[int, ...]:
    """The plan with the fewest segments among those that end by `end_s` (for an affine cost; few, for a table)."""
    cost, prefix, lows, ready = problem.cost, problem.prefix_bytes, problem.lows, problem.ready_s
    rising = isinstance(cost, AffineCost)
    plan: list[int] = []
    j, deadline = problem.count, end_s * (1 + _ROUNDING)
    while j > 0:
        plan.append(j - 1)
        chosen = starts_by = None
        at, total = ready[j - 1], prefix[j]
        for i in range(j - 1, lows[j] - 1, -1):
            start = deadline - cost(total - prefix[i])
            if at > start:
                if rising:
                    break  # a longer segment would end too late whatever comes before it
            elif earliest[i] <= start:
                chosen, starts_by = i, start
        if chosen is None or starts_by is None:  # rounding at the limit: take the segment that gave F(j)
            chosen = min(range(lows[j], j), key=lambda i: max(earliest[i], ready[j - 1]) + cost(prefix[j] - prefix[i]))
            starts_by = max(earliest[chosen], ready[j - 1])
        j, deadline = chosen, starts_by
    return tuple(reversed(plan))


def _limited(problem: Problem, most: int) -> tuple[tuple[int, ...], float]:
    """The best plan with at most `most` segments: one layer for each, then back through the layers."""
    cost, prefix, lows, ready = problem.cost, problem.prefix_bytes, problem.lows, problem.ready_s
    nothing = [0.0] + [math.inf] * problem.count
    layers = [nothing]
    for _ in range(most):
        layer = _layer(problem, layers[-1])
        layers.append([0.0, *(min(now, less) for now, less in zip(layer[1:], layers[-1][1:], strict=True))])
    optimum = layers[-1][-1]
    plan: list[int] = []
    j, k = problem.count, most
    while j > 0:
        while layers[k - 1][j] <= layers[k][j]:
            k -= 1
        plan.append(j - 1)
        j = min(range(lows[j], j), key=lambda i: max(layers[k - 1][i], ready[j - 1]) + cost(prefix[j] - prefix[i]))
        k -= 1
    return tuple(reversed(plan)), optimum
