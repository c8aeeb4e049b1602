"""The trace for chrome://tracing and ui.perfetto.dev.

Trace Event Format: one process (pid) a rank, one thread (tid) each for the iteration, compute and communication; complete
events (ph X) with `ts` and `dur` in us. Ranks are on one axis, whose zero is the earliest event of all.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gradweave.errors import TraceError
from gradweave.model.events import Iteration, Trace
from gradweave.trace.analysis import CollectiveReport, analyse_iteration
from gradweave.trace.files import file_to_write

Json = dict[str, Any]
_THREADS = ("iteration", "compute", "communication")


def chrome_dict(traces: Sequence[Trace]) -> Json:
    """Turn traces into the Trace Event Format.

    Example:
        >>> chrome_dict([])["traceEvents"]
        []
    """
    starts = [_opened(iteration) + trace.epoch_offset_s for trace in traces for iteration in trace.iterations]
    zero = min(starts, default=0.0)
    labels = sorted({trace.label for trace in traces})
    events: list[Json] = []
    for trace in traces:
        base = len(_THREADS) * labels.index(trace.label)
        events += _names(trace, base)
        for iteration in trace.iterations:
            events += [{**event, "pid": trace.rank, "tid": base + event["tid"]} for event in _iteration(trace, iteration, zero)]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"source": "gradweave", "epoch_s": f"{zero:.6f}"}}


def write_chrome(traces: Sequence[Trace], path: str | Path) -> Path:
    """Write the Chrome trace; a path that ends in `.gz` is compressed.

    Raises:
        TraceError: the path names a folder, or the place cannot be written.
    """
    path, text = file_to_write(path), json.dumps(chrome_dict(traces), separators=(",", ":"), allow_nan=False).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    except OSError as error:
        raise TraceError(f"cannot write {path}: {error.strerror}", fix="give a place that can be written") from error
    return path


def _names(trace: Trace, base: int) -> Iterator[Json]:
    yield {
        "ph": "M",
        "name": "process_name",
        "pid": trace.rank,
        "tid": 0,
        "args": {"name": f"rank {trace.rank} of {trace.world_size}"},
    }
    for tid, name in enumerate(_THREADS):
        yield {
            "ph": "M",
            "name": "thread_name",
            "pid": trace.rank,
            "tid": base + tid,
            "args": {"name": f"{name} ({trace.label})"},
        }
        yield {"ph": "M", "name": "thread_sort_index", "pid": trace.rank, "tid": base + tid, "args": {"sort_index": base + tid}}


def _iteration(trace: Trace, iteration: Iteration, zero: float) -> Iterator[Json]:
    report = analyse_iteration(iteration, trace.rank)

    def event(tid: int, name: str, start_s: float, end_s: float, **args: Any) -> Json:
        start_us = (start_s + trace.epoch_offset_s - zero) * 1e6
        return {
            "ph": "X", "tid": tid, "name": name, "cat": _THREADS[tid], "ts": round(start_us, 3),
            "dur": round(max(0.0, end_s - start_s) * 1e6, 3), "args": args,
        }  # fmt: skip

    start, bp_end = iteration.fp_start_s, iteration.fp_start_s + report.fp_to_bp_s
    totals = {name: round(getattr(report, f"{name}_s") * 1e3, 4) for name in ("hidden", "exposed", "tail")}
    yield event(
        0, f"step {iteration.step}", _opened(iteration), iteration.iteration_end_s, **{f"{k}_ms": v for k, v in totals.items()}
    )
    if report.data_wait_s is not None:
        yield event(1, "data wait", _opened(iteration), start)
    if report.fp_s is None:
        yield event(1, "forward and backward", start, bp_end)
    else:
        yield event(1, "forward", start, start + report.fp_s)
        yield event(1, "backward", start + report.fp_s, bp_end)
    yield event(1, "optimizer", bp_end + report.tail_s, iteration.iteration_end_s)
    for item in report.collectives:
        yield event(2, *_collective(item), **_details(item))


def _collective(item: CollectiveReport) -> tuple[str, float, float]:
    return f"{item.event.kind} {item.event.segment + 1}", item.effective_start_s, item.event.end_s


def _details(item: CollectiveReport) -> Json:
    return {
        "segment": item.event.segment + 1,
        "bytes": item.event.size_bytes,
        "first_index": item.event.first,
        "last_index": item.event.last,
        "dtype": item.event.dtype,
        "group": item.event.group,
        "hidden_us": round(item.hidden_s * 1e6, 1),
        "exposed_us": round(item.exposed_s * 1e6, 1),
        "queued_us": round(max(0.0, item.effective_start_s - item.event.start_s) * 1e6, 1),
    }


def _opened(iteration: Iteration) -> float:
    return iteration.fp_start_s if iteration.previous_end_s is None else min(iteration.previous_end_s, iteration.fp_start_s)
