"""Reductions under way: started in order, finished in order, watched while they take long.

A flight knows its segment, its pending reduction and the recorder's token; the end time comes from the backend's own thread, so
that a reduction hidden behind backward shows its true end and not the moment somebody looked.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from gradweave.model import Segment
from gradweave.reduce import Message, Pending
from gradweave.sync.watch import Watch

if TYPE_CHECKING:
    from gradweave.sync.layout import Layout
    from gradweave.trace.recorder import Recorder


class Flight:
    """One message under way."""

    __slots__ = ("_ended", "message", "pending")

    def __init__(self, message: Message, pending: Pending, recorder: Recorder, token: Any) -> None:
        self.message, self.pending = message, pending
        self._ended = threading.Event()
        ended = self._ended

        def on_done() -> None:
            recorder.finished(token)
            ended.set()

        pending.on_done(on_done)

    def ended(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` for the collective to end, well or badly."""
        return self._ended.wait(timeout_s)


class Launcher:
    """Starts the messages of a layout in the order of its segments.

    `next` is the first segment that has not been started; `missing[k]` how many gradients of segment k are not ready.
    """

    def __init__(self, layout: Layout, recorder: Recorder, watch: Watch) -> None:
        self._layout, self._recorder, self._watch = layout, recorder, watch
        self.reset()

    def reset(self) -> None:
        """Begin a window: nothing started, nothing ready."""
        self.next = 0
        self.missing = [len(segment) for segment in self._layout.segments]
        self._flights: list[Flight] = []
        self._tail: Pending | None = None
        self._versions: list[int] | None = None

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
        for message, state in zip(layout.buckets[nth], layout.states[nth], strict=True):
            dtype = str(layout.reducer.wire_dtype(message.flat.dtype)).removeprefix("torch.")
            token = self._recorder.launched(segment, message.gradients.numel() * message.flat.element_size(), dtype)
            try:
                pending = layout.reducer.start(message, state, divisor)
            except RuntimeError as error:
                raise self._watch.failure(_describe(segment), str(error)) from error
            self._flights.append(Flight(message, pending, self._recorder, token))
        if self.all_started:
            self._tail = layout.start_tail()

    def note_versions(self) -> None:
        """Backward has ended: from now on nobody writes into the buffers."""
        self._versions = self._current_versions()

    def touched(self) -> bool:
        """Whether somebody wrote into the buffers since backward ended."""
        return self._versions is not None and self._versions != self._current_versions()

    def _current_versions(self) -> list[int]:
        return [arena.flat._version for arena in self._layout.arenas.values()]

    def wait_all(self) -> None:
        """Finish all messages in order; CollectiveError when one fails or does not end in time."""
        for flight in self._flights:
            self._watch.wait(flight.ended, flight.pending.wait, _describe(flight.message.segment))
        if self._tail is not None:
            tail, done = self._tail, threading.Event()
            tail.on_done(done.set)
            self._watch.wait(done.wait, tail.wait, "all_reduce of the used flags")
        self._flights, self._tail = [], None


def _describe(segment: Segment) -> str:
    return f"all_reduce of segment {segment.index} (gradients {segment.first}..{segment.last}, {segment.size_bytes} bytes)"
