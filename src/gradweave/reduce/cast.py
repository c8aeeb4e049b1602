"""Reduction in another dtype: float32 for half precision gradients, or half precision for float32 ones.

    wire <- cast(gradient);  wire <- wire / divisor;  all-reduce(wire);  gradient <- cast(wire)

The division happens in the reduction dtype. A bfloat16 sum per hop has 1.64 times the error of a float32 sum at 4 ranks, which
is why float32 is the default for bfloat16 and float16 gradients. Cost: one buffer of the message in the wire dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradweave.reduce.base import REAL_OF, Divisor, Message, Pending, Reducer
from gradweave.reduce.division import divisor_for


@dataclass(slots=True)
class CastState:
    """`wire`: this rank's send buffer, 1-D, in the reduction dtype; `inner`: state of the wrapped reducer."""

    wire: Message
    inner: Any


class CastPending:
    """Waits for the wire message and casts it back."""

    __slots__ = ("_inner", "_source", "_target")

    def __init__(self, inner: Pending, source: Tensor, target: Tensor) -> None:
        self._inner, self._source, self._target = inner, source, target

    def wait(self) -> None:
        """Wait, then cast the result into the gradients."""
        self._inner.wait()
        self._target.copy_(self._source)

    def on_done(self, callback: Callable[[], None]) -> None:
        """See `Pending.on_done`."""
        self._inner.on_done(callback)


class Cast:
    """Wraps a reducer so that messages travel in `dtype`; None stands for float32 where gradients are half precision.

    Args:
        inner: the reducer that moves the message.
        dtype: the reduction dtype; None: float32 for float16 and bfloat16, the gradient's own otherwise.
    """

    predivided = False
    carries_tail = True

    def __init__(self, inner: Reducer, dtype: torch.dtype | None = None) -> None:
        self._inner, self._dtype = inner, dtype
        self.carries_tail = inner.carries_tail

    def wire_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype in which gradients of `dtype` travel."""
        real = REAL_OF.get(dtype, dtype)
        if self._dtype is not None:
            return self._dtype
        return torch.float32 if real in (torch.float16, torch.bfloat16) else real

    def init(self, message: Message) -> CastState:
        """Allocate the wire buffer, unless the message is in the reduction dtype already."""
        dtype = self.wire_dtype(message.flat.dtype)
        wire = message if dtype == message.flat.dtype else replace(message, flat=torch.empty_like(message.flat, dtype=dtype))
        return CastState(wire, self._inner.init(wire))

    def start(self, message: Message, state: CastState, divisor: Divisor) -> Pending:
        """Cast, divide in the reduction dtype, start the wrapped reducer."""
        wire = state.wire
        if wire is not message:
            wire.flat.copy_(message.flat)
        if self._inner.predivided:
            wire.gradients.div_(divisor_for(divisor, wire.flat))  # not the tail: the engine's flags stay whole numbers
        pending = self._inner.start(wire, state.inner, divisor)
        return pending if wire is message else CastPending(pending, wire.flat, message.flat)

    def close(self) -> None:
        """Close the wrapped reducer."""
        self._inner.close()
