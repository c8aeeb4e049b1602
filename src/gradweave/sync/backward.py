"""Where a backward pass begins and ends.

autograd tells nobody. A leaf hook sees the id of the running graph task; a new id is a new backward, or one nested in another
(re-entrant checkpointing runs a backward inside a backward). The end is seen by a callback queued on the graph task; the end
of a nested one is not the end. Nested is recognised by a frame of `torch.autograd.Function`'s backward on the Python stack.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from types import FrameType

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.autograd.function import BackwardCFunction

_CUSTOM_BACKWARD = BackwardCFunction.apply.__code__
_ENGINE_RUN = torch.autograd.graph._engine_run_backward.__code__
current_task: Callable[[], int] = torch._C._current_graph_task_id


def in_backward() -> bool:
    """Whether this thread is inside a backward pass."""
    return current_task() != -1


def _nested() -> bool:
    """Whether this backward runs inside another: in a Function's backward, or in a hook (two engine runs on one stack)."""
    frame: FrameType | None = sys._getframe(2)
    runs = 0
    while frame is not None:
        if frame.f_code is _CUSTOM_BACKWARD:
            return True
        runs += frame.f_code is _ENGINE_RUN
        if runs > 1:
            return True
        frame = frame.f_back
    return False


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    live = method()
    if live is not None:
        live()


class BackwardTracker:
    """Calls `on_start` once when a backward pass begins and `on_end` once when it ends; holds both weakly.

    `running` is true in between. `blind` becomes true when every hook fired inside a nested backward, so that the
    outer end could not be seen; the engine then waits for `step()`.
    """

    def __init__(self, on_start: Callable[[], None], on_end: Callable[[], None]) -> None:
        self._on_start, self._on_end = weakref.WeakMethod(on_start), weakref.WeakMethod(on_end)
        self.task = -1
        self.running = False
        self.blind = False
        self._outer = self._highest = -1

    @property
    def unended(self) -> bool:
        """Whether a backward pass that was announced or begun has not ended: outside of backward, it raised."""
        return self._outer != -1 and not in_backward()

    def watch(self, outputs: Iterable[Tensor]) -> None:
        """Let the gradients of a forward's outputs announce the backward; holds the tracker weakly."""
        ref = weakref.ref(self)

        def seen(_: Tensor) -> None:
            live = ref()
            if live is not None:
                live.announce()

        for output in outputs:
            if output.requires_grad:
                output.register_hook(seen)

    def announce(self) -> None:
        """Called when the gradient of the model's output appears: if leaf hooks follow, this is their outermost backward.

        `torch.autograd.grad` passes here too, but reaches no leaf: it neither starts nor ends anything.
        """
        task = current_task()
        if task == self._outer or _nested():
            return
        if self.running and task > self._highest:
            self.abandon()  # the backward before this one raised
        self._watch_end(task)

    def see(self) -> None:
        """Called by every leaf hook whose graph task differs from `task`."""
        task = current_task()
        nested = _nested()
        encloses = self.running and self.blind and task < self._highest
        if not self.running or not (nested or encloses or task == self._outer):
            self.running, self.blind, self._highest = True, nested and self._outer == -1, task
            _call(self._on_start)
        if not nested and task != self._outer:
            self._watch_end(task)
        self.task, self._highest = task, max(task, self._highest)

    def _watch_end(self, task: int) -> None:
        self.blind, self._outer = False, task
        Variable._execution_engine.queue_callback(lambda: self._end(task))

    def _end(self, task: int) -> None:
        if task != self._outer:
            return
        was_running = self.running
        self.abandon()
        if was_running:
            _call(self._on_end)

    def abandon(self) -> None:
        """Forget a backward pass that will not end (it raised, or its end could not be seen)."""
        self.running = self.blind = False
        self.task = self._outer = self._highest = -1
