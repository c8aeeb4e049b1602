"""A DDP communication hook as a reducer.

`hook(state, bucket) -> Future[Tensor]` gets the undivided gradients of one message and owns all arithmetic, division included,
as in `torch.nn.parallel.DistributedDataParallel.register_comm_hook`. torch's `GradBucket` cannot be constructed from Python, so
`Bucket` has its methods. The engine's flags travel apart, since a hook may be lossy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradweave.reduce.base import Divisor, Message

Hook = Callable[[Any, "Bucket"], "torch.futures.Future[Tensor]"]


class Bucket:
    """What a communication hook gets: the methods of `torch.distributed.GradBucket`.

    Example:
        >>> import torch
        >>> Bucket(0, torch.ones(2), [], [], True).is_last()
        True
    """

    def __init__(
        self, index: int, buffer: Tensor, gradients: list[Tensor], parameters: list[torch.nn.Parameter], is_last: bool
    ) -> None:
        self._index, self._buffer, self._is_last = index, buffer, is_last
        self._gradients, self._parameters = gradients, parameters

    def index(self) -> int:
        """Position of the bucket; 0 is reduced first."""
        return self._index

    def buffer(self) -> Tensor:
        """1-D tensor of all gradients of the bucket."""
        return self._buffer

    def set_buffer(self, buffer: Tensor) -> None:
        """Replace the buffer; the hook's future says what the gradients become."""
        self._buffer = buffer

    def gradients(self) -> list[Tensor]:
        """One view of the buffer per parameter, in the parameter's shape."""
        return self._gradients

    def parameters(self) -> list[torch.nn.Parameter]:
        """The parameters whose gradients the bucket holds."""
        return self._parameters

    def is_last(self) -> bool:
        """Whether this is the last bucket of the iteration."""
        return self._is_last


class FuturePending:
    """The future that a hook returned."""

    __slots__ = ("_future", "_target")

    def __init__(self, future: torch.futures.Future[Any], target: Tensor) -> None:
        self._future, self._target = future, target

    def wait(self) -> None:
        """Wait and put the hook's result in place."""
        result = self._future.wait()
        tensor = result[0] if isinstance(result, (list, tuple)) else result
        if tensor.data_ptr() != self._target.data_ptr():
            self._target.copy_(tensor.view(-1))

    def on_done(self, callback: Callable[[], None]) -> None:
        """See `Pending.on_done`."""
        self._future.add_done_callback(lambda _: callback())


class CommHook:
    """Hands every message to `hook(state, bucket)`."""

    predivided = False
    carries_tail = False

    def __init__(self, hook: Hook, state: Any) -> None:
        self._hook, self._state = hook, state

    def init(self, message: Message) -> None:
        """A hook keeps its own state."""

    def start(self, message: Message, state: None, divisor: Divisor) -> FuturePending:
        """Call the hook on the undivided gradients."""
        bucket = Bucket(message.index, message.flat, message.views, message.parameters, message.is_last)
        return FuturePending(self._hook(self._state, bucket), message.flat)

    def wire_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """What the hook sends is its own affair; the buffer has the gradient's dtype."""
        return dtype

    def close(self) -> None:
        """A hook looks after itself."""
