"""Dense reduction: one all-reduce per message in the gradient's own dtype.

    flat <- sum over ranks of (gradient / divisor)          divided before the sum, by the engine

Cost per rank on a ring: 2(p-1)/p n bytes. With 2 ranks the bits do not depend on the plan; from 3 ranks up the order of the sum
depends on an element's position in its message.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.distributed import Work

from gradweave.reduce.base import Divisor, Message


class WorkPending:
    """A `torch.distributed` work as a `Pending`."""

    __slots__ = ("_work",)

    def __init__(self, work: Work) -> None:
        self._work = work

    def wait(self) -> None:
        """Wait for the work; on a GPU this orders the current stream behind it."""
        self._work.wait()

    def on_done(self, callback: Callable[[], None]) -> None:
        """See `Pending.on_done`."""
        self._work.get_future().add_done_callback(lambda _: callback())


class Dense:
    """One all-reduce per message."""

    predivided = True
    carries_tail = True

    def init(self, message: Message) -> None:
        """Nothing to keep."""

    def start(self, message: Message, state: None, divisor: Divisor) -> WorkPending:
        """Start the all-reduce; `message.flat` holds gradients that are divided already."""
        return WorkPending(message.group.allreduce([message.flat]))

    def wire_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Gradients travel as they are."""
        return dtype

    def close(self) -> None:
        """Nothing is held."""
