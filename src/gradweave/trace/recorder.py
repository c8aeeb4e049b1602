"""The live recorder: what the engine calls while it trains.

It notes when each gradient was ready, when each collective started and ended, and the marks of the iteration, and keeps the
last `capacity` iterations in a ring. A call in the hot path is one clock reading and one assignment; dataclasses are built only
when somebody looks.

    begin -> fp_start -> fp_end -> (ready[i] = now)* / launched / finished -> bp_end -> iteration_end

Cost: about 0.1 us a ready time, 0.4 us a launch, 0.2 us a finish, 1 us + 0.01 us a gradient at the end of the iteration.
Threads: `ready[i] =`, `fp_end`, `bp_end`, `launched`, `finished` and `set_times` may be called from any thread; the others are
called by the training thread. An iteration is open from `begin` to `iteration_end`; what is launched outside is not recorded.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gradweave.errors import ConfigError
from gradweave.model.events import Iteration, Trace
from gradweave.model.segment import GradientInfo, Segment
from gradweave.trace import live
from gradweave.trace.files import file_name, save_trace
from gradweave.trace.raw import Closed, Launch, freeze

_now = time.perf_counter
_serials = itertools.count()
_DEVICE_LAG = 2


class Recorder:
    """Records the iterations of one wrapper on one rank.

    Args:
        rank: global rank.
        world_size: number of ranks in the group.
        group: name of the group.
        backend: what moves the bytes (`gloo`, `nccl`, ...).
        label: tells the wrappers of one process apart; part of the file name.
        capacity: iterations kept; older ones are dropped.
        enabled: False makes every call a no-op; may be changed between iterations.
        meta: what a report shows at its head, such as model and versions.
        clock: gives the time now, in s on perf_counter's axis; a device's clock may give an object that becomes a number with
            `float()` once the device has got there.

    Raises:
        ConfigError: capacity below 1.

    Example:
        >>> recorder = Recorder(rank=0, world_size=1, group="world", backend="gloo", label="demo")
        >>> recorder.set_gradients([GradientInfo("w", (2,), "float32", 8)])
        >>> recorder.begin(0); recorder.fp_start(); recorder.ready[0] = time.perf_counter(); recorder.bp_end()
        >>> token = recorder.launched(Segment(0, 0, 0, 8), 8, "float32")
        >>> recorder.finished(token); recorder.iteration_end((0,), overlap=True)
        >>> len(recorder.iterations), recorder.iterations[0].collectives[0].size_bytes
        (1, 8)
    """

    __slots__ = (
        "__weakref__",
        "_blank",
        "_bp_end",
        "_closed",
        "_fp_end",
        "_fp_start",
        "_gradients",
        "_lagging",
        "_launches",
        "_opened",
        "_previous_end",
        "_step",
        "backend",
        "enabled",
        "epoch_offset_s",
        "group",
        "label",
        "meta",
        "now",
        "rank",
        "ready",
        "serial",
        "world_size",
    )

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        group: str,
        backend: str,
        label: str,
        capacity: int = 256,
        enabled: bool = True,
        meta: dict[str, str] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if capacity < 1:
            raise ConfigError(
                f"capacity is {capacity}", rule="at least one iteration is kept", fix="use enabled=False to record nothing"
            )
        self.rank, self.world_size, self.group, self.backend, self.label = rank, world_size, group, backend, label
        self.enabled, self.meta = enabled, dict(meta or {})
        self.now, self._lagging = clock, clock is not time.perf_counter
        self.ready: list[float | None] = []
        self.serial = next(_serials)
        self.epoch_offset_s = _epoch_offset_s()
        self._blank: list[None] = []
        self._gradients: tuple[GradientInfo, ...] = ()
        self._closed: deque[Closed] = deque(maxlen=capacity)
        self._launches: list[Launch] = []
        self._opened: float | None = None
        self._previous_end: float | None = None
        self._fp_start: float | None = None
        self._fp_end: float | None = None
        self._bp_end: float | None = None
        self._step = 0
        live.register(self)

    def set_gradients(self, infos: Sequence[GradientInfo]) -> None:
        """Name the gradients in index order; called again when the order is fixed or changed.

        Ready times of the open iteration move with their gradients.
        """
        known = {info.name: at for info, at in zip(self._gradients, self.ready, strict=True)}
        self._gradients = tuple(infos)
        self._blank = [None] * len(self._gradients)
        self.ready[:] = [known.get(info.name) for info in self._gradients]  # in place: the engine may hold the list

    def begin(self, step: int) -> None:
        """Open iteration `step` (from 0)."""
        if not self.enabled:
            return
        self._step, self._launches = step, []
        self._fp_start = self._fp_end = self._bp_end = None
        self._opened = self.now()

    def fp_start(self) -> None:
        """Forward starts; the first call of an iteration counts (accumulation runs several forwards)."""
        if self.enabled and self._fp_start is None:
            self._fp_start = self.now()

    def fp_end(self) -> None:
        """Forward has ended; the last call counts."""
        if self.enabled:
            self._fp_end = self.now()

    def bp_end(self) -> None:
        """Backward has ended; the last call counts."""
        if self.enabled:
            self._bp_end = self.now()

    def launched(self, segment: Segment, size_bytes: int, dtype: str, kind: str = "all_reduce") -> Launch | None:
        """A collective starts now.

        Args:
            segment: the segment it carries.
            size_bytes: bytes of this message (a segment of several dtypes travels as several messages).
            dtype: dtype on the wire, torch's name without `torch.`.
            kind: name of the collective.

        Returns:
            The token for `finished`; None when nothing is recorded.
        """
        if not self.enabled:
            return None
        launch = Launch(segment, size_bytes, dtype, kind, self.now())
        self._launches.append(launch)
        return launch

    def finished(self, token: Launch | None, at_s: float | None = None) -> None:
        """The collective's result is complete, now or `at_s`; the first call counts."""
        if token is not None and token.end_s is None:
            token.end_s = self.now() if at_s is None else at_s

    def set_times(self, token: Launch | None, start_s: float, end_s: float) -> None:
        """Replace a collective's times (s, perf_counter's axis) by the device's, also after the iteration has ended."""
        if token is not None:
            token.start_s, token.end_s = start_s, end_s

    def iteration_end(self, plan: tuple[int, ...], overlap: bool) -> None:
        """Close the iteration: it enters the ring; ready times start afresh.

        A collective that never finished ends here. Without `fp_start` (no model known) forward starts where the previous
        iteration ended; without `bp_end` backward ends with the last gradient or, failing that, with the iteration.
        """
        end = self.now()
        if self.enabled and self._opened is not None:
            self._closed.append(self._close(end, plan, overlap))
            if self._lagging and len(self._closed) > _DEVICE_LAG:
                self._closed[-_DEVICE_LAG - 1].settle()  # the device has passed it: keep numbers, not events
            self._previous_end = end
        else:
            self._previous_end = None  # an iteration that was not recorded leaves no end to measure data wait from
        self.ready[:] = self._blank
        self._opened, self._launches = None, []

    def _close(self, end: float, plan: tuple[int, ...], overlap: bool) -> Closed:
        for launch in self._launches:
            if launch.end_s is None:
                launch.end_s = end
        closed = Closed()
        closed.step, closed.plan, closed.overlap = self._step, plan, overlap
        closed.previous_end, closed.end = self._previous_end, end
        closed.launches, closed.ready, closed.gradients = self._launches, self.ready.copy(), self._gradients
        start = self._fp_start
        if start is None:
            start = self._previous_end if self._previous_end is not None else self._opened
        closed.fp_start = start if start is not None else end
        closed.fp_end = self._fp_end
        bp_end = self._bp_end
        closed.bp_end = (
            bp_end if bp_end is not None else max((r for r in closed.ready if r is not None), key=float, default=end)
        )
        return closed

    @property
    def has_iterations(self) -> bool:
        """Whether there is anything to save."""
        return bool(self._closed)

    @property
    def iterations(self) -> tuple[Iteration, ...]:
        """The iterations in the ring, oldest first.

        Ready times of iterations recorded under another order are put into the present one by the parameters' names; a
        collective's `first` and `last` stay indices of the order under which it travelled.
        """
        index_of = {info.name: index for index, info in enumerate(self._gradients)}
        return tuple(freeze(closed, self.group, self._gradients, index_of) for closed in tuple(self._closed))

    def recent(self, count: int) -> tuple[Iteration, ...]:
        """The latest `count` iterations alone (fewer where there are fewer), oldest first."""
        index_of = {info.name: index for index, info in enumerate(self._gradients)}
        chosen = tuple(self._closed)[-count:] if count > 0 else ()
        return tuple(freeze(closed, self.group, self._gradients, index_of) for closed in chosen)

    @property
    def last(self) -> Iteration | None:
        """The latest iteration alone, without building the others."""
        return next(iter(self.recent(1)), None)

    def trace(self) -> Trace:
        """Everything recorded, as plain data."""
        return Trace(
            rank=self.rank,
            world_size=self.world_size,
            group=self.group,
            backend=self.backend,
            label=self.label,
            epoch_offset_s=self.epoch_offset_s,
            gradients=self._gradients,
            iterations=self.iterations,
            meta=dict(self.meta),
        )

    def save(self, directory: str | Path, label: str | None = None) -> Path:
        """Write `gradweave-rank00000-<label>.json` into `directory` and return its path.

        Raises:
            TraceError: the file cannot be written.
        """
        trace = self.trace() if label is None else replace(self.trace(), label=label)
        return save_trace(trace, Path(directory) / file_name(trace.rank, trace.label))

    def clear(self) -> None:
        """Forget the recorded iterations; the open one, if any, goes on."""
        self._closed.clear()


def _epoch_offset_s() -> float:
    """Unix time minus perf_counter, from the tightest of a few readings (a context switch in between spoils one)."""
    readings = []
    for _ in range(5):
        before, unix, after = _now(), time.time(), _now()
        readings.append((after - before, unix - (before + after) / 2))
    return min(readings)[1]
