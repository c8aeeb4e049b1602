"""DDP's communication hooks: the bucket has torch's methods, the future says what the gradients become."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from gradweave.reduce import Bucket, CommHook
from tests.reduce.fakes import message


def finished(value: Any) -> torch.futures.Future[Any]:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(value)
    return future


def bucket() -> Bucket:
    flat = torch.arange(6.0)
    parameters = [torch.nn.Parameter(torch.zeros(2, 2)), torch.nn.Parameter(torch.zeros(2))]
    return Bucket(3, flat, [flat[:4].view(2, 2), flat[4:]], parameters, False)


def reduced(result: Any, flat: Tensor | None = None) -> Tensor:
    """The message after a hook whose future gives `result`."""
    sent = message(torch.zeros(4) if flat is None else flat)
    CommHook(lambda state, bucket: finished(result), None).start(sent, None, 2).wait()
    return sent.flat


def test_a_bucket_has_every_method_of_torchs() -> None:
    assert {name for name in dir(dist.GradBucket) if not name.startswith("_")} <= set(dir(Bucket))


def test_a_bucket_tells_its_place_its_buffer_and_its_parameters() -> None:
    given = bucket()
    assert (given.index(), given.is_last()) == (3, False)
    assert given.buffer().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert [tuple(p.shape) for p in given.parameters()] == [(2, 2), (2,)]


def test_a_buckets_gradients_are_views_of_its_buffer_in_the_parameters_shapes() -> None:
    given = bucket()
    given.buffer().mul_(10)
    assert [g.tolist() for g in given.gradients()] == [[[0.0, 10.0], [20.0, 30.0]], [40.0, 50.0]]


def test_set_buffer_replaces_what_buffer_gives() -> None:
    given, other = bucket(), torch.ones(6)
    given.set_buffer(other)
    assert given.buffer() is other


def test_the_hook_gets_its_state_and_the_undivided_message() -> None:
    seen: list[Any] = []

    def hook(state: Any, bucket: Bucket) -> torch.futures.Future[Tensor]:
        seen.append((state, bucket.index(), bucket.buffer().tolist(), bucket.is_last(), bucket.parameters()))
        return finished(bucket.buffer())

    parameters = [torch.nn.Parameter(torch.zeros(2))]
    sent = message(torch.tensor([6.0, 8.0]), index=2, is_last=False, parameters=parameters)
    CommHook(hook, "mine").start(sent, None, 2)
    assert seen == [("mine", 2, [6.0, 8.0], False, parameters)]


@pytest.mark.parametrize(
    "result",
    [torch.arange(4.0), [torch.arange(4.0)], (torch.arange(4.0),), torch.arange(4.0).view(2, 2), torch.arange(4)],
    ids=["tensor", "list", "tuple", "another shape", "another dtype"],
)
def test_what_the_future_gives_becomes_the_gradients(result: Any) -> None:
    assert reduced(result).tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_hook_that_works_in_place_gives_the_buffer_itself() -> None:
    flat = torch.ones(4)
    assert reduced(flat.mul_(3), flat).tolist() == [3.0] * 4


def test_nothing_is_put_in_place_before_somebody_waits() -> None:
    sent = message(torch.zeros(2))
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    pending = CommHook(lambda state, bucket: future, None).start(sent, None, 1)
    ends: list[int] = []
    pending.on_done(lambda: ends.append(1))
    assert ends == []
    future.set_result(torch.ones(2))
    assert ends == [1] and sent.flat.tolist() == [0.0, 0.0]
    pending.wait()
    assert sent.flat.tolist() == [1.0, 1.0]


def test_what_the_hook_raises_is_the_users_own_error() -> None:
    def hook(state: Any, bucket: Bucket) -> torch.futures.Future[Tensor]:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        CommHook(hook, None).start(message(torch.zeros(2)), None, 1)


def test_what_the_future_raises_is_raised_by_wait() -> None:
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    pending = CommHook(lambda state, bucket: future, None).start(message(torch.zeros(2)), None, 1)
    future.set_exception(ValueError("mine"))
    with pytest.raises(ValueError, match="mine"):
        pending.wait()


def test_a_hook_owns_the_division_and_carries_no_flags() -> None:
    reducer = CommHook(lambda state, bucket: finished(bucket.buffer()), None)
    assert not reducer.predivided and not reducer.carries_tail
    assert reducer.wire_dtype(torch.bfloat16) == torch.bfloat16
