"""The hot path: what happens when autograd hands a gradient to its parameter.

    before   .grad is None    gradient / divisor -> its slot, in one pass; a view of the slot becomes `.grad`, without a copy
             .grad is there   torch adds in place; the sum is divided afterwards, in the last micro-batch; so it is where the
                              user has hooks of his own on the accumulated gradient, which see it undivided
    after    the slot is complete; when it completes the next segment in order, that segment is sent

The hook before sits on the gradient accumulator and not on the tensor, so that `torch.autograd.grad` is left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradweave.errors import StateError
from gradweave.reduce.division import divisor_for
from gradweave.sync import completion
from gradweave.sync.backward import current_task
from gradweave.sync.table import Slot

if TYPE_CHECKING:
    from gradweave.sync.engine import Engine

Gradients = tuple[Tensor | None, ...]


def before(engine: Engine, slot: Slot, gradients: Gradients) -> Gradients | None:
    """Put the gradient into its slot, divided if this is the last micro-batch, and hand a view of the slot on.

    Returns:
        What takes the gradient's place; None leaves it as it is.
    """
    if engine.tracker.task != current_task():
        engine.tracker.see()
    if slot.launched:
        raise _late(engine, slot)
    gradient, view = gradients[0], slot.view
    if gradient is None:
        return None
    if engine.sets_aside and not slot.used:
        _set_aside(slot)
    foreign = view is None or gradient.layout is not torch.strided or gradient.dtype != slot.dtype
    if view is None or foreign or torch.is_grad_enabled():
        return _weighted(engine, gradient)
    if slot.param.grad is not None:
        return _into_existing(engine, slot, gradient)
    if engine.options.weight is not None and engine.weight_now == 0:
        view.zero_()  # not a product: a mean over no tokens is NaN
    elif engine.options.weight is not None:
        torch.mul(gradient, engine.weight_now, out=view)
    elif engine.divides_now and not slot.hooked and slot.fires + 1 >= slot.expected:
        torch.div(gradient, divisor_for(engine.divide_by, view), out=view)
        slot.divided = True
    else:
        view.copy_(gradient)
    return (view.detach(),)


def _set_aside(slot: Slot) -> None:
    """Keep what an earlier, already reduced window left in `.grad` apart; it is added to the new mean.

    Only a plain average of one micro-batch may simply go on adding: the mean of equal values is that value.
    """
    left = slot.param.grad
    if left is not None and left.layout is torch.sparse_coo:
        slot.leftover, slot.param.grad = left.detach(), None
    elif left is not None and left.layout is torch.strided:
        with torch.no_grad():
            slot.leftover = left.detach().clone()
            left.detach().zero_()


def _into_existing(engine: Engine, slot: Slot, gradient: Tensor) -> Gradients | None:
    """Torch will add to `.grad`: make the new part fit what is there."""
    if slot.divided:
        scale = engine.weight_now if engine.options.weight is not None else 1
        return (gradient.mul(scale).div_(divisor_for(engine.divide_by, gradient)),)
    return _weighted(engine, gradient)


def _weighted(engine: Engine, gradient: Tensor) -> Gradients | None:
    if engine.options.weight is None:
        return None
    return (gradient * engine.weight_now if engine.weight_now else torch.zeros_like(gradient),)


def after(engine: Engine, slot: Slot, param: torch.nn.Parameter) -> None:
    """`.grad` holds the gradient: mark it ready, and send its segment when it is complete and next in order."""
    gradient = param.grad
    slot.fires += 1
    slot.used = True
    if engine.recorder.enabled:
        engine.recorder.ready[slot.pos if slot.pos >= 0 else slot.pid] = engine.recorder.now()
    if engine.lane is not None:
        engine.lane.saw_gradient()
    if engine.layout is None or gradient is None:
        engine.sequence += 1
        slot.sequence = engine.sequence
        return
    if slot.sparse or gradient.data_ptr() != slot.ptr:
        completion.adopt(engine, slot, gradient)
    if not engine.dividing or slot.fires < slot.expected or slot.ready:
        return
    if engine.divides_now and not slot.divided and slot.view is not None and not slot.sparse:
        slot.view.div_(divisor_for(engine.divide_by, slot.view))
        slot.divided = True
    _mark_ready(engine, slot)


def _mark_ready(engine: Engine, slot: Slot) -> None:
    launcher = engine.launcher
    if not engine.launching or launcher is None:
        return
    slot.ready = True
    launcher.missing[slot.bucket] -= 1
    while launcher.next < len(launcher.missing) and launcher.missing[launcher.next] == 0:
        completion.send_next(engine)


def _late(engine: Engine, slot: Slot) -> StateError:
    return engine.error(
        f"gradient {slot.pos} ({slot.name}) was generated again after its segment had been sent",
        rule=f"it was generated {slot.expected} time(s) a backward in the first step; a segment is sent when all have come",
        fix="call refresh() after the graph has changed, or use checkpoint(use_reentrant=False)",
    )
