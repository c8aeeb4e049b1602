"""Ordered reduction: the same bits for every split, bucketing and transport.

    1. all-to-all       rank r receives shard r of the message from every rank
    2. local sum        in rank order, accumulated in float32 (float64 for float64); then divided, and rounded once
    3. all-gather       every rank receives every reduced shard

Each element is summed in the same order wherever it lies, so its bits depend on neither the plan nor the message it travels in;
a ring's do from 3 ranks on. Bytes per rank: 2 (p-1)/p of the message, as a ring. Where the backend reports to the host (Gloo),
one thread takes the messages through steps 2 and 3 in the order in which they were started, on a communicator of its own, so
that all ranks meet in the same order while backward goes on. On a stream-ordered backend the steps follow each other on the
side stream. Cost beyond a ring: three buffers of the message. Composes with `Cast` (then it accumulates in the wire's dtype).
Source: rule 3 of the semantics; fixed-order summation as in reproducible BLAS (Demmel, Nguyen, 2013), without its pre-rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from gradweave.reduce.base import Divisor, Message
from gradweave.reduce.division import divisor_for
from gradweave.world import communicators

_ACCUMULATES = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


@dataclass(slots=True)
class OrderedState:
    """Buffers of one message on this rank; p ranks, shards of `shard` elements.

    Attributes:
        sent: the message padded to p shards, in the gradients' dtype.
        received: p rows, this rank's shard from each rank.
        total: this rank's shard, in the dtype of accumulation.
    """

    sent: Tensor
    received: Tensor
    total: Tensor


class OrderedPending:
    """A message on its way through the three steps."""

    __slots__ = ("_future", "_put")

    def __init__(self, future: Future[None], put: Callable[[], None]) -> None:
        self._future, self._put = future, put

    def wait(self) -> None:
        """Wait, then put the result in place."""
        self._future.result()
        self._put()

    def on_done(self, callback: Callable[[], None]) -> None:
        """See `Pending.on_done`."""
        self._future.add_done_callback(lambda _: callback())


class StreamPending:
    """The same where the backend orders streams: `wait` enqueues steps 2 and 3 on the current stream."""

    __slots__ = ("_put", "_rest")

    def __init__(self, rest: Callable[[], None], put: Callable[[], None]) -> None:
        self._rest, self._put = rest, put

    def wait(self) -> None:
        """Enqueue the rest."""
        self._rest()
        self._put()

    def on_done(self, callback: Callable[[], None]) -> None:
        """The host is not told by a stream-ordered backend; the engine uses events."""


class Ordered:
    """Sums in rank order.

    Args:
        gather_group: a communicator of the engine's ranks for step 3 alone.
    """

    predivided = False
    carries_tail = True

    def __init__(self, gather_group: ProcessGroup) -> None:
        self._gather_group = gather_group
        self._thread: ThreadPoolExecutor | None = None

    def init(self, message: Message) -> OrderedState:
        """Allocate the buffers."""
        flat, size = message.flat, message.size
        shard = -(-flat.numel() // size)
        return OrderedState(
            sent=flat.new_zeros(shard * size),
            received=flat.new_empty((size, shard)),
            total=torch.empty(shard, dtype=_ACCUMULATES.get(flat.dtype, flat.dtype), device=flat.device),
        )

    def start(self, message: Message, state: OrderedState, divisor: Divisor) -> OrderedPending | StreamPending:
        """Start the all-to-all; the rest follows when it has ended."""
        state.sent[: message.flat.numel()].copy_(message.flat)
        work = dist.all_to_all_single(state.received.view(-1), state.sent, group=message.group, async_op=True)

        def rest() -> None:
            work.wait()
            with torch.no_grad():
                self._sum_and_gather(message, state, divisor)

        def put() -> None:
            message.flat.copy_(state.sent[: message.flat.numel()])

        if message.flat.device.type != "cpu":
            return StreamPending(rest, put)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "gradweave-ordered")
        return OrderedPending(self._thread.submit(rest), put)

    def _sum_and_gather(self, message: Message, state: OrderedState, divisor: Divisor) -> None:
        total, rank = state.total, message.group.rank()
        total.copy_(state.received[0])
        for row in state.received[1:]:
            total.add_(row)
        gradients = message.gradients.numel() - rank * total.numel()  # behind them: the engine's flags, and padding
        if gradients > 0:
            mine = total[:gradients]
            mine.div_(divisor_for(divisor, mine))
        shard = state.received[0].copy_(total)
        dist.all_gather_single(state.sent, shard, group=self._gather_group)

    def wire_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Gradients travel as they are; only the sum is wider."""
        return dtype

    def close(self) -> None:
        """End the thread and the communicator; a message under way is finished first."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None
        communicators.destroy(self._gather_group)
