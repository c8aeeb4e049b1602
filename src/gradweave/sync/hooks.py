"""The hooks that an engine hangs on its parameters.

Per parameter two: one on its gradient accumulator, before `.grad` is touched (a hook on the *tensor* would also fire for
`torch.autograd.grad`, whose result it must not change), one after. The latter stays behind the user's own, which may still
change the gradient. They hold the engine weakly: when the wrapper goes, they do nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from gradweave.sync import ready
from gradweave.sync.table import Slot

if TYPE_CHECKING:
    from gradweave.sync.engine import Engine


class Hooks:
    """Attaches and detaches the hooks of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = weakref.ref(engine)
        self._before_handles: list[Any] = []
        self._after_handles: list[Any] = []

    def attach(self, slots: Sequence[Slot]) -> None:
        """Hang two hooks on each slot's parameter. The accumulator is kept alive by the slot."""
        for slot in slots:
            slot.node = node = get_gradient_edge(slot.param).node
            self._before_handles.append(node.register_prehook(self._before(slot.pid)))
            self._after_handles.append(slot.param.register_post_accumulate_grad_hook(self._after(slot.pid)))

    def stay_last(self, slots: Sequence[Slot]) -> None:
        """Move behind post-accumulate hooks that the user has registered since (torch calls them in order of registration)."""
        for slot in slots:
            handle, registered = self._after_handles[slot.pid], slot.param._post_accumulate_grad_hooks
            slot.hooked = len(registered or ()) > 1
            if registered and next(reversed(registered)) != handle.id:
                handle.remove()
                self._after_handles[slot.pid] = slot.param.register_post_accumulate_grad_hook(self._after(slot.pid))

    def detach(self) -> None:
        """Remove every hook."""
        for handle in [*self._before_handles, *self._after_handles]:
            handle.remove()
        self._before_handles, self._after_handles = [], []

    def _before(self, pid: int) -> Any:
        ref = self._engine

        def before(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...] | None:
            engine = ref()
            return None if engine is None else ready.before(engine, engine.table.slots[pid], gradients)

        return before

    def _after(self, pid: int) -> Any:
        ref = self._engine

        def after(param: torch.nn.Parameter) -> None:
            engine = ref()
            if engine is not None:
                ready.after(engine, engine.table.slots[pid], param)

        return after
