"""The contract between the engine and a reduction.

A `Reducer` is a pair in the sense of Optax: `init(message) -> state` once per plan and `start(message, state, divisor) ->
Pending` once per iteration; `Pending.wait()` leaves the reduced gradients in `message.flat`. Reducers compose by wrapping.
The engine knows nothing of algorithms, a reducer nothing of autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from gradweave.model import Segment

REAL_OF = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
Divisor: TypeAlias = float | int | Tensor


@dataclass(slots=True)
class Message:
    """What one collective carries: the gradients of one segment that share a device and a dtype.

    Attributes:
        segment: the segment it belongs to; a segment of several dtypes is several messages.
        index: position among the messages of the plan, equal on all ranks.
        flat: 1-D real tensor that is reduced in place: the gradients, then the tail.
        tail_elems: how many elements at the end of `flat` are the engine's flags and not gradients.
        group: the process group it travels in.
        size: number of ranks of that group.
        is_last: whether it is the last message of the iteration.
        parameters, views: the parameters it carries and their slots in `flat`, in index order.
    """

    segment: Segment
    index: int
    flat: Tensor
    tail_elems: int
    group: ProcessGroup
    size: int
    is_last: bool
    parameters: list[torch.nn.Parameter] = field(default_factory=list)
    views: list[Tensor] = field(default_factory=list)

    @property
    def gradients(self) -> Tensor:
        """`flat` without the tail."""
        return self.flat[: self.flat.numel() - self.tail_elems]

    @property
    def size_bytes(self) -> int:
        """Bytes of `flat`, the tail included."""
        return self.flat.numel() * self.flat.element_size()


class Pending(Protocol):
    """A reduction under way."""

    def wait(self) -> None:
        """Return when the result is in place; raise what the collective raised."""

    def on_done(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, from any thread, when the collective has ended, well or badly."""


class Reducer(Protocol):
    """How one message is reduced.

    `predivided`: the engine divides each gradient while it copies it into `flat`; else `start` gets the divisor and does it.
    `carries_tail`: the engine's flags may ride at the end of `flat` (a lossy reducer says no).
    """

    predivided: bool
    carries_tail: bool

    def init(self, message: Message) -> Any:
        """Make the state that `start` needs for this message; called once per plan."""

    def start(self, message: Message, state: Any, divisor: Divisor) -> Pending:
        """Begin the reduction and return without waiting."""

    def wire_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype in which gradients of `dtype` travel."""

    def close(self) -> None:
        """Let go of threads and communicators; no message is under way any more, or what comes of it is not asked."""
