"""Boundaries: exact by every rule, for every model."""

from __future__ import annotations

import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gradweave.errors import SplitError
from gradweave.model import segments_from_boundaries
from gradweave.split import SplitStrategy

MIB = 1 << 20
KIB = 1 << 10

sizes_lists = st.lists(st.integers(0, 20) | st.integers(0, 40 * MIB), min_size=1, max_size=40)


@st.composite
def percentages(draw: st.DrawFn) -> list[float]:
    """Percentages of two decimals that sum to 100 exactly."""
    cuts = sorted(draw(st.sets(st.integers(1, 9_999), max_size=7)))
    return [(after - before) / 100 for before, after in zip([0, *cuts], [*cuts, 10_000], strict=True)]


@st.composite
def strategies(draw: st.DrawFn) -> SplitStrategy:
    """Every kind that fits any model."""
    return draw(
        st.sampled_from([SplitStrategy.default(), SplitStrategy.single(), SplitStrategy.per_gradient()])
        | percentages().map(SplitStrategy.by_size)
        | st.lists(st.integers(1, 50 * MIB), min_size=1, max_size=4).map(SplitStrategy.by_bytes)
    )


def nearest_by_search(shares: list[float], sizes: list[int]) -> tuple[int, ...]:
    """The rule by size as it is stated: every candidate of every boundary is tried."""
    if len(sizes) <= len(shares):
        return tuple(range(len(sizes)))
    total, lasts, asked = sum(sizes), [], Fraction(0)
    for k, share in enumerate(shares[:-1]):
        asked += Fraction(str(share)) / 100
        candidates = range((lasts[-1] if lasts else -1) + 1, len(sizes) - (len(shares) - 1 - k))
        distances = [abs((Fraction(sum(sizes[: j + 1]), total) if total else 0) - asked) for j in candidates]
        lasts.append(candidates[distances.index(min(distances))])
    return (*lasts, len(sizes) - 1)


@given(strategy=strategies(), sizes=sizes_lists)
def test_boundaries_ascend_end_with_the_largest_index_and_leave_no_segment_empty(
    strategy: SplitStrategy, sizes: list[int]
) -> None:
    boundaries = strategy.boundaries(sizes)
    segments = segments_from_boundaries(boundaries, sizes)
    assert boundaries[-1] == len(sizes) - 1
    assert all(len(segment) > 0 for segment in segments)
    assert sum(len(segment) for segment in segments) == len(sizes)


@given(shares=percentages(), sizes=sizes_lists)
def test_by_size_equals_a_search_over_all_candidates(shares: list[float], sizes: list[int]) -> None:
    assert SplitStrategy.by_size(shares).boundaries(sizes) == nearest_by_search(shares, sizes)


@given(shares=percentages(), sizes=sizes_lists)
def test_by_size_gives_fewer_segments_only_when_there_are_fewer_gradients(shares: list[float], sizes: list[int]) -> None:
    assert len(SplitStrategy.by_size(shares).boundaries(sizes)) == min(len(shares), len(sizes))


@pytest.mark.parametrize(
    ("shares", "sizes", "expected"),
    [
        ([50, 50], [1, 1, 1, 1], (1, 3)),
        ([50, 50], [1, 1, 1], (0, 2)),  # one third and two thirds are equally near: the lower
        ([50, 50], [1, 0, 0, 1], (0, 3)),  # gradients without bytes do not move the boundary
        ([50, 50], [0, 0, 0], (0, 2)),
        ([60, 20, 20], [100, 1, 1], (0, 1, 2)),
        ([1, 98, 1], [1, 1, 98], (0, 1, 2)),
        ([96.54, 3.46], [7], (0,)),
        ([0.1] * 1000, [5, 5], (0, 1)),
    ],
)
def test_by_size_places_boundaries_at_the_nearest_share(
    shares: list[float], sizes: list[int], expected: tuple[int, ...]
) -> None:
    assert SplitStrategy.by_size(shares).boundaries(sizes) == expected


def test_the_hccl_default_is_two_segments_or_one_where_there_is_one_gradient() -> None:
    assert SplitStrategy.hccl_default().boundaries([9654, 300, 46]) == (0, 2)
    assert SplitStrategy.hccl_default().boundaries([9654]) == (0,)


@given(st.sets(st.integers(0, 60), min_size=1))
def test_indices_are_kept_when_they_end_with_the_largest(indices: set[int]) -> None:
    ascending = sorted(indices)
    assert SplitStrategy.by_idx(ascending).boundaries([1] * (ascending[-1] + 1)) == tuple(ascending)


@given(indices=st.sets(st.integers(0, 60), min_size=1), count=st.integers(1, 60))
def test_a_wrong_last_index_is_refused_and_the_proposed_list_fits(indices: set[int], count: int) -> None:
    assume(max(indices) != count - 1)
    with pytest.raises(SplitError) as caught:
        SplitStrategy.by_idx(sorted(indices)).boundaries([1] * count)
    assert f"n = {count}" in str(caught.value) and f"largest index, {count - 1}" in str(caught.value)
    proposed = caught.value.fix.removeprefix("write ").partition("]")[0] + "]"
    if "..." not in proposed:
        assert SplitStrategy.by_idx([int(index) for index in proposed.strip("[]").split(",")]).boundaries([1] * count)


