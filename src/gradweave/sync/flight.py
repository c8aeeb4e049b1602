"""Reductions under way: started in order, finished in order, watched while they take long.

On a host-ordered backend (Gloo) the end time comes from the backend's own thread, so that a reduction hidden behind backward
shows its true end and not the moment somebody looked; on a stream-ordered one (NCCL, HCCL) it is an event on a side stream.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from gradweave.model import Segment
from gradweave.reduce import CommHook, FuturePending, Message, Pending
from gradweave.sync.device import StreamLane
from gradweave.sync.watch import Watch

if TYPE_CHECKING:
    from gradweave.sync.layout import Layout
    from gradweave.trace.recorder import Recorder


class HostFlight:
    """One message under way on a backend that reports its end to the host."""

    __slots__ = ("_ended", "_pending", "message")

    def __init__(self, message: Message, pending: Pending, recorder: Recorder, token: Any) -> None:
        self.message, self._pending = message, pending
        self._ended = ended = threading.Event()

        def on_done() -> None:
            recorder.finished(token, time.perf_counter())
            ended.set()

        pending.on_done(on_done)

    def ended(self, timeout_s: float) -> bool:
        """Wait at most so long for the end, well or badly."""
        return self._ended.wait(timeout_s)

    def finish(self, watch: Watch) -> None:
        """Wait for the result; CollectiveError when it fails or does not come in time. A user's hook raises its own error."""
        if isinstance(self._pending, FuturePending):
            watch.wait(self._ended.wait, lambda: None, describe(self.message.segment))
            self._pending.wait()
        else:
            watch.wait(self._ended.wait, self._pending.wait, describe(self.message.segment))


class StreamFlight:
    """One message under way on a backend that orders streams."""

    __slots__ = ("_end", "_lane", "message")

    def __init__(self, message: Message, pending: Pending, recorder: Recorder, token: Any, lane: StreamLane) -> None:
        self.message, self._lane = message, lane
        self._end, stamp = lane.after_start(pending.wait, recorder.now)
        recorder.finished(token, stamp)

    def finish(self, watch: Watch) -> None:
        """Order the current stream behind the result; the host goes on."""
        self._lane.finish(self._end)


class Launcher:
    """Starts the messages of a layout in the order of its segments.

    `next` is the first segment that has not been started; `missing[k]` how many gradients of segment k are not ready.
    """

    def __init__(self, layout: Layout, recorder: Recorder, watch: Watch, lane: StreamLane | None) -> None:
        self._layout, self._recorder, self._watch, self._lane = layout, recorder, watch, lane
        self.reset()

    def reset(self) -> None:
        """Begin a window: nothing started, nothing ready."""
        self.next = 0
        self.missing = [len(segment) for segment in self._layout.segments]
        self._flights: list[HostFlight | StreamFlight] = []
        self._tail: Pending | None = None
        self._versions: list[int] | None = None
        if self._lane is not None:
            self._lane.reset()

    @property
    def started(self) -> bool:
        """Whether any segment of this window is under way."""
        return self.next > 0

    @property
    def all_started(self) -> bool:
        """Whether every segment of this window is under way."""
        return self.next == len(self._layout.segments)

    def start_next(self, divisor: Any) -> None:
        """Start the messages of segment `next`."""
        layout, nth = self._layout, self.next
        segment = layout.segments[nth]
        self._watch.at(f"segment {nth} (gradients {segment.first}..{segment.last})")
        for slot in layout.order[segment.first : segment.last + 1]:
            slot.launched = True
        self.next += 1
        if self._lane is not None:
            self._lane.before_start()
        for message, state in zip(layout.buckets[nth], layout.states[nth], strict=True):
            self._flights.append(self._start(message, state, divisor))
        if self.all_started:
            self._tail = layout.start_tail()

    def _start(self, message: Message, state: Any, divisor: Any) -> HostFlight | StreamFlight:
        reducer = self._layout.reducer
        wire = reducer.wire_dtype(message.flat.dtype)
        token = self._recorder.launched(
            message.segment, message.gradients.numel() * wire.itemsize, str(wire).removeprefix("torch.")
        )
        try:
            pending = reducer.start(message, state, divisor)
        except RuntimeError as error:
            if isinstance(reducer, CommHook):
                raise  # the user's own code
            raise self._watch.failure(describe(message.segment), str(error)) from error
        if self._lane is not None:
            return StreamFlight(message, pending, self._recorder, token, self._lane)
        return HostFlight(message, pending, self._recorder, token)

    def note_versions(self) -> None:
        """Backward has ended: from now on nobody writes into the buffers."""
        self._versions = self._current_versions()

    def forget_versions(self) -> None:
        """A backward begins, which writes into the buffers."""
        self._versions = None

    def touched(self) -> bool:
        """Whether somebody wrote into the buffers since backward ended."""
        return self._versions is not None and self._versions != self._current_versions()

    def _current_versions(self) -> list[int]:
        return [arena.flat._version for arena in self._layout.arenas.values()]

    def settle(self, timeout_s: float) -> None:
        """Give reductions under way a moment to end, well or badly; what comes of them is no longer asked."""
        deadline = time.monotonic() + timeout_s
        for flight in self._flights:
            if isinstance(flight, HostFlight):
                flight.ended(max(0.0, deadline - time.monotonic()))
        self._flights, self._tail = [], None

    def wait_all(self) -> None:
        """Finish all messages in order; CollectiveError when one fails or does not end in time."""
        for flight in self._flights:
            flight.finish(self._watch)
        if self._tail is not None:
            tail, done = self._tail, threading.Event()
            tail.on_done(done.set)
            self._watch.wait(done.wait, tail.wait, "all_reduce of the used flags")
        self._flights, self._tail = [], None


def describe(segment: Segment) -> str:
    """What a segment's collective is called in errors."""
    return f"all_reduce of segment {segment.index} (gradients {segment.first}..{segment.last}, {segment.size_bytes} bytes)"
