"""Reduction in another dtype: cast, divide there, sum, cast back; the flags stay whole numbers."""

from __future__ import annotations

import pytest
import torch

from gradweave.reduce import Cast
from tests.reduce.fakes import FakeReducer, message

THIRDS = [1.0, 2.0, 5.0]


@pytest.mark.parametrize(
    ("asked", "dtype", "wire"),
    [
        (None, torch.float16, torch.float32),
        (None, torch.bfloat16, torch.float32),
        (None, torch.complex32, torch.float32),
        (None, torch.float32, torch.float32),
        (None, torch.float64, torch.float64),
        (None, torch.complex64, torch.float32),
        (None, torch.complex128, torch.float64),
        (torch.bfloat16, torch.float32, torch.bfloat16),
        (torch.float64, torch.float16, torch.float64),
    ],
)
def test_wire_dtype(asked: torch.dtype | None, dtype: torch.dtype, wire: torch.dtype) -> None:
    assert Cast(FakeReducer(), asked).wire_dtype(dtype) == wire


def test_half_precision_is_divided_in_float32() -> None:
    inner = FakeReducer()
    sent = message(torch.tensor(THIRDS, dtype=torch.bfloat16))
    cast = Cast(inner)
    cast.start(sent, cast.init(sent), 3)
    assert torch.equal(inner.sent[0], torch.tensor(THIRDS) / 3)
    assert not torch.equal(inner.sent[0], (torch.tensor(THIRDS, dtype=torch.bfloat16) / 3).float())


def test_float32_travels_in_the_dtype_that_was_asked_for() -> None:
    inner = FakeReducer()
    sent = message(torch.tensor(THIRDS))
    cast = Cast(inner, torch.bfloat16)
    cast.start(sent, cast.init(sent), 3)
    assert torch.equal(inner.sent[0], torch.tensor(THIRDS, dtype=torch.bfloat16) / 3)


def test_the_tail_is_not_divided() -> None:
    inner = FakeReducer()
    sent = message(torch.tensor([6.0, 1.0, 1.0], dtype=torch.float16), tail_elems=2)
    cast = Cast(inner)
    cast.start(sent, cast.init(sent), 3).wait()
    assert inner.sent[0].tolist() == [2.0, 1.0, 1.0]
    assert sent.flat.tolist() == [4.0, 2.0, 2.0]


def test_an_inner_reducer_that_divides_itself_gets_gradients_undivided() -> None:
    inner = FakeReducer(predivided=False)
    sent = message(torch.tensor([6.0], dtype=torch.float16))
    cast = Cast(inner)
    cast.start(sent, cast.init(sent), 3)
    assert inner.sent[0].tolist() == [6.0] and inner.divisors == [3]


def test_a_divisor_may_be_a_tensor() -> None:
    inner = FakeReducer()
    sent = message(torch.tensor([6.0], dtype=torch.float16))
    cast = Cast(inner)
    cast.start(sent, cast.init(sent), torch.tensor(4.0, dtype=torch.float64))
    assert inner.sent[0].tolist() == [1.5] and inner.sent[0].dtype == torch.float32


def test_the_result_comes_back_when_somebody_waits_and_not_before() -> None:
    sent = message(torch.tensor([6.0], dtype=torch.float16))
    cast = Cast(FakeReducer())
    pending = cast.start(sent, cast.init(sent), 3)
    assert sent.flat.tolist() == [6.0]
    pending.wait()
    assert sent.flat.tolist() == [4.0] and sent.flat.dtype == torch.float16


def test_the_wire_buffer_is_kept_from_one_iteration_to_the_next() -> None:
    inner = FakeReducer()
    sent = message(torch.tensor([6.0], dtype=torch.float16))
    cast = Cast(inner)
    state = cast.init(sent)
    kept = state.wire.flat.data_ptr()
    for _ in range(2):
        sent.flat.fill_(6)
        cast.start(sent, state, 3).wait()
        assert sent.flat.tolist() == [4.0]
    assert state.wire.flat.data_ptr() == kept and len(inner.inits) == 1


def test_a_message_in_the_reduction_dtype_already_needs_no_buffer() -> None:
    inner = FakeReducer()
    sent = message(torch.tensor([6.0]))
    cast = Cast(inner)
    state = cast.init(sent)
    assert state.wire is sent
    cast.start(sent, state, 3).wait()
    assert sent.flat.tolist() == [4.0]


def test_the_inner_reducer_gets_its_own_state_made_for_the_wire() -> None:
    inner = FakeReducer()
    sent = message(torch.tensor([6.0], dtype=torch.float16))
    cast = Cast(inner)
    cast.start(sent, cast.init(sent), 1)
    assert inner.inits[0].flat.dtype == torch.float32 and inner.state == "state 1"


@pytest.mark.parametrize("carries", [True, False])
def test_the_tail_rides_if_the_inner_reducer_lets_it(carries: bool) -> None:
    assert Cast(FakeReducer(carries_tail=carries)).carries_tail is carries


def test_it_divides_itself_so_the_engine_does_not() -> None:
    assert not Cast(FakeReducer()).predivided


def test_the_end_is_that_of_the_collective() -> None:
    inner, ends = FakeReducer(), []
    sent = message(torch.tensor([6.0], dtype=torch.float16))
    cast = Cast(inner)
    cast.start(sent, cast.init(sent), 1).on_done(lambda: ends.append("end"))
    inner.pendings[0].callbacks[0]()
    assert ends == ["end"]
