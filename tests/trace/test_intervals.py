"""Interval sets: a union never counts time twice, and what is hidden and what is exposed make up the union."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gradweave.trace.intervals import intersect, length, subtract, union

TIMES = st.integers(min_value=-50, max_value=50)
SETS = st.lists(st.tuples(TIMES, TIMES), max_size=12)


def covered(intervals: list[tuple[int, int]]) -> set[int]:
    return {tick for start, end in intervals for tick in range(start, end)}


@given(SETS)
def test_union_covers_the_same_ticks_once(intervals: list[tuple[int, int]]) -> None:
    merged = union(intervals)
    assert length(merged) == len(covered(intervals)) <= sum(max(0, end - start) for start, end in intervals)
    assert all(left[1] < right[0] for left, right in zip(merged, merged[1:], strict=False))


@given(SETS, SETS)
def test_intersection_and_difference_make_up_the_union(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    a, b = union(left), union(right)
    assert covered(intersect(a, b)) == covered(left) & covered(right)
    assert covered(subtract(a, b)) == covered(left) - covered(right)
    assert length(intersect(a, b)) + length(subtract(a, b)) == length(a)
