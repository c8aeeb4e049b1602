"""A plan over the flat buffers: a message per segment and dtype, the flags behind the last one, no data moved."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gradweave.reduce import CommHook, Dense
from gradweave.sync import notices
from gradweave.sync.layout import Layout
from tests.reduce.fakes import FakePending, FakeReducer
from tests.sync.builders import slots, zeros

F64 = torch.float64


def laid_out(*tensors: Tensor, boundaries: list[int], sparse: tuple[int, ...] = (), reducer: Any = None) -> Layout:
    layout = Layout(slots(*tensors, sparse=sparse), "group", 2, reducer or Dense())  # type: ignore[arg-type]
    layout.apply(boundaries)
    return layout


def carried(layout: Layout) -> list[list[list[str]]]:
    """Names per segment and message."""
    names = {id(slot.param): slot.name for slot in layout.order}
    return [[[names[id(p)] for p in message.parameters] for message in bucket] for bucket in layout.buckets]


def values(layout: Layout) -> list[float]:
    return [value for bucket in layout.buckets for message in bucket for value in message.gradients.tolist()]


def test_a_segment_of_one_dtype_is_one_message() -> None:
    layout = laid_out(zeros(2), zeros(3), zeros(4), boundaries=[0, 2])
    assert carried(layout) == [[["p0"]], [["p1", "p2"]]]
    assert [bucket[0].gradients.numel() for bucket in layout.buckets] == [2, 7]


def test_a_segment_of_two_dtypes_is_two_messages_in_the_order_in_which_they_complete() -> None:
    layout = laid_out(zeros(2), zeros(3, dtype=F64), zeros(4), boundaries=[2])
    assert carried(layout) == [[["p1"], ["p0", "p2"]]]
    assert [message.flat.dtype for message in layout.buckets[0]] == [F64, torch.float32]


def test_messages_are_numbered_through_and_only_the_last_one_is_last() -> None:
    layout = laid_out(zeros(2), zeros(3, dtype=F64), zeros(4), zeros(1), boundaries=[1, 3])
    messages = [message for bucket in layout.buckets for message in bucket]
    assert [message.index for message in messages] == [0, 1, 2]
    assert [message.is_last for message in messages] == [False, False, True]


def test_segments_slots_and_gradients_know_their_places() -> None:
    layout = laid_out(zeros(2), zeros(3, dtype=F64), zeros(4), boundaries=[1, 2])
    assert [(s.first, s.last, s.size_bytes) for s in layout.segments] == [(0, 1, 32), (2, 2, 16)]
    assert [(slot.pos, slot.bucket) for slot in layout.order] == [(0, 0), (1, 0), (2, 1)]
    assert [info.name for info in layout.infos] == ["p0", "p1", "p2"]


def test_a_message_is_a_slice_of_the_arena_with_its_gradients_views() -> None:
    layout = laid_out(zeros(2), zeros(1, 3), zeros(4), boundaries=[0, 2])
    message = layout.buckets[1][0]
    message.gradients.copy_(torch.arange(7.0))
    assert [view.tolist() for view in message.views] == [[[0.0, 1.0, 2.0]], [3.0, 4.0, 5.0, 6.0]]
    assert layout.order[1].view.tolist() == [[0.0, 1.0, 2.0]]


def test_complex_gradients_keep_their_padding_inside_the_message() -> None:
    layout = laid_out(zeros(3), zeros(2, dtype=torch.complex64), boundaries=[1])
    assert layout.buckets[0][0].gradients.numel() == 3 + 1 + 4


class TestTail:
    """The flags of the engine: one a gradient and the notices."""

    def test_rides_on_the_last_message_and_on_no_other(self) -> None:
        layout = laid_out(zeros(2), zeros(3), boundaries=[0, 1])
        first, last = layout.buckets[0][0], layout.buckets[1][0]
        assert (first.tail_elems, last.tail_elems) == (0, 2 + notices.COUNT)
        assert last.flat.numel() == 3 + 2 + notices.COUNT and last.gradients.numel() == 3

    def test_is_the_end_of_the_last_message_itself(self) -> None:
        layout = laid_out(zeros(2), zeros(3), boundaries=[0, 1])
        layout.tail.fill_(1)
        assert layout.buckets[1][0].flat.tolist() == [0.0] * 3 + [1.0] * layout.tail_elems
        assert layout.tail_message is None and layout.start_tail() is None

    def test_rides_in_the_dtype_of_the_gradient_that_comes_last(self) -> None:
        layout = laid_out(zeros(2), zeros(3, dtype=F64), zeros(1), boundaries=[2])
        assert [message.tail_elems > 0 for message in layout.buckets[0]] == [False, True]
        assert layout.tail.dtype == torch.float32

    def test_stands_alone_where_the_reducer_may_lose_it(self) -> None:
        layout = laid_out(zeros(2), zeros(3), boundaries=[0, 1], reducer=CommHook(lambda state, bucket: None, None))
        alone = layout.tail_message
        assert [m.tail_elems for bucket in layout.buckets for m in bucket] == [0, 0]
        assert alone.flat is layout.tail and alone.flat.tolist() == [0.0] * (2 + notices.COUNT)
        assert (alone.index, alone.is_last, layout.buckets[1][0].is_last) == (2, False, True)

    def test_stands_alone_where_the_last_segment_is_sparse(self) -> None:
        layout = laid_out(zeros(2), zeros(3, 2), boundaries=[0, 1], sparse=(1,))
        assert [len(bucket) for bucket in layout.buckets] == [1, 0]
        assert layout.buckets[0][0].is_last and layout.tail_message.index == 1

    def test_is_the_only_message_where_all_gradients_are_sparse(self) -> None:
        layout = laid_out(zeros(3, 2), boundaries=[0], sparse=(0,))
        assert layout.buckets == [[]] and layout.arenas == {} and layout.tail_message.is_last

    def test_alone_is_sent_undivided_by_an_all_reduce(self) -> None:
        calls: list[list[Tensor]] = []

        class Group:
            def allreduce(self, tensors: list[Tensor]) -> FakePending:
                calls.append(tensors)
                return FakePending(lambda: None)

        layout = Layout(slots(zeros(3, 2), sparse=(0,)), Group(), 2, Dense())  # type: ignore[arg-type]
        layout.apply([0])
        layout.tail.fill_(1)
        layout.start_tail()
        assert len(calls) == 1 and calls[0][0].tolist() == [1.0] * layout.tail_elems


@pytest.mark.parametrize("boundaries", [[3], [0, 1, 2, 3], [1, 3], [2, 3]])
def test_another_plan_moves_no_data(boundaries: list[int]) -> None:
    layout = laid_out(zeros(2), zeros(3), zeros(4), zeros(1), boundaries=[0, 3])
    for nth, slot in enumerate(layout.order):
        slot.view.fill_(nth)
    places, before = [slot.ptr for slot in layout.order], values(layout)
    layout.apply(boundaries)
    assert layout.boundaries == tuple(boundaries) and len(layout.segments) == len(boundaries)
    assert [slot.view.data_ptr() for slot in layout.order] == places
    assert values(layout) == before == [0.0] * 2 + [1.0] * 3 + [2.0] * 4 + [3.0]


def test_each_message_gets_its_state_once_a_plan() -> None:
    reducer = FakeReducer()
    layout = laid_out(zeros(2), zeros(3, dtype=F64), boundaries=[1], reducer=reducer)
    assert layout.states == [["state 1", "state 2"]]
    assert [message.flat.dtype for message in reducer.inits] == [torch.float32, F64]
    layout.apply([0, 1])
    assert layout.states == [["state 3"], ["state 4"]]


def test_kept_gradients_are_noticed_and_fresh_memory_lets_them_be() -> None:
    layout = laid_out(zeros(2), zeros(3, dtype=F64), boundaries=[0, 1])
    assert not layout.held_elsewhere()
    kept = layout.order[1].view.detach()
    kept.fill_(7)
    assert layout.held_elsewhere()
    layout.fresh_memory()
    assert not layout.held_elsewhere() and kept.tolist() == [7.0] * 3
    layout.order[1].view.fill_(1)
    assert layout.buckets[1][0].gradients.tolist() == [1.0] * 3 and kept.tolist() == [7.0] * 3


def test_cutting_messages_does_not_look_like_a_kept_gradient() -> None:
    layout = laid_out(zeros(2), zeros(3), boundaries=[0, 1])
    for boundaries in ([1], [0, 1]):
        layout.apply(boundaries)
        assert not layout.held_elsewhere()


@pytest.mark.parametrize(
    ("dtype", "ranks", "rides"),
    [(torch.bfloat16, 256, True), (torch.bfloat16, 257, False), (torch.float16, 2049, False), (torch.float32, 4096, True)],
)
def test_flags_ride_along_only_where_their_sum_is_exact(dtype: torch.dtype, ranks: int, rides: bool) -> None:
    layout = Layout(slots(zeros(4, dtype=dtype)), "group", ranks, Dense())  # type: ignore[arg-type]
    layout.apply([0])
    assert (layout.tail_message is None) is rides
    assert layout.tail is not None and (rides or layout.tail.dtype is torch.float32)