def test_a_last_index_that_is_too_large_names_the_list_to_write() -> None:
    with pytest.raises(SplitError, match=r"index 160 in \[20, 100, 160\] is too large.*Fix: write \[20, 100, 159\]"):
        SplitStrategy.by_idx([20, 100, 160]).boundaries([4] * 160)


def test_a_last_index_that_is_too_small_names_the_lists_to_write() -> None:
    with pytest.raises(SplitError, match=r"150 .*too small.*write \[20, 100, 159\], or \[20, 100, 150, 159\]"):
        SplitStrategy.by_idx([20, 100, 150]).boundaries([4] * 160)


def test_a_model_without_gradients_has_no_segments_and_refuses_indices() -> None:
    assert SplitStrategy.default().boundaries([]) == SplitStrategy.by_size([100]).boundaries([]) == ()
    with pytest.raises(SplitError, match="n = 0"):
        SplitStrategy.by_idx([0]).boundaries([])


@given(caps=st.lists(st.integers(1, 60), min_size=1, max_size=4), sizes=st.lists(st.integers(0, 40), min_size=1))
def test_by_bytes_closes_each_segment_exactly_when_its_cap_is_reached(caps: list[int], sizes: list[int]) -> None:
    segments = segments_from_boundaries(SplitStrategy.by_bytes(caps).boundaries(sizes), sizes)
    for segment in segments[:-1]:
        cap = caps[min(segment.index, len(caps) - 1)]
        assert segment.size_bytes >= cap > segment.size_bytes - sizes[segment.last]
    last = segments[-1]
    assert last.size_bytes - sizes[last.last] < caps[min(last.index, len(caps) - 1)]


def test_a_cap_of_zero_mib_closes_after_every_gradient() -> None:
    assert SplitStrategy.caps_mib(0).boundaries([4, 4, 4]) == (0, 1, 2)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([MIB], (0,)),
        ([KIB] * 1024, (1023,)),  # a mebibyte in all: one segment
        ([MIB + 1], (0,)),
        ([MIB, 1], (0, 1)),
        ([5 * MIB, 2 * MIB], (1,)),  # the last gradient is too large for a small last segment
        ([5 * MIB, 2 * MIB, 600 * KIB, 424 * KIB], (1, 3)),
        ([20 * MIB, 20 * MIB, 20 * MIB, KIB], (1, 2, 3)),
        ([0, 0], (1,)),
    ],
)
def test_the_native_default_is_25_mib_with_a_small_last_segment(sizes: list[int], expected: tuple[int, ...]) -> None:
    assert SplitStrategy.default().boundaries(sizes) == expected


@given(sizes_lists)
def test_the_small_last_segment_is_the_longest_suffix_of_a_mebibyte(sizes: list[int]) -> None:
    segments = segments_from_boundaries(SplitStrategy.default().boundaries(sizes), sizes)
    if sizes[-1] <= MIB:
        last = segments[-1]
        assert last.size_bytes <= MIB
        assert last.first == 0 or last.size_bytes + sizes[last.first - 1] > MIB
    body = segments[:-1] if sizes[-1] <= MIB else segments
    assert all(segment.size_bytes >= 25 * MIB for segment in body[:-1])


def test_numpy_sizes_are_accepted() -> None:
    assert SplitStrategy.by_size([75, 25]).boundaries(np.array([2**30] * 4, dtype=np.int32)) == (2, 3)


def test_names_find_their_segments_in_any_order_within_a_segment() -> None:
    strategy = SplitStrategy.by_names([["d", "c"], ["b", "a"]])
    assert strategy.boundaries([1] * 4, ["c", "d", "a", "b"]) == (1, 3)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["c", "b", "a"], "'c' comes within segment 0"),
        (["a", "b"], "'c' is not in the model"),
        (["a", "b", "c", "d"], "'d' is not in the plan"),
        (["a", "b", "c", "c"], "4 gradients with 3 names"),
        (None, "without the gradients' names"),
    ],
)
def test_names_that_do_not_fit_are_refused(names: list[str] | None, words: str) -> None:
    with pytest.raises(SplitError, match=f"{words}.*Rule:.*Fix:"):
        SplitStrategy.by_names([["a", "b"], ["c"]]).boundaries([1] * len(names or "abc"), names)


def test_a_hundred_thousand_gradients_are_split_at_once() -> None:
    sizes, names = [4] * 100_000, [str(index) for index in range(100_000)]
    kinds = [
        SplitStrategy.default(),
        SplitStrategy.by_bytes(4),
        SplitStrategy.by_size([0.01] * 10_000),
        SplitStrategy.by_names([[name] for name in names]),
    ]
    for strategy in kinds:
        start_s = time.process_time()
        strategy.boundaries(sizes, names)
        assert time.process_time() - start_s < 2  # a quadratic rule takes minutes
