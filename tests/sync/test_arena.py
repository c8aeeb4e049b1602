"""Flat buffers: where each gradient lies, in whose strides, and who else holds it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gradweave.sync.arena import Arena, arena_key
from tests.sync.builders import slots, zeros

COMPLEX = torch.complex64


def arena(*tensors: Tensor, tail_elems: int = 0) -> Arena:
    made = slots(*tensors)
    return Arena(arena_key(made[0]), made, tail_elems)


def written(tensor: Tensor) -> Arena:
    """An arena whose one gradient was copied from a tensor of its parameter's kind."""
    made = arena(tensor)
    view = made.slots[0].view
    assert view is not None
    view.copy_(tensor)
    return made


def counting(*shape: int) -> Tensor:
    return torch.arange(float(torch.Size(shape).numel())).view(shape)


def test_gradients_lie_one_behind_the_other_in_order() -> None:
    made = arena(zeros(2, 3), zeros(4), zeros(1))
    assert made.offsets == [0, 6, 10] and made.gradient_elems == 11
    assert [made.end_of(place) for place in range(3)] == [6, 10, 11]
    assert [slot.place for slot in made.slots] == [0, 1, 2]


def test_the_flags_lie_behind_the_last_gradient() -> None:
    made = arena(zeros(3), tail_elems=4)
    made.tail.fill_(1)
    assert made.flat.tolist() == [0.0] * 3 + [1.0] * 4


def test_a_scalar_takes_one_element_and_an_empty_tensor_none() -> None:
    made = arena(zeros(), zeros(0, 5), zeros(2))
    assert made.offsets == [0, 1, 1] and made.gradient_elems == 3
    assert [tuple(slot.view.shape) for slot in made.slots] == [(), (0, 5), (2,)]


def test_a_complex_gradient_starts_at_an_even_offset() -> None:
    made = arena(zeros(3), zeros(2, dtype=COMPLEX), zeros(1), zeros(1, dtype=COMPLEX))
    assert made.offsets == [0, 4, 8, 10] and made.gradient_elems == 12
    assert [made.end_of(place) for place in range(4)] == [3, 8, 9, 12]


def test_a_complex_gradient_is_a_view_of_pairs_of_reals() -> None:
    made = written(torch.tensor([1 + 2j, 3 + 4j], dtype=COMPLEX))
    assert made.flat.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert made.slots[0].view.dtype == COMPLEX


@pytest.mark.parametrize(
    ("dtype", "real"),
    [(torch.float32, torch.float32), (COMPLEX, torch.float32), (torch.complex128, torch.float64), (torch.bfloat16,) * 2],
)
def test_complex_gradients_share_the_arena_of_their_reals(dtype: torch.dtype, real: torch.dtype) -> None:
    assert arena_key(slots(zeros(2, dtype=dtype))[0]) == (torch.device("cpu"), real)


@pytest.mark.parametrize(
    "param",
    [
        counting(2, 3, 4, 5).to(memory_format=torch.channels_last),
        counting(2, 3).t(),
        counting(2, 3, 4).permute(2, 0, 1),
        counting(1, 3, 2).transpose(0, 2),
        counting(6).as_strided((2, 1, 3), (1, 50, 2)),
        counting(2, 3).t().to(COMPLEX),
    ],
    ids=["channels-last", "transposed", "permuted", "with a dim of one", "with a dim of one and any stride", "complex"],
)
def test_a_dense_parameters_strides_are_kept(param: Tensor) -> None:
    made = written(param)
    view = made.slots[0].view
    assert not view.is_contiguous() and view.stride() == param.stride()
    assert torch.equal(view, param)


def test_gradients_with_strides_of_their_own_lie_behind_others_too() -> None:
    made = arena(zeros(3), counting(2, 3).t())
    made.slots[1].view.copy_(counting(2, 3).t())
    assert made.flat.tolist() == [0.0] * 3 + [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("param", [zeros(4, 4)[:, :2], zeros(4, 1).expand(4, 3)], ids=["with gaps", "overlapping"])
def test_a_parameter_that_does_not_fill_its_memory_gets_a_contiguous_gradient(param: Tensor) -> None:
    made = written(param)
    view = made.slots[0].view
    assert view.is_contiguous() and view.shape == param.shape and made.gradient_elems == param.numel()


@given(st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=3), st.booleans()), min_size=1, max_size=8))
def test_no_two_gradients_overlap(kinds: list[tuple[list[int], bool]]) -> None:
    made = arena(*(zeros(*shape, dtype=COMPLEX if is_complex else torch.float32) for shape, is_complex in kinds))
    for nth, slot in enumerate(made.slots, start=1):
        slot.view.fill_(complex(nth, nth) if slot.dtype.is_complex else nth)
    for nth, slot in enumerate(made.slots, start=1):
        elems = slot.param.numel() * (2 if slot.dtype.is_complex else 1)
        assert int((made.flat == nth).sum()) == elems


def test_fresh_memory_leaves_the_old_values_to_those_who_hold_them() -> None:
    made = arena(zeros(2))
    old, old_ptr = made.slots[0].view, made.slots[0].ptr
    old.fill_(7)
    made.allocate()
    assert made.slots[0].ptr == made.slots[0].view.data_ptr() != old_ptr
    assert old.tolist() == [7.0, 7.0] and made.slots[0].view.tolist() == [0.0, 0.0]


class TestHeldElsewhere:
    """Whether writing into the buffer would change a gradient in the user's hands."""

    @pytest.fixture
    def made(self) -> Arena:
        """Two gradients, both in their place."""
        made = arena(zeros(2), zeros(3))
        for slot in made.slots:
            slot.param.grad = slot.view.detach()
        return made

    def test_gradients_in_their_place_are_nobodys(self, made: Arena) -> None:
        assert not made.held_elsewhere()

    def test_gradients_set_to_none_are_nobodys(self, made: Arena) -> None:
        for slot in made.slots:
            slot.param.grad = None
        assert not made.held_elsewhere()

    def test_a_kept_gradient_is_noticed_until_it_is_let_go(self, made: Arena) -> None:
        kept = [made.slots[0].param.grad]
        made.slots[0].param.grad = None
        assert made.held_elsewhere()
        kept.clear()
        assert not made.held_elsewhere()

    def test_a_view_of_a_gradient_is_noticed(self, made: Arena) -> None:
        kept = [made.slots[1].param.grad[1:]]
        assert made.held_elsewhere()
        kept.clear()
        assert not made.held_elsewhere()

    def test_a_clone_is_its_own(self, made: Arena) -> None:
        kept = made.slots[0].param.grad.clone()
        made.slots[0].param.grad = None
        assert not made.held_elsewhere() and kept.tolist() == [0.0, 0.0]

    def test_a_gradient_of_other_memory_does_not_hide_a_kept_one(self, made: Arena) -> None:
        kept = made.slots[0].param.grad
        made.slots[0].param.grad = torch.ones(2)
        assert made.held_elsewhere() and kept is not None

    def test_fresh_memory_is_nobodys(self, made: Arena) -> None:
        kept = made.slots[0].param.grad
        made.allocate()
        assert not made.held_elsewhere() and kept is not None

    def test_views_counted_by_rebase_are_ours(self, made: Arena) -> None:
        for slot in made.slots:
            slot.param.grad = None
        message = made.flat[:2]
        assert made.held_elsewhere()
        made.rebase()
        assert not made.held_elsewhere() and message.numel() == 2
