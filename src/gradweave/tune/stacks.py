"""How other stacks group gradients, from the setting that a user gives them.

Every rule takes the gradients in the order of generation and returns what would travel together (ascending last indices) and
when each message may start. Re-implementations from the sources named below; none of the stacks is run here, except DDP, whose
buckets a test compares.

    closes_at     a bucket closes when its size reaches the cap (DDP, Megatron; each with its unit)
    closes_before a bucket is sent when the next gradient would make it larger than the cap: it waits for that gradient
                  (DeepSpeed, ZeRO 1 and 2)
    from_the_end  buckets are cut in the order of the model, the first of them with a cap of its own (Paddle)
    cycles        whatever is ready when the channel is free, in order, up to the threshold (Horovod, without its cycle time)

Sources: torch `compute_bucket_assignment_by_size` and `Reducer::rebuild_buckets`; Megatron-LM `param_and_grad_buffer`;
DeepSpeed `stage_1_and_2.reduce_independent_p_g_buckets_and_remove_grads`; Paddle `assign_group_by_size`; Horovod
`Controller::FuseResponses`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Cost = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Grouping:
    """What travels together, and the index of the gradient each message waits for (its own last one, as a rule)."""

    plan: tuple[int, ...]
    waits_for: tuple[int, ...]

    def end_s(self, ready_s: Sequence[float], prefix_bytes: Sequence[float], cost: Cost) -> float:
        """End of the last message."""
        free, first = 0.0, 0
        for last, awaited in zip(self.plan, self.waits_for, strict=True):
            free = max(free, ready_s[awaited]) + cost(prefix_bytes[last + 1] - prefix_bytes[first])
            first = last + 1
        return free


def closes_at(caps: Sequence[float], sizes: Sequence[float]) -> Grouping:
    """Close bucket k when its size reaches the k-th cap; the last cap repeats.

    Example:
        >>> closes_at([4], [1, 3, 5, 1]).plan
        (1, 2, 3)
    """
    plan: list[int] = []
    filled = 0.0
    for index, size in enumerate(sizes):
        filled += size
        if filled >= caps[min(len(plan), len(caps) - 1)] or index == len(sizes) - 1:
            plan.append(index)
            filled = 0.0
    return Grouping(tuple(plan), tuple(plan))


def closes_before(cap: float, sizes: Sequence[float]) -> Grouping:
    """Send a bucket when the next gradient would make it larger than the cap.

    Example:
        >>> grouping = closes_before(4, [1, 3, 5, 1])
        >>> grouping.plan, grouping.waits_for
        ((1, 2, 3), (2, 3, 3))
    """
    plan: list[int] = []
    filled = 0.0
    for index, size in enumerate(sizes):
        if index and filled + size > cap:
            plan.append(index - 1)
            filled = 0.0
        filled += size
    plan.append(len(sizes) - 1)
    return Grouping(tuple(plan), tuple(min(last + 1, len(sizes) - 1) for last in plan))


def from_the_end(cap: float, first_cap: float, sizes: Sequence[float]) -> Grouping:
    """Cut from the gradient that is generated last; the bucket that is cut first has a cap of its own.

    Example:
        >>> from_the_end(4, 1, [1, 3, 5, 1]).plan
        (1, 2, 3)
    """
    backward = closes_at([first_cap, cap], list(reversed(sizes))).plan
    count = len(sizes)
    plan = tuple(sorted({count - 1, *(count - 2 - last for last in backward if last < count - 1)}))
    return Grouping(plan, plan)


def cycles(threshold: float, sizes: Sequence[float], ready_s: Sequence[float], cost: Cost) -> Grouping:
    """Whenever the channel is free, send what is ready, in order, up to the threshold; a larger gradient travels alone.

    Example:
        >>> cycles(8, [4, 4, 4], [0.0, 1.0, 2.0], lambda size: 3.0).plan
        (0, 2)
    """
    plan: list[int] = []
    free, first, count = 0.0, 0, len(sizes)
    while first < count:
        now = max(free, ready_s[first])
        last, filled = first, sizes[first]
        while last + 1 < count and ready_s[last + 1] <= now and filled + sizes[last + 1] <= threshold:
            last += 1
            filled += sizes[last]
        plan.append(last)
        free, first = now + cost(filled), last + 1
    return Grouping(tuple(plan), tuple(plan))
