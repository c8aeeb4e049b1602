"""Stand-ins for the parts around a reducer: a message, a reduction under way, ranks that are threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from gradweave.model import Segment
from gradweave.reduce import Message


def message(flat: Tensor, tail_elems: int = 0, group: Any = None, **more: Any) -> Message:
    """A message of one segment that carries `flat`."""
    segment = Segment(0, 0, 0, flat.numel() * flat.element_size())
    return Message(
        **{"segment": segment, "index": 0, "flat": flat, "tail_elems": tail_elems, "group": group, "size": 2, "is_last": True}
        | more
    )


class FakePending:
    """Applies `work` when somebody waits."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work, self.callbacks, self.waits = work, [], 0

    def wait(self) -> None:
        self.waits += 1
        self.work()

    def on_done(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)


class FakeReducer:
    """Notes what it is given and doubles it, as a second rank with the same gradients would."""

    def __init__(self, predivided: bool = True, carries_tail: bool = True) -> None:
        self.predivided, self.carries_tail = predivided, carries_tail
        self.inits: list[Message] = []
        self.sent: list[Tensor] = []
        self.divisors: list[Any] = []
        self.pendings: list[FakePending] = []

    def init(self, message: Message) -> str:
        self.inits.append(message)
        return f"state {len(self.inits)}"

    def start(self, message: Message, state: Any, divisor: Any) -> FakePending:
        self.sent.append(message.flat.clone())
        self.divisors.append(divisor)
        self.state = state
        self.pendings.append(FakePending(lambda: message.flat.mul_(2)))
        return self.pendings[-1]

    def wire_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return dtype


class ThreadRanks:
    """A process group whose ranks are threads: `allgather` is a meeting of all of them."""

    def __init__(self, size: int) -> None:
        self._size, self._local = size, threading.local()
        self._meeting = threading.Barrier(size, timeout=5)
        self._table: list[Tensor | None] = [None] * size

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """What `work(rank)` gives on each rank."""

        def on_rank(rank: int) -> Any:
            self._local.rank = rank
            return work(rank)

        with ThreadPoolExecutor(self._size) as threads:
            return list(threads.map(on_rank, range(self._size)))

    def size(self) -> int:
        return self._size

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor]) -> FakePending:
        def meet() -> None:
            self._table[self._local.rank] = inputs[0]
            self._meeting.wait()
            for output, given in zip(outputs[0], self._table, strict=True):
                assert given is not None and given.shape == output.shape and given.dtype == output.dtype
                output.copy_(given)
            self._meeting.wait()

        return FakePending(meet)
