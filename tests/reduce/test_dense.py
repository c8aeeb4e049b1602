"""Dense reduction: one all-reduce in place, nothing else."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist

from gradweave.reduce import Dense
from gradweave.reduce.dense import WorkPending
from tests.reduce.fakes import FakePending, message


class CountingGroup:
    """A process group that doubles what it reduces."""

    def __init__(self) -> None:
        self.calls: list[list[torch.Tensor]] = []

    def allreduce(self, tensors: list[torch.Tensor]) -> FakePending:
        self.calls.append(tensors)
        return FakePending(lambda: tensors[0].mul_(2))


def test_one_all_reduce_carries_the_whole_message_tail_included() -> None:
    group = CountingGroup()
    sent = message(torch.ones(5), tail_elems=2, group=group)
    Dense().start(sent, None, 2)
    assert len(group.calls) == 1 and len(group.calls[0]) == 1 and group.calls[0][0] is sent.flat


def test_the_sum_lands_in_the_message_undivided() -> None:
    sent = message(torch.tensor([1.0, 3.0]), group=CountingGroup())
    Dense().start(sent, Dense().init(sent), 7).wait()
    assert sent.flat.tolist() == [2.0, 6.0]


def test_it_asks_for_divided_gradients_and_takes_the_flags_along() -> None:
    assert Dense().predivided and Dense().carries_tail


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradients_travel_in_their_own_dtype(dtype: torch.dtype) -> None:
    assert Dense().wire_dtype(dtype) == dtype


@pytest.mark.usefixtures("alone")
def test_a_world_of_one_keeps_its_values_and_reports_the_end_once() -> None:
    sent, ended, calls = message(torch.tensor([1.0, -2.0]), group=dist.group.WORLD), threading.Event(), []
    pending = Dense().start(sent, None, 1)
    pending.on_done(lambda: (calls.append(1), ended.set()))
    pending.wait()
    assert ended.wait(5) and calls == [1]
    assert sent.flat.tolist() == [1.0, -2.0]


def test_what_the_collective_raises_is_raised_by_wait() -> None:
    def broken() -> None:
        raise RuntimeError("connection closed")

    with pytest.raises(RuntimeError, match="connection closed"):
        WorkPending(FakePending(broken)).wait()  # type: ignore[arg-type]


def test_message_tells_gradients_from_tail() -> None:
    sent = message(torch.arange(5.0), tail_elems=2)
    assert sent.gradients.tolist() == [0.0, 1.0, 2.0] and sent.size_bytes == 20
    assert sent.gradients.data_ptr() == sent.flat.data_ptr()
