"""The events of one iteration, the same for every source of traces.

Times are seconds on the rank's own monotonic clock; `Trace.epoch_offset_s` added to them gives Unix time, which is how ranks
on different hosts are put on one axis. An iteration lasts from the end of the previous one to its own `iteration_end_s`:

    previous end | data wait | fp_start ... forward ... backward ... bp_end | tail | optimizer | iteration_end
                                              [allreduce 1]  [allreduce 2 ...]

Unknown is None.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gradweave.model.segment import GradientInfo

SCHEMA = "gradweave.trace"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class CollectiveEvent:
    """One collective of one iteration on one rank.

    `segment` is the segment's index and `first..last` its gradients; a segment that holds several dtypes travels as several
    messages, each an event of its own. `ready_s` is when its last gradient was ready, `start_s` when it was launched, `end_s`
    when its result was complete.
    """

    segment: int
    first: int
    last: int
    size_bytes: int
    dtype: str
    start_s: float
    end_s: float
    ready_s: float | None = None
    kind: str = "all_reduce"
    group: str = "world"


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration on one rank. `ready_s[i]` is when gradient i was ready (None: it was not generated)."""

    step: int
    fp_start_s: float
    bp_end_s: float
    iteration_end_s: float
    collectives: tuple[CollectiveEvent, ...] = ()
    ready_s: tuple[float | None, ...] = ()
    fp_end_s: float | None = None
    previous_end_s: float | None = None
    plan: tuple[int, ...] = ()
    overlap: bool = True

    @property
    def data_wait_s(self) -> float | None:
        """Time from the previous iteration's end to the start of forward."""
        return None if self.previous_end_s is None else self.fp_start_s - self.previous_end_s


@dataclass(frozen=True, slots=True)
class Trace:
    """What one wrapper on one rank recorded."""

    rank: int
    world_size: int
    group: str
    backend: str
    label: str
    epoch_offset_s: float
    gradients: tuple[GradientInfo, ...]
    iterations: tuple[Iteration, ...]
    meta: dict[str, str] = field(default_factory=dict)
