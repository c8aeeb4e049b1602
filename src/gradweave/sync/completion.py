"""The end of a window: everything that has not been sent is sent, results are awaited and put in place.

never generated here, .grad None     zeros in the message; the others' sum becomes `.grad`, unless nobody had one
never generated here, .grad left     it counts as this rank's share of an earlier, common result; where such results are set
                                     aside (`Engine.sets_aside`), nothing is sent for it and it is added to the others' sum
generated                            its slot, divided if that has not happened yet
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradweave.errors import StateError
from gradweave.reduce.division import divisor_for
from gradweave.reduce.sparse import empty_like_sparse, reduce_sparse
from gradweave.sync import notices
from gradweave.sync.table import Slot

if TYPE_CHECKING:
    from gradweave.sync.engine import Engine


def adopt(engine: Engine, slot: Slot, gradient: Tensor) -> None:
    """`.grad` is not the slot's view: another hook, the user or create_graph replaced it. Bring it home."""
    if slot.sparse:
        if gradient.layout is torch.strided:
            dims = 1 if gradient.dim() else 0
            slot.param.grad = gradient.detach().to_sparse(dims)
        return
    _check_unchanged(engine, slot, gradient)
    if slot.view is None or gradient.numel() == 0:
        return
    if gradient.requires_grad:
        warnings.warn(
            "backward(create_graph=True): the reduced gradients carry no graph; differentiate twice with "
            "torch.autograd.grad(loss, inputs, create_graph=True) before backward()",
            stacklevel=2,
        )
    with torch.no_grad():
        dense = gradient.to_dense() if gradient.layout is not torch.strided else gradient
        slot.view.copy_(dense)
    slot.divided = False
    slot.param.grad = slot.view.detach()


def _check_unchanged(engine: Engine, slot: Slot, gradient: Tensor) -> None:
    view = slot.view
    if view is None or (gradient.shape == view.shape and gradient.dtype == view.dtype and gradient.device == view.device):
        return
    raise engine.error(
        f"parameter {slot.name!r} was {tuple(view.shape)} {view.dtype} on {view.device} when wrapped, "
        f"its gradient is {tuple(gradient.shape)} {gradient.dtype} on {gradient.device}",
        rule="a wrapped parameter keeps shape, dtype and device",
        fix="move or convert the model before wrapping it, or wrap it anew",
    )


def note_versions(engine: Engine) -> None:
    """Backward has ended: from now on a write into a gradient is somebody else's."""
    if engine.launcher is not None:
        engine.launcher.note_versions()
        return
    for slot in engine.table.slots:
        slot.version = -1 if slot.param.grad is None else slot.param.grad._version


def changed_since_first_backward(engine: Engine) -> bool:
    """Whether a gradient of the first window, which lies in no buffer yet, was written into after its backward."""
    slots = [slot for slot in engine.table.slots if slot.used and slot.param.grad is not None and slot.version >= 0]
    return any(slot.param.grad is not None and slot.param.grad._version != slot.version for slot in slots)


def check_untouched(engine: Engine) -> None:
    """Raise StateError when a gradient was changed or replaced after backward, while its reduction may be under way."""
    assert engine.launcher is not None and engine.layout is not None
    replaced = any(
        slot.launched and slot.used and not slot.sparse and (slot.param.grad is None or slot.param.grad.data_ptr() != slot.ptr)
        for slot in engine.layout.order
    )
    if replaced or engine.launcher.touched():
        raise touched(engine)


def send_rest(engine: Engine) -> None:
    """Prepare what has not been sent and send it, in order."""
    launcher = engine.launcher
    assert launcher is not None and engine.layout is not None
    for segment in engine.layout.segments[launcher.next :]:
        for slot in engine.layout.order[segment.first : segment.last + 1]:
            _prepare(engine, slot)
        send_next(engine)


def touched(engine: Engine) -> StateError:
    """The error for gradients that somebody changed after backward and before their reduction had finished."""
    return engine.error(
        "gradients were changed while their reduction was under way",
        rule="between backward() and synchronize() gradients belong to the reduction",
        fix="call optimizer.synchronize() before clipping, scaling or zeroing gradients",
    )


def send_next(engine: Engine) -> None:
    """Send the next segment; the last one takes the flags along."""
    launcher, layout = engine.launcher, engine.layout
    assert launcher is not None and layout is not None and layout.tail is not None
    if launcher.next == len(layout.segments) - 1:
        flags = [1.0 if slot.used else 0.0 for slot in layout.order]
        layout.tail.copy_(torch.tensor([*flags, *notices.mine(engine)]))
    try:
        launcher.start_next(engine.divisor)
    except Exception as error:
        engine.broken = error
        raise


