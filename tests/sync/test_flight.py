"""Reductions under way: started in the plan's order, finished in it, timed by their own end, guarded against changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradweave.model import Segment
from gradweave.reduce import Cast, CommHook, Dense
from gradweave.sync.flight import HostFlight, Launcher, describe
from gradweave.sync.layout import Layout
from tests.reduce.fakes import FakePending, FakeReducer, message
from tests.sync.builders import FakeRecorder, slots, zeros


class Watch:
    """Waits without waiting, and notes for what."""

    def __init__(self) -> None:
        self.places: list[str] = []
        self.waits: list[str] = []

    def at(self, place: str) -> None:
        self.places.append(place)

    def wait(self, ended: Callable[[float], bool], finish: Callable[[], None], what: str) -> None:
        self.waits.append(what)
        finish()

    def failure(self, what: str, cause: str) -> Exception:
        return ArithmeticError(f"{what}: {cause}")


class Group:
    """Doubles what it reduces."""

    def __init__(self) -> None:
        self.sent: list[torch.Tensor] = []

    def allreduce(self, tensors: list[torch.Tensor]) -> Any:
        self.sent.append(tensors[0])
        work = FakePending(lambda: tensors[0].mul_(2))
        work.get_future = torch.futures.Future  # type: ignore[attr-defined]
        return work


class Flying:
    """A launcher with everything around it."""

    def __init__(self, *tensors: torch.Tensor, boundaries: list[int], reducer: Any = None) -> None:
        self.reducer, self.watch, self.recorder = reducer or FakeReducer(), Watch(), FakeRecorder()
        self.group = Group()
        self.layout = Layout(slots(*tensors), self.group, 2, self.reducer)  # type: ignore[arg-type]
        self.layout.apply(boundaries)
        self.launcher = Launcher(self.layout, self.recorder, self.watch, None)  # type: ignore[arg-type]


@pytest.fixture
def three() -> Flying:
    return Flying(zeros(2), zeros(3), zeros(4), boundaries=[0, 2])


def test_segments_start_in_the_plans_order(three: Flying) -> None:
    three.launcher.start_next(2)
    assert three.launcher.started and not three.launcher.all_started
    assert [slot.launched for slot in three.layout.order] == [True, False, False]
    three.launcher.start_next(2)
    assert three.launcher.all_started and all(slot.launched for slot in three.layout.order)
    assert [sent.numel() for sent in three.reducer.sent] == [2, 7 + three.layout.tail_elems]
    assert three.reducer.divisors == [2, 2] and three.reducer.state == "state 2"


def test_a_window_begins_with_nothing_started_and_every_gradient_missing(three: Flying) -> None:
    assert three.launcher.missing == [1, 2] and three.launcher.next == 0 and not three.launcher.started
    three.launcher.start_next(2)
    three.launcher.missing[1] = 0
    three.launcher.reset()
    assert three.launcher.missing == [1, 2] and not three.launcher.started


def test_what_is_done_has_a_name(three: Flying) -> None:
    three.launcher.start_next(2)
    three.launcher.start_next(2)
    assert three.watch.places == ["segment 0 (gradients 0..0)", "segment 1 (gradients 1..2)"]


def test_all_are_finished_in_order_and_forgotten(three: Flying) -> None:
    three.launcher.start_next(2)
    three.launcher.start_next(2)
    three.launcher.wait_all()
    assert three.watch.waits == [describe(segment) for segment in three.layout.segments]
    assert [pending.waits for pending in three.reducer.pendings] == [1, 1]
    three.launcher.wait_all()
    assert [pending.waits for pending in three.reducer.pendings] == [1, 1]


def test_a_segment_of_two_dtypes_is_two_launches() -> None:
    both = Flying(zeros(2), zeros(3, dtype=torch.float64), boundaries=[1])
    both.launcher.start_next(2)
    assert both.recorder.launches == [(0, 8, "float32"), (0, 24, "float64")]


def test_recorded_bytes_are_those_on_the_wire_without_the_flags() -> None:
    half = Flying(zeros(5, dtype=torch.bfloat16), boundaries=[0], reducer=Cast(FakeReducer()))
    half.launcher.start_next(2)
    assert half.recorder.launches == [(0, 20, "float32")]


def test_the_flags_follow_the_last_segment_where_they_may_not_ride() -> None:
    apart = Flying(zeros(2), zeros(3), boundaries=[0, 1], reducer=FakeReducer(carries_tail=False))
    apart.launcher.start_next(2)
    assert apart.group.sent == []
    apart.launcher.start_next(2)
    apart.layout.tail.fill_(1)
    assert [sent.numel() for sent in apart.group.sent] == [apart.layout.tail_elems]
    apart.launcher.wait_all()
    assert (
        apart.watch.waits[-1] == "all_reduce of the used flags"
        and apart.layout.tail.tolist() == [2.0] * apart.layout.tail_elems
    )


class Refuses(FakeReducer):
    """Cannot start."""

    def start(self, message: Any, state: Any, divisor: Any) -> FakePending:
        raise RuntimeError("connection closed")


def test_a_collective_that_does_not_start_is_the_watchs_error() -> None:
    broken = Flying(zeros(2), boundaries=[0], reducer=Refuses())
    with pytest.raises(ArithmeticError, match="all_reduce of segment 0 .*: connection closed"):
        broken.launcher.start_next(2)


def test_a_users_hook_that_raises_is_the_users_error() -> None:
    def hook(state: Any, bucket: Any) -> Any:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="^mine$"):
        Flying(zeros(2), boundaries=[0], reducer=CommHook(hook, None)).launcher.start_next(2)


class TestTouched:
    """Whether somebody wrote into the buffers after backward had ended."""

    def test_nobody_did_where_backward_has_not_ended(self, three: Flying) -> None:
        three.layout.order[0].view.fill_(1)
        assert not three.launcher.touched()

    def test_a_write_is_noticed_through_any_view(self, three: Flying) -> None:
        gradient = three.layout.order[1].view.detach()
        three.launcher.note_versions()
        assert not three.launcher.touched()
        gradient.mul_(3)
        assert three.launcher.touched()

    def test_a_write_into_one_of_several_buffers_is_noticed(self) -> None:
        both = Flying(zeros(2), zeros(3, dtype=torch.float64), boundaries=[1])
        both.launcher.note_versions()
        both.layout.order[0].view.fill_(1)
        assert both.launcher.touched()

    def test_the_next_backward_may_write(self, three: Flying) -> None:
        three.launcher.note_versions()
        three.launcher.forget_versions()
        three.layout.order[0].view.fill_(1)
        assert not three.launcher.touched()

    def test_a_new_window_knows_of_no_write(self, three: Flying) -> None:
        three.launcher.note_versions()
        three.layout.order[0].view.fill_(1)
        three.launcher.reset()
        assert not three.launcher.touched()


def test_the_end_is_recorded_when_the_backend_reports_it_and_not_when_somebody_waits() -> None:
    pending, recorder, watch = FakePending(lambda: None), FakeRecorder(), Watch()
    flight = HostFlight(message(torch.zeros(2)), pending, recorder, "token")  # type: ignore[arg-type]
    assert recorder.ends == []
    pending.callbacks[0]()
    assert recorder.ends == ["token"] and pending.waits == 0
    flight.finish(watch)  # type: ignore[arg-type]
    assert recorder.ends == ["token"] and pending.waits == 1


@pytest.mark.usefixtures("alone")
def test_a_real_all_reduce_reports_its_end() -> None:
    import torch.distributed as dist

    from gradweave.sync.watch import Watch as RealWatch
    from gradweave.world.groups import as_group

    sent, recorder = message(torch.ones(3), group=dist.group.WORLD), FakeRecorder()
    flight = HostFlight(sent, Dense().start(sent, None, 1), recorder, "token")  # type: ignore[arg-type]
    flight.finish(RealWatch(as_group("world"), "optimizer", "key", 5.0))
    assert recorder.ends == ["token"] and sent.flat.tolist() == [1.0] * 3


def test_a_segments_collective_is_described_by_index_gradients_and_bytes() -> None:
    assert describe(Segment(2, 5, 9, 640)) == "all_reduce of segment 2 (gradients 5..9, 640 bytes)"
