"""From a strategy to boundaries: where each rule places the last index of every segment.

Every rule takes the bytes of the gradients in the order of generation and returns the ascending last indices, of which the
last is n-1; no segment is empty and no gradient is cut. With S_j the bytes of gradients 0..j:

    by size    boundary k is the index j, among those that leave a gradient for each later segment, that makes
               |S_j / S_(n-1) - (share_1 + ... + share_k)| least; of several the lowest
    by bytes   segment k closes when its bytes reach cap k; the last cap repeats
    default    by bytes with 25 MiB, but the longest suffix of at most 1 MiB is a segment of its own, so that what can only
               be sent after the backward pass is short

Cost: one pass over the gradients; by size, a bisection for each segment more.
Source: Huawei, "Adjusting Gradient Splitting Strategy" (by index, by size); torch's DistributedDataParallel (25 MiB).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any

from gradweave.errors import SplitError
from gradweave.split.checks import MIB, as_written, show

DEFAULT_CAP_BYTES = 25 * MIB
SMALL_LAST_BYTES = MIB


def boundaries(kind: str, values: Sequence[Any], sizes_bytes: Sequence[int], names: Sequence[str] | None) -> tuple[int, ...]:
    """Apply the rule of a strategy's kind; what `SplitStrategy.boundaries` documents.

    Example:
        >>> boundaries("per_gradient", (), [4, 4], None)
        (0, 1)
    """
    count = len(sizes_bytes)
    if kind == "by_idx":
        return by_idx(values, count)
    if kind == "by_names":
        return by_names(values, names)
    if count == 0:
        return ()
    if kind == "single":
        return (count - 1,)
    if kind == "per_gradient":
        return tuple(range(count))
    if kind == "by_size":
        return by_size(values, sizes_bytes)
    return by_bytes(values, sizes_bytes) if kind == "by_bytes" else default(sizes_bytes)


def by_idx(last_indices: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the indices as they are, when they end with the largest index of `count` gradients.

    Example:
        >>> by_idx([20, 100, 159], 160)
        (20, 100, 159)
    """
    largest, given = count - 1, last_indices[-1]
    if given == largest:
        return tuple(last_indices)
    rule = f"the model has n = {count} gradients, so the last index of the list is the largest index, {largest}"
    kept = [index for index in last_indices if index < largest]
    if given > largest:
        fix = f"write {show([*kept, largest])}" if count else "wrap parameters that require a gradient"
        raise SplitError(f"index {given} in {show(list(last_indices))} is too large", rule=rule, fix=fix)
    fix = f"write {show([*kept[:-1], largest])}, or {show([*kept, largest])} for one segment more"
    raise SplitError(f"the last index {given} in {show(list(last_indices))} is too small", rule=rule, fix=fix)


def by_size(shares_pct: Sequence[float], sizes_bytes: Sequence[int]) -> tuple[int, ...]:
    """Place each boundary at the gradient whose cumulative share is nearest to the requested one.

    Fewer segments than shares result only when there are fewer gradients than shares.

    Example:
        >>> by_size([60, 20, 20], [10, 20, 30, 10, 10, 20])
        (2, 4, 5)
    """
    count = len(sizes_bytes)
    if count <= len(shares_pct):
        return tuple(range(count))
    prefix = list(accumulate(sizes_bytes))
    lasts: list[int] = []
    asked_pct, before = Fraction(0), -1
    for remaining, share in zip(range(len(shares_pct) - 1, 0, -1), shares_pct, strict=False):
        asked_pct += as_written(share)
        before = _nearest(prefix, asked_pct * prefix[-1] / 100, before + 1, count - 1 - remaining)
        lasts.append(before)
    return (*lasts, count - 1)


def _nearest(prefix: Sequence[int], target: Fraction, low: int, high: int) -> int:
    """Return the index in low..high whose prefix is nearest to the target, of several the lowest."""
    above = bisect_left(prefix, target, low, high + 1)
    if above == low:
        return low
    if above <= high and prefix[above] - target < target - prefix[above - 1]:
        return above
    # Gradients without bytes share a prefix: the lowest of them is meant.
    return bisect_left(prefix, prefix[above - 1], low, above)


def by_bytes(caps_bytes: Sequence[int], sizes_bytes: Sequence[int]) -> tuple[int, ...]:
    """Close segment k when its bytes reach cap k; the last cap repeats.

    Example:
        >>> by_bytes([4, 10], [1, 3, 5, 5, 2])
        (1, 3, 4)
    """
    lasts: list[int] = []
    filled_bytes, cap_bytes = 0, caps_bytes[0]
    for index, size_bytes in enumerate(sizes_bytes):
        filled_bytes += size_bytes
        if filled_bytes >= cap_bytes or index == len(sizes_bytes) - 1:
            lasts.append(index)
            filled_bytes, cap_bytes = 0, caps_bytes[min(len(lasts), len(caps_bytes) - 1)]
    return tuple(lasts)


def default(sizes_bytes: Sequence[int]) -> tuple[int, ...]:
    """Cut into 25 MiB segments with a last one of at most 1 MiB where boundaries allow.

    Example:
        >>> default([30 << 20, 10 << 20, 600 << 10, 300 << 10])
        (0, 1, 3)
    """
    first_of_last, last_bytes = len(sizes_bytes), 0
    while first_of_last and last_bytes + sizes_bytes[first_of_last - 1] <= SMALL_LAST_BYTES:
        first_of_last -= 1
        last_bytes += sizes_bytes[first_of_last]
    body = by_bytes([DEFAULT_CAP_BYTES], sizes_bytes[:first_of_last])
    return body if first_of_last == len(sizes_bytes) else (*body, len(sizes_bytes) - 1)


def by_names(segments: Sequence[Sequence[str]], names: Sequence[str] | None) -> tuple[int, ...]:
    """Find the segments of a plan in gradients that stand in the order `names`.

    Inside a segment the order is free; segments follow each other as in the plan.

    Example:
        >>> by_names([["c"], ["b", "a"]], ["c", "a", "b"])
        (0, 2)
    """
    if names is None:
        raise SplitError(
            "a split by names was applied without the gradients' names",
            rule="a plan file refers to parameters by name",
            fix="pass names=, the names in the order of the sizes",
        )
    _check_same_names([name for segment in segments for name in segment], names)
    lasts: list[int] = []
    first = 0
    for index, segment in enumerate(segments):
        stop = first + len(segment)
        wanted, found = set(segment), names[first:stop]
        strangers = [name for name in found if name not in wanted]
        if strangers:
            raise SplitError(
                f"gradient {strangers[0]!r} comes within segment {index} of the plan, but the plan has it elsewhere",
                rule="the gradients of a segment follow each other in the order of generation",
                fix="put the gradients into the plan's order (SplitStrategy.order), or make a new plan for this model",
            )
        lasts.append(stop - 1)
        first = stop
    return tuple(lasts)


def _check_same_names(planned: Sequence[str], names: Sequence[str]) -> None:
    rule = "a plan names every parameter that requires a gradient, and no other"
    fix = "make a new plan for this model, or leave strategy=None for the default"
    known = set(names)
    missing = [name for name in planned if name not in known]
    if missing:
        raise SplitError(f"the plan's parameter {missing[0]!r} is not in the model", rule=rule, fix=fix)
    added = known - set(planned)
    if added:
        first = next(name for name in names if name in added)
        raise SplitError(f"the model's parameter {first!r} is not in the plan", rule=rule, fix=fix)
    if len(names) != len(planned):
        raise SplitError(f"the model gives {len(names)} gradients with {len(planned)} names", rule=rule, fix=fix)