def _prepare(engine: Engine, slot: Slot) -> None:
    """Make the slot hold what this rank contributes."""
    view, gradient = slot.view, slot.param.grad
    if slot.used and gradient is None:
        slot.used = False
    if slot.sparse or view is None:
        return
    if not slot.used and gradient is not None and gradient.data_ptr() != slot.ptr:
        slot.used = True  # set by the user without a backward: this rank's gradient like any other
    if not slot.used:
        _prepare_unused(engine, slot, view, gradient)
    else:
        if gradient is not None and gradient.data_ptr() != slot.ptr:
            adopt(engine, slot, gradient)
        if not slot.divided and engine.reducer.predivided and engine.divisor != 1:
            view.div_(divisor_for(engine.divisor, view))
            slot.divided = True


def _prepare_unused(engine: Engine, slot: Slot, view: Tensor, gradient: Tensor | None) -> None:
    if gradient is None or gradient.layout is not torch.strided:
        view.zero_()
        return
    _check_unchanged(engine, slot, gradient)
    slot.leftover = gradient.clone()
    if engine.sets_aside:
        view.zero_()
        return
    view.div_(divisor_for(engine.group.size, view))
    if not engine.reducer.predivided:
        view.mul_(engine.divisor)


def wait_and_restore(engine: Engine, keep: bool) -> None:
    """Wait for all messages; then see to the gradients that this rank did not generate."""
    layout, launcher = engine.layout, engine.launcher
    assert layout is not None and launcher is not None and layout.tail is not None
    launcher.wait_all()
    if engine.sets_aside:
        _add_leftovers(layout.order)
    unused = [slot for slot in layout.order if not slot.used]
    sparse = [slot for slot in layout.order if slot.sparse]
    watched = engine.options.finish_in_backward and layout.tail.device.type == "cpu"
    if not unused and not sparse and not watched:
        return
    counts = layout.tail.tolist()
    seen = [flag > 0 for flag in counts]
    if engine.options.finish_in_backward:
        taking_part = abs(counts[notices.TAKING_PART])
        engine.incomplete = [slot.name for slot in layout.order if counts[slot.pos] < taking_part]
    for slot in unused:
        if not slot.sparse:
            _restore(engine, slot, seen[slot.pos], keep)
    for slot in sparse:
        if seen[slot.pos]:
            _reduce_sparse(engine, slot, keep)


def _add_leftovers(slots: Sequence[Slot]) -> None:
    """What was in `.grad` before this window, kept apart while its mean was made."""
    for slot in slots:
        if slot.used and slot.leftover is not None and slot.view is not None:
            slot.view.add_(slot.leftover)
            slot.leftover = None


def _rounding(engine: Engine, slot: Slot) -> float:
    """Relative error that the mean of equal values may have after the reduction."""
    if not engine.reducer.carries_tail:
        return 0.05  # a hook may be lossy
    dtypes = (slot.dtype, engine.reducer.wire_dtype(slot.dtype))
    return 8 * engine.group.size * max(torch.finfo(dtype).eps for dtype in dtypes)


def _restore(engine: Engine, slot: Slot, used_elsewhere: bool, keep: bool) -> None:
    """See to a gradient that this rank did not generate: the others' sum, or what was there, bit for bit.

    What was there is the common result of an earlier step; where it differs between ranks, the user wrote into it, and the mean
    that has just been made is the common value.
    """
    view, leftover = slot.view, slot.leftover
    assert view is not None
    if used_elsewhere:
        if engine.sets_aside and leftover is not None:
            view.add_(leftover)
        if keep:
            slot.param.grad = view.detach()
    elif leftover is not None and (
        engine.sets_aside or torch.allclose(view, leftover, rtol=_rounding(engine, slot), atol=0.0, equal_nan=True)
    ):
        view.copy_(leftover)
    slot.leftover = None


def _reduce_sparse(engine: Engine, slot: Slot, keep: bool) -> None:
    gradient, divisor = slot.param.grad, engine.divisor
    if gradient is not None and not slot.used and engine.sets_aside:
        slot.leftover, gradient = gradient, None
    elif gradient is not None and not slot.used:
        gradient = gradient * (divisor / engine.group.size)
    if gradient is None:
        gradient = empty_like_sparse(slot.param, 1)
    assert engine.layout is not None
    segment = engine.layout.segments[slot.bucket]
    token = engine.recorder.launched(segment, slot.info.size_bytes, slot.info.dtype, kind="all_gather")
    with engine.watch.naming(f"all_gather of the sparse gradient {slot.name}"):
        reduced = reduce_sparse(gradient, divisor, engine.pg, engine.reducer.wire_dtype(slot.dtype))
    engine.recorder.finished(token)
    if slot.leftover is not None:
        reduced, slot.leftover = reduced + slot.leftover, None
    if keep or slot.used:
        slot.param.grad = reduced
