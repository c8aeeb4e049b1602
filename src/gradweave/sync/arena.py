"""Flat buffers: one per device and dtype, all gradients in order of generation, so that a segment is a slice.

    [g0 | g1 | g2 | ... | g(n-1) | flags]           messages are slices; the last one takes the flags along

Because only the boundaries of the slices depend on the plan, changing a plan moves no data and resizes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradweave.reduce.base import REAL_OF
from gradweave.sync.table import Slot

Key = tuple[torch.device, torch.dtype]


def arena_key(slot: Slot) -> Key:
    """Which arena a gradient lies in."""
    return slot.param.device, REAL_OF.get(slot.dtype, slot.dtype)


class Arena:
    """The flat buffer of one device and (real) dtype.

    Args:
        slots: dense slots of this arena in index order.
        tail_elems: room for the engine's flags behind the last gradient.
    """

    def __init__(self, key: Key, slots: Sequence[Slot], tail_elems: int) -> None:
        self.key, self.slots, self.tail_elems = key, list(slots), tail_elems
        self.offsets: list[int] = []
        total = 0
        for place, slot in enumerate(self.slots):
            slot.place = place
            total += total % 2 if slot.dtype.is_complex else 0  # a complex view starts at an even offset
            self.offsets.append(total)
            total += _elems(slot)
        self.gradient_elems = total
        self.allocate()

    def allocate(self) -> None:
        """Take fresh memory and point every slot at it."""
        device, dtype = self.key
        self.flat = torch.zeros(self.gradient_elems + self.tail_elems, dtype=dtype, device=device)
        for slot, offset in zip(self.slots, self.offsets, strict=True):
            kept = slot.param.grad
            lay_here = kept is not None and slot.view is not None and kept.numel() > 0 and kept.data_ptr() == slot.ptr
            slot.view = _slot_view(self.flat, slot, offset)
            slot.ptr = slot.view.data_ptr()
            if lay_here and kept is not None:
                with torch.no_grad():
                    slot.view.copy_(kept)
                slot.param.grad = slot.view.detach()
        self._idle_uses = self._uses()

    @property
    def tail(self) -> Tensor:
        """The flags, behind the gradients."""
        return self.flat[self.gradient_elems :]

    def end_of(self, last: int) -> int:
        """Offset behind slot number `last` of this arena."""
        return self.offsets[last] + _elems(self.slots[last])

    def held_elsewhere(self) -> bool:
        """Whether somebody holds gradients of an earlier iteration, so that writing here would change them.

        Gradients are views of this buffer; a view that is not some parameter's present `.grad` is in the user's hands.
        """
        ours = sum(1 for slot in self.slots if slot.param.grad is not None and slot.param.grad.data_ptr() == slot.ptr)
        return self._uses() > self._idle_uses + ours

    def rebase(self) -> None:
        """Count today's views as ours (after messages were cut from the buffer)."""
        self._idle_uses = self._uses()

    def _uses(self) -> int:
        return int(torch._C._storage_Use_Count(self.flat.untyped_storage()._cdata))


def _elems(slot: Slot) -> int:
    """Real elements of a slot."""
    return slot.param.numel() * (2 if slot.dtype.is_complex else 1)


def _slot_view(flat: Tensor, slot: Slot, offset: int) -> Tensor:
    """The slot's part of the buffer, in the parameter's shape, with its strides where they are dense."""
    param = slot.param
    part = flat[offset : offset + _elems(slot)]
    if slot.dtype.is_complex:
        part = torch.view_as_complex(part.view(-1, 2))
    if param.is_contiguous() or not _is_dense(param):
        return part.view(param.shape)
    return part.as_strided(param.shape, param.stride(), part.storage_offset())


def _is_dense(param: Tensor) -> bool:
    """Whether the elements fill their memory without gaps or overlaps, in any order of dims (channels-last, transposed)."""
    expected = 1
    for stride, dim in sorted((stride, dim) for stride, dim in zip(param.stride(), param.shape, strict=True) if dim != 1):
        if stride != expected:
            return False
        expected *= dim
    return True
