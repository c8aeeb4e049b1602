"""Gradients and segments: what their numbers mean."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradweave.model import GradientInfo, Segment, segments_from_boundaries


@pytest.mark.parametrize(("shape", "numel"), [((), 1), ((3,), 3), ((2, 3, 4), 24), ((5, 0, 2), 0)])
def test_numel_is_the_product_of_the_dims(shape: tuple[int, ...], numel: int) -> None:
    assert GradientInfo("w", shape, "float32", 4 * numel).numel == numel


def test_a_segment_counts_both_of_its_ends() -> None:
    assert len(Segment(index=0, first=3, last=3, size_bytes=4)) == 1
    assert len(Segment(index=1, first=3, last=7, size_bytes=4)) == 5


def test_gradients_and_segments_are_values() -> None:
    one, same = Segment(0, 0, 1, 8), Segment(0, 0, 1, 8)
    assert one == same and hash(one) == hash(same)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.last = 2  # type: ignore[misc]


def test_boundaries_become_segments_with_their_bytes() -> None:
    assert segments_from_boundaries([0, 3], [4, 8, 16, 32]) == (Segment(0, 0, 0, 4), Segment(1, 1, 3, 56))


def test_no_boundaries_give_no_segments() -> None:
    assert segments_from_boundaries([], []) == ()


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.data())
def test_segments_cover_every_gradient_once_and_in_order(sizes: list[int], data: st.DataObject) -> None:
    last = len(sizes) - 1
    inner = data.draw(st.sets(st.integers(0, last)))
    segments = segments_from_boundaries(sorted({*inner, last}), sizes)
    covered = [index for segment in segments for index in range(segment.first, segment.last + 1)]
    assert covered == list(range(len(sizes)))
    assert [segment.index for segment in segments] == list(range(len(segments)))
    assert sum(segment.size_bytes for segment in segments) == sum(sizes)
    assert sum(map(len, segments)) == len(sizes)
