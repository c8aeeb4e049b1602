"""What others would do with the same gradients, under the same cost.

    single         all gradients in one message                    per_gradient   one message each
    hccl_default   96.54 % and 3.46 % of the bytes                 cap_25MiB      close a segment when it reaches 25 MiB (DDP)
    mgwfbp         merge gradient j+1 into the pending segment when it is ready before the segment could start plus alpha

The merge rule looks one gradient ahead only: with r = (0, 2, 5), sizes (2, 1, 1), alpha = 3 and beta = 1 it ends at 12 where
the optimum is 10. Source: S. Shi, X. Chu, B. Li, "MG-WFBP: Efficient Data Communication for Distributed Synchronous SGD
Algorithms", INFOCOM 2019 (a re-implementation). Cost: one pass each.
"""

from __future__ import annotations

from collections.abc import Mapping

from gradweave.model.schedule import segment_ends_s
from gradweave.split import SplitStrategy
from gradweave.tune.problem import Problem

_STRATEGIES = {
    "single": SplitStrategy.single(),
    "hccl_default": SplitStrategy.hccl_default(),
    "per_gradient": SplitStrategy.per_gradient(),
    "cap_25MiB": SplitStrategy.caps_mib(25),
}


def plans(problem: Problem) -> dict[str, tuple[int, ...]]:
    """The plan of each baseline, by name; limits and forced boundaries of the problem do not bind them.

    Example:
        >>> from gradweave.model.cost import AffineCost
        >>> from gradweave.tune.problem import make_problem
        >>> plans(make_problem([0, 2, 5], [2, 1, 1], AffineCost(3.0, 1.0)))["mgwfbp"]
        (1, 2)
    """
    found = {name: strategy.boundaries(problem.sizes_bytes) for name, strategy in _STRATEGIES.items()}
    return {**found, "mgwfbp": mgwfbp(problem)}


def ends_s(problem: Problem) -> Mapping[str, float]:
    """When the last collective of each baseline ends, in s."""
    return {
        name: segment_ends_s(plan, problem.ready_s, problem.prefix_bytes, problem.cost)[-1]
        for name, plan in plans(problem).items()
    }


def mgwfbp(problem: Problem) -> tuple[int, ...]:
    """Merge greedily; alpha is the cost of a message without bytes."""
    ready, sizes, alpha_s = problem.ready_s, problem.sizes_bytes, problem.cost(0)
    plan: list[int] = []
    free, pending = 0.0, 0
    for j in range(problem.count):
        pending += sizes[j]
        start = max(free, ready[j])
        if j + 1 < problem.count and ready[j + 1] < start + alpha_s:
            continue
        plan.append(j)
        free, pending = start + problem.cost(pending), 0
    return tuple(plan)
