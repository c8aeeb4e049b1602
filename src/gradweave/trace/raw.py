"""What the recorder keeps of an iteration, and how it becomes plain data.

While training runs only references and clock readings are kept; `freeze` builds the dataclasses when somebody looks. A reading
is a number, or an object that becomes one with `float()` when a device has got there (CUDA events). Ready times are kept with
the gradients they belong to, because the order of the gradients may change between iterations.
"""

from __future__ import annotations

from gradweave.model.events import CollectiveEvent, Iteration
from gradweave.model.segment import GradientInfo, Segment


class Launch:
    """A collective in flight: the token between `launched` and `finished`."""

    __slots__ = ("dtype", "end_s", "kind", "segment", "size_bytes", "start_s")

    def __init__(self, segment: Segment, size_bytes: int, dtype: str, kind: str, start_s: float) -> None:
        self.segment, self.size_bytes, self.dtype, self.kind = segment, size_bytes, dtype, kind
        self.end_s: float | None = None
        self.start_s = start_s


class Closed:
    """One finished iteration, as raw as it was recorded."""

    __slots__ = (
        "bp_end",
        "end",
        "fp_end",
        "fp_start",
        "gradients",
        "launches",
        "overlap",
        "plan",
        "previous_end",
        "ready",
        "step",
    )

    step: int
    previous_end: float | None
    fp_start: float
    fp_end: float | None
    bp_end: float
    end: float
    launches: list[Launch]
    ready: list[float | None]
    gradients: tuple[GradientInfo, ...]
    plan: tuple[int, ...]
    overlap: bool

    def settle(self) -> None:
        """Turn every reading into a number; waits for the device where one has not got there yet."""
        self.previous_end = None if self.previous_end is None else float(self.previous_end)
        self.fp_start, self.bp_end, self.end = float(self.fp_start), float(self.bp_end), float(self.end)
        self.fp_end = None if self.fp_end is None else float(self.fp_end)
        self.ready = [None if at is None else float(at) for at in self.ready]
        for launch in self.launches:
            launch.start_s = float(launch.start_s)
            launch.end_s = None if launch.end_s is None else float(launch.end_s)


def freeze(closed: Closed, group: str, gradients: tuple[GradientInfo, ...], index_of: dict[str, int]) -> Iteration:
    """Build the iteration; ready times are put into the order of `gradients`, whose positions by name are `index_of`."""
    closed.settle()
    ready: list[float | None] = closed.ready
    if closed.gradients is not gradients:
        ready = [None] * len(gradients)
        for info, at in zip(closed.gradients, closed.ready, strict=True):
            if info.name in index_of:
                ready[index_of[info.name]] = at
    return Iteration(
        step=closed.step,
        fp_start_s=closed.fp_start,
        fp_end_s=closed.fp_end,
        bp_end_s=closed.bp_end,
        iteration_end_s=closed.end,
        previous_end_s=closed.previous_end,
        plan=tuple(closed.plan),
        overlap=closed.overlap,
        ready_s=tuple(ready),
        collectives=tuple(
            _event(launch, closed, group) for launch in sorted(closed.launches, key=lambda launch: launch.start_s)
        ),
    )


def _event(launch: Launch, closed: Closed, group: str) -> CollectiveEvent:
    segment = launch.segment
    ready = [at for at in closed.ready[segment.first : segment.last + 1] if at is not None]
    return CollectiveEvent(
        segment=segment.index,
        first=segment.first,
        last=segment.last,
        size_bytes=launch.size_bytes,
        dtype=launch.dtype,
        start_s=launch.start_s,
        end_s=launch.end_s if launch.end_s is not None else closed.end,
        ready_s=max(ready, default=None),
        kind=launch.kind,
        group=group,
    )
