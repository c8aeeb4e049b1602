"""What the solver is given: ready times, sizes, a cost, and what a plan may not do.

    low(j) = the earliest first gradient of a segment that ends with gradient j-1

Forced boundaries and a largest segment both raise `low`; it never falls as j grows, which is what the exact algorithms of
`solve` need. A gradient larger than the largest segment is a segment of its own.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from gradweave.errors import ConfigError, SplitError
from gradweave.model.cost import AffineCost, TableCost


@dataclass(frozen=True)
class Problem:
    """One instance, checked.

    Attributes:
        ready_s: ready time of each gradient in s, from any origin (the start of forward, as a rule), ascending.
        sizes_bytes: bytes of each gradient, in the same order.
        cost: time of one collective by its bytes.
        max_segments: at most so many; None is any number.
        forced: indices that end a segment in every plan, ascending (sparse gradients, changes of dtype, groups).
        max_bytes: largest segment; a single larger gradient is allowed. None is any size.
        notes: what was corrected.
    """

    ready_s: tuple[float, ...]
    sizes_bytes: tuple[int, ...]
    cost: AffineCost | TableCost
    max_segments: int | None = None
    forced: tuple[int, ...] = ()
    max_bytes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Number of gradients."""
        return len(self.sizes_bytes)

    @functools.cached_property
    def prefix_bytes(self) -> list[int]:
        """`prefix_bytes[j]` is the bytes of the gradients before j."""
        return list(accumulate(self.sizes_bytes, initial=0))

    @functools.cached_property
    def lows(self) -> list[int]:
        """`lows[j]`, j in 1..n: the smallest i such that gradients i..j-1 may be one segment."""
        if not self.forced and self.max_bytes is None:
            return [0] * (self.count + 1)
        prefix, lows = self.prefix_bytes, [0] * (self.count + 1)
        low, forced = 0, iter([*self.forced, self.count])
        barrier, following = 0, next(forced)
        for j in range(1, self.count + 1):
            if j - 1 > following:
                barrier, following = following + 1, next(forced)
            low = max(low, barrier)
            if self.max_bytes is not None:
                while low < j - 1 and prefix[j] - prefix[low] > self.max_bytes:
                    low += 1
            lows[j] = low
        return lows


def make_problem(
    ready_s: Sequence[float],
    sizes_bytes: Sequence[int],
    cost: AffineCost | TableCost,
    *,
    max_segments: int | None = None,
    forced: Sequence[int] = (),
    max_bytes: int | None = None,
) -> Problem:
    """Check an instance.

    Ready times that do not ascend are replaced by their running maximum, with a note: a segment waits for its latest gradient.

    Raises:
        ConfigError: a value is malformed; the message names the argument.
        SplitError: no plan has at most `max_segments` segments.

    Example:
        >>> make_problem([1, 0.5], [4, 4], AffineCost(0.0, 1.0)).ready_s
        (1.0, 1.0)
    """
    _check_numbers("ready_s", ready_s)
    _check_sizes(sizes_bytes)
    if len(ready_s) != len(sizes_bytes):
        raise ConfigError(
            f"ready_s has {len(ready_s)} entries and bytes has {len(sizes_bytes)}",
            rule="one ready time and one size for each gradient",
            fix="give lists of the same length",
        )
    _check_positive("max_segments", max_segments)
    _check_positive("max_bytes", max_bytes)
    ascending = tuple(map(float, ready_s))
    late = sum(map(operator.gt, ascending, ascending[1:]))
    if late:
        ascending = tuple(accumulate(ascending, max))
        late = sum(map(operator.lt, ready_s, ascending))
    notes = (f"ready_s does not ascend at {late} places; its running maximum was used",) if late else ()
    problem = Problem(
        ascending, tuple(sizes_bytes), cost, max_segments, _checked_forced(forced, len(sizes_bytes)), max_bytes, notes
    )
    needed = _fewest_possible(problem)
    if max_segments is not None and needed > max_segments:
        raise SplitError(
            f"max_segments={max_segments} with {len(problem.forced)} forced boundaries and max_bytes={max_bytes}",
            rule=f"these need at least {needed} segments",
            fix=f"allow {needed} segments, or relax the others",
        )
    return problem


def _fewest_possible(problem: Problem) -> int:
    lows, j, count = problem.lows, problem.count, 0
    while j > 0:
        j, count = lows[j], count + 1
    return count


def _check_numbers(name: str, values: Sequence[float]) -> None:
    if not isinstance(values, (list, tuple)) or not values:
        raise ConfigError(f"{name}={_shown(values)}", rule=f"{name} is a list of numbers, not empty", fix="one per gradient")
    for position, value in enumerate(values):
        if type(value) is float and 0.0 <= value < math.inf:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            raise ConfigError(
                f"{name}[{position}] is {value!r}", rule=f"{name} holds finite numbers of at least 0", fix="give seconds"
            )


def _check_sizes(values: Sequence[int]) -> None:
    if not isinstance(values, (list, tuple)) or not values:
        raise ConfigError(f"bytes={_shown(values)}", rule="bytes is a list of integers, not empty", fix="one per gradient")
    for position, value in enumerate(values):
        if type(value) is int and value >= 0:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(f"bytes[{position}] is {value!r}", rule="bytes holds integers of at least 0", fix="give bytes")


def _check_positive(name: str, value: int | None) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ConfigError(f"{name}={value!r}", rule=f"{name} is an integer of at least 1", fix="leave it out for no limit")


def _checked_forced(forced: Sequence[int], count: int) -> tuple[int, ...]:
    for position, index in enumerate(forced):
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
            raise ConfigError(
                f"forced[{position}] is {index!r}", rule=f"a boundary is an index from 0 to {count - 1}", fix="leave it out"
            )
    return tuple(sorted({*forced} - {count - 1}))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
