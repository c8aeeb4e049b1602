"""All plans of a small instance, tried one by one."""

from __future__ import annotations

from gradweave.model.schedule import segment_ends_s
from gradweave.tune import Problem


def allowed_plans(problem: Problem) -> list[tuple[int, ...]]:
    """Every plan that keeps the limits, found without the solver's own `lows`."""
    n, plans = problem.count, []
    for mask in range(1 << (n - 1)):
        plan = (*(i for i in range(n - 1) if mask >> i & 1), n - 1)
        if problem.max_segments is not None and len(plan) > problem.max_segments:
            continue
        if not set(problem.forced) <= set(plan):
            continue
        firsts = [0, *(last + 1 for last in plan[:-1])]
        sizes = [sum(problem.sizes_bytes[a : b + 1]) for a, b in zip(firsts, plan, strict=True)]
        alone = [a == b for a, b in zip(firsts, plan, strict=True)]
        limit = problem.max_bytes
        if limit is not None and any(size > limit and not one for size, one in zip(sizes, alone, strict=True)):
            continue
        plans.append(plan)
    return plans


def end_s(problem: Problem, plan: tuple[int, ...]) -> float:
    """End of the last collective of a plan."""
    return segment_ends_s(plan, problem.ready_s, problem.prefix_bytes, problem.cost)[-1]


def best(problem: Problem) -> tuple[float, int]:
    """The least end over all allowed plans, and the fewest segments that reach it."""
    ends = [(end_s(problem, plan), len(plan)) for plan in allowed_plans(problem)]
    least = min(end for end, _ in ends)
    return least, min(count for end, count in ends if end <= least * (1 + 1e-12))
