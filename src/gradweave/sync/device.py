"""Streams, events and clocks of a GPU.

    gradients    a message is started on the stream that accumulated its last gradient, behind the streams of the others
    collective   on a stream-ordered backend (NCCL, HCCL) a side stream waits for it and casts back; its end is an event there
    optimizer    the stream that calls step() waits for that event; the host never blocks
    times        CUDA events, turned into seconds on perf_counter's axis when somebody looks

Buffers belong to the engine and outlive every collective, so the caching allocator cannot give them away. On the CPU nothing of
this is used. Written against CUDA's semantics; the tests of it run where a GPU exists.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

_ANCHOR_EVERY = 4096


def clock_for(devices: Iterable[torch.device]) -> Callable[[], Any]:
    """The recorder's clock: CUDA events where gradients lie on one GPU, the host's clock otherwise."""
    found = list(devices)
    return DeviceClock(found[0]) if len(found) == 1 and found[0].type == "cuda" else time.perf_counter


def lane_for(devices: Iterable[torch.device], backend: str) -> StreamLane | None:
    """The lane of messages on one GPU over a stream-ordered backend; None where the host waits (CPU, Gloo)."""
    found = list(devices)
    ordered = len(found) == 1 and found[0].type == "cuda" and "nccl" in backend
    return StreamLane(found[0]) if ordered else None


class DeviceClock:
    """Gives stamps of the current stream; each becomes seconds on perf_counter's axis with `float()`."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._count = device, 0
        event = self._record()
        event.synchronize()
        self._anchor = Stamp(event, None, time.perf_counter())

    def _record(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def __call__(self) -> Stamp:
        """A stamp for now, on this thread's current stream."""
        stamp = Stamp(self._record(), self._anchor, None)
        self._count += 1
        if self._count % _ANCHOR_EVERY == 0:  # elapsed_time is a float32 of ms: keep the distances short
            self._anchor = stamp
        return stamp


class Stamp:
    """A moment on a device's stream."""

    __slots__ = ("_anchor", "_event", "_seconds")

    def __init__(self, event: Any, anchor: Stamp | None, seconds: float | None) -> None:
        self._event, self._anchor, self._seconds = event, anchor, seconds

    def __float__(self) -> float:
        """Seconds; waits for the device if it has not got there."""
        if self._seconds is None and self._anchor is not None:
            self._event.synchronize()
            self._seconds = float(self._anchor) + self._anchor._event.elapsed_time(self._event) / 1e3
            self._anchor = None
        assert self._seconds is not None
        return self._seconds


class StreamLane:
    """Orders collectives of a stream-ordered backend behind the gradients and before the optimizer.

    Args:
        device: the GPU of the messages.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._side = torch.cuda.Stream(device)
        self._seen: set[Any] = set()

    def saw_gradient(self) -> None:
        """A gradient was accumulated on this thread's current stream."""
        self._seen.add(torch.cuda.current_stream(self.device))

    def before_start(self) -> None:
        """Let the current stream, on which a message is about to start, wait for the streams of its gradients."""
        current = torch.cuda.current_stream(self.device)
        for stream in self._seen - {current}:
            current.wait_stream(stream)

    def after_start(self, wait: Callable[[], None], stamp: Callable[[], Any]) -> tuple[Any, Any]:
        """Follow the collective on the side stream; returns the event of its end and its stamp."""
        self._side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._side):
            wait()
            end = torch.cuda.Event()
            end.record(self._side)
            return end, stamp()

    def finish(self, end: Any) -> None:
        """Let the current stream wait for the end of a collective."""
        torch.cuda.current_stream(self.device).wait_event(end)

    def reset(self) -> None:
        """Begin a window."""
        self._seen.clear()
