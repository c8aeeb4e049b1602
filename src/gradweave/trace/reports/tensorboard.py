"""Scalars for TensorBoard: one run folder a wrapper and rank, one point a step.

Tags: `gradweave/iteration_ms`, `exposed_ms`, `hidden_pct`, `tail_ms`, `data_wait_ms`, and `gradweave/segment_K/exposed_ms` and
`duration_ms`. The `tensorboard` package alone is enough; torch is not needed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gradweave.errors import MissingDependencyError
from gradweave.model.events import Trace
from gradweave.trace.analysis import IterationReport, analyse


def write_scalars(traces: Sequence[Trace], directory: str | Path) -> list[Path]:
    """Write event files under `directory/<label>/rank<r>`.

    Returns:
        The run folders.

    Raises:
        MissingDependencyError: `tensorboard` is not installed.
    """
    writer_class, to_event = _tensorboard()
    folders = []
    for trace in traces:
        folder = Path(directory) / trace.label.replace("/", "_") / f"rank{trace.rank}"
        writer = writer_class(str(folder))
        for report in analyse(trace):
            wall = report.iteration.iteration_end_s + trace.epoch_offset_s
            for tag, value in scalars(report):
                writer.add_event(to_event(tag, value, report.step, wall))
        writer.close()
        folders.append(folder)
    return folders


def require_tensorboard() -> None:
    """Make sure, before anything is written, that scalars can be.

    Raises:
        MissingDependencyError: `tensorboard` is not installed.
    """
    _tensorboard()


def scalars(report: IterationReport) -> Iterator[tuple[str, float]]:
    """Tags and values of one iteration; what is unknown is left out."""
    yield "gradweave/iteration_ms", report.iteration_s * 1e3
    yield "gradweave/exposed_ms", report.exposed_s * 1e3
    yield "gradweave/tail_ms", report.tail_s * 1e3
    if report.communication_s > 0:
        yield "gradweave/hidden_pct", 100 * report.hidden_s / report.communication_s
    if report.data_wait_s is not None:
        yield "gradweave/data_wait_ms", report.data_wait_s * 1e3
    segments: dict[int, tuple[float, float]] = {}
    for item in report.collectives:
        exposed, duration = segments.get(item.event.segment, (0.0, 0.0))
        segments[item.event.segment] = (exposed + item.exposed_s, duration + item.duration_s)
    for segment, (exposed, duration) in sorted(segments.items()):
        yield f"gradweave/segment_{segment + 1}/exposed_ms", exposed * 1e3
        yield f"gradweave/segment_{segment + 1}/duration_ms", duration * 1e3


def _tensorboard() -> tuple[Any, Any]:
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise MissingDependencyError(
            "TensorBoard scalars need the package tensorboard", rule="it is not installed", fix="pip install tensorboard"
        ) from error

    def to_event(tag: str, value: float, step: int, wall_s: float) -> Any:
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
        return Event(wall_time=wall_s or time.time(), step=step, summary=summary)

    return EventFileWriter, to_event
